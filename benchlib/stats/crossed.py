"""Many factors at once, all their combinations or a screening: their effects with intervals.

A design is a frame of -1 and +1, one row per level (a named combination), one column per factor;
the levels then run in randomised blocks like any others. Effects are the change from low to high.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtr, stdtrit

from benchlib.errors import InputError
from benchlib.stats.multiple import holm
from benchlib.stats.trials import read_trials
from benchlib.stats.verdicts import percent


def effects(
    trials: pd.DataFrame, design: pd.DataFrame, *, metric: str = "tps", order: int = 2, alpha: float = 0.05
) -> pd.DataFrame:
    """Return main effects and interactions up to ``order``: one row each, by size.

    Columns ``effect, order, percent, ci_low, ci_high, p_value, p_holm, noise``. ``percent`` is the
    change of the metric from low to high (for an interaction: half of how much the one factor's
    change differs between the other's low and high); intervals are single. ``noise`` is the change
    that noise alone would give the effect of that rank: its half-normal quantile (C. Daniel, 1959) times the standard error. The error is pure block error, what is left when every level has its own mean; with
    one block there is none, and Lenth's (1989) pseudo standard error stands in.
    Interactions need a design in which they are not aliased, such as all combinations: use order 1 for
    a screening (:func:`benchlib.plan.design.screening`). Raises InputError for levels without a row in the design, and for aliased effects.
    """
    levels = [str(level) for level in design.index]
    unknown = sorted(set(map(str, trials["level"])) - set(levels)) if "level" in trials else []
    if unknown:
        raise InputError(f"level {unknown[0]!r} has no row in the design")
    data = read_trials(trials, levels[0], (), metric)
    terms = [term for size in range(1, order + 1) for term in combinations(design.columns, size)]
    signs = design.set_axis(levels).loc[list(data.values)]
    coded = np.column_stack([np.ones(len(signs)), *(signs[list(term)].prod(axis=1) for term in terms)])
    if np.linalg.matrix_rank(coded) < coded.shape[1]:
        raise InputError(
            "these effects cannot be told apart by the trials that there are; ask for order=1 or more trials"
        )
    fit = data.fit()
    effect, unscaled = fit.contrasts(2.0 * np.linalg.pinv(coded)[1:])
    half, df = fit.residual_sd * np.sqrt(np.diag(unscaled)), float(fit.df)
    if not df:
        half, df = _lenth(effect)
    frame = _judged(effect, half, df, alpha)
    frame.insert(0, "effect", [" × ".join(map(str, term)) for term in terms])
    frame.insert(1, "order", [len(term) for term in terms])
    frame["p_holm"] = holm(frame["p_value"].to_list())
    rank = np.abs(effect).argsort().argsort()
    frame["noise"] = percent(ndtri(0.5 + 0.5 * (rank + 0.5) / len(terms)) * half)
    return frame.iloc[np.argsort(-np.abs(effect))].reset_index(drop=True)


def additivity(
    trials: pd.DataFrame,
    design: pd.DataFrame,
    *,
    controls: Sequence[str] = (),
    metric: str = "tps",
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return whether the gains of single changes add up to the gain of all: one row per change, then three more.

    Columns ``what, percent, ci_low, ci_high, p_value``. Rows: each factor alone high against everything low;
    ``all, if they multiplied`` (the product of those); ``all, as measured``; and ``measured / multiplied``, by how much
    the one differs from the other. Single intervals, by the block model of all levels; ``controls`` stand with the level
    in which all is low. Needs the rows of ``design`` in which all is low, one alone is high, and all is high; InputError otherwise.
    """
    levels = [str(level) for level in design.index]
    high = design.set_axis(levels).gt(0)
    base = high.index[~high.any(axis=1)]
    whole = high.index[high.all(axis=1)]
    single = {name: high.index[high[name] & high.sum(axis=1).eq(1)] for name in high}
    wanted = [base, *single.values(), whole]
    measured = set(trials["level"].astype(str))
    if any(len(names) != 1 or names[0] not in measured for names in wanted):
        raise InputError(
            "whether gains add up takes the levels with nothing, each change alone, and all of them"
        )
    data = read_trials(trials, base[0], controls, metric)
    fit, names = data.fit(), data.values.columns
    place = dict(zip(names, np.eye(len(names)), strict=True))
    start = np.mean([place[name] for name in (base[0], *controls)], axis=0)
    alone = {name: place[level[0]] - start for name, level in single.items()}
    multiplied, together = sum(alone.values()), place[whole[0]] - start
    rows = {
        **alone,
        "all, if they multiplied": multiplied,
        "all, as measured": together,
        "measured / multiplied": together - multiplied,
    }
    estimate, unscaled = fit.contrasts(np.array(list(rows.values())))
    error = fit.residual_sd * np.sqrt(np.diag(unscaled))  # NaN without degrees of freedom
    frame = _judged(estimate, error, fit.df, alpha)
    frame.insert(0, "what", list(map(str, rows)))
    return frame


def _judged(estimate: np.ndarray, error: np.ndarray, df: float, alpha: float) -> pd.DataFrame:
    """Changes on the log scale in percent, with their single intervals and p: ``percent, ci_low, ci_high, p_value``."""
    reach = -stdtrit(df, alpha / 2) * error
    with np.errstate(divide="ignore", invalid="ignore"):  # trials that all agree leave no error at all
        p = 2 * stdtr(df, -np.abs(estimate) / error)
    ends = {"percent": estimate, "ci_low": estimate - reach, "ci_high": estimate + reach}
    return percent(pd.DataFrame(ends)).assign(p_value=p)  # type: ignore[no-any-return]


def _lenth(effect: np.ndarray) -> tuple[np.ndarray, float]:
    """Return Lenth's pseudo standard error of the effects and its degrees of freedom, m / 3."""
    size = np.abs(effect)
    first = 1.5 * float(np.median(size))
    pse = 1.5 * float(np.median(size[size < 2.5 * first])) if first > 0 else float("nan")
    return np.full(len(effect), pse), len(effect) / 3
