"""Tables of why a level is faster: what a transaction cost, other figures, and what moved with the waits."""

import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd

from benchlib.plan.metrics import METRICS
from benchlib.report.figures.frames import MINUS, known, opening, signed
from benchlib.report.figures.tables import Table, html_table, mean_words, of_levels
from benchlib.stats.descriptive import within_trials

FIGURES = {
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
"""What waits are correlated with, by its short name."""

_CHANGES = ["metric", "level", "percent_change", "noteworthy"]
_EVENTS = 6
_LEAST = 0.01  # of all sessions: what is rarer than that is nobody's explanation
_BY = ["level", "block", "second"]
_NAMES = {"CPU": "on the CPU"}


def costs_table(
    costs: pd.DataFrame, levels: Sequence[str], changes: pd.DataFrame, *, against: str, note: str = ""
) -> Table:
    """What the trials cost: a row per figure, a column per level with mean ± deviation and the change; turned for many levels.

    ``costs``: ``level, block`` and metrics. ``changes``: theirs, as ``stats.strata.exploratory`` returned them,
    against what ``against`` names; ``note`` ends the note.
    """
    below, rows = {}, []
    for metric, level, change, starred in changes[_CHANGES].itertuples(index=False):
        below[metric, level] = f"\n{signed(change)}{'*' * bool(starred)}" if known(change) else ""
    for name in map(str, costs.drop(columns=["level", "block"]).dropna(axis=1, how="all")):
        means = zip(levels, means_in_words(costs, name, levels), strict=True)
        cells = [mean and mean + below.get((name, level), "") for level, mean in means]
        # that most are per transaction is in the table's caption
        title = opening(METRICS[name].title.removesuffix(" per transaction"))
        rows.append([f"{title}, {METRICS[name].unit}".rstrip(", "), *cells])
    text = f"Exploratory: mean ± sd; below it the change, of geometric means inside blocks, against {against}. * stands out: a lead, no verdict."
    caption = "What a transaction cost, and other figures"
    return of_levels("figure", levels, rows, caption, note=f"{text} {note}".strip())


def bottlenecks_table(frame: pd.DataFrame) -> Table:
    """What held each level back, a row per level; ``frame`` is that of :func:`benchlib.study.instruments.bottlenecks`."""
    shares = 100 * frame[["processors_share", "cap_share"]].astype(float).round(3)
    table = frame.assign(**shares, sessions=frame["sessions"].map(_sessions_in_words))
    table = table.dropna(axis=1, how="all")
    labels = {
        "processors_share": "processors busy, %",
        "server": "processors of the server",
        "load_tool": "of the load tool",
        "cap_share": "disk's cap used, %",
        "queue": "disk's queue, median",
        "sessions": "sessions by what they do",
    }
    formats = dict.fromkeys(table.columns.intersection(["server", "load_tool", "queue"]), "{:.1f}".format)
    formats |= dict.fromkeys(table.columns.intersection([*shares]), "{:.0f}".format)
    note = "A cap holds requests back before they are in the device's queue." * ("cap_share" in table)
    return html_table(table, "What held each level back", labels=labels, formats=formats, note=note)


def _sessions_in_words(means: Mapping[str, float]) -> str | None:
    often = sorted(((mean, name) for name, mean in means.items() if mean >= 0.05), reverse=True)
    return ", ".join(f"{name} {mean:.1f}" for mean, name in often) or None


def means_in_words(frame: pd.DataFrame, column: str, levels: Sequence[str]) -> list[str | None]:
    """The mean ± deviation of each level's values in a column; None where it has none. `frame`: columns `level` and that one."""
    table = frame.groupby("level")[column].agg(["mean", "std"]).reindex(list(levels))
    return [mean_words(mean, sd) for mean, sd in table.itertuples(index=False)]


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
    rows = [[FIGURES[str(name)], *map(_correlation, rhos)] for name, rhos in table[~still].iterrows()]
    trials = frame.groupby(["level", "block"]).ngroups
    note = (
        f"Rank correlation inside trials ({len(frame)} seconds of {trials} trials): + where they rise together, {MINUS} where one "
        "falls as the other rises."
    )
    heads = [_NAMES.get(event, event) for event in events]
    return of_levels("figure", heads, rows, "Waits and what moved with them, second by second", note)


def _correlation(rho: float) -> str | None:
    return f"{rho:+z.2f}".replace("-", MINUS) if known(rho) else None


def statements_table(statements: pd.DataFrame, levels: Sequence[str]) -> Table:
    """What each statement of a transaction took, a column per level, or a row where they are many: mean ± deviation of the trials' means.

    ``statements``: ``level, block, script, statement, latency_ms``.
    """
    rows = []
    for (_, statement), of in statements.groupby(["script", "statement"], sort=False):
        name = textwrap.shorten(str(statement), 90, placeholder="…")
        rows.append([name, *means_in_words(of, "latency_ms", levels)])
    note = "Mean ± standard deviation."
    return of_levels("statement", levels, rows, "What a statement took, ms", note=note)
