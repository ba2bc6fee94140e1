"""Tables of why a level is faster: what a transaction cost, and what moved with the waits."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd

from benchlib.plan.metrics import METRICS
from benchlib.report.figures.frames import known, opening, signed
from benchlib.report.figures.tables import Shaded, Table, html_table, of_levels
from benchlib.stats.correlation import within_trials

FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "tps": "tps",
        "cpu_busy_percent": "CPU busy",
        "cpu_iowait_percent": "CPU iowait",
        "pressure_io_some_percent": "I/O stalls",
        "context_switches_per_s": "context switches",
        "r_iops": "read IOPS",
        "w_iops": "write IOPS",
        "w_mib_s": "MiB/s written",
        "f_iops": "flushes",
        "aqu_sz": "queue",
        "w_await_ms": "w_await",
        "dirty_mib": "dirty pages",
    }
)
"""What waits are correlated with, by its short name."""

_EVENTS = 6
_STATEMENT = 90  # characters of a statement that a table shows
_LEAST = 0.01  # of all sessions: what is rarer than that is nobody's explanation
_BY = ["level", "block", "second"]


def costs_table(
    costs: pd.DataFrame, levels: Sequence[str], changes: pd.DataFrame, *, against: str, note: str = ""
) -> Table:
    """What the trials cost: a row per figure, a column per level with mean ± deviation and the change; turned for many levels.

    ``costs``: ``level, block`` and metrics. ``changes``: those of :func:`comparable`, as ``stats.multiple.exploratory``
    returned them, against what ``against`` names; ``note`` ends the note.
    """
    metrics = [str(name) for name in costs if name not in ("level", "block")]
    told = [name for name in metrics if costs[name].notna().any()]
    known_changes = {
        (str(row.metric), str(row.level)): (float(row.percent_change), bool(row.noteworthy))  # type: ignore[arg-type]
        for row in changes.itertuples(index=False)
    }
    rows = []
    for name in told:
        # a thousandth of a page is no figure that one can read
        scale = 1000 if costs.groupby("level")[name].mean().max() < 0.02 else 1
        cells: list[str | None] = []
        for level in levels:
            values = scale * costs.loc[costs["level"] == level, name].dropna()
            cell = mean_words(float(values.mean()), float(values.std())) if len(values) else None
            change, noteworthy = known_changes.get((name, level), (math.nan, False))
            if cell and known(change):
                cell += f"\n{signed(change)}{'*' if noteworthy else ''}"
            cells.append(cell)
        unit, many = METRICS[name].unit, "per 1,000" if scale > 1 and costs[name].gt(0).any() else ""
        rows.append([", ".join(filter(None, (opening(_short(name)), unit, many))), *cells])
    words = (
        f"Mean ± one standard deviation between trials. Below: the change against {against} by the block model, where "
        "no trial has a 0; * stands out at a false discovery rate of 5 % among all changes of this table: a lead, no verdict. Context "
        "switches and device traffic are those of the whole host, by the devices of data and WAL."
    )
    absent = [_short(name) for name in metrics if name not in told]
    if absent:
        words += f" Not recorded, or there was none: {', '.join(absent)}."
    frame = pd.DataFrame(rows, columns=["figure", *levels], dtype=object)
    return of_levels(frame, "What a transaction cost", numbers=True, note=f"{words} {note}".strip())


def comparable(costs: pd.DataFrame) -> list[str]:
    """The figures whose changes can be told as percentages: those that every trial has, and none has as 0."""
    return [str(name) for name in costs if name not in ("level", "block") and costs[name].gt(0).all()]


def _short(name: str) -> str:
    """The metric's title; that most are per transaction is in the table's caption."""
    return METRICS[name].title.removesuffix(" per transaction")


def correlation_table(seconds: pd.DataFrame, waits: pd.DataFrame, progress: pd.DataFrame) -> Table | None:
    """How many sessions waited for what, against speed and host, second by second; None where there is nothing.

    ``progress``: ``level, block, elapsed_s, tps``; the others are those of :class:`benchlib.study.instruments.Recorded`.
    The first second of a trial, in which its sessions connect, is left out.
    """
    if waits.empty or seconds.empty:
        return None
    events = [str(event) for event in waits if event not in _BY]
    share = waits[events].mean() / max(float(waits[events].sum(axis=1).mean()), 1e-9)
    events = [event for event in events if share[event] >= _LEAST][:_EVENTS]
    speed = progress.assign(second=progress["elapsed_s"].round())[[*_BY, "tps"]]
    # rounded, or equal shares that are different sums would differ by a rounding error and so in rank
    shares = (seconds["cpu_user_percent"] + seconds["cpu_system_percent"]).round(9)
    busy = seconds.assign(cpu_busy_percent=shares)
    frame = waits.merge(busy, on=_BY).merge(speed.groupby(_BY, as_index=False).mean(), on=_BY, how="left")
    frame = frame[frame["second"] > 1]
    table = within_trials(frame, list(FIGURES), events)
    still = table.isna().all(axis=1)
    if still.all():
        return None
    heads = [_NAMES.get(event, event) for event in events]
    rows = [[FIGURES[str(name)], *map(_shaded, found)] for name, found in table[~still].iterrows()]
    # of objects, since a column of texts would make plain ones of the shaded
    cells = pd.DataFrame(rows, columns=["figure", *heads], dtype=object)
    trials = frame.groupby(["level", "block"]).ngroups
    note = (
        f"How many sessions waited for what, against speed and host: Spearman's rank correlation inside trials "
        f"({len(frame)} seconds of {trials} trials; ranks are centred in each trial, so differences between levels or blocks make "
        "none). Blue: they rise together; orange: one falls as the other rises; – where one stands still. Neighbouring seconds "
        "resemble each other, so no p is given. A correlation is no cause: one of the two may follow from the other, or both "
        "from a third."
    )
    if still.any():
        left_out = [FIGURES[str(name)] for name in table.index[still]]
        note += f" Left out, since they stood still or were not recorded: {', '.join(left_out)}."
    return html_table(
        cells,
        "Waits and what moved with them, second by second",
        formats=dict.fromkeys(heads, str),
        labels={head: head for head in heads},
        note=note,
    )


_NAMES = {"CPU": "on the CPU", "Client: ClientRead": "Client: ClientRead (idle)"}


def _shaded(rho: float) -> Shaded | None:
    if not known(rho):
        return None
    red, green, blue = (0, 104, 165) if rho > 0 else (184, 71, 0)
    return Shaded(_two(rho), f"rgba({red},{green},{blue},{0.5 * abs(rho):.2f})")


def _two(rho: float) -> str:
    """`+0.83`, `−0.07`, `0.00`."""
    text = f"{rho:+.2f}"
    return "0.00" if text[1:] == "0.00" else text.replace("-", "−")


def mean_words(mean: float, deviation: float) -> str:
    """`1.234 ± 0.056`: the deviation with two significant digits, the mean to the same place; four without one."""
    if not known(deviation) or deviation <= 0:
        return f"{mean:,.4g}" if abs(mean) < 1000 else f"{mean:,.0f}"
    places = max(1 - math.floor(math.log10(deviation)), 0)
    return f"{mean:,.{places}f} ± {deviation:,.{places}f}"


def statements_table(statements: pd.DataFrame, levels: Sequence[str]) -> Table:
    """What each statement of a transaction took, a column per level, or a row where they are many: mean ± deviation of the trials' means.

    ``statements``: ``level, block, script, statement, latency_ms``.
    """
    rows = []
    for (_, statement), found in statements.groupby(["script", "statement"], sort=False):
        text = " ".join(str(statement).split())
        row: dict[str, str | None] = {
            "statement": text if len(text) <= _STATEMENT else f"{text[:_STATEMENT]}…"
        }
        for level in levels:
            values = found.loc[found["level"] == level, "latency_ms"].dropna()
            row[level] = mean_words(float(values.mean()), float(values.std())) if len(values) else None
        rows.append(row)
    caption = "What a statement took, ms"
    note = "Mean ± one standard deviation between trials, as the load tool saw it."
    return of_levels(pd.DataFrame(rows, dtype=object), caption, numbers=True, note=note)
