"""What index and summary show of a study, kept beside its page, so that what has not changed is not judged again."""

import contextlib
import hashlib
import math
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path

from pydantic import BaseModel, ValidationError

import benchlib
from benchlib.errors import BenchlibError, InputError, StudyError
from benchlib.host import files
from benchlib.report.answers import Answer, Number, answers, headline, limits
from benchlib.stats.assumptions import assumptions_seen
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import StudyFolder, project_root, walk

REPORTS_VARIABLE, ADDRESS_VARIABLE = "BENCHLIB_REPORTS", "BENCHLIB_ADDRESS"
_PACKAGES = ("beautifulsoup4", "jinja2", "matplotlib", "mistune", "numpy", "pandas", "scipy", "seaborn")


class Entry(BaseModel):
    """What a study says outside its own page.

    ``left_out`` is why it is not shown there; of what could not be judged there is nothing else. ``fingerprint`` is of what
    it was made from, ``page`` of what its page was made from, empty without one. ``facts`` are labels and words, ``assumptions`` as
    :func:`benchlib.stats.assumptions.assumptions_seen` has them.
    """

    name: str
    fingerprint: str
    page: str = ""
    left_out: str = ""
    notebook: str = ""
    title: str = ""
    question: str = ""
    headline: str = ""
    limits: str = ""
    panel: str = ""
    answers: tuple[Answer, ...] = ()
    metric_title: str = ""
    higher_is_better: bool = True
    facts: dict[str, str] = {}
    assumptions: dict[str, Number] = {}

    @property
    def short_limits(self) -> str:
        """Its limits without the levels at which a condition was not met: its page has these."""
        return re.sub(r" \(at “[^)]*\)", "", self.limits)

    def page_from(self, notebook: Path) -> str:
        """The fingerprint of its page by this notebook."""
        return hashlib.sha256(self.fingerprint.encode() + notebook.read_bytes()).hexdigest()

    def has_page(self, notebook: Path) -> bool:
        """Whether its page by this notebook is there, and up to date."""
        return self.page == self.page_from(notebook) and (reports_root() / f"{self.name}.html").is_file()

    def keep(self) -> None:
        """Write it beside the pages."""
        files.write(reports_root() / f"{self.name}.entry.json", self.model_dump_json(indent=1) + "\n")


def entry_of(experiment: Experiment, fingerprint: str) -> Entry:
    """What a study says.

    Raises:
        StudyError: too few trials are kept to compare anything.
        InputError: the study is damaged.

    """
    analysis, study, plan = experiment.analysis, experiment.study, experiment.plan
    good = experiment.trials[experiment.trials["error"].isna()]
    return Entry(
        name=experiment.folder.name,
        fingerprint=fingerprint,
        left_out="" if analysis.asked else "it measures the baseline alone: a pilot, or the capacity for a rate",
        notebook=study.notebook or "",
        title=study.title,
        question=plan.factor.question,
        headline=headline(experiment),
        limits=limits(experiment),
        panel=study.declared.panel,
        answers=tuple(answers(experiment)),
        metric_title=analysis.metric.title,
        higher_is_better=analysis.metric.higher_is_better,
        facts=experiment.facts(),
        assumptions=assumptions_seen(good, plan.metric, plan.strata()),
    )  # fmt: skip


def entries(names: Sequence[str] = (), most_judged: float = math.inf) -> tuple[list[Entry], dict[str, str]]:
    """Those of the studies of these names, or of all that are kept, by panel and title; and why others have none, by their names.

    Of those that have no entry yet no more than ``most_judged`` are judged now.

    Those beside the pages serve as long as nothing has changed; the others are judged, and kept for the next time.

    Raises:
        InputError: there is no study of a name.

    """
    folders = [StudyFolder(name) for name in names]
    for folder in folders:
        folder.read()  # a name that was given is not passed over
    code, kept, left_out = code_fingerprint(), list[Entry](), dict[str, str]()
    for folder in folders or walk():
        fingerprint = study_fingerprint(folder, code)
        try:
            entry = kept_entry(folder.name, fingerprint)
            if entry is None and most_judged > 0:
                most_judged -= 1
                entry = _judged(folder, fingerprint)
            why = (
                entry.left_out if entry else "it has not been judged since it changed: 'benchlib report' does"
            )
        except BenchlibError as reason:
            why = str(reason)
        if entry and not why:
            kept.append(entry)
        else:
            left_out[folder.name] = why
    # the panels' names are in the order of the index
    return sorted(kept, key=attrgetter("panel", "title", "name")), left_out


def _judged(folder: StudyFolder, fingerprint: str) -> Entry:
    """The entry of a study that is judged here and now, kept where pages are."""
    try:
        entry = entry_of(shown(folder), fingerprint)
    except StudyError as reason:
        entry = Entry(name=folder.name, fingerprint=fingerprint, left_out=str(reason))
    with contextlib.suppress(OSError, InputError):  # where there are no pages, or not ours to write
        entry.keep()
    return entry


def kept_entry(name: str, fingerprint: str) -> Entry | None:
    """The entry beside the pages, if it was made from the same."""
    with contextlib.suppress(OSError, ValidationError):
        entry = Entry.model_validate_json((reports_root() / f"{name}.entry.json").read_bytes())
        return entry if (entry.name, entry.fingerprint) == (name, fingerprint) else None
    return None


# --- where pages go -----------------------------------------------------------------


def reports_root() -> Path:
    """The folder of the site: ``reports/`` of the project, or the folder that ``BENCHLIB_REPORTS`` names."""
    named = os.environ.get(REPORTS_VARIABLE)
    return Path(named).absolute() if named else project_root() / "reports"


def address_of(file: str) -> str:
    """Where a file of the site is published, if ``BENCHLIB_ADDRESS`` says where the site is; else nothing."""
    site = os.environ.get(ADDRESS_VARIABLE, "")
    return f"{site.rstrip('/')}/{file}" if site else ""


def writable_root() -> Path:
    """The folder of the site, once it is certain that it can be made and written to.

    Raises:
        InputError: nothing can be written there.

    """
    root = reports_root()
    try:
        tempfile.TemporaryFile(dir=next(path for path in (root, *root.parents) if path.exists())).close()
    except OSError as reason:
        raise InputError(f"cannot write pages into {root}: {reason.strerror}; name another folder") from None
    return root


# --- what pages are made from -------------------------------------------------------


def code_fingerprint() -> str:
    """The fingerprint of all that judges a study: the library, the packages that draw and reckon, what was published; and of the site's address."""
    digest = hashlib.sha256(" ".join([sys.version, *map(version, _PACKAGES), address_of("")]).encode())
    library, published = Path(benchlib.__file__).parent, project_root() / "data" / "published"
    beside = project_root().glob("*.py")  # which cells may import
    for path in sorted([*library.rglob("*.*"), *published.glob("*.csv"), *beside]):
        if path.suffix != ".pyc" and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            digest.update(f"{path.name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def study_fingerprint(folder: StudyFolder, code: str) -> str:
    """The fingerprint of a study, with that of the code: the names, sizes and times of its files, and of its trials' folders."""
    digest, path = hashlib.sha256(code.encode()), folder.path
    for file in sorted([*path.glob("*"), *path.glob("*/*")]):
        with contextlib.suppress(OSError):
            about = file.lstat()
            name = file.relative_to(path).as_posix()
            digest.update(repr((name, about.st_size, about.st_mtime_ns)).encode())
    return digest.hexdigest()
