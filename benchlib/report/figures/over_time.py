"""Over time inside the trials: speed, latencies, devices, waits, the lag of replicas; and the waits of each level in all."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from benchlib.load.latency import EDGES_US, Latency
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, heat, medians, name_rows, row_places, stacked
from benchlib.report.figures.frames import NOTHING, amount, binned, percent_of_mean, plain
from benchlib.report.figures.layout import add_to_label, canvas, describe, log_axis, panels, styled
from benchlib.report.figures.style import BLUE, MUTED, ORANGE, PAPER, Look, looks

DEVICES = {
    "tps": ("Operational speed", "transactions/s"),
    "waiting": ("DBMS waits", "sessions that wait"),
    "busy": ("Processors", "% busy, of all"),
    "iops": ("I/O operations", "IOPS, reads and writes"),
    "mib_s": ("Transfer", "MiB/s, read and written"),
    "aqu_sz": ("Queue length", "aqu_sz, requests"),
    "r_await_ms": ("Time of a read", "r_await, ms"),
    "w_await_ms": ("Time of a write", "w_await, ms"),
}
"""The figures of a tuning ladder: their titles, and what is on the axis."""

STAGES = {"write": "written", "flush": "flushed", "replay": "replayed"}
"""How far a replica can have come with a piece of WAL: the server's word, and a reader's."""

Trial = tuple[str, int]

_CPU, _IDLE = "CPU", "Client: ClientRead"
_EVENTS = {_CPU: "on the CPU", _IDLE: "waiting for the load tool, or for a processor"}
_HUES = ("blue", "orange", "purple", "ochre", "violet")
_SAMPLES = (
    "Each sample counts the load's sessions and their parallel workers by what they wait for; on the CPU are those that "
    "wait for nothing. One that was sent a statement and has no processor yet counts as waiting for the load tool."
)
_BY = ["level", "block", "second"]
_CLOCK = "seconds since the load began"
_SPANS = 60
_POINTS = 6000  # of all thin lines together; more only makes the page heavy
_STRIP = 0.16  # of a panel's height: for checkpoints
_RAREST = 1e-4  # a share of transactions below this has the lightest shade
_LINEAR = 0.1  # ms or KiB below which the scale of a lag is linear: down to 0, which it shows


def _counted(trials: int, none: str) -> str:
    return f"{trials} trial{'s' * (trials != 1)}" if trials else none


@styled
def timeline(
    progress: pd.DataFrame,
    *,
    levels: Sequence[str],
    checkpoints: pd.DataFrame | None = None,
    relative: bool = False,
) -> Figure:
    """Throughput inside the trials. `progress`: columns `level`, `block`, `elapsed_s`, and `tps`.

    `levels` sets their order. `checkpoints`: columns `level`, `block`, `start_s` and `end_s` (null for one that had
    begun before, or had not ended); None where nobody would know. With `relative` each level is drawn in percent of
    its own mean: those of several workloads have no scale in common.
    """
    progress = progress[["level", "block", "elapsed_s", "tps"]].dropna(subset="tps")
    trials = max(progress.groupby(["level", "block"]).ngroups, 1)
    end = float(progress["elapsed_s"].max()) if len(progress) else 1.0
    thin, step = binned(progress, "elapsed_s", max(min(_POINTS // trials, 120), 12))
    typical = thin.groupby("level")["tps"].median()
    notes = [f"median {amount(typical[name])} tps" if name in typical else "no readings" for name in levels]
    if relative:
        thin["tps"] = percent_of_mean(thin, "tps")
    marked = pd.DataFrame(columns=["level", "block"]) if checkpoints is None else checkpoints
    marked = marked[marked["level"].isin(list(levels))]
    speed = "throughput, % of the level's mean" if relative else "throughput, tps"
    drawing, grid = panels(list(zip(levels, notes, strict=True)), 135, "seconds since the trial began", speed)
    for name, axes in zip(levels, grid, strict=True):
        of_level = thin[thin["level"] == name]
        trials_side_by_side = of_level.pivot(index="elapsed_s", columns="block", values="tps")
        dot = "o" if thin["elapsed_s"].nunique() == 1 else None
        axes.plot(trials_side_by_side, color=BLUE, linewidth=0.7, alpha=0.4, marker=dot)
        bold = of_level.groupby("elapsed_s")["tps"].median()
        axes.plot(bold, color=BLUE, linewidth=2)
        axes.set_xlim(0, 1.01 * end)
        describe(axes, pd.DataFrame({"series": "", "value": bold}), [""])
        blocks = [spans for _, spans in marked[marked["level"] == name].groupby("block")]
        for row, spans in enumerate(blocks):
            start, stop = spans["start_s"].fillna(0.0).clip(0), spans["end_s"].fillna(end).clip(upper=end)
            bars = list(zip(start, (stop - start).clip(end / 200), strict=True))
            height = _STRIP / len(blocks)
            place = (1 - (row + 0.9) * height, 0.8 * height)
            axes.broken_barh(bars, place, transform=axes.get_xaxis_transform(), color=ORANGE, linewidth=0)
        if blocks:
            add_to_label(axes, f"{sum(map(len, blocks))} checkpoints")
    high = float(thin["tps"].max()) if len(thin) else 1.0
    axes.set_ylim(0, 1.05 * high / (1 - _STRIP * bool(len(marked))))
    caption = (
        f"Thin: one trial each{f', means of {step:g} s' if step > 1 else ''}; bold: the median over blocks."
    )
    if len(marked):
        caption += " Bars at the top, a row per trial: while a checkpoint was written."
    elif checkpoints is not None:
        caption += " No checkpoint was written meanwhile."
    return render("timeline-tps", drawing, "throughput inside the trials, by level", caption)


@styled
def latency_over_time(latencies: Mapping[Trial, Latency], levels: Sequence[str]) -> Figure:
    """How many transactions took how long, second by second, all trials of a level together.

    ``latencies`` by level and block, in windows of one second.
    """
    counts = {
        level: [each.counts for (of, _), each in latencies.items() if of == level and len(each.counts)]
        for level in levels
    }
    seconds = max((len(each) for trials in counts.values() for each in trials), default=1)
    # of each level by second since each trial's first and by bin
    totals = {
        level: np.sum([np.pad(each, ((0, seconds - len(each)), (0, 0))) for each in trials], axis=0)
        for level, trials in counts.items()
        if trials
    }
    by_bin = np.sum([np.zeros(len(EDGES_US)), *(total.sum(axis=0) for total in totals.values())], axis=0)
    instant = 100 * by_bin[0] / max(by_bin.sum(), 1)
    used = np.flatnonzero(by_bin[1:]) + 1  # a log scale has no place for what is logged as 0
    first, last = (used[0], used[-1]) if len(used) else (1, 2)
    edges_ms = np.array([*EDGES_US, 10 * EDGES_US[-1]])[first : last + 2] / 1000
    step = max(math.ceil(seconds / 48), 1)
    titles = [(level, _counted(len(trials), "no log was kept")) for level, trials in counts.items()]
    drawing, grid = panels(titles, 150, _CLOCK, "latency, ms (log scale)")
    for level, axes in zip(levels, grid, strict=True):
        log_axis(axes, "y", edges_ms[0], edges_ms[-1], 5)
        axes.set_xlim(0, seconds)
        if level in totals:
            spans = np.add.reduceat(totals[level], np.arange(0, seconds, step), axis=0)
            shares = spans / np.maximum(spans.sum(axis=1, keepdims=True), 1)
            x = np.minimum(np.arange(0, seconds + step, step), seconds)
            heat(axes, x, edges_ms, shares[:, first : last + 1], _RAREST)
    return render(
        "latency-over-time",
        drawing,
        f"latencies over {seconds} seconds, by level",
        "The stronger the colour, the larger the share of the transactions that ended "
        + (f"in those {step} seconds" if step > 1 else "in that second")
        + " and took so long; shades are on a log scale, so that single slow transactions show too."
        + (f" Not shown: {instant:.2g} % that pgbench logged as less than 10 µs." if instant else ""),
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
    """A panel for each of :data:`DEVICES`, in each the levels: the median over trials, and their middle half.

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
    for name in DEVICES:
        if spans[name].isna().all():
            # nothing that was read or written took a time
            way = {"r_await_ms": "read", "w_await_ms": "written"}.get(name)
            idle = way and seconds[f"{way[0]}_iops"].eq(0).any()
            title, unit = titles[name]
            titles[name] = (title, f"{unit}: {f'nothing was {way}' if idle else 'not recorded'}")
    hands = looks(levels)
    drawing, grid = panels([*titles.values()], 122, _CLOCK, columns=2, keyed=hands, sharey=False)
    for name, axes in zip(DEVICES, grid, strict=True):
        medians(axes, spans.rename(columns={"level": "series", name: "value"}), hands, 0.5)
        if spans[name].isna().all():
            axes.set_yticks([])
    return render(
        "devices",
        drawing,
        "speed, waits and devices over time, by level",
        "Lines: the median over the trials"
        + (f", in spans of {step:g} s" if step > 1 else "")
        + "; bands: the middle half of them. The devices are those that data and WAL lie on, together, by iostat's "
        "definitions. Sessions that wait are those that are neither on the CPU nor waiting for the load tool."
        + (f" {note}" if note else ""),
    )


def _device_frame(progress: pd.DataFrame, seconds: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    """All figures by level, block and second; null where one was not recorded."""
    events = [column for column in waits if column not in (*_BY, _CPU, _IDLE)]
    speed = progress.assign(second=np.ceil(progress["elapsed_s"] - 0.5))[[*_BY, "tps"]]
    device = seconds.assign(
        busy=seconds["cpu_user_percent"] + seconds["cpu_system_percent"],
        iops=seconds["r_iops"] + seconds["w_iops"],
        mib_s=seconds["r_mib_s"] + seconds["w_mib_s"],
    )
    asleep = waits.assign(waiting=waits[events].sum(axis=1))
    frame = speed.groupby(_BY, as_index=False).mean()
    for other in (asleep[[*_BY, "waiting"]], device[[*_BY, *list(DEVICES)[2:]]]):
        frame = frame.merge(other, "outer", on=_BY)
    return frame.astype(dict.fromkeys(DEVICES, float))


@styled
def lag_over_time(readings: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """Two panels per level, time and WAL, on scales common to all levels: the median, and the whole range.

    ``readings``: ``level, block, replica, second`` (since the load began), and for each of :data:`STAGES` its
    ``…_lag_s`` and ``…_lag_bytes``, null where the server knows none; a row per reading and replica.
    """
    # a replica of a trial is a series of its own
    wide = readings.assign(block=readings["block"].astype(str) + " " + readings["replica"])
    panels_of = {(level, unit): pd.DataFrame() for level in levels for unit in ("ms", "KiB")}
    titles, step = [], 1.0
    for level, unit in panels_of:
        column, factor, what = ("s", 1000, "time") if unit == "ms" else ("bytes", 1 / 1024, "WAL")
        stages = {f"{stage}_lag_{column}": word for stage, word in STAGES.items()}
        lags = wide.loc[wide["level"] == level, [*_BY, *stages]].rename(columns=stages)
        lags[[*STAGES.values()]] *= factor
        spans, step = binned(lags, "second", _SPANS)
        panels_of[level, unit] = spans.melt("second", [*STAGES.values()], "series", "value")
        replayed = lags["replayed"].dropna()
        note = (
            f"{amount(replayed.median())}, at most {amount(replayed.max())}" if len(replayed) else "not known"
        )
        if 0 < len(replayed) < len(lags):
            note += f"; {len(lags) - len(replayed)} of {len(lags)} not known"
        titles.append((level, f"{what}, {unit}: {note}"))
    hands = {STAGES[stage]: look for stage, look in looks(list(STAGES)).items()}
    drawing, grid = panels(titles, 115, _CLOCK, columns=2, keyed=hands, sharey=False)
    for ((_, unit), frame), axes in zip(panels_of.items(), grid, strict=True):
        medians(axes, frame, hands, 1.0)
        largest = [other["value"].max() for (_, of), other in panels_of.items() if of == unit]
        highest = max(1.3 * np.nanmax([0.0, *largest]), 10 * _LINEAR)
        axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
        decades = np.arange(round(np.log10(_LINEAR)), np.log10(highest) + 1e-9)
        axes.set_yticks([0, *10.0 ** decades[:: len(decades) // 5 + 1]])
        axes.yaxis.set_major_formatter(plain)
        axes.minorticks_off()
        axes.set_ylim(-0.2 * _LINEAR, highest)
    return render(
        "replica-lag",
        drawing,
        "lag of the replicas over time, by level",
        "Lines: the median over blocks and replicas"
        + (f", in spans of {step:g} s" if step > 1 else "")
        + "; bands: from the least to the most. Above each panel: the median and the largest reading of what was not "
        "yet replayed, and how many readings knew none. Log scales, linear below 0.1 ms and 0.1 KiB. The time is how long "
        "the latest confirmed WAL took to be written, flushed and replayed there; a server that is idle knows none, which "
        "is a gap and not 0; where a replica is away, its WAL is not known either.",
    )


@styled
def waits_by_level(waits: pd.DataFrame, levels: Sequence[str], full: Mapping[str, float] = NOTHING) -> Figure:
    """Mean sessions by wait event, a stacked bar per level.

    ``waits``: ``level, block, second`` and a column of mean sessions per wait event, such as ``IO: WALSync``. ``full``: the
    busy share of the processors for levels that used them up, whose sessions hardly waited for the load tool.
    """
    shown, hands = _colours_of(waits)
    trials = shown.groupby(["level", "block"]).mean().drop(columns="second")
    means = trials.groupby("level").mean().reindex(list(levels))
    sampled = means.notna().any(axis=1)
    notes = dict.fromkeys(levels, "") | {
        name: f"processors {100 * share:.0f} % busy" for name, share in full.items()
    }
    labels = [Label(level, notes[level] if sampled[level] else "not sampled") for level in levels]
    _, bottom = row_places(labels)
    drawing = canvas(bottom + 40, hands)
    axes = drawing.subplots()
    name_rows(axes, labels, list(range(len(levels))))
    stacked(axes, means.assign(at=range(len(levels))).fillna(0.0), hands)
    total = float(means.sum(axis=1).max())
    for row, values in enumerate(means.to_numpy()):
        for look, x, value in zip(hands.values(), values.cumsum() - values / 2, values, strict=True):
            if value > 0.07 * total:
                colour = MUTED if look.hue == "grid" else PAPER
                text = f"{value:,.1f}" if value >= 1 else f"{value:.2f}"
                axes.text(x, row, text, ha="center", va="center", color=colour)
    axes.set(ylim=(len(levels) - 0.5, -0.5), yticks=[], xlim=(0, total or 1), xlabel="sessions, mean")
    axes.grid(visible=False)
    axes.xaxis.set_major_formatter(plain)
    events = means.rename_axis("series").reset_index().melt("series", var_name="x")
    describe(axes, events, levels, str)
    return render(
        "waits",
        drawing,
        "mean sessions of the load by wait event",
        f"In the order of the key from left to right; means of the trials' means. {_SAMPLES}",
    )


@styled
def waits_over_time(waits: pd.DataFrame, levels: Sequence[str]) -> Figure:
    """The load's sessions by wait event over time, a panel per level, means of the trials.

    ``waits``: as for :func:`waits_by_level`.
    """
    shown, hands = _colours_of(waits)
    spans, step = binned(shown, "second", _SPANS)
    means = spans.drop(columns="block").groupby(["level", "second"]).mean()
    trials = spans.groupby("level")["block"].nunique().to_dict()
    titles = [(level, _counted(trials.get(level, 0), "not sampled")) for level in levels]
    drawing, grid = panels(titles, 135, _CLOCK, "sessions, mean", keyed=hands)
    for level, axes in zip(levels, grid, strict=True):
        axes.set(xlim=(0, spans["second"].max()), ylim=(0, 1.02 * float(means.sum(axis=1).max())))
        if level in trials:
            stacked(axes, means.loc[level].rename_axis(index="at").reset_index(), hands, step)
    return render(
        "waits-over-time",
        drawing,
        "sessions of the load by wait event over time, by level",
        f"Means of the trials, stacked in the order of the key from the bottom up, in spans of {step:g} s. {_SAMPLES}",
    )


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
