"""Frames as HTML tables that can be read aloud, scrolled with the keyboard, and copied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import jinja2
import pandas as pd
from markupsafe import Markup

from benchlib.report.figures.figure import EDITOR_CSS
from benchlib.report.figures.frames import (
    DAGGER,
    against_words,
    amount,
    given_up,
    interval,
    known,
    opening,
    reference_words,
    rows_of,
    signed,
)
from benchlib.report.figures.style import mark_of
from benchlib.stats import Analysis

Format = Callable[[Any], str]
_NO_FORMATS: Mapping[str, Format] = MappingProxyType({})
_NO_WORDS: Mapping[str, str] = MappingProxyType({})

TABLE_CSS = (
    ".bl-scroll{overflow-x:auto;margin:1.5em 0;max-width:100%}"
    ".bl-table{border-collapse:collapse;font-size:.88em;line-height:1.35;font-variant-numeric:tabular-nums}"
    ".bl-table caption{text-align:left;padding-bottom:.5em;font-weight:600}.bl-table caption span{"
    "display:inline-block;position:sticky;left:0;max-width:min(45rem,calc(100vw - 2.5rem))}"
    "table.bl-table th,table.bl-table td{padding:.35em .75em .35em 0;text-align:left;vertical-align:top;"
    "border:0;border-bottom:1px solid var(--bl-grid,#dde0e6);background:none}"
    ".bl-table thead th{border-bottom:1px solid var(--bl-muted,#5c6370);vertical-align:bottom}"
    "table.bl-table .bl-number{text-align:right;white-space:pre}.bl-table th{font-weight:600}"
    ".bl-table thead .bl-number{white-space:normal}.bl-table tbody th{min-width:7em}"
    "table.bl-table .bl-quiet{color:var(--bl-muted,#5c6370)}.bl-table abbr{text-decoration:none}.bl-note{font-size:.9em;margin:.5em 0 0}"
)

_TEMPLATE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """\
<div class="bl-scroll" role="region" tabindex="0" aria-label="{{ caption }}">\
<style>{{ css }}</style>
<table class="bl-table">
<caption><span>{{ caption }}</span></caption>
<thead><tr>
{% for head, kind in heads %}
<th scope="col"{% if kind %} class="bl-number"{% endif %}>{{ head }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>
{% for cell, kind, quiet, ground in row %}
{% set tag = "th" if loop.first else "td" %}
<{{ tag }}{% if loop.first %} scope="row"{% endif %}{% if kind %} class="bl-number"{% elif quiet %} class="bl-quiet"{% endif %}
{%- if ground %} style="background:{{ ground }}"{% endif %}>
{%- if cell is none %}<abbr title="not measured">–</abbr>{% else %}{{ cell }}{% endif -%}
</{{ tag }}>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
{% if note %}
<p class="bl-note">{{ note }}</p>
{% endif %}
</div>"""
)


class Quiet(str):
    """A cell's words that say nothing new: muted, so that the others stand out."""


class Shaded(str):
    """A cell's words on a ground whose colour, a CSS one that suits light and dark pages, repeats what they say."""

    __slots__ = ("ground",)
    ground: str

    def __new__(cls, text: str, ground: str) -> Self:
        """The words, and the colour of their ground."""
        made = super().__new__(cls, text)
        made.ground = ground
        return made


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
    formats: Mapping[str, Format] = _NO_FORMATS,
    labels: Mapping[str, str] = _NO_WORDS,
    note: str = "",
) -> Table:
    """The frame's columns as they are, the first one heading its rows; the index is not shown.

    `formats` writes a column's values (default: four significant digits), `labels` its heading, with its
    unit. Numbers are aligned right; a missing value is an en dash that says "not measured". Words are escaped,
    `Markup` (a link) is not.
    """
    numeric = [pd.api.types.is_numeric_dtype(frame[c]) and frame[c].dtype != bool for c in frame]
    aligned = [kind or str(c) in formats for kind, c in zip(numeric, frame, strict=True)]
    heads = [
        (labels.get(str(c), str(c).replace("_", " ")), kind) for c, kind in zip(frame, aligned, strict=True)
    ]
    writers = [formats.get(str(c), _written) for c in frame]
    rows = [
        [
            (_cell(value, write), kind, isinstance(value, Quiet), getattr(value, "ground", ""))
            for value, write, kind in zip(row, writers, aligned, strict=True)
        ]
        for row in frame.itertuples(index=False, name=None)
    ]
    return Table(
        caption,
        _TEMPLATE.render(caption=caption, heads=heads, rows=rows, note=note, css=TABLE_CSS + EDITOR_CSS),
    )


def of_levels(frame: pd.DataFrame, caption: str, *, numbers: bool, note: str = "") -> Table:
    """A table whose first column heads its rows and whose others are levels, or the other way round where they are many.

    Many are more than six, and more than the rows. `numbers` aligns all but the first column right.
    """
    rows, levels = frame.shape[0], frame.shape[1] - 1
    if levels > max(rows, 6):
        frame = frame.set_index(frame.columns[0]).T.rename_axis(index="level", columns=None).reset_index()
    heads = [str(column) for column in frame]
    formats: Mapping[str, Format] = dict.fromkeys(heads[1:], str) if numbers else _NO_FORMATS
    # a setting's or a level's name is as it is, underscores included
    labels = dict(zip(heads, heads, strict=True))
    return html_table(frame, caption, formats=formats, labels=labels, note=note)


def verdict_table(
    analysis: Analysis, *, durability: Mapping[str, str] = _NO_WORDS, caption: str = ""
) -> Table:
    """Means and deviations of every level, and its comparison with the baseline.

    `durability` says, for each level that gives it up, what a crash may lose; those get a dagger.
    """
    metric, rows = analysis.metric, rows_of(analysis)
    lost = {level: text for level, text in durability.items() if level in rows}
    unit = f", {metric.unit}" if metric.unit else ""
    confidence = f"{100 * (1 - analysis.alpha):.3g} % interval"
    # The answer first: on a phone the first columns are what is seen before scrolling.
    columns = [
        "level",
        *([] if analysis.one_reference else ["compared"]),
        "change",
        confidence,
        "verdict",
        f"mean ± sd{unit}",
        "cv, %",
        "n",
        "p",
        "adjusted p",
    ]
    table = pd.DataFrame(
        [
            (
                level + (DAGGER if level in lost else ""),
                *([] if analysis.one_reference else [against_words(analysis, level)]),
                *_compared(row, level, analysis),
                f"{amount(row['mean'])} ± {amount(row['sd'])}" if known(row["mean"]) else None,
                f"{row['cv']:.1f}" if known(row["cv"]) else None,
                str(row["n"]),
                *(
                    [p_words(row["p_value"]), p_words(row["p_adjusted"])]
                    if level in analysis.against
                    else ["", ""]
                ),
            )
            for level, row in rows.items()
        ],
        columns=columns,
    )
    note = "± one standard deviation between trials. p is adjusted for the number of levels."
    if lost:
        note += f" {DAGGER} gives up durability: " + "; ".join(given_up(lost)) + "."
    about = (
        caption
        or f"{opening(metric.title)} of each level, and its change against {reference_words(analysis)}"
    )
    return html_table(table, about, formats={c: str for c in columns[1:] if c != "verdict"}, note=note)


def _compared(row: Mapping[Any, Any], level: str, analysis: Analysis) -> tuple[str | None, ...]:
    if level not in analysis.against:
        return "", "", "baseline" if level == analysis.baseline else "reference"
    verdict = row["verdict"] if isinstance(row["verdict"], str) else None
    return (
        signed(row["percent_change"]) if known(row["percent_change"]) else None,
        interval(row["ci_low"], row["ci_high"]) if known(row["ci_low"], row["ci_high"]) else None,
        verdict and f"{mark_of(verdict).sign}\u00a0{verdict}",
    )


def p_words(p: Any) -> str | None:
    """A p-value as a reader needs it: `0.034`, `< 0.001`; None where there is none."""
    if not known(p):
        return None
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _cell(value: Any, write: Format) -> str | None:
    missing = pd.api.types.is_scalar(value) and pd.isna(value)
    return None if missing else write(value)


def _written(value: Any) -> str:
    if isinstance(value, Markup):
        return value  # a link
    return amount(value) if known(value) and not isinstance(value, bool) else str(value)
