"""From a notebook's name to a published page: run it, render it, list it.

A page is made by executing the study's notebook once more with ``run = False``, so the page that follows a run and the page that
``benchlib report`` makes later are the same. A notebook whose parameters declare neither levels nor a grid shows several
studies; its page is made after theirs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchlib.errors import BenchlibError, InputError, StudyError
from benchlib.host import files
from benchlib.host.apart import apart
from benchlib.load.workloads import LIBRARY, workload_paths
from benchlib.plan.parameters import Parameter, checked
from benchlib.plan.planning import study_name
from benchlib.plan.settings import SETTINGS_FILE
from benchlib.plan.words import unpublished, without
from benchlib.report.execute import Listen, NotebookError, execute, find_notebook, notebook_parameters
from benchlib.report.notebooks import Node, write_file, write_notebook
from benchlib.study.store import StudyFolder, notebooks, project_root, study_names

if TYPE_CHECKING:
    from benchlib.report.model import PageData

_NAMING = {"run", "study", "factor", "profile", "shares_of"}
"""The parameters that say which study is shown."""
_FILES = {
    "postgres": re.compile(r".*/.*"),
    "fleet": re.compile(r".+"),
    "workload": re.compile(r".*\.toml"),
    "settings": SETTINGS_FILE,
}
"""The parameters that may name a file, and the form of its name."""
AT_A_TIME = 2
_MOST_OTHERS = 4
"""Studies that are judged for the index beside those whose pages were requested."""


def run_notebook(path: Path, given: Mapping[str, Any], listen: Listen) -> list[str]:
    """Run the missing trials of a notebook's study, render its page and the index; return lines on verdicts and paths.

    Raises:
        InputError: unknown parameters; nothing was started.
        BenchlibError: what the notebook itself raised.

    """
    given = _absolute(given)
    parameters = notebook_parameters(path)
    values = checked(parameters, given)
    if is_overview(parameters):
        from benchlib.report import site

        root = site.writable_root()
        pages, others = site.pages_and_others()  # judged here: a notebook shows what is judged
        page = _overview(root, path, given)
        return [f"page: {page}", f"index: {site.write_site(root, pages, others)}"]
    name = study_name(values)
    _refuse_early(name, values, given)
    from benchlib.report import site  # a wrong parameter is reported before this is loaded

    root = site.writable_root()
    executed = _executed(path, given, root / f"{name}.ipynb", listen) if values.get("run", True) else None
    data = make_page(name, path, executed)
    *overviews, index = _around(root, *site.pages_and_others(most_judged=_MOST_OTHERS))
    for line in overviews:
        listen(line)
    return [*(text for _, text in data.sentences()), f"page: {root / name}.html", index]


def confirmed(parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the grid that confirms a saved screening, as the study ``NAME-confirmed``.

    The grid has all combinations of the changes that stand out, the other dimensions at their first value; the rest is
    as it was for the screening, but for what is ``given`` now.

    Raises:
        InputError: there is no such screening, it is not complete or not valid, or nothing stands out.

    """
    from benchlib.report.site import data_of

    if ignored := {"grid", "levels", "baseline", "along", "against", "answers"} & {*given}:
        raise InputError(f"parameter {min(ignored)}: a grid that confirms a screening has its own")
    name = study_name(checked(parameters, given))
    study, data = StudyFolder(name).read(), data_of(name)
    if not study.declared.screen:
        raise InputError(f"study '{name}' is no screening: set 'screen: true' and a grid")
    if data.complete:
        raise InputError(f"study '{name}' is not complete: {data.complete}; run it to its end")
    large = [answer.level for answer in data.comparisons if answer.verdict in ("faster", "slower")]
    if not large:
        raise InputError(f"nothing stands out of the noise in '{name}', so there is nothing to confirm")
    cells, grid = study.plan.factor.cells.values(), dict[str, dict[str, Any]]()
    # "on" alone means nothing in a level's name; but what a profile patches goes by that
    bare = "levels" in study.parameters["profiles"][study.parameters["profile"]]
    for dimension, patches in study.parameters["grid"].items():
        ends = list(dict.fromkeys(cell[dimension] for cell in cells))[: 2 if dimension in large else 1]
        grid[dimension] = {end if bare else f"{dimension} {end}": patches[end] for end in ends}
    own = {
        "study": f"{name}-confirmed", "screen": False, "levels": {}, "grid": grid,
        "baseline": "", "along": "", "against": {}, "answers": {},
    }  # fmt: skip
    return {key: value for key, value in {**study.parameters, **given, **own}.items() if key in parameters}


def _refuse_early(name: str, values: Mapping[str, Any], given: Iterable[str]) -> None:
    """Refuse parameters that make no study, or would be ignored, before anything starts; the notebook asks this machine."""
    if not values.get("run", True):
        kept = StudyFolder(name).read().parameters
        if ignored := [each for each in given if each not in _NAMING and values[each] != kept.get(each)]:
            raise InputError(f"parameter {ignored[0]}: run=false shows a study as it was run; leave it out")
        return
    from benchlib.study.runs import plan_study  # a saved study needs no levers and servers

    plan_study({**values, "leave_out": False})


def _absolute(value: Any, key: str = "") -> Any:
    """Return the parameters with absolute paths of a fleet's file, workloads and settings: the notebook runs in another folder."""
    if isinstance(value, Mapping):
        return {name: _absolute(inner, str(name)) for name, inner in value.items()}
    if not isinstance(value, str):
        return value
    if key in _FILES and _FILES[key].fullmatch(value):
        return str(Path(os.path.expanduser(value)).absolute())  # noqa: PTH111 (of an unknown user it stays)
    own = workload_paths().get(value) if key == "workload" else None
    return str(own) if own and own.parent not in (LIBRARY, project_root() / "workloads") else value


def report_studies(names: Sequence[str], *, alone: bool = False) -> Iterator[str]:
    """Render the pages of the named studies, or of all that have changed, and the index; a line for each page.

    A study that cannot be shown is passed over with its reason, unless it was named. ``alone``: the site has the named studies only.

    Raises:
        InputError: there is no study of a name, or nothing can be written where pages go.

    """
    from benchlib.report import site

    wanted = list(dict.fromkeys(names)) or study_names()
    root, code = site.writable_root(), site.code_fingerprint()
    changed, left_out = list[str](), dict[str, str]()
    for name in wanted:
        folder = StudyFolder(name)
        data = None if names else site.saved_page(name, site.study_fingerprint(folder, code))
        try:
            if data and has_page(root, data):
                yield f"page: {root / name}.html (unchanged)"
                continue
            factor = folder.read().plan.factor
            if names or factor.pairs().keys() - {*factor.controls}:  # a capacity study compares nothing
                changed.append(name)
        except BenchlibError as reason:
            if names:
                raise
            left_out[name] = str(reason)
    for name, made in apart(make_page, changed, AT_A_TIME):
        failure = made if isinstance(made, BenchlibError) else None
        if failure is None:
            yield f"page: {root / name}.html"
        elif names:
            raise failure
        else:
            left_out[name] = str(failure)
    of_site = names if alone else ()
    pages, others = site.pages_and_others(of_site, _MOST_OTHERS if names else math.inf)
    for name, why in {**({} if names else others), **left_out}.items():
        yield f"left out: {why if name in why.split(':')[0] else f'{name}: {why}'}"
    yield from _around(root, pages, {**others, **left_out}, of_site)


def follow(name: str) -> Iterator[str]:
    """Bring the site, where there is one, up to date after a study was renamed, changed or deleted; lines that say where."""
    from benchlib.report import site

    root = site.reports_root()
    if (root / "index.html").is_file():
        for ending in ("html", "ipynb", "json", "study.json", "trials.csv"):
            files.remove(root / f"{name}.{ending}")
        yield from (line for line in report_studies(()) if not line.endswith("(unchanged)"))


def _around(
    root: Path, pages: Sequence[PageData], left_out: Mapping[str, str], names: Sequence[str] = ()
) -> Iterator[str]:
    """Make the pages that show several studies, and the site's own; lines that say which."""
    from benchlib.report import site

    given = {"studies": ",".join(names)} if names else {}
    for path in notebooks().values():
        if not is_overview(notebook_parameters(path)):
            continue
        if not pages:
            files.remove(root / f"{path.stem}.html")
        else:
            try:
                yield f"page: {_overview(root, path, given, pages)}"
            except BenchlibError as reason:
                yield f"left out: {reason}"
    yield f"index: {site.write_site(root, pages, left_out)}"


# --- making a page --------------------------------------------------------------------


def is_overview(parameters: Mapping[str, Parameter]) -> bool:
    """Whether a notebook with these parameters shows the studies of others and runs none."""
    return "factor" in parameters and not parameters.keys() & {"levels", "grid"}


def _overview(root: Path, path: Path, given: Mapping[str, Any], pages: Sequence[PageData] = ()) -> Path:
    """Make the page of a notebook that shows several studies, unless nothing has changed; return its path."""
    from benchlib.report import site
    from benchlib.report.page import render_notebook

    made = root / f"{path.stem}.html"
    mark = hashlib.sha256(
        path.read_bytes() + "".join(page.fingerprint for page in pages).encode()
    ).hexdigest()
    if pages and made.is_file() and mark in made.read_text():
        return made
    notebook = _executed(path, _known(path, {"run": False, **given}), root / f"{path.stem}.ipynb")
    write_notebook(notebook, root / f"{path.stem}.ipynb")
    text = render_notebook(
        path.stem.replace("_", " ").capitalize(), notebook, address=site.address_of(made.name)
    )
    write_file(made, text.replace("</body>", f"<!-- {mark} -->\n</body>"))
    return made


def _executed(path: Path, given: Mapping[str, Any], failed: Path, listen: Listen = lambda line: None) -> Node:
    """Execute a notebook; where it fails with an error of its own, its traceback is left at ``failed``."""
    try:
        return execute(path, given, listen)
    except NotebookError as reason:
        if reason.notebook is not None:
            write_notebook(reason.notebook, failed)
        raise StudyError(f"{reason} (see {failed})") from None


def _known(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that a notebook has parameters for."""
    known = notebook_parameters(path)
    return {name: value for name, value in given.items() if name in known}


def _showing(notebook: str | None) -> tuple[Path, bool]:
    """Return the notebook that shows a study which names this one, and whether it is that one.

    A study may come from elsewhere, and a notebook is executed: any name that is not known here means the template.

    Raises:
        InputError: this installation has no notebooks.

    """
    own = notebooks().get(notebook or "")
    return own or find_notebook("template"), bool(own)


def has_page(root: Path, data: PageData) -> bool:
    """Whether a study's page is there and was made by its notebook as that is now."""
    path, _ = _showing(data.notebook)
    return data.page == _page_mark(data.fingerprint, path) and (root / f"{data.name}.html").is_file()


def _page_mark(fingerprint: str, notebook: Path) -> str:
    return hashlib.sha256(fingerprint.encode() + notebook.read_bytes()).hexdigest()


def make_page(name: str, notebook: Path | None = None, executed: Node | None = None) -> PageData:
    """Make a study's page by its notebook, or by the given one, and the files beside it; return the page's data.

    Raises:
        BenchlibError: there is no such study, the notebook failed, or the study has nothing to show.

    """
    from benchlib.report import site
    from benchlib.report.model import page_data, repeat_command
    from benchlib.report.page import render_page, shown_frames
    from benchlib.study.experiment import shown
    from benchlib.study.frames import OpenStudy

    root, folder = site.reports_root(), StudyFolder(name)
    fingerprint = site.study_fingerprint(folder, site.code_fingerprint())
    experiment = shown(folder)
    experiment.check_comparable()
    study = OpenStudy(experiment)
    path, own = (notebook, True) if notebook else _showing(study.study.notebook)
    if executed is None:
        values = {**(study.study.parameters if own else {}), "study": name, "run": False}
        executed = _executed(path, _known(path, values), root / f"{name}.ipynb")
    frames = shown_frames(executed)
    if "effects" in frames:
        parts = (frames.get(kind) for kind in ("effects", "limits", "setup"))
        data = page_data(study.study, *parts, name=name, missing=study.missing)  # type: ignore[arg-type]
    else:  # a notebook that compares nothing
        data = site.judged(name)
    data = data.model_copy(update={"fingerprint": fingerprint, "page": _page_mark(fingerprint, path)})
    downloads = write_downloads(root, study, executed)
    address = site.address_of(f"{name}.html")
    # a screening is no comparison of levels
    repeat = "" if study.study.declared.screen else repeat_command(name, study.comparison)
    write_file(root / f"{name}.html", render_page(data, executed, downloads, repeat, address))
    site.keep(data)
    return data


def write_downloads(root: Path, study: Any, notebook: Node) -> dict[str, str]:
    """Write a study's trials, its plan and its executed notebook beside its page; return their labels by name.

    No path of the machine and no address of a server is in them.
    """
    from benchlib.study.frames import guarded

    name, plan, parameters = study.name, study.study.plan, study.study.parameters
    replaced = unpublished(plan, parameters)
    patches = [parameters, *(level.model_dump() for level in (plan.base, *plan.factor.levels.values()))]
    paths = {str(patch.get("workload")) for patch in patches}
    replaced |= {path: Path(path).name for path in paths if "/" in path}
    dumped = without(study.study.model_dump(mode="json"), replaced)
    trials = study.trials.map(lambda cell: guarded(without(cell, replaced)))
    write_file(root / f"{name}.trials.csv", trials.to_csv(index=False))
    write_file(root / f"{name}.study.json", json.dumps(dumped, indent=2, ensure_ascii=False) + "\n")
    notebook["metadata"].pop("papermill", None)
    write_file(
        root / f"{name}.ipynb",
        json.dumps(without(notebook, replaced), indent=1, ensure_ascii=False, sort_keys=True) + "\n",
    )
    labels = {
        "trials.csv": "trials (CSV)",
        "json": "answers (JSON)",
        "study.json": "study (JSON)",
        "ipynb": "notebook",
    }
    return {f"{name}.{ending}": label for ending, label in labels.items()}
