"""What answers a study's question: the comparisons that its notebook declares, the headline on them, and what it cannot show."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import BeforeValidator

from benchlib.errors import NothingToShowError
from benchlib.plan.metrics import MOST_ANSWERS, confidence_words, percent_words
from benchlib.plan.model import CLIENTS, Study
from benchlib.report.figures.frames import (
    SAYS_BOTH,
    UNSHOWN,
    change_cells,
    change_words,
    in_common,
    known,
    opening,
    quoted,
    rows_of,
    said,
    span,
)
from benchlib.report.figures.style import worded
from benchlib.report.screening import combination, factorial, main_effects, standing_out
from benchlib.stats.descriptive import enough
from benchlib.study.crashed import KILLED, POWER_CUT, kept_crashes
from benchlib.study.experiment import Experiment
from benchlib.study.instruments import DISKS_CAP
from benchlib.study.records import ReplicaReadings

_MOST_WORDS = 70
_UNCLEAR = ("not known", "on a processor", "other waits")
"""Bottlenecks that tell a reader nothing."""
_CAPS = ("read_iops", "write_iops", "read_bytes", "write_bytes")
_OF_CHANGE = ["change", "percent", "ci_low", "ci_high", "verdict", "gives_up", "verdict"]
_LEAST_WAL = 100
"""Bytes per transaction from which on a load writes, so that checkpoints matter."""

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A figure that is null in JSON where it is not known."""


@dataclass(frozen=True)
class Answer:
    """One comparison that answers a study's question.

    ``level`` is called ``words`` to a reader, ``against`` is the level that it is compared with. The change and its interval
    are in percent, NaN where not known; ``verdict`` is one of the five words, or :data:`UNSHOWN`, and ``said`` what a page says
    of it. ``gives_up`` is what a crash may cost with the level, where that is not what it may cost with the other.
    """

    level: str
    against: str
    words: str
    percent_change: Number
    ci_low: Number
    ci_high: Number
    verdict: str
    gives_up: str
    said: str

    def cells(self) -> tuple[str, str]:
        """The change and its interval for a table; of an invalid comparison neither, since beside that word they would be read as a result."""
        if self.verdict == "invalid":
            return "", ""
        return change_cells(self.percent_change, self.ci_low, self.ci_high)


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
            said=said(analysis, level, rows[level]["verdict"]),
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
        if level and (SAYS_BOTH not in called or _as_declared(study, level)):
            words.setdefault(level, called)
    return words


def _as_declared(study: Study, level: str) -> bool:
    """Whether a level is compared with what the notebook has it compared with: where others are not run, it may be another."""
    declared, factor = study.declared, study.plan.factor
    against = factor.pairs().get(level, "")
    if level not in factor.cells:
        return against == declared.against.get(level, factor.baseline)
    # what is compared along a dimension is so with its first value
    first = {
        name: next(iter(ends), "") for name, ends in declared.grid.items() if declared.along in ("", name)
    }
    return factor.cells.get(against) == factor.cells[level] | first


def headline(experiment: Experiment) -> str:
    """The finding that leads, where the study has it, and a sentence on the answers; of a screening the changes that stand out."""
    analysis, told = experiment.analysis, answers(experiment)
    if (table := _screened(experiment)) is not None:
        counts = {"count": len(standing_out(table)), "total": len(table)}
        changes = [(each, change_words(vars(each))) for each in told]
        confidence = confidence_words(analysis.alpha)
        return sentence("screened", told=changes, metric=analysis.metric, confidence=confidence, **counts)
    lead = experiment.study.declared.lead
    finding = _LEADS[lead](experiment) if lead else ""
    crashes = kept_crashes(experiment.folder) if lead == "crashes" else ()
    cut = {crash.level for crash in crashes if crash.kind == POWER_CUT}
    comparisons, gives_up = {}, {}
    for answer in told:
        other = "" if SAYS_BOTH in answer.words else f"“{answer.against}”"
        comparisons[answer.level] = (answer.words, other)
        if answer.level not in cut:  # of these the finding has said it
            gives_up[answer.level] = answer.gives_up.replace("; ", " and ")
    verdicts = opening(analysis.headline(comparisons, gives_up))
    return " ".join(filter(None, (finding, verdicts))).replace("\u00a0", " ")


def _screened(experiment: Experiment) -> pd.DataFrame | None:
    """What each change of a screening brings by itself; None of a study that does not tell it."""
    with contextlib.suppress(NothingToShowError):
        return main_effects(experiment)
    return None


def sentence(name: str, **facts: object) -> str:
    """The words of the template of that name as a sentence, or some."""
    return opening(" ".join(worded(name, facts).split()))


# --- findings that lead -------------------------------------------------------------


def _crashes(experiment: Experiment) -> str:
    """What crashes cost: power cuts, where there were any, since a killed server loses less."""
    kept, words = kept_crashes(experiment.folder), words_of(experiment.study)
    if not kept:
        return ""
    kind = KILLED if all(crash.kind == KILLED for crash in kept) else POWER_CUT
    crashes = pd.DataFrame(
        [(c.level, c.lost or 0, bool(c.damage) or c.recovery_s is None) for c in kept if c.kind == kind],
        columns=["level", "lost", "damaged"],
    ).groupby("level", sort=False)
    levels = crashes.sum().assign(of=crashes.size()).reset_index().to_dict("records")
    return sentence("crashes", kind=kind, levels=levels, words=words)


def _clients(experiment: Experiment) -> str:
    """Up to how many clients the metric gets better, and what held it back there."""
    analysis, plan, rows = experiment.analysis, experiment.plan, rows_of(experiment.analysis)
    levels = sorted([analysis.baseline, *analysis.asked], key=lambda level: plan.level_load(level).clients)
    clients = [plan.level_load(level).clients for level in levels]
    changes = [0.0 if level == analysis.baseline else rows[level]["percent_change"] for level in levels]
    valid = np.isfinite(changes).all() and "invalid" not in {rows[level]["verdict"] for level in levels}
    if not (valid and analysis.one_reference and len(set(clients)) == len(clients) > 1):
        return _falls(experiment)
    sign = 1 if analysis.metric.higher_is_better else -1
    place, uncertain = enough([(1 + change / 100) ** sign for change in changes], analysis.margin), False
    if place:
        step, _ = experiment.compared(levels[place], levels[place - 1], plan.metric)
        uncertain = not (step["ci_low"] > 0 or step["ci_high"] < 0)
    held = ""
    if place < len(levels) - 1:
        held = str(experiment.bottlenecks.set_index("level")["bottleneck"][levels[place]])
    return sentence(
        "clients", metric=analysis.metric, margin=analysis.margin, clients=clients, place=place, uncertain=uncertain,
        last=change_words(experiment.compared(levels[-1], levels[place], plan.metric)[0]) if held else "",
        held="" if held in _UNCLEAR else held.removeprefix("the "),
    )  # fmt: skip


def _falls(experiment: Experiment) -> str:
    """What each series of levels that differ in the number of clients alone loses, beyond its best number, up to the most."""
    plan, table = experiment.plan, experiment.analysis.table.set_index("level")
    speed = table["mean"] if experiment.analysis.metric.higher_is_better else -table["mean"]
    told = []
    for group in plan.alike(CLIENTS):
        if len(group) > 2 and not experiment.analysis.invalid(group):
            best, most = speed[group].idxmax(), max(group, key=lambda level: plan.level_load(level).clients)
            ends = [plan.level_load(str(level)).clients for level in (best, most)]
            row = experiment.compared(most, str(best), plan.metric)[0] if best != most else {}
            told.append({"name": in_common(group), "ends": ends, "change": change_words(row)})
    return sentence("falls", told=told, metric=experiment.analysis.metric) if told else ""


def _gains(experiment: Experiment) -> str:
    """Whether the gains of a grid's changes add up, of those that bring one alone."""
    analysis = experiment.analysis
    try:
        _, design, _ = factorial(experiment, 1)
        verdicts = analysis.table.set_index("level")["verdict"].reindex(design.index)
        if analysis.baseline not in design.index[design.lt(0).all(axis=1)] or verdicts.eq("invalid").any():
            return ""
        alone = design[design.gt(0).sum(axis=1) == 1].idxmax(axis=1)
        helped = [str(name) for name in design if verdicts[alone.index[alone == name]].eq("faster").any()]
        if len(helped) < 2:
            return sentence("gains", tried=[*design], helped=helped)
        others = design.drop(columns=helped)
        table = combination(experiment, design.loc[others.lt(0).all(axis=1), helped])
    except NothingToShowError:
        return ""
    # the last three rows: all, if they multiplied; all, as measured; and by how much the one differs from the other
    ends = table.iloc[-3:][["percent", "ci_low", "ci_high"]].to_numpy().tolist()
    (product, _), (together, _), difference = (percent_words(*row) for row in ends)
    miss, low, high = ends[-1]
    if not known(low, high):
        return ""
    measured = {"product": product, "together": together, "difference": difference, "ends": (low, high)}
    gain = (miss > 0) == analysis.metric.higher_is_better
    return sentence("gains", helped=helped, gain=gain, margin=analysis.margin, **measured)


_LEADS: Mapping[str, Callable[[Experiment], str]] = {
    "crashes": _crashes,
    "clients": _clients,
    "gains": _gains,
}

# --- what it cannot show ------------------------------------------------------------


def limits(experiment: Experiment) -> str:
    """What the study cannot show, in one line made from its data, worst first; what is not known is left out."""
    plan, analysis, declared = experiment.plan, experiment.analysis, experiment.study.declared
    of_profile = declared.profiles.get(declared.profile, {})
    rows = rows_of(analysis)
    controls = [rows[name] for name in analysis.controls]
    twins = [row for row in controls if abs(row["percent_change"]) > 100 * analysis.margin]
    levels = list(dict.fromkeys(name for told in answers(experiment) for name in (told.against, told.level)))
    if levels == [analysis.baseline]:  # main effects, which are of all levels
        levels += analysis.asked
    tables = experiment.conditions, experiment.figures, experiment.bottlenecks
    checks, figures, held = (of[of["level"].isin(levels)] for of in tables)
    concerned = {None, *levels, *analysis.controls}
    concerns = [concern for concern in analysis.warnings if concern.level in concerned]
    data = figures.groupby("level")["data_to_memory"].median().dropna()
    unmet = checks[checks["met"].eq(False)].groupby("condition", sort=False)["level"]
    written = figures[~(figures["wal_bytes_per_transaction"] < _LEAST_WAL)]
    hosts = experiment.study.provenance.get("hosts") or {"": experiment.study.provenance.get("host", {})}
    facts = {
        "caveat": (declared.caveat or str(of_profile.get("caveat", ""))).rstrip(". "),
        "unmet": {name: _few(of.unique().tolist()) for name, of in unmet},
        "levels": levels,
        "ceilings": [c.level for c in concerns if c.code == "ceiling" and c.level in (None, *levels)],
        "at_cap": int(held["bottleneck"].str.startswith(DISKS_CAP).sum()),
        "grave": _few(sorted({c.level for c in concerns if c.grave and c.level}))
        or "the study" * any(c.grave for c in concerns),
        "unsteady": len({c.level for c in concerns if c.code == "no_steady_state" and c.level in levels}),
        "unseen": sum(
            repr(level) in c.message for c in concerns if c.code == "too_short" for level in levels
        ),
        "twins": " and ".join(map(change_words, twins)),
        "twin_of": "" if analysis.one_reference else analysis.baseline,
        "one_server": bool(plan.level(analysis.baseline).target),
        "trials": span((rows[level]["n"] for level in levels), str) or str(analysis.blocks),
        "duration_s": plan.load.duration_s,
        "data": span(data, "{:.2g}".format),
        "loading": any(plan.level_workload(level).tool == "pgbench-init" for level in levels),
        "checkpoints": span(written["checkpoints"], "{:.0f}".format),
        "processors": span(host.get("processors") for host in hosts.values()),
    }
    line, *others = filter(None, worded("limits", facts | _places(experiment, levels)).splitlines())
    for part in others:
        if part.startswith("not met") or len(f"{line} · {part}".split()) <= _MOST_WORDS:
            line += f" · {part}"
    return opening(line)


def _few(levels: Sequence[str]) -> str:
    return quoted(levels[:2]) + f" and {len(levels) - 2} more" * (len(levels) > 2)


def _places(experiment: Experiment, levels: Sequence[str]) -> dict[str, object]:
    """What has to share the server's machine at some levels, what is elsewhere, and what stands in for a disk."""
    plan, folder = experiment.plan, experiment.folder
    asked = [plan.level(level) for level in levels]
    ours = not any(level.target for level in asked)
    storages, followed = ([level.part(key) for level in asked] for key in ("storage", "replication"))
    sharing = ["load tool"] * any(not plan.level_load(level).generators for level in levels)
    sharing += ["replicas"] * any(one.get("replicas") and not one.get("on") for one in followed)
    apart = any(one.get("on") for one in followed)
    ids = [trial_id for trial_id, m in experiment.kept.items() if apart and m.trial.level in levels]
    kept = [record for trial_id in ids if (record := ReplicaReadings.read(folder, trial_id))]
    places = [storage["data"] for storage in storages if isinstance(storage.get("data"), dict)]
    return {
        "capped_memory": all(storage.get("memory") for storage in storages),
        "sharing": sharing if ours else [],
        "away": span(1000 * away.round_trip_s for record in kept for away in record.elsewhere.values()),
        "capped": any(storage.get(cap) for storage in storages for cap in _CAPS),
        "caps": experiment.caps(levels),
        "loops": sum(place.get("file_system") not in (None, "tmpfs") for place in places),
    }
