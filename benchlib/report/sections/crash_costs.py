"""What a crash loses: a study's levels crashed, and what was found beside what they promise."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchlib.plan.level import Level, is_off
from benchlib.report.figures.frames import amount
from benchlib.report.figures.tables import Table, html_table
from benchlib.report.view import Statement, View
from benchlib.study.crashed import KILLED, KINDS, POWER_CUT, Crash, Kind, kept_crashes, left_out

_NO_KIND = {
    KILLED: "No server was killed.",
    POWER_CUT: "No power was cut: that takes root, and a Linux that can make loop devices and xfs.",
}


def crashes(view: View) -> Table | Statement:
    """What was found after the crashes, a row per level and kind, beside what the level may lose.

    Raises:
        InputError: a kept crash is damaged.

    """
    experiment = view.experiment
    kept = kept_crashes(experiment.folder)
    if not kept:
        return Statement("No level of this study was crashed, so what a crash loses is not known from here.")
    rows, notes, unharmed = [], [], []
    for kind in KINDS:
        excused = left_out(experiment.plan, kind)
        found = {
            name: of_level
            for name in experiment.plan.factor.levels
            if (of_level := [each for each in kept if (each.level, each.kind) == (name, kind)])
        }
        for name, of_level in found.items():
            level = experiment.plan.level(name)
            promised = _promised(experiment.study.crash_costs.get(name, ()), kind)
            rows.append(_row(name, kind, promised, of_level))
            notes += _contradiction(name, kind, level, promised, of_level)
            unharmed += [] if any(map(_harmed, of_level)) else [len(of_level)]
        notes += [] if found else [_NO_KIND[kind]]
        for reason in dict.fromkeys(excused.values()) if found else ():
            names = ", ".join(f"“{name}”" for name, why in excused.items() if why == reason)
            notes.append(f"Not crashed: {names}, {reason}.")
    note = " ".join(filter(None, [*dict.fromkeys(notes), _bound(unharmed), _METHOD]))
    frame = pd.DataFrame(rows).astype(object)
    return html_table(
        frame, "What crashes cost, found by crashing", formats=dict.fromkeys(_NUMBERS, str), note=note
    )


_NUMBERS = ("crashes", "commits lost", "oldest lost, ms before")

_METHOD = (
    "Four sessions commit rows and note what the server acknowledged; at a random moment it crashes, is started on what is left, and is "
    "asked for those rows; all tables are read whole, ours by their indexes too. Killed server: all processes by SIGKILL at once. "
    "Power cut: the disk's content at one moment (a reflink copy of the file behind a loop device), a disk without a volatile cache, that "
    "writes 4 kB at once, so that a page of 8 kB may be torn, under checkpoints in a row and a kernel that writes back after 0.5 s. The clusters "
    "have data checksums, which tell a torn page. Commits lost are those of the acknowledged that are gone, counted where the rows could be read; where they could not, all may be lost."
)


def _row(name: str, kind: Kind, promised: Sequence[str], found: Sequence[Crash]) -> dict[str, object]:
    """What the crashes of one level and kind came to."""
    lost = [each.lost for each in found if each.lost is not None]
    oldest = [each.oldest_lost_ms for each in found if each.oldest_lost_ms is not None]
    told = sum(each.acknowledged for each in found if each.lost is not None)
    refused = [each.damage for each in found if each.recovery_s is None]
    damaged = [each.damage for each in found if each.damage and each.recovery_s is not None]
    return {
        "level": name,
        "crash": kind,
        "crashes": str(len(found)),
        "with lost commits": f"{sum(map(bool, lost))} of {len(lost)}" if lost else None,
        "did not start": _told(refused),
        "damaged": _told(damaged),
        "commits lost": f"{sum(lost):,} of {told:,}" if lost else None,
        "oldest lost, ms before": amount(max(oldest)) if oldest else ("" if lost else None),
        "may cost": "; ".join(promised) or "nothing",
    }


def _told(damage: Sequence[Sequence[str]]) -> str:
    """How often, and in the server's words what, the first time."""
    return f"{len(damage)}: {damage[0][0]}" if damage else "0"


def _promised(costs: Sequence[str], kind: Kind) -> list[str]:
    """What the level may cost in a crash of this kind; a killed server's writes are the kernel's to finish."""
    return [cost for cost in costs if kind == POWER_CUT or not cost.startswith("a power cut")]


def _contradiction(
    name: str, kind: Kind, level: Level, promised: Sequence[str], found: Sequence[Crash]
) -> list[str]:
    """A sentence where a level did worse than it promises, or where it may lose and nothing was lost."""
    worst = sum(_harmed(each) for each in found)
    damaged = sum(bool(each.damage) for each in found)
    whole = not any(is_off(level.settings.get(name, "on")) for name in ("fsync", "full_page_writes"))
    if worst and not promised:
        return [
            f"“{name}” promises to lose nothing, but {worst} of {_crashes(len(found))} ({kind}) cost something."
        ]
    if damaged and (kind == KILLED or whole):
        return [f"“{name}” may lose commits, but {damaged} of {_crashes(len(found))} ({kind}) left damage."]
    if promised and not worst:
        return [
            f"“{name}” may lose something ({kind}), and in {_crashes(len(found))} lost nothing: luck, not a promise."
        ]
    return []


def _crashes(count: int) -> str:
    return "1 crash" if count == 1 else f"{count} crashes"


def _harmed(found: Crash) -> bool:
    return bool(found.lost or found.damage)


def _bound(unharmed: Sequence[int]) -> str:
    """What crashes that cost nothing leave open. Source: the exact interval (Clopper and Pearson, 1934) at no event."""
    if not unharmed:
        return ""
    fewest = min(unharmed)
    share = 100 * (1 - 0.05 ** (1 / fewest))
    return (
        f"Nothing lost is no proof: with {_crashes(fewest)} that cost nothing, up to {share:.0f} % of all may still cost "
        "something (upper 95 % bound; with many crashes 3 / n, the rule of three)."
    )
