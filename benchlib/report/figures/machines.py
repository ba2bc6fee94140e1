"""What the devices did and how far replicas were behind, over time."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import medians
from benchlib.report.figures.frames import (
    amount,
    binned,
    percent_of_mean,
    plain,
)
from benchlib.report.figures.layout import panels, styled
from benchlib.report.figures.style import looks
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
"""The figures of a tuning ladder: their titles, and what is on the axis."""

STAGES = {"write": "written", "flush": "flushed", "replay": "replayed"}
"""How far a replica can have come with a piece of WAL: the server's word, and a reader's."""

_SPANS = 60
_CLOCK = "seconds since the load began"
_LINEAR = 0.1  # ms or KiB below which the scale of a lag is linear: down to 0, which it shows


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
    notes = [
        (title, f"{unit}: {empty[name]}" if name in empty else unit) for name, (title, unit) in titles.items()
    ]
    drawing, grid = panels(notes, 122, _CLOCK, columns=2, keyed=hands, sharey=False)
    for name, axes in zip(PANELS, grid, strict=True):
        medians(axes, spans.rename(columns={"level": "series", name: "value"}), hands, 0.5)
        if name in empty:
            axes.set_yticks([])
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
    drawing, grid = panels(titles, 115, _CLOCK, columns=2, keyed=hands, sharey=False)
    for (level, unit), axes in zip(pairs, grid, strict=True):
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
