"""The only reader and writer of ``data/``: studies and what their trials left.

``data/<study>/study.json`` holds the plan, written before anything runs;
``data/<study>/trials/<id>/`` what one trial left, raw output verbatim. A trial's folder
is written under a temporary name, synced and renamed: it is whole or it is not there.
``data/<study>/crashes/<id>.json`` holds what a crash of a level left, written in the same way.
The files of a study's trials may be packed into one archive, ``data/<study>/trials.tar.xz``.
"""

from __future__ import annotations

import contextlib
import errno
import lzma
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from benchlib.errors import InputError, StudyError
from benchlib.host.journal import sync
from benchlib.plan.model import Measurement, Study

DATA_VARIABLE = "BENCHLIB_DATA"
ARCHIVE = "trials.tar.xz"
MEASUREMENT = "measurement.json"
TRANSACTION_LOG = "transactions.parquet"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PENDING = ".pending-"


def project_root() -> Path:
    """The folder that holds ``notebooks/``: here, above here, or where the library was installed from.

    What is in it is executed, so a folder that somebody else owns, or anybody may write to, is passed over.
    """
    working = Path.cwd()
    for folder in (working, *working.parents, Path(__file__).resolve().parents[2]):
        if _ours(folder / "notebooks"):
            return folder
    return working


def _ours(folder: Path) -> bool:
    """Whether it is a folder of ours, of root's or of the owner of this library, to which not everybody may write."""
    try:
        of = folder.stat()
    except OSError:
        return False
    owners = (os.geteuid(), 0, Path(__file__).stat().st_uid)
    return stat.S_ISDIR(of.st_mode) and of.st_uid in owners and not of.st_mode & stat.S_IWOTH


def notebooks() -> dict[str, Path]:
    """The notebooks of this installation by name: the files in ``notebooks/``, without links that lead out of it."""
    paths = sorted((project_root() / "notebooks").resolve().glob("*.ipynb"))
    return {path.stem: path for path in paths if path.is_file() and path.resolve().parent == path.parent}


def data_root() -> Path:
    """Where studies are kept: ``data/`` of the project, or the folder that ``BENCHLIB_DATA`` names."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named).absolute() if named else project_root() / "data"


class StudyFolder:
    """One study on disk."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        """Raise InputError if the name could not be a folder's everywhere."""
        if not _NAME.fullmatch(name):
            raise InputError(f"study name {name!r}: want letters, digits, dots, dashes and underscores")
        self.name = name
        self.path = (root or data_root()) / name
        self._trials = self.path / "trials"

    def exists(self) -> bool:
        """Whether the study has been written."""
        return (self.path / "study.json").is_file()

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
        try:
            return Study.model_validate_json((self.path / "study.json").read_bytes())
        except FileNotFoundError:
            known = ", ".join(study_names(self.path.parent)) or "none yet"
            raise InputError(
                f"no study '{self.name}' in {self.path.parent.name}/ (there is: {known})"
            ) from None
        except ValidationError as reason:
            raise InputError(
                f"{self.name}/study.json is damaged ({reason.errors()[0]['msg']}): bring it back from a copy"
            ) from reason
        except OSError as reason:
            raise InputError(f"cannot read {self.name}/study.json: {reason.strerror}") from reason

    def put(self, name: str, data: bytes) -> None:
        """Write a file of the study, below its folder: it has the new content or the former one.

        Raises:
            StudyError: the disk refused.

        """
        path = self.path / name
        pending = path.with_name(f"{PENDING}{path.name}")
        with self.disk():
            path.parent.mkdir(parents=True, exist_ok=True)
            pending.write_bytes(data)
            sync(pending)
            pending.rename(path)
            sync(path.parent)

    def keep(self, measurement: Measurement, folder: Path) -> None:
        """Keep a trial: its measurement and the raw files in ``folder``, whole or not at all.

        Raises:
            StudyError: the disk refused; what was kept before is safe.

        """
        pending = self._trials / f"{PENDING}{measurement.trial.id}"
        with self.disk():
            shutil.rmtree(pending, ignore_errors=True)
            pending.mkdir(parents=True)
            try:
                for source in folder.iterdir():
                    shutil.copyfile(source, pending / source.name)
                (pending / MEASUREMENT).write_text(measurement.model_dump_json(indent=2) + "\n", "utf-8")
                for path in (*pending.iterdir(), pending):
                    sync(path)
                pending.rename(self._trials / measurement.trial.id)
                sync(self._trials)
            except OSError:
                shutil.rmtree(pending, ignore_errors=True)
                raise

    def withdraw(self) -> None:
        """Remove the study again, unless a trial has been kept."""
        if self.exists() and not self.kept():
            shutil.rmtree(self.path, ignore_errors=True)

    def set_aside(self, trial_id: str) -> None:
        """Move a kept trial out of the study, into ``spoilt/``, where it stays as evidence.

        Raises:
            InputError: it is packed.

        """
        if f"trials/{trial_id}/{MEASUREMENT}" in self.packed():
            raise InputError(
                f"the trials of '{self.name}' are packed: unpack them (tar -xJf {ARCHIVE}, in its folder), "
                "remove the archive and run again"
            )
        spoilt = self.path / "spoilt"
        with self.disk():
            spoilt.mkdir(exist_ok=True)
            number = sum(1 for _ in spoilt.glob(f"{trial_id}.*")) + 1
            (self._trials / trial_id).rename(spoilt / f"{trial_id}.{number}")

    def kept(self) -> dict[str, Measurement]:
        """What the trials left, by trial id, in the order of the design.

        Raises:
            InputError: a measurement's file is damaged.

        """
        measurements = {}
        for trial in self.read().trials:
            data = self.raw(trial.id, MEASUREMENT)
            if data is not None:
                try:
                    measurements[trial.id] = Measurement.model_validate_json(data)
                except ValidationError as reason:
                    raise InputError(
                        f"{self.name}: trials/{trial.id}/{MEASUREMENT} is damaged: "
                        "bring it back from a copy, or remove that folder and run the trial again"
                    ) from reason
        return measurements

    def raw(self, trial_id: str, name: str) -> bytes | None:
        """A raw file of a trial, packed or not; None if the trial left none."""
        path = self._trials / trial_id / name
        return path.read_bytes() if path.is_file() else self.packed().get(f"trials/{trial_id}/{name}")

    def transaction_log(self, trial_id: str) -> Path | None:
        """Where the log of a trial's transactions is, which is never packed; None if the trial left none."""
        path = self._trials / trial_id / TRANSACTION_LOG
        return path if path.is_file() else None

    def packed(self) -> Mapping[str, bytes]:
        """The files in the study's archive by their path in it; none where there is no archive.

        Raises:
            InputError: it is damaged.

        """
        archive = self.path / ARCHIVE
        return _unpacked(archive, archive.stat().st_mtime_ns) if archive.is_file() else {}

    @contextlib.contextmanager
    def disk(self) -> Iterator[None]:
        """Turn what a disk may refuse into a StudyError, whose one line says what to do."""
        try:
            yield
        except OSError as reason:
            advice = "free some space" if reason.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
            raise StudyError(
                f"cannot keep results in {self.path}: {reason.strerror}; {advice} and run again, "
                "the trials already kept are safe"
            ) from reason


def study_names(root: Path | None = None) -> list[str]:
    """The names of the studies that are kept, sorted; a folder that no study can be named after is none."""
    names = (path.parent.name for path in (root or data_root()).glob("*/study.json"))
    return sorted(name for name in names if _NAME.fullmatch(name))


def walk(root: Path | None = None) -> Iterator[StudyFolder]:
    """Every study that is kept, by name."""
    for name in study_names(root):
        yield StudyFolder(name, root)


@lru_cache(maxsize=4)
def _unpacked(path: Path, _modified_ns: int) -> Mapping[str, bytes]:
    try:
        with tarfile.open(path, "r:xz") as archive:
            members = [(member.name, archive.extractfile(member)) for member in archive]
            return {name: file.read() for name, file in members if file}
    except (tarfile.TarError, lzma.LZMAError, EOFError) as reason:
        raise InputError(
            f"{path.parent.name}/{path.name} is damaged ({reason}): bring it back from a copy"
        ) from None
