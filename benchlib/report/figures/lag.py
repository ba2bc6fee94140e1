"""How far the replicas were behind while the load ran, in time and in WAL."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, known, plain
from benchlib.report.figures.panels import Grid, binned, key, looks

STAGES = {"write": "written", "flush": "flushed", "replay": "replayed"}
"""How far a replica can have come with a piece of WAL: the server's word, and a reader's."""

_SPANS = 60


class _Unit(NamedTuple):
    """What is measured in a unit, and the value below which its scale is linear: down to 0, which it shows."""

    title: str
    linear: float


_UNITS = {"ms": _Unit("time", 0.1), "KiB": _Unit("WAL", 0.1)}
_FIGURES = [f"{stage}_{unit}" for unit in _UNITS for stage in STAGES]


def lag_over_time(readings: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """Two panels per level, time and WAL, on scales common to all levels: the median, and the whole range.

    ``readings``: ``level, block, replica, second`` (since the load began), and for each of :data:`STAGES` its
    ``…_lag_s`` and ``…_lag_bytes``, null where the server knows none; a row per reading and replica.
    """
    frame = readings.assign(
        **{f"{stage}_ms": 1000 * readings[f"{stage}_lag_s"] for stage in STAGES},
        **{f"{stage}_KiB": readings[f"{stage}_lag_bytes"] / 1024 for stage in STAGES},
        # a replica of a trial is a series of its own
        block=readings["block"].astype(str) + " " + readings["replica"],
    )[["level", "block", "second", *_FIGURES]]
    spans, step = binned(frame, "second", _SPANS)
    by_second = {str(level): rows.groupby("second")[_FIGURES] for level, rows in spans.groupby("level")}
    hands = looks(list(STAGES))
    end = max(float(spans["second"].max()), 1.0)
    tops = {unit: _top(spans[[f"{stage}_{unit}" for stage in STAGES]], unit) for unit in _UNITS}
    panels = [(level, unit) for level in levels for unit in _UNITS]

    def draw(canvas: Canvas) -> None:
        signs = {STAGES[stage]: hand.sign for stage, hand in hands.items()}
        places, top = key(canvas, signs, 1.35 * canvas.font)
        grid = Grid(
            canvas,
            [level for level, _ in panels],
            columns=1 if canvas.narrow else 2,
            tall=66.0 if canvas.narrow else 76.0,
            top=top + 6,
            x_title="seconds since the load began",
            own_y=True,
        )
        for stage, hand in hands.items():
            x, y, text = places[STAGES[stage]]
            canvas.text(x, y, text, color=hand.colour)
        for number, (level, unit) in enumerate(panels):
            told = frame.loc[frame["level"] == level, f"replay_{unit}"].dropna()
            axes = grid.panel(
                number, f"{_UNITS[unit].title}, {unit}: {_words(told) if len(told) else 'not known'}"
            )
            _scale(axes, _UNITS[unit].linear, tops[unit])
            axes.set_xlim(-0.01 * end, 1.01 * end)
            if level not in by_second:
                continue
            middle, low, high = by_second[level].median(), by_second[level].min(), by_second[level].max()
            for place, (stage, hand) in enumerate(hands.items()):
                name, every = f"{stage}_{unit}", max(len(middle) // 8, 1)
                axes.fill_between(
                    middle.index, low[name], high[name], color=hand.colour, alpha=0.15, linewidth=0
                )
                axes.plot(
                    middle.index, middle[name], color=hand.colour, linewidth=1.3,
                    marker=hand.marker, markersize=3.5, markevery=(place % every, every),
                )  # fmt: skip

    return render(
        "replica-lag",
        draw,
        alt=f"Lag of the replicas over {amount(end)} seconds, by level; median and largest reading. "
        + "; ".join(f"{level}: {_said(frame[frame['level'] == level])}" for level in levels)
        + ".",
        caption="Lines: the median over blocks and replicas"
        + (f", in spans of {step:g} s" if step > 1 else "")
        + "; bands: from the least to the most. Above each panel: the median and the largest reading of what was not "
        "yet replayed. Log scales, linear below 0.1 ms and 0.1 KiB. The time is how long the latest confirmed WAL took to be "
        "written, flushed and replayed there; a server that is idle knows none, which is a gap and not 0."
        + _unknown(frame, levels),
    )


def _scale(axes: Axes, linear: float, top: float) -> None:
    """A log scale that has a 0."""
    axes.set_yscale("symlog", linthresh=linear, linscale=0.5)
    decades = np.arange(round(np.log10(linear)), np.log10(top) + 1e-9)
    axes.set_yticks([0, *10.0 ** decades[:: len(decades) // 5 + 1]])
    axes.yaxis.set_major_formatter(plain)
    axes.minorticks_off()
    axes.set_ylim(-0.2 * linear, top)


def _top(figures: pd.DataFrame, unit: str) -> float:
    """The upper end of a unit's axis."""
    most, least = float(figures.max().max()), 10 * _UNITS[unit].linear
    return max(1.3 * most, least) if known(most) else least


def _words(told: pd.Series) -> str:
    return f"{amount(float(told.median()))}, at most {amount(float(told.max()))}"


def _said(rows: pd.DataFrame) -> str:
    """A level's figures for the alt text."""
    parts = []
    for stage, word in STAGES.items():
        figures = {unit: rows[f"{stage}_{unit}"].dropna() for unit in _UNITS}
        parts += [f"{word} {_words(told)} {unit}" for unit, told in figures.items() if len(told)]
    return ", ".join(parts) or "not known"


def _unknown(frame: pd.DataFrame, levels: Sequence[str]) -> str:
    """In how many readings the time was not known, or the replica not there."""
    words = []
    for level in levels:
        rows = frame[frame["level"] == level]
        away = int(rows["replay_KiB"].isna().sum())
        idle = int(rows["replay_ms"].isna().sum()) - away
        if idle:
            words.append(f"{level}: no time in {idle} of {len(rows)} readings")
        if away:
            words.append(f"{level}: no replica in {away} of {len(rows)} readings")
    return f" {'; '.join(words)}." if words else ""
