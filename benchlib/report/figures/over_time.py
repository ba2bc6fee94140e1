"""Over time: the host from block to block, and inside the trials speed, latencies and devices; how far replicas lag, and what each level waits for."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchlib.load.latency import EDGES_US, Latency
from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, heat, medians, row_axes, rows, stacked
from benchlib.report.figures.frames import (
    amount,
    binned,
    extremes,
    finding,
    good,
    percent_of_mean,
    plain,
    short,
    signed,
    span,
)
from benchlib.report.figures.layout import canvas, log_axis, panels, styled, tell_rows, value_axis
from benchlib.report.figures.style import BAND, BLUE, INK, MUTED, ORANGE, PURPLE, Look, looks

DEVICES = {
    "tps": ("Operational speed", "transactions/s"),
    "waiting": ("Server waits", "sessions that wait"),
    "busy": ("Processors", "% busy, of all"),
    "iops": ("Disk operations", "IOPS, reads and writes"),
    "mib_s": ("Transfer", "MiB/s, read and written"),
    "aqu_sz": ("Queue length", "aqu_sz, requests"),
    "r_await_ms": ("Time of a read", "r_await, ms"),
    "w_await_ms": ("Time of a write", "w_await, ms"),
    "network_mib_s": ("Network", "MiB/s, of the load tool's host"),
    "connections": ("Connections", "sessions of the load"),
}
"""What can be drawn over time: titles, and what is on the axis."""

LADDER = tuple(DEVICES)[:8]
"""Those of a tuning ladder."""

Trial = tuple[str, int]

_CPU, _IDLE = "CPU", "Client: ClientRead"
_EVENTS = {_CPU: "on the CPU", _IDLE: "waiting for the load tool, or for a processor"}
_HUES = ("blue", "orange", "purple", "ochre", "violet")
_BY = ["level", "block", "second"]
_CLOCK = "seconds since the load began"
_SPANS = 60
_POINTS = 6000  # of all thin lines together; more only makes the page heavy
_NUMBERS = 400  # rows that a figure's numbers have at most
_STRIP = 0.16  # of a panel's height: for checkpoints
_RAREST = 1e-4  # a share of transactions below this has the lightest shade
_LEAST_LAG = 0.01  # ms: a shorter lag is drawn there


@styled
def drift(trials: pd.DataFrame, metric: str) -> Figure:
    """Each trial against its own level's mean, in the order they were run: what the host did meanwhile.

    `trials`: columns `block`, `level`, `metric`, and `started_s` (seconds).
    """
    order = trials.sort_values("started_s").assign(x=np.arange(1.0, len(trials) + 1))
    fine = good(order, metric)
    fine = fine.assign(percent=percent_of_mean(fine, metric) - 100)
    failed = order["x"].drop(fine.index)
    spans = order.groupby("block", sort=False)["x"].agg(["min", "max"])
    spans["value"] = fine.groupby("block")["percent"].mean()
    drawing = canvas(190)
    axes = drawing.subplots()
    axes.plot(fine["x"], fine["percent"], ".", color=BLUE)
    axes.hlines(spans["value"], spans["min"] - 0.4, spans["max"] + 0.4, color=INK, linewidth=2.4)
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
    for start, stop in spans[["min", "max"]].iloc[::2].itertuples(index=False):
        axes.axvspan(start - 0.5, stop + 0.5, color=BAND, linewidth=0, zorder=0.5)
    foot = axes.get_xaxis_transform()
    axes.plot(failed, 0 * failed, "x", color=PURPLE, markersize=6, clip_on=False, transform=foot)
    shown = spans.iloc[:: math.ceil(len(spans) / 25)]
    axes.set_xticks((shown["min"] + shown["max"]) / 2, [str(block) for block in shown.index])
    axes.set(xlabel="blocks, each in the order of its trials", ylabel="against the level's own mean, %")
    axes.set_xlim(0.5, len(order) + 0.5)
    axes.yaxis.set_major_formatter(lambda value, _: signed(value, unit="").replace(".0", ""))
    title = "One block does not tell how the host moved"
    if len(spans) > 1 and (moved := span(spans["value"], signed)):
        title = f"{metric_or_guess(metric).title} of all levels moved by {moved} between blocks"
    caption = "Dots: trials; bars: the blocks' means, which a comparison inside blocks cancels."
    if len(failed):
        caption += f" × a failed trial ({len(failed)})."
    numbers = fine[["x", "block", "level", "percent"]].rename(columns={"x": "trial"})
    return render(f"drift-{metric}", drawing, title, caption, numbers)


@styled
def timeline(
    progress: pd.DataFrame,
    *,
    levels: Sequence[str],
    checkpoints: pd.DataFrame | None = None,
    relative: bool = False,
    unsteady: Collection[str] | None = (),
) -> Figure:
    """Throughput inside the trials. `progress`: columns `level`, `block`, `elapsed_s`, and `tps`.

    `levels` sets their order. `checkpoints`: columns `level`, `block`, `start_s` and `end_s` (null for one that had
    begun before, or had not ended); None where nobody would know. With `relative` each level is drawn in percent of
    its own mean: those of several workloads have no scale in common. `unsteady` levels were in no steady state; None where
    trials were too short to tell.
    """
    progress = progress[["level", "block", "elapsed_s", "tps"]].dropna(subset="tps")
    trials = max(progress.groupby(["level", "block"]).ngroups, 1)
    end = float(progress["elapsed_s"].max()) if len(progress) else 1.0
    bins = max(min(_POINTS // trials, _NUMBERS // max(len(levels), 1), 120), 12)
    thin, step = binned(progress, "elapsed_s", bins)
    typical = thin.groupby("level")["tps"].median()
    notes = [f"median {amount(typical[name])} tps" if name in typical else "no readings" for name in levels]
    numbers = thin.groupby(["level", "elapsed_s"])["tps"].median().reset_index()
    if relative:
        thin["tps"] = percent_of_mean(thin, "tps")
    bold = thin.groupby(["level", "elapsed_s"])["tps"].median()
    marked = pd.DataFrame(columns=["level", "start_s", "end_s"]) if checkpoints is None else checkpoints
    marked = marked[marked["level"].isin(list(levels))].astype({"start_s": float, "end_s": float})
    drawing, grid = panels(list(zip(levels, notes, strict=True)), 135, "seconds since the trial began")
    for name, axes in zip(levels, grid, strict=True):
        axes.set_xlim(0, 1.01 * end)
        if name in typical:
            each = thin[thin["level"] == name].pivot(index="elapsed_s", columns="block", values="tps")
            dot = "o" if thin["elapsed_s"].nunique() == 1 else None
            axes.plot(each, color=BLUE, linewidth=0.7, alpha=0.4, marker=dot)
            axes.plot(bold[name], color=BLUE, linewidth=2)
        spans = marked[marked["level"] == name]
        start, stop = spans["start_s"].fillna(0.0).clip(0), spans["end_s"].fillna(end).clip(upper=end)
        bars = list(zip(start, (stop - start).clip(end / 200), strict=True))
        axes.broken_barh(bars, (1 - 0.8 * _STRIP, 0.7 * _STRIP), transform=axes.get_xaxis_transform(), color=ORANGE,
                         alpha=0.4, linewidth=0)  # fmt: skip
    unit = "% of the level's mean" if relative else "tps"
    scale = value_axis(grid[0], thin["tps"], bold.groupby("level").median(), 1 - _STRIP * bool(len(marked)))
    drawing.supylabel(f"throughput, {unit}{scale}", color=MUTED)
    means = f", means of {step:g} s" if step > 1 else ""
    caption = f"Thin: one trial each{means}; bold: the median over blocks."
    if len(marked):
        caption += " Bars at the top: while a checkpoint was written, of all trials."
    elif checkpoints is not None:
        caption += " No checkpoint was written meanwhile."
    title = "Steady inside trials, as far as the readings tell"
    if unsteady is None:
        title = "Trials too short to tell whether they are steady"
    elif unsteady := [name for name in levels if name in unsteady]:
        title = f"“{short(unsteady[0])}”{f' and {len(unsteady) - 1} more' if unsteady[1:] else ''}: no steady state inside trials"
    return render("timeline-tps", drawing, title, caption, numbers)


@styled
def latency_over_time(latencies: Mapping[Trial, Latency], levels: Sequence[str]) -> Figure:
    """How many transactions took how long, second by second, all trials of a level together.

    ``latencies`` by level and block, in windows of one second.
    """
    seconds = max((len(each.counts) for each in latencies.values()), default=0) or 1
    totals = dict[str, NDArray[Any]]()  # of each level by second since each trial's first and by bin
    titles = list[tuple[str, str]]()
    for level in levels:
        trials = [each.counts for (of, _), each in latencies.items() if of == level and len(each.counts)]
        if trials:
            padded = [np.pad(each, ((0, seconds - len(each)), (0, 0))) for each in trials]
            totals[level] = np.sum(padded, axis=0)
        note = f"{len(trials)} trial{'s' * (len(trials) > 1)}" if trials else "no log was kept"
        titles.append((level, note))
    by_bin = sum((total.sum(axis=0) for total in totals.values()), np.zeros(len(EDGES_US)))
    instant = 100 * by_bin[0] / max(by_bin.sum(), 1)
    used = np.flatnonzero(by_bin[1:]) + 1  # a log scale has no place for what is logged as 0
    first, last = (used[0], used[-1]) if len(used) else (1, 2)
    edges_ms = np.array([*EDGES_US, 10 * EDGES_US[-1]])[first : last + 2] / 1000
    step = max(math.ceil(seconds / min(48, max(_NUMBERS // len(levels), 8))), 1)
    drawing, grid = panels(titles, 150, _CLOCK, "latency, ms (log scale)")
    numbers = list[tuple[Any, ...]]()
    for level, axes in zip(levels, grid, strict=True):
        log_axis(axes, "y", edges_ms[0], edges_ms[-1], 5)
        axes.set_xlim(0, seconds)
        if level in totals:
            spans = np.add.reduceat(totals[level], np.arange(0, seconds, step), axis=0)
            shares = spans / np.maximum(spans.sum(axis=1, keepdims=True), 1)
            x = np.minimum(np.arange(0, seconds + step, step), seconds)
            heat(axes, x, edges_ms, shares[:, first : last + 1], _RAREST)
            quantiles = (_below(spans, 0.5), _below(spans, 0.99))
            numbers += [(level, *row) for row in zip(x[1:], spans.sum(axis=1), *quantiles, strict=True)]
    title = "No log of transactions was kept"
    for level, total in list(totals.items())[:1]:
        half, most = (float(_below(total.sum(axis=0), share)) for share in (0.5, 0.99))
        title = f"{short(level)}: half take less than {amount(half)} ms, 99 % less than {amount(most)} ms"
    when = f"those {step} seconds" if step > 1 else "that second"
    caption = (
        f"The stronger the colour, the larger the share of the transactions that ended in {when} and took so long; shades "
        "are on a log scale."
    )
    if instant:
        caption += f" Not shown: {instant:.2g} % that pgbench logged as less than 10 µs."
    columns = ["level", "second", "transactions", "p50_ms", "p99_ms"]
    return render("latency-over-time", drawing, title, caption, pd.DataFrame(numbers, columns=columns))


def _below(counts: NDArray[Any], share: float) -> Any:
    """The time, ms, below which that share of the transactions stays, by counts in bins (the last axis); NaN without any."""
    upto = counts.cumsum(axis=-1)
    ends = np.append(EDGES_US[1:], 10 * EDGES_US[-1])[(upto >= share * upto[..., -1:]).argmax(axis=-1)] / 1000
    return np.where(upto[..., -1] > 0, ends, np.nan)


@styled
def device_panels(
    progress: pd.DataFrame,
    seconds: pd.DataFrame,
    waits: pd.DataFrame,
    levels: Sequence[str],
    note: str = "",
    *,
    figures: Sequence[str] = LADDER,
    relative: bool = False,
    name: str = "devices",
) -> Figure:
    """A panel for each of ``figures`` that was recorded, in each the levels: the median over trials, and their middle half.

    ``progress``: ``level, block, elapsed_s, tps``; ``seconds`` and ``waits`` are those of
    :class:`benchlib.study.instruments.Recorded`. ``levels`` are at most :data:`benchlib.report.figures.style.FEW`; ``note`` ends
    the caption. With ``relative`` the speed of each level is in percent of its own mean: those of several workloads
    have no scale in common.
    """
    titles = dict(DEVICES)
    if relative:
        progress = progress.assign(tps=percent_of_mean(progress, "tps"))
        titles["tps"] = ("Operational speed", "% of the level's mean")
    frame = _device_frame(progress, seconds, waits)
    spans, step = binned(frame[frame["level"].isin(list(levels))], "second", _SPANS)
    # a time of reads or writes that hardly happened says nothing
    recorded = [figure for figure in figures if spans[figure].notna().mean() > 0.1]
    hands, shown = looks(levels), [titles[figure] for figure in recorded]
    drawing, grid = panels(shown, 122, _CLOCK, columns=2, keyed=hands, sharey=False)
    for figure, axes in zip(recorded, grid, strict=True):
        medians(axes, spans.rename(columns={"level": "series", figure: "value"}), hands)
    numbers = spans.groupby(["level", "second"])[recorded].median()
    title = _most_apart(numbers.drop(columns="tps", errors="ignore").groupby("level").median(), titles)
    each = f", in spans of {step:g} s" if step > 1 else ""
    caption = f"Lines: medians over the trials{each}; bands: their middle half. {note}"
    return render(name, drawing, title, caption.rstrip(), numbers.reset_index())


def _most_apart(medians: pd.DataFrame, titles: Mapping[str, tuple[str, str]]) -> str:
    """The figure that differs most between levels: `Most apart, queue length: 0.4 (tuned) to 12 (defaults); aqu_sz, requests`."""
    ratios = (medians.max() / medians.min())[medians.min() > 0]
    if len(medians) < 2 or ratios.empty:
        return "Speed and devices while the load ran"
    name = str(ratios.idxmax())
    figure, unit = titles[name]
    return finding(f"Most apart, {figure.lower()}: {extremes(medians[name])}", f"; {unit}")


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
def replay_lag(readings: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """A row per level: how long after the primary its replicas show what was committed, the median and the middle 90 %.

    ``readings``: ``level``, and ``replay_lag_s`` and ``replay_lag_bytes``, null where the server knows none; a row per
    reading and replica.
    """
    lags = readings.assign(ms=1000 * readings["replay_lag_s"], kib=readings["replay_lag_bytes"] / 1024)
    table = lags.groupby("level").agg(
        low=("ms", lambda ms: ms.quantile(0.05)), value=("ms", "median"), high=("ms", lambda ms: ms.quantile(0.95)),
        most_ms=("ms", "max"), most_kib=("kib", "max"), known=("ms", "count"), read=("ms", "size"),
    ).reindex(list(levels)).fillna({"known": 0, "read": 0})  # fmt: skip
    labels = []
    for level, row in table.iterrows():
        quiet, unknown = "" if row["known"] else "not known", row["read"] - row["known"]
        if row["known"] and unknown:
            quiet = f"{unknown:.0f} of {row['read']:.0f} readings not known"
        cells = [(amount(row[name]), INK) for name in ("value", "most_ms", "most_kib")]
        labels.append(Label(str(level), quiet, cells))
    ends = table[["low", "value", "high"]].clip(lower=_LEAST_LAG)
    values = ends.to_numpy(float)
    least, most = np.nanmin(values, initial=1.0), np.nanmax(values, initial=1.0)
    blue = pd.Series([Look("blue")] * len(ends), ends.index, dtype=object)
    marks = ends.assign(row=range(len(ends)), look=blue)
    drawing, *_ = rows(
        labels, marks, lambda axes: log_axis(axes, "x", least / 1.5, most * 1.5, 4), "replay lag, ms",
        heads=["median, ms", "most, ms", "most WAL, KiB"], origin=np.nan,
    )  # fmt: skip
    title = f"Median replay lag: {extremes(table['value'], ' ms') or 'not known'}"
    caption = (
        "Marks: medians over all readings and replicas; bars: their middle 90 %. An idle server knows no lag."
    )
    numbers = table.drop(columns=["known", "read"]).reset_index(names="level")
    return render("replica-lag", drawing, title, caption, numbers)


@styled
def waits_by_level(waits: pd.DataFrame, levels: Sequence[str]) -> Figure | None:
    """Mean sessions by wait event, a stacked bar per level; None where nearly all are on the CPU at every level.

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
    stacked(axes, means, hands, middles)
    texts = []
    for level, sessions in means.iterrows():
        often = sessions[sessions > 0].sort_values(ascending=False)
        of_level = ", ".join(f"{event} {amount(round(count, 2))}" for event, count in often.items())
        texts.append(f"{level}: {of_level}" if of_level else "")
    tell_rows(axes, texts, middles, 11)
    axes.set(xlim=(0, float(means.sum(axis=1).max()) or 1), xlabel="sessions, mean")
    axes.xaxis.set_major_formatter(plain)
    title = "Not sampled at the first level"
    if sampled.iloc[0]:
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
    frequent, rare = events[: len(_HUES)], events[len(_HUES) :]
    hues = ({_CPU: "green"} if _CPU in waits else {}) | dict(zip(frequent, _HUES, strict=False))
    if rare:
        waits = waits.assign(other=waits[rare].sum(axis=1))
        hues["other"] = "muted"
    if _IDLE in waits:
        hues[_IDLE] = "grid"
    looks = {_EVENTS.get(event, event): Look(hue, "s", "■") for event, hue in hues.items()}
    return waits[[*_BY, *hues]].rename(columns=_EVENTS), looks
