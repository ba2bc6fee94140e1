"""From a notebook's name to a published page: run it, show it, list it.

A page is always made by executing the notebook once more with ``run = False``, so the one
that follows a run and the one that ``benchlib report`` makes later are the same, byte for byte.
A notebook whose parameters declare neither levels nor a grid is an overview of the studies: it has
none of its own, and a page that is made after theirs.
"""

import json
import math
import multiprocessing
import os
import re
import resource
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchlib.errors import BenchlibError, InputError, StudyError
from benchlib.host import files
from benchlib.load.workloads import LIBRARY, workload_paths
from benchlib.plan.parameters import Parameter, checked
from benchlib.plan.planning import study_name
from benchlib.plan.settings import SETTINGS_FILE
from benchlib.plan.words import unpublished, without
from benchlib.report import entries
from benchlib.report.cells import Node, write_notebook
from benchlib.report.entries import Entry
from benchlib.report.execute import Listen, execute, find_notebook, notebook_parameters
from benchlib.report.figures.changes import card
from benchlib.report.figures.frames import guarded
from benchlib.report.page import Page, render_page
from benchlib.report.screening import main_effects, standing_out
from benchlib.report.site import write_site
from benchlib.report.view import View
from benchlib.study.experiment import Experiment, shown
from benchlib.study.loop import missing
from benchlib.study.store import StudyFolder, notebooks, project_root, study_names

_NAMING = {"run", "study", "factor", "profile", "shares_of"}
"""The parameters that say which study is shown."""
_FILES = {
    "postgres": re.compile(r".*/.*"),
    "fleet": re.compile(r".+"),
    "workload": re.compile(r".*\.toml"),
    "settings": SETTINGS_FILE,
}
"""The parameters that may name a file, and what its name is like."""
AT_A_TIME = 2
"""How many pages are made at a time: each keeps one processor busy."""
_MOST_OTHERS = 10
"""Studies that are judged for the index beside those whose pages were asked for."""
_MOST_S, _MOST_MEMORY = 300, 8 << 30
"""What one study's page may take, in seconds and bytes, where several are made at a time."""


def run_notebook(path: Path, given: Mapping[str, Any], listen: Listen) -> list[str]:
    """Run what a notebook's study still misses and render its page and the index; of an overview, its page alone.

    Lines that say the study's verdict, and where the page and the index are.

    Raises:
        InputError: unknown parameters; nothing has been started.
        BenchlibError: what the notebook itself raised.

    """
    given = _absolute(given)
    parameters = notebook_parameters(path)
    values = checked(parameters, given)
    if is_overview(parameters):
        root = entries.writable_root()
        page = _overview(root, path, given)
        return [f"page: {page}", f"index: {write_site(root, *entries.entries())}"]
    name = study_name(values)
    _refuse_early(name, values, given)
    root = entries.writable_root()
    if values.get("run", True):
        execute(path, given, root / f"{name}.ipynb", listen)
    fingerprint = entries.study_fingerprint(StudyFolder(name), entries.code_fingerprint())
    entry = make_page(name, fingerprint, path)
    *overviews, index = _around(root, *entries.entries(most_judged=_MOST_OTHERS))
    for line in overviews:
        listen(line)
    return [entry.headline, f"page: {root / name}.html", index]


def confirmed(parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a notebook is to be given for the grid that confirms its kept screening, as the study ``NAME-confirmed``.

    The grid has all combinations of the changes that stand out, the other dimensions at their first value; all else is
    as it was for the screening, but for what is ``given`` now.

    Raises:
        InputError: there is no such screening, it is not complete or not valid, or nothing stands out.

    """
    if ignored := {"grid", "levels", "baseline", "along", "against", "answers", "lead"} & {*given}:
        raise InputError(f"parameter {min(ignored)}: a grid that confirms a screening has its own")
    name = study_name(checked(parameters, given))
    experiment = shown(StudyFolder(name))
    study, cells = experiment.study, experiment.plan.factor.cells.values()
    left = len(missing(study, experiment.folder.kept()))
    if left and not experiment.settled():
        raise InputError(
            f"study '{name}' is not complete: {left} of its trials are missing; run it to its end"
        )
    large = [*standing_out(main_effects(experiment))["effect"]]
    if not large:
        raise InputError(f"nothing stands out of the noise in '{name}', so there is nothing to confirm")
    # "on" alone tells nothing in a level's name; but what a profile patches goes by that
    bare = "levels" in study.parameters["profiles"][study.parameters["profile"]]
    grid = dict[str, dict[str, Any]]()
    for dimension, patches in study.parameters["grid"].items():
        ends = list(dict.fromkeys(cell[dimension] for cell in cells))[: 2 if dimension in large else 1]
        grid[dimension] = {end if bare else f"{dimension} {end}": patches[end] for end in ends}
    own = {
        "study": f"{name}-confirmed", "screen": False, "levels": {}, "grid": grid,
        "lead": "gains" if len(large) > 1 else "", "baseline": "", "along": "", "against": {}, "answers": {},
    }  # fmt: skip
    return {key: value for key, value in {**study.parameters, **given, **own}.items() if key in parameters}


def _refuse_early(name: str, values: Mapping[str, Any], given: Iterable[str]) -> None:
    """Refuse what makes no study, is not kept or would be ignored, before anything starts; this machine is asked in the notebook."""
    if not values.get("run", True):
        kept = StudyFolder(name).read().parameters
        if ignored := [each for each in given if each not in _NAMING and values[each] != kept.get(each)]:
            raise InputError(f"parameter {ignored[0]}: run=false shows a study as it was run; leave it out")
        return
    from benchlib.study.runs import plan_study  # what is kept is shown without levers and servers

    plan_study({**values, "leave_out": False})


def _absolute(value: Any, key: str = "") -> Any:
    """The parameters with the paths of a fleet's file, of one's own workloads and of settings made whole: the notebook runs in another folder."""
    if isinstance(value, Mapping):
        return {name: _absolute(inner, str(name)) for name, inner in value.items()}
    if not isinstance(value, str):
        return value
    if key in _FILES and _FILES[key].fullmatch(value):
        return str(Path(os.path.expanduser(value)).absolute())  # noqa: PTH111 (of an unknown user it stays)
    own = workload_paths().get(value) if key == "workload" else None
    return str(own) if own and own.parent not in (LIBRARY, project_root() / "workloads") else value


def report_studies(names: Sequence[str], *, alone: bool = False) -> Iterator[str]:
    """Render the pages of the studies named, or all that have changed if none is, and the index; a line for each page.

    What cannot be shown is passed over with its reason, unless it was named. ``alone``: the site is of those that are named.

    Raises:
        InputError: there is no study of a name, or nothing can be written where pages go.

    """
    wanted = list(dict.fromkeys(names)) or study_names()
    root, code = entries.writable_root(), entries.code_fingerprint()
    changed, left_out = dict[str, str](), dict[str, str]()
    for name in wanted:
        folder = StudyFolder(name)
        fingerprint = entries.study_fingerprint(folder, code)
        kept = None if names else entries.kept_entry(name, fingerprint)
        try:
            if kept and kept.has_page(_showing(kept.notebook)[0]):
                yield f"page: {root / name}.html (as it was)"
            elif not (kept and kept.left_out):
                factor = folder.read().plan.factor
                if names or factor.pairs().keys() - {*factor.controls}:  # a pilot compares nothing
                    changed[name] = fingerprint
        except BenchlibError as reason:
            if names:
                raise
            left_out[name] = str(reason)
    for name, failure in _make(changed):
        if failure is None:
            yield f"page: {root / name}.html"
        elif names:
            raise failure
        else:
            left_out[name] = str(failure)
    of_site = names if alone else ()
    kept_entries, others = entries.entries(of_site, _MOST_OTHERS if names else math.inf)
    for name, why in {**left_out, **({} if names else others)}.items():
        yield f"left out: {why if name in why.split(':')[0] else f'{name}: {why}'}"
    yield from _around(root, kept_entries, others, of_site)


def follow(name: str) -> Iterator[str]:
    """Have the site follow, where there is one, what has become of a study: its page, index and overviews; lines that say where."""
    root = entries.reports_root()
    if (root / "index.html").is_file():
        for ending in ("html", "ipynb", "png", "entry.json", "study.json", "trials.csv"):
            files.remove(root / f"{name}.{ending}")
        yield from (line for line in report_studies(()) if not line.endswith("(as it was)"))


def _around(
    root: Path, kept: Sequence[Entry], left_out: Mapping[str, str], names: Sequence[str] = ()
) -> Iterator[str]:
    """Make the pages that show several studies, those named or all that are kept, and the site's own; lines that say which."""
    given = {"studies": ",".join(names)} if names else {}
    for path in notebooks().values():
        if not is_overview(notebook_parameters(path)):
            continue
        if not kept:
            files.remove(root / f"{path.stem}.html")
        else:
            try:
                yield f"page: {_overview(root, path, given)}"
            except BenchlibError as reason:
                yield f"left out: {reason}"
    yield f"index: {write_site(root, kept, left_out)}"


# --- making a page --------------------------------------------------------------------


def is_overview(parameters: Mapping[str, Parameter]) -> bool:
    """Whether a notebook with these parameters shows the studies of others and runs none."""
    return "factor" in parameters and not parameters.keys() & {"levels", "grid"}


def _overview(root: Path, path: Path, given: Mapping[str, Any]) -> Path:
    """Make the page of a notebook that shows several studies; where it is."""
    executed, question = root / f"{path.stem}.ipynb", notebook_parameters(path).get("question")
    files.make(root)
    notebook, _ = execute(path, _known(path, {"run": False, **given}), executed)
    write_notebook(notebook, executed)
    title, asked = path.stem.replace("_", " ").capitalize(), str(question.default) if question else ""
    made, downloads = root / f"{path.stem}.html", {executed.name: "notebook"}
    page = Page(title, question=asked, downloads=downloads, address=entries.address_of(made.name))
    files.write(made, render_page(notebook, page))
    return made


def _known(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that a notebook has parameters for."""
    known = notebook_parameters(path)
    return {name: value for name, value in given.items() if name in known}


def _showing(notebook: str | None) -> tuple[Path, bool]:
    """The notebook that shows a study which names this one, and whether it is that one.

    What a study says is somebody's word, and a notebook is executed: anything but a name that is known here is no
    notebook, and the page then has what all notebooks share.

    Raises:
        InputError: this installation has no notebooks.

    """
    own = notebooks().get(notebook or "")
    return own or find_notebook("template"), bool(own)


def _make(studies: Mapping[str, str]) -> Iterator[tuple[str, BenchlibError | None]]:
    """Make the pages of studies, given with their fingerprints, several at a time; in their order each name, with what failed."""
    if min(len(studies), AT_A_TIME) < 2:
        yield from zip(studies, map(_failure, studies, studies.values()), strict=True)
        return
    with ProcessPoolExecutor(AT_A_TIME, initializer=help_parent) as pool:
        yield from zip(studies, pool.map(_failure, studies, studies.values()), strict=True)


def help_parent() -> None:
    """Make this process a helper of the one that started it: it hears no Ctrl-C of its own, and ends when that one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _too_long(*_: object) -> None:
    raise StudyError(f"its page takes longer than {_MOST_S} s")


def _failure(name: str, fingerprint: str) -> BenchlibError | None:
    """Make a study's page; what failed, if it did."""
    if multiprocessing.parent_process():
        signal.alarm(_MOST_S)
    try:
        make_page(name, fingerprint)
    except BenchlibError as reason:
        return reason
    except (Exception, MemoryError) as reason:  # whatever one study brings about costs that study alone
        return StudyError(f"{name}: unexpected {type(reason).__name__}: {reason}")
    finally:
        signal.alarm(0)
    return None


def make_page(name: str, fingerprint: str, notebook: Path | None = None) -> Entry:
    """Make a study's page, by the notebook that is given or by its own, and all that is beside it; the study's entry.

    Raises:
        BenchlibError: there is no such study, the notebook failed, or the study has nothing to show.

    """
    root, study = entries.reports_root(), StudyFolder(name).read()
    path, own = (notebook, True) if notebook else _showing(study.notebook)
    given = _known(path, {**(study.parameters if own else {}), "study": name, "run": False})
    files.make(root)
    executed, names = execute(path, given, root / f"{name}.ipynb", shared_alone=not own)
    # the study as the notebook's cells have read and judged it, so that nothing is judged twice
    views = (value.experiment for value in names.values() if isinstance(value, View))
    experiment = next((each for each in views if each.folder.name == name), None) or shown(StudyFolder(name))
    entry = entries.entry_of(experiment, fingerprint)
    page = page_about(entry, write_downloads(root, experiment, executed), own=own)
    files.write(root / f"{name}.html", render_page(executed, page))
    files.write(root / f"{name}.png", card(entry))
    entry.page = entry.page_from(path)
    entry.keep()
    return entry


def page_about(entry: Entry, downloads: Mapping[str, str], *, own: bool) -> Page:
    """What a study's page says around its notebook, which is its ``own`` or what all notebooks share."""
    none = {"Notebook": "none of this installation's: the page has what all of them share"}
    return Page(
        **entry.model_dump(include={"title", "question", "headline", "limits"}),
        verdicts=list(dict.fromkeys(answer.verdict for answer in entry.answers)),
        facts=entry.facts | ({} if own else none),
        downloads=downloads,
        card=entries.address_of(f"{entry.name}.png") or f"{entry.name}.png",
        address=entries.address_of(f"{entry.name}.html"),
    )


# --- what a page offers to take along --------------------------------------------------


def write_downloads(root: Path, experiment: Experiment, notebook: Node) -> dict[str, str]:
    """Write a study's trials, its plan and its executed notebook beside its page; their labels by name.

    No path of the machine and no address of a server is in them.
    """
    name, parameters = experiment.folder.name, experiment.study.parameters
    replaced = unpublished(experiment.plan, parameters)
    levels = (experiment.plan.base, *experiment.plan.factor.levels.values())
    patches = [parameters, *(level.model_dump() for level in levels)]
    paths = {str(patch.get("workload")) for patch in patches}
    replaced |= {path: Path(path).name for path in paths if "/" in path}
    study = without(experiment.study.model_dump(mode="json"), replaced)
    trials = experiment.trials.map(lambda cell: guarded(without(cell, replaced)))
    files.write(root / f"{name}.trials.csv", trials.to_csv(index=False))
    files.write(root / f"{name}.study.json", json.dumps(study, indent=2, ensure_ascii=False) + "\n")
    write_notebook(without(notebook, replaced), root / f"{name}.ipynb")
    labels = {"trials.csv": "trials (CSV)", "study.json": "study (JSON)", "ipynb": "notebook"}
    return {f"{name}.{ending}": label for ending, label in labels.items()}
