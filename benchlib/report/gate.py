"""The gate over saved studies, as text, Markdown or JUnit's XML."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchlib.errors import StudyError
from benchlib.plan.planning import answer_words
from benchlib.plan.words import printable, private_texts, without
from benchlib.report.model import change_words
from benchlib.report.page import render
from benchlib.report.site import data_of
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate
from benchlib.study.store import StudyFolder

NOISE = "noise"
Row = tuple[str, ...]
"""A comparison in words: outcome (of a control ``noise``), study, comparison, change, reason."""
_NO_XML = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
    limit, attrs = data.margin if tolerance is None else tolerance, data.model_dump()
    gated_rows = gated(name, [row.model_dump() for row in counting], attrs, limit)
    unknown = [(level, f"left out: {why}") for level, why in data.left_out.items()]
    study, there = StudyFolder(name).read(), {row.level for row in data.comparisons}
    if not study.declared.screen:
        answers = without([*answer_words(study)], private_texts(study))
        gated_rows += without_reference(name, [level for level in answers if level not in there])
    if data.complete:
        unknown.insert(0, ("every trial", f"not complete: {data.complete}"))
    if by_query:
        answers = {answer.level for answer in data.answers}
        queries = [
            row.model_copy(update={"level": f"{row.query}: {row.level}"}).model_dump()
            for row in data.queries
            if row.level in answers
        ]
        gated_rows += gated(name, queries, {**attrs, "higher_is_better": False}, limit)
        if not queries:
            unknown.insert(0, ("every query", "the study has no latency by query"))
    return gated_rows + [_row(UNKNOWN, name, what, "", why) for what, why in unknown]


def without_reference(name: str, levels: Iterable[str]) -> list[Row]:
    """Return rows of levels without a usable reference."""
    why = "no verdict: the level that it is compared with has no good trial"
    return [_row(UNKNOWN, name, level, "", why) for level in levels]


def gated(
    name: str, rows: Sequence[Mapping[str, Any]], attrs: Mapping[str, Any], tolerance: float
) -> list[Row]:
    """Gate a frame of effects; controls show the noise and come last."""
    words = []
    for row in sorted(rows, key=lambda row: row["level"] in attrs["controls"]):
        control = row["level"] in attrs["controls"]
        outcome, why = (NOISE, "the A/A control") if control else gate(row, attrs, tolerance)
        measured = change_words(row["percent_change"], row["ci_low"], row["ci_high"])
        words.append(_row(outcome, name, f"{row['level']} against {row['against']}", measured, why))
    return words


def status(rows: Sequence[Row]) -> int:
    """Return the exit status: 0 if all pass, 3 if one is slower than tolerated, else 4."""
    outcomes = {outcome for outcome, *_ in rows} - {NOISE}
    return 3 if SLOWER in outcomes else 0 if outcomes == {PASSED} else 4


def written(rows: Sequence[Row], form: str = "text", pages: str = "") -> str:
    """Return the rows as text, markdown or junit; ``pages`` is the site's address."""
    return render(f"gate.{form}.j2", rows=rows, pages=pages).strip()


def _row(*words: str) -> Row:
    """Remove line ends and what XML forbids."""
    return tuple(_NO_XML.sub("", printable(" ".join(text.split()))) for text in words)
