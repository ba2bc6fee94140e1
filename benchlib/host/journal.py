"""The journal of a run's changes: noted before they are made, struck off when undone.

One JSON object per line, on disk before the change is made::

    {"id": "5a3f…", "change": {"kind": "written", "path": "/proc/sys/vm/swappiness", …}}
    {"id": "5a3f…", "change": null}

A last line that a crash has cut off is ignored: its change was not made. Any other unreadable line is reported.
"""

import contextlib
import errno
import os
import secrets
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, SerializeAsAny, ValidationError, model_serializer

from benchlib.errors import PreflightError, StudyError, os_errors_as
from benchlib.host import files
from benchlib.plan.level import Model

MODULES_OF_CHANGES = ("benchlib.host.changes", "benchlib.server.changes")
"""The modules that define kinds of change, imported by name: a process that undoes a change need not know its kind."""


class Change(Model):
    """A change outside the run's folder; its class is its kind."""

    @model_serializer(mode="wrap")
    def _with_kind(self, fields: Any) -> dict[str, Any]:
        return {"kind": type(self).__name__.lower(), **fields(self)}

    def lift(self) -> None:
        """Release processes that cannot die while the change lasts."""

    def undo(self) -> None:
        """Restore the former state; may be repeated, also if the change was never made.

        Raises:
            BenchlibError: the change resists.

        """
        raise NotImplementedError


def _read_change(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for module in MODULES_OF_CHANGES:
        with contextlib.suppress(ImportError, OSError):  # a damaged installation: the other kinds are undone
            import_module(module)
    kinds = {kind.__name__.lower(): kind for kind in Change.__subclasses__()}
    fields = dict(value)
    kind = kinds.get(str(fields.pop("kind", "")))
    if kind is None:
        raise ValueError("unknown kind of change")
    return kind.model_validate(fields)


class _Line(Model):
    """A change; null: it is struck off."""

    id: str
    change: Annotated[SerializeAsAny[Change | None], BeforeValidator(_read_change)]


class Journal:
    """The changes of one run, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scope(self) -> "Scope":
        """Return a new scope."""
        return Scope(self)

    def standing(self) -> list[Change]:
        """Return the readable changes that are not struck off, oldest first.

        Raises:
            PreflightError: the file is not this user's, or cannot be read.

        """
        return [*self._read()[0].values()]

    def undo(self) -> list[str]:
        """Undo all noted changes, newest first.

        Return a line for each that resists and stays noted, and for each unreadable one.
        """
        standing, unreadable = self._read()
        return [*self._undo(standing), *unreadable]

    def _read(self) -> tuple[dict[str, Change], list[str]]:
        """Return changes by ``id``, and complaints."""
        standing: dict[str, Change] = {}
        unreadable, content = list[str](), b""
        with (
            os_errors_as(PreflightError, f"{self.path} cannot be read"),
            contextlib.suppress(FileNotFoundError),
            os.fdopen(files.opened(self.path, private=True), "rb") as file,
        ):
            content = file.read()
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                entry = _Line.model_validate_json(line)
            except ValidationError:
                text = line[:200].decode(errors="replace")
                unreadable.append(f"line {number} of {self.path} cannot be read, undo it by hand: {text}")
                continue
            if entry.change:
                standing[entry.id] = entry.change
            else:
                standing.pop(entry.id, None)
        return standing, unreadable

    def _append(self, entry: _Line) -> None:
        line = entry.model_dump_json().encode() + b"\n"
        new = not self.path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        with os.fdopen(files.opened(self.path, flags, private=True), "r+b", 0) as file:
            cut_torn_end(file.fileno())
            if os.write(file.fileno(), line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        if new:
            files.sync(self.path.parent)

    def _undo(self, standing: dict[str, Change]) -> list[str]:
        """Undo and strike off; return complaints."""
        resisting = []
        for key, change in reversed([*standing.items()]):
            try:
                change.undo()
            except Exception as reason:  # the others must be undone all the same
                resisting.append(" ".join(f"{change}: {reason}".split()))
                continue
            del standing[key]
            with contextlib.suppress(OSError):  # not struck off: undone once more, which does nothing
                self._append(_Line(id=key, change=None))
        return resisting


class Scope:
    """Changes that are undone together; as a context manager, at its end."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._standing: dict[str, Change] = {}

    def note(self, change: Change) -> None:
        """Note a change, which may be made once this has returned.

        Raises:
            StudyError: it cannot be noted, so it must not be made.

        """
        key = secrets.token_hex(8)
        message = f"nothing was changed, since it cannot be noted in {self._journal.path}: make room"
        with os_errors_as(StudyError, message):
            self._journal._append(_Line(id=key, change=change))
        self._standing[key] = change

    def undo(self) -> None:
        """Undo the changes, newest first; StudyError if one resists, which stays."""
        if resisting := self._journal._undo(self._standing):
            raise StudyError("; ".join(resisting))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def cut_torn_end(descriptor: int) -> None:
    """Remove an incomplete last line of a file."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
