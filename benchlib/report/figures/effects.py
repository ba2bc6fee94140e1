"""Effects against the baseline: the forest plot, and each parameter's share of a combined change."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes

from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import (
    DAGGER,
    Row,
    against_words,
    amount,
    given_up,
    interval,
    known,
    reference_words,
    rows_of,
    signed,
    spoken,
    wrapped,
)
from benchlib.report.figures.scale import Scale, Strip, scale_for
from benchlib.report.figures.style import INK, LIGHT, MARKS, MUTED, PAPER, mark_of, verdict_word
from benchlib.report.figures.tables import Quiet
from benchlib.stats import Analysis

_NONE: Mapping[str, str] = MappingProxyType({})
_AXIS = 34.0  # points below the last row: tick labels and the axis title


def forest(analysis: Analysis, *, durability: Mapping[str, str] = _NONE, name: str = "forest") -> Figure:
    """Percentage change of every level against the baseline, with its interval and verdict.

    `durability` says, for each level that gives it up, what a crash may lose; those get a dagger.
    """
    rows = {level: row for level, row in rows_of(analysis).items() if level in analysis.against}
    words = analysis.metric.title
    margin = 100 * analysis.margin
    lost = {level: text for level, text in durability.items() if level in rows}
    scale = scale_for([*_ends(rows.values()), -margin * 1.2, margin * 1.2])

    def draw(canvas: Canvas) -> None:
        if not rows:
            canvas.height(40)
            canvas.note(0, 20, f"Nothing to compare with {analysis.baseline}.")
            return
        names = [_names(canvas, level, analysis, lost) for level in rows]
        results = [_result(row) for row in rows.values()]
        first, second, third = (
            max(canvas.wide_as(result[i], fontweight=weight) for result in results)
            for i, weight in enumerate(("normal", "normal", "bold"))
        )
        taken = first + second + third + 16
        rowed = _Rows(canvas, names, right=0 if canvas.narrow else taken + 14, extra=int(canvas.narrow))
        axes = rowed.axes(scale, margin)
        x = 0 if canvas.narrow else canvas.width - taken
        for number, (level, row) in enumerate(rows.items()):
            y = rowed.marks[number]
            _interval(axes, scale, row, y, muted=level in analysis.controls)
            if canvas.narrow:
                y = rowed.tops[number] + (len(names[number]) + 0.5) * rowed.line
            change, bounds, verdict = results[number]
            canvas.text(x + first, y, change, ha="right")
            canvas.note(x + first + 8 + second, y, bounds, ha="right")
            colour = MARKS[verdict_word(verdict)].colour if verdict_word(verdict) else MUTED
            canvas.text(x + first + second + 16, y, verdict, color=colour, fontweight="bold")
        rowed.title(f"change of {words}", reference_words(analysis), scale)

    said = "; ".join(
        f"{spoken(level, row)} {against_words(analysis, level)}".rstrip() for level, row in rows.items()
    )
    return render(
        name,
        draw,
        alt=f"Forest plot of the change of {words} against {reference_words(analysis)}: "
        f"{said or 'nothing to compare'}."
        + "".join(f" Gives up durability: {text}." for text in given_up(lost)),
        caption=_forest_caption(analysis, words, lost),
    )


def _forest_caption(analysis: Analysis, words: str, lost: Mapping[str, str]) -> str:
    mean = amount(rows_of(analysis)[analysis.baseline]["mean"])
    base = f" (mean {mean} {analysis.metric.unit})".replace(" )", ")") if analysis.one_reference else ""
    text = (
        f"Change of {words} against {reference_words(analysis)}{base} over {analysis.blocks} blocks; "
        f"bars are {100 * (1 - analysis.alpha):.3g} % intervals, adjusted for the number of levels. "
        f"Shaded: ±{100 * analysis.margin:g} %, the margin within which a level counts as equivalent "
        "(judged by a narrower, 90 % interval)."
    )
    if analysis.controls:
        arms = " and ".join(analysis.controls)
        text += (
            f" The A/A control ({arms}) is the baseline once more: its change is noise, and the other levels "
            "are compared with the mean of both."
        )
    if lost:
        text += f" {DAGGER} gives up durability: " + "; ".join(given_up(lost)) + "."
    return text


def shares(
    analysis: Analysis, *, full: str | None = None, only: str = "only ", without: str = "without "
) -> Figure:
    """What each parameter gives alone (levels `only X`) and what is left without it (`without X`).

    `full` is the level with all of them; it is drawn as a line.
    """
    rows = rows_of(analysis)
    alone = {level.removeprefix(only): row for level, row in rows.items() if level.startswith(only)}
    left = {level.removeprefix(without): row for level, row in rows.items() if level.startswith(without)}
    # The largest first; one that was only ever taken away is placed by what went with it.
    parameters = sorted(
        {**alone, **left}, key=lambda p: _change(left, p) if p not in alone else -_change(alone, p)
    )
    total = _change(rows, full or "", float("nan"))
    words = analysis.metric.title
    scale = scale_for([total, *_ends([*alone.values(), *left.values()])])

    def draw(canvas: Canvas) -> None:
        if not parameters:
            canvas.height(40)
            canvas.note(0, 20, "No levels that change one parameter.")
            return
        room = canvas.width if canvas.narrow else 0.34 * canvas.width
        lines = [wrapped(p, canvas.chars(room), 2) for p in parameters]
        rowed = _Rows(canvas, lines, right=0 if canvas.narrow else 58, extra=0, mark=26, head=34)
        axes = rowed.axes(scale)
        if known(total):
            for top, bottom in rowed.strips:
                axes.vlines(
                    scale(total), top, bottom, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1.5
                )
            x = rowed.left + rowed.width * axes.transLimits.transform((scale(total), 0))[0]
            text = f"{full} {signed(total)}"
            half = canvas.wide_as(text) / 2
            canvas.text(min(max(x, half), canvas.width - half), 26, text, ha="center")
        for parameter, y in zip(parameters, rowed.marks, strict=True):
            for found, offset, mark, hue in ((alone, -5, "o", "blue"), (left, 5, "D", "orange")):
                if parameter in found:
                    _share(axes, scale, found[parameter], y + offset, mark, LIGHT[hue])
        key = [("only this one changed", "●", "blue"), ("all but this one", "◇", "orange")]
        x = 0.0 if canvas.narrow else rowed.left
        for text, sign, hue in (k for k, found in zip(key, (alone, left), strict=True) if found):
            canvas.text(x, 9, f"{sign} {text}", color=LIGHT[hue])
            x += canvas.wide_as(text) + (20 if canvas.narrow else 30)
        rowed.title(f"change of {words}", analysis.baseline, scale)
        if not canvas.narrow:
            canvas.note(canvas.width, 26, "alone", ha="right")
            for parameter, y in zip(parameters, rowed.marks, strict=True):
                change = _change(alone, parameter, float("nan"))
                canvas.text(canvas.width, y, signed(change) if known(change) else "–", ha="right")

    said = "; ".join(
        spoken(prefix + parameter, found[parameter])
        for parameter in parameters
        for prefix, found in ((only, alone), (without, left))
        if parameter in found
    )
    return render(
        "shares",
        draw,
        alt=f"Each parameter's share of the change of {words} against {analysis.baseline}"
        + (f", where {full} reaches {signed(total, unit=' %')}" if known(total) else "")
        + f": {said or 'no such levels'}.",
        caption=f"Filled: the baseline {analysis.baseline} with one parameter changed. Hollow: "
        f"{full or 'all changes'} with one parameter put back; the further left of the dashed line, "
        f"the more that parameter matters. Bars are {100 * (1 - analysis.alpha):.3g} % intervals.",
    )


def _change(rows: Mapping[str, Row], level: str, default: float = 0.0) -> float:
    value: Any = rows[level]["percent_change"] if level in rows else None
    return float(value) if known(value) else default


def _ends(rows: Iterable[Row]) -> list[float]:
    return [row[c] for row in rows for c in ("percent_change", "ci_low", "ci_high") if known(row[c])]


def _share(axes: Axes, scale: Scale, row: Row, y: float, mark: str, colour: str) -> None:
    if known(row["ci_low"], row["ci_high"]):
        axes.plot(
            [scale(row["ci_low"]), scale(row["ci_high"])], [y, y], color=colour, linewidth=1.6, zorder=2
        )
    if known(row["percent_change"]):
        face = colour if mark == "o" else PAPER
        axes.plot(
            scale(row["percent_change"]), y, mark, color=colour, markerfacecolor=face, markersize=5, zorder=3
        )


def _names(canvas: Canvas, level: str, analysis: Analysis, lost: Mapping[str, str]) -> list[str]:
    text = (
        level + (DAGGER if level in lost else "") + (" (A/A control)" if level in analysis.controls else "")
    )
    room = canvas.chars(canvas.width if canvas.narrow else 0.29 * canvas.width)
    against = against_words(analysis, level)
    return [*wrapped(text, room), *(wrapped(against, room) if against else [])]


def _interval(axes: Axes, scale: Scale, row: Row, y: float, *, muted: bool) -> None:
    mark = mark_of(row["verdict"])
    colour = MUTED if muted and verdict_word(row["verdict"]) != "invalid" else mark.colour
    if known(row["ci_low"], row["ci_high"]):
        ends = [scale(row["ci_low"]), scale(row["ci_high"])]
        axes.plot(ends, [y, y], color=colour, linewidth=1.4 if muted else 2.2, zorder=2)
    if known(row["percent_change"]):
        face = colour if mark.filled else PAPER
        size = 5 if muted else 7
        axes.plot(
            scale(row["percent_change"]),
            y,
            mark.marker,
            color=colour,
            markerfacecolor=face,
            markersize=size,
            zorder=3,
        )


def _result(row: Row) -> tuple[str, str, str]:
    """`+38.2 %`, `[30.1, 46.8]`, `faster`; words where a number is missing."""
    if not known(row["percent_change"]):
        return "–", "not measured", ""
    ends = known(row["ci_low"], row["ci_high"])
    bounds = interval(row["ci_low"], row["ci_high"]) if ends else "no interval"
    return signed(row["percent_change"]), bounds, row["verdict"] if isinstance(row["verdict"], str) else ""


class _Rows:
    """Rows of names and marks: side by side on a wide canvas, names above marks on a narrow one."""

    def __init__(
        self,
        canvas: Canvas,
        names: Sequence[Sequence[str]],
        *,
        right: float,
        extra: int,
        mark: float = 18,
        head: float = 6,
    ) -> None:
        self.canvas, self.line, self.mark = canvas, 1.35 * canvas.font, mark
        self.left = 6.0
        if not canvas.narrow:
            self.left = 8 + max((canvas.wide_as(line) for lines in names for line in lines), default=0)
        self.width = canvas.width - self.left - (right or 6)
        self.tops, self.marks, top = [], [], head
        for lines in names:
            words = (len(lines) + extra) * self.line
            height = words + mark + 9 if canvas.narrow else max(words + 6, mark + 2)
            self.tops.append(top)
            self.marks.append(top + words + 0.5 * mark if canvas.narrow else top + height / 2)
            top += height
        self.top, self.bottom = head, top
        canvas.height(top + _AXIS)
        for lines, start, middle in zip(names, self.tops, self.marks, strict=True):
            first = start + self.line / 2 if canvas.narrow else middle - (len(lines) - 1) * self.line / 2
            for number, text in enumerate(lines):
                put = canvas.note if isinstance(text, Quiet) else canvas.text
                put(0, first + number * self.line, text)

    @property
    def strips(self) -> list[Strip]:
        """Where lines may run: everywhere on a wide canvas, around the marks on a narrow one."""
        if not self.canvas.narrow:
            return [(self.top, self.bottom)]
        return [(y - 0.5 * self.mark, y + 0.5 * self.mark) for y in self.marks]

    def axes(self, scale: Scale, band: float = 0) -> Axes:
        """Axes whose vertical unit is a point of the canvas, so that `marks` are positions on it."""
        axes = self.canvas.axes(self.left, self.top, self.width, self.bottom - self.top)
        axes.set_ylim(self.bottom, self.top)
        scale.dress(axes, self.width, self.strips, band)
        return axes

    def title(self, text: str, baseline: str, scale: Scale) -> None:
        """The axis's title, kept inside the canvas."""
        scale.title(self.canvas, text, baseline, self.left + self.width / 2, self.bottom + _AXIS - 8)
