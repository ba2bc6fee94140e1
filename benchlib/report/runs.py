"""Running a notebook and rendering pages.

A notebook with neither levels nor a grid shows several studies; its page is made after theirs.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchlib.errors import BenchlibError, InputError
from benchlib.host import files
from benchlib.host.apart import apart
from benchlib.load.workloads import LIBRARY, workload_paths
from benchlib.plan.model import Study
from benchlib.plan.parameters import Parameter, checked, refuse_unknown
from benchlib.plan.planning import study_name
from benchlib.plan.settings import SETTINGS_FILE
from benchlib.plan.words import private_texts, without
from benchlib.report import site
from benchlib.report.execute import Listen, execute, find_notebook, notebook_parameters
from benchlib.report.model import Node, PageData, page_data, repeat_command
from benchlib.report.site import write_file
from benchlib.stats.limits import STANDS_OUT
from benchlib.study.store import StudyFolder, notebooks, project_root, study_names

_NAMING = {"run", "study", "factor", "profile", "shares_of"}
"""The parameters that select the study."""
_FILES = {
    "postgres": re.compile(r".*/.*"),
    "fleet": re.compile(r".+"),
    "workload": re.compile(r".*\.toml"),
    "settings": SETTINGS_FILE,
}
"""The parameters that may name a file, and the form of the name."""


def run_notebook(path: Path, given: Mapping[str, Any], listen: Listen) -> list[str]:
    """Run the missing trials and render the pages; return verdicts and paths.

    Raises:
        InputError: unknown parameters; nothing was started.
        BenchlibError: an error of the notebook.
    """
    given, values = values_of(path, given)
    name = "" if is_overview(values) else study_name(values)
    if name:
        _refuse_early(name, values, given)
    root, lines = site.writable_root(), list[str]()
    if name:
        executed = execute(path, given, _failed(name), listen) if values.get("run", True) else None
        # in a process with limits, as for 'benchlib report'
        ((_, made),) = apart(partial(make_page, notebook=path, executed=executed), [name])
        if isinstance(made, BenchlibError):
            raise made
        lines = [*(text for _, text in made.sentences()), f"page: {root / name}.html"]
    pages, others = site.pages_and_others(judge=not name)
    if not name:  # a notebook shows what is judged
        lines = [f"page: {_overview(path, given)}"]
    return [*lines, f"index: {site.write_site(pages, others)}"]


def values_of(path: Path, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the given parameters with absolute paths, and all values.

    Raises:
        InputError: a name is unknown, or a value has another type.
    """
    absolute = _absolute(given)
    return absolute, checked(notebook_parameters(path), absolute)


def confirmed(parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that confirm a saved screening or survey.

    A survey gives the cells that stand out, in fresh blocks. A screening gives a grid of its large changes.

    Raises:
        InputError: no such screening, or it is incomplete, or has no large change.
    """
    refuse_unknown(given, parameters)
    asked = {name: p.check(given.get(name, p.default)) for name, p in parameters.items()}
    name = study_name(asked)
    study, data = StudyFolder(name).read(), site.data_of(name)
    # the command may repeat what the screening was run with
    changed = {key for key in given if asked[key] != study.parameters.get(key)}
    if ignored := {"grid", "levels", "baseline", "along", "against", "answers"} & changed:
        raise InputError(f"parameter {min(ignored)}: a grid that confirms a screening has its own")
    if not (study.declared.screen or study.declared.survey):
        raise InputError(
            f"study '{name}' is no screening or survey: set 'screen: true' and a grid, or 'survey: true'"
        )
    if data.complete:
        raise InputError(f"study '{name}' is not complete: {data.complete}; run it to its end")
    large = [
        answer.level for answer in data.comparisons if answer.verdict in ("faster", "slower", STANDS_OUT)
    ]
    if not large:
        raise InputError(f"nothing stands out of the noise in '{name}', so there is nothing to confirm")
    own = _of_survey(study, data) if study.declared.survey else _of_screening(study, large)
    if study.declared.survey and "blocks" in changed:
        own["blocks"] = given["blocks"]
    values = {**study.parameters, **given, "study": f"{name}-confirmed", "answers": {}, **own}
    return {key: value for key, value in values.items() if key in parameters}


def _of_screening(study: Study, large: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a grid of the large changes, the others as they are."""
    cells, grid = study.plan.factor.cells.values(), dict[str, dict[str, Any]]()
    # a level's name needs the dimension too, unless a profile patches the level by its value
    bare = "levels" in study.parameters["profiles"][study.parameters["profile"]]
    for dimension, patches in study.parameters["grid"].items():
        ends = list(dict.fromkeys(cell[dimension] for cell in cells))[: 2 if dimension in large else 1]
        grid[dimension] = {end if bare else f"{dimension} {end}": patches[end] for end in ends}
    return {"screen": False, "levels": {}, "grid": grid, "baseline": "", "along": "", "against": {}}


def _of_survey(study: Study, data: PageData) -> dict[str, Any]:
    """Return the parameters of fresh blocks for the cells that stand out."""
    from benchlib.stats.survey import blocks_to_confirm

    factor, out = study.plan.factor, [each for each in data.comparisons if each.verdict == STANDS_OUT]
    wanted = {name for each in out for name in (each.level, each.against)}
    arms = 1 + len(factor.repeats) / len({*factor.repeats.values()})
    # the deviation of a trial, from the error of a cell against all trials of its reference
    sd = float(median(each.error for each in out)) * math.sqrt(study.blocks / (1 + 1 / arms))
    return {
        "survey": False, "only": [name for name in factor.levels if name in wanted],
        "baseline": factor.cells[factor.baseline][study.declared.along], "blocks": str(blocks_to_confirm(len(out), sd)),
    }  # fmt: skip


def _refuse_early(name: str, values: Mapping[str, Any], given: Iterable[str]) -> None:
    """Refuse parameters that make no study, or have no effect."""
    if not values.get("run", True):
        saved = StudyFolder(name).read().parameters
        if ignored := [key for key in given if key not in _NAMING and values[key] != saved.get(key)]:
            raise InputError(f"parameter {ignored[0]}: run=false shows a study as it was run; leave it out")
        return
    from benchlib.study.runs import plan_study, with_builder  # a saved study needs no levers and servers

    plan_study({**with_builder(values), "leave_out": False})


def _absolute(value: Any, key: str = "") -> Any:
    """Return absolute paths: the notebook runs in another folder."""
    if isinstance(value, Mapping):
        return {name: _absolute(inner, str(name)) for name, inner in value.items()}
    if key == "workloads" and isinstance(value, str | list):
        names = value.split(",") if isinstance(value, str) else value
        return [_absolute(str(name).strip(), "workload") for name in names]
    if not isinstance(value, str):
        return value
    if key in _FILES and _FILES[key].fullmatch(value):
        return str(Path(os.path.expanduser(value)).absolute())  # noqa: PTH111 (of an unknown user it stays)
    own = workload_paths().get(value) if key == "workload" else None
    return str(own) if own and own.parent not in (LIBRARY, project_root() / "workloads") else value


def report_studies(names: Sequence[str], *, alone: bool = False) -> Iterator[str]:
    """Render the pages of the named studies, or of all that have changed; yield a line for each.

    With ``alone`` the site has the named studies only.

    Raises:
        InputError: there is no such study, or the site's folder is not writable.
        BenchlibError: a named study cannot be shown.
    """
    root, code = site.writable_root(), site.code_fingerprint()
    changed, left_out = list[str](), dict[str, str]()
    for name in dict.fromkeys(names) or study_names():
        folder = StudyFolder(name)
        data = None if names else site.saved_page(folder, code)
        try:
            if data and has_page(data):
                yield f"page: {root / name}.html (unchanged)"
                continue
            factor = folder.read().plan.factor
            if names or factor.pairs().keys() - {*factor.controls}:  # a capacity study compares nothing
                changed.append(name)
        except BenchlibError as reason:
            if names:
                raise
            left_out[name] = str(reason)
    for name, made in apart(make_page, changed):
        if not isinstance(made, BenchlibError):
            yield f"page: {root / name}.html"
        elif names:
            raise made
        else:
            left_out[name] = str(made)
    of_site = names if alone else ()
    pages, others = site.pages_and_others(of_site, judge=not names)
    for name, why in {**({} if names else others), **left_out}.items():
        yield f"left out: {why if name in why.split(':')[0] else f'{name}: {why}'}"
    if alone or not names:
        yield from _overviews(pages, of_site)
    yield f"index: {site.write_site(pages, {**others, **left_out})}"


def check_site() -> None:
    """Raise InputError if there is a site that cannot be updated."""
    if (site.reports_root() / "index.html").is_file():
        site.writable_root()


def follow(name: str) -> Iterator[str]:
    """Update the site after a study was renamed, changed or deleted."""
    root = site.reports_root()
    if (root / "index.html").is_file():
        for ending in ("html", "ipynb", "failed.ipynb", "json", "study.json", "trials.csv"):
            files.remove(root / f"{name}.{ending}")
        yield from (line for line in report_studies(()) if not line.endswith("(unchanged)"))


def _overviews(pages: Sequence[PageData], names: Sequence[str]) -> Iterator[str]:
    given = {"studies": ",".join(names)} if names else {}
    for path in notebooks().values():
        try:
            overview = is_overview(notebook_parameters(path))
        except InputError:  # somebody's own, without parameters
            overview = False
        if overview and not pages:
            files.remove(site.reports_root() / f"{path.stem}.html")
        elif overview:
            try:
                yield f"page: {_overview(path, given, pages)}"
            except BenchlibError as reason:
                yield f"left out: {reason}"


# --- making a page --------------------------------------------------------------------


def is_overview(parameters: Mapping[str, Any]) -> bool:
    """Return whether a notebook shows several studies and runs none."""
    return "factor" in parameters and not parameters.keys() & {"levels", "grid"}


def _overview(path: Path, given: Mapping[str, Any], pages: Sequence[PageData] = ()) -> Path:
    """Make the page of several studies, unless nothing has changed."""
    made, mark = site.reports_root() / f"{path.stem}.html", site.overview_mark(path, pages)
    if pages and made.is_file() and mark in made.read_text("utf-8"):
        return made
    executed = made.with_suffix(".ipynb")
    notebook = execute(path, _known(path, {"run": False, **given}), _failed(path.stem))
    notebook["metadata"].pop("papermill", None)  # it has folders
    files.remove(_failed(path.stem))
    import nbformat  # loaded by now

    from benchlib.report.page import notebook_parts

    write_file(executed, nbformat.writes(notebook) + "\n")  # type: ignore[no-untyped-call]
    title = path.stem.replace("_", " ").capitalize()
    return site.write_page(path.stem, "notebook.html.j2", title=title, mark=mark, **notebook_parts(notebook))


def _failed(name: str) -> Path:
    """Return where a failed notebook is saved, private texts included."""
    return site.reports_root() / f"{name}.failed.ipynb"


def _known(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    known = notebook_parameters(path)
    return {name: value for name, value in given.items() if name in known}


def _showing(notebook: str | None) -> tuple[Path, bool]:
    """Return the notebook that shows a study, and whether it is the study's own.

    A study may come from elsewhere: an unknown name means the template.

    Raises:
        InputError: this installation has no notebooks.
    """
    own = notebooks().get(notebook or "")
    return own or find_notebook("template"), bool(own)


def has_page(data: PageData) -> bool:
    """Return whether a study's present notebook made its page."""
    path, _ = _showing(data.notebook)
    made = site.reports_root() / f"{data.name}.html"
    return data.page == _page_mark(data.fingerprint, path) and made.is_file()


def _page_mark(fingerprint: str, notebook: Path) -> str:
    return hashlib.sha256(fingerprint.encode() + notebook.read_bytes()).hexdigest()


def make_page(name: str, notebook: Path | None = None, executed: Node | None = None) -> PageData:
    """Make a study's page and downloads; return the page's data.

    Raises:
        BenchlibError: there is no such study, the notebook failed, or the study compares nothing.
    """
    root, folder = site.reports_root(), StudyFolder(name)
    fingerprint, saved = site.study_fingerprint(folder, site.code_fingerprint()), folder.read()
    path, own = (notebook, True) if notebook else _showing(saved.notebook)
    blocks = Counter(each.trial.block for each in folder.kept().values())
    if max(blocks.values(), default=0) < 2:
        site.judged(name)  # raises the error, before the notebook runs in vain
    if executed is None:
        values = {**(saved.parameters if own else {}), "study": name, "run": False}
        executed = execute(path, _known(path, values), _failed(name))
    from benchlib.report.page import notebook_parts, shown_frames
    from benchlib.study.experiment import Experiment
    from benchlib.study.frames import OpenStudy, as_data

    study = OpenStudy(Experiment(folder, saved))
    defaults = {key: parameter.default for key, parameter in notebook_parameters(path).items()}
    hidden = private_texts(saved, defaults)
    executed = without(executed, hidden)
    frames = shown_frames(executed)
    if "effects" in frames:
        if "queries" not in frames:  # 'benchlib check --by query' reads them
            frames["queries"] = as_data(study.by_query())
        data = page_data(study.study, frames, name=name, missing=study.missing)
    else:  # a notebook that compares nothing
        data = site.judged(name)
    data = data.model_copy(update={"fingerprint": fingerprint, "page": _page_mark(fingerprint, path)})
    downloads = write_downloads(root, study, executed, hidden)
    files.remove(_failed(name))
    # a screening or a survey is no comparison of levels
    declared = study.study.declared
    repeated = not (declared.screen or declared.survey)
    repeat = repeat_command(name, without(study.comparison, hidden)) if repeated else ""
    shown = {"data": data, "downloads": downloads, "repeat": repeat}
    site.write_page(name, "page.html.j2", **shown, **notebook_parts(executed, titled=True))
    site.keep(data)
    return data


def write_downloads(root: Path, study: Any, notebook: Node, hidden: Mapping[str, str]) -> dict[str, str]:
    """Write trials, plan and notebook without private texts; return their labels."""
    from benchlib.study.frames import guarded

    name, plan = study.name, study.study.plan
    workloads = {key: work.published() for key, work in plan.workloads.items()}
    published = plan.changed(workload=plan.workload.published(), workloads=workloads)
    dumped = without(study.study.changed(plan=published).model_dump(mode="json"), hidden)
    trials = study.trials.map(lambda cell: guarded(without(cell, hidden)))
    notebook["metadata"].pop("papermill", None)
    written = {
        "trials.csv": trials.to_csv(index=False, float_format="%.12g"),
        "study.json": json.dumps(dumped, separators=(",", ":"), ensure_ascii=False) + "\n",
        "ipynb": json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n",
    }
    for ending, text in written.items():
        write_file(root / f"{name}.{ending}", text)
    labels = {
        "trials.csv": "trials (CSV)",
        "json": "answers (JSON)",
        "study.json": "study (JSON)",
        "ipynb": "notebook",
    }
    return {f"{name}.{ending}": label for ending, label in labels.items()}
