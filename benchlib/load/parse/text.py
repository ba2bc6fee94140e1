"""What every format shares: a clean text, honest numbers, the command line, the signs of failure."""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from benchlib.errors import ParseError

NAN = r"-?(?:nan(?:\(\w*\))?|inf(?:inity)?|1\.#\w+)"
"""How C libraries print what is not a number; always an absent value here."""
REAL = rf"(-?\d+(?:\.\d+)?|{NAN})"
"""A number whose end something else guards: a unit, a bracket."""
REAL3 = rf"(-?\d+\.\d{{3}}|{NAN})"
"""A number printed with ``%.3f`` at the end of a line: fewer decimals mean a torn line."""

_SPACES = {ord(c): " " for c in "\u00a0\u2007\u202f\u2009\t"} | {ord(c): None for c in "\ufeff\u200b\0"}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_()=>]B?)")


class Text:
    """A text without terminal colours, quoting, indentation or carriage returns.

    ``terminated`` is false when the last line has no newline: it may be torn, so what
    such a line leaves open at its end is not to be trusted.
    """

    def __init__(self, raw: str) -> None:
        body = _ESCAPES.sub("", raw) if "\x1b" in raw else raw
        body = body.translate(_SPACES).replace("\r\n", "\n").replace("\r", "\n")
        self.terminated = body.endswith("\n") or not body
        self.lines = [line.lstrip(" >").rstrip(" ") for line in body.split("\n")]
        self.body = "\n".join(self.lines)
        if self.terminated:
            self.lines.pop()

    def torn(self, index: int) -> bool:
        """Tell whether the line at ``index`` may have lost its end."""
        return not self.terminated and index == len(self.lines) - 1


def real(text: str | None) -> float | None:
    """Read a number; ``None`` for nothing, ``nan`` and ``inf``."""
    return None if text is None or re.fullmatch(NAN, text, re.IGNORECASE) else float(text)


def whole(text: str | None) -> int | None:
    """Read a count; ``None`` for nothing."""
    return None if text is None else int(text)


def put(into: dict[str, Any], key: str, value: Any, *, line: str, kind: str) -> None:
    """Keep a value, and refuse a second one that says otherwise."""
    if key in into and into[key] != value:
        raise ParseError(f'{kind}: "{line}" contradicts an earlier line ({key} was {into[key]})')
    into[key] = value


def wanted(kind: str, line: str, text: Text) -> ParseError:
    """Make the error for a line that is missing; it adds why the run ended, where the text says so."""
    reasons = faults(text.lines)
    return ParseError(f'{kind}: no line "{line}"' + (f"; the text says: {reasons[0]}" if reasons else ""))


_FAULT = re.compile(
    r"client \d+ (?:script \d+ )?aborted"
    r"|Run was aborted"
    r"|could not (?:connect to server|create (?:connection|thread)|open log ?file|(?:send|receive) data)"
    r"|(?:no connection to the server|server closed the connection|lost synchronization with server)"
    r"|terminating connection|backend died"
    r"|(?:select|poll|ppoll)\(\) failed|invalid socket:"
    r"|^(?:FATAL|PANIC): "
    r"|pgbench(?:\.exe)?: ?(?:error|fatal):",
    re.IGNORECASE,
)
_CONNECTION = re.compile(r"connection to (?:database|server)\b", re.IGNORECASE)
_IGNORED = "(ignoring this error and continuing anyway)"


def faults(lines: Iterable[str]) -> list[str]:
    """List the lines that say a client aborted, a connection failed or the run was aborted.

    They are looked for anywhere in a line, since stderr may break into a line of stdout. An
    error that pgbench says it ignores (vacuuming tables that are not there) is none.
    """
    failures: list[str] = []
    for line in lines:
        if _IGNORED in line:
            if failures and "aborted" not in failures[-1]:
                failures.pop()
        elif _FAULT.search(line) or ((to := _CONNECTION.search(line)) and "failed" in line[to.end() :]):
            failures.append(line)
    return failures


_SHORT = "b:c:CdD:f:F:h:iI:j:lL:M:nNp:P:qrR:s:St:T:U:v"
_LONG = [
    "aggregate-interval=", "builtin=", "client=", "connect", "continue-on-error", "dbname=", "debug",
    "define=", "exit-on-abort", "failures-detailed", "file=", "fillfactor=", "foreign-keys", "help", "host=",
    "index-tablespace=", "init-steps=", "initialize", "jobs=", "latency-limit=", "log", "log-prefix=",
    "max-tries=", "no-vacuum", "partition-method=", "partitions=", "port=", "progress-timestamp", "progress=",
    "protocol=", "quiet", "random-seed=", "rate=", "report-latencies", "report-per-command", "sampling-rate=",
    "scale=", "select-only", "show-script=", "skip-some-updates", "tablespace=", "time=", "transactions=",
    "unlogged-tables", "username=", "vacuum-all", "verbose-errors", "version",
]  # fmt: skip
_NAMES = {
    "c": "client", "C": "connect", "i": "initialize", "L": "latency-limit", "M": "protocol", "R": "rate",
    "s": "scale", "t": "transactions", "T": "time",
}  # fmt: skip


def options(argv: Sequence[str] | None) -> Mapping[str, str]:
    """Read pgbench's command line into long option names; empty when there is none to read.

    ``argv`` may begin with the program or with whatever ran it (``taskset -c 1 pgbench …``).
    """
    arguments = list(argv or ())
    programs = [
        i for i, argument in enumerate(arguments) if re.search(r"(?:^|[/\\])pgbench[^/\\\s]*$", argument)
    ]
    if programs:
        arguments = arguments[programs[0] + 1 :]
    elif arguments and not arguments[0].startswith("-"):
        arguments = arguments[1:]
    try:
        pairs, _ = getopt.gnu_getopt(arguments, _SHORT, _LONG)
    except getopt.GetoptError:
        return {}
    return {_NAMES.get(name.lstrip("-"), name.lstrip("-")): value for name, value in pairs}


def typed_options(lines: Iterable[str]) -> Mapping[str, str]:
    """Read the command line of the run from a shell prompt in the text, if there is exactly one."""
    runs = []
    for line in lines:
        if command := re.search(r"(?:^|[\s/])pgbench\s+(-.*)$", line):
            with suppress(ValueError):  # a torn quotation
                typed = options(["pgbench", *shlex.split(command[1], comments=True)])
                runs += [] if "initialize" in typed else [typed]
    return runs[0] if len(runs) == 1 else {}
