"""Parts that all formats share."""

import getopt
import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchlib.errors import ParseError

_SPACES = {ord(c): " " for c in "\u00a0\u2007\u202f\u2009\t"} | {ord(c): None for c in "\ufeff\u200b\0"}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_()=>]B?)")


_MARK = re.compile(
    r"transaction type: |number of (?:clients|threads): |query mode: |scaling factor: |tps = \S+ ?\((?:in|ex|with)"
    r"|maximum number of tries: |duration: \d+ s|initial connection time = |progress: \d|pgbench \(\d"
    r"|sysbench \d|Number of threads: |(?:transactions|queries): +\d|total time: +\d|\[ *\d+s ?\] (?:thds|threads)"
    r"|done in \d|\d{1,12} of \d+ tuples"
    r"|Compare (?:file|open)|(?:open_)?(?:fdatasync|datasync|fsync|sync) +[\dn]"
)
"""Beginnings of tools' lines, also after a log prefix; not after a hyphen."""
_LONGEST_PREFIX, _LONGEST_MARK, _FIRST_LINES, _MOST_PREFIXES = 120, 40, 5000, 3
_FEWEST = 3


def unprefixed(lines: Sequence[str]) -> Sequence[str]:
    """Remove log collectors' prefixes, which most known lines share."""
    shapes, alone = Counter[str](), 0
    for line in lines[:_FIRST_LINES]:
        if mark := _MARK.search(line[: _LONGEST_PREFIX + _LONGEST_MARK]):
            before = line[: mark.start()]
            if before.strip(" >\t"):
                shapes[re.sub(r" +", " ", re.sub(r"\d+", "0", before)).strip()] += 1
            else:
                alone += 1
    common = [
        shape for shape, times in shapes.most_common(_MOST_PREFIXES) if times >= _FEWEST and times > alone
    ]
    if not common:
        return lines
    # final blanks may belong to the line, or be lost in an empty line
    either = "|".join(re.escape(shape).replace("0", r"\d+").replace(r"\ ", " +") for shape in common)
    prefix = re.compile(rf"^ *(?:{either})")
    return [re.sub(r"(?: *<br ?/?>| +\|) *$", "", prefix.sub("", line, count=1)) for line in lines]


class Text:
    """A text without colours, quoting and indentation.

    ``terminated``: the last line is not torn.
    """

    def __init__(self, raw: str) -> None:
        body = _ESCAPES.sub("", raw) if "\x1b" in raw else raw
        body = body.translate(_SPACES).replace("\r\n", "\n").replace("\r", "\n")
        body = html.unescape(body) if "&lt;builtin" in body else body
        self.terminated = body.endswith("\n") or not body
        lines = unprefixed(body.split("\n"))
        self.lines = [line.lstrip(" >").rstrip(" ") for line in lines]
        self.body = "\n".join(self.lines)
        if self.terminated:
            self.lines.pop()

    def first_unread(self, rows: re.Pattern[str], known: Callable[[str], object]) -> str | None:
        """Return the first whole line of ``rows`` that ``known`` does not read."""
        whole = (line for index, line in enumerate(self.lines) if not self.torn(index))
        return next((line for line in whole if rows.match(line) and not known(line)), None)

    def torn(self, index: int) -> bool:
        """Return whether the line may be torn."""
        return not self.terminated and index == len(self.lines) - 1


_NAN = r"-?(?:nan(?:\(\w*\))?|inf(?:inity)?|1\.#\w+)"  # as C libraries print them
_FIGURE = re.compile(r"\{(\w+):(d|f)(\d?)\}")


class Line:
    """The forms of a line: regular expressions with counts ``{name:d}`` and numbers ``{name:f}``.

    ``{name:f3}``: three decimals, ``{name:f9}``: three or six.
    """

    def __init__(self, *templates: str) -> None:
        self._figures = {name for name, *_ in _FIGURE.findall(" ".join(templates))}
        self._patterns = [re.compile(_FIGURE.sub(_group, form), re.IGNORECASE) for form in templates]
        self.keys = tuple(name for pattern in self._patterns for name in pattern.groupindex)

    def read(self, line: str) -> dict[str, Any] | None:
        """Return the values by name, or None."""
        for pattern in self._patterns:
            if match := pattern.fullmatch(line):
                groups = match.groupdict().items()
                return {name: number(text) if name in self._figures else text for name, text in groups}
        return None


def _group(figure: re.Match[str]) -> str:
    name, kind, decimals = figure.groups()
    # 9.0 to 9.5 print microseconds of statements
    fraction = (
        r"\.(?:\d{6}|\d{3})" if decimals == "9" else rf"\.\d{{{decimals}}}" if decimals else r"(?:\.\d+)?"
    )
    # Python refuses more digits
    return rf"(?P<{name}>\d{{1,18}})" if kind == "d" else rf"(?P<{name}>-?\d{{1,18}}{fraction}|{_NAN})"


def number(text: str | None) -> float | None:
    """Read a number; ``nan`` and ``inf`` are ``None``."""
    if text is None or re.fullmatch(_NAN, text, re.IGNORECASE):
        return None
    return int(text) if text.isdecimal() else float(text)


def keep(line: str, kinds: Line, into: dict[str, Any]) -> bool:
    """Add a line's values; refuse contradictions. Return whether it matched."""
    values = kinds.read(line)
    for key, value in (values or {}).items():
        if value is not None and into.setdefault(key, value) != value:
            raise ParseError(f'"{line}" contradicts an earlier line ({key} was {into[key]})')
    return values is not None


def missing_line(line: str, text: Text) -> ParseError:
    """Return the error for a missing line."""
    reasons = faults(text.lines)
    return ParseError(f'no line "{line}"' + (f"; the text says: {reasons[0]}" if reasons else ""))


def require(values: Mapping[str, Any], lines: Mapping[str, str], text: Text) -> None:
    """Raise the error for the first missing key."""
    for key, line in lines.items():
        if key not in values:
            raise missing_line(line, text)


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
    """Return the lines about aborted clients, failed connections or an aborted run."""
    failures: list[str] = []
    for line in lines:
        if _IGNORED in line:
            if failures and "aborted" not in failures[-1]:
                failures.pop()
        elif _FAULT.search(line) or ((to := _CONNECTION.search(line)) and "failed" in line[to.end() :]):
            failures.append(line)
    return failures


_SHORT = "b:c:CdD:f:F:h:iI:j:lL:M:nNp:P:qrR:s:St:T:U:v"
_LONG = (
    "aggregate-interval= builtin= client= connect continue-on-error dbname= debug define= exit-on-abort "
    "failures-detailed file= fillfactor= foreign-keys help host= index-tablespace= init-steps= initialize "
    "jobs= latency-limit= log log-prefix= max-tries= no-vacuum partition-method= partitions= port= "
    "progress-timestamp progress= protocol= quiet random-seed= rate= report-latencies report-per-command "
    "sampling-rate= scale= select-only show-script= skip-some-updates tablespace= time= transactions= "
    "unlogged-tables username= vacuum-all verbose-errors version"
)
_NAMES = {
    "c": "client", "C": "connect", "i": "initialize", "L": "latency-limit", "M": "protocol", "R": "rate",
    "s": "scale", "t": "transactions", "T": "time",
}  # fmt: skip


TYPED = re.compile(r"(?:^|[\s/])pgbench\s+-(?!i|-initialize)(?!.*\s(?:-i|--initialize)(?:\s|$))")
"""A command line that runs a load."""
_CONNECT = re.compile(r"\s(?:-[A-Za-z]*C|--conn)")
_PROGRAM = re.compile(r"(?:^|[/\\])pgbench[^/\\\s]*$")
_MOST_ARGUMENTS = 1000  # getopt takes too long for more


def options(argv: Sequence[str] | None) -> Mapping[str, str]:
    """Return pgbench's options by long name."""
    arguments = list(argv or ()) if len(argv or ()) <= _MOST_ARGUMENTS else []
    programs = [n for n, word in enumerate(arguments, 1) if _PROGRAM.search(word)]
    others = bool(arguments) and not arguments[0].startswith("-")
    arguments = arguments[programs[0] if programs else int(others) :]
    try:
        pairs, _ = getopt.gnu_getopt(arguments, _SHORT, _LONG.split())
    except getopt.GetoptError:
        return {}
    return {_NAMES.get(name.lstrip("-"), name.lstrip("-")): value for name, value in pairs}


def typed_connect(lines: Iterable[str]) -> bool:
    """Return whether a prompt's only command line has ``--connect``."""
    typed = [line for line in lines if TYPED.search(line)]
    return len(typed) == 1 and _CONNECT.search(typed[0].partition(" #")[0]) is not None
