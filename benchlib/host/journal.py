"""What a run has changed outside its own folder: noted before it is made, struck off when undone.

One file per run, one JSON object per line, appended and on disk before the change is made::

    {"id": "5a3f…", "change": {"kind": "written", "path": "/proc/sys/vm/swappiness", …}}
    {"id": "5a3f…", "change": null}

No line is ever changed. A last line without its end is a crash while it was written: its
change was not made, so it counts for nothing. Any other line that cannot be read is
reported, because it may stand for a change.
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
from benchlib.host.files import open_ours, sync
from benchlib.plan.level import Model

MODULES_OF_CHANGES = ("benchlib.host.changes", "benchlib.server.changes")
"""Where the kinds of change are defined. They are imported by name, since whoever undoes a change need not know it."""


class Change(Model):
    """A change outside the run's folder. Its class is its kind in the journal, its text says what it is."""

    @model_serializer(mode="wrap")
    def _with_kind(self, fields: Any) -> dict[str, Any]:
        return {"kind": type(self).__name__.lower(), **fields(self)}

    def lift(self) -> None:
        """Let go of processes that could not die while the change stands."""

    def undo(self) -> None:
        """Restore what was before. To undo twice, or what was never made, does nothing and is no error."""
        raise NotImplementedError


def _read_change(value: Any) -> Any:
    """A change from its JSON object, as an instance of the class of its kind."""
    if not isinstance(value, dict):
        return value
    for module in MODULES_OF_CHANGES:
        with contextlib.suppress(ImportError, OSError):  # a damaged installation: the other kinds are undone
            import_module(module)
    kinds = {kind.__name__.lower(): kind for kind in Change.__subclasses__()}
    fields = dict(value)
    kind = kinds.get(str(fields.pop("kind", "")))
    if kind is None:
        raise ValueError("no such kind of change")
    return kind.model_validate(fields)


class _Line(Model):
    """A change that is noted, or under the same ``id`` none: it is struck off."""

    id: str
    change: Annotated[SerializeAsAny[Change | None], BeforeValidator(_read_change)]


class Journal:
    """The changes of one run, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scope(self) -> "Scope":
        """A new scope: changes that are undone together."""
        return Scope(self)

    def standing(self) -> list[Change]:
        """What is noted and not struck off, oldest first, as far as it can be read.

        Raises:
            PreflightError: the file is not ours, or cannot be read at all.

        """
        return [*self._read()[0].values()]

    def undo(self) -> list[str]:
        """Undo all that stands, newest first, and strike it off.

        Returns a line for each change that resists, and for each line that cannot be
        read; empty if all is undone. What resists stays noted, for another attempt.
        """
        standing, unreadable = self._read()
        return [*self._undo(standing), *unreadable]

    def _read(self) -> tuple[dict[str, Change], list[str]]:
        """What stands by its ``id``, oldest first, and a complaint for each line that cannot be read."""
        standing: dict[str, Change] = {}
        unreadable, lines = list[str](), list[bytes]()
        with (
            os_errors_as(PreflightError, f"{self.path} cannot be read"),
            contextlib.suppress(FileNotFoundError),
            # opened once: what is read is what was looked at
            os.fdopen(open_ours(self.path, os.O_RDONLY), "rb") as file,
        ):
            lines = file.read().split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
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
        """Write a line and wait until it is on disk."""
        line = entry.model_dump_json().encode() + b"\n"
        new = not self.path.exists()
        descriptor = open_ours(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            cut_torn_end(descriptor)
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync(self.path.parent)

    def _undo(self, standing: dict[str, Change]) -> list[str]:
        """Undo what stands, newest first, and take out what is undone; a line for each that resists."""
        resisting = []
        for key, change in reversed([*standing.items()]):
            try:
                change.undo()
            except Exception as reason:  # whatever it is, the others are to be undone all the same
                resisting.append(" ".join(f"{change}: {reason}".split()))
                continue
            del standing[key]
            with contextlib.suppress(OSError):  # unwritten, it costs another undo, which does nothing
                self._append(_Line(id=key, change=None))
        return resisting


class Scope:
    """Changes that are undone together; as a context manager, at its end."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._standing: dict[str, Change] = {}

    def note(self, change: Change) -> None:
        """Note a change; it may be made once this has returned.

        Raises:
            StudyError: the note cannot be kept, so the change must not be made.

        """
        key = secrets.token_hex(8)
        message = f"nothing was changed, since it cannot be noted in {self._journal.path}: make room"
        with os_errors_as(StudyError, message):
            self._journal._append(_Line(id=key, change=change))
        self._standing[key] = change

    def undo(self) -> None:
        """Undo the scope's changes, newest first. What resists stays, for another attempt.

        Raises:
            StudyError: something resists; the message names it.

        """
        if resisting := self._journal._undo(self._standing):
            raise StudyError("; ".join(resisting))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def cut_torn_end(descriptor: int) -> None:
    """Remove a last line that never got its end, so that the next one starts on a line of its own."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
