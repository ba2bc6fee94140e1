"""All errors, as a tree by cause.

``exit_code`` is the exit status of the command line: 1 if a run failed, 2 if the input is wrong. Every message is one
line that says what happened and what to do.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter


class BenchlibError(Exception):
    """Base of every error that benchlib raises on purpose."""

    exit_code = 1


class InputError(BenchlibError):
    """An input is wrong: a parameter, a level, a file, a frame."""

    exit_code = 2


class NothingToShowError(InputError):
    """A study lacks the data of a section; the notebook shows the message instead."""


class ParseError(InputError):
    """A text that cannot be trusted; the message names the missing line."""


class PreflightError(InputError):
    """The study cannot run here; nothing has been started.

    ``grants`` are the SQL statements that would permit it, each with the server and database to run it in.
    """

    def __init__(self, reason: str, grants: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(reason)
        self.reason, self.grants = reason, sorted(dict.fromkeys(grants), key=itemgetter(0))

    def __str__(self) -> str:
        scripts = (
            f"as a superuser of {where}: {'; '.join(statement for _, statement in statements)};"
            for where, statements in groupby(self.grants, itemgetter(0))
        )
        return "; ".join((self.reason, *scripts))


class HostBusyError(PreflightError):
    """Another run is under way on this host: try again later."""


class TrialError(BenchlibError):
    """A trial failed; it is saved with this error, and the study goes on."""


class SettingError(TrialError):
    """A server setting did not take effect, so the trial would have measured another level."""


class ServerError(TrialError):
    """A PostgreSQL server did not start, ended, or refused a statement."""


class LoadError(TrialError):
    """The load tool failed, or its report contradicts itself."""


class BrakeError(LoadError):
    """A load was ended because a server in use exceeded a bound; the study stops."""


class InvariantError(TrialError):
    """The database does not contain the rows that the load tool reported as written."""


class InstallError(BenchlibError):
    """A PostgreSQL could not be fetched; nothing of it is left."""


class StudyError(BenchlibError):
    """The study cannot go on; the saved trials are safe."""


class Interrupted(StudyError):  # noqa: N818 - a request, not a fault
    """The run was interrupted; the completed trials are saved."""


@contextmanager
def os_errors_as(error: type[BenchlibError], message: str) -> Iterator[None]:
    """Turn an OSError into ``error`` with the message and the operating system's reason."""
    try:
        yield
    except OSError as reason:
        raise error(f"{message} ({reason.strerror or reason})") from reason
