"""Changes in rows with their intervals: levels, single parameters, effects, steps of a ladder, all studies."""

import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from benchlib.plan.metrics import confidence_words, described, percent_words
from benchlib.plan.planning import PANELS
from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.frames import (
    DAGGER,
    NOTHING,
    SAYS_BOTH,
    TITLE,
    UNSHOWN,
    Row,
    against_words,
    change_words,
    finding,
    known,
    quoted,
    reference_words,
    rows_of,
    said,
    short,
    signed,
    standing,
    wrapped,
)
from benchlib.report.figures.layout import FAR, ROW, WIDTH, Label, Pair, rows, styled
from benchlib.report.figures.style import BAND, INK, MARKS, MUTED, PAPER, mark_of
from benchlib.stats import Analysis

_SOUND = ["faster", "slower", "equivalent", "inconclusive"]
"""The verdicts whose numbers are to be believed."""
_ENDS, _PLACES = ["percent_change", "ci_low", "ci_high"], ["value", "low", "high"]
_NOT_SHOWN = "cannot be shown"
_SHORT = {UNSHOWN: _NOT_SHOWN}
"""What rows of figures have room for."""
_CARD = 264.6  # points: WIDTH × this is 1200 × 630 pixels at the card's resolution
_ON_CARD = 3


def _rows_of_changes(
    changes: pd.DataFrame, title: str, also: Iterable[float] = (), drawn: pd.DataFrame | None = None
) -> tuple[Drawing, Axes, list[float]]:
    """A row for each change, on an axis of factors that shows those in `also`, too.

    `changes`: `name, percent_change, ci_low, ci_high, verdict`, and perhaps `quiet` words below the name. `drawn` has other
    factors for the same rows.
    """
    labels = [Label(row["name"], row.get("quiet", ""), _cells(row)) for row in changes.to_dict("records")]
    marks = (_factor(changes[_ENDS]) if drawn is None else drawn).set_axis(_PLACES, axis=1)
    marks = marks.assign(row=range(len(marks)), look=changes["verdict"].map(mark_of))
    return rows(labels, marks, title, also)


def _factor(percent: Any) -> Any:
    return 1 + percent.astype(float) / 100


def _cells(row: Row) -> list[Pair]:
    """A change, its interval and its verdict, with their colours; words where a number is missing."""
    if not known(row["percent_change"]):
        return [("–", INK), ("not measured", MUTED), ("", INK)]
    change, between = percent_words(*(float(row[end]) for end in _ENDS))
    verdict = row["verdict"] if isinstance(row["verdict"], str) else ""
    word = row.get("said") or verdict
    return [
        (change, INK),
        (between or "no interval", MUTED),
        (_SHORT.get(word, word), mark_of(verdict).colour),
    ]


@styled
def forest(
    analysis: Analysis, *, durability: Mapping[str, str] = NOTHING, words: Mapping[str, str] = NOTHING
) -> Figure:
    """Percentage change of every level against the baseline, with its interval and verdict; dots are single blocks.

    `durability` says, for each level that gives it up, what a crash may lose; those get a dagger. `words` are what
    levels that answer the study's question are called, the one that the title tells of first.
    """
    changes = analysis.table[analysis.table["level"].isin(list(analysis.against))]
    levels, twins, margin = changes["level"].astype(str).tolist(), analysis.controls, analysis.margin
    lost = {level: loss for level, loss in durability.items() if level in levels}
    names = [
        level + DAGGER * (level in lost) + " (baseline once more)" * (level in twins) for level in levels
    ]
    called = {level: said for level, said in words.items() if said != level}
    quiet = [against_words(analysis, level) or called.get(level, "") for level in levels]
    # the axis is for those that are to be believed
    factors, invalid = _factor(changes[_ENDS]), changes["verdict"].eq("invalid")
    least, most = factors[~invalid].min(axis=None), factors[~invalid].max(axis=None)
    far = invalid & ((factors < least / FAR) | (factors > most * FAR)).any(axis=1)
    near = changes["level"][~far]
    blocks = analysis.differences[analysis.differences["level"].isin(near)]
    dots = _factor(blocks["percent"])
    words_said = [said(analysis, *row) for row in zip(levels, changes["verdict"], strict=True)]
    also = (1 - 1.2 * margin, 1 + 1.2 * margin, *dots)
    named = changes.assign(name=names, quiet=quiet, said=words_said)
    drawing, axes, middles = _rows_of_changes(
        named, f"change of {analysis.metric.title}", also, factors.mask(far, axis=0)
    )
    axes.axvspan(1 - margin, 1 + margin, color=BAND, linewidth=0, zorder=0.5)
    y = blocks["level"].map(dict(zip(levels, middles, strict=True))) + 6
    axes.plot(dots, y, ".", color=MUTED, markersize=5, markeredgewidth=0)
    bars = (
        f"Bars: adjusted {confidence_words(analysis.alpha)} intervals, where wider than the mark; dots: single blocks; shaded: "
        f"±{100 * margin:g} %, the smallest change that matters."
    )
    caption = f"Against {reference_words(analysis)}. {bars}{f' {DAGGER} gives up durability.' * bool(lost)}"
    caption += f" Invalid, and too far off to be drawn: {quoted(changes['level'][far])}." * bool(far.any())
    title = _leads(analysis, words) if analysis.asked else "Nothing but the baseline was measured"
    return render("forest", drawing, title, caption, changes[["level", *_ENDS, "verdict"]])


@styled
def changes_by_study(
    name: str, changes: pd.DataFrame, title: str, axis: str, breaks: Sequence[bool] = ()
) -> Figure:
    """Changes that several studies found (see `_rows_of_changes`), in their order; a line stands above those in `breaks`.

    Shaded is how far their `control` arms strayed from their twins, where that is a column.
    """
    noise = _factor(changes.get("control", pd.Series(dtype=float)).dropna())
    drawing, axes, middles = _rows_of_changes(changes, axis, noise)
    for place in np.flatnonzero(breaks):
        axes.axhline(float(np.mean(middles[place - 1 : place + 1])), color=INK, linestyle=(0, (4, 3)))
    caption = "Bars: intervals, adjusted for the number of comparisons."
    if len(noise) > 1:
        axes.axvspan(noise.min(), noise.max(), color=BAND, linewidth=0, zorder=0.5)
        caption += " Shaded: lowest to highest change of the A/A controls."
    if any(breaks):
        caption += " Dashed: a change point."
    return render(name, drawing, title, caption, changes[["name", *_ENDS, "verdict"]])


def _leads(analysis: Analysis, called: Mapping[str, str]) -> str:
    """`the tuned set: +97 % throughput, faster (against defaults)`."""
    level = next((name for name in called if name in analysis.asked), analysis.asked[0])
    row = rows_of(analysis)[level]
    there = known(row["percent_change"]) or row["verdict"] == "invalid"
    verdict = row["verdict"] if there and row["verdict"] in MARKS else "not measured"
    verdict = UNSHOWN if there and level in analysis.unshown else verdict
    change = f"{change_words(row)} {analysis.metric.title}, " if verdict in (*_SOUND, UNSHOWN) else ""
    rest = f": {change}{verdict}"
    words = called.get(level, level)
    words = words if len(words + rest) <= TITLE else level
    title = textwrap.shorten(words, TITLE - len(rest), placeholder="…") + rest
    if SAYS_BOTH in words:
        return title
    against = against_words(analysis, level) or f"against {short(analysis.against[level])}"
    return finding(title, f" ({against})")


@styled
def shares(analysis: Analysis, full: str) -> Figure:
    """What each parameter gives alone (levels `only X`) and what is left without it (`without X`), below `full`, which has all of them."""
    names, changes = analysis.table["level"], analysis.table["percent_change"].astype(float)
    only, without = (names.str.startswith(start) for start in ("only ", "without "))
    kinds = np.select([names.eq(full), only, without], [1, 2, 3])
    gains = changes if analysis.metric.higher_is_better else -changes
    # the largest first, of what is left the smallest
    shown = analysis.table.assign(name=names, kind=kinds, size=gains.mask(only, -gains))
    shown = shown[kinds > 0].sort_values(["kind", "size"])
    drawing, *_ = _rows_of_changes(shown, f"change of {analysis.metric.title}")
    first = shown.drop_duplicates("kind").to_dict("records")
    texts = [f"; {short(row['name'])}: {change_words(row)}" for row in first]
    title = finding(f"What “{short(full)}” is made of", *texts)
    caption = (
        f"Only: {analysis.baseline} with one parameter changed. Without: {full} with one put back. "
        f"Bars: adjusted {confidence_words(analysis.alpha)} intervals."
    )
    return render("shares", drawing, title, caption, shown[["level", *_ENDS, "verdict"]])


@styled
def index_panels(entries: Sequence[Any]) -> Figure:
    """The answers of all studies, which come by panel, as factors, better to the right; a heading above each panel.

    Of an entry are read `title, panel, higher_is_better` and `answers`; of an answer `words, against, verdict, gives_up`
    and `percent_change, ci_low, ci_high`, percentages that are None or NaN where they are not known.
    """
    labels, parts = list[Label](), list[pd.DataFrame]()
    for panel, of_panel in groupby(entries, key=lambda entry: str(entry.panel)):
        labels.append(Label(PANELS[panel], chars=60, heading=True))
        for entry in of_panel:
            answers, of_answers = _answers(entry, f"{entry.title}: ")
            numbers = range(len(labels), len(labels) + len(answers))
            parts.append(answers.assign(panel=panel, study=entry.title, row=numbers))
            labels += of_answers
    answers = pd.concat(parts, ignore_index=True)
    drawing, axes, middles = _rows_of_answers(answers, labels)
    for label, middle in zip(labels, middles, strict=True):
        if label.heading:  # across the whole figure
            left, _, wide, _ = axes.get_position().bounds
            ends = {"xmin": -left / wide, "xmax": (1 - left) / wide, "clip_on": False}
            axes.axhspan(middle - ROW / 2, middle + ROW / 2, color=BAND, linewidth=0, zorder=2, **ends)
    counts = Counter(answers["verdict"])
    caption = (
        "Bars: each study's own intervals. Where less is better, as of latencies, half as much stands at 2 ×."
    )
    if answers["gives_up"].astype(bool).any():
        caption += f" {DAGGER} gives up durability."
    said = ", ".join(f"{counts[word]} {word}" for word in (*MARKS, UNSHOWN) if counts[word])
    title = f"Of {len(answers)} answers: {said}"
    return render("summary", drawing, title, caption, answers.drop(columns=["row", "gives_up"]))


@styled
def card(entry: Any) -> bytes:
    """A picture of 1200 × 630 pixels for links to a study: its title and its first answers (see `index_panels`). The same bytes each time."""
    answers, labels = _answers(entry)
    answers, labels = answers.head(_ON_CARD), labels[:_ON_CARD]
    drawing, axes, _ = _rows_of_answers(answers.assign(row=range(len(answers))), labels)
    left, _, wide, high = axes.get_position().bounds
    tall = min(high * 72 * drawing.get_figheight(), _CARD - 120)
    drawing.set_size_inches(WIDTH / 72, _CARD / 72)
    axes.set_position((left, (_CARD - 40 - tall) / 2 / _CARD, wide, tall / _CARD))
    title = textwrap.shorten(str(entry.title), 44, placeholder="…")
    drawing.text(0.03, 0.93, title, fontsize=18, fontweight="bold", va="top")
    drawing.text(0.03, 0.8, "\n".join(wrapped(str(entry.question), 80)), color=MUTED, va="top")
    drawing.text(0.97, 0.03, "benchlib", color=MUTED, ha="right")
    picture = io.BytesIO()
    drawing.savefig(picture, format="png", dpi=1200 / WIDTH * 72, facecolor=PAPER)
    return picture.getvalue()


def _answers(entry: Any, study: str = "") -> tuple[pd.DataFrame, list[Label]]:
    """An entry's answers, a row each: `words, against, verdict, gives_up`, and `value, low, high`, factors where more is better; and labels.

    A label says `+97 %`, as the study's page does, or where there is no number that there is no verdict.
    """
    columns = ["words", "against", "verdict", "gives_up", *_ENDS]
    answers = pd.DataFrame([vars(answer) for answer in entry.answers], columns=columns)
    factors = _factor(answers[_ENDS])
    factors[~answers["verdict"].isin(_SOUND)] = np.nan
    if not entry.higher_is_better:
        factors = 1 / factors[["percent_change", "ci_high", "ci_low"]]
    answers = answers.drop(columns=_ENDS).join(factors.set_axis(_PLACES, axis=1))
    labels = list[Label]()
    for row, told in zip(answers.to_dict("records"), entry.answers, strict=True):
        missing = _NOT_SHOWN if row["verdict"] == UNSHOWN else "no verdict"
        ends = (told.percent_change, told.ci_low, told.ci_high)
        change = percent_words(*ends)[0] if known(row["value"]) else missing
        name = f"{study}{row['words']}{DAGGER * bool(row['gives_up'])}"
        cells = [(change, mark_of(row["verdict"]).colour)]
        against = "" if SAYS_BOTH in row["words"] else f"against {row['against']}"
        labels.append(Label(name, against, cells, chars=36))
    return answers, labels


def _rows_of_answers(answers: pd.DataFrame, labels: Sequence[Label]) -> tuple[Drawing, Axes, list[float]]:
    """Answers (with the number of their `row` among the labels) on an axis of factors."""
    marks = answers.assign(look=answers["verdict"].map(mark_of))
    return rows(labels, marks, "← worse · better →", [0.5, 2.0], far=1.0)


@styled
def half_normal(effects: pd.DataFrame, *, metric: str = "tps", alpha: float = 0.05) -> Figure:
    """Effects by size, each beside what noise alone would give the one of its rank (after C. Daniel, 1959).

    `effects`: what `stats.crossed.effects` returned: `effect`; `percent, ci_low, ci_high, noise`
    (percent); `p_holm`. `alpha` is the error rate that it was told.
    """
    noise = _factor(effects["noise"]).to_numpy()
    verdicts = standing(effects["percent"], effects["p_holm"], metric, alpha)
    changes = effects[["percent", "ci_low", "ci_high"]].set_axis(_ENDS, axis=1)
    changes = changes.assign(name=effects["effect"], verdict=verdicts)
    drawing, axes, middles = _rows_of_changes(changes, "effect", [*noise, *1 / noise])
    axes.fill_betweenx(middles, 1 / noise, noise, color=BAND, linewidth=0, zorder=0.5)
    large = changes[changes["verdict"] != "inconclusive"]
    names = [f", most {short(row['name'])}: {change_words(row)}" for row in large.head(1).to_dict("records")]
    caption = "Each change averaged over all settings of the others. Shaded: what noise alone would give the effect of that rank."
    if not known(noise[0]):
        caption = "There is no error to tell noise by."
    caption += f" Verdicts: at {100 * alpha:.3g} % (Holm). Bars: single {confidence_words(alpha)} intervals."
    title = finding(f"{len(large)} of {len(changes)} effects stand out of the noise", *names)
    numbers = changes[["name", *_ENDS, "verdict"]].assign(noise=effects["noise"].to_numpy())
    return render(f"half-normal-{metric}", drawing, title, caption, numbers)


@styled
def waterfall(
    ladder: pd.DataFrame, *, start: str = "start", metric: str = "tps", alpha: float = 0.05
) -> Figure:
    """A cumulative ladder: what each step adds to the one before, and what all have brought so far.

    `ladder`: what `stats.crossed.ladder` returned: `level`; `step_percent, step_low, step_high`
    (percent of the step before), `step_verdict`; `total_percent, total_low, total_high` (percent of `start`),
    `total_verdict`. `start` is what the start is called, `alpha` the error rate that it was told.
    """
    kinds, columns = ("percent", "low", "high", "verdict"), [*_ENDS, "verdict"]
    step, total = ([f"{of}_{kind}" for kind in kinds] for of in ("step", "total"))
    steps, totals = (ladder[names].set_axis(columns, axis=1) for names in (step, total))
    # all of them together have a row of their own
    everything = totals.tail(1 if len(steps) > 1 else 0).assign(name=f"all {len(steps)} steps")
    changes = pd.concat([steps.assign(name=ladder["level"].astype(str)), everything], ignore_index=True)
    # a step begins where those before it have led, and its interval lies around that
    before = np.array([1.0, *_factor(totals["percent_change"].iloc[:-1]), *[1.0] * len(everything)])
    boxes = _factor(changes[_ENDS]).mul(before, axis=0)
    so_far = [f"so far {signed(total)}" for total in totals["percent_change"]]
    changes["quiet"] = [*so_far, ""][: len(changes)]
    of = described(metric).title
    drawing, axes, middles = _rows_of_changes(changes, f"change of {of}", before, boxes)
    ends, colours = boxes["percent_change"], [mark_of(verdict).colour for verdict in changes["verdict"]]
    axes.barh(middles, ends - before, 12, left=before, facecolor=BAND, edgecolor=colours, zorder=1.6)
    for number, end in enumerate(ends[: len(steps) - 1]):
        axes.plot([end] * 2, middles[number : number + 2], color=MUTED, linewidth=0.8, zorder=1.4)
    last, differ = changes.iloc[-1].to_dict(), int(steps["verdict"].isin(["faster", "slower"]).sum())
    title = finding(
        f"{last['name']}: {change_words(last)} {of}, {last['verdict']}",
        f"; {differ} of {len(steps)} steps significant" * (len(steps) > 1),
        f"; from {short(start)}",
    )
    caption = (
        f"Boxes: each step on top of those before, against {start}. Lines: {confidence_words(alpha)} intervals of its own "
        "change, adjusted for this ladder alone."
    )
    return render(f"waterfall-{start}", drawing, title, caption, changes[["name", *_ENDS, "verdict"]])
