"""Frames of effects from frames of trials."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.metrics import MOST_STATED, Metric, foreign_metric, most_stated, number_words
from benchlib.stats.analysis import Analysis
from benchlib.stats.crossed import single_contrasts
from benchlib.stats.limits import ANSWER, Concern
from benchlib.stats.multiple import holm
from benchlib.stats.sequential import ALPHA, decide
from benchlib.stats.strata import analyze_strata
from benchlib.stats.survey import survey
from benchlib.stats.trials import read_trials, usable
from benchlib.stats.verdicts import analyze, percent

EFFECTS = "effects"
"""The value of ``attrs["kind"]`` for frames of effects."""
COLUMNS = [
    "level", "against", "answer", "family", "n", "base", "mean", "percent_change", "ci_low", "ci_high", "equal_low", "equal_high",
    "p_value", "p_adjusted", "verdict", "mde_percent", "blocks_needed", "error", "df",
]  # fmt: skip
"""The columns of a frame of effects."""
SHOWN = [*COLUMNS[:2], *COLUMNS[4:10], "p_adjusted", "verdict"]
"""The columns of a frame of effects that a table shows."""


def compare(
    trials: pd.DataFrame, *, baseline: str, answers: Mapping[str, str] | Sequence[str] = (), **arguments: Any
) -> pd.DataFrame:
    """Return the effects of levels, a row per comparison.

    ``trials`` has ``block, level`` and the metric; ``part, period, host, error, doubt`` are optional.
    ``answers``: levels that answer the question, perhaps with words, as declared before the study ran.
    Other ``arguments``: :func:`judge`, :func:`benchlib.analyze`.

    Columns, in percent unless stated:

    - ``level, against, answer``; ``family`` (``answer``, ``exploratory``, ``control``); ``n`` (trials of
      the side with fewer)
    - ``base, mean`` of reference and level, in the metric's unit
    - ``percent_change, ci_low, ci_high`` (simultaneous over the family, at 1 - alpha)
    - ``equal_low, equal_high`` (interval of the equivalence test)
    - ``p_value`` (single), ``p_adjusted, verdict``; ``mde_percent`` (smallest increase with 80 % power)
    - ``blocks_needed`` (total to settle it); ``error, df`` of the log-ratio

    Raises:
        InputError: invalid trials or arguments.
    """
    given = answers if isinstance(answers, Mapping) else {level: level for level in answers}
    words = {str(level): str(text) for level, text in given.items()}
    return effects_of(judge(trials, baseline=baseline, answers=[*words], **arguments), words)


def judge(
    trials: pd.DataFrame,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    against: Mapping[str, str] = MappingProxyType({}),
    looks: Sequence[int] = (),
    repeats: Mapping[str, str] = MappingProxyType({}),
    alpha: float = 0.05,
    concerns: Sequence[Concern] = (),
    **arguments: Any,
) -> Analysis:
    """Return the analysis of trials with optional parts, doubts and planned looks.

    - ``part`` (column): levels that share noise; parts share ``alpha``
    - ``doubt`` (column): why the level's comparisons are invalid
    - ``looks``: numbers of blocks after which the study may stop
    - ``repeats``: see :func:`~benchlib.stats.survey.survey`

    Raises:
        InputError: invalid trials or arguments.
    """
    if "level" in trials:  # numbers in a user's own frame
        trials = trials.assign(level=trials["level"].map(str, na_action="ignore"))
    against, repeats = ({str(a): str(b) for a, b in pairs.items()} for pairs in (against, repeats))
    if "doubt" in trials:
        doubted = trials[["level", "doubt"]].dropna().drop_duplicates().astype(str)
        doubts = doubted[doubted["doubt"].ne("")].itertuples(index=False)
        concerns = [*concerns, *(Concern("doubt", why, grave=True, level=level) for level, why in doubts)]
    arms = (str(baseline), *map(str, controls))
    arguments |= {"baseline": arms[0], "controls": arms[1:], "concerns": concerns}
    if not {"block", "level", arguments.get("metric", "tps")} <= {*trials} or not {*arms} <= {
        *trials["level"]
    }:
        return analyze(trials, against=against, alpha=alpha, **arguments)  # which names what is missing
    if repeats:
        return survey(trials, repeats=repeats, against=against, alpha=alpha, **arguments)
    if looks:
        if against:
            raise InputError("looks judge all levels against one baseline: leave out 'against'")
        if not math.isclose(alpha, ALPHA):
            raise InputError(f"looks share an error rate of {ALPHA:g}: leave out alpha")
        return decide(trials, looks, **arguments)[0]
    if "part" in trials and trials["part"].nunique() > 1:
        parts = trials.drop_duplicates("level").astype({"part": str})
        strata = dict(zip(parts["level"], parts["part"], strict=True))
        return analyze_strata(trials, strata, against=against, alpha=alpha, **arguments)
    return analyze(trials, against=against, alpha=alpha, **arguments)


def effects_of(analysis: Analysis, answers: Mapping[str, str] = MappingProxyType({})) -> pd.DataFrame:
    """Return the frame of :func:`compare`: answers first, controls last."""
    rank = {level: number for number, level in enumerate(answers)}
    order = sorted(analysis.against, key=lambda name: (name in analysis.controls, rank.get(name, len(rank))))
    table, errors = (frame.set_index("level") for frame in (analysis.table, analysis.errors))
    errors = errors.loc[order]
    reference = table.loc[errors["against"]]
    arms = table.loc[[analysis.baseline, *analysis.controls]]
    # levels are compared with baseline and controls together, controls with the baseline
    together = errors["against"].eq(analysis.baseline) & ~errors.index.isin(analysis.controls)
    effects = table.loc[order].assign(
        **errors[["against", "family", "error", "df"]],
        answer=[answers.get(level, "") for level in order],
        n=np.minimum(table.loc[order, "n"], reference["n"].to_numpy()),
        base=np.where(together, np.average(arms["mean"], weights=arms["n"]), reference["mean"]),
        **percent(errors[["equal_low", "equal_high"]]),
    )
    names = ("baseline", "margin", "alpha", "exploratory_alpha", "blocks")
    facts: dict[str, Any] = {name: getattr(analysis, name) for name in names}
    facts |= {"controls": [*analysis.controls], "warnings": [each.record() for each in analysis.warnings]}
    return _with_facts(effects.rename_axis("level").reset_index()[COLUMNS], analysis.metric, **facts)


def readable(effects: pd.DataFrame) -> pd.DataFrame:
    """Return a frame for a table: numbers that are too large to be stated are text."""
    numbers = effects.select_dtypes("number") if effects.columns.is_unique else effects.iloc[:, :0]
    if "percent_change" not in [*numbers]:
        return effects
    most = pd.DataFrame({"ci_high": numbers["percent_change"].map(most_stated), "mde_percent": MOST_STATED})
    numbers = numbers[[name for name in most if name in numbers]]
    far = numbers.gt(most[[*numbers]])
    words = "> " + most.map(number_words)
    texts = {
        str(name): numbers[name].astype(object).mask(far[name], words[name])
        for name in far
        if far[name].any()
    }
    return effects.assign(**texts)


def screen(
    trials: pd.DataFrame,
    signs: pd.DataFrame,
    *,
    metric: str = "tps",
    margin: float = 0.03,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return the effect of each change of a screening, largest first.

    ``signs`` has a row per level and a column per change: -1 without, +1 with it. ``answer`` names the
    significant changes (Holm), or else the largest.

    Raises:
        InputError: the trials are not those of the design.
    """
    measured = foreign_metric(metric)
    measured_levels = {*usable(trials, metric)["level"]} if metric in trials else {*signs.index}
    kept = [str(name) for name in signs.index if name in measured_levels] or [*map(str, signs.index)]
    lost = [Concern("few_trials", "0", level=str(name)) for name in signs.index if name not in kept]
    trials = trials[trials["level"].isin(kept)]  # without the controls
    data = read_trials(trials, kept[0], (), metric)
    coded = np.column_stack([np.ones(data.values.shape[1]), signs.loc[list(data.values)]])
    if np.linalg.matrix_rank(coded) < coded.shape[1]:
        raise InputError("the trials cannot separate the changes of this screening; more levels are needed")
    weights = 2.0 * np.linalg.pinv(coded)[1:]
    effects = single_contrasts(data, {str(n): w for n, w in zip(signs.columns, weights, strict=True)}, alpha)
    effects["p_adjusted"] = holm(effects["p_value"].to_list())
    size = np.log1p(effects["percent_change"] / 100).abs()
    effects = effects.iloc[np.argsort(-size)].rename_axis("level").reset_index()
    # each level is a part of every effect
    doubted = "doubt" in trials and bool(trials["doubt"].fillna("").ne("").any())
    significant = (effects["p_adjusted"] < alpha) & (not doubted)
    named = significant if significant.any() or doubted else effects.index == 0
    sides = signs.loc[list(data.values), effects["level"]].to_numpy()
    means = [[np.nanmean(data.values.to_numpy()[:, side == sign]) for side in sides.T] for sign in (-1, 1)]
    up, down = measured.directions
    blocks = int(trials["block"].nunique())
    effects = effects.assign(
        against="without it",
        answer=effects["level"].where(named, ""),
        family=ANSWER,
        n=int(data.values.count().min()),  # each effect uses all levels
        base=means[0],
        mean=means[1],
        verdict=np.where(
            significant,
            np.where(effects["percent_change"] > 0, up, down),
            "invalid" if doubted else "inconclusive",
        ),
    )
    facts = {"baseline": "without it", "controls": [], "margin": margin, "alpha": alpha, "blocks": blocks}
    warnings = [concern.record() for concern in (*data.concerns, *lost)]
    return _with_facts(effects.reindex(columns=COLUMNS), measured, warnings=warnings, **facts)


def _with_facts(effects: pd.DataFrame, metric: Metric, **facts: Any) -> pd.DataFrame:
    about: dict[str, Any] = {name: getattr(metric, name) for name in ("title", "unit", "higher_is_better")}
    effects.attrs = {"kind": EFFECTS, "metric": metric.name} | about | facts
    return effects
