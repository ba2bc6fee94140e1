"""Changes in rows with their intervals: levels, single parameters, effects, steps of a ladder, all studies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Cell, Label, rows
from benchlib.report.figures.frames import (
    DAGGER,
    NOTHING,
    Row,
    against_words,
    amount,
    given_up,
    interval,
    known,
    reference_words,
    rows_of,
    signed,
)
from benchlib.report.figures.layout import percent_axis, styled
from benchlib.report.figures.style import BAND, INK, MUTED, Look, mark_of, verdict_word
from benchlib.stats import Analysis

_ALPHA = 0.05  # as the effects' and the ladder's intervals are made
_ENDS = ["percent_change", "ci_low", "ci_high"]
_ALONE, _LEFT = Look("blue", size=5), Look("orange", "D", filled=False, size=5)


def _rows_of_changes(
    changes: pd.DataFrame,
    title: str,
    *,
    drawn: pd.DataFrame | None = None,
    more_cells: Sequence[Cell] = (),
    also: Iterable[float] = (),
    **options: Any,
) -> tuple[Drawing, Axes, list[float]]:
    """A row for each change; the axis shows the values in `also`, too.

    `changes`: `name, percent_change, ci_low, ci_high, verdict`, and perhaps `quiet` words below the name, or `muted`:
    grey, unless it is invalid. `drawn` has other places for the same rows, and `more_cells` a last cell for each.
    """
    labels, looks = [], []
    for number, row in enumerate(changes.to_dict("records")):
        cells = [*_cells(row), *more_cells[number : number + 1]]
        labels.append(Label(row["name"], row.get("quiet", ""), cells))
        look = mark_of(row["verdict"])
        if row.get("muted"):
            hue = look.hue if verdict_word(row["verdict"]) == "invalid" else "muted"
            look = Look(hue, look.marker, look.sign, look.filled, 5)
        looks.append(look)
    marks = (
        (changes if drawn is None else drawn)[_ENDS].astype(float).set_axis(["value", "low", "high"], axis=1)
    )
    return rows(
        labels or [Label("Nothing to compare.")],
        marks.assign(row=range(len(marks)), look=pd.Series(looks, marks.index, dtype=object)),
        lambda axes: percent_axis(axes, "x", [*marks.to_numpy().flat, *also]),
        title,
        **options,
    )


def _cells(row: Row) -> list[Cell]:
    """A change, its interval and its verdict, with their colours; words where a number is missing."""
    if not known(row["percent_change"]):
        return [("–", INK), ("not measured", MUTED), ("", INK)]
    ends = known(row["ci_low"], row["ci_high"])
    bounds = interval(row["ci_low"], row["ci_high"]) if ends else "no interval"
    verdict = row["verdict"] if isinstance(row["verdict"], str) else ""
    return [(signed(row["percent_change"]), INK), (bounds, MUTED), (verdict, mark_of(verdict).colour)]


@styled
def forest(analysis: Analysis, *, durability: Mapping[str, str] = NOTHING) -> Figure:
    """Percentage change of every level against the baseline, with its interval and verdict.

    `durability` says, for each level that gives it up, what a crash may lose; those get a dagger.
    """
    changes = analysis.table[analysis.table["level"].isin(list(analysis.against))]
    levels, margin = changes["level"].astype(str).tolist(), 100 * analysis.margin
    lost = {level: loss for level, loss in durability.items() if level in levels}
    controls = [level in analysis.controls for level in levels]
    names = [
        level + DAGGER * (level in lost) + " (A/A control)" * control
        for level, control in zip(levels, controls, strict=True)
    ]
    quiet = [against_words(analysis, level) for level in levels]
    title = f"change of {analysis.metric.title}"
    drawing, *_ = _rows_of_changes(
        changes.assign(name=names, quiet=quiet, muted=controls), title,
        band=(-margin, margin), also=(-1.2 * margin, 1.2 * margin),
    )  # fmt: skip
    mean = amount(rows_of(analysis)[analysis.baseline]["mean"])
    base = f" (mean {mean} {analysis.metric.unit})".replace(" )", ")") if analysis.one_reference else ""
    caption = (
        f"Change of {analysis.metric.title} against {reference_words(analysis)}{base} over {analysis.blocks} blocks; "
        f"bars are {100 * (1 - analysis.alpha):.3g} % intervals, adjusted for the number of levels. "
        f"Shaded: ±{margin:g} %, the margin within which a level counts as equivalent (judged by a narrower, 90 % interval)."
    )
    if analysis.controls:
        caption += (
            f" The A/A control ({' and '.join(analysis.controls)}) is the baseline once more: its change is noise; "
            "the others are compared with the mean of both."
        )
    if lost:
        caption += f" {DAGGER} gives up durability: {'; '.join(given_up(lost))}."
    return render("forest", drawing, f"{title} against {reference_words(analysis)}", caption)


@styled
def shares(analysis: Analysis, full: str) -> Figure:
    """What each parameter gives alone (levels `only X`) and what is left without it (`without X`).

    `full` is the level with all of them; it is drawn as a line.
    """
    changes = analysis.table.set_index("level")[_ENDS].astype(float)
    total = changes["percent_change"].get(full, np.nan)
    kinds = {"only ": ("only this one changed", _ALONE, -1), "without ": ("all but this one", _LEFT, 1)}
    records = [
        (level.removeprefix(kind), kind, *ends, look, lift)
        for kind, (_, look, lift) in kinds.items()
        for level, *ends in changes.itertuples()
        if level.startswith(kind)
    ]
    marks = pd.DataFrame(records, columns=["name", "kind", "value", "low", "high", "look", "lift"])
    percents = marks.pivot(index="name", columns="kind", values="value").reindex(columns=list(kinds))
    # The largest first; one that was only ever taken away is placed by what went with it.
    order = (-percents["only "]).fillna(percents["without "]).sort_values(kind="stable").index
    labels = [
        Label(name, cells=[(signed(change) if known(change) else "–", INK) for change in percents.loc[name]])
        for name in order
    ]
    drawing, axes, _ = rows(
        labels or [Label("No levels that change one parameter.")],
        marks.assign(row=order.get_indexer(pd.Index(marks["name"]))),
        lambda axes: percent_axis(axes, "x", [total, *marks[["value", "low", "high"]].to_numpy().flat]),
        f"change of {analysis.metric.title}",
        heads=["alone", "all others"],
        keyed={text: look for kind, (text, look, _) in kinds.items() if kind in set(marks["kind"])},
    )
    reached = f"{full} {signed(total)}" if known(total) else ""
    if reached:
        axes.axvline(total, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1.5)
        axes.set_title(reached, loc="center", fontweight="normal")
    return render(
        "shares",
        drawing,
        f"each parameter's share of the change of {analysis.metric.title} against {analysis.baseline}"
        + f", where {reached}" * bool(reached),
        f"Filled: the baseline {analysis.baseline} with one parameter changed. Hollow: {full} with one parameter put back; "
        "the further left of the dashed line, the more that parameter matters. "
        f"Bars are {100 * (1 - analysis.alpha):.3g} % intervals.",
    )


@styled
def summary_forest(studies: pd.DataFrame) -> Figure:
    """The gain of every study's leading level, with its interval and verdict; better is to the right.

    `studies`: what `summary.summary_rows` returned, which says what the columns are.
    """
    records = studies.to_dict("records")
    changes = studies.drop(columns=_ENDS, errors="ignore").rename(
        columns={"gain": "percent_change", "gain_low": "ci_low", "gain_high": "ci_high", "further": "muted"}
    )
    margin = 100 * studies["margin"].iloc[0] if studies["margin"].nunique() == 1 else 0.0
    drawing, *_ = _rows_of_changes(
        changes.assign(name=list(map(_title, records)), quiet=list(map(_compared, records))),
        "← worse · gain · better →",
        band=(-margin, margin),
        also=(-1.2 * margin, 1.2 * margin),
    )
    parts = {
        "Each factor's leading level, ranked by its gain over the level that it is compared with": True,
        "Where less is better, half as much counts as +100 %": (studies["gain"] != studies["percent_change"]).any(),
        "A verdict that is inconclusive or invalid has no rank and stands below": True,
        "Grey marks: further studies of the factor above them": studies["further"].any(),
        "Bars are each study's own intervals, adjusted for the number of its levels": True,
        f"Shaded: ±{margin:g} %, the margin within which a level counts as equivalent": margin,
        "Studies come from several machines, so compare ranks only within one": studies["host"].any(),
        f"{DAGGER} gives up durability for it, so it is a trade": studies["loss"].any(),
    }  # fmt: skip
    caption = ". ".join(part for part, holds in parts.items() if holds)
    return render("summary", drawing, "gain of each study's leading level", f"{caption}.")


def _title(row: Row) -> str:
    """`1. Configuration† (machine A)`; a further study of a factor goes by its own name."""
    rank = f"{row['rank']:.0f}. " if known(row["rank"]) else ""
    host = f" (machine {row['host']})" if row["host"] else ""
    return f"{rank}{row['study'] if row['further'] else row['title']}{DAGGER * bool(row['loss'])}{host}"


def _compared(row: Row) -> str:
    """`tuned against defaults`, and what is judged by where it is not throughput."""
    levels = f"{row['level']} against {row['against']}"
    if row["metric"] == "throughput":
        return levels
    measured = f" {signed(row['percent_change'])}" if row["gain"] != row["percent_change"] else ""
    return f"{levels}, {row['metric']}{measured}"


@styled
def half_normal(effects: pd.DataFrame, *, metric: str = "tps") -> Figure:
    """Effects by size, each beside what noise alone would give the one of its rank (after C. Daniel, 1959).

    `effects`: what `stats.crossed.effects` returned: `effect`; `percent, ci_low, ci_high, noise`
    (percent); `p_holm`.
    """
    noise = effects["noise"].to_numpy(float)
    opposite = 100 * (1 / (1 + noise / 100) - 1)  # the changes that undo these: of +100 % it is −50 %
    changes = _judged(effects[["percent", "ci_low", "ci_high", "p_holm"]], metric)
    drawing, axes, middles = _rows_of_changes(
        changes.assign(name=effects["effect"]), "effect", also=[*noise, *opposite]
    )
    axes.fill_betweenx(middles, opposite, noise, color=BAND, linewidth=0, zorder=0.5)
    shaded = (
        "Shaded: what noise alone would give the effect of that rank (half-normal quantiles, Daniel, 1959); the largest "
        f"would reach {signed(noise[0])}."
        if known(noise[0])
        else "There is no error to tell noise by."
    )
    return render(
        f"half-normal-{metric}",
        drawing,
        f"{len(changes)} effects on {metric_or_guess(metric).title}, the largest first",
        f"Each effect's size, the largest first. {shaded} ▲ faster or ▼ slower: significant at 5 % (Holm). "
        "○: inconclusive. Bars are single 95 % intervals.",
    )


@styled
def waterfall(ladder: pd.DataFrame, *, start: str = "start", metric: str = "tps") -> Figure:
    """A cumulative ladder: what each step adds to the one before, and what all have brought so far.

    `ladder`: what `stats.ladder.ladder` returned: `level`; `step_percent, step_low, step_high`
    (percent of the step before), `step_p`; `total_percent, total_low, total_high` (percent of `start`),
    `total_p`. `start` is what the start is called.
    """
    kinds = ("percent", "low", "high", "p")
    steps, totals = (_judged(ladder[[f"{of}_{kind}" for kind in kinds]], metric) for of in ("step", "total"))
    # all of them together have a row of their own
    everything = totals.tail(1 if len(steps) > 1 else 0).assign(name=f"all {len(steps)} steps")
    changes = pd.concat([steps.assign(name=ladder["level"].astype(str)), everything], ignore_index=True)
    # a step begins where those before it have led, and its interval lies around that
    before = np.array([0.0, *totals["percent_change"].iloc[:-1], *[0.0] * len(everything)])
    boxes = changes.assign(
        **{end: 100 * ((1 + before / 100) * (1 + changes[end] / 100) - 1) for end in _ENDS}
    )
    title = metric_or_guess(metric).title
    drawing, axes, middles = _rows_of_changes(
        changes, f"change of {title}", drawn=boxes, also=before, heads=["step", "", "", "so far"],
        more_cells=[(signed(total), INK) for total in totals["percent_change"]],
    )  # fmt: skip
    for number, (base, box, y) in enumerate(zip(before, boxes.to_dict("records"), middles, strict=True)):
        end, colour = box["percent_change"], mark_of(box["verdict"]).colour
        axes.barh(y, end - base, 12, left=base, facecolor=BAND, edgecolor=colour, zorder=1.6)
        if number + 1 < len(steps):
            axes.plot([end] * 2, [y, middles[number + 1]], color=MUTED, linewidth=0.8, zorder=1.4)
    return render(
        f"waterfall-{metric}",
        drawing,
        f"{title}, each step against the one before and, so far, against {start}",
        f"Change of {title} against {start}: each box reaches from what the steps before brought to what this one "
        "makes of it. Lines are 95 % intervals of the step's own change, adjusted for the number of steps. "
        "▲ faster, ▼ slower: significant; ○: inconclusive."
        + f" Last row: all against {start}, with its own interval."
        * len(everything),
    )


def _judged(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A change, its interval and its p value (four columns) as an analysis has them."""
    changes = table.set_axis([*_ENDS, "p"], axis=1)
    better, worse = metric_or_guess(metric).directions
    verdicts = np.where(changes["percent_change"] < 0, worse, better)
    return changes.assign(verdict=np.where(changes["p"] < _ALPHA, verdicts, "inconclusive"))
