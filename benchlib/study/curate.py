"""Changes to a saved study; plan and data stay. After a kill, repeat the command.

Raises:
    InputError: a study is missing or damaged, a name exists, or a file is unusable.
    HostBusyError: the study is running.
    StudyError: the disk refused.

"""

import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from benchlib.errors import HostBusyError, InputError, os_errors_as
from benchlib.host import files
from benchlib.host.lock import UNNAMED, held_by
from benchlib.plan.model import AS_RUN, Study
from benchlib.study.store import StudyFolder, study_names, whole

_MOST_MEMBERS = 100_000
_MEMBER = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*){1,3}", re.ASCII)
"""Path of a study's file, with its folder."""


def rename(name: str, new_name: str) -> None:
    """Rename a study."""
    folder, renamed = StudyFolder(name), StudyFolder(new_name)
    study = folder.read()
    _check_free(renamed)
    check_idle(name)
    folder.write(_named(study, new_name))
    with folder.disk():
        files.rename(folder.path, renamed.path)
        files.sync(renamed.path.parent)


def delete(name: str) -> None:
    """Delete a study, even a damaged one."""
    folder = StudyFolder(name)
    gone = folder.path.with_name(f"{files.PENDING}{name}")
    with folder.disk():
        if name in study_names():
            check_idle(name)
            files.remove(gone)
            files.rename(folder.path, gone)
            files.sync(folder.path.parent)
        elif not gone.exists():
            folder.read()  # raises, with the existing names
        files.remove(gone)


def edit(name: str, words: Mapping[str, str]) -> None:
    """Change question, title or notes; the provenance keeps the original question."""
    folder = StudyFolder(name)
    study, changes = folder.read(), dict[str, object](words)
    if not words or not all(text.strip() for key, text in words.items() if key != "notes"):
        raise InputError("give its question, title or notes some words")
    if question := changes.pop("question", None):
        changes["plan"] = study.plan.changed(factor=study.plan.factor.changed(question=question))
        changes["parameters"] = {**study.parameters, "question": question}
        changes["provenance"] = {AS_RUN: study.plan.factor.question, **study.provenance}
    folder.write(study.changed(**changes))


def export(name: str, file: Path) -> None:
    """Write a study into one ZIP file."""
    folder = StudyFolder(name)
    folder.kept()  # raises if a file is damaged
    if os.path.lexists(file):
        raise InputError(f"{file} is there already: name another file")
    with (
        os_errors_as(InputError, f"cannot write {file}"),
        whole(file) as pending,
        zipfile.ZipFile(pending, "x", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
    ):
        # checksums last: a trial saved meanwhile is listed first
        for path in sorted(folder.path.rglob("*"), reverse=True):
            member = path.relative_to(folder.path.parent).as_posix()
            if _MEMBER.fullmatch(member) and path.is_file() and not path.is_symlink():
                archive.write(path, member)


def import_study(file: Path, name: str | None = None) -> StudyFolder:
    """Import an exported file, optionally under another name."""
    try:
        with zipfile.ZipFile(file) as archive:
            original_name, members = _members(archive, file.stat().st_size)
            folder, coming = StudyFolder(name or original_name), StudyFolder(name or original_name)
            _check_free(folder)
            with folder.disk(), whole(folder.path) as coming.path:
                archive.extractall(coming.path, members)
                coming.write(_named(coming.read(), folder.name))
                coming.kept()
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as reason:
        raise InputError(f"{file.name} is no file of 'benchlib studies export': {reason}") from None
    return folder


def _members(archive: zipfile.ZipFile, packed: int) -> tuple[str, list[zipfile.ZipInfo]]:
    if len(archive.infolist()) > _MOST_MEMBERS:
        raise ValueError(f"it has more than {_MOST_MEMBERS:,} files")
    files = [member for member in archive.infolist() if not member.is_dir()]
    if odd := {member.compress_type for member in files} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"unknown compression method {min(odd)}")
    names = [member.filename for member in files]
    owners = {name.partition("/")[0] for name in names}
    if len(owners) != 1 or len(set(names)) < len(names) or not all(map(_MEMBER.fullmatch, names)):
        raise ValueError("expected one folder with the files of one study, each once")
    # ten times the ratio of a study
    if sum(member.file_size for member in files) > max(16 << 20, 400 * packed):
        raise ValueError("it is larger than a study can be when unpacked")
    for member in files:
        member.filename = member.filename.partition("/")[2]
    return owners.pop(), files


def _named(study: Study, name: str) -> Study:
    return study.changed(name=name, parameters={**study.parameters, "study": name})


def _check_free(folder: StudyFolder) -> None:
    if os.path.lexists(folder.path):
        raise InputError(
            f"study '{folder.name}' already exists in {folder.path.parent.name}/; choose another name"
        )


def check_idle(name: str) -> None:
    """Check that a study is not running."""
    holder = held_by() or ""
    if f"“{name}”" in holder or holder == UNNAMED:
        raise HostBusyError(f"{holder} is running here; wait until it ends")
    folder = StudyFolder(name)
    if folder.path.is_dir():
        with folder.held():
            pass
