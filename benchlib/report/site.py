"""The site: the data of pages, and pages of several studies."""

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import benchlib
from benchlib.errors import BenchlibError, InputError, StudyError, os_errors_as
from benchlib.host import files
from benchlib.host.apart import apart
from benchlib.plan.words import scrubbed
from benchlib.report.model import PageData, ordered, page_data
from benchlib.study.store import StudyFolder, notebooks, project_root, stamp, walk

REPORTS_VARIABLE, ADDRESS_VARIABLE = "BENCHLIB_REPORTS", "BENCHLIB_ADDRESS"
_PACKAGES = ("jinja2", "matplotlib", "mistune", "nh3", "numpy", "pandas", "papermill", "scipy", "seaborn")
_METHOD = Path(__file__).parent / "template" / "methodology.md"


def reports_root() -> Path:
    """Return the folder of the site."""
    named = os.environ.get(REPORTS_VARIABLE)
    return Path(named).absolute() if named else project_root() / "reports"


def address_of(file: str) -> str:
    """Return a file's published address; empty without ``BENCHLIB_ADDRESS``."""
    site = os.environ.get(ADDRESS_VARIABLE, "")
    return f"{site.rstrip('/')}/{file}" if site else ""


def writable_root() -> Path:
    """Return the folder of the site.

    Raises:
        InputError: the folder is not writable.
    """
    root = reports_root()
    try:
        tempfile.TemporaryFile(dir=next(path for path in (root, *root.parents) if path.exists())).close()
    except OSError as reason:
        raise InputError(f"cannot write pages into {root}: {reason.strerror}; name another folder") from None
    return root


def write_file(path: Path, text: str) -> None:
    """Write a file of the site.

    Raises:
        StudyError: the disk refused.
        PreflightError: the folder is not trusted.
    """
    advice = "free some space, make it writable, or name another folder"
    with os_errors_as(StudyError, f"cannot write {path}: {advice}"):
        files.make(path.parent)
        files.write(path, text)


# --- the data of a page -----------------------------------------------------------------


def judged(name: str, metric: str = "") -> PageData:
    """Return a page's data from the trials, without a notebook.

    Raises:
        InputError: there is no such study, or it is damaged.
        StudyError: too few trials to compare anything.
    """
    from benchlib.stats.effects import compare, screen  # what is saved beside the pages needs no scipy
    from benchlib.study.experiment import shown
    from benchlib.study.frames import OpenStudy, as_data

    experiment = shown(StudyFolder(name))
    study = OpenStudy(experiment)
    if not study.answers:
        raise StudyError(
            f"study '{name}' measures the baseline alone, such as the capacity for a rate: it compares nothing"
        )
    experiment.check_comparable()
    trials, measured = study.trials, metric or study.metric.name
    if study.study.declared.screen:
        effects = screen(trials, study.signs, metric=measured, margin=study.margin, alpha=study.alpha)
    else:
        effects = compare(trials, **{**study.comparison, "metric": measured})
    frames = map(as_data, (effects, study.limits(effects), study.setup, study.by_query()))
    by_kind = {frame["kind"]: frame for frame in frames}
    return page_data(study.study, by_kind, name=name, missing=study.missing)


def saved_page(folder: StudyFolder, code: str = "") -> PageData | None:
    """Return a page's saved data; with ``code``, only if they are of this code and the study as it is."""
    with contextlib.suppress(OSError, ValidationError):
        data = PageData.model_validate_json(files.read_plain(reports_root() / f"{folder.name}.json"))
        if data.name == folder.name and (not code or data.fingerprint == study_fingerprint(folder, code)):
            return data
    return None


def data_of(name: str) -> PageData:
    """Return a page's data, saved or judged now.

    Raises:
        InputError: there is no such study, or it is damaged.
        StudyError: too few trials to compare anything.
    """
    folder, code = StudyFolder(name), code_fingerprint()
    folder.read()
    if data := saved_page(folder, code):
        return data
    fingerprint = study_fingerprint(folder, code)
    data = judged(name).model_copy(update={"fingerprint": fingerprint})
    if reports_root().is_dir():
        with contextlib.suppress(BenchlibError):  # the folder may not be writable
            keep(data)
    return data


def keep(data: PageData) -> None:
    """Save a page's data."""
    write_file(reports_root() / f"{data.name}.json", data.model_dump_json() + "\n")


def pages_and_others(
    names: Sequence[str] = (), *, judge: bool = True
) -> tuple[list[PageData], dict[str, str]]:
    """Return pages in the order of the index, and reasons why others have none.

    Without ``judge``, saved data count even if they are not current.

    Raises:
        InputError: there is no such study.
    """
    pages, changed, code = list[PageData](), list[str](), code_fingerprint() if judge else ""
    named = [StudyFolder(name) for name in names]
    for folder in named:
        folder.read()
    for folder in named or walk():
        if data := saved_page(folder, code):
            pages.append(data)
        else:
            changed.append(folder.name)
    others = {} if judge else dict.fromkeys(changed, "it has not been judged: run 'benchlib report'")
    for name, data in apart(data_of, changed if judge else ()):
        if isinstance(data, PageData):
            pages.append(data)
        else:
            others[name] = str(data)
    return ordered(pages), {name: others[name] for name in sorted(others)}


# --- pages that show several studies -----------------------------------------------------


def write_page(name: str, template: str, **values: Any) -> Path:
    """Write a page of the site; return its path."""
    from benchlib.report.page import render

    path = reports_root() / f"{name}.html"
    write_file(path, render(template, address=address_of(path.name), **values))
    return path


def write_site(pages: Sequence[PageData], others: Mapping[str, str]) -> Path:
    """Write index, all comparisons and method; return the index's path."""
    from benchlib.report.bars import Axis
    from benchlib.report.page import prose_parts

    root = reports_root()
    there = {path.stem for path in root.glob("*.html")}
    with_page = [page for page in pages if page.name in there and page.answers]
    by_factor = dict[str, list[PageData]]()
    for page in with_page:
        by_factor.setdefault(page.notebook, []).append(page)
    rows: list[dict[str, Any]] = [
        {"page": of[0], "answer": of[0].answers[0], "more": sum(len(page.effects) for page in of) - 1}
        for of in by_factor.values()
    ]
    every = [answer for page in with_page for answer in page.effects]
    verdicts = list(dict.fromkeys(answer.verdict for answer in every if answer.verdict))
    why = "it has no page yet: run 'benchlib report {}'".format
    left_out = {name: scrubbed(reason) for name, reason in others.items()}
    left_out |= {page.name: why(page.name) for page in pages if page not in with_page}
    summary = notebooks().get("summary")
    made = (root / "summary.html").read_text("utf-8") if "summary" in there else ""
    older = bool(made and summary and overview_mark(summary, pages) not in made)
    alphas = {row["page"].alpha for row in rows}
    confidence = f"{100 * (1 - alphas.pop()):.6g} % " if len(alphas) == 1 else ""
    first, axis = Axis.of([row["answer"] for row in rows]), Axis.of(every)
    factors = [*by_factor]
    write_page(
        "comparisons", "comparisons.html.j2", pages=with_page, axis=axis, factors=factors, verdicts=verdicts
    )
    method = prose_parts(_METHOD.read_text("utf-8"))
    write_page("methodology", "prose.html.j2", title="How a verdict is made", **method)
    told = {"left_out": left_out, "older": older, "confidence": confidence, "count": len(every)}
    return write_page("index", "index.html.j2", rows=rows, axis=first, pages=there, **told)


def overview_mark(notebook: Path, pages: Sequence[PageData]) -> str:
    """Return the fingerprint of a page of several studies."""
    fingerprints = "".join(page.fingerprint for page in pages)
    return hashlib.sha256(notebook.read_bytes() + fingerprints.encode()).hexdigest()


# --- fingerprints --------------------------------------------------------------


def code_fingerprint() -> str:
    """Return the fingerprint of the library, packages, published numbers and address."""
    digest = hashlib.sha256(" ".join([sys.version, *map(version, _PACKAGES), address_of("")]).encode())
    library, published = Path(benchlib.__file__).parent, project_root() / "data" / "published"
    beside = project_root().glob("*.py")  # which cells may import
    for path in sorted([*library.rglob("*.*"), *published.glob("*.csv"), *beside]):
        if path.suffix != ".pyc" and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            digest.update(f"{path.name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def study_fingerprint(folder: StudyFolder, code: str) -> str:
    """Return the fingerprint of the code and a study's files (without their contents)."""
    paths = list[str]()
    for top, folders, names in os.walk(folder.path):
        paths += (f"{top}/{name}" for name in (*folders, *names))
        if top != str(folder.path):  # trials have no folders of ours
            folders.clear()
    stamps = ((path.removeprefix(str(folder.path)), stamp(path)[:2]) for path in sorted(paths))
    return hashlib.sha256(repr((code, *stamps)).encode()).hexdigest()
