"""How far a study's trials are what its model takes them for."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from benchlib.stats.block_model import fit_blocks
from benchlib.stats.compare import SAME
from benchlib.stats.verdicts import LEAST_BLOCKS

_ORDERS = 999
_NAMES = ("noise", "noisiest", "noisiest_p", "luck", "luck_p", "position_p", "lag", "lag_p")


def assumptions_seen(trials: pd.DataFrame, metric: str, parts: Mapping[str, str]) -> dict[str, float]:
    """Return figures of what the block model leaves over of each of ``parts`` (the name of each level's).

    ``trials``: ``block, period, position, level``, the metric, and where several hosts ran them ``host``. ``noise``: by what fraction a trial strays;
    ``noisiest``: the deviation of the level that strays most, in units of the one that strays least, with ``noisiest_p``
    (Bartlett); ``luck``: the deviation of a cluster in units of a trial's, with ``luck_p`` (F), where clusters
    stay for several blocks; ``position_p``: that the position inside a block matters (F); ``lag``: by how much the correlation of
    a trial with the next is above that in other orders inside the same blocks, with ``lag_p`` (permutation). NaN where the trials cannot tell.
    """
    from scipy.stats import bartlett  # takes long to import, and only this needs it

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
    # of two levels alone what is left over is each other's mirror
    several = [part for part in left if part["level"].nunique() > 2]
    by_level = [
        level.to_numpy() for part in several for _, level in part.groupby("level")["left"] if len(level) > 2
    ]
    if len(by_level) > 1:
        deviations = [level.std() for level in by_level]
        seen["noisiest"] = float(max(deviations) / min(deviations))
        seen["noisiest_p"] = float(bartlett(*by_level).pvalue)
    places = rows.groupby("position")["scaled"]
    places_df = places.ngroups - len(left)
    if 0 < places_df < df:  # scaled, all squares add up to their degrees of freedom
        among_places = float((places.mean() ** 2 * places.count()).sum())
        ratio = (among_places / places_df) / ((df - among_places) / (df - places_df))
        seen["position_p"] = float(fdtrc(places_df, df - places_df, max(ratio, 0.0)))
    seen["lag"], seen["lag_p"] = _lag(rows["scaled"].to_numpy(), pd.factorize(rows["block"])[0])
    blocks, periods = rows["block"].nunique(), rows.groupby(["host", "period"]).ngroups
    among = rows["host"].nunique()
    between_df = (periods - among) * (rows["level"].nunique() - len(left))
    if among < periods < blocks and df > between_df:
        clusters = rows.groupby(["host", "period", "level"])["scaled"]
        between = (clusters.mean() ** 2 * clusters.count()).sum()
        ratio = (between / between_df) / ((df - between) / (df - between_df))
        seen["luck"] = float(np.sqrt(max(ratio - 1, 0.0) * periods / blocks))
        seen["luck_p"] = float(fdtrc(between_df, df - between_df, ratio))
    return seen


def _lag(scaled: np.ndarray, block: np.ndarray) -> tuple[float, float]:
    """Return by how much neighbours correlate above what they do in other orders inside their blocks, and the two-sided p of that."""
    random = np.random.default_rng(1)
    orders = [
        np.arange(len(scaled)),
        *(np.lexsort((random.random(len(scaled)), block)) for _ in range(_ORDERS)),
    ]
    lags = np.array([np.corrcoef(scaled[order][:-1], scaled[order][1:])[0, 1] for order in orders])
    away = lags - lags[1:].mean()
    # rows are as they ran, block by block; (extreme + 1) / (N + 1)
    return float(away[0]), float((np.abs(away) >= abs(away[0])).mean())
