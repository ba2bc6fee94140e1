"""The site: pages' data beside the pages, the index, all comparisons, the method; where they lie and whether they are current."""

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import benchlib
from benchlib.errors import BenchlibError, InputError, StudyError
from benchlib.host import files
from benchlib.host.apart import apart
from benchlib.plan.words import scrubbed
from benchlib.report.model import Answer, PageData, ordered, page_data
from benchlib.report.notebooks import write_file
from benchlib.study.store import StudyFolder, project_root, walk

REPORTS_VARIABLE, ADDRESS_VARIABLE = "BENCHLIB_REPORTS", "BENCHLIB_ADDRESS"
_PACKAGES = ("jinja2", "matplotlib", "mistune", "nh3", "numpy", "pandas", "papermill", "scipy", "seaborn")
_AT_A_TIME = 2
_METHOD = Path(__file__).parent / "template" / "methodology.md"


def reports_root() -> Path:
    """Return the folder of the site: ``reports/`` of the project, or the folder that ``BENCHLIB_REPORTS`` names."""
    named = os.environ.get(REPORTS_VARIABLE)
    return Path(named).absolute() if named else project_root() / "reports"


def address_of(file: str) -> str:
    """Return where a file of the site is published, if ``BENCHLIB_ADDRESS`` says where the site is; else nothing."""
    site = os.environ.get(ADDRESS_VARIABLE, "")
    return f"{site.rstrip('/')}/{file}" if site else ""


def writable_root() -> Path:
    """Return the folder of the site, once it is certain that it can be made and written to.

    Raises:
        InputError: nothing can be written there.

    """
    root = reports_root()
    try:
        tempfile.TemporaryFile(dir=next(path for path in (root, *root.parents) if path.exists())).close()
    except OSError as reason:
        raise InputError(f"cannot write pages into {root}: {reason.strerror}; name another folder") from None
    return root


# --- the data of a page -----------------------------------------------------------------


def judged(name: str, metric: str = "") -> PageData:
    """Return what a page says of a saved study, from its trials, without a notebook; by another metric, if one is named.

    Raises:
        InputError: there is no such study, or it is damaged.
        StudyError: too few trials are saved to compare anything.

    """
    from benchlib.stats.effects import compare, screen  # what is saved beside the pages needs no scipy
    from benchlib.study.experiment import shown
    from benchlib.study.frames import OpenStudy, as_data

    experiment = shown(StudyFolder(name))
    study = OpenStudy(experiment)
    if not study.answers:
        raise StudyError("it measures the baseline alone, such as the capacity for a rate")
    experiment.check_comparable()
    trials, measured = study.trials, metric or study.metric.name
    if study.study.declared.screen:
        effects = screen(trials, study.signs, metric=measured, margin=study.margin, alpha=study.alpha)
    else:
        effects = compare(trials, **{**study.comparison, "metric": measured})
    frames = (as_data(frame) for frame in (effects, study.limits(effects), study.setup))
    return page_data(study.study, *frames, name=name, missing=study.missing)


def saved_page(name: str, fingerprint: str = "") -> PageData | None:
    """Return the data beside the pages, if it was made from the same study and code; without a fingerprint any."""
    with contextlib.suppress(OSError, ValidationError):
        data = PageData.model_validate_json(files.read_plain(reports_root() / f"{name}.json"))
        return data if (data.name, data.fingerprint) == (name, fingerprint or data.fingerprint) else None
    return None


def data_of(name: str) -> PageData:
    """Return what is said of a saved study: what lies beside its page if that is current, else judged now and kept there.

    Raises:
        InputError: there is no such study, or it is damaged.
        StudyError: too few trials are saved to compare anything.

    """
    folder = StudyFolder(name)
    folder.read()
    fingerprint = study_fingerprint(folder, code_fingerprint())
    if data := saved_page(name, fingerprint):
        return data
    data = judged(name).model_copy(update={"fingerprint": fingerprint})
    if reports_root().is_dir():
        with contextlib.suppress(BenchlibError):  # where they are not ours to write
            keep(data)
    return data


def keep(data: PageData) -> None:
    """Write a page's data beside the pages."""
    write_file(reports_root() / f"{data.name}.json", data.model_dump_json(indent=1) + "\n")


def saved_pages(names: Sequence[str] = (), most_judged: float = float("inf")) -> list[PageData]:
    """Return the data of the studies of these names, or of all saved ones, in the order of the index."""
    return pages_and_others(names, most_judged)[0]


def pages_and_others(
    names: Sequence[str] = (), most_judged: float = float("inf")
) -> tuple[list[PageData], dict[str, str]]:
    """Return the data of studies, and why others have none, by name. At most ``most_judged`` are judged now.

    Raises:
        InputError: there is no study of a name that is given.

    """
    code, pages, changed = code_fingerprint(), list[PageData](), list[str]()
    for name in names:
        StudyFolder(name).read()
    for folder in [StudyFolder(name) for name in names] or walk():
        if data := saved_page(folder.name, study_fingerprint(folder, code)):
            pages.append(data)
        elif most_judged < float("inf") and (data := saved_page(folder.name)):
            pages.append(data)  # as its page shows it, until 'benchlib report' makes both again
        else:
            changed.append(folder.name)
    most = min(len(changed), max(most_judged, 0))
    others = dict.fromkeys(changed[int(most) :], "it has changed since it was judged: run 'benchlib report'")
    for name, data in apart(data_of, changed[: int(most)], _AT_A_TIME):
        if isinstance(data, PageData):
            pages.append(data)
        else:
            others[name] = scrubbed(str(data))
    return ordered(pages), {name: others[name] for name in sorted(others)}


# --- pages that show several studies -----------------------------------------------------


def write_site(root: Path, pages: Sequence[PageData], others: Mapping[str, str]) -> Path:
    """Write index, all comparisons and method; return the index's path. ``others`` are studies without data, and why."""
    from benchlib.report.bars import Axis
    from benchlib.report.page import render, render_prose

    there = {path.stem for path in root.glob("*.html")}
    with_page = [page for page in pages if page.name in there and page.answers]
    by_factor = dict[str, list[PageData]]()
    for page in with_page:
        by_factor.setdefault(page.notebook, []).append(page)
    counts = {
        name: sum(len(page.comparisons) - len(page.controls) for page in of) for name, of in by_factor.items()
    }
    rows: list[dict[str, Any]] = [
        {"page": of[0], "answer": of[0].answers[0], "more": counts[name] - 1}
        for name, of in by_factor.items()
    ]
    every: list[Answer] = [
        answer for page in with_page for answer in page.comparisons if answer.level not in page.controls
    ]
    verdicts = list(dict.fromkeys(answer.verdict for answer in every if answer.verdict))
    why = "it has no page yet: run 'benchlib report {}'".format
    left_out = {**others, **{page.name: why(page.name) for page in pages if page not in with_page}}
    parts = {
        "index.html": render(
            "index.html.j2", rows=rows, axis=Axis.of([row["answer"] for row in rows]), count=len(every), pages=there, left_out=left_out,
            address=address_of("index.html"),
        ),
        "comparisons.html": render(
            "comparisons.html.j2", pages=with_page, axis=Axis.of(every), factors=list(by_factor), verdicts=verdicts,
            address=address_of("comparisons.html"),
        ),
        "methodology.html": render_prose(
            "How a verdict is made", _METHOD.read_text(), address=address_of("methodology.html")
        ),
    }  # fmt: skip
    for name, text in parts.items():
        write_file(root / name, text)
    return root / "index.html"


# --- what pages are made from --------------------------------------------------------------


def code_fingerprint() -> str:
    """Return the fingerprint of all that judges and draws: the library, its packages, what was published, the site's address."""
    digest = hashlib.sha256(" ".join([sys.version, *map(version, _PACKAGES), address_of("")]).encode())
    library, published = Path(benchlib.__file__).parent, project_root() / "data" / "published"
    beside = project_root().glob("*.py")  # which cells may import
    for path in sorted([*library.rglob("*.*"), *published.glob("*.csv"), *beside]):
        if path.suffix != ".pyc" and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            digest.update(f"{path.name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def study_fingerprint(folder: StudyFolder, code: str) -> str:
    """Return the fingerprint of a study and the code: names, sizes and times of its files, and of its trials' folders."""
    digest, top = hashlib.sha256(code.encode()), str(folder.path)
    for name, status in sorted(_below(top, 2)):
        digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def _below(top: str, depth: int, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Give the names below a folder, so deep, with what the kernel says of each; no link is followed."""
    with contextlib.suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False)
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    yield from _below(entry.path, depth - 1, f"{prefix}{entry.name}/")
