"""The plans that servers made for the workload's statements: what they are, and what differs between levels."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

import pandas as pd

from benchlib.report.figures.plans import Node, Shape, differences, plans_table, shape, tree, worst_estimate
from benchlib.report.figures.tables import Quiet, Table
from benchlib.report.view import Statement, View
from benchlib.study.experiment import Experiment
from benchlib.study.records import Counters, Plans

Trials = list[dict[str, Any]]
"""What trials of a level kept, those with the lowest metric first: ``before`` and ``after``, rows by statement; ``trial``."""


def plans(view: View) -> Table | Statement:
    """Each level's plan for each explained statement, from its median trial, and what differs from that of the level it is compared with.

    Raises:
        InputError: a file of plans is damaged.

    """
    experiment = view.experiment
    kept = _kept(experiment)
    if not kept:
        return Statement("No plans were kept: the workload has no statements to explain.")
    rows: list[dict[str, Any]] = []
    trees: list[tuple[str, str, str]] = []
    for place in range(max(len(_median(trials)["after"]) for trials in kept.values())):
        told = {level: trials for level, trials in kept.items() if len(_median(trials)["after"]) > place}
        letters = _letters(told, place)
        rows += [
            {"level": level, "statement": str(place + 1), **_row(experiment, told, level, place, letters)}
            for level in told
        ]
        trees += _trees(told, place, letters)
    frame = pd.DataFrame(rows)
    if len(set(frame["statement"])) == 1:
        frame = frame.drop(columns="statement")
    untold = [
        level
        for level in experiment.plan.factor.levels
        if level not in {*kept, *experiment.plan.factor.controls}
    ]
    note = (
        "Each level by its median trial: one run of the statement before the load and one after it, which is where all "
        "other columns are from; times are those of the server, under EXPLAIN. A letter stands for a plan with the same nodes, in "
        "memory or on disk alike; where the plans of a level's trials vary, it says how many are another. The estimate is that of the node whose "
        "rows came most unlike those expected. Each plan is folded below."
    )
    if untold:
        note += f" No plans were kept of {', '.join(untold)}."
    return plans_table(frame, trees, caption="Plans of the workload's statements", note=note)


def _kept(experiment: Experiment) -> dict[str, Trials]:
    """What the good trials kept, by level in the order of the study; a control's plans are the baseline's once more."""
    good = experiment.trials[experiment.trials["error"].isna()]
    good = good.sort_values([experiment.plan.metric, "block"])
    ids = {(m.trial.level, m.trial.block): trial_id for trial_id, m in experiment.folder.kept().items()}
    found: dict[str, Trials] = {level: [] for level in experiment.plan.factor.levels}
    for level, block in zip(good["level"], good["block"], strict=True):
        kept = Plans.read(experiment.folder, ids[level, block])
        if kept and kept.after:
            found[level].append({**dict(kept), "trial": ids[level, block]})
    return {
        level: trials
        for level, trials in found.items()
        if trials and level not in experiment.plan.factor.controls
    }


def _median(trials: Trials) -> dict[str, Any]:
    return trials[(len(trials) - 1) // 2]


def _root(trial: dict[str, Any], place: int, when: str = "after") -> Node:
    root: Node = trial[when][place]["plan"]["Plan"]
    return root


def _shapes(trials: Trials, place: int) -> list[Shape]:
    """The shapes of all plans of a statement, the median trial's own first."""
    all_of_them = [_root(trial, place, when) for trial in trials for when in ("before", "after")]
    return [shape(root) for root in [_root(_median(trials), place), *all_of_them]]


def _letters(told: dict[str, Trials], place: int) -> dict[Shape, str]:
    """A name for each distinct plan of a statement: first those of the median trials, then others."""
    found = [_shapes(trials, place) for trials in told.values()]
    distinct = dict.fromkeys([first for first, *_ in found] + [each for all_ in found for each in all_])
    many = len(ascii_uppercase)
    return {
        each: ascii_uppercase[n % many] + (str(n // many) if n >= many else "")
        for n, each in enumerate(distinct)
    }


def _row(
    experiment: Experiment, told: dict[str, Trials], level: str, place: int, letters: dict[Shape, str]
) -> dict[str, Any]:
    """A level's row for a statement."""
    typical = _median(told[level])
    own, *all_of_them = (letters[each] for each in _shapes(told[level], place))
    others = [f"{letter} in {all_of_them.count(letter)}" for letter in sorted(set(all_of_them) - {own})]
    root, plan = _root(typical, place), typical["after"][place]["plan"]
    row: dict[str, Any] = {"plan": own + (f" ({', '.join(others)} of {len(all_of_them)})" if others else "")}
    row["what differs"] = Quiet("")
    if (reference := experiment.plan.factor.pairs().get(level)) in told:
        there = _median(told[reference])
        words = differences(root, _root(there, place)) or Quiet(f"as at {reference}")
        if typical["after"][place]["statement"] != there["after"][place]["statement"]:
            words = f"another statement; {words}"
        row["what differs"] = words if isinstance(words, Quiet) else f"against {reference}: {words}"
    return {
        **row,
        "before, ms": typical["before"][place]["plan"]["Execution Time"],
        "after, ms": plan["Execution Time"],
        "planning, ms": plan["Planning Time"],
        "temporary_files": root["Temp Written Blocks"] * _page_bytes(experiment, typical),
        "worst estimate": worst_estimate(root),
    }


def _page_bytes(experiment: Experiment, trial: dict[str, Any]) -> int:
    """The size of the server's pages; PostgreSQL's own where the trial lacks counters to tell it."""
    counters = Counters.read(experiment.folder, trial["trial"])
    return int(dict(counters.after).get("block_size", 8192)) if counters else 8192


def _trees(told: dict[str, Trials], place: int, letters: dict[Shape, str]) -> list[tuple[str, str, str]]:
    """Each distinct plan of a statement once: from the first level whose median trial has it, else from any trial."""
    typical: dict[str, list[str]] = {}
    found: dict[str, tuple[str, Node]] = {}
    for level, trials in told.items():
        letter = letters[shape(_root(_median(trials), place))]
        typical.setdefault(letter, []).append(level)
        found.setdefault(
            letter, (_median(trials)["after"][place]["statement"], _root(_median(trials), place))
        )
    for trial in (trial for trials in told.values() for trial in trials):
        for when in ("after", "before"):
            root = _root(trial, place, when)
            found.setdefault(letters[shape(root)], (trial[when][place]["statement"], root))
    return [
        (
            f"Statement {place + 1}, plan {letter}: {', '.join(typical.get(letter, ['in some trials alone']))}",
            statement,
            tree(root),
        )
        for letter, (statement, root) in found.items()
    ]
