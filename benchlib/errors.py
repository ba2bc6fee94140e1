"""Everything that can go wrong, drawn as a tree by cause.

``exit_code`` is what the command line answers with: 1 when a run failed, 2 when
what was asked for is wrong. Every message is one line that says what happened and
what to do about it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter


class BenchlibError(Exception):
    """Base of every error that benchlib raises on purpose."""

    exit_code = 1


class InputError(BenchlibError):
    """What was asked for is wrong: a parameter, a level, a file, a frame."""

    exit_code = 2


class NothingToShowError(InputError):
    """A study has nothing of what a section shows; the message stands in its place, in the notebook alone."""


class ParseError(InputError):
    """A text that cannot be trusted; the message names the line that was wanted."""


class PreflightError(InputError):
    """The study cannot run here: said before anything has been started.

    ``grants`` are the SQL statements that would let it, each behind the server and database to paste it into.
    """

    def __init__(self, reason: str, grants: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(reason)
        self.reason, self.grants = reason, sorted(dict.fromkeys(grants), key=itemgetter(0))

    def __str__(self) -> str:
        pasted = (
            f"as a superuser of {where}: {'; '.join(statement for _, statement in statements)};"
            for where, statements in groupby(self.grants, itemgetter(0))
        )
        return "; ".join((self.reason, *pasted))


class HostBusyError(PreflightError):
    """Another run is under way on this host: what is asked for is right, but later."""


class TrialError(BenchlibError):
    """One trial failed; it is kept with this error and the study goes on."""


class SettingError(TrialError):
    """A server setting did not take, so the trial would have measured another level."""


class ServerError(TrialError):
    """A PostgreSQL server did not start, went away or refused an order."""


class LoadError(TrialError):
    """The load tool failed, or its report contradicts itself."""


class InvariantError(TrialError):
    """The database does not hold what the load tool says that it wrote."""


class InstallError(BenchlibError):
    """Another PostgreSQL could not be fetched; nothing of it is left."""


class StudyError(BenchlibError):
    """The study as a whole cannot go on; the trials already kept are safe."""


class Interrupted(StudyError):  # noqa: N818 - a word for a request, not a fault
    """The run was asked to stop; what had been measured is kept."""


@contextmanager
def os_errors_as(error: type[BenchlibError], message: str) -> Iterator[None]:
    """Turn what the operating system refuses meanwhile into an error that says what failed, and behind it why."""
    try:
        yield
    except OSError as reason:
        raise error(f"{message} ({reason.strerror or reason})") from reason
