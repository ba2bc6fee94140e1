"""The only reader and writer of ``data/``: studies and what their trials left.

``data/<study>/study.json`` holds the plan, written before anything runs;
``data/<study>/trials/<id>/`` what one trial left, raw output verbatim. A trial's folder
is written under a temporary name, synced and renamed: it is whole or it is not there.
``data/<study>/crashes/<id>.json`` holds what a crash of a level left, written in the same way.
The files of a study's trials may be packed into one archive, ``data/<study>/trials.tar.xz``.
``data/<study>/SHA256SUMS`` has the checksum of each of these files, as ``sha256sum`` writes it; what is read is
compared. Studies of format 1 may have none.

A folder may come from somebody else: links are not followed.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import ValidationError

from benchlib.errors import HostBusyError, InputError, StudyError, os_errors_as
from benchlib.host import files
from benchlib.host.files import PENDING as PENDING
from benchlib.host.files import open_plain
from benchlib.host.journal import cut_torn_end
from benchlib.load.tools import misfit
from benchlib.plan.design import Trial
from benchlib.plan.level import first_problem
from benchlib.plan.model import Measurement, Plan, Study
from benchlib.study.archive import ARCHIVE, MOST, PATH, unpack

DATA_VARIABLE = "BENCHLIB_DATA"
MEASUREMENT = "measurement.json"
TRANSACTION_LOG = "transactions.parquet"
CHECKSUMS = "SHA256SUMS"
_NAME = re.compile(r"(?!(index|summary|methodology|calibration)\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LISTED = re.compile(rf"([0-9a-f]{{64}})  ({PATH.pattern})", re.ASCII)

Sums = Mapping[str, Set[str]]
"""The checksums that files of trials may have, by their paths in the study: of those that are being packed two."""


def project_root() -> Path:
    """The folder that holds ``notebooks/``: here, above here, or where the library was installed from.

    What is in it is executed, so a folder that somebody else owns, or anybody may write to, is passed over.
    """
    working = Path.cwd()
    for folder in (working, *working.parents, Path(__file__).resolve().parents[2]):
        if files.trusted(folder / "notebooks"):
            return folder
    return working


def notebooks() -> dict[str, Path]:
    """The notebooks of this installation by name: the files in ``notebooks/``, without links that lead out of it."""
    folder = project_root() / "notebooks"
    paths = sorted(folder.resolve().glob("*.ipynb")) if files.trusted(folder) else []
    return {path.stem: path for path in paths if path.is_file() and path.resolve().parent == path.parent}


def data_root() -> Path:
    """Where studies are kept: ``data/`` of the project, or the folder that ``BENCHLIB_DATA`` names, which must be there."""
    if not (named := os.environ.get(DATA_VARIABLE)):
        return project_root() / "data"
    if not (root := Path(named).absolute()).is_dir():
        raise InputError(f"{DATA_VARIABLE} names {root}, which is not there: make it, or name another")
    return root


class StudyFolder:
    """One study on disk."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        """Raise InputError if the name could not be a folder's everywhere."""
        if not _NAME.fullmatch(name):
            raise InputError(f"study name {name!r}: want letters, digits, '.', '-', '_', and no page's name")
        self.name = name
        self.path = (root or data_root()) / name

    def exists(self) -> bool:
        """Whether the study has been written.

        Raises:
            InputError: its file is closed to us, or is none.

        """
        return _content(self.path, "study.json") is not None

    def write(self, study: Study) -> None:
        """Keep the study, in one piece.

        Raises:
            StudyError: the disk refused.

        """
        self.put("study.json", (study.model_dump_json(indent=2) + "\n").encode())

    def read(self) -> Study:
        """The study.

        Raises:
            InputError: there is none of that name, or its file is damaged or closed to us.

        """
        data = _content(self.path, "study.json")
        if data is None:
            known = ", ".join(study_names(self.path.parent)) or "none yet"
            raise InputError(f"no study '{self.name}' in {self.path.parent.name}/ (there is: {known})")
        try:
            return Study.model_validate_json(data)
        except ValidationError as reason:
            newer = any(e["loc"] == ("format",) and isinstance(e["input"], int) for e in reason.errors())
            why = "was made by a newer benchlib" if newer else f"is damaged ({first_problem(reason)})"
            advice = "bring this one up to date" if newer else "bring it back from a copy"
            raise InputError(f"{self.name}/study.json {why}: {advice}") from reason

    def put(self, name: str, data: bytes) -> None:
        """Write a file of the study, below its folder: it has the new content or the former one.

        Raises:
            StudyError: the disk refused.

        """
        path = self.path / name
        with self.disk():
            files.make(path.parent)
            files.write(path, data, synced=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the study while a fleet runs it: no host of it, which it asks for its lock, need be this one.

        Raises:
            HostBusyError: somebody holds it.

        """
        with self.disk():
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HostBusyError(f"study “{self.name}” is being run by a fleet: wait for it") from None
            yield
        finally:
            os.close(descriptor)

    def keep(self, measurement: Measurement, folder: Path) -> None:
        """Keep a trial: its measurement and the raw files in ``folder``, whole or not at all.

        Raises:
            StudyError: the disk refused; what was kept before is safe.

        """
        with self.disk(), whole(self.path / "trials" / measurement.trial.id) as pending:
            files.make(pending)
            for name in files.listed(folder):
                with os.fdopen(files.opened(folder / name), "rb") as source:
                    files.copy(source, pending / name)
            files.write(pending / MEASUREMENT, measurement.model_dump_json(indent=2) + "\n")
            # first, so that no trial is there without: of one that is not there they say nothing
            place = f"trials/{measurement.trial.id}"
            if measurement.trial.id in self._listed_before:  # by an attempt that was cut off here
                self._forget(measurement.trial.id)
            self.add_checksums({f"{place}/{path.name}": checksum(path) for path in pending.iterdir()})

    @cached_property
    def _listed_before(self) -> frozenset[str]:
        """The trials on the list when it was first asked for: of one that is not there, an attempt was cut off."""
        return frozenset(path.split("/")[1] for path in self.checksums())

    def withdraw(self) -> None:
        """Remove the study again, unless a trial has been kept, or set aside as evidence."""
        if self.exists() and not self.kept() and not (self.path / "spoilt").exists():
            with contextlib.suppress(OSError):
                files.remove(self.path)

    def set_aside(self, trial_id: str) -> None:
        """Move a kept trial out of the study, into ``spoilt/``, where it stays as evidence.

        Raises:
            InputError: it is packed.

        """
        if f"trials/{trial_id}/{MEASUREMENT}" in self.packed():
            raise InputError(
                f"the trials of '{self.name}' are packed: unpack them (tar -xJf {ARCHIVE}, in its folder), "
                "move the archive out of it and run again"
            )
        spoilt = self.path / "spoilt"
        with self.disk():
            files.make(spoilt)
            number = sum(1 for _ in spoilt.glob(f"{trial_id}.*")) + 1
            files.rename(self.path / "trials" / trial_id, spoilt / f"{trial_id}.{number}")
        self._forget(trial_id)

    def _forget(self, trial_id: str) -> None:
        """Take a trial's files off the list of checksums."""
        sums = self.checksums()
        others = {path: either for path, either in sums.items() if path.split("/")[1] != trial_id}
        if others != sums:
            self.list_checksums(others)

    def kept(self) -> dict[str, Measurement]:
        """What the trials left, by trial id, in the order of the design.

        Raises:
            InputError: a file is damaged or that of another trial; the line names it.

        """
        study, sums, measurements = self.read(), self.checksums(), dict[str, Measurement]()
        for trial in study.trials:
            path = f"trials/{trial.id}/{MEASUREMENT}"
            if (data := self._stored(path)) is not None:
                if study.format > 1 and path not in sums:
                    raise self.damaged(trial.id, MEASUREMENT, f"{CHECKSUMS} does not list it")
                measurements[trial.id] = self._measurement(study.plan, trial, data)
        for path in sums:
            _, trial_id, name = path.split("/")
            # large, maybe: whoever reads it compares it
            if trial_id in measurements and name != TRANSACTION_LOG:
                self.raw(trial_id, name)
        return measurements

    def _measurement(self, plan: Plan, trial: Trial, data: bytes) -> Measurement:
        """A trial's measurement, compared with what the plan asks for."""
        try:
            measurement = Measurement.model_validate_json(data)
        except ValidationError as reason:
            raise self.damaged(trial.id, MEASUREMENT, first_problem(reason)) from reason
        why = None
        if measurement.trial != trial:
            why = f"it is of trial {measurement.trial.id}, seed {measurement.trial.seed}"
        elif measurement.error is None and measurement.load_returncode != 0:
            why = f"it tells of no error, and of a load that ended with status {measurement.load_returncode}"
        elif measurement.error is None:
            why = misfit(plan, trial, measurement.load_argv)
        if why:
            raise self.damaged(trial.id, MEASUREMENT, why)
        return measurement

    def damaged(self, trial_id: str, name: str, why: str) -> InputError:
        """The error for a file of a trial that cannot be trusted."""
        return InputError(
            f"{self.name}: trials/{trial_id}/{name} is damaged ({why}): "
            "bring it back from a copy, or move that folder out of the study and run the trial again"
        )

    def raw(self, trial_id: str, name: str) -> bytes | None:
        """A raw file of a trial, packed or not; None if the trial left none.

        Raises:
            InputError: it cannot be read, is gone, or is not the one that was kept.

        """
        data = self._stored(f"trials/{trial_id}/{name}")
        own = None if data is None else hashlib.sha256(data).hexdigest()
        return data if self._left(trial_id, name, own) else None

    def _left(self, trial_id: str, name: str, own: str | None) -> bool:
        """Whether a trial left a file; ``own`` is the checksum of the one that is there, None if there is none.

        Raises:
            InputError: it is gone, or is not the one that was kept.

        """
        sums, place = self.checksums(), f"trials/{trial_id}/"
        if f"{place}{MEASUREMENT}" not in sums:  # an earlier version kept it
            return own is not None
        if (either := sums.get(f"{place}{name}")) and own not in either:
            why = "it is not the one that was kept: its checksum differs" if own else "it is gone"
            raise self.damaged(trial_id, name, why)
        return either is not None

    def _stored(self, path: str) -> bytes | None:
        data = _content(self.path, path)
        return self.packed().get(path) if data is None else data

    def transaction_log(self, trial_id: str) -> Path | None:
        """Where the log of a trial's transactions is, which is never packed; None if the trial left none.

        Raises:
            InputError: it is gone, is a link, or is not the one that was kept.

        """
        path = self.path / "trials" / trial_id / TRANSACTION_LOG
        if path.is_symlink():
            raise self.damaged(trial_id, TRANSACTION_LOG, "it is a link")
        own = checksum(path) if path.is_file() else None
        return path if self._left(trial_id, TRANSACTION_LOG, own) else None

    def checksums(self) -> Sums:
        """The checksums of the trials' files; of a trial that an earlier version kept there are none.

        Raises:
            InputError: their file cannot be read.

        """
        return _listed(self.path, stamp(self.path / CHECKSUMS))

    def list_checksums(self, sums: Sums) -> None:
        """Keep the checksums of all trials' files; errors are those of :meth:`put`."""
        self.put(CHECKSUMS, _lines((path, one) for path in sums for one in sorted(sums[path])))

    def add_checksums(self, sums: Mapping[str, str]) -> None:
        """Add checksums to the list, at its end, without reading it: that of a study on many hosts is long.

        Raises:
            StudyError: the disk refused.

        """
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
        """The files in the study's archive by their path in it; none where there is no archive.

        Raises:
            InputError: it is damaged.

        """
        return _unpacked(self.path, stamp(self.path / ARCHIVE))

    def disk(self) -> contextlib.AbstractContextManager[None]:
        """Turn what a disk may refuse into a StudyError, whose one line says what to do."""
        advice = "free some space, or make it writable, and run again; what is kept is safe"
        return os_errors_as(StudyError, f"cannot keep results in {self.path}: {advice}")


def study_names(root: Path | None = None) -> list[str]:
    """The names of the studies that are kept, sorted; a folder that no study can be named after is none.

    Raises:
        InputError: the folder of all studies is closed to us.

    """
    root = root or data_root()
    unreadable = os_errors_as(InputError, f"cannot read the studies in {root}")
    with unreadable, contextlib.suppress(FileNotFoundError):
        names = (path.name for path in root.iterdir() if os.path.lexists(path / "study.json"))
        return sorted(filter(_NAME.fullmatch, names))
    return []


def walk() -> Iterator[StudyFolder]:
    """Every study that is kept, by name."""
    return map(StudyFolder, study_names())


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A hidden path beside another for a file or folder that is to be there whole or not at all.

    When this is left, what was made there is on disk and gets its name; after an error it is removed.
    """
    pending = path.with_name(f"{PENDING}{path.name}")
    files.remove(pending)  # left by a kill
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
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(sums: Iterable[tuple[str, str]]) -> bytes:
    """Checksums of files as ``sha256sum`` writes them."""
    return "".join(f"{one}  {path}\n" for path, one in sums).encode()


def _content(folder: Path, name: str) -> bytes | None:
    """A file of a study; None where there is none.

    Raises:
        InputError: it cannot be read, is a link or no file, or is larger than anything that we write.

    """
    with (
        os_errors_as(InputError, f"cannot read {folder.name}/{name}"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open(folder / name, "rb", opener=open_plain) as file,
    ):
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST:
            raise InputError(f"cannot read {folder.name}/{name} (it is no file, or too large)")
        return file.read()
    return None


def stamp(path: str | Path) -> tuple[int, ...]:
    """Return what tells a file from what it was before: time of change, size, inode; empty where there is none."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_mtime_ns, status.st_size, status.st_ino
    return ()


@lru_cache(maxsize=4)
def _listed(folder: Path, _stamp: tuple[int, ...]) -> Sums:
    sums: dict[str, set[str]] = {}
    for line in (_content(folder, CHECKSUMS) or b"").decode(errors="replace").splitlines():
        if match := _LISTED.fullmatch(line):
            sums.setdefault(match[2], set()).add(match[1])
    return sums


@lru_cache(maxsize=4)
def _unpacked(folder: Path, _stamp: tuple[int, ...]) -> Mapping[str, bytes]:
    try:
        return unpack(_content(folder, ARCHIVE))
    except ValueError as reason:
        why = f"is damaged ({reason}): bring it back from a copy"
        raise InputError(f"{folder.name}/{ARCHIVE} {why}") from None
