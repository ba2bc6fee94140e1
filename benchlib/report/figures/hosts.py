"""Who ran what: the hosts of a study, and how far they were from one another."""

from typing import Any

import pandas as pd
from matplotlib.patches import FancyBboxPatch

from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.frames import finding, span, wrapped
from benchlib.report.figures.layout import LINE, WIDTH, canvas, styled, tell
from benchlib.report.figures.style import BAND, FEW, INK, MUTED

_COLUMNS = {"load": "made the load", "server": "served", "follower": "followed"}
_WIDEST, _BETWEEN, _PAD, _CHARACTER = 215.0, 44.0, 8.0, 6.2  # points
_Point = tuple[float, float]


@styled
def who_ran_what(rows: pd.DataFrame) -> Figure:
    """A box for each host, in columns of those that made the load, served and followed; lines between those that talked.

    `rows`: `server` (the host that served), `host`, `role` (load, server, follower), `runs` (in words), `level`, and
    `round_trip_ms` to the server, null of the server itself: a row for each thing that ran in a trial. Of a column the first
    :data:`benchlib.report.figures.style.FEW` hosts are drawn.
    """
    columns = [role for role in _COLUMNS if role in set(rows["role"])]
    wide = min((WIDTH - 2 - _BETWEEN * (len(columns) - 1)) / len(columns), _WIDEST)
    stacks = {role: _boxes(rows[rows["role"] == role]) for role in columns}
    sides, placed = dict[tuple[str, str], tuple[_Point, _Point]](), []
    high = 0.0
    for place, (role, boxes) in enumerate(stacks.items()):
        left, top = 1 + place * (WIDTH - 2 - wide) / max(len(columns) - 1, 1), 1.0
        for host, lines in boxes:
            shown = [part for line in lines for part in wrapped(line, int((wide - 2 * _PAD) / _CHARACTER))]
            tall = len(shown) * LINE + 2 * _PAD
            placed.append((role, host, lines, shown, left, top, tall))
            top += tall + _PAD
        high = max(high, top - _PAD + 1)
    drawing = canvas(high)
    axes = drawing.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(high, 0))
    axes.set_axis_off()
    for role, host, lines, shown, left, top, tall in placed:
        edge = INK if role == "server" else MUTED
        box = FancyBboxPatch((left, top), wide, tall, "round,pad=0,rounding_size=4", fc=BAND, ec=edge)
        tell(axes.add_patch(box), f"{host}: {', '.join(lines[1:])}" if lines[1:] else lines[0])
        for number, text in enumerate(shown):
            style: dict[str, Any] = {"color": MUTED} if number else {"fontweight": "bold"}
            axes.text(left + _PAD, top + _PAD + (number + 0.5) * LINE, text, va="center", **style)
        sides[role, host] = (left, top + tall / 2), (left + wide, top + tall / 2)
    for server, host, role in rows[["server", "host", "role"]].drop_duplicates().to_numpy():
        if role != "server" and {("server", server), (role, host)} <= sides.keys():
            own, others = sides[role, host], sides["server", server]
            ends = (own[1], others[0]) if role == "load" else (own[0], others[1])
            axes.plot(*zip(*ends, strict=True), color=MUTED, linewidth=1.2)
    counts = rows.groupby("role")["host"].nunique()
    did = ", ".join(f"{counts[role]} {_COLUMNS[role]}" for role in columns)
    away = f"; round trips of {_way(rows['round_trip_ms'])}" * bool(rows["round_trip_ms"].notna().any())
    title = finding(f"Of {rows['host'].nunique()} hosts {did}", away)
    caption = "Lines: who talked to whom. Times: round trips to the server, the fastest of twenty."
    told = rows.assign(level=rows["level"].mask(rows["role"] == "server", "all"))
    ways = told.groupby(["host", "runs", "level"], sort=False)["round_trip_ms"]
    numbers = ways.agg(round_trip_least_ms="min", round_trip_most_ms="max").reset_index()
    return render("hosts", drawing, title, caption, numbers)


def _boxes(rows: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """The hosts of a column, each with what its box says: its name, what it ran, and how far it was, at each level where that differs."""
    boxes = list[tuple[str, list[str]]]()
    for host, own in rows.groupby("host", sort=False):
        ways = own.dropna(subset="round_trip_ms").groupby("level", sort=False)["round_trip_ms"].agg(_way)
        told = [f"{level}: {way}" for level, way in ways.items()]
        if ways.nunique() < 2 or len(told) > FEW:
            told = [f"{_way(own['round_trip_ms'])} away"] * bool(told)
        boxes.append((str(host), [str(host), ", ".join(own["runs"].unique()), *told]))
    if len(boxes) > FEW:
        boxes[FEW:] = [("", [f"and {len(boxes) - FEW} more"])]
    return boxes


def _way(round_trips_ms: "pd.Series[float]") -> str:
    return span(round_trips_ms, "{:.2g}".format) + "\u00a0ms"
