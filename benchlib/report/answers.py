"""What answers a study's question: the comparisons that its notebook declares, the headline on them, and what it cannot show."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import BeforeValidator

from benchlib.errors import InputError, NothingToShowError
from benchlib.plan.metrics import MOST_ANSWERS, percent_words
from benchlib.plan.model import Study
from benchlib.report.figures.frames import change_words, known, opening, rows_of, span
from benchlib.report.screening import main_effects, standing_out
from benchlib.stats import Analysis
from benchlib.stats.crossed import additivity
from benchlib.stats.ladder import enough
from benchlib.study.crashed import KILLED, POWER_CUT, kept_crashes
from benchlib.study.experiment import Experiment
from benchlib.study.records import ReplicaReadings

UNSHOWN = "cannot be shown here"
_MOST_WORDS = 60
_SAYS_BOTH = "instead of"
"""Words for a level that have this in them say what it is compared with."""
_UNCLEAR = ("not known", "on a processor", "other waits")
"""Bottlenecks that tell a reader nothing."""
_CAPS = ("read_iops", "write_iops", "read_bytes", "write_bytes")
_OF_CHANGE = ["change", "percent", "ci_low", "ci_high", "verdict", "gives_up"]
_LEAST_WAL = 100
"""Bytes per transaction from which on a load writes, so that checkpoints matter."""

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A figure that is null in JSON where it is not known."""


@dataclass(frozen=True)
class Answer:
    """One comparison that answers a study's question.

    ``level`` is called ``words`` to a reader, ``against`` is the level that it is compared with. The change and its interval
    are in percent, NaN where not known; ``verdict`` is one of the five words, or :data:`UNSHOWN`. ``gives_up`` is what a crash
    may cost with the level, where that is not what it may cost with the other.
    """

    level: str
    against: str
    words: str
    percent_change: Number
    ci_low: Number
    ci_high: Number
    verdict: str
    gives_up: str


def answers(experiment: Experiment) -> list[Answer]:
    """The comparisons that the study's notebook declares as its answers; if none of them was run, the first that it asks about.

    Of a screening they are the changes that stand out of the noise, or else the largest, each of all levels that have it.

    Raises:
        StudyError: too few trials are kept to compare anything.

    """
    analysis = experiment.analysis
    if (table := _screened(experiment)) is not None:
        large, first = standing_out(table), analysis.baseline
        told = large.head(MOST_ANSWERS) if len(large) else table.head(1)
        return [Answer(first, first, *row) for row in told[_OF_CHANGE].itertuples(index=False, name=None)]
    costs, words, rows = experiment.durability(), words_of(experiment.study), rows_of(analysis)
    return [
        Answer(
            level=level,
            against=(against := analysis.against[level]),
            words=words.get(level, f"“{level}”"),
            **{name: rows[level][name] for name in ("percent_change", "ci_low", "ci_high")},
            verdict=UNSHOWN if level in analysis.unshown else rows[level]["verdict"],
            gives_up=cost if (cost := costs.get(level, "")) != costs.get(against) else "",
        )
        for level in answering(experiment)[:MOST_ANSWERS]
    ]


def answering(experiment: Experiment) -> list[str]:
    """The levels whose comparisons answer: those that are declared, or where none of them was run all."""
    asked = experiment.analysis.asked
    return [level for level in words_of(experiment.study) if level in asked] or asked


def words_of(study: Study) -> dict[str, str]:
    """What the levels that the notebook declares as answers are called, in its order; those that are not run are passed over."""
    words = dict[str, str]()
    for name, called in study.declared.answers.items():
        level = study.plan.factor.named(name)
        if level and (_SAYS_BOTH not in called or _as_declared(study, level)):
            words.setdefault(level, called)
    return words


def _as_declared(study: Study, level: str) -> bool:
    """Whether a level is compared with what the notebook has it compared with: where others are not run, it may be another."""
    declared, factor = study.declared, study.plan.factor
    against = factor.pairs().get(level, "")
    if level not in factor.cells:
        return against == declared.against.get(level, factor.baseline)
    # what is compared along a dimension is so with its first value
    first = {name: next(iter(ends), "") for name, ends in declared.grid.items() if declared.along in ("", name)}
    return factor.cells.get(against) == factor.cells[level] | first


def headline(experiment: Experiment) -> str:
    """The finding that leads, where the study has it, and a sentence on the answers."""
    if (table := _screened(experiment)) is not None:
        return _of_changes(table, answers(experiment), experiment.analysis)
    lead = experiment.study.declared.lead
    finding = _LEADS[lead](experiment) if lead else ""
    comparisons, gives_up = {}, {}
    for answer in answers(experiment):
        other = "" if _SAYS_BOTH in answer.words else f"“{answer.against}”"
        comparisons[answer.level] = (answer.words, other)
        if not (finding and lead == "crashes"):  # which has said it
            gives_up[answer.level] = answer.gives_up.replace("; ", " and ")
    sentence = experiment.analysis.headline(comparisons, gives_up)
    return " ".join(filter(None, (finding, opening(sentence)))).replace("\u00a0", " ")


def _screened(experiment: Experiment) -> pd.DataFrame | None:
    """What each change of a screening brings by itself; None of a study that does not tell it."""
    with contextlib.suppress(NothingToShowError):
        return main_effects(experiment)
    return None


def _of_changes(table: pd.DataFrame, told: Sequence[Answer], analysis: Analysis) -> str:
    """Which of a screening's changes stand out of the noise; if none does, the largest."""
    count = len(standing_out(table))
    lead = f"{count or 'None'} of {len(table)} changes stand{'s' * (count < 2)} out of the noise"
    clauses = [
        f"{each.words}, {change_words(vars(each))}, {each.verdict}{', but ' * bool(each.gives_up)}{each.gives_up}"
        for each in told
    ]
    of = f"{analysis.metric.title}, {100 * (1 - analysis.alpha):.3g} % intervals"
    return f"{lead}: {'; '.join(clauses)} ({of}).".replace("\u00a0", " ")


# --- findings that lead -------------------------------------------------------------


def _crashes(experiment: Experiment) -> str:
    """What crashes cost: power cuts, where there were any, since a killed server loses less."""
    kept, words = kept_crashes(experiment.folder), words_of(experiment.study)
    if not kept:
        return ""
    kind = POWER_CUT if any(crash.kind == POWER_CUT for crash in kept) else KILLED
    rows = pd.DataFrame(
        [(c.level, c.lost or 0, bool(c.damage) or c.recovery_s is None) for c in kept if c.kind == kind],
        columns=["level", "lost", "damaged"],
    )
    levels = rows.groupby("level", sort=False)
    sums, counts, harms = levels.sum(), levels.size(), list[str]()
    for level, lost, damaged in sums.itertuples(name=None):
        harm = [f"lost {lost:,} acknowledged commit{'s' * (lost > 1)}"] if lost else []
        harm += [f"left {damaged} of {counts[level]} clusters damaged"] if damaged else []
        if harm:
            harms.append(f"{words.get(level, f'“{level}”')} {' and '.join(harm)}")
    event = f"{'power cut' if kind == POWER_CUT else 'kill'}{'s' * bool(counts.max() > 1)}"
    times = f"In {span(counts, str)} {event} each"
    if not harms:
        return f"{times}, none of {len(counts)} levels lost a commit."
    return f"{times}, {', '.join(harms)}{'; the others lost none' * (len(harms) < len(counts))}."


def _clients(experiment: Experiment) -> str:
    """Up to how many clients the metric gets better, and what held it back there."""
    analysis, plan, rows = experiment.analysis, experiment.plan, rows_of(experiment.analysis)
    levels = sorted([analysis.baseline, *analysis.asked], key=lambda level: plan.level_load(level).clients)
    clients = [plan.level_load(level).clients for level in levels]
    changes = [0.0 if level == analysis.baseline else rows[level]["percent_change"] for level in levels]
    valid = np.isfinite(changes).all() and "invalid" not in {rows[level]["verdict"] for level in levels}
    if not (valid and analysis.one_reference and len(set(clients)) == len(clients) > 1):
        return ""
    sign, verb = (1, "grows") if analysis.metric.higher_is_better else (-1, "falls")
    place = enough([(1 + change / 100) ** sign for change in changes], analysis.margin)
    count = f"{clients[place]} client{'s' * (clients[place] > 1)}"
    finding = f"{opening(analysis.metric.title)} {verb} up to {count}"
    if place:
        step, _ = experiment.compared(levels[place], levels[place - 1], plan.metric)
        if step["ci_low"] <= 0 <= step["ci_high"]:
            finding += f" (the step from {clients[place - 1]} is not certain)"
    if place == len(levels) - 1:
        return f"{finding}, the most that were tried."
    held = str(experiment.bottlenecks.set_index("level")["bottleneck"][levels[place]])
    limit = "" if held in _UNCLEAR else f"; the bottleneck there: {held.removeprefix('the ')}"
    return f"{finding}, beyond by no more than {100 * analysis.margin:g} %{limit}."


def _gains(experiment: Experiment) -> str:
    """Whether the gains of a grid's changes add up, of those that bring one alone."""
    factor, analysis = experiment.plan.factor, experiment.analysis
    cells = pd.DataFrame.from_dict(factor.cells, orient="index", dtype=object)
    if factor.baseline not in cells.index:
        return ""
    changed = cells.ne(cells.loc[factor.baseline]).loc[:, cells.nunique() > 1]
    verdicts = analysis.table.set_index("level")["verdict"].reindex(changed.index)
    alone = changed[changed.sum(axis=1) == 1].idxmax(axis=1)
    if alone.empty or verdicts.eq("invalid").any():
        return ""
    tried = [str(name) for name in changed if name in set(alone)]
    helped = [name for name in tried if verdicts[alone.index[alone == name]].eq("faster").any()]
    if len(helped) < 2:
        some = helped[0] if helped else "none"
        return f"Alone, of {_listed(tried)}, {some} is shown to bring a gain, so nothing could add up."
    design = changed.loc[~changed.drop(columns=helped).any(axis=1), helped].astype(int) * 2 - 1
    trials = experiment.trials[experiment.trials["error"].isna()]
    trials = trials[trials["level"].isin([*design.index, *factor.controls])]
    try:
        table = additivity(trials, design, controls=factor.controls, metric=experiment.plan.metric, alpha=analysis.alpha)  # fmt: skip
    except InputError:  # a combination that it takes was not measured
        return ""
    # the last three rows: all, if they multiplied; all, as measured; and by how much the one differs from the other
    ends = table.iloc[-3:][["percent", "ci_low", "ci_high"]].to_numpy().tolist()
    (product, _), (together, _), (change, between) = (percent_words(*row) for row in ends)
    miss, low, high = ends[-1]
    if not known(low, high):
        return ""
    by = f"{change} ({between})"
    if low > 0 or high < 0:
        result = f"{'more' if (miss > 0) == analysis.metric.higher_is_better else 'less'}, by {by}"
    elif max(-low, high) <= 100 * analysis.margin:
        result = f"they add up, to within {by}"
    else:
        result = f"whether they add up is not settled, {by}"
    return f"{opening(_listed(helped))} each bring a gain alone, which would make {product}; together they bring {together}: {result}."


_LEADS: Mapping[str, Callable[[Experiment], str]] = {
    "crashes": _crashes,
    "clients": _clients,
    "gains": _gains,
}


def _listed(names: Sequence[str]) -> str:
    """Some names as a sentence lists them."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


# --- what it cannot show ------------------------------------------------------------


def limits(experiment: Experiment) -> str:
    """What the study cannot show, in one line made from its data, worst first; what is not known is left out."""
    told = answers(experiment)
    levels = list(dict.fromkeys(level for answer in told for level in (answer.against, answer.level)))
    caveat = experiment.study.declared.caveat.rstrip(". ")
    parts = [caveat, *_doubts(experiment, levels), *_sizes(experiment, levels), *_shared(experiment, levels)]
    line, *others = filter(None, parts)
    for part in others:
        if len(f"{line} · {part}".split()) <= _MOST_WORDS:
            line += f" · {part}"
    return opening(line)


def _doubts(experiment: Experiment, levels: Sequence[str]) -> list[str]:
    """What was not met, used up or wrong at some of the levels."""
    checks, warnings = experiment.conditions, experiment.analysis.warnings
    unmet = checks[checks["level"].isin(levels) & checks["met"].eq(False)]["condition"]
    full = [w.level for w in warnings if w.code == "ceiling" and w.level in (None, *levels)]
    grave = sum(w.grave and w.level in (None, *levels, *experiment.analysis.controls) for w in warnings)
    some = "" if None in full or len(full) == len(levels) else f" at {len(full)} of {len(levels)} levels"
    return [
        f"not met: {'; '.join(dict.fromkeys(unmet))}" if len(unmet) else "",
        f"processors used up{some}" if full else "",
        f"{grave} grave reason{'s' * (grave > 1)} for doubt" if grave else "",
    ]


def _sizes(experiment: Experiment, levels: Sequence[str]) -> list[str]:
    """How long it was measured, with how much data, and whether checkpoints were in it."""
    plan, blocks = experiment.plan, experiment.analysis.blocks
    figures = experiment.figures[experiment.figures["level"].isin(levels)]
    data = figures.groupby("level")["data_to_memory"].median()
    cap = " cap" if all(plan.level(level).part("storage").get("memory") for level in levels) else ""
    times = span(data, "{:.2g}".format)
    written = figures[~(figures["wal_bytes_per_transaction"] < _LEAST_WAL)]["checkpoints"]
    seen = span(written, "{:.0f}".format)
    return [
        f"{blocks} block{'s' * (blocks > 1)} of {plan.load.duration_s} s a level",
        f"data {times} × the memory{cap}{', all cached' if data.max() < 1 else ''}" if times else "",
        "no checkpoint within a trial" if seen == "0" else f"{seen} checkpoint{'s' * (seen != '1')} a trial" if seen else "",
    ]  # fmt: skip


def _shared(experiment: Experiment, levels: Sequence[str]) -> list[str]:
    """What had to share the machine, and what stands in for a disk."""
    asked = [experiment.plan.level(level) for level in levels]
    if any(level.target for level in asked):
        return []
    followed = [level.part("replication") for level in asked]
    sharing = ["load tool"] * any(not experiment.plan.level_load(level).generators for level in levels)
    sharing += ["replicas"] * any(one.get("replicas") and not one.get("on") for one in followed)
    processors = experiment.study.provenance.get("host", {}).get("processors")
    storages = [level.part("storage") for level in asked]
    capped = any(storage.get(cap) for storage in storages for cap in _CAPS)
    places = [storage["data"] for storage in storages if isinstance(storage.get("data"), dict)]
    loops = any(place.get("file_system") not in (None, "tmpfs") for place in places)
    return [
        f"{' and '.join(sharing)} on the server's {processors or ''} processors".replace("  ", " ")
        if sharing
        else "",
        _distance(experiment, levels) if any(one.get("on") for one in followed) else "",
        f"disks are {'capped ' * capped}loop devices" if loops else "disk capped" * capped,
    ]


def _distance(experiment: Experiment, levels: Sequence[str]) -> str:
    """How far from their primary replicas on other hosts were."""
    folder = experiment.folder
    ids = [trial_id for trial_id, m in folder.kept().items() if m.trial.level in levels]
    kept = [record for trial_id in ids if (record := ReplicaReadings.read(folder, trial_id))]
    trips = span(1000 * away.round_trip_s for record in kept for away in record.elsewhere.values())
    return f"replicas on other hosts, {trips} ms there and back" if trips else ""
