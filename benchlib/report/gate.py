"""The gate over saved studies, as text, Markdown or JUnit's XML."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from benchlib.errors import StudyError
from benchlib.plan.metrics import percent_words
from benchlib.plan.words import printable
from benchlib.report.site import data_of
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate
from benchlib.study.store import StudyFolder

NOISE = "noise"
Row = tuple[str, ...]
"""A comparison in words: outcome (of a control ``noise``), study, comparison, change, reason."""
_NO_XML = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LOADER = jinja2.FileSystemLoader(Path(__file__).parent / "template")
_TEMPLATES = jinja2.Environment(loader=_LOADER, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def gate_study(name: str, tolerance: float | None, *, by_query: bool = False) -> list[Row]:
    """Gate the answers of a study, or all comparisons if it declares none.

    Nothing passes without data. ``tolerance`` is a fraction, by default the study's margin.

    Raises:
        InputError: there is no such study, or it is damaged.
    """
    try:
        data = data_of(name)
    except StudyError as reason:
        factor = StudyFolder(name).read().plan.factor
        levels = [level for level in factor.pairs() if level not in factor.controls] or [factor.baseline]
        return [_row(UNKNOWN, name, ", ".join(levels), "", str(reason))]
    counting = [*data.answers, *(row for row in data.comparisons if row.level in data.controls)]
    limit = data.margin if tolerance is None else tolerance
    gated_rows = gated(name, [row.model_dump() for row in counting], data.model_dump(), limit)
    if by_query:
        answers = {answer.level for answer in data.answers}
        queries = [
            {**row.model_dump(), "level": f"{row.query}: {row.level}"}
            for row in data.queries
            if row.level in answers
        ]
        lower = {**data.model_dump(), "higher_is_better": False}
        gated_rows += gated(name, queries, lower, limit)
        if not queries:
            gated_rows.append(_row(UNKNOWN, name, "every query", "", "the study has no latency by query"))
    if data.complete:
        gated_rows.append(_row(UNKNOWN, name, "every trial", "", f"not complete: {data.complete}"))
    return gated_rows + [
        _row(UNKNOWN, name, level, "", f"left out: {why}") for level, why in data.left_out.items()
    ]


def gated(
    name: str, rows: Sequence[Mapping[str, Any]], attrs: Mapping[str, Any], tolerance: float
) -> list[Row]:
    """Gate a frame of effects; controls show the noise and come last."""
    words = []
    for row in sorted(rows, key=lambda row: row["level"] in attrs["controls"]):
        control = row["level"] in attrs["controls"]
        outcome, why = (NOISE, "the A/A control") if control else gate(row, attrs, tolerance)
        change, interval = percent_words(row["percent_change"], row["ci_low"], row["ci_high"])
        measured = f"{change} ({interval})" if interval else change.replace("–", "")
        words.append(_row(outcome, name, f"{row['level']} against {row['against']}", measured, why))
    return words


def status(rows: Sequence[Row]) -> int:
    """Return the exit status: 0 if all pass, 3 if one is slower than tolerated, else 4."""
    outcomes = {outcome for outcome, *_ in rows} - {NOISE}
    return 3 if SLOWER in outcomes else 0 if outcomes == {PASSED} else 4


def written(rows: Sequence[Row], form: str = "text", pages: str = "") -> str:
    """Return the rows as text, markdown or junit; ``pages`` is the site's address."""
    return _TEMPLATES.get_template(f"gate.{form}.j2").render(rows=rows, pages=pages).strip()


def _row(*words: str) -> Row:
    """Remove line ends and what XML forbids."""
    return tuple(_NO_XML.sub("", printable(" ".join(text.split()))) for text in words)
