"""Over time: the host from block to block, and inside the trials speed and devices; and what each level waits for."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchlib.plan.metrics import described
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.frames import amount, extremes, finding, good, short, signed, span
from benchlib.report.figures.layout import Label, panels, row_axes, styled, tell, tell_rows, value_axis
from benchlib.report.figures.style import BLUE, INK, ORANGE, Look, looks

DEVICES = {
    "tps": ("Operational speed", "transactions/s"),
    "waiting": ("Server waits", "sessions that wait"),
    "busy": ("Processors", "% busy, of all"),
    "iops": ("Disk operations", "IOPS, reads and writes"),
    "mib_s": ("Transfer", "MiB/s, read and written"),
    "aqu_sz": ("Queue length", "aqu_sz, requests"),
    "r_await_ms": ("Time of a read", "r_await, ms"),
    "w_await_ms": ("Time of a write", "w_await, ms"),
    "network_mib_s": ("Network", "MiB/s, of the server's host"),
    "connections": ("Connections", "sessions of the load"),
}
"""What can be drawn over time: titles, and what is on the axis."""

LADDER = tuple(DEVICES)[:8]
"""Those of a tuning ladder."""

_CPU, _IDLE = "CPU", "Client: ClientRead"
_EVENTS = {_CPU: "on the CPU", _IDLE: "waiting for the load tool, or for a processor"}
_SEEN = 0.02
"""Which share of a level's sessions a bar must have to be seen."""
_HUES = ("blue", "orange", "purple", "ochre", "violet")
_BY = ["level", "block", "second"]
_SPANS = 60
_NUMBERS = 400  # rows that a figure's numbers have at most
_ALIKE = 1.1
"""By so many times the figures of levels have to differ to be worth a title."""


@styled
def drift(trials: pd.DataFrame, metric: str) -> Figure:
    """Each trial against its own level's mean, in the order they were run: what the host did meanwhile.

    `trials`: columns `block`, `level`, `metric`, `started_s` (seconds), and where there are several `host`: each is then shown
    apart, against its own means.
    """
    order = trials.assign(host=trials["host"].fillna("") if "host" in trials else "")
    order = order.sort_values(["host", "started_s"]).assign(x=np.arange(1.0, len(trials) + 1))
    fine = good(order, metric)
    of_host = fine.assign(level=fine["host"] + " " + fine["level"])
    fine = fine.assign(percent=_percent_of_mean(of_host, metric) - 100)
    blocks = order.groupby("block", sort=False)["x"].agg(["min", "max", "mean"])
    blocks["value"] = fine.groupby("block")["percent"].mean()
    drawing, (axes,) = panels([("", "")], 190)
    axes.plot(fine["x"], fine["percent"], ".", color=BLUE)
    axes.hlines(blocks["value"], blocks["min"] - 0.4, blocks["max"] + 0.4, color=INK, linewidth=2.4)
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
    shown = blocks["mean"].iloc[:: math.ceil(len(blocks) / 25)]
    axes.set_xticks(shown, [str(block) for block in shown.index])
    for block, of in blocks.loc[shown.index].dropna(subset="value").iterrows():
        whole = axes.axvspan(of["min"] - 0.4, of["max"] + 0.4, facecolor="none", edgecolor="none", zorder=5)
        tell(whole, f"block {block}: {signed(of['value'])}")
    axes.set(xlabel="blocks, each in the order of its trials", ylabel="against the level's own mean, %")
    title = "One block does not tell how the host moved"
    if len(blocks) > 1 and (moved := span(blocks["value"], signed)):
        title = f"{described(metric).title} of all levels moved by {moved} between blocks"
    caption = "Dots: trials; bars: the blocks' means, which a comparison inside blocks cancels."
    numbers = fine[["x", "block", "level", "percent"]].rename(columns={"x": "trial"})
    return render(f"drift-{metric}", drawing, title, caption, numbers)


def _percent_of_mean(frame: pd.DataFrame, column: str) -> "pd.Series[float]":
    """A column in percent of each level's own mean. ``frame``: columns ``level`` and that one."""
    return 100 * frame[column] / frame.groupby("level")[column].transform("mean")


def _binned(frame: pd.DataFrame, clock: str, bins: int) -> tuple[pd.DataFrame, float]:
    """The means of each trial in at most `bins` spans of whole seconds, and how long a span is.

    `frame`: columns `level, block`, `clock` (seconds, at the end of what was read), and figures.
    """
    end = float(frame[clock].max()) if len(frame) else 1.0
    step = max(math.ceil(end / bins), 1.0)
    spans = frame.assign(**{clock: np.ceil(frame[clock] / step - 1e-6) * step})
    return spans.groupby(["level", "block", clock]).mean().reset_index(), step


@styled
def timeline(
    progress: pd.DataFrame,
    *,
    levels: Sequence[str],
    title: str,
    checkpoints: pd.DataFrame | None = None,
) -> Figure:
    """Throughput inside the trials, in percent of each level's mean. `progress`: columns `level`, `block`, `elapsed_s`, and `tps`.

    `levels` sets their order; `title` says whether they were in a steady state. `checkpoints`: columns `level`, `block`,
    `start_s` and `end_s` (null for one that had begun before, or had not ended); None where nobody would know.
    """
    progress = progress[["level", "block", "elapsed_s", "tps"]].dropna(subset="tps")
    end = float(progress["elapsed_s"].max()) if len(progress) else 1.0
    thin, step = _binned(progress, "elapsed_s", max(min(_NUMBERS // len(levels), 120), 12))
    typical = thin.groupby("level")["tps"].median()
    notes = [f"median {amount(typical[name])} tps" if name in typical else "no readings" for name in levels]
    numbers = thin.groupby(["level", "elapsed_s"])["tps"].median().reset_index()
    thin["tps"] = _percent_of_mean(thin, "tps")
    bold = thin.groupby(["level", "elapsed_s"])["tps"].median()
    marked = pd.DataFrame(columns=["level", "start_s", "end_s"]) if checkpoints is None else checkpoints
    marked = marked[marked["level"].isin(list(levels))].astype({"start_s": float, "end_s": float})
    titles = list(zip(levels, notes, strict=True))
    drawing, grid = panels(titles, 135, "seconds since the trial began", "% of the level's mean")
    for name, axes in zip(levels, grid, strict=True):
        axes.set_xlim(0, 1.01 * end)
        if name in typical:
            each = thin[thin["level"] == name].pivot(index="elapsed_s", columns="block", values="tps")
            axes.plot(each, color=BLUE, linewidth=0.7, alpha=0.4)
            axes.plot(bold[name], color=BLUE, linewidth=2)
        spans = marked[marked["level"] == name]
        start, stop = spans["start_s"].fillna(0.0).clip(0), spans["end_s"].fillna(end).clip(upper=end)
        axes.hlines(
            [1.02] * len(spans), start, np.maximum(stop, start + end / 200), color=ORANGE, alpha=0.6,
            linewidth=3, clip_on=False, transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    grid[0].set_ylim(0, 1.06 * float(np.max(thin["tps"].to_numpy(float), initial=100.0)))
    means = f", means of {step:g} s" if step > 1 else ""
    caption = f"Thin: one trial each{means}; bold: the median over blocks."
    if len(marked):
        caption += " Bars above: while a checkpoint was written, of all trials."
    return render("timeline-tps", drawing, title, caption, numbers)


@styled
def device_panels(
    progress: pd.DataFrame,
    seconds: pd.DataFrame,
    waits: pd.DataFrame,
    levels: Sequence[str],
    note: str = "",
    *,
    figures: Sequence[str] = LADDER,
    name: str = "devices",
    pair: Sequence[str] = (),
) -> Figure | None:
    """A panel for each of ``figures`` that was recorded, in each the levels: the median over trials, and their middle half.

    None where nothing was recorded.

    ``progress``: ``level, block, elapsed_s, tps``; ``seconds`` and ``waits`` are those of
    :class:`benchlib.study.instruments.Recorded`. ``levels`` are at most :data:`benchlib.report.figures.style.FEW`; ``note`` ends
    the caption. The title tells of the ``pair`` of levels, if both are among them.
    """
    frame = _device_frame(progress, seconds, waits)
    spans, step = _binned(frame[frame["level"].isin(list(levels))], "second", _SPANS)
    trials = spans.groupby(["level", "second"])["second"].transform("count")
    # few of a level's go on for a second after the others' end
    spans = spans[2 * trials >= trials.groupby(spans["level"]).transform("max")]
    # a time of reads or writes that hardly happened says nothing
    recorded = [figure for figure in figures if spans[figure].notna().mean() > 0.1]
    if not recorded:
        return None
    hands, shown = looks(levels), [DEVICES[figure] for figure in recorded]
    drawing, grid = panels(shown, 122, "seconds since the load began", keyed=hands, sharey=False)
    for figure, axes in zip(recorded, grid, strict=True):
        _medians(axes, spans.rename(columns={"level": "series", figure: "value"}), hands)
        told = spans.groupby("level")[figure].median().dropna()
        words = "; ".join(f"{level}: {amount(told[level])}" for level in hands if level in told)
        whole = axes.axvspan(*axes.get_xlim(), facecolor="none", edgecolor="none", zorder=5)
        tell(whole, f"{DEVICES[figure][0]}, {DEVICES[figure][1]}: {words}")
    numbers = spans.groupby(["level", "second"])[recorded].median()
    medians = numbers.drop(columns="tps", errors="ignore").groupby("level").median()
    title = _most_apart(medians.loc[[*pair]] if {*pair} <= {*medians.index} and pair else medians)
    each = f", in spans of {step:g} s" if step > 1 else ""
    caption = f"Lines: medians over the trials{each}; bands: their middle half. {note}"
    return render(name, drawing, title, caption.rstrip(), numbers.reset_index())


def _medians(axes: Axes, frame: pd.DataFrame, hands: Mapping[str, Look]) -> None:
    """Over time, the median of each series at each second, and a band that holds the middle half of the values.

    `frame`: `series, second, value`; where a second has no value, the line has a gap. A rare spike of a band may leave the
    axis, no line does.
    """
    ends = frame.groupby(["series", "second"])["value"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    axes.autoscale(False)  # which takes long, line by line
    axes.set_xlim(0, 1.01 * float(frame["second"].max()))
    for place, (name, look) in enumerate(hands.items()):
        if name not in ends.index:
            continue
        of_series = ends.loc[name]
        seconds, every = of_series.index, max(len(of_series) // 6, 1)
        low, median, high = (of_series[quarter] for quarter in (0.25, 0.5, 0.75))
        axes.fill_between(seconds, low, high, color=look.colour, alpha=0.2, linewidth=0)
        marks: dict[str, Any] = {"marker": look.marker, "markersize": 4, "markevery": (place % every, every)}
        axes.plot(seconds, median, color=look.colour, **marks)
    shown = pd.Series([ends[0.5].min(), ends[0.5].max(), ends[0.75].quantile(0.98)])
    axes.set(ylabel=value_axis(axes, shown, ends[0.5].groupby("series").median()).strip(" ()"))


def _most_apart(medians: pd.DataFrame) -> str:
    """The figure that differs most between levels: `Differs most, queue length: 0.4 (tuned) to 12 (defaults)`."""
    ratios = (medians.max() / medians.min())[medians.min() > 0]
    if len(medians) < 2 or ratios.empty:
        return "Speed and devices while the load ran"
    if ratios.max() < _ALIKE:
        return f"The devices were alike: no figure's medians differ by {100 * _ALIKE - 100:.0f} %"
    name = str(ratios.idxmax())
    rounded, unit = medians[name].map("{:.3g}".format).astype(float), " ms" if name.endswith("_ms") else ""
    return f"Differs most, {DEVICES[name][0].lower()}: {extremes(rounded, unit)}"


def _device_frame(progress: pd.DataFrame, seconds: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    """All figures by level, block and second; null where one was not recorded."""
    events = [column for column in waits if column not in (*_BY, _CPU, _IDLE)]
    speed = progress.assign(second=np.ceil(progress["elapsed_s"] - 0.5))[[*_BY, "tps"]]
    device = seconds.assign(
        busy=seconds["cpu_user_percent"] + seconds["cpu_system_percent"],
        iops=seconds["r_iops"] + seconds["w_iops"],
        mib_s=seconds["r_mib_s"] + seconds["w_mib_s"],
    )
    every = waits.columns.difference(_BY)
    sessions = waits.assign(waiting=waits[events].sum(axis=1), connections=waits[every].sum(axis=1))
    frame = speed.groupby(_BY, as_index=False).mean()
    of_server = ["waiting", "connections"]
    for other in (sessions[[*_BY, *of_server]], device[[*_BY, *list(DEVICES.keys() - {"tps", *of_server})]]):
        frame = frame.merge(other, "outer", on=_BY)
    return frame.astype(dict.fromkeys(DEVICES, float))


@styled
def waits_by_level(waits: pd.DataFrame, levels: Sequence[str], pair: Sequence[str] = ()) -> Figure | None:
    """Mean sessions by wait event, a stacked bar per level; None where nearly all are on the CPU at every level.

    The title tells what differs most between the ``pair`` of levels, if they were sampled; else what the first waits for.
    ``waits``: ``level, block, second`` and a column of mean sessions per wait event, such as ``IO: WALSync``.
    """
    shown, hands = _colours_of(waits)
    trials = shown.groupby(["level", "block"]).mean().drop(columns="second")
    means = trials.groupby("level").mean().reindex(list(levels))
    parts = means.div(means.sum(axis=1), axis=0)
    if _EVENTS[_CPU] in parts and parts[_EVENTS[_CPU]].min() > 0.95:
        return None
    sampled = means.notna().any(axis=1)
    labels = [Label(level, "" if sampled[level] else "not sampled") for level in levels]
    drawing, axes, middles = row_axes(labels, right=24, keyed=hands)
    start = np.zeros(len(means))
    for event, look in hands.items():
        values = means[event].fillna(0.0).to_numpy()
        axes.barh(middles, values, 16, left=start, color=look.colour, linewidth=0)
        start += values
    texts = []
    for level, sessions in means.iterrows():
        often = sessions[sessions > 0].sort_values(ascending=False)
        of_level = ", ".join(f"{event} {amount(round(count, 2))}" for event, count in often.items())
        texts.append(f"{level}: {of_level}" if of_level else "")
    tell_rows(axes, texts, middles)
    axes.set(xlim=(0, float(means.sum(axis=1).max()) or 1), xlabel="sessions, mean")
    axes.xaxis.set_major_formatter(amount)
    title = "Not sampled at the first level"
    if pair and sampled.reindex([*pair]).eq(True).all():
        before, after = (means.loc[name].fillna(0.0).to_dict() for name in pair)
        event = str(max(after, key=lambda name: abs(after[name] - before[name])))
        title = finding(
            f"Sessions {'' if event in _EVENTS.values() else 'at '}{event}: {amount(round(before[event], 1))} (“{short(pair[0])}”)",
            f", {amount(round(after[event], 1))} (“{short(pair[1])}”)",
        )
    elif sampled.iloc[0]:
        event = str(parts.iloc[0].idxmax())
        verb = "are" if event in _EVENTS.values() else "wait for"
        title = f"At “{short(levels[0])}” {100 * parts[event].iloc[0]:.0f} % of sessions {verb} {event}"
    caption = "Means of the load's sessions and their parallel workers."
    numbers = means.rename_axis("level").reset_index()
    numbers = numbers.melt("level", var_name="waiting for", value_name="sessions")
    return render("waits", drawing, title, caption, numbers)


def _colours_of(waits: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Look]]:
    """The frame with rare events as one, in the order in which they are stacked, by readable names; and each one's look."""
    events = [str(column) for column in waits if column not in (*_BY, _CPU, _IDLE)]
    means = waits.drop(columns=_BY).groupby(waits["level"]).mean()
    seen = means.div(means.sum(axis=1), axis=0).max() >= _SEEN
    own = [event for event in events if seen[event]][: len(_HUES)]
    waits = waits.assign(other=waits[[event for event in events if event not in own]].sum(axis=1))
    hues = {_CPU: "green", **dict(zip(own, _HUES, strict=False)), "other": "muted", _IDLE: "grid"}
    hues = {event: hue for event, hue in hues.items() if event in waits and waits[event].any()}
    looks = {_EVENTS.get(event, event): Look(hue, "s") for event, hue in hues.items()}
    return waits[[*_BY, *hues]].rename(columns=_EVENTS), looks
