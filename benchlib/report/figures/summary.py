"""Many studies on one forest plot: each factor's leading level, the largest gain first."""

from typing import Any

import pandas as pd

from benchlib.report.figures.effects import _ends, _interval, _result, _Rows
from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import DAGGER, Row, given_up, known, signed, spoken, wrapped
from benchlib.report.figures.scale import scale_for
from benchlib.report.figures.style import MARKS, MUTED, verdict_word
from benchlib.report.figures.tables import Quiet


def summary_forest(rows: pd.DataFrame, *, name: str = "summary") -> Figure:
    """The gain of every study's leading level, with its interval and verdict; better is to the right.

    `rows`: what `summary.summary_rows` returned, which says what the columns are.
    """
    studies: list[Row] = [*rows.to_dict("records")]
    gains = [_gain(row) for row in studies]
    margins = {100 * row["margin"] for row in studies}
    band = margins.pop() if len(margins) == 1 else 0.0
    scale = scale_for([*_ends(gains), -1.2 * band, 1.2 * band])

    def draw(canvas: Canvas) -> None:
        if not studies:
            canvas.height(40)
            canvas.note(0, 20, "No study has a verdict yet.")
            return
        names = [_names(canvas, row) for row in studies]
        results = [_result(row) for row in gains]
        first = max(canvas.wide_as(change) for change, _, _ in results)
        taken = first + 8 + max(_wide(canvas, result) for result in results)
        rowed = _Rows(canvas, names, right=0 if canvas.narrow else taken + 14, extra=int(canvas.narrow))
        axes = rowed.axes(scale, band)
        x = first if canvas.narrow else canvas.width - taken + first
        for number, (row, gain, result) in enumerate(zip(studies, gains, results, strict=True)):
            y = rowed.marks[number]
            _interval(axes, scale, gain, y, muted=row["further"])
            change, bounds, verdict = result
            colour = MARKS[verdict_word(verdict)].colour if verdict_word(verdict) else MUTED
            if canvas.narrow:  # all on the line above the mark
                y = rowed.tops[number] + (len(names[number]) + 0.5) * rowed.line
                canvas.note(x + 8 + canvas.wide_as(verdict, fontweight="bold") + 8, y, bounds)
            else:
                y -= rowed.line / 2
                canvas.note(x + 8, y + rowed.line, bounds)
            canvas.text(x, y, change, ha="right")
            canvas.text(x + 8, y, verdict, color=colour, fontweight="bold")
        title = f"← worse · gain, %{' (log scale)' if scale.log else ''} · better →"
        half = canvas.wide_as(title) / 2
        middle = min(max(rowed.left + rowed.width / 2, half), canvas.width - half)
        canvas.note(middle, rowed.bottom + 26, title, ha="center")

    said = "; ".join(
        spoken(f"{_title(row)}, {_compared(row)}", gain) for row, gain in zip(studies, gains, strict=True)
    )
    lost = {row["study"]: row["loss"] for row in studies if row["loss"]}
    return render(
        name,
        draw,
        alt=f"Forest plot of the gain of each study's leading level: {said or 'no study has a verdict'}."
        + "".join(f" Gives up durability: {text}." for text in given_up(lost)),
        caption=_caption(rows, band),
    )


def _wide(canvas: Canvas, result: tuple[str, str, str]) -> float:
    """What the verdict and the bounds take, one below the other."""
    return max(canvas.wide_as(result[2], fontweight="bold"), canvas.wide_as(result[1]))


def _gain(row: Row) -> Row:
    """The row with its gain for its change, as those who draw changes want it."""
    return {**row, "percent_change": row["gain"], "ci_low": row["gain_low"], "ci_high": row["gain_high"]}


def _title(row: Row) -> str:
    """`1. Configuration†`; a further study of a factor goes by its own name."""
    rank = f"{row['rank']:.0f}. " if known(row["rank"]) else ""
    return f"{rank}{row['study'] if row['further'] else row['title']}{DAGGER if row['loss'] else ''}"


def _compared(row: Row) -> str:
    """`tuned against defaults`, and what is judged by where it is not throughput."""
    words = f"{row['level']} against {row['against']}"
    if row["metric"] == "throughput":
        return words
    measured = f" {signed(row['percent_change'])}" if row["gain"] != row["percent_change"] else ""
    return f"{words}, {row['metric']}{measured}"


def _names(canvas: Canvas, row: Row) -> list[str]:
    host = f" (machine {row['host']})" if row["host"] else ""
    room = canvas.chars(canvas.width if canvas.narrow else 0.36 * canvas.width)
    return [*wrapped(_title(row) + host, room, 2), *map(Quiet, wrapped(_compared(row), room))]


def _caption(rows: pd.DataFrame, band: float) -> str:
    parts = ["Each factor's leading level, ranked by its gain over the level that it is compared with"]
    if (rows["gain"] != rows["percent_change"]).any():
        parts[0] += "; where less is better, half as much counts as +100 %, as twice the throughput does"
    parts.append("A verdict that is inconclusive or invalid has no rank and stands below")
    if rows["further"].any():
        parts.append("Grey marks: further studies of the factor above them")
    levels = sorted({round(100 * (1 - alpha), 1) for alpha in rows["alpha"]})
    if levels:
        widths: Any = f"{levels[0]:g} %" if len(levels) == 1 else f"{levels[0]:g} to {levels[-1]:g} %"
        parts.append(f"Bars are {widths} intervals, adjusted for the number of levels in a study")
    if band:
        parts.append(f"Shaded: ±{band:g} %, the margin within which a level counts as equivalent")
    if rows["host"].any():
        parts.append("Studies come from several machines, so compare ranks only within one")
    if rows["loss"].any():
        parts.append(f"{DAGGER} gives up durability for it, so it is a trade")
    return ". ".join(parts) + "."
