"""A workload from a server's log: statements with the values that they ran with.

Formats: csvlog, jsonlog and stderr with durations, and auto_explain. Memory is bounded. Source of the messages:
``src/backend/tcop/postgres.c`` (``exec_simple_query``, ``exec_execute_message``, ``errdetail_params``) and
``contrib/auto_explain/auto_explain.c``.
"""

import csv
import gzip
import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchlib.errors import InputError
from benchlib.load.workloads.sql import for_pgbench, literal, one_of, spoken

_HEAVIEST = 1_000_000
"""The largest weight of a script."""
SAMPLES = 16
"""Executions of a statement that its script draws from."""
_LONGEST = 16_384
_STORED = 48 << 20
"""Characters of statements in memory; those with the least time are dropped above it."""
_OBJECTS = 400
"""Bytes of a statement or a sample besides its characters."""
_SESSIONS = 1_000
_FIELD = 16 << 20
"""The longest line or field, in characters."""
_HEAD = 20
"""Lines that decide the format: programs that start a server may write before it."""
_CSV_START = re.compile(r'\d{4}-\d\d-\d\d [\d:.]+ [^,"]+(?:,(?:"(?:[^"]|"")*")?){2},\d+,')
_CSV_COLUMNS = range(22, 40)
_SEVERITY, _MESSAGE, _DETAIL, _PID = 11, 13, 14, 3
_STDERR = re.compile(
    r"(?P<prefix>.{0,300}?)(?P<severity>DEBUG[1-5]?|LOG|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC"
    r"|DETAIL|HINT|QUERY|CONTEXT|LOCATION|BACKTRACE|STATEMENT):  (?P<message>.*)",
    re.DOTALL,
)
_SESSION = re.compile(r"\[(\d+)[-\]]|\b([\da-f]{8}\.[\da-f]+)\b|(?<![\w:./-])(\d+)(?![\w:./-])")
"""A process or session in a prefix: ``[%p]``, ``%c`` or ``%p``."""
_FAILED = {"ERROR", "FATAL", "PANIC"}
_BELONGS = {"DETAIL", "HINT", "QUERY", "CONTEXT", "LOCATION", "BACKTRACE", "STATEMENT"}
_DURATION = re.compile(
    r"duration: (?P<ms>\d+(?:\.\d+)?) ms(?:  (?P<kind>\w+)(?P<name> [^:]*)?:\s?(?P<sql>.*))?", re.DOTALL
)
_LOGGED = re.compile(r"(?:statement|execute [^:]*): (?P<sql>.*)", re.DOTALL)
_PARAMETER = re.compile(r"\$(\d+) = (NULL|'(?:[^']|'')*')")
_CONSTANT = re.compile(
    r"""--[^\n]*|/\*(?:(?!/\*|\*/).|/\*(?:(?!/\*|\*/).)*\*/)*\*/|"(?:[^"]|"")*"|(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'"""
    r"""|(?<![\w$])[bBxX]'[^']*'|'(?:[^']|'')*'|(?<![\w$])\$((?:[^\W\d]\w*)?)\$.*?\$\1\$|(?<![\w$."])[-+]?\d[\d.]*(?:[eE][-+]?\d+)?\b""",
    re.DOTALL,
)
_LIST = re.compile(r"\?(?:\s*,\s*\?)+")
_ROWS = re.compile(r"\(\?\)(?:\s*,\s*\(\?\))+")
_READS = {"SELECT", "WITH", "VALUES", "TABLE"}
_WRITES = {"INSERT", "UPDATE", "DELETE", "MERGE"}
_CATALOG = re.compile(r"PG_(?!TEMP)\w+$|INFORMATION_SCHEMA$")
_HINT = (
    "PostgreSQL logs statements with their time where log_min_duration_statement = 0 (or a limit in ms) is set, "
    "and lc_messages is 'C' or English"
)


class Entry(NamedTuple):
    """A message of a log; empty for an error."""

    session: str
    message: str
    detail: str


@dataclass
class _Statement:
    calls: int = 0
    ms: float = 0.0
    seen: int = 0
    samples: list[tuple[str, str]] = field(default_factory=list)


class LogStatements:
    """A log's statements by normalised text; totals include dropped ones."""

    def __init__(self) -> None:
        self.statements: dict[str, _Statement] = {}
        self.total_calls, self.total_ms, self.fastest_ms = 0, 0.0, float("inf")
        self._stored, self._random = 0, random.Random(1)

    def add(self, sql: str, parameters: str, ms: float, calls: int) -> None:
        """Count an execution, perhaps as a sample."""
        self.total_calls, self.total_ms = self.total_calls + calls, self.total_ms + ms
        self.fastest_ms = min(self.fastest_ms, ms) if calls else self.fastest_ms
        normal = normalised(sql[:_LONGEST])
        one = self.statements.get(normal)
        if one is None:
            one = self.statements[normal] = _Statement()
            self._stored += len(normal) + _OBJECTS
        one.calls, one.ms = one.calls + calls, one.ms + ms
        if not calls:
            return
        one.seen += 1
        index = self._random.randrange(one.seen) if one.seen > SAMPLES else len(one.samples)
        if index < SAMPLES:
            sample = (sql[: _LONGEST + 1], parameters[: _LONGEST + 1])
            if index < len(one.samples):
                self._stored -= sum(map(len, one.samples[index]))
                one.samples[index] = sample
            else:
                one.samples.append(sample)
                self._stored += _OBJECTS
            self._stored += sum(map(len, sample))
        if self._stored > _STORED:
            self._drop_half()

    def _drop_half(self) -> None:
        ranked = sorted(self.statements.items(), key=lambda item: -item[1].ms)
        self.statements = dict(ranked[: len(ranked) // 2])
        self._stored = sum(
            len(normal) + _OBJECTS + sum(_OBJECTS + len(sql) + len(values) for sql, values in one.samples)
            for normal, one in self.statements.items()
        )


def _replacement(found: re.Match[str]) -> str:
    return " " if found[0][:2] in ("--", "/*") else found[0] if found[0][0] == '"' else "?"


@lru_cache(256)
def normalised(sql: str) -> str:
    """Return a statement on one line, ``?`` for constants, without comments."""
    text = _CONSTANT.sub(_replacement, sql)
    return " ".join(_ROWS.sub("(?)", _LIST.sub("?", text)).split()).rstrip("; ")


def read_log(path: Path) -> LogStatements:
    """Read a log, plain or gzip.

    Raises:
        InputError: it is no log of PostgreSQL, a row cannot be read, or no statement has a duration.

    """
    statements, explained, last = LogStatements(), LogStatements(), dict[str, tuple[str, str]]()
    for entry in _entries(path):
        found = _DURATION.fullmatch(entry.message)
        if not found:
            if not entry.message:  # the statement failed: no duration follows
                last.pop(entry.session, None)
            elif entry.session and (logged := _LOGGED.fullmatch(entry.message)):
                if len(last) > _SESSIONS:
                    last.clear()
                last[entry.session] = (logged["sql"][: _LONGEST + 1], entry.detail[: _LONGEST + 1])
            continue
        ms, kind = float(found["ms"]), found["kind"]
        if kind is None:
            if entry.session in last:
                statements.add(*last.pop(entry.session), ms, 1)
        elif kind in ("statement", "execute"):
            fetched = (found["name"] or "").startswith(" fetch from")
            statements.add(found["sql"], entry.detail, ms, not fetched)
        elif kind == "plan":
            explained.add(*_explained(found["sql"]), ms, 1)
    # auto_explain repeats what log_min_duration_statement has
    result = statements if statements.total_calls else explained
    if not result.total_calls:
        raise InputError(f"{path.name} has no statement with its duration: {_HINT}")
    return result


def workload_of_log(path: Path, name: str, top: int, *, writes: bool) -> tuple[dict[str, Any], list[str]]:
    """Return a workload of the ``top`` statements with the most time, and its coverage.

    Raises:
        InputError: as :func:`read_log`; or no statement can be run.

    """
    log = read_log(path)
    scripts, left_out = list[dict[str, Any]](), dict[str, list[_Statement]]()
    taken = list[_Statement]()
    ranked = sorted(log.statements.items(), key=lambda item: -item[1].ms)
    for normal, one in ranked:
        try:
            if len(scripts) == top:
                raise InputError(f"not among the {top} with the most time")
            sql = _script(normal, one, writes=writes)
        except InputError as reason:
            left_out.setdefault(str(reason), []).append(one)
            continue
        scripts.append({"title": normal[:200], "sql": sql})
        taken.append(one)
    lines = [_share("taken", taken, log)]
    lines += [_share(f"left out, {reason}", some, log) for reason, some in left_out.items()]
    if log.fastest_ms >= 1:
        lines.append(f"the log has no statement faster than {log.fastest_ms:g} ms: quicker ones are missing")
    if not scripts:
        raise InputError("; ".join(["no statement of the log can be run", *lines]))
    unit = max(1, max(one.calls for one in taken) / _HEAVIEST)
    for script, one in zip(scripts, taken, strict=True):
        script["weight"] = max(1, round(one.calls / unit))
    keys = {
        "name": name,
        "title": f"{len(scripts)} statements of a server's log, with their values",
        "prose": "; ".join(lines),
        "private": True,
        "pgbench_tables": False,
        "scripts": scripts,
    }
    return keys, lines


def _script(normal: str, one: _Statement, *, writes: bool) -> str:
    tokens = spoken(normal)
    words = [text.upper() for kind, text in tokens if kind == "word"]
    if not words or words[0] not in _READS | _WRITES:
        raise InputError("neither reading nor writing rows")
    if not writes and (_WRITES | {"INTO", "NEXTVAL", "SETVAL"}).intersection(words):
        raise InputError("writing (--writes includes them)")
    if any(
        _CATALOG.match(text.upper()) and after != "("
        for (_, text), (_, after) in pairwise([*tokens, ("", "")])
    ):
        raise InputError("reading the server's own catalogs")
    runs, reasons = list[str](), Counter[str]()
    for sql, parameters in one.samples:
        try:
            runs.append(_with_values(sql, parameters))
        except InputError as reason:
            reasons[str(reason)] += 1
    if not runs:
        raise InputError(reasons.most_common(1)[0][0] if reasons else "never run to the end")
    return one_of(runs)


def _with_values(sql: str, parameters: str) -> str:
    if len(sql) > _LONGEST or len(parameters) > _LONGEST:
        raise InputError(f"longer than {_LONGEST:,} characters")
    if "\ufffd" in sql + parameters:
        raise InputError("not in UTF-8")
    values = {}
    for number, value in _PARAMETER.findall(parameters):
        if value.endswith("...'"):
            raise InputError("values are cut in the log (log_parameter_max_length = -1 keeps them)")
        values[f"${number}"] = value if value == "NULL" else " " + literal(value[1:-1].replace("''", "'"))
    bare = sql.strip().rstrip("; \n")
    kinds = spoken(bare)
    if any(text == ";" for _, text in kinds):
        raise InputError("several statements at once")
    if any(kind == "parameter" and text not in values for kind, text in kinds):
        raise InputError("the log does not have their values (log_parameter_max_length = -1)")
    try:
        return f"{for_pgbench(bare, values)};\n"
    except InputError:
        raise InputError("with a spelling that pgbench reads differently") from None


def _share(outcome: str, some: list[_Statement], log: LogStatements) -> str:
    calls, ms = sum(one.calls for one in some), sum(one.ms for one in some)
    return f"{outcome}: {len(some)} statements, {100 * calls / log.total_calls:.3g} % of the calls, " + (
        f"{100 * ms / log.total_ms:.3g} % of the time" if log.total_ms else "the time is not known"
    )


def _explained(plan: str) -> tuple[str, str]:
    if plan.lstrip().startswith("{"):
        try:
            keys = json.loads(plan)
        except ValueError:
            return "", ""
        return str(keys.get("Query Text", "")), str(keys.get("Query Parameters", ""))
    text = re.split(r"\n[^\n]*\(cost=\d", plan, maxsplit=1)[0].removeprefix("Query Text: ")
    sql, _, parameters = text.partition("\nQuery Parameters: ")
    return sql, parameters


# --- formats -------------------------------------------------------------------------


def _entries(path: Path) -> Iterator[Entry]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = iter(partial(file.readline, _FIELD), "")
            head = list(islice(lines, _HEAD))
            lines, first = chain(head, lines), next((line for line in head if line.strip()), "")
            if not first:
                raise InputError(f"{path.name} is empty: {_HINT}")
            if first.startswith("{"):
                yield from _json(path, lines)
            elif _CSV_START.match(first):
                yield from _csv(path, lines)
            elif any(map(_STDERR.fullmatch, head)):
                yield from _stderr(lines)
            else:
                raise InputError(
                    f"{path.name} is no log of PostgreSQL: its first lines are neither csvlog, jsonlog, nor "
                    "messages such as “LOG:  duration: …” in English (lc_messages = 'C')"
                )
    except (OSError, EOFError, zlib.error) as reason:
        raise InputError(f"{path.name} cannot be read: {reason}") from reason


def _csv(path: Path, lines: Iterator[str]) -> Iterator[Entry]:
    csv.field_size_limit(_FIELD)
    reader, cut = csv.reader(lines, strict=True), 0
    try:
        for row in reader:
            if cut:
                raise InputError(
                    f"{path.name}, before line {reader.line_num}: a row of csvlog has {cut} columns"
                )
            if len(row) not in _CSV_COLUMNS:
                cut = len(row)  # the last row of a log in use may be half written
            elif row:
                yield from _entry(row[_PID], row[_SEVERITY], row[_MESSAGE], row[_DETAIL])
    except csv.Error as reason:
        if "unexpected end of data" not in str(reason):
            raise InputError(f"{path.name}, line {reader.line_num}: no row of csvlog: {reason}") from reason


def _json(path: Path, lines: Iterator[str]) -> Iterator[Entry]:
    broken = 0
    for number, line in enumerate(lines, 1):
        if broken:
            raise InputError(f"{path.name}, line {broken}: no row of jsonlog")
        try:
            row = json.loads(line)
            severity = row["error_severity"]
        except (ValueError, LookupError, TypeError):
            broken = number
            continue
        message, detail = row.get("message", ""), row.get("detail", "")
        yield from _entry(str(row.get("pid", "")), severity, str(message), str(detail))


def _stderr(lines: Iterator[str]) -> Iterator[Entry]:
    session, severity, message, detail = "", "", list[str](), list[str]()
    current, size = message, 0
    for line in lines:
        found = None if line.startswith("\t") else _STDERR.fullmatch(line.rstrip("\r\n"))
        if not found:
            size += len(line)
            if size < _FIELD:
                current.append(line.rstrip("\r\n").removeprefix("\t"))
        elif found["severity"] in _BELONGS:
            current = detail if found["severity"] == "DETAIL" else []
            current.append(found["message"])
        else:
            yield from _entry(session, severity, "\n".join(message), "\n".join(detail))
            ids = _SESSION.search(found["prefix"])
            session, severity = (ids and ids[ids.lastindex or 0]) or "", found["severity"]
            message, detail = [found["message"]], []
            current, size = message, 0
    yield from _entry(session, severity, "\n".join(message), "\n".join(detail))


def _entry(session: str, severity: str, message: str, detail: str) -> Iterator[Entry]:
    if severity == "LOG":
        yield Entry(session, message, detail)
    elif severity in _FAILED:
        yield Entry(session, "", "")
