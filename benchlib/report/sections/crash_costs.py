"""What a crash loses: a study's levels crashed, and what was found beside what they promise."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchlib.plan.level import Level, is_off
from benchlib.report.figures.frames import amount, by_value, quoted
from benchlib.report.figures.tables import Table, html_table
from benchlib.report.sections import NothingToShowError, section
from benchlib.study.crashed import KILLED, KINDS, POWER_CUT, Crash, Kind, kept_crashes, left_out
from benchlib.study.experiment import Experiment

_NOT_DONE = {
    KILLED: "No server was killed.",
    POWER_CUT: "No power was cut: that takes root, and a Linux that can make loop devices and xfs.",
}
_METHOD = (
    "Four sessions commit rows and note what the server acknowledged; at a random moment it crashes, is started on what is left, and is "
    "asked for those rows; all tables are read whole, ours by their indexes too. Killed server: all processes by SIGKILL at once. "
    "Power cut: the disk's content at one moment (a reflink copy of the file behind a loop device), a disk without a volatile cache, that "
    "writes 4 kB at once, so that a page of 8 kB may be torn, under checkpoints in a row and a kernel that writes back after 0.5 s. The clusters "
    "have data checksums, which tell a torn page. Commits lost are those of the acknowledged that are gone, counted where the rows could be read; where they could not, all may be lost."
)


@section
def crashes(experiment: Experiment) -> Table:
    """What was found after the crashes, a row per level and kind, beside what the level may lose.

    Raises:
        InputError: a kept crash is damaged.

    """
    kept = kept_crashes(experiment.folder)
    if not kept:
        raise NothingToShowError(
            "No level of this study was crashed, so what a crash loses is not known from here."
        )
    rows, notes, harmless = [], [], []
    for kind in KINDS:
        of_kind = [crash for crash in kept if crash.kind == kind]
        if not of_kind:
            notes.append(_NOT_DONE[kind])
            continue
        for name in experiment.plan.factor.levels:
            of_level = [crash for crash in of_kind if crash.level == name]
            if not of_level:
                continue
            promised = _promised(experiment.study.crash_costs.get(name, ()), kind)
            rows.append({"level": name, "crash": kind, **_row(promised, of_level)})
            notes.append(_contradiction(experiment.plan.level(name), f"“{name}”", promised, of_level))
            if not any(map(_harmed, of_level)):
                harmless.append(len(of_level))
        for reason, names in by_value(left_out(experiment.plan, kind)).items():
            notes.append(f"Not crashed: {quoted(names)}, {reason}.")
    if harmless:
        notes.append(_bound(min(harmless)))
    formats = dict.fromkeys(("crashes", "commits lost", "oldest lost, ms before"), str)
    frame, note = pd.DataFrame(rows, dtype=object), " ".join(filter(None, [*dict.fromkeys(notes), _METHOD]))
    return html_table(frame, "What crashes cost, found by crashing", formats=formats, note=note)


def _row(promised: Sequence[str], crashes: Sequence[Crash]) -> dict[str, str | None]:
    """What the crashes of one level and kind came to."""
    readable = [crash for crash in crashes if crash.lost is not None]
    lost, acknowledged = sum(c.lost or 0 for c in readable), sum(c.acknowledged for c in readable)
    oldest = [crash.oldest_lost_ms for crash in crashes if crash.oldest_lost_ms is not None]
    losing = sum(bool(crash.lost) for crash in readable)
    return {
        "crashes": str(len(crashes)),
        "with lost commits": f"{losing} of {len(readable)}" if readable else None,
        "did not start": _damage([crash for crash in crashes if crash.recovery_s is None]),
        "damaged": _damage([crash for crash in crashes if crash.damage and crash.recovery_s is not None]),
        "commits lost": f"{lost:,} of {acknowledged:,}" if readable else None,
        "oldest lost, ms before": amount(max(oldest)) if oldest else ("" if readable else None),
        "may cost": "; ".join(promised) or "nothing",
    }


def _damage(crashes: Sequence[Crash]) -> str:
    """How many crashes there are, and the first one's damage in the server's words."""
    return f"{len(crashes)}: {crashes[0].damage[0]}" if crashes else "0"


def _contradiction(level: Level, name: str, promised: Sequence[str], crashes: Sequence[Crash]) -> str:
    """A sentence where a level did worse than it promises, or where it may lose and nothing was lost."""
    kind, count = crashes[0].kind, _counted(len(crashes))
    harmed, damaged = sum(map(_harmed, crashes)), sum(bool(crash.damage) for crash in crashes)
    whole = not any(is_off(level.settings.get(name, "on")) for name in ("fsync", "full_page_writes"))
    if harmed and not promised:
        return f"{name} promises to lose nothing, but {harmed} of {count} ({kind}) cost something."
    if damaged and (kind == KILLED or whole):
        return f"{name} may lose commits, but {damaged} of {count} ({kind}) left damage."
    if promised and not harmed:
        return f"{name} may lose something ({kind}), and in {count} lost nothing: luck, not a promise."
    return ""


def _counted(crashes: int) -> str:
    return "1 crash" if crashes == 1 else f"{crashes} crashes"


def _harmed(crash: Crash) -> bool:
    return bool(crash.lost or crash.damage)


def _bound(harmless: int) -> str:
    """What so many crashes that cost nothing leave open. Source: the exact interval (Clopper and Pearson, 1934) at no event."""
    share = 100 * (1 - 0.05 ** (1 / harmless))
    return (
        f"Nothing lost is no proof: with {_counted(harmless)} that cost nothing, up to {share:.0f} % of all may still cost "
        "something (upper 95 % bound; with many crashes 3 / n, the rule of three)."
    )


def _promised(costs: Sequence[str], kind: Kind) -> list[str]:
    """What the level may cost in a crash of this kind; a killed server's writes are the kernel's to finish."""
    return [cost for cost in costs if kind == POWER_CUT or not cost.startswith("a power cut")]
