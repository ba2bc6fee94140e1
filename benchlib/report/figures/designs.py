"""Many factors at once: effects that stand out of the noise, how two factors meet, what a ladder adds up to."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.comparisons import change_marks, ends, result_cells
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, curves, rows
from benchlib.report.figures.frames import (
    NOTHING,
    Row,
    amount,
    axis_words,
    interval,
    known,
    signed,
    spoken,
    wrapped,
)
from benchlib.report.figures.layout import handle, log_axis, panels, percent_axis, styled
from benchlib.report.figures.style import BAND, INK, MUTED, Look, mark_of

_ALPHA = 0.05  # as the effects' and the ladder's intervals are made
_LOW, _HIGH = Look("orange", "D"), Look("blue")


@styled
def half_normal(effects: pd.DataFrame, *, metric: str = "tps") -> Figure:
    """Effects by size, each beside what noise alone would give the one of its rank (after C. Daniel, 1959).

    `effects`: what `stats.crossed.effects` returned: `effect`; `percent, ci_low, ci_high, noise`
    (percent); `p_holm`.
    """
    changes = _changes(effects[["percent", "ci_low", "ci_high", "p_holm"]], metric)
    names, noise = effects["effect"].tolist(), effects["noise"].to_numpy(float)
    labels = [Label(wrapped(name), cells=result_cells(row)) for name, row in zip(names, changes, strict=True)]
    drawing, axes, middles = rows(
        labels,
        change_marks(changes),
        lambda axes: percent_axis(axes, "x", [*ends(changes), *noise, *_opposite(noise)]),
        "effect",
    )
    axes.fill_betweenx(middles, _opposite(noise), noise, color=BAND, linewidth=0, zorder=0.5)
    return render(
        f"half-normal-{metric}",
        drawing,
        alt=f"{len(changes)} effects on {metric_or_guess(metric).title}, the largest first: "
        f"{'; '.join(map(spoken, names, changes))}. "
        + (f"Noise alone would reach {signed(noise[0], unit=' %')}." if known(noise[0]) else ""),
        caption="Each effect's size, the largest first. "
        + (
            "Shaded: what noise alone would give the effect of that rank (half-normal quantiles, Daniel, 1959). "
            if known(noise[0])
            else "There is no error to tell noise by. "
        )
        + "▲ faster or ▼ slower: significant at 5 % (Holm). ○: inconclusive. Bars are single "
        "95 % intervals.",
    )


@styled
def interaction(
    means: Sequence[pd.DataFrame],
    *,
    effects: pd.DataFrame,
    changes: Mapping[str, tuple[Any, Any]] = NOTHING,
    metric: str = "tps",
) -> Figure:
    """Means of a metric at low and high of two factors, a panel for each pair of factors.

    `means`: of each pair what `stats.crossed.interaction_means` returned: columns of two factors (−1, +1) and
    `mean, ci_low, ci_high` (the metric's unit). `effects` (as for `half_normal`) tell the interaction itself;
    `changes`: factor -> (low value, high value), to name the ends by.
    """
    measured = metric_or_guess(metric)
    factors = [(str(pair.columns[0]), str(pair.columns[1])) for pair in means]
    named = {name: [str(v) for v in changes.get(name, ("low", "high"))] for pair in factors for name in pair}
    notes = [_meeting(a, b, effects) for a, b in factors]
    titles = [(f"{a} × {b}", note) for (a, b), note in zip(factors, notes, strict=True)]
    drawing, grid = panels(titles, 205, y=axis_words(measured))
    for axes, pair, (a, b) in zip(grid, means, factors, strict=True):
        lines = {f"{b} {named[b][0]}": _LOW, f"{b} {named[b][1]}": _HIGH}
        frame = pair.rename(columns={a: "x", "mean": "value", "ci_low": "low", "ci_high": "high"})
        curves(axes, frame.assign(series=frame[b].map(dict(zip((-1, 1), lines, strict=True)))), lines)
        axes.set(xlim=(-1.4, 1.4), xlabel=a)
        axes.set_xticks([-1, 1], named[a])
        axes.legend(map(handle, lines.values()), lines, loc="upper left", bbox_to_anchor=(0, -0.3))
    values = np.array([pair[["mean", "ci_low", "ci_high"]].to_numpy(float) for pair in means])
    log_axis(axes, "y", 0.94 * np.nanmin(values), 1.06 * np.nanmax(values))
    results = [
        f"{_corners(pair, factor, named, measured.unit)}; {note or 'interaction not known'}."
        for pair, factor, note in zip(means, factors, notes, strict=True)
    ]
    return render(
        f"interaction-{metric}",
        drawing,
        alt=f"Interaction plot of mean {measured.title}. {' '.join(results)}",
        caption="Parallel lines: the changes multiply. Others: the one factor changes what the other brings; the "
        "interaction is half of that difference (the axis is logarithmic). "
        + (
            "Bars are cut for pairs: two means differ, at 95 %, where theirs do not overlap."
            if known(*values[..., 1].flat)
            else "No intervals are known."
        ),
    )


def _meeting(a: str, b: str, effects: pd.DataFrame) -> str:
    """What the effects say of two factors: `interaction −0.9 % [−3.8, 2.1]`."""
    for row in effects.to_dict("records"):
        if row["effect"] in (f"{a} × {b}", f"{b} × {a}"):
            bounds = f" {interval(row['ci_low'], row['ci_high'])}" if known(row["ci_low"]) else ""
            return f"interaction {signed(row['percent'])}{bounds}"
    return ""


def _corners(
    pair: pd.DataFrame, factors: tuple[str, str], named: Mapping[str, Sequence[str]], unit: str
) -> str:
    """The four means in words."""
    results = []
    for row in pair.sort_values(list(factors)).to_dict("records"):
        place = ", ".join(f"{name} {named[name][row[name] > 0]}" for name in factors)
        value = f"{amount(row['mean'])} {unit}".rstrip() if known(row["mean"]) else "not measured"
        bounds = f" ({amount(row['ci_low'])} to {amount(row['ci_high'])})" if known(row["ci_low"]) else ""
        results.append(f"{place}: {value}{bounds}")
    return "; ".join(results)


@styled
def waterfall(ladder: pd.DataFrame, *, start: str = "start", metric: str = "tps") -> Figure:
    """A cumulative ladder: what each step adds to the one before, and what all have brought so far.

    `ladder`: what `stats.ladder.ladder` returned: `level`; `step_percent, step_low, step_high`
    (percent of the step before), `step_p`; `total_percent, total_low, total_high` (percent of `start`),
    `total_p`. `start` is what the start is called.
    """
    kinds = ("percent", "low", "high", "p")
    steps, totals = (_changes(ladder[[f"{of}_{kind}" for kind in kinds]], metric) for of in ("step", "total"))
    names, title = ladder["level"].astype(str).tolist(), metric_or_guess(metric).title
    last = len(steps) > 1  # all of them together have a row of their own
    changes, names = [*steps, *totals[-1:] * last], [*names, *[f"all {len(steps)} steps"] * last]
    so_far = [*(signed(row["percent_change"]) for row in totals), *[""] * last]
    labels = [
        Label(wrapped(name), cells=[(change, mark_of(row["verdict"]).colour), bounds, (total, INK)])
        for name, row, total in zip(names, changes, so_far, strict=True)
        for (change, _), bounds, _ in [result_cells(row)]
    ]
    # a step begins where those before it have led, and its interval lies around that
    before = [0.0, *(row["percent_change"] for row in totals[:-1]), *[0.0] * last]
    boxes = [
        {**row, **{end: 100 * ((1 + base / 100) * (1 + row[end] / 100) - 1) for end in ("percent_change", "ci_low", "ci_high")}}
        for base, row in zip(before, changes, strict=True)
    ]  # fmt: skip
    drawing, axes, middles = rows(
        labels,
        change_marks(boxes),
        lambda axes: percent_axis(axes, "x", [*ends(boxes), *before]),
        f"change of {title}",
        heads=["", "against the one before", "so far"],
    )
    for number, (base, box, y) in enumerate(zip(before, boxes, middles, strict=True)):
        end, colour = box["percent_change"], mark_of(box["verdict"]).colour
        axes.barh(y, end - base, 12, left=base, facecolor=BAND, edgecolor=colour, zorder=1.6)
        if number + 1 < len(steps):
            axes.plot([end] * 2, [y, middles[number + 1]], color=MUTED, linewidth=0.8, zorder=1.4)
    results = map("{}, {}".format, map(spoken, names, steps), map(spoken, ["so far"] * len(steps), totals))
    return render(
        f"waterfall-{metric}",
        drawing,
        alt=f"Waterfall of {title}, each step against the one before and, so far, against {start}: {'; '.join(results)}.",
        caption=f"Change of {title} against {start}: each box reaches from what the steps before brought to what this one "
        f"makes of it. Lines are 95 % intervals of the step's own change, adjusted for the number of steps. "
        f"▲ faster, ▼ slower: significant; ○: inconclusive."
        + f" Last row: all against {start}, with its own interval."
        * last,
    )


def _changes(table: pd.DataFrame, metric: str) -> list[Row]:
    """A change, its interval and its p value (four columns) as an analysis has them."""
    changes: list[Row] = []
    for percent, low, high, p in table.itertuples(index=False, name=None):
        word = metric_or_guess(metric).directions[percent < 0] if p < _ALPHA else "inconclusive"
        changes.append({"percent_change": percent, "ci_low": low, "ci_high": high, "verdict": word})
    return changes


def _opposite(percents: Any) -> Any:
    """The changes that undo these: of +100 % it is −50 %."""
    return 100 * (1 / (1 + percents / 100) - 1)
