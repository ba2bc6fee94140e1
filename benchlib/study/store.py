"""The only reader and writer of ``data/``. Links are not followed.

- ``<study>/study.json``: the plan, written before anything runs
- ``<study>/trials/<id>/``: raw output, renamed into place when complete
- ``<study>/trials.tar.xz``: the same files, packed
- ``<study>/crashes/<id>.json``
- ``<study>/SHA256SUMS``: checksums of trial files, verified on reading
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import ValidationError

from benchlib.errors import HostBusyError, InputError, StudyError, os_errors_as
from benchlib.host import files
from benchlib.host.files import PENDING
from benchlib.host.journal import cut_torn_end
from benchlib.plan.level import first_problem
from benchlib.plan.model import Measurement, Study
from benchlib.study.archive import ARCHIVE, MOST, PATH, unpack

DATA_VARIABLE = "BENCHLIB_DATA"
MEASUREMENT = "measurement.json"
TRANSACTION_LOG = "transactions.parquet"
CHECKSUMS = "SHA256SUMS"
_NAME = re.compile(
    r"(?!(index|summary|methodology|calibration|comparisons|campaign|.*\.study)\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
)
_LISTED = re.compile(rf"([0-9a-f]{{64}})  ({PATH.pattern})", re.ASCII)

Sums = Mapping[str, Set[str]]
"""Valid checksums of trial files by path; two while a file is being packed."""


def project_root() -> Path:
    """Return the nearest trusted folder with ``notebooks/``, which are executed."""
    working = Path.cwd()
    for folder in (working, *working.parents, Path(__file__).resolve().parents[2]):
        if files.trusted(folder / "notebooks"):
            return folder
    return working


def notebooks() -> dict[str, Path]:
    """Return the notebooks by name, without links that leave the folder."""
    folder = project_root() / "notebooks"
    paths = sorted(folder.resolve().glob("*.ipynb")) if files.trusted(folder) else []
    return {path.stem: path for path in paths if path.is_file() and path.resolve().parent == path.parent}


def data_root() -> Path:
    """Return ``BENCHLIB_DATA`` (InputError if it does not exist) or ``data/``."""
    if not (named := os.environ.get(DATA_VARIABLE)):
        return project_root() / "data"
    if not (root := Path(named).absolute()).is_dir():
        raise InputError(f"{DATA_VARIABLE} names {root}, which is not there: make it, or name another")
    return root


class StudyFolder:
    """A study on disk.

    Raises:
        InputError: on reading, if a file is unreadable, damaged or missing.
        StudyError: on writing, if the disk refuses; saved trials are safe.

    """

    def __init__(self, name: str, root: Path | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise InputError(
                f"study name {name!r}: expected at most 100 letters, digits, '.', '-', '_', and no name that the site uses"
            )
        self.name = name
        self.path = (root or data_root()) / name

    def exists(self) -> bool:
        """Return whether the study has been written."""
        return _content(self.path, "study.json") is not None

    def write(self, study: Study) -> None:
        """Save the study."""
        self.put("study.json", (study.model_dump_json(indent=2) + "\n").encode())

    def read(self) -> Study:
        """Return the study."""
        data = _content(self.path, "study.json")
        if data is None:
            known = ", ".join(study_names(self.path.parent)) or "none yet"
            raise InputError(f"no study '{self.name}' in {self.path.parent.name}/ (there is: {known})")
        try:
            return Study.model_validate_json(data)
        except ValidationError as reason:
            newer = any(e["loc"] == ("format",) and isinstance(e["input"], int) for e in reason.errors())
            why = "was made by a newer benchlib" if newer else f"is damaged ({first_problem(reason)})"
            advice = "update benchlib" if newer else "restore it from a copy"
            raise InputError(f"{self.name}/study.json {why}: {advice}") from reason

    def put(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        path = self.path / name
        with self.disk():
            files.make(path.parent)
            files.write(path, data, synced=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the study while a fleet runs it, else raise HostBusyError."""
        with self.disk():
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HostBusyError(f"study “{self.name}” is run by a fleet; wait until it ends") from None
            yield
        finally:
            os.close(descriptor)

    def keep(self, measurement: Measurement, folder: Path) -> None:
        """Save a measurement and raw files atomically."""
        with self.disk(), whole(self.path / "trials" / measurement.trial.id) as pending:
            files.make(pending)
            for name in files.listed(folder):
                with os.fdopen(files.opened(folder / name), "rb") as source:
                    files.copy(source, pending / name)
            files.write(pending / MEASUREMENT, measurement.model_dump_json(indent=2) + "\n")
            # before the rename, so that no trial lacks checksums; those of a missing trial are harmless
            place = f"trials/{measurement.trial.id}"
            if measurement.trial.id in self._listed_before:  # by an interrupted attempt
                self._forget(measurement.trial.id)
            self.add_checksums({f"{place}/{path.name}": checksum(path) for path in pending.iterdir()})

    @cached_property
    def _listed_before(self) -> frozenset[str]:
        return frozenset(path.split("/")[1] for path in self.checksums())

    def withdraw(self) -> None:
        """Remove the study, unless it has trials."""
        if self.exists() and not self.kept() and not (self.path / "spoilt").exists():
            with contextlib.suppress(OSError):
                files.remove(self.path)

    def set_aside(self, trial_id: str) -> None:
        """Move a trial to ``spoilt/``; InputError if it is packed."""
        if f"trials/{trial_id}/{MEASUREMENT}" in self.packed():
            raise InputError(
                f"the trials of '{self.name}' are packed: unpack them (tar -xJf {ARCHIVE}, in its folder), "
                "move the archive out of it and run again"
            )
        spoilt = self.path / "spoilt"
        with self.disk():
            files.make(spoilt)
            places = (spoilt / f"{trial_id}.{number}" for number in itertools.count(1))
            files.rename(self.path / "trials" / trial_id, next(p for p in places if not os.path.lexists(p)))
        self._forget(trial_id)

    def _forget(self, trial_id: str) -> None:
        sums = self.checksums()
        others = {path: either for path, either in sums.items() if path.split("/")[1] != trial_id}
        if others != sums:
            self.list_checksums(others)

    def kept(self) -> dict[str, Measurement]:
        """Return the measurements by trial id, in the plan's order."""
        trials, sums, measurements = self.read().trials, self.checksums(), dict[str, Measurement]()
        for trial in trials:
            path = f"trials/{trial.id}/{MEASUREMENT}"
            if (data := self.stored(path)) is None:
                continue
            if path not in sums:
                raise self.damaged(trial.id, MEASUREMENT, f"{CHECKSUMS} does not list it")
            try:
                one = Measurement.model_validate_json(data)
            except ValidationError as reason:
                raise self.damaged(trial.id, MEASUREMENT, first_problem(reason)) from reason
            if one.trial != trial:
                why = f"it is of trial {one.trial.id}, seed {one.trial.seed}"
                raise self.damaged(trial.id, MEASUREMENT, why)
            measurements[trial.id] = one
        for path in sums:
            _, trial_id, name = path.split("/")
            # may be large: verified when it is read
            if trial_id in measurements and name != TRANSACTION_LOG:
                self.raw(trial_id, name)
        return measurements

    def damaged(self, trial_id: str, name: str, why: str) -> InputError:
        """Return the error for a trial's damaged file."""
        return InputError(
            f"{self.name}: trials/{trial_id}/{name} is damaged ({why}): "
            "restore it from a copy, or move that folder out of the study and run the trial again"
        )

    def raw(self, trial_id: str, name: str) -> bytes | None:
        """Return a trial's raw file, if it exists."""
        data = self.stored(f"trials/{trial_id}/{name}")
        present = None if data is None else hashlib.sha256(data).hexdigest()
        return data if self._left(trial_id, name, present) else None

    def _left(self, trial_id: str, name: str, present: str | None) -> bool:
        """Check a file's checksum; return whether it exists."""
        expected = self.checksums().get(f"trials/{trial_id}/{name}")
        if expected and present not in expected:
            why = "its checksum differs" if present else "it is missing"
            raise self.damaged(trial_id, name, why)
        return expected is not None

    def stored(self, path: str) -> bytes | None:
        """Return a file, packed or not, without checking it."""
        data = _content(self.path, path)
        return self.packed().get(path) if data is None else data

    def transaction_log(self, trial_id: str) -> Path | None:
        """Return the path of a trial's transaction log (never packed)."""
        path = self.path / "trials" / trial_id / TRANSACTION_LOG
        if path.is_symlink():
            raise self.damaged(trial_id, TRANSACTION_LOG, "it is a link")
        present = checksum(path) if path.is_file() else None
        return path if self._left(trial_id, TRANSACTION_LOG, present) else None

    def checksums(self) -> Sums:
        """Return the trial files' checksums."""
        return _listed(self.path, stamp(self.path / CHECKSUMS))

    def list_checksums(self, sums: Sums) -> None:
        """Replace the list."""
        self.put(CHECKSUMS, _lines((path, one) for path in sums for one in sorted(sums[path])))

    def add_checksums(self, sums: Mapping[str, str]) -> None:
        """Append to the list, unread: a fleet's is long."""
        path = self.path / CHECKSUMS
        if not path.exists():
            self.list_checksums({})
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with self.disk(), os.fdopen(files.opened(path, flags), "a+b") as file:
            cut_torn_end(file.fileno())
            file.write(_lines(sums.items()))
            file.flush()
            os.fsync(file.fileno())

    def packed(self) -> Mapping[str, bytes]:
        """Return the archive's files."""
        return _unpacked(self.path, stamp(self.path / ARCHIVE))

    def disk(self) -> contextlib.AbstractContextManager[None]:
        """Convert disk errors to a StudyError with advice."""
        advice = "free some space or make it writable, and run again; saved trials are safe"
        return os_errors_as(StudyError, f"cannot save results in {self.path}: {advice}")


def study_names(root: Path | None = None) -> list[str]:
    """Return the names of all saved studies, sorted."""
    root = root or data_root()
    unreadable = os_errors_as(InputError, f"cannot read the studies in {root}")
    with unreadable, contextlib.suppress(FileNotFoundError):
        names = (path.name for path in root.iterdir() if os.path.lexists(path / "study.json"))
        return sorted(filter(_NAME.fullmatch, names))
    return []


def walk() -> Iterator[StudyFolder]:
    """Yield all saved studies."""
    root = data_root()
    return (StudyFolder(name, root) for name in study_names(root))


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path; sync and rename it on exit, remove it after an error."""
    pending = path.with_name(f"{PENDING}{path.name}")
    files.remove(pending)  # left by a killed process
    try:
        yield pending
        if pending.exists():
            for made in (*pending.rglob("*"), pending):
                files.sync(made)
            files.rename(pending, path)
            files.sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(pending)
        raise


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(sums: Iterable[tuple[str, str]]) -> bytes:
    return "".join(f"{one}  {path}\n" for path, one in sums).encode()


def stamp(path: str | Path) -> tuple[int, ...]:
    """Return what changes with a file."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_mtime_ns, status.st_size, status.st_ino
    return ()


def _content(folder: Path, name: str) -> bytes | None:
    unreadable = os_errors_as(InputError, f"cannot read {folder.name}/{name}")
    with unreadable, contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return files.read_plain(folder / name, MOST, follow=False)
    return None


@lru_cache(maxsize=4)
def _listed(folder: Path, stamp: tuple[int, ...]) -> Sums:
    sums: dict[str, set[str]] = {}
    for line in (_content(folder, CHECKSUMS) or b"").decode(errors="replace").splitlines():
        if match := _LISTED.fullmatch(line):
            sums.setdefault(match[2], set()).add(match[1])
    return sums


@lru_cache(maxsize=4)
def _unpacked(folder: Path, stamp: tuple[int, ...]) -> Mapping[str, bytes]:
    try:
        return unpack(_content(folder, ARCHIVE))
    except ValueError as reason:
        why = f"is damaged ({reason}): restore it from a copy"
        raise InputError(f"{folder.name}/{ARCHIVE} {why}") from None
