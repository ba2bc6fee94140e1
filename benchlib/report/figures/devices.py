"""The seven charts of a tuning ladder: speed, waits, and what the devices did, over time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, known, percent_of_mean
from benchlib.report.figures.panels import Grid, binned, key, looks
from benchlib.report.figures.waits import CPU, IDLE

PANELS = {
    "tps": ("Operational speed", "transactions/s"),
    "waiting": ("DBMS waits", "sessions that wait"),
    "iops": ("I/O operations", "IOPS, reads and writes"),
    "mib_s": ("Transfer", "MiB/s, read and written"),
    "aqu_sz": ("Queue length", "aqu_sz, requests"),
    "r_await_ms": ("Time of a read", "r_await, ms"),
    "w_await_ms": ("Time of a write", "w_await, ms"),
}
"""The figures: their titles, and what is on the axis."""

_SPANS = 60


def device_panels(
    progress: pd.DataFrame,
    seconds: pd.DataFrame,
    waits: pd.DataFrame,
    levels: Sequence[str],
    note: str = "",
    *,
    relative: bool = False,
) -> Figure:
    """A panel for each of :data:`PANELS`, in each the levels: the median over trials, and their middle half.

    ``progress``: ``level, block, elapsed_s, tps``; ``seconds`` and ``waits`` are those of
    :class:`benchlib.study.instruments.Recorded`. ``levels`` are at most :data:`benchlib.report.figures.panels.FEW`; ``note`` ends
    the caption. With ``relative`` the speed of each level is in percent of its own mean: those of several workloads
    have no scale in common.
    """
    if relative:
        progress = progress.assign(tps=percent_of_mean(progress, "tps"))
    panels = PANELS | ({"tps": ("Operational speed", "% of the level's mean")} if relative else {})
    frame = _frame(progress, seconds, waits)
    spans, step = binned(frame[frame["level"].isin(list(levels))], "second", _SPANS)
    bands = spans.groupby(["level", "second"])[list(PANELS)].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    hands = looks(levels)
    end = float(spans["second"].max()) if len(spans) else 1.0
    told = {name: spans.groupby("level")[name].mean().reindex(list(levels)).dropna() for name in PANELS}

    def draw(canvas: Canvas) -> None:
        line = 1.35 * canvas.font
        places, top = key(canvas, {level: hand.sign for level, hand in hands.items()}, line)
        grid = Grid(
            canvas,
            [title for title, _ in panels.values()],
            columns=1 if canvas.narrow else 2,
            tall=78.0 if canvas.narrow else 84.0,
            top=top + 6,
            x_title="seconds since the load began",
            own_y=True,
        )
        for level, (x, y, text) in places.items():
            canvas.text(x, y, text, color=hands[level].colour)
        for number, (name, (_, unit)) in enumerate(panels.items()):
            axes = grid.panel(number, unit if len(told[name]) else f"{unit}: {_why_empty(name, seconds)}")
            axes.set_xlim(0, end * 1.01)
            for place, level in enumerate(told[name].index):
                hand, found = hands[level], bands.loc[level, name].dropna(how="all")
                axes.fill_between(
                    found.index, found[0.25], found[0.75], color=hand.colour, alpha=0.13, linewidth=0
                )
                every = (place, max(len(found) // 4, len(told[name])))
                axes.plot(
                    found.index, found[0.5], color=hand.colour, linewidth=1.5,
                    marker=hand.marker, markevery=every, markersize=4,
                )  # fmt: skip
            top = _top(bands[name]) if len(told[name]) else 1.0
            axes.set_ylim(-0.04 * top, top)  # a line at 0 is one, too
            if not len(told[name]):
                axes.set_yticks([])

    said = "; ".join(
        f"{title} ({unit}): {', '.join(f'{level} {amount(value)}' for level, value in told[name].items()) or _why_empty(name, seconds)}"
        for name, (title, unit) in panels.items()
    )
    return render(
        "devices",
        draw,
        alt=f"Seven panels over {amount(end)} seconds, by level. Means: {said}.",
        caption="Lines: the median over the trials"
        + (f", in spans of {step:g} s" if step > 1 else "")
        + "; bands: the middle half of them. The devices are those that data and WAL lie on, together, by iostat's "
        "definitions. Sessions that wait are those neither on the CPU nor idle (waiting for the load tool)."
        + (f" {note}" if note else ""),
    )


def _frame(progress: pd.DataFrame, seconds: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    """All figures by level, block and second; null where one was not recorded."""
    by = ["level", "block", "second"]
    events = [column for column in waits if column not in (*by, CPU, IDLE)]
    speed = progress.assign(second=np.ceil(progress["elapsed_s"] - 0.5))[[*by, "tps"]]
    device = seconds.assign(
        iops=seconds["r_iops"] + seconds["w_iops"], mib_s=seconds["r_mib_s"] + seconds["w_mib_s"]
    )
    asleep = waits.assign(waiting=waits[events].sum(axis=1))
    frame = speed.groupby(by, as_index=False).mean()
    for other in (asleep[[*by, "waiting"]], device[[*by, *list(PANELS)[2:]]]):
        frame = frame.merge(other, "outer", on=by)
    return frame.astype(dict.fromkeys(PANELS, float))


def _why_empty(name: str, seconds: pd.DataFrame) -> str:
    """Nothing that was read or written took a time."""
    way = {"r_await_ms": "read", "w_await_ms": "written"}.get(name)
    idle = way is not None and bool(seconds[f"{way[0]}_iops"].eq(0).any())
    return f"nothing was {way}" if idle else "not recorded"


def _top(band: Any) -> float:
    """The axis's upper end: in a long run a rare spike of the bands may leave the panel, the lines may not."""
    high = max(float(band[0.5].max()), float(band[0.75].quantile(0.98, interpolation="higher")))
    return high * 1.08 if known(high) and high > 0 else 1.0
