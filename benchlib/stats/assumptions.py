"""How far a study's trials are what its model takes them for."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from benchlib.stats.block_model import fit_blocks
from benchlib.stats.compare import SAME
from benchlib.stats.verdicts import LEAST_BLOCKS

_NAMES = ("noise", "noisiest", "noisiest_p", "luck", "luck_p", "position_p", "lag", "lag_p")


def assumptions_seen(trials: pd.DataFrame, metric: str, parts: Mapping[str, str]) -> dict[str, float]:
    """Return figures of what the block model leaves over of each of ``parts`` (the name of each level's).

    ``trials``: ``block, period, position, level``, the metric, and where several hosts ran them ``host``. ``noise``: by what fraction a trial strays;
    ``noisiest``: the deviation of the level that strays most, in units of the one that strays least, with ``noisiest_p``
    (Bartlett); ``luck``: the deviation of a cluster in units of a trial's, with ``luck_p`` (F), where clusters
    stay for several blocks; ``position_p``: that the position inside a block matters (F); ``lag``: the correlation of
    a trial with the next, with ``lag_p``. NaN where the trials cannot tell.
    """
    from scipy.stats import bartlett, f_oneway, pearsonr  # takes long to import, and only this needs it

    left, df = [], 0
    trials = trials.assign(host=trials["host"].astype(object).fillna("") if "host" in trials else "")
    for _, rows in trials[trials[metric] > 0].groupby(trials["level"].map(parts)):
        logs = rows.pivot(index="block", columns="level", values=metric).apply(np.log)
        fit = fit_blocks(logs, rows.groupby("block")["host"].first())
        if fit.residual_sd > SAME:
            residual = pd.DataFrame(fit.residual, logs.index, logs.columns)
            rows = rows.merge(residual.melt(value_name="left", ignore_index=False), on=["block", "level"])
            left.append(rows.assign(scaled=rows["left"] / fit.residual_sd))
            df += fit.df
    seen = dict.fromkeys(_NAMES, float("nan"))
    rows = pd.concat(left).sort_values(["block", "position"]) if left else pd.DataFrame({"block": []})
    if rows["block"].nunique() < LEAST_BLOCKS:
        return seen
    seen["noise"] = float(np.sqrt((rows["left"] ** 2).sum() / df))
    by_level = [level.to_numpy() for _, level in rows.groupby("level")["left"] if len(level) > 2]
    by_position = [place.to_numpy() for _, place in rows.groupby("position")["scaled"] if len(place) > 1]
    if len(by_level) > 1:
        deviations = [level.std() for level in by_level]
        seen["noisiest"] = float(max(deviations) / min(deviations))
        seen["noisiest_p"] = float(bartlett(*by_level).pvalue)
    if len(by_position) > 1:
        seen["position_p"] = float(f_oneway(*by_position).pvalue)
    seen["lag"], seen["lag_p"] = map(float, pearsonr(rows["scaled"].iloc[:-1], rows["scaled"].iloc[1:]))
    blocks, periods = rows["block"].nunique(), rows.groupby(["host", "period"]).ngroups
    among = rows["host"].nunique()
    between_df = (periods - among) * (rows["level"].nunique() - len(left))
    if among < periods < blocks and df > between_df:
        clusters = rows.groupby(["host", "period", "level"])["scaled"]
        between = (clusters.mean() ** 2 * clusters.count()).sum()
        # scaled, all squares add up to their degrees of freedom
        ratio = (between / between_df) / ((df - between) / (df - between_df))
        seen["luck"] = float(np.sqrt(max(ratio - 1, 0.0) * periods / blocks))
        seen["luck_p"] = float(fdtrc(between_df, df - between_df, ratio))
    return seen
