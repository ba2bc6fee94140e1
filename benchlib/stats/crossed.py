"""Several changes at once. A design is a frame of -1 and +1 (levels, factors)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from benchlib.plan.metrics import foreign_metric
from benchlib.stats.block_model import fit_blocks
from benchlib.stats.trials import Trials, read_trials
from benchlib.stats.verdicts import analyze, by_period, percent

_RENAMED = {"percent_change": "percent", "ci_low": "low", "ci_high": "high", "verdict": "verdict"}


def additivity(
    trials: pd.DataFrame,
    design: pd.DataFrame,
    *,
    controls: Sequence[str] = (),
    metric: str = "tps",
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return whether single gains add up: a row per change, then three for all.

    Columns ``what, percent, ci_low, ci_high, p_value, verdict``. Empty unless each level was measured once.
    """
    high = design.gt(0)
    base = high.index[~high.any(axis=1)]
    whole = high.index[high.all(axis=1)]
    single = {name: high.index[high[name] & high.sum(axis=1).eq(1)] for name in high}
    wanted = [base, *single.values(), whole]
    measured = set(trials.dropna(subset=[metric])["level"])
    if len(single) < 2 or any(len(names) != 1 or names[0] not in measured for names in wanted):
        numbers = dict.fromkeys(("percent", "ci_low", "ci_high", "p_value"), float)
        return pd.DataFrame(columns=["what", *numbers, "verdict"]).astype(numbers)
    data = read_trials(trials, base[0], controls, metric)
    unit = dict(zip(data.values, np.eye(data.values.shape[1]), strict=True))
    start = np.mean([unit[name] for name in (base[0], *controls)], axis=0)
    alone = {str(name): unit[level[0]] - start for name, level in single.items()}
    multiplied, together = np.sum([*alone.values()], axis=0), unit[whole[0]] - start
    rows = {
        **alone,
        "all, if they multiplied": multiplied,
        "all, as measured": together,
        "as measured, against that product": together - multiplied,
    }
    frame = single_contrasts(data, rows, alpha).rename(columns={"percent_change": "percent"})
    up, down = foreign_metric(metric).directions
    frame["verdict"] = np.select([frame["ci_low"] > 0, frame["ci_high"] < 0], [up, down], "inconclusive")
    return frame.rename_axis("what").reset_index()


def ladder(
    trials: pd.DataFrame,
    steps: Sequence[str],
    *,
    controls: Sequence[str] = (),
    metric: str = "tps",
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return each step of a ladder, compared with the previous step and the start.

    Columns: ``level``, ``step_percent, step_low, step_high, step_verdict``; likewise ``total_``.

    Raises:
        InputError: invalid trials, or a step without any.
    """
    if len(steps) < 2:
        columns = [f"{part}_{name}" for part in ("step", "total") for name in _RENAMED.values()]
        return pd.DataFrame(columns=["level", *columns])
    parts = []
    for part, against in {"step": {step: before for before, step in pairwise(steps)}, "total": {}}.items():
        analysis = analyze(
            trials, baseline=steps[0], controls=controls, metric=metric, alpha=alpha, against=against
        )
        rows = analysis.table.set_index("level").loc[list(steps[1:]), list(_RENAMED)]
        parts.append(rows.rename(columns=_RENAMED).add_prefix(f"{part}_"))
    rungs = pd.concat(parts, axis=1).reset_index()
    rungs.attrs = {"title": analysis.metric.title, "alpha": alpha}
    return rungs


def steepest(effects: pd.DataFrame, design: pd.DataFrame) -> list[str]:
    """Return the ladder of levels in which each step adds the largest gain.

    It is empty unless ``effects`` compares with the level without changes.
    """
    high = design.gt(0)
    gains = effects.set_index("level")["percent_change"] * (
        1 if effects.attrs.get("higher_is_better", True) else -1
    )
    steps = [str(name) for name in high.index[~high.any(axis=1)] if (effects["against"] == name).any()][:1]
    while steps:
        now = high.loc[steps[-1]]
        more = high[high.index.isin(gains.index) & (high | ~now).all(axis=1) & high.sum(axis=1).gt(now.sum())]
        if more.empty:
            break
        fewest = more.index[more.sum(axis=1).eq(more.sum(axis=1).min())]
        steps.append(str(gains[fewest].fillna(-np.inf).idxmax()))
    return steps


def single_contrasts(data: Trials, weights: Mapping[str, np.ndarray], alpha: float) -> pd.DataFrame:
    """Return contrasts with intervals and p, not adjusted."""
    units, hosts, _ = by_period(data, data.fit())
    fit = fit_blocks(units, hosts)
    estimate, unscaled = fit.contrasts(np.array([*weights.values()]))
    error = fit.residual_sd * np.sqrt(np.diag(unscaled))  # NaN without degrees of freedom
    reach = -stdtrit(fit.df, alpha / 2) * error
    with np.errstate(divide="ignore", invalid="ignore"):  # equal trials have no error
        p = 2 * stdtr(fit.df, -np.abs(estimate) / error)
    ends = {"percent_change": estimate, "ci_low": estimate - reach, "ci_high": estimate + reach}
    return pd.DataFrame(percent(pd.DataFrame(ends, [*weights]))).assign(p_value=p)
