"""From a frame of trials to a frame of effects, for notebooks and users' own trials."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.metrics import described
from benchlib.stats.analysis import Analysis
from benchlib.stats.crossed import effects as main_effects
from benchlib.stats.limits import Concern
from benchlib.stats.sequential import decide, plan_looks
from benchlib.stats.strata import analyze_strata
from benchlib.stats.verdicts import analyze

EFFECTS = "effects"
"""The value of ``attrs["kind"]`` for frames of effects."""
SHOWN = [
    "level", "against", "n", "base", "mean", "percent_change", "ci_low", "ci_high", "p_adjusted", "verdict",
]  # fmt: skip
"""The columns of a frame of effects that a table shows."""
_COMPARED = [
    "percent_change",
    "ci_low",
    "ci_high",
    "p_value",
    "p_adjusted",
    "verdict",
    "mde_percent",
    "blocks_needed",
]


def compare(
    trials: pd.DataFrame,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    against: Mapping[str, str] = MappingProxyType({}),
    answers: Mapping[str, str] | Sequence[str] = (),
    metric: str = "tps",
    margin: float = 0.03,
    alpha: float = 0.05,
    looks: Sequence[int] = (),
    **options: Any,
) -> pd.DataFrame:
    """Return the effects of levels, a row per comparison.

    ``trials`` has ``block, level`` and the metric; ``part, period, host, error, doubt`` are used if present.
    ``answers`` are the levels that answer the question, optionally with words. For other arguments see
    :func:`judge`.

    Columns:

    - ``level, against, answer`` (words, else empty);
    - ``n`` (trials of the side with fewer);
    - ``base, mean`` (arithmetic means of the reference with controls and of the level, in the metric's unit);
    - ``percent_change, ci_low, ci_high`` (percent, simultaneous interval at 1 - alpha);
    - ``equal_low, equal_high`` (percent, interval of the equivalence test);
    - ``p_value, p_adjusted, verdict, mde_percent, blocks_needed``;
    - ``error, df`` (standard error of the log-ratio and its degrees of freedom).

    ``attrs`` holds the facts for figures and pages.

    Raises:
        InputError: the trials or an argument are invalid.
    """
    analysis = judge(
        trials, baseline=baseline, controls=controls, against=against, metric=metric, margin=margin, alpha=alpha,
        looks=looks, **options,
    )  # fmt: skip
    words = dict(answers) if isinstance(answers, Mapping) else {level: level for level in answers}
    return effects_of(analysis, words)


def judge(
    trials: pd.DataFrame,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    against: Mapping[str, str] = MappingProxyType({}),
    looks: Sequence[int] = (),
    alpha: float = 0.05,
    concerns: Sequence[Concern] = (),
    **options: Any,
) -> Analysis:
    """Return the analysis of trials with optional parts, doubts and planned looks.

    - ``part`` (column): levels that share noise. Parts are analysed apart and share ``alpha``.
    - ``doubt`` (column): a reason that makes the level's comparisons invalid.
    - ``looks``: numbers of blocks after which the study may stop (``blocks: auto``); alpha is spent over them.
    - ``options``: for :func:`benchlib.stats.verdicts.analyze`.

    Raises:
        InputError: the trials or an argument are invalid.
    """
    concerns = [*concerns, *_doubts(trials)]
    arguments = {"baseline": baseline, "controls": tuple(controls), "concerns": concerns, **options}
    if looks:
        if against:
            raise InputError("looks judge all levels against one baseline: leave out 'against'")
        plan = plan_looks(trials["level"].nunique(), len(arguments["controls"]), tuple(looks))
        return decide(trials, plan, **arguments)[0]
    if "part" in trials and trials["part"].nunique() > 1:
        first = trials.drop_duplicates("level")
        parts = dict(zip(first["level"].astype(str), first["part"].astype(str), strict=True))
        pairs = _against(parts, baseline, arguments["controls"], against)
        return analyze_strata(trials, parts, against=pairs, alpha=alpha, **arguments)
    return analyze(trials, against=against, alpha=alpha, **arguments)


def _against(
    parts: Mapping[str, str], baseline: str, controls: Sequence[str], against: Mapping[str, str]
) -> dict[str, str]:
    """Return the reference of each compared level: the named one, or the baseline."""
    references = {*against.values()} - {*against}
    return {
        level: against.get(level, baseline)
        for level in parts
        if level not in {baseline, *controls} and (level in against or level not in references)
    }


def _doubts(trials: pd.DataFrame) -> list[Concern]:
    if "doubt" not in trials:
        return []
    rows = trials[["level", "doubt"]].dropna().drop_duplicates()
    return [
        Concern("doubt", str(doubt), grave=True, level=str(level))
        for level, doubt in rows.itertuples(index=False)
        if doubt
    ]


def effects_of(analysis: Analysis, answers: Mapping[str, str] = MappingProxyType({})) -> pd.DataFrame:
    """Return an analysis as the frame of :func:`compare`: answers first, controls last."""
    table = analysis.table.set_index("level")
    rows = table[table.index.isin([*analysis.against])]
    against = pd.Series(dict(analysis.against)).reindex(rows.index)
    errors = analysis.errors.set_index("level").reindex(rows.index)
    arms = table[table.index.isin([analysis.baseline, *analysis.controls]) & table["n"].gt(0)]
    pooled = np.average(arms["mean"], weights=arms["n"]) if len(arms) else np.nan
    # levels are compared with baseline and controls together, controls with the baseline
    together = against.eq(analysis.baseline) & ~against.index.isin(analysis.controls)
    equal = {name: 100 * np.expm1(errors[name]) for name in ("equal_low", "equal_high")}
    effects = pd.DataFrame(
        {
            "against": against,
            "answer": pd.Series(dict(answers), dtype=object).reindex(rows.index).fillna(""),
            "n": np.minimum(rows["n"], table["n"].reindex(against).to_numpy()),
            "base": np.where(together, pooled, table["mean"].reindex(against)),
            "mean": rows["mean"],
            **{name: rows[name] for name in _COMPARED[:3]},
            **equal,
            **{name: rows[name] for name in _COMPARED[3:]},
            "error": errors["error"],
            "df": errors["df"],
        }
    )
    place = {level: number for number, level in enumerate(answers)}
    order = [
        (level in analysis.controls, place.get(level, len(place)), number)
        for number, level in enumerate(effects.index)
    ]
    effects = (
        effects.iloc[sorted(range(len(order)), key=order.__getitem__)].rename_axis("level").reset_index()
    )
    effects.attrs = {
        "kind": EFFECTS,
        "baseline": analysis.baseline,
        "controls": list(analysis.controls),
        "metric": analysis.metric.name,
        "title": analysis.metric.title,
        "unit": analysis.metric.unit,
        "higher_is_better": analysis.metric.higher_is_better,
        "margin": analysis.margin,
        "alpha": analysis.alpha,
        "blocks": analysis.blocks,
        "warnings": [warning.record() for warning in analysis.warnings],
    }
    return effects


def screen(
    trials: pd.DataFrame,
    signs: pd.DataFrame,
    *,
    metric: str = "tps",
    margin: float = 0.03,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return the effect of each change of a screening as a frame of effects, largest first.

    ``signs`` has a row per level and a column per change: -1 without it, +1 with it. ``answer`` names the
    significant changes (Holm), or else the largest. ``base`` and ``mean`` are without and with the change.

    Raises:
        InputError: the trials are not those of the design.
    """
    shown = described(metric)
    trials = trials[trials["level"].isin(signs.index)]  # without the controls
    rows = main_effects(trials, signs, metric=metric, order=1, alpha=alpha)
    up, down = shown.directions
    good = trials.dropna(subset=[metric]).set_index("level")[metric].astype(float)
    significant = rows["p_holm"] < alpha
    sides = [signs.index[signs[name] == sign] for name in rows["effect"] for sign in (-1, 1)]
    means = [good[good.index.isin(side)].mean() for side in sides]
    named = significant if significant.any() else pd.Series(rows.index == 0, rows.index)
    effects = pd.DataFrame({
        "level": rows["effect"], "against": "without it", "answer": rows["effect"].where(named, ""),
        "n": trials["block"].nunique(), "base": means[::2], "mean": means[1::2],
        "percent_change": rows["percent"], "ci_low": rows["ci_low"], "ci_high": rows["ci_high"],
        "equal_low": np.nan, "equal_high": np.nan, "p_value": rows["p_value"], "p_adjusted": rows["p_holm"],
        "verdict": np.where(significant, np.where(rows["percent"] > 0, up, down), "inconclusive"),
        **dict.fromkeys(("mde_percent", "blocks_needed", "error", "df"), np.nan),
    })  # fmt: skip
    effects.attrs = {
        "kind": EFFECTS, "baseline": "without it", "controls": [], "metric": metric, "title": shown.title, "unit": shown.unit,
        "higher_is_better": shown.higher_is_better, "margin": margin, "alpha": alpha,
        "blocks": int(trials["block"].nunique()), "warnings": [],
    }  # fmt: skip
    return effects
