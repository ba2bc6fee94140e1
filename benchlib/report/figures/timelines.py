"""What happened over time: speed, waits, devices, replicas and latencies inside the trials; the host between them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns

from benchlib.load.latency import EDGES_US, Latency
from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import heat, medians, stacked
from benchlib.report.figures.frames import (
    amount,
    axis_words,
    good,
    opening,
    percent_of_mean,
    plain,
    signed,
)
from benchlib.report.figures.layout import canvas, columns_for, log_axis, panels, styled
from benchlib.report.figures.style import BAND, BLUE, FEW, INK, MUTED, ORANGE, PURPLE, Look, looks
from benchlib.report.figures.waits import CPU, IDLE, WAITS_CAPTION, colours_of, waits_in_words

PANELS = {
    "tps": ("Operational speed", "transactions/s"),
    "waiting": ("DBMS waits", "sessions that wait"),
    "iops": ("I/O operations", "IOPS, reads and writes"),
    "mib_s": ("Transfer", "MiB/s, read and written"),
    "aqu_sz": ("Queue length", "aqu_sz, requests"),
    "r_await_ms": ("Time of a read", "r_await, ms"),
    "w_await_ms": ("Time of a write", "w_await, ms"),
}
"""The figures of a tuning ladder: their titles, and what is on the axis."""

STAGES = {"write": "written", "flush": "flushed", "replay": "replayed"}
"""How far a replica can have come with a piece of WAL: the server's word, and a reader's."""

_SPANS = 60
_POINTS = 6000  # of all thin lines together; more only makes the page heavy
_STRIP = 0.16  # of a panel's height: for checkpoints
_LINEAR = 0.1  # ms or KiB below which the scale of a lag is linear: down to 0, which it shows
_RAREST = 1e-4  # a share of transactions below this has the lightest shade
_LOAD_SECONDS = "seconds since the load began"

Trial = tuple[str, int]


def binned(frame: pd.DataFrame, clock: str, bins: int) -> tuple[pd.DataFrame, float]:
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
    warmup_s: float = 0.0,
    metric: str = "tps",
    levels: Sequence[str] | None = None,
    checkpoints: pd.DataFrame | None = None,
    relative: bool = False,
) -> Figure:
    """Throughput inside the trials. `progress`: columns `level`, `block`, `elapsed_s`, and `metric`.

    Seconds before `warmup_s` are shaded as not counted. `levels` sets their order. `checkpoints`: columns `level`,
    `block`, `start_s` and `end_s` (null for one that had begun before, or had not ended); None where nobody would know.
    With `relative` each level is drawn in percent of its own mean: those of several workloads have no scale in common.
    """
    progress = progress.assign(level=progress["level"].astype(str))[["level", "block", "elapsed_s", metric]]
    names = list(levels) if levels is not None else list(progress["level"].unique())
    progress, measured = progress.dropna(subset=metric), metric_or_guess(metric)
    trials = max(progress.groupby(["level", "block"]).ngroups, 1)
    end = float(progress["elapsed_s"].max()) if len(progress) else 1.0
    thin, step = binned(progress, "elapsed_s", max(min(_POINTS // trials, 120), 12))
    counted = thin[thin["elapsed_s"] > warmup_s].groupby("level")[metric].median()
    typical = {
        str(level): f"median {amount(value)} {measured.unit}".rstrip() for level, value in counted.items()
    }
    if relative:
        thin[metric] = percent_of_mean(thin, metric)
    marked = pd.DataFrame() if checkpoints is None else checkpoints[checkpoints["level"].isin(names)]
    of = [] if marked.empty else marked["level"].tolist()
    written = {name: of.count(name) for name in names if name in of}
    columns = columns_for(len(names))
    drawing = canvas(30 + 135 * -(-len(names) // columns))
    titles = [(name, typical.get(name, "no readings")) for name in names]
    for name, axes in zip(names, panels(drawing, titles, columns, sharex=True, sharey=True), strict=True):
        readings = thin[thin["level"] == name]
        thick = {"linewidth": 0.7, "alpha": 0.4, "marker": "o" if thin["elapsed_s"].nunique() == 1 else None}
        every: dict[str, Any] = {"x": "elapsed_s", "y": metric, "color": BLUE, "ax": axes}
        sns.lineplot(readings, units="block", estimator=None, **every, **thick)
        sns.lineplot(readings, estimator="median", errorbar=None, linewidth=2, **every)
        axes.set(xlabel="", ylabel="", xlim=(0, 1.01 * end))
        axes.axvspan(0, warmup_s, color=BAND, linewidth=0, zorder=0.5)
        bars_of = marked[marked["level"] == name].groupby("block") if len(marked) else ()
        for row, (_, spans) in enumerate(bars_of):
            start, stop = spans["start_s"].fillna(0.0).clip(0), spans["end_s"].fillna(end).clip(upper=end)
            bars = list(zip(start, (stop - start).clip(end / 200), strict=True))
            height = _STRIP / len(bars_of)
            axes.broken_barh(
                bars, (1 - (row + 0.9) * height, 0.8 * height), transform=axes.get_xaxis_transform(),
                color=ORANGE, linewidth=0,
            )  # fmt: skip
    high = float(thin[metric].max()) if len(thin) else 1.0
    axes.set_ylim(0, 1.05 * high / (1 - _STRIP * bool(written)))
    drawing.supylabel(
        f"{measured.title}, % of the level's mean" if relative else axis_words(measured), color=MUTED
    )
    drawing.supxlabel("seconds since the trial began", color=MUTED)
    results = "; ".join(f"{name}: {typical[name]}" for name in names if name in typical)
    return render(
        f"timeline-{metric}",
        drawing,
        alt=f"{opening(measured.title)} over {amount(end)} seconds inside the trials, by level. "
        f"{results or 'No readings'}."
        + (" Each in percent of its own mean." if relative else "")
        + (f" Checkpoints: {', '.join(f'{level} {n}' for level, n in written.items())}." if written else ""),
        caption=f"Thin: one trial each{f', means of {step:g} s' if step > 1 else ''}; bold: the median over blocks."
        + (f" Shaded: the first {warmup_s:g} s, not counted." if warmup_s > 0 else "")
        + (" Bars at the top, a row per trial: while a checkpoint was written." if written else "")
        + (" No checkpoint was written meanwhile." if checkpoints is not None and not written else ""),
    )


@styled
def drift(trials: pd.DataFrame, metric: str = "tps", levels: Sequence[str] | None = None) -> Figure:
    """Each trial against its own level's mean, in the order they were run: what the host did meanwhile.

    `trials`: columns `block`, `level`, `metric`, and `started_s` (seconds) or else in their order.
    `levels` sets the order of the colours.
    """
    timed = "started_s" in trials and bool(trials["started_s"].notna().all())
    order = trials.sort_values("started_s") if timed else trials
    starts = (order["started_s"] - order["started_s"].min()) / 60 if timed else range(1, len(order) + 1)
    order = order.assign(x=list(starts), level=order["level"].astype(str))
    fine = good(order, metric)
    fine = fine.assign(percent=percent_of_mean(fine, metric) - 100)
    failed = order.drop(fine.index)
    spans = order.groupby("block", sort=False)["x"].agg(["min", "max"])
    spans["mean"] = fine.groupby("block")["percent"].mean()
    names = list(levels) if levels is not None else sorted(order["level"].unique())
    hands = {name: Look(look.hue) for name, look in looks(names).items()} if len(names) <= FEW else {}
    drawing = canvas(210, hands)
    axes = drawing.subplots()
    sns.scatterplot(
        fine, x="x", y="percent", hue="level" if hands else None, alpha=0.85, s=24, linewidth=0, legend=False,
        palette={name: look.colour for name, look in hands.items()} or None, color=MUTED, ax=axes,
    )  # fmt: skip
    axes.hlines(spans["mean"], spans["min"], spans["max"], color=INK, linewidth=2.4)
    axes.axhline(0, color=INK, linewidth=1, zorder=1.5)
    for start, stop in spans[["min", "max"]].iloc[::2].itertuples(index=False):
        axes.axvspan(start, stop, color=BAND, linewidth=0, zorder=0.5)
    axes.plot(
        failed["x"], [0.0] * len(failed), "x", color=PURPLE, markersize=6, clip_on=False,
        transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    axes.set(
        xlabel="minutes since the first trial" if timed else "trials in the order they were run",
        ylabel="against the level's own mean, %",
    )
    axes.yaxis.set_major_formatter(lambda value, _: signed(value, unit="").replace(".0", ""))
    shown = spans.iloc[:: math.ceil(len(spans) / 20)]
    above = axes.secondary_xaxis("top")
    above.set_xticks((shown["min"] + shown["max"]) / 2, [str(block) for block in shown.index])
    above.set_xlabel("block")
    above.spines["top"].set_visible(False)
    results = [
        f"{block}: {signed(mean, unit=' %')}" for block, mean in spans["mean"].dropna().sort_index().items()
    ]
    return render(
        f"drift-{metric}",
        drawing,
        alt=f"{opening(metric_or_guess(metric).title)} in the order of the trials, against each level's own "
        f"mean. Block means: {', '.join(results) or 'none'}."
        + (f" {len(failed)} failed." if len(failed) else ""),
        caption="Each dot is a trial, each bar a block's mean. Bars away from zero show the host drifting "
        "between blocks, which a comparison inside blocks cancels."
        + (" × marks a failed trial." if len(failed) else ""),
    )


@styled
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
    :class:`benchlib.study.instruments.Recorded`. ``levels`` are at most :data:`benchlib.report.figures.style.FEW`; ``note`` ends
    the caption. With ``relative`` the speed of each level is in percent of its own mean: those of several workloads
    have no scale in common.
    """
    if relative:
        progress = progress.assign(tps=percent_of_mean(progress, "tps"))
    titles = PANELS | ({"tps": ("Operational speed", "% of the level's mean")} if relative else {})
    frame = _device_frame(progress, seconds, waits)
    spans, step = binned(frame[frame["level"].isin(list(levels))], "second", _SPANS)
    means = spans.groupby("level")[list(PANELS)].mean().reindex(list(levels))
    empty = {name: _why_empty(name, seconds) for name in PANELS if means[name].isna().all()}
    hands = looks(levels)
    drawing = canvas(520, hands)
    notes = [
        (title, f"{unit}: {empty[name]}" if name in empty else unit) for name, (title, unit) in titles.items()
    ]
    for name, axes in zip(PANELS, panels(drawing, notes, 2, sharex=True), strict=True):
        medians(axes, spans.rename(columns={"level": "series", name: "value"}), hands, 0.5)
        if name in empty:
            axes.set_yticks([])
    drawing.supxlabel(_LOAD_SECONDS, color=MUTED)
    results = "; ".join(
        f"{title} ({unit}): "
        + (
            ", ".join(f"{level} {amount(value)}" for level, value in means[name].dropna().items())
            or empty[name]
        )
        for name, (title, unit) in titles.items()
    )
    return render(
        "devices",
        drawing,
        alt=f"Seven panels over {amount(float(spans['second'].max()))} seconds, by level. Means: {results}.",
        caption="Lines: the median over the trials"
        + (f", in spans of {step:g} s" if step > 1 else "")
        + "; bands: the middle half of them. The devices are those that data and WAL lie on, together, by iostat's "
        "definitions. Sessions that wait are those neither on the CPU nor idle (waiting for the load tool)."
        + (f" {note}" if note else ""),
    )


def _device_frame(progress: pd.DataFrame, seconds: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
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


@styled
def lag_over_time(readings: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """Two panels per level, time and WAL, on scales common to all levels: the median, and the whole range.

    ``readings``: ``level, block, replica, second`` (since the load began), and for each of :data:`STAGES` its
    ``…_lag_s`` and ``…_lag_bytes``, null where the server knows none; a row per reading and replica.
    """
    figures = {
        **{f"{stage}_ms": 1000 * readings[f"{stage}_lag_s"] for stage in STAGES},
        **{f"{stage}_KiB": readings[f"{stage}_lag_bytes"] / 1024 for stage in STAGES},
    }
    # a replica of a trial is a series of its own
    series = readings["block"].astype(str) + " " + readings["replica"]
    frame = readings.assign(**figures, block=series)[["level", "block", "second", *figures]]
    spans, step = binned(frame, "second", _SPANS)
    end = max(float(spans["second"].max()), 1.0)
    hands = {STAGES[stage]: look for stage, look in looks(list(STAGES)).items()}
    pairs = [(level, unit) for level in levels for unit in ("ms", "KiB")]
    titles = [
        (level, f"{'time' if unit == 'ms' else 'WAL'}, {unit}: {_lag_words(frame[frame['level'] == level][f'replay_{unit}'])}")
        for level, unit in pairs
    ]  # fmt: skip
    drawing = canvas(30 + 115 * len(levels), hands)
    for (level, unit), axes in zip(pairs, panels(drawing, titles, 2, sharex=True), strict=True):
        names = {f"{stage}_{unit}": word for stage, word in STAGES.items()}
        rows = spans[spans["level"] == level].rename(columns=names)
        medians(axes, rows.melt("second", [*names.values()], "series", "value"), hands, 1.0)
        highest = max(1.3 * np.nanmax(spans[[*names]].to_numpy(float), initial=0.0), 10 * _LINEAR)
        axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
        decades = np.arange(round(np.log10(_LINEAR)), np.log10(highest) + 1e-9)
        axes.set_yticks([0, *10.0 ** decades[:: len(decades) // 5 + 1]])
        axes.yaxis.set_major_formatter(plain)
        axes.minorticks_off()
        axes.set_ylim(-0.2 * _LINEAR, highest)
    drawing.supxlabel(_LOAD_SECONDS, color=MUTED)
    return render(
        "replica-lag",
        drawing,
        alt=f"Lag of the replicas over {amount(end)} seconds, by level; median and largest reading. "
        + "; ".join(f"{level}: {_lags(frame[frame['level'] == level])}" for level in levels)
        + ".",
        caption="Lines: the median over blocks and replicas"
        + (f", in spans of {step:g} s" if step > 1 else "")
        + "; bands: from the least to the most. Above each panel: the median and the largest reading of what was not "
        "yet replayed. Log scales, linear below 0.1 ms and 0.1 KiB. The time is how long the latest confirmed WAL took to be "
        "written, flushed and replayed there; a server that is idle knows none, which is a gap and not 0."
        + _unknown_lags(frame, levels),
    )


def _lag_words(lags: "pd.Series[float]") -> str:
    lags = lags.dropna()
    return f"{amount(lags.median())}, at most {amount(lags.max())}" if len(lags) else "not known"


def _lags(rows: pd.DataFrame) -> str:
    """A level's lags for the alt text."""
    lags = [
        f"{word} {_lag_words(rows[f'{stage}_{unit}'])} {unit}"
        for stage, word in STAGES.items()
        for unit in ("ms", "KiB")
        if rows[f"{stage}_{unit}"].notna().any()
    ]
    return ", ".join(lags) or "not known"


def _unknown_lags(frame: pd.DataFrame, levels: Sequence[str]) -> str:
    """In how many readings the time was not known, or the replica not there."""
    notes = []
    for level in levels:
        rows = frame[frame["level"] == level]
        away = int(rows["replay_KiB"].isna().sum())
        idle = int(rows["replay_ms"].isna().sum()) - away
        notes += [f"{level}: no time in {idle} of {len(rows)} readings"] if idle else []
        notes += [f"{level}: no replica in {away} of {len(rows)} readings"] if away else []
    return f" {'; '.join(notes)}." if notes else ""


@styled
def waits_over_time(waits: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """The load's sessions by wait event over time, a panel per level, means of the trials.

    ``waits``: ``level, block, second`` and a column of mean sessions per wait event, such as ``IO: WALSync``.
    """
    shown, hands = colours_of(waits)
    spans, step = binned(shown, "second", _SPANS)
    means = spans.drop(columns="block").groupby(["level", "second"]).mean()
    trials = spans.groupby("level")["block"].nunique()
    end = float(spans["second"].max()) if len(spans) else 1.0
    counts = [int(trials.get(level, 0)) for level in levels]
    notes = [f"mean of {count} trial{'s' * (count != 1)}" if count else "not sampled" for count in counts]
    columns = columns_for(len(levels))
    drawing = canvas(30 + 135 * -(-len(levels) // columns), hands)
    titles = list(zip(levels, notes, strict=True))
    for level, axes in zip(levels, panels(drawing, titles, columns, sharex=True, sharey=True), strict=True):
        axes.set(xlim=(0, end), ylim=(0, 1.02 * float(means.sum(axis=1).max())))
        if level in trials:
            stacked(axes, means.loc[level].rename_axis(index="at").reset_index(), hands, step)
    drawing.supylabel("sessions, mean", color=MUTED)
    drawing.supxlabel(_LOAD_SECONDS, color=MUTED)
    return render(
        "waits-over-time",
        drawing,
        alt=f"Sessions of the load by wait event over {amount(end)} seconds, by level. "
        + waits_in_words(means.groupby("level").mean().reindex(list(levels))),
        caption="Stacked in the order of the key from the bottom up"
        + (f", in spans of {step:g} s. " if step > 1 else ", second by second. ")
        + WAITS_CAPTION,
    )


@styled
def latency_over_time(latencies: Mapping[Trial, Latency], levels: Sequence[str]) -> Figure:
    """How many transactions took how long, second by second, all trials of a level together.

    ``latencies`` by level and block, in windows of one second.
    """
    counts = {
        level: [each.counts for (of, _), each in latencies.items() if of == level and len(each.counts)]
        for level in levels
    }
    seconds = max((len(each) for all_of in counts.values() for each in all_of), default=1)
    # of each level by second since each trial's first and by bin
    totals = {
        level: np.sum([np.pad(each, ((0, seconds - len(each)), (0, 0))) for each in all_of], axis=0)
        for level, all_of in counts.items()
        if all_of
    }
    by_bin = np.sum([np.zeros(len(EDGES_US)), *(total.sum(axis=0) for total in totals.values())], axis=0)
    instant = 100 * by_bin[0] / max(by_bin.sum(), 1)
    used = np.flatnonzero(by_bin[1:]) + 1  # a log scale has no place for what is logged as 0
    first, last = (int(used[0]), int(used[-1])) if len(used) else (1, 2)
    edges_ms = np.array([*EDGES_US, 10 * EDGES_US[-1]])[first : last + 2] / 1000
    step = max(math.ceil(seconds / 48), 1)
    columns = columns_for(len(levels))
    drawing = canvas(30 + 150 * -(-len(levels) // columns))
    notes = [
        f"{len(counts[level])} trial{'s' * (len(counts[level]) != 1)}" if counts[level] else "no log was kept"
        for level in levels
    ]
    titles = list(zip(levels, notes, strict=True))
    for level, axes in zip(levels, panels(drawing, titles, columns, sharex=True, sharey=True), strict=True):
        log_axis(axes, "y", edges_ms[0], edges_ms[-1], 5)
        axes.set_xlim(0, seconds)
        if level in totals:
            spans = np.add.reduceat(totals[level], np.arange(0, seconds, step), axis=0)
            shares = spans / np.maximum(spans.sum(axis=1, keepdims=True), 1)
            x = np.minimum(np.arange(0, seconds + step, step), seconds)
            heat(axes, x, edges_ms, shares[:, first : last + 1], _RAREST)
    drawing.supylabel("latency, ms (log scale)", color=MUTED)
    drawing.supxlabel(_LOAD_SECONDS, color=MUTED)
    results = "; ".join(
        f"{level}: most transactions of a second took {_usual(total)}" for level, total in totals.items()
    )
    return render(
        "latency-over-time",
        drawing,
        alt=f"Latencies over {seconds} seconds, by level, on a log scale. {results or 'No log was kept'}.",
        caption="The stronger the colour, the larger the share of the transactions that ended "
        + (f"in those {step} seconds" if step > 1 else "in that second")
        + " and took so long; shades are on a log scale, so that single slow transactions show too."
        + (f" Not shown: {instant:.2g} % that pgbench logged as less than 10 µs." if instant else ""),
    )


def _usual(counts: Any) -> str:
    """The bin of the median of all transactions, in words."""
    total = counts.sum(axis=0)
    place = int(np.searchsorted(np.cumsum(total), total.sum() / 2))
    return f"about {amount(float(EDGES_US[place]) / 1000)} ms"
