"""Levels against what they are compared with: effects, shares of an effect, pairs inside blocks, all studies."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, name_rows, row_places, rows
from benchlib.report.figures.frames import (
    DAGGER,
    NOTHING,
    Row,
    against_words,
    amount,
    axis_words,
    given_up,
    good,
    interval,
    known,
    opening,
    percent_of_mean,
    plain,
    reference_words,
    rows_of,
    signed,
    spoken,
    wrapped,
)
from benchlib.report.figures.layout import canvas, percent_axis, styled
from benchlib.report.figures.style import BLUE, INK, MUTED, Look, mark_of, verdict_word
from benchlib.stats import Analysis

_ALONE, _LEFT = Look("blue", size=5), Look("orange", "D", filled=False, size=5)


def result_cells(row: Row) -> list[tuple[str, str]]:
    """A change, its interval and its verdict, with their colours; words where a number is missing."""
    if not known(row["percent_change"]):
        return [("–", INK), ("not measured", MUTED), ("", INK)]
    ends = known(row["ci_low"], row["ci_high"])
    bounds = interval(row["ci_low"], row["ci_high"]) if ends else "no interval"
    verdict = row["verdict"] if isinstance(row["verdict"], str) else ""
    return [(signed(row["percent_change"]), INK), (bounds, MUTED), (verdict, mark_of(verdict).colour)]


def change_marks(changes: Sequence[Row], muted: Sequence[bool] = ()) -> pd.DataFrame:
    """The marks of changes, a row each, by their verdicts; those that are `muted` grey, unless they are invalid."""
    marks = []
    for number, row in enumerate(changes):
        look = mark_of(row["verdict"])
        if muted and muted[number]:
            hue = look.hue if verdict_word(row["verdict"]) == "invalid" else "muted"
            look = Look(hue, look.marker, look.sign, look.filled, 5)
        marks.append((number, row["percent_change"], row["ci_low"], row["ci_high"], look))
    return pd.DataFrame(marks, columns=["row", "value", "low", "high", "look"]).astype(
        dict.fromkeys(("value", "low", "high"), float)
    )


def ends(changes: Iterable[Row]) -> list[float]:
    """All that an axis has to show of these changes."""
    return [row[name] for row in changes for name in ("percent_change", "ci_low", "ci_high")]


def _forest(labels: list[Label], changes: list[Row], muted: list[bool], title: str, margin: float) -> Drawing:
    """A row for each change, and the band of what counts as equivalent (percent, to both sides)."""
    return rows(
        labels,
        change_marks(changes, muted),
        lambda axes: percent_axis(axes, "x", [*ends(changes), -1.2 * margin, 1.2 * margin]),
        title,
        band=(-margin, margin),
    )[0]


@styled
def forest(analysis: Analysis, *, durability: Mapping[str, str] = NOTHING) -> Figure:
    """Percentage change of every level against the baseline, with its interval and verdict.

    `durability` says, for each level that gives it up, what a crash may lose; those get a dagger.
    """
    changes = {level: row for level, row in rows_of(analysis).items() if level in analysis.against}
    metric, margin = analysis.metric.title, 100 * analysis.margin
    lost = {level: loss for level, loss in durability.items() if level in changes}
    labels = [
        Label(
            wrapped(level + DAGGER * (level in lost) + " (A/A control)" * (level in analysis.controls)),
            wrapped(against_words(analysis, level)),
            result_cells(row),
        )
        for level, row in changes.items()
    ] or [Label(f"Nothing to compare with {analysis.baseline}.")]
    controls = [level in analysis.controls for level in changes]
    drawing = _forest(labels, [*changes.values()], controls, f"change of {metric}", margin)
    results = [
        f"{spoken(level, row)} {against_words(analysis, level)}".rstrip() for level, row in changes.items()
    ]
    return render(
        "forest",
        drawing,
        alt=f"Forest plot of the change of {metric} against {reference_words(analysis)}: "
        f"{'; '.join(results) or 'nothing to compare'}."
        + "".join(f" Gives up durability: {text}." for text in given_up(lost)),
        caption=_forest_caption(analysis, metric, lost),
    )


def _forest_caption(analysis: Analysis, metric: str, lost: Mapping[str, str]) -> str:
    mean = amount(rows_of(analysis)[analysis.baseline]["mean"])
    base = f" (mean {mean} {analysis.metric.unit})".replace(" )", ")") if analysis.one_reference else ""
    text = (
        f"Change of {metric} against {reference_words(analysis)}{base} over {analysis.blocks} blocks; "
        f"bars are {100 * (1 - analysis.alpha):.3g} % intervals, adjusted for the number of levels. "
        f"Shaded: ±{100 * analysis.margin:g} %, the margin within which a level counts as equivalent "
        "(judged by a narrower, 90 % interval)."
    )
    if analysis.controls:
        text += (
            f" The A/A control ({' and '.join(analysis.controls)}) is the baseline once more: its change is noise; "
            "the others are compared with the mean of both."
        )
    if lost:
        text += f" {DAGGER} gives up durability: " + "; ".join(given_up(lost)) + "."
    return text


@styled
def shares(analysis: Analysis, full: str) -> Figure:
    """What each parameter gives alone (levels `only X`) and what is left without it (`without X`).

    `full` is the level with all of them; it is drawn as a line.
    """
    changes = rows_of(analysis)
    alone, left = (
        {level.removeprefix(kind): row for level, row in changes.items() if level.startswith(kind)}
        for kind in ("only ", "without ")
    )
    first, rest = _percents(alone), _percents(left)
    # The largest first; one that was only ever taken away is placed by what went with it.
    parameters = sorted(
        {**alone, **left}, key=lambda p: rest.get(p, 0.0) if p not in alone else -first.get(p, 0.0)
    )
    total, metric = _percents(changes).get(full, np.nan), analysis.metric.title
    labels = [
        Label(wrapped(p), cells=[(f"alone {signed(first[p])}" if p in first else "–", INK)])
        for p in parameters
    ]
    kinds = (("only this one changed", alone, _ALONE, -1), ("all but this one", left, _LEFT, 1))
    each = [
        (row, *ends([of[p]]), look, lift)
        for _, of, look, lift in kinds
        for row, p in enumerate(parameters)
        if p in of
    ]
    marks = pd.DataFrame(each, columns=["row", "value", "low", "high", "look", "lift"])
    drawing, axes, _ = rows(
        labels or [Label("No levels that change one parameter.")],
        marks,
        lambda axes: percent_axis(axes, "x", [total, *ends([*alone.values(), *left.values()])]),
        f"change of {metric}",
        keyed={text: look for text, of, look, _ in kinds if of},
    )
    if known(total):
        axes.axvline(total, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1.5)
        axes.set_title(f"{full} {signed(total)}", loc="center", fontweight="normal")
    results = [
        spoken(kind + p, of[p])
        for p in parameters
        for kind, of in (("only ", alone), ("without ", left))
        if p in of
    ]
    return render(
        "shares",
        drawing,
        alt=f"Each parameter's share of the change of {metric} against {analysis.baseline}"
        + (f", where {full} reaches {signed(total, unit=' %')}" if known(total) else "")
        + f": {'; '.join(results) or 'no such levels'}.",
        caption=f"Filled: the baseline {analysis.baseline} with one parameter changed. Hollow: "
        f"{full} with one parameter put back; the further left of the dashed line, "
        f"the more that parameter matters. Bars are {100 * (1 - analysis.alpha):.3g} % intervals.",
    )


def _percents(changes: Mapping[str, Row]) -> dict[str, float]:
    """The changes that are known, in percent."""
    return {name: row["percent_change"] for name, row in changes.items() if known(row["percent_change"])}


@styled
def paired_blocks(analysis: Analysis, trials: pd.DataFrame) -> Figure:
    """Each block's values joined across the levels, and each level's difference inside its blocks.

    `trials`: columns `block`, `level`, the analysis's metric and, when trials failed, `error`.
    """
    metric, reference = analysis.metric, reference_words(analysis)
    fine = good(trials, metric.name)
    value = fine[metric.name] if analysis.one_reference else percent_of_mean(fine, metric.name)
    place = {level: number for number, level in enumerate(rows_of(analysis))}
    failures = trials.drop(fine.index)["level"].value_counts()
    failed = {level: failures[level] for level in place if level in failures}
    labels = [Label(wrapped(level), f"{failed[level]} failed" if level in failed else "") for level in place]
    values = fine.assign(value=value, row=fine["level"].map(place)).dropna(subset="row")
    inside = analysis.differences.assign(row=analysis.differences["level"].map(place))
    estimates = [_percents(rows_of(analysis)).get(level, np.nan) for level in place]
    blocks = sorted(trials["block"].unique())
    # Later blocks stand out more, so that a host that slows down or speeds up shows as an order.
    shades = dict(zip(blocks, np.linspace(0.4, 1.0, len(blocks)).tolist(), strict=True))

    middles, bottom = row_places(labels)
    drawing = canvas(bottom + 60)
    left, right = drawing.subplots(1, 2, sharey=True)
    for axes in (left, right):
        axes.grid(axis="x")
    unit = axis_words(metric) if analysis.one_reference else f"{metric.title}, % of the level's mean"
    left.set(ylim=(bottom, 0), yticks=[], xlabel=unit)
    left.set_title("each line is a block", fontweight="normal", color=MUTED)
    left.locator_params(axis="x", nbins=4)
    left.xaxis.set_major_formatter(plain)
    name_rows(left, labels, middles)
    for block, shade in shades.items():
        line = values[values["block"] == block].set_index("row")["value"].reindex(range(len(labels)))
        left.plot(line, middles, "-o", color=BLUE, alpha=shade, markersize=3.5)
        dots = inside[inside["block"] == block]
        y = [middles[number] for number in dots["row"]]
        right.plot(dots["percent"], y, "o", color=BLUE, alpha=shade, markersize=4.5, markeredgewidth=0)
    right.plot(estimates, middles, "|", color=INK, markersize=14, markeredgewidth=1.8)
    right.axvline(0, color=INK, linewidth=1, zorder=1.5)
    right.set_title("differences inside the blocks", fontweight="normal", color=MUTED)
    right.set_xlabel("change" + percent_axis(right, "x", [*inside["percent"], *estimates]))
    results = [
        f"{level} {signed(of.min(), unit='')} to {signed(of.max(), unit=' %')}, above zero in {(of > 0).sum()} of {len(of)}"
        for level, of in inside.groupby("level", sort=False)["percent"]
    ]
    lost = [f"{count} of {level}" for level, count in failed.items()]
    return render(
        "paired-blocks",
        drawing,
        alt=f"{opening(metric.title)} of {len(labels)} levels in {len(blocks)} blocks. "
        f"Differences from {reference} inside the blocks: {'; '.join(results) or 'none'}."
        + (f" Failed trials: {', '.join(lost)}." if lost else ""),
        caption="Each line is one block, every level once within a short time; later blocks stand out more. Lines "
        f"far apart show a host that drifts; dots show each level's difference from {reference} inside a block. "
        "The upright stroke is the estimated change.",
    )


@styled
def summary_forest(studies: pd.DataFrame) -> Figure:
    """The gain of every study's leading level, with its interval and verdict; better is to the right.

    `studies`: what `summary.summary_rows` returned, which says what the columns are.
    """
    records: list[Row] = [*studies.to_dict("records")]
    gains: list[Row] = [
        {**row, "percent_change": row["gain"], "ci_low": row["gain_low"], "ci_high": row["gain_high"]}
        for row in records
    ]
    margin = 100 * studies["margin"].iloc[0] if studies["margin"].nunique() == 1 else 0.0
    labels = [
        Label(
            wrapped(_title(row) + (f" (machine {row['host']})" if row["host"] else "")),
            wrapped(_compared(row)),
            result_cells(gain),
        )
        for row, gain in zip(records, gains, strict=True)
    ]
    further = [row["further"] for row in records]
    empty = [Label("No study has a verdict yet.")]
    drawing = _forest(labels or empty, gains, further, "← worse · gain · better →", margin)
    results = [
        spoken(f"{_title(row)}, {_compared(row)}", gain) for row, gain in zip(records, gains, strict=True)
    ]
    lost = {row["study"]: row["loss"] for row in records if row["loss"]}
    return render(
        "summary",
        drawing,
        alt=f"Forest plot of the gain of each study's leading level: {'; '.join(results) or 'no study has a verdict'}."
        + "".join(f" Gives up durability: {text}." for text in given_up(lost)),
        caption=_summary_caption(studies, margin),
    )


def _title(row: Row) -> str:
    """`1. Configuration†`; a further study of a factor goes by its own name."""
    rank = f"{row['rank']:.0f}. " if known(row["rank"]) else ""
    return f"{rank}{row['study'] if row['further'] else row['title']}{DAGGER if row['loss'] else ''}"


def _compared(row: Row) -> str:
    """`tuned against defaults`, and what is judged by where it is not throughput."""
    levels = f"{row['level']} against {row['against']}"
    if row["metric"] == "throughput":
        return levels
    measured = f" {signed(row['percent_change'])}" if row["gain"] != row["percent_change"] else ""
    return f"{levels}, {row['metric']}{measured}"


def _summary_caption(studies: pd.DataFrame, margin: float) -> str:
    parts = ["Each factor's leading level, ranked by its gain over the level that it is compared with"]
    if (studies["gain"] != studies["percent_change"]).any():
        parts[0] += "; where less is better, half as much counts as +100 %, as twice the throughput does"
    parts.append("A verdict that is inconclusive or invalid has no rank and stands below")
    if studies["further"].any():
        parts.append("Grey marks: further studies of the factor above them")
    levels = sorted({round(100 * (1 - alpha), 1) for alpha in studies["alpha"]})
    if levels:
        widths = f"{levels[0]:g} %" if len(levels) == 1 else f"{levels[0]:g} to {levels[-1]:g} %"
        parts.append(f"Bars are {widths} intervals, adjusted for the number of levels in a study")
    if margin:
        parts.append(f"Shaded: ±{margin:g} %, the margin within which a level counts as equivalent")
    if studies["host"].any():
        parts.append("Studies come from several machines, so compare ranks only within one")
    if studies["loss"].any():
        parts.append(f"{DAGGER} gives up durability for it, so it is a trade")
    return ". ".join(parts) + "."
