"""From a frame of trials to a frame of effects: the step that every notebook shows, for anybody's trials."""

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
"""``attrs["kind"]`` of a frame of effects."""
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
    """Return the effects of the levels of some trials, a row a comparison.

    ``trials`` has a row a trial with ``block, level`` and the metric; the columns ``part, period, host, error, doubt`` count
    where they exist (see :func:`judge`). ``answers`` are the levels that answer the question, with words for each where it is
    a mapping. The other arguments are those of :func:`judge`.

    Columns: ``level, against, answer`` (the words, empty where it is no answer), ``n`` (trials of the side
    that has fewer), ``base`` and ``mean`` (arithmetic means
    of the reference, controls included, and of the level, in the metric's unit), ``percent_change, ci_low, ci_high`` (percent; simultaneous
    interval at 1 - alpha), ``equal_low, equal_high`` (percent; the interval that decides equivalence), ``p_value, p_adjusted,
    verdict, mde_percent, blocks_needed``, ``error, df`` (standard error of the log of the ratio, and its degrees of freedom). ``attrs`` holds what a figure or a page needs beside the rows.

    Raises:
        InputError: the trials, or an argument, cannot be used.

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
    """Return the analysis of trials that may have parts, doubts, and planned looks.

    ``part`` names the trials that share a noise (levels of one workload); parts are judged apart and share ``alpha``.
    ``doubt`` is a reason, found elsewhere, for which every comparison of that trial's level is invalid. ``looks`` are the
    numbers of blocks after which a study may stop (``blocks: auto``); alpha is then spent over them.
    The other ``options`` are those of :func:`benchlib.stats.verdicts.analyze`.

    Raises:
        InputError: the trials, or an argument, cannot be used.

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
        own = _against(parts, baseline, arguments["controls"], against)
        return analyze_strata(trials, parts, against=own, alpha=alpha, **arguments)
    return analyze(trials, against=against, alpha=alpha, **arguments)


def _against(
    parts: Mapping[str, str], baseline: str, controls: Sequence[str], against: Mapping[str, str]
) -> dict[str, str]:
    """Return what each level is compared with: the baseline, where nothing else is named for it."""
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
    """Return the comparisons of an analysis as the frame that :func:`compare` describes; answers come first, controls last."""
    table = analysis.table.set_index("level")
    rows = table[table.index.isin([*analysis.against])]
    against = pd.Series(dict(analysis.against)).reindex(rows.index)
    errors = analysis.errors.set_index("level").reindex(rows.index)
    arms = table[table.index.isin([analysis.baseline, *analysis.controls]) & table["n"].gt(0)]
    pooled = np.average(arms["mean"], weights=arms["n"]) if len(arms) else np.nan
    # all but the controls are compared with the baseline and its controls together
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
    """Return the effect of each change of a screening as a frame of effects (see :func:`compare`), the largest first.

    ``signs`` has a row a level and a column a change, −1 without it and +1 with it. ``answer`` names the changes that stand out
    (Holm), or else the largest. Means are those of the trials without and with the change.

    Raises:
        InputError: the trials are not those of the design.

    """
    of = described(metric)
    trials = trials[trials["level"].isin(signs.index)]  # without the controls
    rows = main_effects(trials, signs, metric=metric, order=1, alpha=alpha)
    up, down = of.directions
    good = trials.dropna(subset=[metric]).set_index("level")[metric].astype(float)
    out = rows["p_holm"] < alpha
    sides = [signs.index[signs[name] == sign] for name in rows["effect"] for sign in (-1, 1)]
    means = [good[good.index.isin(side)].mean() for side in sides]
    named = out if out.any() else pd.Series(rows.index == 0, rows.index)
    effects = pd.DataFrame({
        "level": rows["effect"], "against": "without it", "answer": rows["effect"].where(named, ""),
        "n": trials["block"].nunique(), "base": means[::2], "mean": means[1::2],
        "percent_change": rows["percent"], "ci_low": rows["ci_low"], "ci_high": rows["ci_high"],
        "equal_low": np.nan, "equal_high": np.nan, "p_value": rows["p_value"], "p_adjusted": rows["p_holm"],
        "verdict": np.where(out, np.where(rows["percent"] > 0, up, down), "inconclusive"),
        **dict.fromkeys(("mde_percent", "blocks_needed", "error", "df"), np.nan),
    })  # fmt: skip
    effects.attrs = {
        "kind": EFFECTS, "baseline": "without it", "controls": [], "metric": metric, "title": of.title, "unit": of.unit,
        "higher_is_better": of.higher_is_better, "margin": margin, "alpha": alpha,
        "blocks": int(trials["block"].nunique()), "warnings": [],
    }  # fmt: skip
    return effects
