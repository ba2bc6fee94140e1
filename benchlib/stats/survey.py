"""Surveys: one or two trials of each cell of a matrix, with noise from the whole matrix.

Source: G. K. Smyth, *Linear models and empirical Bayes methods* (2004), sections 3 and 6.2.
A survey only selects cells for fresh blocks, and limits what it misses.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import polygamma, psi, stdtr, stdtrit

from benchlib.errors import InputError
from benchlib.plan.metrics import foreign_metric
from benchlib.stats.analysis import Analysis
from benchlib.stats.limits import EXPLORATORY, STANDS_OUT, Concern
from benchlib.stats.multiple import benjamini_hochberg
from benchlib.stats.power import Plan, blocks_to_find
from benchlib.stats.trials import read_trials
from benchlib.stats.verdicts import percent

CHANGE, MISSED = 0.05, 0.1
"""A change of this fraction stands out, but for this share of them."""
_CERTAIN = 0.1
"""Cells stand out too that are shown at this false discovery rate, however small."""
_LEAST = 0.3
"""A cell whose single p is larger does not stand out; with more noise a survey misses more."""


def moderated(variances: Sequence[float], dfs: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups' posterior variances and degrees of freedom.

    The prior, a scaled inverse chi-square, is fitted by moments of the logarithms.

    Raises:
        InputError: no group has a variance.
    """
    s2, df = np.array(variances, dtype=float), np.array(dfs, dtype=float)
    known = (df > 0) & (s2 > 0)
    if not known.any():
        raise InputError("a survey needs a reference with two trials in a block")
    log, half = np.log(s2[known]), df[known] / 2
    centred = log - psi(half) + np.log(half)
    spread = centred.var(ddof=1) - polygamma(1, half).mean() if known.sum() > 1 else 0.0
    half_df, shift = np.inf, 0.0
    if spread > 0:  # half_df, whose trigamma is the spread, lies between these bounds
        half_df = float(brentq(lambda y: polygamma(1, y) - spread, 1 / spread, 0.5 + 1 / spread))
        shift = psi(half_df) - np.log(half_df)
    prior = np.exp(centred.mean() + shift)
    own = np.where(known, df, 0.0)
    posterior = prior + own / (2 * half_df + own) * (np.where(known, s2, 0.0) - prior)
    return posterior, np.minimum(2 * half_df + own, own.sum())


def survey(
    trials: pd.DataFrame,
    *,
    baseline: str,
    repeats: Mapping[str, str],
    against: Mapping[str, str],
    metric: str = "tps",
    margin: float = 0.03,
    alpha: float = 0.05,
    concerns: Sequence[Concern] = (),
    higher_is_better: bool = False,
    lower_is_better: bool = False,
    **_: Any,
) -> Analysis:
    """Return the cells that stand out from their reference; others are inconclusive.

    - ``repeats``: further trials of references (level → reference), which give the noise
    - ``part`` (column): levels with the same noise

    Intervals are single, at 1 - alpha; ``p_adjusted`` is the false discovery rate.

    Raises:
        InputError: invalid trials, or no reference is repeated.
    """
    data = read_trials(trials, baseline, (), metric)
    stacked: Any = data.values.T.stack(future_stack=True).dropna()
    long = stacked.rename_axis(["level", "block"]).reset_index(name="value")
    long["cell"] = [repeats.get(level, level) for level in long["level"]]
    part = dict(zip(trials["level"], trials["part"], strict=True)) if "part" in trials else {}
    parts = [part.get(cell, "") for cell in long["cell"]]
    references = {*against.values()}
    measured = {*long["level"]}
    names = [name for name in map(str, data.values) if name not in {baseline, *repeats, *references}]
    pairs = {name: against.get(name, baseline) for name in names}
    pairs = {name: other for name, other in pairs.items() if {name, other} <= measured}
    fits = [_fit(rows, pairs) for _, rows in long.groupby(parts, sort=False)]
    variances, dfs = moderated([fit.variance for fit in fits], [fit.df for fit in fits])
    estimate, error, df = np.full((3, len(pairs)), np.nan)
    for fit, variance, of_part in zip(fits, variances, dfs, strict=True):
        inside = np.isfinite(fit.change)
        estimate[inside], df[inside] = fit.change[inside], of_part
        error[inside] = np.sqrt(variance * fit.unscaled[inside])
    p = 2 * stdtr(df, -np.abs(estimate) / error)
    fdr = benjamini_hochberg(p.tolist())
    out = (np.abs(estimate) >= _cut(error, df)) | (fdr <= _CERTAIN)
    reach = -stdtrit(df, alpha / 2) * error
    grave = {concern.level for concern in concerns if concern.grave}
    verdicts = [
        "invalid" if grave & {None, name, other} else STANDS_OUT if stands else "inconclusive"
        for (name, other), stands in zip(pairs.items(), out, strict=True)
    ]  # fmt: skip
    table = long.groupby("cell", sort=False)["value"].agg(["count", "mean", "std"])
    table = table.set_axis(["n", "mean", "sd"], axis=1).assign(cv=100 * table["std"] / table["mean"])
    compared = {
        "percent_change": percent(estimate),
        "ci_low": percent(estimate - reach),
        "ci_high": percent(estimate + reach),
        "p_value": p,
        "p_adjusted": fdr,
        "verdict": verdicts,
        "mde_percent": np.nan,
        "blocks_needed": np.nan,
    }
    by_chance = np.nansum(2 * stdtr(df, -_cut(error, df) / error))
    value = f"{int(out.sum())} of {len(pairs)} cells stand out; {by_chance:.0f} would if none differed"
    errors = {"estimate": estimate, "error": error, "df": df, "equal_low": np.nan, "equal_high": np.nan}
    return Analysis(
        table=table.join(pd.DataFrame(compared, [*pairs])).rename_axis("level").reset_index(),
        baseline=baseline,
        controls=(),
        against=pairs,
        metric=foreign_metric(metric, higher_is_better=higher_is_better, lower_is_better=lower_is_better),
        blocks=len(data.values),
        margin=margin,
        alpha=alpha,
        warnings=(*data.concerns, *concerns, Concern("survey", value)),
        errors=pd.DataFrame(
            {"level": [*pairs], "against": [*pairs.values()], "family": EXPLORATORY, **errors}
        ),
        residual_sd=float(np.sqrt(variances.mean())),
    )


def blocks_to_confirm(cells: int, sd: float, alpha: float = 0.05) -> int:
    """Return the fresh blocks that confirm a change of 5 % with 98 % power."""
    return blocks_to_find(Plan(alpha, cells, 0.0), sd, CHANGE, 0.98)


def _cut(error: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Return the smallest log-ratio that stands out."""
    unmissed = np.log1p(CHANGE) - stdtrit(df, 1 - MISSED) * error
    return np.asarray(np.maximum(unmissed, stdtrit(df, 1 - _LEAST / 2) * error))


class _Fit(NamedTuple):
    """A part: log-ratios of pairs with unscaled variances (NaN outside), and its noise."""

    change: np.ndarray
    unscaled: np.ndarray
    variance: float
    df: int


def _fit(rows: pd.DataFrame, pairs: Mapping[str, str]) -> _Fit:
    """Fit blocks and cells by least squares."""
    cells, blocks = (pd.get_dummies(rows[name], dtype=float) for name in ("cell", "block"))
    design, logs = np.column_stack([cells, blocks]), np.log(rows["value"].to_numpy(float))
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    effects = inverse @ design.T @ logs
    df = len(rows) - int(np.linalg.matrix_rank(design))
    residual = logs - design @ effects
    variance = float(residual @ residual / df) if df else 0.0
    of, to = (cells.columns.get_indexer(pd.Index([*names])) for names in (pairs, pairs.values()))
    unscaled = inverse[of, of] + inverse[to, to] - 2 * inverse[of, to]
    change, unscaled = np.where((of >= 0) & (to >= 0), [effects[of] - effects[to], unscaled], np.nan)
    return _Fit(change, unscaled, variance, df)
