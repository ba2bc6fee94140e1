"""The only reader and writer of ``data/``: studies and what their trials left.

``data/<study>/study.json`` holds the plan, written before anything runs;
``data/<study>/trials/<id>/`` what one trial left, raw output verbatim. A trial's folder
is written under a temporary name, synced and renamed: it is whole or it is not there.
``data/<study>/crashes/<id>.json`` holds what a crash of a level left, kept in the same way.
The files of a study's trials may be packed into one archive, ``data/<study>/trials.tar.xz``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from benchlib.errors import InputError, StudyError
from benchlib.plan.model import Measurement, Study
from benchlib.study.archive import packed, unpacked

DATA_VARIABLE = "BENCHLIB_DATA"
ARCHIVE = "trials.tar.xz"
MEASUREMENT = "measurement.json"
TRANSACTION_LOG = "transactions.parquet"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PENDING = ".pending-"


def project_root() -> Path:
    """The folder that holds ``notebooks/``: here, above here, or where the library was installed from."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / "notebooks").is_dir():
            return folder
    return here


def data_root() -> Path:
    """Where studies are kept: ``data/`` of the project, or the folder that ``BENCHLIB_DATA`` names."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named).absolute() if named else project_root() / "data"


def check_name(name: str) -> str:
    """The name, if it can be a study's.

    Raises:
        InputError: it could not be a folder's name everywhere.

    """
    if not _NAME.fullmatch(name):
        raise InputError(f"study name {name!r}: want letters, digits, dots, dashes and underscores")
    return name


class StudyFolder:
    """One study on disk."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = check_name(name)
        self.path = (root or data_root()) / name
        self._trials = self.path / "trials"
        self._crashes = self.path / "crashes"

    def exists(self) -> bool:
        """Whether the study has been written."""
        return (self.path / "study.json").is_file()

    def write(self, study: Study) -> None:
        """Keep the study, in one piece.

        Raises:
            StudyError: the disk refused.

        """
        with _disk(self.path):
            self._trials.mkdir(parents=True, exist_ok=True)
            pending = self.path / f"{_PENDING}study.json"
            _write_synced(pending, (study.model_dump_json(indent=2) + "\n").encode())
            pending.rename(self.path / "study.json")
            _sync(self.path)

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

    def keep(self, measurement: Measurement, folder: Path) -> None:
        """Keep a trial: its measurement and the raw files in ``folder``, whole or not at all.

        Raises:
            StudyError: the disk refused; what was kept before is safe.

        """
        target = self._trials / measurement.trial.id
        pending = self._trials / f"{_PENDING}{measurement.trial.id}"
        with _disk(self.path):
            shutil.rmtree(pending, ignore_errors=True)
            pending.mkdir(parents=True)
            try:
                for source in sorted(folder.iterdir()):
                    shutil.copyfile(source, pending / source.name)
                    _sync(pending / source.name)
                text = measurement.model_dump_json(indent=2) + "\n"
                _write_synced(pending / MEASUREMENT, text.encode())
                _sync(pending)
                pending.rename(target)
                _sync(self._trials)
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
        if f"trials/{trial_id}/{MEASUREMENT}" in self._packed():
            raise InputError(
                f"the trials of '{self.name}' are packed: unpack them (tar -xJf {ARCHIVE}, in its folder), "
                "remove the archive and run again"
            )
        spoilt = self.path / "spoilt"
        with _disk(self.path):
            spoilt.mkdir(exist_ok=True)
            number = sum(1 for _ in spoilt.glob(f"{trial_id}.*")) + 1
            (self._trials / trial_id).rename(spoilt / f"{trial_id}.{number}")

    def pack(self, thinned: Callable[[str, bytes], bytes]) -> None:
        """Put the files of all trials into one archive, each as ``thinned`` makes it of its name and its bytes.

        Logs of transactions stay where they are. At any moment each file is in its folder or in the archive,
        and what is in the folder counts, so this may be done again, after an interruption or after more trials.

        Raises:
            StudyError: the disk refused.

        """
        names = (path for path in self._trials.glob("[!.]*/[!.]*") if path.name != TRANSACTION_LOG)
        with _disk(self.path):
            loose = {f"trials/{path.parent.name}/{path.name}": path for path in names}
            if not loose:
                return
            files = {name: thinned(path.name, path.read_bytes()) for name, path in loose.items()}
            pending = self.path / f"{_PENDING}{ARCHIVE}"
            _write_synced(pending, packed({**self._packed(), **files}))
            pending.rename(self.path / ARCHIVE)
            _sync(self.path)
            for path in loose.values():
                path.unlink()
            for folder in {path.parent for path in loose.values()}:
                if not any(folder.iterdir()):
                    folder.rmdir()

    def replace_log(self, trial_id: str, thinned: Callable[[Path, Path], bool]) -> None:
        """Have ``thinned`` make another log of transactions of a trial's, if it has one and ``thinned`` says that it did."""
        if path := self.raw_path(trial_id, TRANSACTION_LOG):
            pending = path.with_name(f"{_PENDING}{path.name}")
            with _disk(self.path):
                if thinned(path, pending):
                    _sync(pending)
                    pending.rename(path)

    def _packed(self) -> Mapping[str, bytes]:
        archive = self.path / ARCHIVE
        return unpacked(archive) if archive.is_file() else {}

    def kept(self) -> dict[str, Measurement]:
        """What the trials left, by trial id, in the order of the design.

        Raises:
            InputError: a measurement's file is damaged.

        """
        found = {}
        for trial in self.read().trials:
            data = self.raw_bytes(trial.id, MEASUREMENT)
            if data is not None:
                try:
                    found[trial.id] = Measurement.model_validate_json(data)
                except ValidationError as reason:
                    raise InputError(
                        f"{self.name}: trials/{trial.id}/measurement.json is damaged: "
                        "bring it back from a copy, or remove that folder and run the trial again"
                    ) from reason
        return found

    def raw(self, trial_id: str, name: str) -> str | None:
        """A raw file of a trial as text, undecodable bytes replaced; None if the trial left none."""
        found = self.raw_bytes(trial_id, name)
        return None if found is None else found.decode(errors="replace")

    def raw_bytes(self, trial_id: str, name: str) -> bytes | None:
        """A raw file of a trial as it is; None if the trial left none."""
        path = self.raw_path(trial_id, name)
        return path.read_bytes() if path else self._packed().get(f"trials/{trial_id}/{name}")

    def raw_path(self, trial_id: str, name: str) -> Path | None:
        """Where a raw file of a trial is; None if the trial left none, or if it is packed (as no log of transactions is)."""
        path = self._trials / trial_id / name
        return path if path.is_file() else None

    def raw_json(self, trial_id: str, name: str) -> Mapping[str, object] | None:
        """A raw JSON file of a trial; None if the trial left none.

        Raises:
            InputError: the file is damaged.

        """
        text = self.raw(trial_id, name)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InputError(f"{trial_id}/{name} is damaged")
        return found

    def keep_crash(self, crash_id: str, found: Mapping[str, object]) -> None:
        """Keep what one crash of a level left, whole or not at all.

        Raises:
            StudyError: the disk refused; what was kept before is safe.

        """
        with _disk(self.path):
            self._crashes.mkdir(exist_ok=True)
            pending = self._crashes / f"{_PENDING}{crash_id}.json"
            _write_synced(pending, (json.dumps(found, ensure_ascii=False, indent=2) + "\n").encode())
            pending.rename(self._crashes / f"{crash_id}.json")
            _sync(self._crashes)

    def crashes(self) -> list[Mapping[str, object]]:
        """What the crashes of levels left, in the order of their ids.

        Raises:
            InputError: a file is damaged.

        """
        found = []
        for path in sorted(self._crashes.glob("[!.]*.json")):
            try:
                found.append(json.loads(path.read_bytes()))
            except ValueError as reason:
                raise InputError(
                    f"{self.name}: crashes/{path.name} is damaged: remove it, and the level is crashed again"
                ) from reason
        return found


def study_names(root: Path | None = None) -> list[str]:
    """The names of the studies that are kept, sorted; a folder that no study can be named after is none."""
    root = root or data_root()
    names = (path.parent.name for path in root.glob("*/study.json"))
    return sorted(name for name in names if _NAME.fullmatch(name))


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Turn what a disk may refuse into one line that says what to do."""
    try:
        yield
    except OSError as reason:
        advice = "free some space" if reason.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        raise StudyError(
            f"cannot keep results in {path}: {reason.strerror}; {advice} and run again, "
            "the trials already kept are safe"
        ) from reason


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def walk(root: Path | None = None) -> Iterator[StudyFolder]:
    """Every study that is kept, by name."""
    for name in study_names(root):
        yield StudyFolder(name, root)
