"""Many factors at once: effects that stand out of the noise, how two factors meet, what a ladder adds up to."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.optimize import brentq
from scipy.stats import norm, t

from benchlib.plan.metrics import metric_or_guess, words
from benchlib.report.figures.effects import _result, _Rows
from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import Row, amount, axis_words, known, plain, spoken, spread, wrapped
from benchlib.report.figures.scale import Scale, scale_for
from benchlib.report.figures.style import BAND, INK, LIGHT, MUTED, PAPER, mark_of

_NONE: Mapping[str, tuple[Any, Any]] = MappingProxyType({})
_LINES = {-1: (LIGHT["orange"], "D--", PAPER), 1: (LIGHT["blue"], "o-", LIGHT["blue"])}
_LOG = Scale(0, 0, log=True)


def half_normal(effects: pd.DataFrame, *, metric: str = "tps", alpha: float = 0.05) -> Figure:
    """Half-normal plot (C. Daniel, 1959) of absolute effects; those that pass Holm's test are named.

    `effects`: what `stats.factorial.effects` returned for that `alpha`: `effect`; `percent, ci_low, ci_high`
    (percent); `p_value, p_holm`; `half_normal` (quantile). Sizes lie on an axis of logarithms, on which
    noise of the effects' own standard error follows a straight line.
    """
    table = effects.sort_values("half_normal", ascending=False)
    rows = _rows(table[["percent", "ci_low", "ci_high", "p_holm"]], metric, alpha)
    names, quantiles = table["effect"].tolist(), table["half_normal"].tolist()
    sizes = [abs(_LOG(row["percent_change"])) for row in rows]
    found = [number for number, row in enumerate(rows) if row["verdict"] != "inconclusive"]
    error = _standard_error(table, alpha)
    top = 1.08 * max(quantiles)
    end = 1.04 * max([*sizes, error * top if known(error) else 0.0]) or 0.01

    def draw(canvas: Canvas) -> None:
        line, left, head = 1.35 * canvas.font, 18.0, 34.0
        # Names stand beside the points where there is room, else below them with a number to find them by.
        changes = [_result(row)[0] for row in rows]
        numbers = max(canvas.wide_as(text, fontweight="bold") for text in changes) + 10
        most = canvas.width - 20 if canvas.narrow else 0.42 * canvas.width
        labels = {i: wrapped(names[i], canvas.chars(most - numbers)) for i in found}
        column = numbers + max(
            (canvas.wide_as(text) for lines in labels.values() for text in lines), default=0
        )
        gap = line if canvas.narrow else max(map(len, labels.values()), default=1) * line + 5
        width = canvas.width - left - (6 if not found else 24 if canvas.narrow else column + 16)
        tall = max(170.0, len(found) * gap)
        below = head + tall + 44
        canvas.height(below + canvas.narrow * sum(len(lines) * line + 3 for lines in labels.values()))
        axes = _quiet(canvas.axes(left, head, width, tall), (0, end), (0, top))
        axes.set_yticks(range(math.floor(top) + 1))
        high = 100 * math.expm1(end)
        ticks = [v for v in Scale(0, high, high > 250).ticks(width) if 0 <= _LOG(v) <= end * (1 - 9 / width)]
        axes.set_xticks([_LOG(v) for v in ticks], [plain(v) for v in ticks])
        canvas.note(0, 9, "half-normal quantile")
        canvas.note(left + width / 2, head + tall + 30, "size of the effect, %", ha="center")
        if known(error):
            axes.plot([0, error * top], [0, top], color=INK, linewidth=1, zorder=1.5)
            half = canvas.wide_as("noise alone") / 2
            x = min(max(left + width * error * top / end, half), canvas.width - half)
            canvas.text(x, head - 8, "noise alone", ha="center")
        for size, quantile, row in zip(sizes, quantiles, rows, strict=True):
            _point(axes, size, quantile, row)
        places = spread([tall * (1 - quantiles[i] / top) for i in found], gap, gap / 2, tall - gap / 2)
        for rank, ((i, lines), y) in enumerate(zip(labels.items(), places, strict=True), 1):
            leader = [sizes[i], end * (1 + 12 / width)], [quantiles[i], top * (1 - y / tall)]
            axes.plot(*leader, color=MUTED, linewidth=0.6, clip_on=False, zorder=1.4)
            x, y = left + width + 16, head + y
            if canvas.narrow:
                canvas.text(canvas.width, y, str(rank), ha="right")
                x, y = 20.0, below + len(lines) * line / 2
                canvas.text(0, y, str(rank))
                below += len(lines) * line + 3
            _lines(canvas, x, y, lines)
            colour = mark_of(rows[i]["verdict"]).colour
            canvas.text(canvas.width, y, changes[i], ha="right", color=colour, fontweight="bold")

    noise = f" Their standard error is {100 * math.expm1(error):.2g} %." if known(error) else ""
    return render(
        f"half-normal-{metric}",
        draw,
        alt=f"Half-normal plot of {len(rows)} effects on {metric_or_guess(metric).title}: "
        f"{'; '.join(map(spoken, names, rows))}.{noise}",
        caption="Each effect's size against the size that the one of its rank would have among as many draws of "
        f"noise. {'Noise alone follows the line' if noise else 'There is no error to draw a line from'}. Named, "
        f"▲ faster or ▼ slower: significant at {100 * alpha:g} % (Holm). ○: inconclusive. The axis counts a change to "
        "half as much as a doubling.",
    )


def interaction(
    means: pd.DataFrame | Sequence[pd.DataFrame],
    *,
    effects: pd.DataFrame | None = None,
    changes: Mapping[str, tuple[Any, Any]] = _NONE,
    metric: str = "tps",
    alpha: float = 0.05,
) -> Figure:
    """Means of a metric at low and high of two factors: of one pair of factors, or of several.

    `means`: what `stats.factorial.interaction_means` returned, columns of two factors (−1, +1) and `mean`
    (the metric's unit), with intervals where there are `ci_low, ci_high` (the same unit). Else they come
    from `effects` (as for `half_normal`), which also tell the interaction itself. `changes`: factor ->
    (low value, high value), to name the ends by.
    """
    measured = metric_or_guess(metric)
    pairs = [_Pair(m, effects, changes) for m in ([means] if isinstance(means, pd.DataFrame) else means)]
    logs = [v for pair in pairs for cell in pair.cells.values() for v in cell if known(v)] or [0.0]
    pad = 0.06 * (max(logs) - min(logs)) or 0.01
    low, high = min(logs) - pad, max(logs) + pad
    ticks = _round_values(math.exp(low), math.exp(high))

    def draw(canvas: Canvas) -> None:
        columns = 1 if canvas.narrow or len(pairs) == 1 else 2
        left, line, tall, room = 5.2 * canvas.font, 1.35 * canvas.font, 130.0, canvas.width / columns
        width = (0.66 if columns == 1 else 0.6) * room - left
        heads = [wrapped(pair.name, canvas.chars(room - left)) for pair in pairs]
        above = (max(map(len, heads)) + 1) * line + 10
        each = above + tall + 42
        canvas.height(line + 4 + each * math.ceil(len(pairs) / columns))
        canvas.note(0, line / 2, axis_words(measured))
        for number, (pair, head) in enumerate(zip(pairs, heads, strict=True)):
            x, y = number % columns * room + left, line + 6 + number // columns * each
            _lines(canvas, x, y + len(head) * line / 2, head, fontweight="bold")
            canvas.note(x, y + (len(head) + 0.5) * line, pair.effect)
            axes = _quiet(canvas.axes(x, y + above, width, tall), (-1.3, 1.3), (low, high))
            axes.set_yticks([math.log(v) for v in ticks], [plain(v) for v in ticks])
            ends = [wrapped(text, canvas.chars(room / 4), 1)[0] for text in pair.ends[0].values()]
            axes.set_xticks([-1, 1], ends)
            title = wrapped(pair.factors[0], canvas.chars(room), 1)[0]
            middle = max(x + width / 2, x - left + canvas.wide_as(title) / 2)
            canvas.note(middle, y + above + tall + 29, title, ha="center")
            last = {sign: end for sign in _LINES if known(end := pair.draw(axes, sign))}
            label = canvas.chars(room - left - width - 18)
            texts = [wrapped(f"{pair.factors[1]} {pair.ends[1][sign]}", label) for sign in last]
            gap = max(map(len, texts), default=1) * line + 2
            heights = [tall * (high - end) / (high - low) for end in last.values()]
            places = spread(heights, gap, gap / 2, tall - gap / 2)
            for sign, text, at in zip(last, texts, places, strict=True):
                leader = [1.08, 1.3 + 26 / width], [last[sign], high - at / tall * (high - low)]
                axes.plot(*leader, color=_LINES[sign][0], linewidth=0.6, clip_on=False)
                _lines(canvas, x + width + 14, y + above + at, text, color=_LINES[sign][0])

    kinds = {pair.bars: None for pair in pairs if pair.bars} or {"No intervals are known.": None}
    return render(
        f"interaction-{metric}",
        draw,
        alt=f"Interaction plot of mean {measured.title}. {' '.join(p.spoken(measured.unit) for p in pairs)}",
        caption="Parallel lines: the changes multiply. Others: the one factor changes what the other brings; the "
        "interaction is half of that difference (the axis is logarithmic). "
        + " ".join(kinds).format(f"{100 * (1 - alpha):g} %"),
    )


def waterfall(
    ladder: pd.DataFrame, *, start: str = "start", metric: str = "tps", alpha: float = 0.05
) -> Figure:
    """A cumulative ladder: what each step adds to the one before, and what all have brought so far.

    `ladder`: what `stats.ladder.ladder` returned for that `alpha`: `level`; `step_percent, step_low, step_high`
    (percent of the step before), `step_p`; `total_percent, total_low, total_high` (percent of `start`),
    `total_p`. `start` is what the start is called.
    """
    kinds = ("percent", "low", "high", "p")
    steps, totals = (_rows(ladder[[f"{of}_{k}" for k in kinds]], metric, alpha) for of in ("step", "total"))
    names, title = ladder["level"].astype(str).tolist(), metric_or_guess(metric).title
    last = len(steps) > 1  # all of them together have a row of their own
    rows, labels = [*steps, *totals[-1:] * last], [*names, *[f"all {len(steps)} steps"] * last]
    # In logarithms a step reaches exactly from one total to the next, and its interval lies around that.
    before = [0.0, *(_LOG(row["percent_change"]) for row in totals[:-1]), *[0.0] * last]
    boxes = [
        [100 * math.expm1(base + _LOG(v)) for v in (0, row["percent_change"], row["ci_low"], row["ci_high"])]
        for base, row in zip(before, rows, strict=True)
    ]
    scale = scale_for(v for box in boxes for v in box)

    def draw(canvas: Canvas) -> None:
        cells = [_result(row) for row in rows]
        so_far = [*(_result(row)[0] for row in totals), ""]
        first = max(canvas.wide_as(text, fontweight="bold") for text in [*so_far, *(c[0] for c in cells)])
        second = max(canvas.wide_as(text) for _, text, _ in cells)
        taken = 0.0 if canvas.narrow else 2 * first + second + 20
        chars = canvas.chars(canvas.width if canvas.narrow else 0.29 * canvas.width)
        lines = [wrapped(text, chars) for text in labels]
        rowed = _Rows(canvas, lines, right=taken and taken + 12, extra=int(canvas.narrow), head=24)
        axes, x = rowed.axes(scale), canvas.width - taken if taken else 0.0
        canvas.note(x, 10, "against the one before")
        canvas.note(canvas.width, 10, "so far", ha="right")
        for number, (row, box, y) in enumerate(zip(rows, boxes, rowed.marks, strict=True)):
            colour, at = mark_of(row["verdict"]).colour, [scale(v) for v in box]
            axes.barh(y, at[1] - at[0], 12, left=at[0], facecolor=BAND, edgecolor=colour, zorder=1.6)
            axes.plot(at[2:], [y, y], color=colour, linewidth=2, zorder=2)
            _point(axes, at[1], y, row)
            if number + 1 < len(steps) and not canvas.narrow:
                axes.plot([at[1]] * 2, [y, rowed.marks[number + 1]], color=MUTED, linewidth=0.8, zorder=1.4)
            if canvas.narrow:
                y = rowed.tops[number] + (len(lines[number]) + 0.5) * rowed.line
            canvas.text(x + first, y, cells[number][0], ha="right", color=colour, fontweight="bold")
            canvas.note(x + first + 8 + second, y, cells[number][1], ha="right")
            canvas.text(canvas.width, y, so_far[number], ha="right")
        rowed.title(f"change of {title}", start, scale)

    said = map("{}, {}".format, map(spoken, names, steps), map(spoken, ["so far"] * len(steps), totals))
    return render(
        f"waterfall-{metric}",
        draw,
        alt=f"Waterfall of {title}, each step against the one before and, so far, against {start}: {'; '.join(said)}.",
        caption="Each box reaches from what the steps before brought to what this one makes of it; thick lines are "
        f"{100 * (1 - alpha):g} % intervals of the step's own change, adjusted for the number of steps. ▲ faster, ▼ slower: "
        f"significant; ○: inconclusive."
        + f" The last row: all against {start}, with its own interval."
        * last,
    )


class _Pair:
    """Two factors, logarithms of the four means with their intervals, and what `effects` says of the two."""

    def __init__(
        self, means: pd.DataFrame, effects: pd.DataFrame | None, changes: Mapping[str, tuple[Any, Any]]
    ) -> None:
        a, b = [column for column in means if column not in ("mean", "ci_low", "ci_high")][:2]
        self.factors, self.name = (str(a), str(b)), f"{a} × {b}"
        ends = [changes.get(factor, ("low", "high")) for factor in self.factors]
        self.ends = [{-1: str(low), 1: str(high)} for low, high in ends]
        rows = [] if effects is None else effects.to_dict("records")
        both = [row for row in rows if row["effect"] in (self.name, f"{b} × {a}")]
        self.effect, self.bars, reach = "", "", math.nan
        if both:
            row = _rows(pd.DataFrame(both)[["percent", "ci_low", "ci_high", "p_value"]], "tps", 0)[0]
            self.effect = "interaction " + " ".join(_result(row)[:2])
            # An effect compares halves of the trials, two means quarters: √2 of its interval, half for each.
            reach = (_LOG(row["ci_high"]) - _LOG(row["ci_low"])) / 2 / math.sqrt(2)
        if "ci_low" in means:
            self.bars = "Bars are {} intervals."
        elif known(reach):
            self.bars = "Bars are cut for pairs: two means differ, at {}, where theirs do not overlap."
        self.cells: dict[tuple[int, int], list[float]] = {}
        for cell in means.to_dict("records"):
            cut = cell["mean"] / math.exp(reach), cell["mean"] * math.exp(reach)
            values = [cell["mean"], cell.get("ci_low", cut[0]), cell.get("ci_high", cut[1])]
            self.cells[cell[a], cell[b]] = [math.log(v) if known(v) and v > 0 else math.nan for v in values]

    def draw(self, axes: Axes, sign: int) -> float:
        """Draw the second factor's line of that `sign`; its right end's height, NaN if there is none."""
        colour, style, face = _LINES[sign]
        # A little to either side, so that the bars of two lines do not hide each other.
        points = [(at + 0.03 * sign, *self.cells.get((at, sign), [math.nan] * 3)) for at in (-1, 1)]
        for x, _, *bar in points:
            axes.plot([x, x], bar, color=colour, linewidth=1.6, zorder=2)
        across, heights = [point[0] for point in points], [point[1] for point in points]
        axes.plot(across, heights, style, color=colour, markerfacecolor=face, markersize=5.5, linewidth=1.4)
        return heights[1] if known(heights[1]) else heights[0]

    def spoken(self, unit: str) -> str:
        """The means and the interaction for the alt text."""
        said = []
        for signs, cell in sorted(self.cells.items()):
            mean, low, high = (amount(math.exp(v)) if known(v) else "" for v in cell)
            ends = [f"{f} {e[sign]}" for f, e, sign in zip(self.factors, self.ends, signs, strict=True)]
            value = f"{mean} {unit}".rstrip() if mean else "not measured"
            said.append(f"{', '.join(ends)}: {value}" + (f" ({low} to {high})" if low and high else ""))
        return "; ".join([*said, self.effect or "interaction not known"]) + "."


def _rows(table: pd.DataFrame, metric: str, alpha: float) -> list[Row]:
    """A change, its interval and its p value (four columns) as an analysis has them."""
    rows: list[Row] = []
    for percent, low, high, p in table.itertuples(index=False, name=None):
        word = words(metric_or_guess(metric))[percent < 0] if p < alpha else "inconclusive"
        rows.append({"percent_change": percent, "ci_low": low, "ci_high": high, "verdict": word})
    return rows


def _standard_error(effects: pd.DataFrame, alpha: float) -> float:
    """The effects' standard error (of logarithms), NaN if unknown.

    The frame does not carry it, but an interval and a p value follow from it and from the degrees of
    freedom, for which this solves; of all effects the one with the largest p tells them best.
    """
    told = effects.dropna(subset=["ci_low", "ci_high", "p_value"])
    if told.empty:
        return math.nan
    row = told.nlargest(1, "p_value").iloc[0]
    size, p = abs(_LOG(row["percent"])), row["p_value"]
    reach = (_LOG(row["ci_high"]) - _LOG(row["ci_low"])) / 2

    def miss(log_df: float) -> float:
        return float(size * t.isf(alpha / 2, math.exp(log_df)) - reach * t.isf(p / 2, math.exp(log_df)))

    if not 0 < p < 1 or miss(-2) * miss(14) >= 0:
        return float(reach / norm.isf(alpha / 2))
    return float(reach / t.isf(alpha / 2, math.exp(brentq(miss, -2, 14))))


def _quiet(axes: Axes, across: tuple[float, float], up: tuple[float, float]) -> Axes:
    axes.set(xlim=across, ylim=up)
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)
    return axes


def _point(axes: Axes, x: float, y: float, row: Row) -> None:
    mark = mark_of(row["verdict"])
    face = mark.colour if mark.filled else PAPER
    axes.plot(x, y, mark.marker, color=mark.colour, markerfacecolor=face, markersize=6.5, clip_on=False)


def _lines(canvas: Canvas, x: float, middle: float, lines: Sequence[str], **style: Any) -> None:
    for number, text in enumerate(lines):
        canvas.text(x, middle + (number - (len(lines) - 1) / 2) * 1.35 * canvas.font, text, **style)


def _round_values(low: float, high: float) -> list[float]:
    """Ticks for an axis of logarithms."""
    ticks = [float(v) for v in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    if high > 5 * low:
        steps = (1, 2, 5) if high < 500 * low else (1,)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [v for v in ticks if low <= v <= high]
