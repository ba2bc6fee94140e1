"""All errors, as a tree by cause.

``exit_code``: 1 if a run failed, 2 if the input is wrong. Every message is one line.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter


class BenchlibError(Exception):
    """An error that benchlib raises on purpose."""

    exit_code = 1


class InputError(BenchlibError):
    """A wrong parameter, level, file or frame."""

    exit_code = 2


class ParseError(InputError):
    """A text that cannot be trusted."""


class UnknownOutputError(ParseError):
    """A text of no known tool."""


class PreflightError(InputError):
    """A study that cannot run here; nothing has been started.

    ``grants``: where to run which SQL statement to permit it.
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
    """Another run on this host."""


class TrialError(BenchlibError):
    """A failed trial; the study goes on."""


class SettingError(TrialError):
    """A server setting that did not take effect."""


class ServerError(TrialError):
    """A PostgreSQL server that did not start, ended, or refused a statement."""


class LoadError(TrialError):
    """A failed load tool, or its contradictory report."""


class BrakeError(LoadError):
    """A server in use that exceeded a bound; the study stops."""


class InvariantError(TrialError):
    """A database without rows that the load tool reported."""


class InstallError(BenchlibError):
    """A PostgreSQL that could not be fetched."""


class StudyError(BenchlibError):
    """A study that cannot go on; its trials are safe."""


class Interrupted(StudyError):  # noqa: N818 - a request, not a fault
    """An interrupted run; completed trials are saved."""


@contextmanager
def os_errors_as(error: type[BenchlibError], message: str) -> Iterator[None]:
    """Turn an OSError into ``error``, with its reason."""
    try:
        yield
    except OSError as reason:
        raise error(f"{message} ({reason.strerror or reason})") from reason
