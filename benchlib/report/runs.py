"""From a notebook's name to a published page: run it, show it, list it.

A page is always made by executing the notebook once more with ``run = False``, so the one
that follows a run and the one that ``benchlib report`` makes later are the same, byte for byte.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from benchlib.errors import BenchlibError, InputError
from benchlib.experiment import Experiment, shown
from benchlib.levers.preflight import preflight
from benchlib.notebook import experiment_of
from benchlib.parameters import checked
from benchlib.planning import study_name
from benchlib.plots.frames import given_up
from benchlib.report import calibration
from benchlib.report.execute import execute, find_notebook, notebook_parameters
from benchlib.report.page import IndexEntry, Link, Page, render_index, render_page
from benchlib.stats.prose import leading
from benchlib.store import StudyFolder, project_root, walk
from benchlib.study import same_study

Listen = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the verdict in one sentence, and where the page and the index are."""

    headline: str
    page: Path
    index: Path


def reports_root() -> Path:
    """The folder of the site."""
    return project_root() / "reports"


def run_notebook(path: Path, given: Mapping[str, Any], listen: Listen) -> Outcome:
    """Run what a notebook's study still misses and render its page and the index.

    Raises:
        InputError: unknown or impossible parameters; nothing has been started.
        PreflightError: this machine cannot run it; nothing has been started.
        BenchlibError: what the notebook itself raised.

    """
    given = _absolute(given)
    values = checked(notebook_parameters(path), given)
    experiment = experiment_of(values)
    if values["run"] and experiment.folder.exists():
        same_study(experiment.folder, experiment.study)
    elif values["run"]:
        preflight(experiment.plan)
    name = study_name(values)
    executed = reports_root() / f"{name}.ipynb"
    execute(path, given, executed, listen)
    page = _publish(StudyFolder(name), path, listen)
    return Outcome(shown(StudyFolder(name)).analysis.headline(), page, _write_index())


def _absolute(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the path of a workload's file made whole: the notebook runs in another folder."""
    workload = given.get("workload")
    if isinstance(workload, str) and workload.endswith(".toml"):
        return {**given, "workload": str(Path(workload).absolute())}
    return dict(given)


def report_studies(names: Sequence[str], listen: Listen) -> list[str]:
    """Render the pages of the studies named (all, if none is) and the index; lines that say where.

    A study that cannot be shown yet is passed over with its reason, unless it was named.

    Raises:
        InputError: there is no study of a name.

    """
    lines = []
    folders = [StudyFolder(name) for name in names] or list(walk())
    for folder in folders:
        try:
            study = folder.read()
            if study.notebook is None:
                raise InputError(f"study '{folder.name}' names no notebook")
            page = _publish(folder, find_notebook(study.notebook), listen)
        except BenchlibError as reason:
            if names:
                raise
            lines.append(f"left out: {reason}")
            continue
        lines.append(f"page: {page}")
    if not names:
        lines += [f"page: {reports_root() / link.href}" for link in calibration.publish(reports_root())]
    return [*lines, f"index: {_write_index()}"]


def _publish(folder: StudyFolder, notebook: Path, listen: Listen) -> Path:
    """Execute the notebook on what is kept; write the page, the notebook and the downloads."""
    experiment = shown(folder)
    experiment.analysis  # noqa: B018 - a study that shows nothing is refused before a kernel starts
    listen(f"{folder.name}: rendering")
    root = reports_root()
    root.mkdir(exist_ok=True)
    executed = root / f"{folder.name}.ipynb"
    given = {**experiment.study.parameters, "study": folder.name, "run": False}
    known = notebook_parameters(notebook)
    execute(notebook, {k: v for k, v in given.items() if k in known}, executed)
    timeless = _without_times(nbformat.read(executed, as_version=4))  # type: ignore[no-untyped-call]
    nbformat.write(timeless, executed)  # type: ignore[no-untyped-call]
    experiment.trials.to_csv(root / f"{folder.name}.trials.csv", index=False)
    shutil.copyfile(folder.path / "study.json", root / f"{folder.name}.study.json")
    path = root / f"{folder.name}.html"
    path.write_text(render_page(timeless, _page(experiment)))
    return path


def _without_times(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without papermill's clock readings and dice: the same input gives the same file."""
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell["id"] = "injected-parameters"  # papermill draws a new one each time
    return notebook


def _page(experiment: Experiment) -> Page:
    study, name = experiment.study, experiment.folder.name
    return Page(
        title=study.title,
        question=study.plan.factor.question,
        headline=experiment.analysis.headline(),
        verdict=_lead(experiment)["verdict"],
        facts=experiment.facts(),
        durability=given_up(experiment.durability()),
        downloads=[
            Link("trials (CSV)", f"{name}.trials.csv"),
            Link("study (JSON)", f"{name}.study.json"),
            Link("notebook", f"{name}.ipynb"),
        ],
    )


def _lead(experiment: Experiment) -> dict[str, Any]:
    """The row of the level that the headline is about."""
    rows = experiment.analysis.table.set_index("level", drop=False)
    return dict(rows.loc[leading(experiment.analysis)])


def _write_index() -> Path:
    """The index of every study that has a page and can still be read."""
    entries = []
    for folder in walk():
        if (reports_root() / f"{folder.name}.html").is_file():
            try:
                experiment = shown(folder)
                lead = _lead(experiment)
            except BenchlibError:
                continue
            facts = dict(experiment.facts())
            entries.append(
                IndexEntry(
                    title=experiment.study.title,
                    href=f"{folder.name}.html",
                    headline=experiment.analysis.headline(),
                    question=experiment.plan.factor.question,
                    verdict=lead["verdict"],
                    percent_change=None if math.isnan(lead["percent_change"]) else lead["percent_change"],
                    date=facts["Measured"],
                    host=facts["Machine"],
                    durability=experiment.durability().get(lead["level"], ""),
                )
            )
    reports_root().mkdir(exist_ok=True)
    path = reports_root() / "index.html"
    path.write_text(
        render_index(
            entries,
            intro="Does this change make PostgreSQL faster, by how much, and how sure is that?",
            links=calibration.index_links(reports_root()),
        )
    )
    return path
