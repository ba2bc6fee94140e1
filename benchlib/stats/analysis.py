"""Verdicts for a factor: the block model, Dunnett's intervals, equivalence, and five words.

``analyze`` is the whole protocol of one factor; ``Analysis`` carries all that the plots, the
page and the command line show. Everything is computed on logarithms and given back in percent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.metrics import Metric, metric_or_guess, words
from benchlib.stats.block_model import arm_weights, fit_blocks
from benchlib.stats.compare import Comparison, blocks_needed, compare, shared, stack
from benchlib.stats.concerns import Concern
from benchlib.stats.frames import differences, equivalence, percent, residuals
from benchlib.stats.prose import headline
from benchlib.stats.trials import Trials, read_trials
from benchlib.stats.validity import effect_drift, host_drift, outliers

LEAST_BLOCKS = 3
# Log values that agree to the ninth digit in every block were copied, not measured: a t of them
# would be a quotient of rounding errors.
_NO_VARIATION = 1e-9


@dataclass(frozen=True)
class Analysis:
    """The verdicts on one factor by one metric.

    ``table``: one row per level, baseline first, then controls, then the others. ``mean`` and ``sd``
    are arithmetic, in the metric's unit; ``cv``, ``percent_change``, ``ci_*`` and ``mde_percent`` are
    percentages; ``ci_*`` is the simultaneous (Dunnett) interval at 1 - alpha, ``p_value`` the single
    and ``p_adjusted`` the family's p. A level is compared with the geometric mean of baseline and
    controls, a control with the baseline alone. ``mde_percent`` is the smallest increase that this
    study would have found with 80 % power, ``blocks_needed`` the total number of blocks that would
    settle an inconclusive level (see ``power.blocks_to_answer``), else NaN.

    ``against`` says what each level that is compared is compared with; the others, the baseline among them, have empty
    comparison columns. ``differences``: ``block, level, percent``, the same comparisons inside each block.
    ``equivalence``: per compared level ``low, high`` (interval at 1 - 2 alpha, percent),
    ``p_value`` (two one-sided tests), ``equivalent``, ``meaningful`` (the adjusted interval clears
    the margin), ``tiny`` (a real difference that is equivalent all the same).
    ``residuals``: ``block, level, value, residual``, the last in standard deviations.
    ``residual_sd`` is in log units, so about the fraction by which a trial strays, NaN where it
    cannot be known; ``df`` its degrees of freedom.
    """

    table: pd.DataFrame
    baseline: str
    controls: tuple[str, ...]
    against: Mapping[str, str]
    metric: Metric
    blocks: int
    margin: float
    alpha: float
    warnings: tuple[Concern, ...]
    differences: pd.DataFrame
    equivalence: pd.DataFrame
    residuals: pd.DataFrame
    residual_sd: float
    df: float

    @property
    def asked(self) -> list[str]:
        """The levels that the study asks about: those that are compared, the controls aside."""
        return [name for name in self.against if name not in self.controls]

    @property
    def one_reference(self) -> bool:
        """Whether all levels are compared with the baseline."""
        return set(self.against.values()) <= {self.baseline}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of ``benchlib analyze --json``: plain types, null for what is absent."""
        rows = [
            {str(key): _plain(value) for key, value in row.items()} for row in self.table.to_dict("records")
        ]
        for row in rows:
            row["blocks_needed"] = None if row["blocks_needed"] is None else int(row["blocks_needed"])
        return {
            "baseline": self.baseline,
            "metric": self.metric.name,
            "blocks": self.blocks,
            "levels": rows,
            "warnings": [dict(vars(warning)) for warning in self.warnings],
        }

    def headline(self, level: str | None = None) -> str:
        """Return one sentence on that level; without one, on the level that leads and the rest in brief.

        Raises InputError for a level that has no comparison.
        """
        return headline(self, level)


def analyze(
    trials: pd.DataFrame,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    metric: str = "tps",
    margin: float = 0.03,
    alpha: float = 0.05,
    concerns: Sequence[Concern] = (),
    against: Mapping[str, str] = MappingProxyType({}),
    families: int = 1,
) -> Analysis:
    """Return the verdicts on trials with columns ``block``, ``level`` and the metric.

    ``controls`` are further arms of the baseline (the A/A arm), declared before the run. ``margin``
    is the smallest fraction that matters, ``alpha`` the family's error rate. ``concerns`` found
    elsewhere (telemetry, failed transactions) join the warnings and invalidate where grave.
    ``against`` names for a level another one than the baseline to be compared with; a level that is only
    named as such is not compared itself. The intervals then hold together by Sidak's inequality.
    ``families`` is in how many parts a study is analysed, which share ``alpha`` (see ``analyze_strata``).
    A control that differs from the baseline at ``alpha`` (Dunnett over several controls) makes every
    verdict invalid. Fewer than three blocks, of the study or of a level, give no verdict but
    inconclusive; so do values that repeat exactly, for which no p can be computed. A difference that
    is both real and within the margin is called faster or slower, and ``tiny`` in ``equivalence``.

    Raises InputError for whatever in the frame or the parameters cannot be used (see ``read_trials``).
    """
    arms = _parameters(baseline, controls, margin, alpha)
    data = read_trials(trials, arms[0], arms[1:], metric)
    fit = fit_blocks(data.block, data.level, np.log(data.value), len(data.levels))
    sd, df = math.sqrt(fit.variance), float(fit.df)
    found = [*data.concerns, *concerns, *_data_concerns(data, sd)]
    if not sd > _NO_VARIATION:
        sd = math.nan
    pairs = _pairs(data.levels, arms, against)
    place = {name: index for index, name in enumerate(data.levels)}
    weights = arm_weights(
        len(data.levels), len(arms), {place[name]: place[other] for name, other in pairs.items()}
    )
    estimate, unscaled = fit.contrasts(weights)
    found += _trial_concerns(data, fit.residual, df, pairs) if math.isfinite(sd) else []
    split = len(arms) - 1
    one = set(pairs.values()) <= {arms[0]}
    family = compare(
        estimate[split:],
        unscaled[split:, split:],
        sd,
        df,
        alpha,
        margin,
        one_reference=one,
        families=families,
    )
    twins = compare(estimate[:split], unscaled[:split, :split], sd, df, alpha, margin)
    result = Analysis(
        table=pd.DataFrame(),
        baseline=arms[0],
        controls=arms[1:],
        against=pairs,
        metric=metric_or_guess(metric),
        blocks=len(data.blocks),
        margin=margin,
        alpha=alpha,
        warnings=(*found, *_control_concerns(twins, data, arms, alpha)),
        differences=differences(data, len(arms), pairs),
        equivalence=equivalence(stack(twins, family), list(pairs), alpha, margin),
        residuals=residuals(data, fit.residual, sd),
        residual_sd=sd,
        df=df,
    )
    needed = [
        blocks_needed(
            part,
            index,
            sd,
            df,
            shared(alpha, families),
            margin,
            result.blocks,
            len(data.levels),
            one_reference=one,
        )
        if np.isfinite(part.low[index])
        else None
        for part in (twins, family)
        for index in range(len(part.estimate))
    ]
    return replace(result, table=_table(result, stack(twins, family), data, needed))


def _pairs(levels: Sequence[str], arms: tuple[str, ...], against: Mapping[str, str]) -> dict[str, str]:
    """Return what each level is compared with, in their order; a level that is only compared with has nothing."""
    for name, other in against.items():
        if name in arms or name == other:
            raise InputError(f"level {name!r} cannot be compared with {other!r}")
        if unknown := {name, other} - set(levels):
            raise InputError(f"unknown level {min(unknown)!r}; the levels are: {', '.join(levels)}")
    only_references = set(against.values()) - set(against)
    pairs = dict.fromkeys(arms[1:], arms[0])
    return pairs | {
        name: against.get(name, arms[0])
        for name in levels
        if name not in arms and name not in only_references
    }


def _parameters(baseline: str, controls: Sequence[str], margin: float, alpha: float) -> tuple[str, ...]:
    """Return the baseline and its controls as text, or raise InputError for what makes no sense."""
    twins = [controls] if isinstance(controls, str) else list(controls)
    arms = tuple(str(name) for name in [baseline, *twins])
    if len(set(arms)) < len(arms):
        raise InputError("the baseline and each control must be levels of their own, each named once")
    if not (isinstance(margin, int | float) and 0 < margin < 1):
        raise InputError(f"margin is a fraction between 0 and 1 (0.03 is 3 %), not {margin!r}")
    if not (isinstance(alpha, int | float) and 1e-6 <= alpha < 0.5):
        raise InputError(f"alpha is an error rate from 0.000001 to 0.5 (0.05 is 5 %), not {alpha!r}")
    return arms


def _data_concerns(data: Trials, sd: float) -> list[Concern]:
    blocks, levels = len(data.blocks), len(data.levels)
    found = []
    if blocks < LEAST_BLOCKS:
        found.append(
            Concern("few_blocks", f"a verdict takes at least {LEAST_BLOCKS} blocks, here are {blocks}")
        )
    if len(data.value) < blocks * levels:
        absent = blocks * levels - len(data.value)
        found.append(
            Concern(
                "incomplete_blocks",
                f"{absent} of {blocks * levels} trials are absent: the blocks are incomplete",
            )
        )
    counts = np.bincount(data.level, minlength=levels)
    for index in np.flatnonzero(counts < LEAST_BLOCKS) if blocks >= LEAST_BLOCKS else ():
        name = data.levels[index]
        found.append(
            Concern(
                "few_trials", f"{name!r} has {counts[index]} usable trials: too few for a verdict", level=name
            )
        )
    if sd <= _NO_VARIATION:
        message = (
            "the trials repeat each other exactly, so there is no noise to judge by: copied, not measured?"
        )
        found.append(Concern("no_variation", message))
    return found


def _trial_concerns(data: Trials, residual: np.ndarray, df: float, pairs: Mapping[str, str]) -> list[Concern]:
    """Return what the trials themselves show: outliers (kept), a drifting host, a drifting effect."""
    logs = np.full((len(data.blocks), len(data.levels)), np.nan)
    logs[data.block, data.level] = np.log(data.value)
    found = []
    for row in outliers(np.log(data.value), residual, df):
        where = f"block {data.blocks[data.block[row]]}, {data.levels[data.level[row]]!r}"
        message = f"an outlier, shown and kept: {where} at {data.value[row]:.6g}"
        found.append(Concern("outlier", message, level=data.levels[data.level[row]]))
    complete = logs[np.isfinite(logs).all(axis=1)]
    drifts = [host_drift(complete.mean(axis=1))]
    for name, other in pairs.items():
        change = logs[:, data.levels.index(name)] - logs[:, data.levels.index(other)]
        drifts.append(effect_drift(name, change, len(pairs)))
    return found + [drift for drift in drifts if drift]


def _control_concerns(twins: Comparison, data: Trials, arms: tuple[str, ...], alpha: float) -> list[Concern]:
    if len(arms) == 1:
        return [
            Concern("no_control", "there is no A/A arm: noise between twins of the baseline was not measured")
        ]
    found = []
    for name, change, p in zip(arms[1:], np.expm1(twins.estimate) * 100, twins.p_adjusted, strict=True):
        if p <= alpha and len(data.blocks) >= LEAST_BLOCKS:
            message = f"the A/A control {name!r} differs from its twin by {change:+.1f} % (p = {p:.2g})"
            found.append(Concern("control_differs", message, grave=True, level=name))
    return found


def _table(result: Analysis, all_: Comparison, data: Trials, needed: list[int | None]) -> pd.DataFrame:
    """Return the contract's table; the comparison columns of what is not compared stay empty."""
    levels, pairs = data.levels, list(result.against)
    rows = [pairs.index(name) if name in pairs else -1 for name in levels]
    counts = np.bincount(data.level, minlength=len(levels))
    total = np.bincount(data.level, data.value, len(levels))
    mean = np.divide(total, counts, out=np.full(len(levels), np.nan), where=counts > 0)
    # relative to the mean, as squares of huge values would overflow
    squares = np.bincount(data.level, (data.value / mean[data.level] - 1) ** 2, len(levels))
    sd = mean * np.sqrt(np.divide(squares, counts - 1, out=np.full(len(levels), np.nan), where=counts > 1))
    verdicts = [
        _verdict(result, all_, index, dict(zip(levels, counts, strict=True))) for index in range(len(pairs))
    ]
    open_ = [
        blocks if word == "inconclusive" and blocks is not None else math.nan
        for word, blocks in zip(verdicts, needed, strict=True)
    ]

    def placed(values: np.ndarray) -> np.ndarray:
        """The values of the comparisons at the rows of their levels."""
        return np.append(values, math.nan)[rows]

    return pd.DataFrame(
        {
            "level": list(levels),
            "n": counts,
            "mean": mean,
            "sd": sd,
            "cv": 100 * sd / mean,
            "percent_change": placed(percent(all_.estimate)),
            "ci_low": placed(percent(all_.low)),
            "ci_high": placed(percent(all_.high)),
            "p_value": placed(all_.p),
            "p_adjusted": placed(all_.p_adjusted),
            "verdict": pd.Series([[*verdicts, None][row] for row in rows], dtype=object),
            "mde_percent": placed(percent(all_.detectable)),
            "blocks_needed": placed(np.array(open_, dtype=float)),
        }
    )


def _verdict(result: Analysis, all_: Comparison, index: int, counts: Mapping[str, int]) -> str:
    level, reference = list(result.against.items())[index]
    arms = {
        None,
        level,
        reference,
        *result.controls,
    }  # twins that differ are noise that nobody has understood
    if any(concern.grave and concern.level in arms for concern in result.warnings):
        return "invalid"
    too_few = min(counts[level], counts[reference], result.blocks) < LEAST_BLOCKS
    if too_few or not np.isfinite(all_.low[index]):
        return "inconclusive"
    if all_.low[index] > 0 or all_.high[index] < 0:
        # A control is at this point known not to differ at the family's level.
        up, down = words(result.metric)
        return up if all_.low[index] > 0 else down
    return "equivalent" if all_.p_tost[index] <= result.alpha else "inconclusive"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
