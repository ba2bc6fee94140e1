"""What the load's sessions waited for: per level, and over time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import amount, known, plain, wrapped
from benchlib.report.figures.panels import Grid, binned, columns_for, key
from benchlib.report.figures.style import GRID, LIGHT, MUTED, PAPER

CPU, IDLE = "CPU", "Client: ClientRead"
_NAMES = {CPU: "on the CPU", IDLE: "idle: waiting for the load tool"}
_OTHER = "other"
_HUES = ("blue", "orange", "purple", "ochre", "violet")
_SPANS = 60
_SAID = "{} Each sample counts the load's sessions and their parallel workers by what they wait for; on the CPU are those that wait for nothing."


def waits_by_level(waits: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """Mean sessions by wait event, a stacked bar per level.

    ``waits``: ``level, block, second`` and a column of mean sessions per wait event, such as ``IO: WALSync``.
    """
    shown, colours = _shown(waits)
    means = _trial_means(shown).groupby("level").mean().reindex(list(levels))
    total = float(means.sum(axis=1).max()) or 1.0
    values: Mapping[Any, Mapping[Any, float]] = means.T.to_dict()

    def draw(canvas: Canvas) -> None:
        line, bar = 1.35 * canvas.font, 17.0
        room = canvas.width if canvas.narrow else 0.29 * canvas.width
        names = [wrapped(level, canvas.chars(room)) for level in levels]
        places, top = key(canvas, {_name(event): "□" if event == IDLE else "■" for event in colours}, line)
        heights = [
            len(lines) * line + bar + 9 if canvas.narrow else max(len(lines) * line, bar) + 7
            for lines in names
        ]
        left = 6.0
        if not canvas.narrow:
            left = 12 + max(canvas.wide_as(text) for lines in names for text in lines)
        top += 8
        tall = sum(heights)
        canvas.height(top + tall + 34)
        for event, (x, y, text) in zip(colours, places.values(), strict=True):
            canvas.text(x, y, text, color=MUTED if event == IDLE else colours[event])
        width = canvas.width - left - 12
        axes = canvas.axes(left, top, width, tall)
        axes.set(xlim=(0, total), ylim=(tall, 0))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=max(int(width / 45), 2))
        axes.xaxis.set_major_formatter(plain)
        y = 0.0
        for level, lines, height in zip(levels, names, heights, strict=True):
            first = line / 2 if canvas.narrow else (height - (len(lines) - 1) * line) / 2
            for number, text in enumerate(lines):
                canvas.text(0, top + y + first + number * line, text)
            middle = y + (len(lines) * line + bar / 2 if canvas.narrow else height / 2)
            start = 0.0
            told = {event: value for event, value in values[level].items() if known(value)}
            if not told:
                canvas.note(left, top + middle, "not sampled")
            for event, value in told.items():
                axes.barh(middle, value, bar, left=start, color=colours[event], linewidth=0)
                text = f"{value:,.1f}" if value >= 1 else f"{value:.2f}"
                if width * value / total > canvas.wide_as(text) + 6:
                    ink = MUTED if event == IDLE else PAPER
                    x = left + width * (start + value / 2) / total
                    canvas.text(x, top + middle, text, color=ink, ha="center")
                start += value
            y += height
        canvas.note(left + width / 2, top + tall + 26, "sessions, mean", ha="center")

    return render(
        "waits",
        draw,
        alt=f"Mean sessions of the load by wait event. {_spoken(means)}",
        caption=_SAID.format("In the order of the key from left to right; means of the trials' means."),
    )


def waits_over_time(waits: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """The same over time: stacked areas, a panel per level, means of the trials; ``waits`` as there."""
    shown, colours = _shown(waits)
    spans, step = binned(shown, "second", _SPANS)
    means = spans.drop(columns="block").groupby(["level", "second"]).mean()
    trials = spans.groupby("level")["block"].nunique()
    total = float(means.sum(axis=1).max()) if len(means) else 1.0
    end = float(spans["second"].max()) if len(spans) else 1.0

    def draw(canvas: Canvas) -> None:
        line = 1.35 * canvas.font
        places, top = key(canvas, {_name(event): "□" if event == IDLE else "■" for event in colours}, line)
        grid = Grid(
            canvas,
            levels,
            columns=columns_for(canvas, len(levels)),
            tall=74.0 if canvas.narrow else 92.0,
            top=top + line + 4,
            x_title="seconds since the load began",
        )
        for event, (x, y, text) in zip(colours, places.values(), strict=True):
            canvas.text(x, y, text, color=MUTED if event == IDLE else colours[event])
        canvas.note(0, top + line / 2 + 2, "sessions, mean")
        for number, level in enumerate(levels):
            count = int(trials.get(level, 0))
            axes = grid.panel(
                number, f"mean of {count} trial{'s' * (count != 1)}" if count else "not sampled"
            )
            axes.set(xlim=(0, end), ylim=(0, total * 1.02))
            if not count:
                continue
            # what was read until a second holds from the span's beginning on
            found = means.loc[level]
            times = np.r_[found.index[0] - step, found.index]
            stacked = [np.r_[found[event].iloc[0], found[event]] for event in colours]
            axes.stackplot(times, *stacked, colors=list(colours.values()), linewidth=0, step="pre")

    return render(
        "waits-over-time",
        draw,
        alt=f"Sessions of the load by wait event over {amount(end)} seconds, by level. "
        + _spoken(means.groupby("level").mean().reindex(list(levels))),
        caption=_SAID.format(
            "Stacked in the order of the key from the bottom up"
            + (f", in spans of {step:g} s." if step > 1 else ", second by second.")
        ),
    )


def _shown(waits: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """The frame with rare events as one, in the order in which they are stacked, and each one's colour."""
    trial = ["level", "block", "second"]
    events = [str(column) for column in waits if column not in (*trial, CPU, IDLE)]
    frequent, rare = events[: len(_HUES)], events[len(_HUES) :]
    colours = {CPU: LIGHT["green"]} if CPU in waits else {}
    colours |= {event: LIGHT[hue] for event, hue in zip(frequent, _HUES, strict=False)}
    shown = waits
    if rare:
        shown = waits.assign(**{_OTHER: waits[rare].sum(axis=1)})
        colours[_OTHER] = MUTED
    if IDLE in waits:
        colours[IDLE] = GRID
    return shown[[*trial, *colours]], colours


def _trial_means(waits: pd.DataFrame) -> pd.DataFrame:
    return waits.groupby(["level", "block"]).mean().drop(columns="second")


def _name(event: str) -> str:
    return _NAMES.get(event, event)


def _spoken(means: pd.DataFrame) -> str:
    said = []
    for level, row in means.iterrows():
        parts = [f"{_name(str(event))} {value:.3g}" for event, value in row.dropna().items()]
        said.append(f"{level}: {', '.join(parts) or 'not sampled'}")
    return "; ".join(said) + "."
