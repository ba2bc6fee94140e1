"""Frames as HTML tables that can be read aloud, scrolled with the keyboard, and copied."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from benchlib.plan.metrics import confidence_words
from benchlib.plan.model import Study
from benchlib.report.figures.frames import (
    DAGGER,
    NOTHING,
    against_words,
    amount,
    by_value,
    change_cells,
    known,
    opening,
    reference_words,
    rows_of,
    said,
)
from benchlib.report.figures.style import TEMPLATES, mark_of, worded
from benchlib.stats import Analysis
from benchlib.stats.compare import SAME

Format = Callable[[Any], Any]
Rows = list[list[Any]]
_SEEN_AT_ONCE = 20  # rows
_ACROSS = 10
"""So many columns beside the first have room on a page and on paper."""


class Quiet(str):
    """A cell's words that say nothing new: muted, so that the others stand out."""

    quiet = True


@dataclass(frozen=True)
class Table:
    """A finished table; notebooks show its HTML."""

    caption: str
    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


def html_table(
    frame: pd.DataFrame,
    caption: str,
    *,
    formats: Mapping[str, Format] = NOTHING,
    labels: Mapping[str, str] = NOTHING,
    note: str = "",
    details: str = "",
    folded: bool | None = None,
) -> Table:
    """The frame's columns as they are, the first one heading its rows; the index is not shown.

    `formats` writes a column's values (default: four significant digits), `labels` its heading, with its
    unit. Numbers are aligned right; a missing value is an en dash that says "not measured". Words are escaped,
    markup (a link) is not. Below stand a `note` and, folded, `details`. The table itself is `folded` where it is not said
    if it has more than twenty rows.
    """
    columns, numbers = [str(column) for column in frame], {*formats, *map(str, frame.select_dtypes("number"))}
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    html = TEMPLATES.get_template("table.html.j2").render(
        caption=caption, note=note, details=details, rows=rows,
        folded=len(rows) > _SEEN_AT_ONCE if folded is None else folded,
        heads=[(labels.get(name) or name.replace("_", " "), name in numbers) for name in columns],
        writers=[formats.get(name, _written) for name in columns],
    )  # fmt: skip
    return Table(caption, html)


def of_levels(
    head: str, levels: Sequence[str], rows: Rows, caption: str, note: str = "", numbers: bool = True
) -> Table:
    """A table of rows, each with its name below `head` and a cell for each level; turned round where levels are many.

    Many are more than six, and more than the rows. `numbers` aligns all but the first column right. What is still too wide
    for a page goes below, in parts that each have the first column.
    """
    # of objects, since a column of texts would make plain ones of the muted
    frame = pd.DataFrame(rows, columns=[head, *levels], dtype=object)
    if len(levels) > max(len(frame), 6):
        frame = frame.set_index(head).T.rename_axis(index="level", columns=None).reset_index()
    heads = [str(column) for column in frame]
    formats: Mapping[str, Format] = dict.fromkeys(heads[1:], str) if numbers else NOTHING
    # a setting's or a level's name is as it is, underscores included
    labels = dict(zip(heads, heads, strict=True))
    parts = max(1, math.ceil((len(heads) - 1) / _ACROSS))
    size, shown = math.ceil((len(heads) - 1) / parts), ""
    for part in range(parts):
        columns = [0, *range(1 + part * size, min(1 + (part + 1) * size, len(heads)))]
        title = f"{caption} ({part + 1} of {parts})" if parts > 1 else caption
        below = note if part == parts - 1 else ""
        shown += html_table(frame.iloc[:, columns], title, formats=formats, labels=labels, note=below).html
    return Table(caption, shown)


def levels_table(study: Study) -> Table:
    """What differs between a study's levels, a column each, or a row where they are many; what they have in common is the note.

    What is as at the baseline is muted. A study that has no words for its levels shows what a crash may cost alone.
    """
    factor, words = study.plan.factor, study.levels_in_words
    names, rows, alike = list(factor.levels), list[list[str]](), []
    headings = {
        heading: [words[name][heading] for name in names] for heading in words.get(factor.baseline, ())
    }
    headings["a crash may cost"] = [_crash_cost(study, name) for name in names]
    for heading, cells in headings.items():
        if len(set(cells)) > 1 or len(headings) == 1:
            rows.append([heading, *cells])
        else:
            alike.append(f"{heading} = {cells[0]}")
    baseline = 1 + names.index(factor.baseline)
    rows = [[Quiet(cell) if cell == row[baseline] else cell for cell in row] for row in rows]
    note = f"The same at every level: {'; '.join(alike)}." if alike else ""
    return of_levels("what", names, rows, "What differs between the levels", numbers=False, note=note)


def _crash_cost(study: Study, name: str) -> str:
    """What a crash may cost at a level; of a server that is not ours nobody here knows."""
    if name not in study.crash_costs:
        return "not kept"
    level = study.plan.level(name)
    nothing = "nothing on the primary" if level.replication else "nothing"
    return "; ".join(study.crash_costs[name]) or ("not known of that server" if level.target else nothing)


def verdict_table(analysis: Analysis, *, durability: Mapping[str, str] = NOTHING) -> Table:
    """Each level's comparison, the answer first, and its mean and deviation.

    `durability` says, for each level that gives it up, what a crash may lose; those get a dagger.
    """
    metric, rows = analysis.metric, rows_of(analysis)
    lost = {level: text for level, text in durability.items() if level in rows}
    confidence = f"{confidence_words(analysis.alpha)} interval"
    spread = f"mean ± sd, {metric.unit}".rstrip(", ")
    records = []
    for level, row in rows.items():
        word = said(analysis, level, row["verdict"]) or None
        ceiling = ", ceiling" * (level in analysis.ceilings)
        change, interval = change_cells(row["percent_change"], row["ci_low"], row["ci_high"])
        record = {
            "level": level + DAGGER * (level in lost),
            "change": change if known(row["percent_change"]) else None,
            "verdict": word and f"{mark_of(word.partition(',')[0]).sign}\u00a0{word}{ceiling}",
            confidence: interval or None,
            "against": against_words(analysis, level).removeprefix("against "),
            spread: mean_words(row["mean"], row["sd"]),
            "n": str(row["n"]),
            "adjusted p": p_words(row["p_adjusted"]),
        }
        # beside "invalid" a figure would be read as a result
        if level not in analysis.against or row["verdict"] == "invalid":
            record |= dict.fromkeys(("change", confidence, "adjusted p"), "")
        if level not in analysis.against:
            record["verdict"] = "baseline" if level == analysis.baseline else "reference"
        records.append(record)
    table = pd.DataFrame(records, dtype=object).drop(columns=["against"] if analysis.one_reference else [])
    # what had no chance to show, more blocks will not show either
    asked = [level for level in analysis.asked if level not in analysis.unshown]
    needed = {level: blocks for level in asked if known(blocks := rows[level]["blocks_needed"])}
    facts = {"analysis": analysis, "lost": by_value(lost), "needed": needed}
    note, details = worded("verdict_note", facts), worded("verdict_details", facts)
    caption = f"{opening(metric.title)}, and its change against {reference_words(analysis)}"
    formats = dict.fromkeys(table.columns.difference(["level", "verdict", "against"]), str)
    return html_table(table, caption, formats=formats, note=note, details=details, folded=False)


def mean_words(mean: float, deviation: float) -> str | None:
    """`1.234 ± 0.056`: the deviation with two significant digits, the mean to the same place; four without one; None where there is none."""
    if not known(mean):
        return None
    if not known(deviation) or deviation <= SAME * abs(mean):  # which is of the arithmetic
        return amount(mean)
    places = max(1 - math.floor(math.log10(deviation)), 0)
    return f"{mean:,.{places}f} ± {deviation:,.{places}f}"


def p_words(p: Any) -> str | None:
    """A p-value as a reader needs it: `0.034`, `< 0.001`; None where there is none."""
    if not known(p):
        return None
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _written(value: Any) -> Any:
    """A number with four significant digits; words and links as they are."""
    return amount(value) if known(value) and not isinstance(value, bool) else value
