"""A page as data: the answers to a study's question as rows, what limits them as records, the setup as pairs. Pure.

The index, the summary, ``check``, ``compare`` and ``history`` read this, and there is no other way from results to words.
"""

import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from benchlib.plan.metrics import percent_words
from benchlib.plan.model import Study
from benchlib.plan.planning import SAYS_BOTH
from benchlib.stats.limits import SENTENCES

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A figure that is null in JSON where it is not known."""

VERDICTS = {
    "faster": "{level} was faster than {against}: {change}.",
    "slower": "{level} was slower than {against}: {change}.",
    "equivalent": "{level} and {against} were equivalent within ±{margin}: {change}.",
    "inconclusive": "{level} against {against} is inconclusive: {change}.",
    "invalid": "{level} against {against} has no valid result.",
    "differs by host": "The effect of {level} against {against} differs by host.",
}
"""One sentence for each verdict."""


class Answer(BaseModel, frozen=True):
    """One comparison. ``base`` and ``mean`` are in the metric's unit, changes and intervals in percent, NaN where not known.

    ``answer`` has a reader's words where the comparison answers the question. ``limit`` is the limit that matters most,
    ``unmet`` the conditions that were not met.
    """

    level: str
    against: str
    answer: str = ""
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
        """What the level is called."""
        return self.answer or self.level

    @property
    def reference(self) -> str:
        """What it is compared with; empty where the words say so."""
        return "" if SAYS_BOTH in self.words else self.against

    @property
    def change(self) -> tuple[str, str]:
        """The change and its interval in words; of an invalid comparison neither."""
        if self.verdict == "invalid":
            return "", ""
        return percent_words(self.percent_change, self.ci_low, self.ci_high)

    def sentence(self, title: str, margin: float) -> str:
        """The fixed sentence of the verdict."""
        change, interval = self.change
        told = f"{change} {title}" + (f" [{interval.replace(' to ', ', ')}]" if interval else "")
        template = VERDICTS.get(self.verdict or "", "{level} against {against}: {change}.")
        level = self.words.partition(SAYS_BOTH)[0] if SAYS_BOTH in self.words else self.words
        against = self.words.partition(SAYS_BOTH)[2] or self.against
        text = template.format(level=level, against=against, change=told, margin=f"{100 * margin:g} %")
        return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


class Limit(BaseModel, frozen=True):
    """One limit of the answers, as ``study.limits(effects)`` has it."""

    code: str
    level: str | None = None
    value: str = ""
    text: str
    grave: bool = False

    @property
    def advice(self) -> tuple[str, str]:
        """Why it matters, and what to do."""
        sentence = SENTENCES.get(self.code)
        return (sentence.why, sentence.do) if sentence else ("", "")


class PageData(BaseModel):
    """All that is said of a study outside its notebook's own outputs.

    ``comparisons`` are all, the answers first and the controls last; ``level_marks`` tell whether a
    comparison is between the same levels as in another study. ``fingerprint`` is of the study and the code, ``page`` also of the notebook that made the page.
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
    blocks: int
    baseline: str
    controls: tuple[str, ...] = ()
    comparisons: tuple[Answer, ...]
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

    @property
    def answers(self) -> list[Answer]:
        """The comparisons that answer the question; all but the controls where none is declared."""
        declared = [answer for answer in self.comparisons if answer.answer]
        return declared or [answer for answer in self.comparisons if answer.level not in self.controls]

    @property
    def others(self) -> list[Answer]:
        """The comparisons that are no answer."""
        answers = self.answers
        return [each for each in self.comparisons if each not in answers]

    def sentences(self) -> list[tuple[str, str]]:
        """For each answer its verdict and its sentence."""
        return [(each.verdict or "", each.sentence(self.metric_title, self.margin)) for each in self.answers]


def page_data(
    study: Study,
    effects: Mapping[str, Any],
    limits: Mapping[str, Any] | None,
    setup: Mapping[str, Any] | None,
    *,
    name: str,
    missing: int = 0,
) -> PageData:
    """Return the page of a study from the frames that its notebook showed, as plain data (:func:`benchlib.study.frames.as_data`)."""
    attrs, declared = effects["attrs"], study.declared
    told = (limits or {}).get("attrs", {})
    by_level, unmet = told.get("by_level", {}), told.get("unmet", {})
    rows = [
        {**row, "limit": by_level.get(row["level"], ""), "unmet": unmet.get(row["level"], "")}
        for row in effects["rows"]
    ]
    return PageData(
        name=name,
        title=study.title,
        question=study.plan.factor.question,
        notebook=study.notebook or "",
        panel=declared.panel,
        metric=attrs["metric"],
        metric_title=attrs["title"],
        unit=attrs["unit"],
        higher_is_better=attrs["higher_is_better"],
        margin=attrs["margin"],
        alpha=attrs["alpha"],
        blocks=attrs["blocks"],
        baseline=attrs["baseline"],
        controls=tuple(attrs["controls"]),
        comparisons=tuple(Answer.model_validate(row) for row in rows),
        limits=tuple(Limit.model_validate(row) for row in (limits or {}).get("rows", ())),
        setup={row["what"]: row["value"] for row in (setup or {}).get("rows", ())},
        created=str(study.provenance.get("created", ""))[:10],
        measured_at=str(study.provenance.get("created", "")),
        benchlib=str(study.provenance.get("benchlib", "")),
        level_marks={
            level: hashlib.sha256(
                f"{study.plan.level(level)} {study.plan.level(other)}".encode()
            ).hexdigest()[:16]
            for level, other in study.plan.factor.pairs().items()
        },
        complete=f"{missing} trials are missing" if missing else "",
        left_out=dict(study.left_out),
    )


def repeat_command(name: str, comparison: Mapping[str, Any]) -> str:
    """Return the command that gives a study's answers from its downloaded trials; ``comparison`` is what ``compare`` took."""
    from benchlib.study.frames import guarded  # as the file has the levels

    words: list[str] = ["benchlib", "analyze", f"{name}.trials.csv"]
    words += ["--baseline", guarded(comparison["baseline"])]
    for control in comparison["controls"]:
        words += ["--control", guarded(control)]
    for level, other in comparison["against"].items():
        words += ["--against", f"{guarded(level)}={guarded(other)}"]
    for level in comparison["answers"]:
        words += ["--answer", guarded(level)]
    if comparison["metric"] != "tps":
        words += ["--metric", comparison["metric"]]
    words += ["--margin", f"{comparison['margin']:g}"]
    if comparison["alpha"] != 0.05:
        words += ["--alpha", f"{comparison['alpha']:g}"]
    if comparison["looks"]:
        words += ["--looks", ",".join(map(str, comparison["looks"]))]
    if comparison.get("fixed_hosts"):
        words += ["--hosts-fixed"]
    return shlex.join(words)


def ordered(pages: Sequence[PageData]) -> list[PageData]:
    """Return pages in the order of the index: by notebook, the study with the shortest name first."""
    return sorted(pages, key=lambda page: (page.notebook, len(page.name), page.name))
