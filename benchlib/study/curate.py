"""What can be done with a kept study beside running it: another name, other words, away, into one file and back.

Plan and data never change. A study is whole at any moment, here or in the file: what is new has a temporary name until
it is on disk. After a kill the same again goes on from there, and what was not whole goes.
"""

import lzma
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
from benchlib.study.store import PENDING, StudyFolder, study_names, whole

_MOST_MEMBERS = 100_000
_MEMBER = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*){1,3}", re.ASCII)
"""A file of a study, from its folder's name on."""


def rename(name: str, new_name: str) -> None:
    """Give a study another name.

    Raises:
        InputError: there is no such study, or one of the other name.
        HostBusyError: it is being run.

    """
    folder, renamed = StudyFolder(name), StudyFolder(new_name)
    study = folder.read()
    _check_free(renamed)
    check_idle(name)
    folder.write(_named(study, new_name))
    with folder.disk():
        files.rename(folder.path, renamed.path)
        files.sync(renamed.path.parent)


def delete(name: str) -> None:
    """Remove a study, a damaged one too.

    Raises:
        InputError: there is no such study.
        HostBusyError: it is being run.

    """
    folder = StudyFolder(name)
    gone = folder.path.with_name(f"{PENDING}{name}")
    with folder.disk():
        if name in study_names():
            check_idle(name)
            files.remove(gone)
            files.rename(folder.path, gone)
            files.sync(folder.path.parent)
        elif not gone.exists():
            folder.read()  # which says what there is
        files.remove(gone)


def edit(name: str, words: Mapping[str, str]) -> None:
    """Change a study's ``question``, ``title`` or ``notes``; its provenance keeps the question that it was run with.

    Raises:
        InputError: there is no such study, or its question or title would be empty.

    """
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
    """Write all that is kept of a study into one file, a ZIP archive.

    Raises:
        InputError: there is no such study, it is damaged, or the file is there already or cannot be written.

    """
    folder = StudyFolder(name)
    folder.kept()  # what is damaged is named, not handed on
    if os.path.lexists(file):
        raise InputError(f"{file} is there already: name another file")
    with (
        os_errors_as(InputError, f"cannot write {file}"),
        whole(file) as pending,
        zipfile.ZipFile(pending, "x", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
    ):
        # checksums last: a trial that is kept meanwhile is listed before it is there
        for path in sorted(folder.path.rglob("*"), reverse=True):
            member = path.relative_to(folder.path.parent).as_posix()
            if _MEMBER.fullmatch(member) and path.is_file() and not path.is_symlink():
                archive.write(path, member)


def import_study(file: Path, name: str | None = None) -> StudyFolder:
    """Keep the study that a file of :func:`export` holds, under its own name or another; its folder.

    Raises:
        InputError: the file holds no study, or more than one can hold, or the name is taken; nothing of it is kept.
        StudyError: the disk refused.

    """
    try:
        with zipfile.ZipFile(file) as archive:
            own, members = _members(archive, file.stat().st_size)
            folder, coming = StudyFolder(name or own), StudyFolder(name or own)
            _check_free(folder)
            with folder.disk(), whole(folder.path) as coming.path:
                archive.extractall(coming.path, members)
                coming.write(_named(coming.read(), folder.name))
                coming.kept()
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError) as reason:
        raise InputError(f"{file.name} is no file of 'benchlib studies export': {reason}") from None
    return folder


def _members(archive: zipfile.ZipFile, packed: int) -> tuple[str, list[zipfile.ZipInfo]]:
    """The folder in an archive, and its files, to be extracted without it; a ValueError where they are not those of one study, or too much for one."""
    if len(archive.infolist()) > _MOST_MEMBERS:
        raise ValueError(f"it has more than {_MOST_MEMBERS:,} files")
    files = [member for member in archive.infolist() if not member.is_dir()]
    if odd := {member.compress_type for member in files} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"it is compressed in a way that an export is not (method {min(odd)})")
    names = [member.filename for member in files]
    owners = {name.partition("/")[0] for name in names}
    if len(owners) != 1 or len(set(names)) < len(names) or not all(map(_MEMBER.fullmatch, names)):
        raise ValueError("want one folder with the files of a study, each once")
    # a study's is a tenth of that
    if sum(member.file_size for member in files) > max(16 << 20, 400 * packed):
        raise ValueError("it would unpack to more than a study can be")
    for member in files:
        member.filename = member.filename.partition("/")[2]
    return owners.pop(), files


def _named(study: Study, name: str) -> Study:
    return study.changed(name=name, parameters={**study.parameters, "study": name})


def _check_free(folder: StudyFolder) -> None:
    if os.path.lexists(folder.path):
        raise InputError(f"there is a '{folder.name}' in {folder.path.parent.name}/ already: name another")


def check_idle(name: str) -> None:
    """Make sure that nobody runs the study of that name, here or on a fleet; HostBusyError if somebody does."""
    holder = held_by() or ""
    if f"“{name}”" in holder or holder == UNNAMED:
        raise HostBusyError(f"{holder} is running here: wait for it")
    folder = StudyFolder(name)
    if folder.path.is_dir():
        with folder.held():
            pass
