"""What a gate says of kept studies: as text, as Markdown for a comment, as JUnit's XML for any CI."""

import re
from collections.abc import Sequence

from benchlib.errors import BenchlibError
from benchlib.plan.words import printable
from benchlib.report.answers import words_of
from benchlib.report.figures.frames import change_words, rows_of
from benchlib.report.figures.style import TEMPLATES
from benchlib.stats import Analysis
from benchlib.stats.gate import PASSED, SLOWER, UNKNOWN, gate
from benchlib.study.experiment import shown
from benchlib.study.loop import missing
from benchlib.study.store import StudyFolder

NOISE = "noise"
Row = tuple[str, ...]
"""Of a comparison in words: outcome (one of the gate's, of a control ``noise``), study, comparison, change, reason."""
_NO_XML = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_study(name: str, tolerance: float | None) -> list[Row]:
    """Hold the comparisons that a study's notebook declares as its answers against a gate, or all where it has none.

    What was planned and is not there counts: nothing passes for want of data. The tolerance, a fraction, is the study's
    margin where none is given.

    Raises:
        InputError: there is no such study, or it is damaged.

    """
    experiment = shown(StudyFolder(name))
    study, factor = experiment.study, experiment.plan.factor
    asked = [level for level in factor.pairs() if level not in factor.controls]
    levels = [level for level in words_of(study) if level in asked] or asked or [factor.baseline]
    left_out = [_row(UNKNOWN, name, level, "", f"left out: {why}") for level, why in study.left_out.items()]
    limit = experiment.plan.margin if tolerance is None else tolerance
    try:
        rows = gated(name, experiment.analysis, levels, limit)
        if (trials := len(missing(study, experiment.kept))) and not experiment.settled():
            why = f"not complete: {trials} of its {len(study.trials)} trials are missing"
            rows.append(_row(UNKNOWN, name, "every trial", "", why))
        return [*rows, *left_out]
    except BenchlibError as reason:
        return [_row(UNKNOWN, name, ", ".join(levels), "", str(reason)), *left_out]


def gated(name: str, analysis: Analysis, levels: Sequence[str], tolerance: float) -> list[Row]:
    """What a gate says of some levels, and after them what the controls show of the noise."""
    words = {level: change_words(row) for level, row in rows_of(analysis).items()}
    pairs, outcomes = analysis.against, {level: gate(analysis, level, tolerance) for level in levels}
    outcomes |= dict.fromkeys(analysis.controls, (NOISE, "the A/A control, which is the baseline once more"))
    return [
        _row(outcome, name, f"{level} against {pairs.get(level, 'nothing')}", words.get(level, ""), why)
        for level, (outcome, why) in outcomes.items()
    ]


def status(rows: Sequence[Row]) -> int:
    """The exit status: 0 where all pass, 3 where one is slower than tolerated, else 4."""
    outcomes = {outcome for outcome, *_ in rows} - {NOISE}
    return 3 if SLOWER in outcomes else 0 if outcomes == {PASSED} else 4


def written(rows: Sequence[Row], form: str = "text", pages: str = "") -> str:
    """The rows as text, markdown or junit; ``pages`` is what links to the studies' pages begin with."""
    return TEMPLATES.get_template(f"gate.{form}.j2").render(rows=rows, pages=pages).strip()


def _row(*words: str) -> Row:
    """Somebody's words without line ends and characters that a terminal obeys or no XML may hold."""
    return tuple(_NO_XML.sub("", printable(" ".join(text.split()))) for text in words)
