"""How far a study's trials are what its model takes them for."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import chdtrc, fdtrc, stdtr

from benchlib.stats.block_model import fit_blocks
from benchlib.stats.compare import SAME
from benchlib.stats.verdicts import LEAST_BLOCKS


def assumptions_seen(trials: pd.DataFrame, metric: str, parts: Mapping[str, str]) -> dict[str, float]:
    """Return figures of what the block model leaves over of each of ``parts`` (the name of each level's).

    ``trials``: ``block, period, position, level``, the metric, and where several hosts ran them ``host``. ``noise``: by what fraction a trial strays;
    ``noisiest``: the deviation of the level that strays most, in units of the one that strays least, with ``noisiest_p``
    (Bartlett); ``luck``: the deviation of a cluster in units of a trial's, with ``luck_p`` (F), where clusters
    stay for several blocks; ``position_p``: that the position inside a block matters (F); ``lag``: the correlation of
    a trial with the next, with ``lag_p``. NaN where the trials cannot tell.
    """
    left, df = [], 0
    trials = trials.assign(host=trials["host"].astype(object).fillna("") if "host" in trials else "")
    for _, rows in trials[trials[metric] > 0].groupby(trials["level"].map(parts)):
        logs = rows.pivot(index="block", columns="level", values=metric).apply(np.log)
        hosts = rows.groupby("block")["host"].first()
        if logs.shape[1] > 1 and (fit := fit_blocks(logs, hosts)).residual_sd > SAME:
            residual = pd.DataFrame(fit.residual, logs.index, logs.columns)
            rows = rows.assign(
                left=[
                    residual.loc[block, name]
                    for block, name in zip(rows["block"], rows["level"], strict=True)
                ]
            )
            left.append(rows.assign(scaled=rows["left"] / fit.residual_sd))
            df += fit.df
    names = ("noise", "noisiest", "noisiest_p", "luck", "luck_p", "position_p", "lag", "lag_p")
    seen = dict.fromkeys(names, float("nan"))
    rows = pd.concat(left).sort_values(["block", "position"]) if left else pd.DataFrame({"block": []})
    if rows["block"].nunique() < LEAST_BLOCKS:
        return seen
    by_level = [level.to_numpy() for _, level in rows.groupby("level")["left"] if len(level) > 2]
    deviations = [level.std() for level in by_level]
    by_position = [place.to_numpy() for _, place in rows.groupby("position")["scaled"] if len(place) > 1]
    seen["noise"] = float(np.sqrt((rows["left"] ** 2).sum() / df))
    seen["noisiest"] = float(max(deviations) / min(deviations))
    seen["noisiest_p"], seen["position_p"] = _one_deviation(by_level), _one_mean(by_position)
    before, after = rows["scaled"].iloc[:-1], rows["scaled"].iloc[1:]
    seen["lag"] = lag = float(np.corrcoef(before, after)[0, 1])
    seen["lag_p"] = float(2 * stdtr(len(before) - 2, -abs(lag) * np.sqrt((len(before) - 2) / (1 - lag**2))))
    blocks, periods = rows["block"].nunique(), rows.groupby(["host", "period"]).ngroups
    among = rows["host"].nunique()
    between_df = (periods - among) * (rows["level"].nunique() - len(left))
    if among < periods < blocks and df > between_df:
        clusters = rows.groupby(["host", "period", "level"])["scaled"]
        between = (clusters.mean() ** 2 * clusters.count()).sum()
        ratio = (between / between_df) / (((rows["scaled"] ** 2).sum() - between) / (df - between_df))
        seen["luck"] = float(np.sqrt(max(ratio - 1, 0.0) * periods / blocks))
        seen["luck_p"] = float(fdtrc(between_df, df - between_df, ratio))
    return seen


def _one_deviation(groups: Sequence[np.ndarray]) -> float:
    """Return the p that groups have one deviation (M. S. Bartlett, 1937)."""
    df = np.array([len(group) - 1 for group in groups])
    variances = np.array([group.var(ddof=1) for group in groups])
    statistic = df.sum() * np.log(df @ variances / df.sum()) - df @ np.log(variances)
    scale = 1 + ((1 / df).sum() - 1 / df.sum()) / (3 * (len(df) - 1))
    return float(chdtrc(len(df) - 1, statistic / scale))


def _one_mean(groups: Sequence[np.ndarray]) -> float:
    """Return the p that groups have one mean (R. A. Fisher's analysis of variance)."""
    every, means = np.concatenate(groups), np.array([group.mean() for group in groups])
    between = [len(group) for group in groups] @ (means - every.mean()) ** 2
    inside = ((every - np.repeat(means, [len(group) for group in groups])) ** 2).sum()
    among, left = len(groups) - 1, len(every) - len(groups)
    return float(fdtrc(among, left, (between / among) / (inside / left)))
