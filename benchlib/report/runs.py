"""From a notebook's name to a published page: run it, show it, list it.

A page is always made by executing the notebook once more with ``run = False``, so the one
that follows a run and the one that ``benchlib report`` makes later are the same, byte for byte.
A notebook whose parameters declare neither levels nor a grid is an overview of the studies: it has
none of its own, and a page that is made after theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient.util import run_sync

from benchlib.errors import BenchlibError
from benchlib.plan.parameters import Parameter, checked
from benchlib.plan.planning import study_name
from benchlib.report.downloads import write_downloads
from benchlib.report.execute import execute, find_notebook, kernel, notebook_parameters
from benchlib.report.figures.frames import given_up, rows_of
from benchlib.report.page import Link, Page, render_page
from benchlib.report.site import check_page_is_free, reports_root, write_site
from benchlib.report.summary import read_summary
from benchlib.stats.analysis import leading
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import StudyFolder, notebooks

Listen = Callable[[str], None]

KERNELS = 2
"""How many notebooks are executed at a time: each keeps one processor busy."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the verdict in one sentence, and where the page and the index are."""

    headline: str
    page: Path
    index: Path


@dataclass(frozen=True)
class _Job:
    """A page to be made: the notebook, what it is given, and the study that it shows; an overview shows none.

    ``borrowed`` is a notebook that is not the study's own: of it the cells that are in all notebooks are executed.
    """

    name: str
    notebook: Path
    given: Mapping[str, Any]
    experiment: Experiment | None = None
    borrowed: bool = False

    @property
    def executed(self) -> Path:
        """Where the executed notebook goes."""
        return reports_root() / f"{self.name}.ipynb"


def run_notebook(path: Path, given: Mapping[str, Any], listen: Listen) -> Outcome:
    """Run what a notebook's study still misses and render its page and the index; of an overview, its page alone.

    Raises:
        InputError: unknown parameters; nothing has been started.
        BenchlibError: what the notebook itself raised.

    """
    given = _absolute(given)
    parameters = notebook_parameters(path)
    values = checked(parameters, given)
    if is_overview(parameters):
        page = _done(_make([_overview(path, given)], listen)[0])
        kept = read_summary()
        return Outcome(
            f"made from {len(kept.experiments)} kept studies", page, write_site(reports_root(), kept)
        )
    name = study_name(values)
    check_page_is_free(name)
    _refuse_early(name, values)
    with kernel() as manager:
        execute(path, given, reports_root() / f"{name}.ipynb", manager, listen)
    whole = shown(StudyFolder(name))
    made, *overviews = _make([_study(whole, path), *_overviews()], listen)
    for reason in overviews:
        if isinstance(reason, BenchlibError):
            listen(f"left out: {reason}")
    index = write_site(reports_root(), read_summary())
    return Outcome(whole.analysis.headline(), _done(made), index)


def _refuse_early(name: str, values: Mapping[str, Any]) -> None:
    """Refuse what makes no study, or what is not kept, before a kernel starts; this machine is asked in the notebook."""
    if not values.get("run", True):
        StudyFolder(name).read()
        return
    from benchlib.study.runs import plan_study  # what is kept is shown without levers and servers

    plan_study({**values, "leave_out": False})


def _absolute(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the path of a workload's or a fleet's file made whole: the notebook runs in another folder."""
    ends = {"workload": (".toml",), "fleet": (".yaml", ".yml")}
    return {
        name: str(Path(value).absolute())
        if isinstance(value, str) and value.endswith(ends.get(name, ()))
        else value
        for name, value in given.items()
    }


def report_studies(names: Sequence[str], listen: Listen) -> list[str]:
    """Render the pages of the studies named, or all pages if none is, and the index; lines that say where.

    What cannot be shown is passed over with its reason, unless it was named.

    Raises:
        InputError: there is no study of a name.

    """
    kept = read_summary()
    jobs, lines = [], []
    for experiment in [shown(StudyFolder(name)) for name in names] or kept.experiments:
        try:
            jobs.append(_study(experiment))
        except BenchlibError as reason:
            if names:
                raise
            lines.append(f"left out: {reason}")
    if not names:
        lines += [
            f"left out: {reason if name in reason else f'{name}: {reason}'}" for name, reason in kept.unused
        ]
        jobs += _overviews() if kept.experiments else []
    for made in _make(jobs, listen):
        if names:
            _done(made)
        lines.append(f"left out: {made}" if isinstance(made, BenchlibError) else f"page: {made}")
    return [*lines, f"index: {write_site(reports_root(), kept)}"]


# --- what is to be made -------------------------------------------------------------


def is_overview(parameters: Mapping[str, Parameter]) -> bool:
    """Whether a notebook with these parameters shows the studies of others and runs none."""
    return "factor" in parameters and not parameters.keys() & {"levels", "grid"}


def _study(experiment: Experiment, notebook: Path | None = None) -> _Job:
    """The page of a study, by the notebook that is given, or by its own among those of this installation.

    What a study says is somebody's word, and a notebook is executed: anything but a name that is known here is no
    notebook, and the page then has what all notebooks share.

    Raises:
        BenchlibError: it has nothing to show.

    """
    name, study = experiment.folder.name, experiment.study
    check_page_is_free(name)
    experiment.analysis  # noqa: B018 - a study that shows nothing is refused before a kernel starts
    own = notebook or notebooks().get(study.notebook or "")
    path = own or find_notebook("template")
    known = notebook_parameters(path)
    given = {**(study.parameters if own else {}), "study": name, "run": False}
    return _Job(name, path, {k: v for k, v in given.items() if k in known}, experiment, borrowed=not own)


def _overview(path: Path, given: Mapping[str, Any]) -> _Job:
    known = notebook_parameters(path)
    return _Job(path.stem, path, {**given, **({"run": False} if "run" in known else {})})


def _overviews() -> list[_Job]:
    """Every overview among the project's notebooks, by name."""
    return [_overview(path, {}) for path in notebooks().values() if is_overview(notebook_parameters(path))]


# --- making it ----------------------------------------------------------------------


def _make(jobs: Sequence[_Job], listen: Listen) -> list[Path | BenchlibError]:
    """Make the pages, in their order; of one that cannot be made, the reason."""
    made: list[Path | BenchlibError] = []
    idle: SimpleQueue[AsyncKernelManager] = SimpleQueue()
    with ExitStack() as stack, ThreadPoolExecutor(KERNELS) as pool:
        for _ in range(KERNELS):
            idle.put(stack.enter_context(kernel()))
        for job, outcome in zip(jobs, pool.map(partial(_executed, stack, idle), jobs), strict=True):
            if isinstance(outcome, BenchlibError):
                made.append(outcome)
            else:
                listen(f"{job.name}: executed in {outcome:.1f} s")
                made.append(_rendered(job))
    return made


def _executed(stack: ExitStack, idle: SimpleQueue[AsyncKernelManager], job: _Job) -> float | BenchlibError:
    """Execute a notebook in an idle kernel (in a new one its imports take as long as a page); the seconds, or why it failed."""
    manager, started = idle.get(), time.monotonic()
    try:
        execute(job.notebook, job.given, job.executed, manager, shared_alone=job.borrowed)
    except BenchlibError as reason:
        run_sync(manager.shutdown_kernel)(now=True)
        manager = stack.enter_context(kernel())
        return reason
    finally:
        idle.put(manager)
    return time.monotonic() - started


def _done(made: Path | BenchlibError) -> Path:
    if isinstance(made, BenchlibError):
        raise made
    return made


def _rendered(job: _Job) -> Path:
    """Write the page of an executed notebook, the notebook and the other downloads."""
    notebook = nbformat.read(job.executed, as_version=4)  # type: ignore[no-untyped-call]
    if job.experiment is None:
        question = notebook_parameters(job.notebook).get("question")
        page = Page(
            title=job.name.replace("_", " ").capitalize(),
            question=str(question.default) if question else "",
            downloads=[Link("notebook", job.executed.name)],
        )
    else:
        page = _page(job, job.experiment, write_downloads(reports_root(), job.experiment, notebook))
    path = reports_root() / f"{job.name}.html"
    path.write_text(render_page(notebook, page))
    return path


def _page(job: _Job, experiment: Experiment, downloads: Sequence[Link]) -> Page:
    analysis = experiment.analysis
    none = ("Notebook", "none of this installation's: the page has what all of them share")
    return Page(
        title=experiment.study.title,
        question=experiment.plan.factor.question,
        headline=analysis.headline(),
        verdict=rows_of(analysis)[leading(analysis)]["verdict"],
        facts=[*experiment.facts(), *([none] if job.borrowed else [])],
        durability=given_up(experiment.durability()),
        downloads=downloads,
    )
