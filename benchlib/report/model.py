"""A page as data; the index and several commands read it too."""

import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from benchlib.plan.metrics import percent_words
from benchlib.plan.model import Study
from benchlib.plan.planning import SAYS_BOTH
from benchlib.plan.words import private_texts, without
from benchlib.stats.limits import ANSWER, EXPLORATORY, SENTENCES

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number; null in JSON if it is unknown."""

DATA = "application/vnd.benchlib+json"
"""The type of a notebook's output with a frame's rows: ``kind, rows, attrs``."""
ABOUT = "benchlib"
"""The metadata of a figure's output: ``title, caption, alt, csv``."""
Node = Any
"""A notebook, or a cell of one, as nbformat has it: a dictionary with attributes."""

VERDICTS = {
    "faster": "{level} was faster than {against}: {change}.",
    "slower": "{level} was slower than {against}: {change}.",
    "equivalent": "{level} and {against} were equivalent within ±{margin}: {change}.",
    "inconclusive": "{level} against {against} is inconclusive: {change}.",
    "stands out": "{level} stands out from {against}, not confirmed: {change}.",
    "invalid": "{level} against {against} has no valid result.",
    "differs by host": "The effect of {level} against {against} differs by host.",
}
"""One sentence for each verdict."""


def change_words(change: float, low: float, high: float) -> str:
    """Return a change with its interval in one text; empty if unknown."""
    words, interval = percent_words(change, low, high)
    return f"{words} ({interval})" if interval else words.replace("–", "")


class Answer(BaseModel, frozen=True):
    """A comparison: ``base`` and ``mean`` in the metric's unit, changes in percent, NaN if unknown.

    - ``answer``: a reader's words, if the comparison answers the question
    - ``family``: ``answer``, ``exploratory`` or ``control``; each has its own error rate
    - ``unmet``: the conditions that were not met
    """

    level: str
    against: str
    answer: str = ""
    family: str = ""
    n: int = 0
    base: Number
    mean: Number
    percent_change: Number
    ci_low: Number
    ci_high: Number
    equal_low: Number
    equal_high: Number
    p_value: Number
    p_adjusted: Number
    verdict: str | None = None
    mde_percent: Number
    blocks_needed: Number
    error: Number = math.nan
    df: Number = math.nan
    limit: str = ""
    unmet: str = ""

    @property
    def words(self) -> str:
        """The words for the level."""
        return self.answer or self.level

    @property
    def reference(self) -> str:
        """The other level; empty if the words name both."""
        return "" if self._says_both else self.against

    @property
    def _says_both(self) -> bool:
        return SAYS_BOTH in self.answer and self.answer != self.level

    @property
    def has_bar(self) -> bool:
        """Whether it can be drawn: it is valid and has an interval."""
        numbers = self.percent_change, self.ci_low, self.ci_high
        return self.verdict != "invalid" and not any(map(math.isnan, numbers))

    @property
    def change(self) -> tuple[str, str]:
        """The change and its interval in words; empty if invalid."""
        if self.verdict == "invalid":
            return "", ""
        return percent_words(self.percent_change, self.ci_low, self.ci_high)

    def sentence(self, title: str, margin: float) -> str:
        """Return the fixed sentence of the verdict."""
        change, interval = self.change
        measured = f"{change} {title}" + (f" [{interval.replace(' to ', ', ')}]" if interval else "")
        template = VERDICTS.get(self.verdict or "", "{level} against {against}: {change}.")
        level, _, other = self.words.partition(SAYS_BOTH if self._says_both else "\0")
        values = {"level": level, "against": other or self.against, "margin": f"{100 * margin:g} %"}
        text = template.format(change=measured, **values)
        return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


class QueryAnswer(Answer, frozen=True):
    """A comparison of one query; latencies in ms.

    - ``share_percent``: of the time of all transactions, at the reference
    - ``plan``: ``same``, how it changed, or None
    """

    query: str
    share_percent: Number = math.nan
    base_p95: Number = math.nan
    mean_p95: Number = math.nan
    plan: str | None = None


class Limit(BaseModel, frozen=True):
    """A limit of the answers; a row of ``study.limits(effects)``."""

    code: str
    level: str | None = None
    value: str = ""
    text: str
    grave: bool = False

    @property
    def advice(self) -> tuple[str, str]:
        """The reason and the advice."""
        sentence = SENTENCES.get(self.code)
        return (sentence.why, sentence.do) if sentence else ("", "")


class PageData(BaseModel):
    """The content of a page outside the notebook's own outputs.

    - ``comparisons``: the answers first, the controls last
    - ``level_marks``: equal for equal pairs of levels, in other studies too
    - ``fingerprint``: of the study and the code; ``page``: also of the notebook
    - ``cells``: a grid's dimensions by level
    """

    name: str
    title: str
    question: str
    notebook: str = ""
    panel: str = "changes"
    metric: str
    metric_title: str
    unit: str = ""
    higher_is_better: bool = True
    margin: float
    alpha: float
    exploratory_alpha: float | None = None
    blocks: int
    baseline: str
    controls: tuple[str, ...] = ()
    comparisons: tuple[Answer, ...]
    queries: tuple[QueryAnswer, ...] = ()
    limits: tuple[Limit, ...] = ()
    setup: dict[str, str] = {}
    created: str = ""
    measured_at: str = ""
    benchlib: str = ""
    level_marks: dict[str, str] = {}
    complete: str = ""
    fingerprint: str = ""
    page: str = ""
    left_out: dict[str, str] = {}
    cells: dict[str, dict[str, str]] = {}

    @property
    def effects(self) -> list[Answer]:
        """The comparisons without the controls."""
        return [answer for answer in self.comparisons if answer.level not in self.controls]

    @property
    def answers(self) -> list[Answer]:
        """The comparisons that answer the question; all if none is declared."""
        return [answer for answer in self.comparisons if answer.answer] or self.effects

    @property
    def others(self) -> list[Answer]:
        """The other comparisons."""
        answers = self.answers
        return [each for each in self.comparisons if each not in answers]

    @property
    def exploratory(self) -> bool:
        """Whether the other comparisons are a family of their own."""
        return {ANSWER, EXPLORATORY} <= {each.family for each in self.comparisons}

    def sentences(self) -> list[tuple[str, str]]:
        """Return each answer's verdict and sentence."""
        return [(each.verdict or "", each.sentence(self.metric_title, self.margin)) for each in self.answers]


def page_data(
    study: Study, frames: Mapping[str, Mapping[str, Any]], *, name: str, missing: int = 0
) -> PageData:
    """Return a page from its notebook's frames by kind (see :func:`benchlib.study.frames.as_data`)."""
    effects, limits = frames["effects"], frames.get("limits", {"rows": (), "attrs": {}})
    attrs = effects["attrs"]
    by_level, unmet = (limits["attrs"].get(key, {}) for key in ("by_level", "unmet"))
    rows = [
        {**row, "limit": by_level.get(row["level"], ""), "unmet": unmet.get(row["level"], "")}
        for row in effects["rows"]
    ]
    marks = dict[str, str]()
    for level, other in study.plan.factor.pairs().items():
        both = f"{study.plan.level(level)} {study.plan.level(other)}"
        marks[level] = hashlib.sha256(both.encode()).hexdigest()[:16]
    created = str(study.provenance.get("created", ""))
    cells = {
        level: {name: str(value) for name, value in cell.items()}
        for level, cell in study.plan.factor.cells.items()
    }
    fields = {
        "name": name, "title": study.title, "question": study.plan.factor.question, "notebook": study.notebook or "",
        "panel": study.declared.panel, "metric_title": attrs["title"], "comparisons": rows, "limits": limits["rows"],
        "queries": frames.get("queries", {"rows": ()})["rows"],
        "setup": {row["what"]: row["value"] for row in frames.get("setup", {"rows": ()})["rows"]},
        "created": created[:10], "measured_at": created, "benchlib": str(study.provenance.get("benchlib", "")),
        "level_marks": marks, "complete": f"{missing} trials are missing" if missing else "", "left_out": study.left_out, "cells": cells,
    }  # fmt: skip
    return PageData.model_validate(without(attrs | fields, private_texts(study)))


def repeat_command(name: str, comparison: Mapping[str, Any]) -> str:
    """Return the command that gives the answers from downloaded trials."""
    from benchlib.study.frames import guarded  # the file has guarded names

    metric, alpha, pairs = comparison["metric"], comparison["alpha"], comparison["against"].items()
    options = [
        ("baseline", guarded(comparison["baseline"])),
        *(("control", guarded(level)) for level in comparison["controls"]),
        *(("against", f"{guarded(level)}={guarded(other)}") for level, other in pairs),
        *(("answer", guarded(level)) for level in comparison["answers"]),
        ("metric", None if metric == "tps" else metric),
        ("margin", f"{comparison['margin']:g}"),
        ("alpha", None if alpha == 0.05 else f"{alpha:g}"),
        ("looks", ",".join(map(str, comparison["looks"])) or None),
    ]
    words = [word for option, value in options if value is not None for word in (f"--{option}", value)]
    fixed = ["--hosts-fixed"] if comparison.get("fixed_hosts") else []
    return shlex.join(["benchlib", "analyze", f"{name}.trials.csv", *words, *fixed])


def ordered(pages: Sequence[PageData]) -> list[PageData]:
    """Return pages by notebook, the study with the shortest name first."""
    return sorted(pages, key=lambda page: (page.notebook, len(page.name), page.name))
