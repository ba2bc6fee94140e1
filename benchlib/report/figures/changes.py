"""Changes in rows with their intervals: levels, single parameters, effects, steps of a ladder, all studies."""

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from PIL import Image

from benchlib.plan.metrics import metric_or_guess, percent_words
from benchlib.plan.planning import PANELS
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Cell, Label, rows
from benchlib.report.figures.frames import (
    DAGGER,
    NOTHING,
    TITLE,
    Row,
    against_words,
    amount,
    finding,
    known,
    reference_words,
    rows_of,
    short,
    signed,
    wrapped,
)
from benchlib.report.figures.layout import WIDTH, factor_axis, percent_axis, styled
from benchlib.report.figures.style import BAND, INK, MUTED, PAPER, Look, mark_of, verdict_word
from benchlib.stats import Analysis

_ALPHA = 0.05  # as the effects' and the ladder's intervals are made
_ENDS = ["percent_change", "ci_low", "ci_high"]
_ALONE, _LEFT = Look("blue", size=5), Look("orange", "D", filled=False, size=5)
_CARD = 264.6  # points: WIDTH × this is 1200 × 630 pixels at the card's resolution
_ON_CARD = 3


def _rows_of_changes(
    changes: pd.DataFrame, title: str, also: Iterable[float], drawn: pd.DataFrame | None = None, **more: Any
) -> tuple[Drawing, Axes, list[float]]:
    """A row for each change; the axis shows the values in `also`, too.

    `changes`: `name, percent_change, ci_low, ci_high, verdict`, and perhaps `quiet` words below the name, a `last` cell, or
    `muted`: grey, unless it is invalid. `drawn` has other places for the same rows.
    """
    labels, looks = [], []
    for row in changes.to_dict("records"):
        last = [row["last"]] if "last" in row else []
        labels.append(Label(row["name"], row.get("quiet", ""), [*_cells(row), *last]))
        look = mark_of(row["verdict"])
        if row.get("muted"):
            hue = look.hue if verdict_word(row["verdict"]) == "invalid" else "muted"
            look = replace(look, hue=hue, size=5)
        looks.append(look)
    marks = (changes if drawn is None else drawn)[_ENDS].astype(float)
    marks.columns = pd.Index(["value", "low", "high"])
    return rows(
        labels or [Label("Nothing to compare.")],
        marks.assign(row=range(len(marks)), look=pd.Series(looks, marks.index, dtype=object)),
        lambda axes: percent_axis(axes, "x", [*marks.to_numpy().flat, *also]),
        title,
        **more,
    )


def _cells(row: Row) -> list[Cell]:
    """A change, its interval and its verdict, with their colours; words where a number is missing."""
    if not known(row["percent_change"]):
        return [("–", INK), ("not measured", MUTED), ("", INK)]
    change, between = percent_words(*(float(row[end]) for end in _ENDS))
    verdict = row["verdict"] if isinstance(row["verdict"], str) else ""
    return [(change, INK), (between or "no interval", MUTED), (verdict, mark_of(verdict).colour)]


def _in_words(row: Any) -> str:
    """`+38 %`, with no more digits than the interval has."""
    return percent_words(*(float(row[end]) for end in _ENDS))[0]


@styled
def forest(
    analysis: Analysis, *, durability: Mapping[str, str] = NOTHING, answer: tuple[str, str] | None = None
) -> Figure:
    """Percentage change of every level against the baseline, with its interval and verdict; dots are single blocks.

    `durability` says, for each level that gives it up, what a crash may lose; those get a dagger. `answer` is the level
    that the title tells of, and what it calls that; else the first that is compared.
    """
    changes = analysis.table[analysis.table["level"].isin(list(analysis.against))]
    levels, twins, margin = changes["level"].astype(str).tolist(), analysis.controls, 100 * analysis.margin
    lost = {level: loss for level, loss in durability.items() if level in levels}
    names = [level + DAGGER * (level in lost) + " (A/A control)" * (level in twins) for level in levels]
    quiet = [against_words(analysis, level) for level in levels]
    blocks = analysis.differences[analysis.differences["level"].isin(levels)]
    drawing, axes, middles = _rows_of_changes(
        changes.assign(name=names, quiet=quiet, muted=changes["level"].isin(twins)),
        f"change of {analysis.metric.title}",
        band=(-margin, margin), also=(-1.2 * margin, 1.2 * margin, *blocks["percent"]),
    )  # fmt: skip
    y = blocks["level"].map(dict(zip(levels, middles, strict=True))) + 6
    axes.plot(blocks["percent"], y, ".", color=MUTED, markersize=5, markeredgewidth=0)
    mean = amount(rows_of(analysis)[analysis.baseline]["mean"])
    base = f" (mean {mean} {analysis.metric.unit})".replace(" )", ")") if analysis.one_reference else ""
    caption = f"Against {reference_words(analysis)}{base}. Bars: adjusted {100 * (1 - analysis.alpha):.3g} % intervals; dots: blocks"
    low, high = axes.get_xlim()
    if 100 + high < 20 * (100 + low):  # else it is too narrow to be seen
        caption += f"; shaded: ±{margin:g} %"
    caption += f". {DAGGER} gives up durability." if lost else "."
    title = _leads(analysis, answer) if analysis.asked else "Nothing but the baseline was measured"
    return render("forest", drawing, title, caption, changes[["level", *_ENDS, "verdict"]])


@styled
def changes_by_study(
    name: str, changes: pd.DataFrame, title: str, axis: str, breaks: Sequence[bool] = ()
) -> Figure:
    """Changes that several studies found (see `_rows_of_changes`), in their order; a line stands above those in `breaks`.

    Shaded is how far their `control` arms strayed from their twins, where that is a column.
    """
    noise = changes.get("control", pd.Series(dtype=float)).dropna()
    band = (noise.min(), noise.max()) if len(noise) else None
    drawing, axes, middles = _rows_of_changes(changes, axis, (), band=band)
    for place in np.flatnonzero(breaks):
        axes.axhline(float(np.mean(middles[place - 1 : place + 1])), color=INK, linestyle=(0, (4, 3)))
    caption = "Bars: intervals, adjusted for the number of comparisons."
    if band and band[0] < band[1]:
        caption += " Shaded: lowest to highest change of the A/A controls."
    if any(breaks):
        caption += " Dashed: a change point."
    return render(name, drawing, title, caption, changes[["name", *_ENDS, "verdict"]])


def _leads(analysis: Analysis, answer: tuple[str, str] | None) -> str:
    """`the tuned set: +97 % throughput, faster, against defaults; 2 of 5 others found to differ`."""
    level, words = answer or (analysis.asked[0],) * 2
    table = rows_of(analysis)
    row, others = table[level], [table[name]["verdict"] for name in analysis.asked if name != level]
    differ = sum(verdict_word(verdict) in ("faster", "slower") for verdict in others)
    judged = verdict_word(row["verdict"])
    change = f"{_in_words(row)} {analysis.metric.title}, " if judged not in ("", "invalid") else ""
    rest = f": {change}{row['verdict'] if judged else 'not measured'}"
    return finding(
        textwrap.shorten(words, TITLE - len(rest), placeholder="…") + rest,
        f" {against_words(analysis, level) or f'against {short(analysis.against[level])}'}",
        *(f"; the other: {verdict}" for verdict in others if len(others) == 1),
        *[f"; {differ} of {len(others)} others found to differ"] * (len(others) > 1),
    )


@styled
def shares(analysis: Analysis, full: str) -> Figure:
    """What each parameter gives alone (levels `only X`) and what is left without it (`without X`).

    `full` is the level with all of them; it is drawn as a line.
    """
    table = analysis.table.set_index("level")
    changes = table[_ENDS].astype(float)
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
    title = f"Nothing tells the parts of {short(full)}"
    if known(total):
        axes.axvline(total, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1.5)
        title = f"{short(full)}: {_in_words(changes.loc[full])}"
    for level in [f"{kind}{order[0]}" for kind in kinds if len(order)]:
        if level in changes.index:
            title += f"; {short(level)}: {_in_words(changes.loc[level])}"
    caption = (
        f"Filled: {analysis.baseline} with one parameter changed. Hollow: {full} with one put back. Dashed: {full}. "
        f"Bars: adjusted {100 * (1 - analysis.alpha):.3g} % intervals."
    )
    return render("shares", drawing, title, caption, marks[["name", "kind", "value", "low", "high"]])


@styled
def index_panels(entries: Sequence[Any]) -> Figure:
    """The answers of all studies, which come by panel, as factors, better to the right; a heading above each panel.

    Of an entry are read `title, panel, higher_is_better` and `answers`; of an answer `words, against, verdict, gives_up`
    and `percent_change, ci_low, ci_high`, percentages that are None or NaN where they are not known.
    """
    labels, parts = list[Label](), list[pd.DataFrame]()
    for panel, of_panel in groupby(entries, key=lambda entry: str(entry.panel)):
        labels.append(Label(PANELS[panel], heading=True))
        for entry in of_panel:
            answers = _factors(entry)
            numbers = range(len(labels), len(labels) + len(answers))
            parts.append(answers.assign(panel=panel, study=entry.title, row=numbers))
            labels += _factor_labels(answers, f"{entry.title}: ")
    answers = pd.concat(parts, ignore_index=True)
    drawing, axes, middles = _factor_rows(answers, labels)
    for label, middle in zip(labels, middles, strict=True):
        if label.heading:
            axes.axhspan(middle - 11, middle + 11, color=BAND, linewidth=0, zorder=2)
    better, worse = (answers["verdict"].map(verdict_word).eq(word).sum() for word in ("faster", "slower"))
    caption = (
        "Bars: each study's own intervals. Where less is better, half counts as 2 ×. Each study had its own load, clients and "
        "disks: compare within one."
    )
    if answers["gives_up"].astype(bool).any():
        caption += f" {DAGGER} gives up durability."
    title = f"Of {len(answers)} answers {better} are faster and {worse} slower"
    return render("summary", drawing, title, caption, answers.drop(columns=["row", "gives_up"]))


@styled
def card(entry: Any) -> bytes:
    """A picture of 1200 × 630 pixels for links to a study: its title and its first answers (see `index_panels`). The same bytes each time."""
    answers = _factors(entry).head(_ON_CARD)
    labels = _factor_labels(answers) or [Label("Nothing was compared.")]
    drawing, axes, _ = _factor_rows(answers.assign(row=range(len(answers))), labels)
    left, _, wide, high = axes.get_position().bounds
    tall = min(high * 72 * drawing.get_figheight(), _CARD - 120)
    drawing.set_size_inches(WIDTH / 72, _CARD / 72)
    axes.set_position((left, (_CARD - 40 - tall) / 2 / _CARD, wide, tall / _CARD))
    title = textwrap.shorten(str(entry.title), 44, placeholder="…")
    drawing.text(0.03, 0.93, title, fontsize=18, fontweight="bold", va="top")
    drawing.text(0.03, 0.8, "\n".join(wrapped(str(entry.question), 80)), color=MUTED, va="top")
    drawing.text(0.97, 0.03, "benchlib", color=MUTED, ha="right")
    drawn, small = io.BytesIO(), io.BytesIO()
    drawing.savefig(drawn, format="png", dpi=1200 / WIDTH * 72, facecolor=PAPER)
    Image.open(drawn).convert("RGB").quantize(32).save(small, "png", optimize=True)
    return small.getvalue()


def _factors(entry: Any) -> pd.DataFrame:
    """An entry's answers, a row each: `words, against, verdict, gives_up`, and `value, low, high`, factors where more is better."""
    columns = ["words", "against", "verdict", "gives_up", *_ENDS]
    answers = pd.DataFrame([vars(answer) for answer in entry.answers], columns=columns)
    factors = 1 + answers[_ENDS].astype(float) / 100
    factors[answers["verdict"].map(verdict_word).isin(["", "invalid"])] = np.nan
    if not entry.higher_is_better:
        factors = 1 / factors[["percent_change", "ci_high", "ci_low"]]
    return answers.drop(columns=_ENDS).join(factors.set_axis(["value", "low", "high"], axis=1))


def _factor_rows(answers: pd.DataFrame, labels: Sequence[Label]) -> tuple[Drawing, Axes, list[float]]:
    """Answers (with the number of their `row` among the labels) on an axis of factors."""
    marks = answers.assign(look=answers["verdict"].map(mark_of))
    shown = answers[["value", "low", "high"]].to_numpy(float)
    return rows(labels, marks, lambda axes: factor_axis(axes, shown), "← worse · better →", origin=1.0)


def _factor_labels(answers: pd.DataFrame, study: str = "") -> list[Label]:
    """A label for each answer: `1.97 ×`, or where there is no number the verdict."""
    labels = []
    for row in answers.to_dict("records"):
        width = row["high"] - row["low"]
        digits = 0 if width >= 10 else 1 if width >= 1 else 2
        change = f"{row['value']:,.{digits}f}\u00a0×" if known(row["value"]) else "no verdict"
        cell = (change, mark_of(row["verdict"]).colour)
        name = f"{study}{row['words']}{DAGGER * bool(row['gives_up'])}"
        labels.append(Label(name, f"against {row['against']}", [cell], chars=36))
    return labels


@styled
def half_normal(effects: pd.DataFrame, *, metric: str = "tps") -> Figure:
    """Effects by size, each beside what noise alone would give the one of its rank (after C. Daniel, 1959).

    `effects`: what `stats.crossed.effects` returned: `effect`; `percent, ci_low, ci_high, noise`
    (percent); `p_holm`.
    """
    noise = effects["noise"].to_numpy(float)
    opposite = 100 * (1 / (1 + noise / 100) - 1)  # the changes that undo these: of +100 % it is −50 %
    changes = _judged(effects[["percent", "ci_low", "ci_high", "p_holm"]], metric)
    changes["name"] = effects["effect"]
    drawing, axes, middles = _rows_of_changes(changes, "effect", also=[*noise, *opposite])
    axes.fill_betweenx(middles, opposite, noise, color=BAND, linewidth=0, zorder=0.5)
    large = changes[changes["verdict"] != "inconclusive"]
    names = [f", most {short(row['name'])}: {_in_words(row)}" for row in large.head(1).to_dict("records")]
    caption = "Shaded: what noise alone would give the effect of that rank (half-normal; C. Daniel, 1959)."
    if not known(noise[0]):
        caption = "There is no error to tell noise by."
    caption += " Verdicts: at 5 % (Holm). Bars: single 95 % intervals."
    title = finding(f"{len(large)} of {len(changes)} effects stand out of the noise", *names)
    numbers = changes[["name", *_ENDS, "verdict"]].assign(noise=noise)
    return render(f"half-normal-{metric}", drawing, title, caption, numbers)


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
    boxes = changes.copy()
    boxes[_ENDS] = 100 * ((1 + changes[_ENDS] / 100).mul(1 + before / 100, axis=0) - 1)
    so_far = [(signed(total), INK) for total in totals["percent_change"]]
    changes["last"] = [*so_far, ("", INK)][: len(changes)]
    of, heads = metric_or_guess(metric).title, ["step", "", "", "so far"]
    drawing, axes, middles = _rows_of_changes(changes, f"change of {of}", before, boxes, heads=heads)
    for number, (base, box, y) in enumerate(zip(before, boxes.to_dict("records"), middles, strict=True)):
        end, colour = box["percent_change"], mark_of(box["verdict"]).colour
        axes.barh(y, end - base, 12, left=base, facecolor=BAND, edgecolor=colour, zorder=1.6)
        if number + 1 < len(steps):
            axes.plot([end] * 2, [y, middles[number + 1]], color=MUTED, linewidth=0.8, zorder=1.4)
    last, differ = changes.iloc[-1].to_dict(), int((steps["verdict"] != "inconclusive").sum())
    title = finding(
        f"{last['name']}: {_in_words(last)} {of}, {last['verdict']}",
        f"; {differ} of {len(steps)} steps significant" * (len(steps) > 1),
        f"; from {short(start)}",
    )
    caption = f"Boxes: each step on top of those before, against {start}. Lines: adjusted 95 % intervals of its own change."
    return render(f"waterfall-{start}", drawing, title, caption, changes[["name", *_ENDS, "verdict"]])


def _judged(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A change, its interval and its p value (four columns) as an analysis has them."""
    changes = table.set_axis([*_ENDS, "p"], axis=1)
    better, worse = metric_or_guess(metric).directions
    verdicts = np.where(changes["percent_change"] < 0, worse, better)
    return changes.assign(verdict=np.where(changes["p"] < _ALPHA, verdicts, "inconclusive"))
