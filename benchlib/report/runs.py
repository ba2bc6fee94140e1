"""From a notebook's name to a published page: run it, show it, list it.

A page is always made by executing the notebook once more with ``run = False``, so the one
that follows a run and the one that ``benchlib report`` makes later are the same, byte for byte.
A notebook whose parameters declare neither levels nor a grid is an overview of the studies: it has
none of its own, and a page that is made after theirs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import nbformat

from benchlib.errors import BenchlibError, InputError
from benchlib.notebook import experiment_of
from benchlib.plan.parameters import Parameter, checked
from benchlib.plan.planning import study_name
from benchlib.report.downloads import write_downloads
from benchlib.report.execute import execute, find_notebook, kernel, notebook_parameters, quiet
from benchlib.report.figures.frames import given_up
from benchlib.report.page import Link, Page, render_page
from benchlib.report.site import check_page_is_free, reports_root, write_site
from benchlib.report.summary import read_summary
from benchlib.stats.prose import leading
from benchlib.study.experiment import Experiment, shown
from benchlib.study.loop import same_study
from benchlib.study.store import StudyFolder, project_root

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
    """A page to be made: the notebook, what it is given, and the study that it shows; an overview shows none."""

    name: str
    notebook: Path
    given: Mapping[str, Any]
    experiment: Experiment | None = None

    @property
    def executed(self) -> Path:
        """Where the executed notebook goes."""
        return reports_root() / f"{self.name}.ipynb"


def run_notebook(path: Path, given: Mapping[str, Any], listen: Listen) -> Outcome:
    """Run what a notebook's study still misses and render its page and the index; of an overview, its page alone.

    Raises:
        InputError: unknown or impossible parameters; nothing has been started.
        PreflightError: this machine cannot run it; nothing has been started.
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
    experiment = experiment_of(values)
    if values["run"] and experiment.folder.exists():
        same_study(experiment.folder, experiment.study)
    execute(path, given, reports_root() / f"{name}.ipynb", listen)
    whole = shown(StudyFolder(name))
    made, *overviews = _make([_study(whole, path), *_overviews()], listen)
    for reason in overviews:
        if isinstance(reason, BenchlibError):
            listen(f"left out: {reason}")
    index = write_site(reports_root(), read_summary())
    return Outcome(whole.analysis.headline(), _done(made), index)


def _absolute(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the path of a workload's file made whole: the notebook runs in another folder."""
    workload = given.get("workload")
    if isinstance(workload, str) and workload.endswith(".toml"):
        return {**given, "workload": str(Path(workload).absolute())}
    return dict(given)


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
    """The page of a study, by its own notebook unless one is given.

    Raises:
        BenchlibError: it has nothing to show, or no notebook.

    """
    name, study = experiment.folder.name, experiment.study
    check_page_is_free(name)
    experiment.analysis  # noqa: B018 - a study that shows nothing is refused before a kernel starts
    if study.notebook is None:
        raise InputError(f"study '{name}' names no notebook")
    path = notebook or find_notebook(study.notebook)
    known = notebook_parameters(path)
    given = {**study.parameters, "study": name, "run": False}
    return _Job(name, path, {k: v for k, v in given.items() if k in known}, experiment)


def _overview(path: Path, given: Mapping[str, Any]) -> _Job:
    known = notebook_parameters(path)
    return _Job(path.stem, path, {**given, **({"run": False} if "run" in known else {})})


def _overviews() -> list[_Job]:
    """Every overview among the project's notebooks, by name."""
    paths = sorted((project_root() / "notebooks").glob("*.ipynb"))
    return [_overview(path, {}) for path in paths if is_overview(notebook_parameters(path))]


# --- making it ----------------------------------------------------------------------


def _make(jobs: Sequence[_Job], listen: Listen) -> list[Path | BenchlibError]:
    """Make the pages, in their order; of one that cannot be made, the reason."""
    reports_root().mkdir(exist_ok=True)
    made: list[Path | BenchlibError] = []
    for job, outcome in _executed(jobs):
        if isinstance(outcome, BenchlibError):
            made.append(outcome)
        else:
            listen(f"{job.name}: executed in {outcome:.1f} s")
            made.append(_rendered(job))
    return made


def _done(made: Path | BenchlibError) -> Path:
    if isinstance(made, BenchlibError):
        raise made
    return made


def _executed(jobs: Sequence[_Job]) -> Iterator[tuple[_Job, float | BenchlibError]]:
    """Execute the notebooks, some at a time, and tell in their order how many seconds each took, or why it failed."""

    waiting: SimpleQueue[tuple[_Job, Future[float | BenchlibError]]] = SimpleQueue()
    promised = [(job, Future[float | BenchlibError]()) for job in jobs]
    for pair in promised:
        waiting.put(pair)

    def work() -> None:
        """Go through what waits in one kernel, since its imports take as long as a page; after a failure in a new one."""
        with contextlib.suppress(Empty):
            while True:
                with kernel() as lent:
                    failed = False
                    while not failed:
                        job, promise = waiting.get_nowait()
                        started = time.monotonic()
                        try:
                            execute(job.notebook, job.given, job.executed, lent=lent)
                            promise.set_result(time.monotonic() - started)
                        except BenchlibError as reason:
                            failed = True
                            promise.set_result(reason)
                        except Exception as fault:
                            failed = True
                            promise.set_exception(fault)

    # the folder and the filter of warnings are the process's: set here, and by no thread
    with contextlib.chdir(project_root()), quiet():
        pool = ThreadPoolExecutor(KERNELS)
        try:
            for _ in range(min(KERNELS, len(jobs))):
                pool.submit(work)
            for job, promise in promised:
                yield job, promise.result()
        finally:
            with contextlib.suppress(Empty):  # after a Ctrl-C no more is begun
                while True:
                    waiting.get_nowait()
            pool.shutdown()


def _rendered(job: _Job) -> Path:
    """Write the page of an executed notebook, the notebook and the other downloads."""
    notebook = _without_times(nbformat.read(job.executed, as_version=4))  # type: ignore[no-untyped-call]
    if job.experiment is None:
        nbformat.write(notebook, job.executed)  # type: ignore[no-untyped-call]
        question = notebook_parameters(job.notebook).get("question")
        page = Page(
            title=job.name.replace("_", " ").capitalize(),
            question=str(question.default) if question else "",
            downloads=[Link("notebook", job.executed.name)],
        )
    else:
        page = _page(job.experiment, write_downloads(reports_root(), job.experiment, notebook))
    path = reports_root() / f"{job.name}.html"
    path.write_text(render_page(notebook, page))
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


def _page(experiment: Experiment, downloads: Sequence[Link]) -> Page:
    analysis = experiment.analysis
    lead = dict[Any, Any](analysis.table.set_index("level").loc[leading(analysis)])
    return Page(
        title=experiment.study.title,
        question=experiment.plan.factor.question,
        headline=analysis.headline(),
        verdict=lead["verdict"],
        facts=experiment.facts(),
        durability=given_up(experiment.durability()),
        downloads=downloads,
    )
