"""How often a device can flush, beside the commits that it led to."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, good, known, plain, wrapped
from benchlib.report.figures.latency import interval_of_mean, log_ticks
from benchlib.report.figures.style import BAND, GRID, INK, LIGHT, MARKS, MUTED, PAPER
from benchlib.stats.validity import implausible

_STRIP = 13.0  # points of height for a row's marks
_BAD = MARKS["invalid"]


@dataclass(frozen=True)
class _Row:
    """A line of words, and under it a strip with marks."""

    name: str
    value: str
    middle: float
    low: float = float("nan")
    high: float = float("nan")
    flush: float = float("nan")  # what one client can commit at most
    most: float = float("nan")  # and all of them
    filled: bool = True
    bad: bool = False


def flush_rates(rates: pd.DataFrame, trials: pd.DataFrame) -> Figure:
    """Flushes a second by each method in each place; beside them, on the same log scale, the commits of each level.

    ``rates``: ``place, method, ops_per_s, used`` (whether a level flushes its WAL so), a row each, without nulls.
    ``trials``: ``level, tps, clients, flushes_per_s`` (null where no commit waits for a flush), and ``error`` where
    some failed; levels in the order of their first rows. Those that committed more than could be flushed
    (:func:`benchlib.stats.validity.implausible`) are marked.
    """
    fine = good(trials, "tps")
    levels = {str(level): fine[fine["level"] == level] for level in trials["level"].unique()}
    places = {
        str(place): [
            _Row(_named(row), amount(row["ops_per_s"]), row["ops_per_s"], filled=bool(row["used"]))
            for row in rows.to_dict("records")
        ]
        for place, rows in rates.groupby("place", sort=False)
    }
    commits = {level: _commits(level, rows) for level, rows in levels.items()}
    ends = [row.middle for rows in places.values() for row in rows]
    ends += [
        end
        for row in commits.values()
        for end in (row.middle, row.low, row.high, row.flush, row.most)
        if known(end)
    ]
    limits = min(ends) / 1.5, max(ends) * 1.5

    def draw(canvas: Canvas) -> None:
        width = canvas.width if canvas.narrow else (canvas.width - 28) / 2
        left = [_Block(canvas, 0, width, place, rows) for place, rows in places.items()]
        x = 0.0 if canvas.narrow else width + 28
        right = _Block(canvas, x, width, "commits a second (tps), by level", list(commits.values()))
        tops = list(np.cumsum([0.0, *(block.tall for block in left)]))
        start = tops[-1] + 6 if canvas.narrow else 0.0
        canvas.height(max(tops[-1], start + right.tall))
        for block, top in zip([*left, right], [*tops[:-1], start], strict=True):
            block.draw(top, limits)

    said = [
        f"{place}: {', '.join(f'{row.name} {row.value}' for row in rows)}" for place, rows in places.items()
    ]
    said += [_said(row) for row in commits.values()]
    return render(
        "flushes",
        draw,
        alt=f"pg_test_fsync beside the commits that it led to. {'; '.join(said)}.",
        caption="Flushes: how often a second one 8 kB page is written and flushed where the WAL lies, by pg_test_fsync; filled: the "
        "method that a level's WAL is flushed by. Commits: geometric means over the trials with their 95 % intervals. "
        "The line is the rate at which the level's method flushes, the most that one client alone can commit; one flush serves all "
        "clients that wait for it, so the grey bar reaches to as many times that as there are clients. Without a line no commit waits for a flush, or not every transaction writes."
        + (
            f" {_BAD.sign} more than the device could have flushed: not every commit was on disk."
            if any(row.bad for row in commits.values())
            else ""
        ),
    )


def _named(row: Mapping[Hashable, Any]) -> str:
    return f"{row['method']} (in use)" if row["used"] else str(row["method"])


def _commits(level: str, rows: pd.DataFrame) -> _Row:
    """A level's commits a second, beside what its flushes allow."""
    middle, low, high = interval_of_mean(rows["tps"].tolist())
    flush, clients = rows["flushes_per_s"].astype(float).median(), int(rows["clients"].max())
    bad = known(flush) and implausible(level, rows["tps"].mean(), flush, clients) is not None
    value = f"{_BAD.sign} implausible: {amount(middle)}" if bad else amount(middle)
    return _Row(level, value, middle, low, high, flush, flush * clients, bad=bad)


def _said(row: _Row) -> str:
    text = f"{row.name}: {amount(row.middle)} tps"
    if known(row.low, row.high):
        text += f" (interval {amount(row.low)} to {amount(row.high)})"
    if not known(row.flush):
        return f"{text}, waits for no flush or need not write"
    return f"{text}, where one client can commit {amount(row.flush)} times and all {amount(row.most)}" + (
        ": implausible" if row.bad else ""
    )


class _Block:
    """Rows under a bold title, with an axis of their own below them."""

    def __init__(self, canvas: Canvas, x: float, width: float, title: str, rows: Sequence[_Row]) -> None:
        self._canvas, self._x, self._width, self._rows = canvas, x, width, rows
        self._line = 1.35 * canvas.font
        self._title = wrapped(title, canvas.chars(width), 2)
        self._head = len(self._title) * self._line + 4
        self._strips = len(rows) * (self._line + _STRIP)
        self.tall = self._head + self._strips + 38

    def _has_room(self, tick: float, limits: tuple[float, float]) -> bool:
        """Whether a tick's label stays inside the block."""
        share = np.log(tick / limits[0]) / np.log(limits[1] / limits[0])
        at, half = 6 + float(share) * (self._width - 12), self._canvas.wide_as(plain(tick)) / 2
        return half <= at <= self._width - half

    def draw(self, top: float, limits: tuple[float, float]) -> None:
        """The block from ``top`` on; ``limits`` are the ends of its axis."""
        canvas, x, line = self._canvas, self._x, self._line
        for number, text in enumerate(self._title):
            canvas.text(x, top + (number + 0.5) * line, text, fontweight="bold")
        start = top + self._head
        axes = canvas.axes(x + 6, start, self._width - 12, self._strips)
        axes.set(xscale="log", xlim=limits, ylim=(self._strips, 0), yticks=[])
        axes.spines["left"].set_visible(False)
        ticks = log_ticks(*limits, most=int(self._width / canvas.wide_as("100,000 ")))
        axes.set_xticks([tick for tick in ticks if self._has_room(tick, limits)])
        axes.xaxis.set_major_formatter(plain)
        axes.minorticks_off()
        for number, row in enumerate(self._rows):
            words = number * (line + _STRIP)
            bad = {"color": _BAD.colour} if row.bad else {}
            room = self._width - canvas.wide_as(row.value) - 8
            canvas.text(x, start + words + line / 2, wrapped(row.name, canvas.chars(room), 1)[0], **bad)
            canvas.text(x + self._width, start + words + line / 2, row.value, ha="right", **bad)
            y, half = words + line + _STRIP / 2, _STRIP / 2 - 1
            axes.vlines(ticks, y - half, y + half, color=GRID, linewidth=0.8, zorder=1)
            if known(row.flush):
                axes.fill_between(
                    [row.flush, row.most], y - half, y + half, color=BAND, linewidth=0, zorder=0.5
                )
                axes.vlines(row.flush, y - half, y + half, color=INK, linewidth=1.4, zorder=1.5)
            colour = _BAD.colour if row.bad else LIGHT["blue"] if row.filled else MUTED
            axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2, zorder=2)
            marker = _BAD.marker if row.bad else "o"
            axes.plot(
                row.middle,
                y,
                marker,
                color=colour,
                markerfacecolor=colour if row.filled else PAPER,
                markersize=6,
                zorder=3,
            )
        canvas.note(x + self._width / 2, start + self._strips + 28, "a second (log scale)", ha="center")
