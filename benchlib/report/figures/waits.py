"""What the load's sessions waited for: each event's name and colour, and a stacked bar per level."""

from collections.abc import Sequence

import pandas as pd

from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, name_rows, row_places, stacked
from benchlib.report.figures.frames import amount, binned, known, plain, wrapped
from benchlib.report.figures.layout import canvas, panels, styled
from benchlib.report.figures.style import MUTED, PAPER, Look

CPU, IDLE = "CPU", "Client: ClientRead"
_CAPTION = (
    "Each sample counts the load's sessions and their parallel workers by what they wait for; on the CPU are those that "
    "wait for nothing."
)
_NAMES = {CPU: "on the CPU", IDLE: "idle: waiting for the load tool"}
_HUES = ("blue", "orange", "purple", "ochre", "violet")
_TRIAL = ["level", "block", "second"]


@styled
def waits_by_level(waits: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """Mean sessions by wait event, a stacked bar per level.

    ``waits``: ``level, block, second`` and a column of mean sessions per wait event, such as ``IO: WALSync``.
    """
    shown, hands = _colours_of(waits)
    trials = shown.groupby(["level", "block"]).mean().drop(columns="second")
    means = trials.groupby("level").mean().reindex(list(levels))
    labels = [Label(wrapped(level)) for level in levels]
    _, bottom = row_places(labels)
    drawing = canvas(bottom + 40, hands)
    axes = drawing.subplots()
    name_rows(axes, labels, list(range(len(levels))))
    stacked(axes, means.assign(at=range(len(levels))).fillna(0.0), hands)
    total = float(means.sum(axis=1).max())
    middles = (means.cumsum(axis=1) - means / 2).to_numpy()
    for row, (places, values) in enumerate(zip(middles, means.to_numpy(), strict=True)):
        for look, x, value in zip(hands.values(), places, values, strict=True):
            if value > 0.07 * total:
                text = f"{value:,.1f}" if value >= 1 else f"{value:.2f}"
                colour = MUTED if look.hue == "grid" else PAPER
                axes.text(x, row, text, ha="center", va="center", color=colour)
        if not known(*values[:1]):
            axes.text(0, row, " not sampled", va="center", color=MUTED)
    axes.set(ylim=(len(levels) - 0.5, -0.5), yticks=[], xlim=(0, total or 1), xlabel="sessions, mean")
    axes.grid(visible=False)
    axes.xaxis.set_major_formatter(plain)
    return render(
        "waits",
        drawing,
        alt=f"Mean sessions of the load by wait event. {_in_words(means)}",
        caption=f"In the order of the key from left to right; means of the trials' means. {_CAPTION}",
    )


@styled
def waits_over_time(waits: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """The load's sessions by wait event over time, a panel per level, means of the trials.

    ``waits``: ``level, block, second`` and a column of mean sessions per wait event, such as ``IO: WALSync``.
    """
    shown, hands = _colours_of(waits)
    spans, step = binned(shown, "second", 60)
    means = spans.drop(columns="block").groupby(["level", "second"]).mean()
    trials = spans.groupby("level")["block"].nunique()
    end = float(spans["second"].max()) if len(spans) else 1.0
    counts = [int(trials.get(level, 0)) for level in levels]
    notes = [f"mean of {count} trial{'s' * (count != 1)}" if count else "not sampled" for count in counts]
    titles = list(zip(levels, notes, strict=True))
    drawing, grid = panels(titles, 135, "seconds since the load began", "sessions, mean", keyed=hands)
    for level, axes in zip(levels, grid, strict=True):
        axes.set(xlim=(0, end), ylim=(0, 1.02 * float(means.sum(axis=1).max())))
        if level in trials:
            stacked(axes, means.loc[level].rename_axis(index="at").reset_index(), hands, step)
    return render(
        "waits-over-time",
        drawing,
        alt=f"Sessions of the load by wait event over {amount(end)} seconds, by level. "
        + _in_words(means.groupby("level").mean().reindex(list(levels))),
        caption="Stacked in the order of the key from the bottom up"
        + (f", in spans of {step:g} s. " if step > 1 else ", second by second. ")
        + _CAPTION,
    )


def _colours_of(waits: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Look]]:
    """The frame with rare events as one, in the order in which they are stacked, by readable names; and each one's look."""
    events = [str(column) for column in waits if column not in (*_TRIAL, CPU, IDLE)]
    frequent, rare = events[: len(_HUES)], events[len(_HUES) :]
    hues = ({CPU: "green"} if CPU in waits else {}) | dict(zip(frequent, _HUES, strict=False))
    if rare:
        waits = waits.assign(other=waits[rare].sum(axis=1))
        hues["other"] = "muted"
    if IDLE in waits:
        hues[IDLE] = "grid"
    looks = {_NAMES.get(event, event): Look(hue, "s", "■") for event, hue in hues.items()}
    return waits[[*_TRIAL, *hues]].rename(columns=_NAMES), looks


def _in_words(means: pd.DataFrame) -> str:
    """Mean sessions by event, level by level, for the alt text."""
    levels = []
    for level, row in means.iterrows():
        parts = [f"{event} {value:.3g}" for event, value in row.dropna().items()]
        levels.append(f"{level}: {', '.join(parts) or 'not sampled'}")
    return "; ".join(levels) + "."
