"""Trial by trial: each block across the levels, and the host's drift between the blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchlib.plan.metrics import metric_or_guess
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, name_rows, row_places
from benchlib.report.figures.frames import axis_words, good, percent_of_mean, plain, reference_words, signed
from benchlib.report.figures.layout import canvas, describe, entitle, percent_axis, styled
from benchlib.report.figures.style import BAND, BLUE, FEW, INK, MUTED, PURPLE, Look, looks
from benchlib.stats import Analysis


@styled
def paired_blocks(analysis: Analysis, trials: pd.DataFrame) -> Figure:
    """Each block's values joined across the levels, and each level's difference inside its blocks.

    `trials`: columns `block`, `level`, the analysis's metric and, when trials failed, `error`.
    """
    metric, reference = analysis.metric, reference_words(analysis)
    table = analysis.table.set_index("level")
    fine = good(trials, metric.name)
    value = fine[metric.name] if analysis.one_reference else percent_of_mean(fine, metric.name)
    failed = trials.drop(fine.index)["level"].value_counts()
    labels = [Label(level, f"{failed[level]} failed" if level in failed else "") for level in table.index]
    middles, bottom = row_places(labels)
    place = dict(zip(table.index, middles, strict=True))
    values = fine.assign(value=value, y=fine["level"].map(place)).sort_values("y")
    inside = analysis.differences.rename(columns={"percent": "value"})
    blocks = sorted(trials["block"].unique())

    drawing = canvas(bottom + 60)
    left, right = drawing.subplots(1, 2, sharey=True)
    for axes in (left, right):
        axes.grid(axis="x")
    unit = axis_words(metric) if analysis.one_reference else f"{metric.title}, % of the level's mean"
    left.set(ylim=(bottom, 0), yticks=[], xlabel=unit)
    left.locator_params(axis="x", nbins=4)
    left.xaxis.set_major_formatter(plain)
    name_rows(left, labels, middles)
    entitle(left, "", "each line is a block")
    # Later blocks stand out more, so that a host that slows down or speeds up shows as an order.
    for block, shade in zip(blocks, np.linspace(0.4, 1.0, len(blocks)), strict=True):
        line = values[values["block"] == block].set_index("y")["value"].reindex(middles)
        left.plot(line, middles, "-o", color=BLUE, alpha=shade, markersize=3.5)
        dots = inside[inside["block"] == block]
        y = dots["level"].map(place)
        right.plot(dots["value"], y, "o", color=BLUE, alpha=shade, markersize=4.5, markeredgewidth=0)
    estimates = table["percent_change"].astype(float)
    right.plot(estimates, middles, "|", color=INK, markersize=14, markeredgewidth=1.8)
    right.axvline(0, color=INK, linewidth=1, zorder=1.5)
    right.set_xlabel("change" + percent_axis(right, "x", [*inside["value"], *estimates]))
    entitle(right, "", "differences inside the blocks")
    describe(left, values.assign(series=values["level"]), table.index)
    describe(right, inside.assign(series=inside["level"]), inside["level"].unique())
    lost = ", ".join(f"{count} of {level}" for level, count in failed.items())
    return render(
        "paired-blocks",
        drawing,
        f"{metric.title} of {len(labels)} levels in {len(blocks)} blocks",
        "Each line is one block, every level once within a short time; later blocks stand out more. Lines "
        f"far apart show a host that drifts; dots show each level's difference from {reference} inside a block. "
        "The upright stroke is the estimated change." + f" Failed trials: {lost}." * bool(lost),
    )


@styled
def drift(trials: pd.DataFrame, metric: str, levels: Sequence[str]) -> Figure:
    """Each trial against its own level's mean, in the order they were run: what the host did meanwhile.

    `trials`: columns `block`, `level`, `metric`, and `started_s` (seconds) or else in their order.
    `levels` sets the order of the colours.
    """
    timed = "started_s" in trials and bool(trials["started_s"].notna().all())
    order = trials.sort_values("started_s") if timed else trials
    starts = (order["started_s"] - order["started_s"].min()) / 60 if timed else range(1, len(order) + 1)
    order = order.assign(x=list(starts))
    fine = good(order, metric)
    fine = fine.assign(percent=percent_of_mean(fine, metric) - 100)
    failed = order.drop(fine.index)
    spans = order.groupby("block", sort=False)["x"].agg(["min", "max"])
    spans["value"] = fine.groupby("block")["percent"].mean()
    hands = {name: Look(look.hue) for name, look in looks(levels).items()} if len(levels) <= FEW else {}
    drawing = canvas(210, hands)
    axes = drawing.subplots()
    colours = [hands[level].colour if hands else MUTED for level in fine["level"]]
    axes.scatter(fine["x"], fine["percent"], s=24, c=colours, alpha=0.85, linewidth=0)
    axes.hlines(spans["value"], spans["min"], spans["max"], color=INK, linewidth=2.4)
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
    describe(axes, spans.assign(series="block means", x=spans.index), ["block means"], "block {}".format)
    return render(
        f"drift-{metric}",
        drawing,
        f"{metric_or_guess(metric).title} in the order of the trials, against each level's own mean",
        "Each dot is a trial, each bar a block's mean. Bars away from zero show the host drifting "
        "between blocks, which a comparison inside blocks cancels."
        + f" × marks a failed trial ({len(failed)})."
        * bool(len(failed)),
    )
