"""Functions for notebooks."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.core.getipython import get_ipython
from IPython.display import display

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS
from benchlib.plan.model import VERSION
from benchlib.plan.parameters import from_history
from benchlib.plan.planning import study_name
from benchlib.report import plot
from benchlib.report.display import install
from benchlib.report.execute import PROGRESS_VARIABLE
from benchlib.report.model import Answer, PageData
from benchlib.report.site import pages_and_others
from benchlib.stats.crossed import additivity, ladder, steepest
from benchlib.stats.effects import compare, screen
from benchlib.stats.matrix import first_changes, steps
from benchlib.stats.multiple import benjamini_hochberg
from benchlib.stats.queries import compare_queries
from benchlib.study.experiment import Experiment, shown
from benchlib.study.frames import OpenStudy
from benchlib.study.published import beside
from benchlib.study.store import StudyFolder

__all__ = [
    "additivity", "benjamini_hochberg", "beside", "compare", "compare_queries", "first_changes", "joined_matrix", "ladder",
    "open_study", "open_summary", "page_table", "plot", "screen", "steepest", "steps",
]  # fmt: skip

_MATRIX = ["workload", "version"]
"""The dimensions of a matrix."""


def open_study() -> OpenStudy:
    """Return the study of the notebook's parameters; with ``run = False`` the saved one.

    Raises:
        InputError: a parameter is invalid, or there is no such study.
    """
    values = _parameters("open_study")
    name = study_name(values)
    if not values.get("run", True):
        return OpenStudy(shown(StudyFolder(name)))
    from benchlib.study.fleet import hosts_of  # a saved study needs no levers and servers
    from benchlib.study.runs import Runner, plan_study

    hosts = hosts_of(values)
    experiment = Experiment(StudyFolder(name), plan_study(values, hosts))
    runner = Runner(experiment, retry_failed=bool(values.get("retry_failed")), hosts=hosts)
    return OpenStudy(experiment, runner, progress_line)


def open_summary() -> list[PageData]:
    """Return the pages of the named studies, or of all."""
    named = _parameters("open_summary").get("studies", "")
    # a command judges before it makes the page, with a limit for each study
    names = [name.strip() for name in named.split(",") if name.strip()]
    return pages_and_others(names, judge=not _listener)[0]


def page_table(pages: Sequence[PageData]) -> pd.DataFrame:
    """Return a row per answer."""
    rows = [
        (page.name, page.title, page.panel, page.metric_title, *answer.model_dump().values())
        for page in pages
        for answer in page.answers
    ]
    return pd.DataFrame(rows, columns=["study", "title", "panel", "metric", *Answer.model_fields])


def joined_matrix(pages: Sequence[PageData]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return effects, with ``study`` and ``reference``, and design of all matrices for :func:`plot.heat`.

    They are of throughput, without surveys; a workload's row is the newest study's.
    """
    effects, designs, taken = list[pd.DataFrame](), list[pd.DataFrame](), set[str]()
    for page in sorted(pages, key=lambda page: page.measured_at, reverse=True):
        cells = pd.DataFrame.from_dict(page.cells, orient="index")
        surveyed = any(limit.code == "survey" for limit in page.limits)
        named = {*cells} == {*_MATRIX} and cells["version"].map(VERSION.fullmatch).notna().all()
        if not named or page.metric != "tps" or surveyed or not page.effects:
            continue
        cells = cells.loc[~cells["workload"].isin(taken), _MATRIX]
        taken |= {*cells["workload"]}
        rows = pd.DataFrame([each.model_dump() for each in page.effects])
        workloads = rows["level"].map(cells["workload"])
        rows = rows[workloads.eq(rows["against"].map(cells["workload"]))]
        rows = rows.assign(study=page.name, reference=rows["against"].map(cells["version"]))
        # two studies can have levels of one name
        rows[["level", "against"]] = page.name + ": " + rows[["level", "against"]]
        effects.append(rows)
        designs.append(cells.set_axis(page.name + ": " + cells.index))
    if not effects:
        return pd.DataFrame(columns=["level", "against", "reference"]), pd.DataFrame(columns=_MATRIX)
    # the oldest study on top
    joined, design = pd.concat(effects[::-1], ignore_index=True), pd.concat(designs[::-1])
    joined.attrs = {"title": METRICS["tps"].title, "higher_is_better": True}
    numbers = {version: [*map(int, version.split("."))] for version in design["version"]}
    design.attrs["order"] = {"version": sorted(numbers, key=lambda version: numbers[version])}
    return joined, design.rename_axis("level")


def _parameters(caller: str) -> dict[str, Any]:
    shell = get_ipython()
    if shell is None:
        raise InputError(f"{caller}() reads a notebook's parameters: call it from one")
    if pipe := os.environ.pop(PROGRESS_VARIABLE, ""):
        _listener.append(Path(pipe).open("w", buffering=1, encoding="utf-8"))  # noqa: SIM115 - for ever
    install(shell)
    return from_history(list(shell.user_ns["In"]), shell.user_ns)


_listener: list[Any] = []
"""The pipe to the process that executes this notebook, if any."""


def progress_line() -> Callable[[object], None]:
    """Return a function that shows progress in place."""
    lines = dict[bool, str]()
    handle = display({"text/plain": "starting"}, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def show(report: object) -> None:
        text = str(report)
        if _listener:
            print(text.replace("\n", " "), file=_listener[0])
        # the effects so far stay below the line that changes
        lines["provisional" in text] = text
        handle.update({"text/plain": "\n".join(lines[key] for key in sorted(lines))}, raw=True)

    return show
