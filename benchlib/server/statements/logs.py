"""A workload from a server's log: statements with the values that they ran with.

Formats: csvlog, jsonlog and stderr with durations, and auto_explain. Memory is bounded. Source of the messages:
``src/backend/tcop/postgres.c`` (``exec_simple_query``, ``exec_execute_message``, ``errdetail_params``) and
``contrib/auto_explain/auto_explain.c``.
"""

import csv
import gzip
import html
import json
import math
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from benchlib.errors import InputError
from benchlib.load.workloads.sql import for_pgbench, literal, one_of, spoken
from benchlib.server.statements.coverage import SAMPLES, Row, check_use, chosen, normalised

_LONGEST = 16_384
_STORED = 48 << 20
"""Characters of statements in memory; those with the least time are dropped above it."""
_OBJECTS = 400
"""Bytes of a statement or a sample besides its characters."""
_SESSIONS = 1_000
_DATABASES = 8
"""Databases of a log in memory; those with the fewest calls are dropped above it."""
_FIELD = 16 << 20
"""The longest line or field, in characters."""
_HEAD = 20
"""Lines that decide the format: programs that start a server may write before it."""
_CSV_START = re.compile(r'\d{4}-\d\d-\d\d [\d:.]+ [^,"]+(?:,(?:"(?:[^"]|"")*")?){2},\d+,')
_CSV_COLUMNS = range(22, 40)
_SEVERITY, _MESSAGE, _DETAIL, _PID, _DATABASE = 11, 13, 14, 3, 2
_STDERR = re.compile(
    r"(?P<prefix>.{0,300}?)(?P<severity>DEBUG[1-5]?|LOG|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC"
    r"|DETAIL|HINT|QUERY|CONTEXT|LOCATION|BACKTRACE|STATEMENT):  (?:[0-9A-Z]{5}: )?(?P<message>.*)",
    re.DOTALL,
)
_SESSION = re.compile(r"\[(\d+)[-\]]|\b([\da-f]{8}\.[\da-f]+)\b|(?<![\w:./+-])(\d+)(?![\w:./-])")
"""A process or session in a prefix: ``[%p]``, ``%c`` or ``%p``."""
_FAILED = {"ERROR", "FATAL", "PANIC"}
_BELONGS = {"DETAIL", "HINT", "QUERY", "CONTEXT", "LOCATION", "BACKTRACE", "STATEMENT"}
_DURATION = re.compile(
    r"duration: (?P<ms>\d+(?:\.\d+)?) ms(?:  (?P<kind>\w+)(?P<name> [^:]*)?:\s?(?P<sql>.*))?", re.DOTALL
)
_LOGGED = re.compile(r"(?:statement|execute [^:]*): (?P<sql>.*)", re.DOTALL)
_XML = re.compile(r"<(Query-\w+)>(.*?)</Query-", re.DOTALL)
_YAML = re.compile(r'^\s*(Query \w+): ("(?:[^"\\]|\\.)*")\s*$', re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+) = (NULL|'(?:[^']|'')*')")
_CATALOG = re.compile(r"PG_(?!TEMP)\w+$|INFORMATION_SCHEMA$")
_HINT = (
    "PostgreSQL logs statements with their time where log_min_duration_statement = 0 (or a limit in ms) is set, "
    "and lc_messages is 'C' or English"
)


Entry = tuple[str, str, str, str, str]
"""A message of a log: database (empty if unknown), session, severity, message, detail."""


@dataclass
class _Statement:
    calls: int = 0
    ms: float = 0.0
    samples: list[tuple[str, str]] = field(default_factory=list)


class LogStatements:
    """A log's statements by normalised text; totals include dropped ones.

    ``calls_elsewhere``: in other databases of the log.
    """

    def __init__(self) -> None:
        self.statements: dict[str, _Statement] = {}
        self.total_calls, self.total_ms, self.fastest_ms = 0, 0.0, float("inf")
        self.calls_elsewhere = 0
        self._stored, self._random = 0, random.Random(1)

    def add(self, sql: str, parameters: str, ms: float, calls: int = 1) -> None:
        """Count an execution, perhaps as a sample."""
        self.total_calls, self.total_ms = self.total_calls + calls, self.total_ms + ms
        self.fastest_ms = min(self.fastest_ms, ms) if calls else self.fastest_ms
        normal = normalised(sql[:_LONGEST])
        if normal not in self.statements:
            self.statements[normal] = _Statement()
            self._stored += len(normal) + _OBJECTS
        one = self.statements[normal]
        one.calls, one.ms = one.calls + calls, one.ms + ms
        index = self._random.randrange(one.calls) if one.calls > SAMPLES else len(one.samples)
        if calls and index < SAMPLES:
            sample = (sql[: _LONGEST + 1], parameters[: _LONGEST + 1])
            replaced = one.samples[index : index + 1]
            one.samples[index : index + 1] = [sample]
            self._stored += _size([sample]) - _size(replaced)
        if self._stored > _STORED:
            ranked = sorted(self.statements.items(), key=lambda item: -item[1].ms)
            self.statements = dict(ranked[: len(ranked) // 2])
            kept = self.statements.items()
            self._stored = sum(len(normal) + _OBJECTS + _size(one.samples) for normal, one in kept)


def _size(samples: list[tuple[str, str]]) -> int:
    return sum(_OBJECTS + len(sql) + len(values) for sql, values in samples)


def read_log(path: Path) -> LogStatements:
    """Read a log, plain or gzip; of several databases (csvlog, jsonlog) the one with the most calls.

    Raises:
        InputError: it is no log of PostgreSQL, a row cannot be read, or no statement has a duration.

    """
    by_database, last = dict[str, tuple[LogStatements, LogStatements]](), dict[str, tuple[str, str, bool]]()
    elsewhere = 0
    for database, session, severity, message, detail in _entries(path):
        if severity in _FAILED:  # no duration of its statement follows
            last.pop(session, None)
        if severity != "LOG":
            continue
        if found := _DURATION.fullmatch(message):
            if database not in by_database:
                if len(by_database) == _DATABASES:
                    least = min(
                        by_database, key=lambda name: sum(one.total_calls for one in by_database[name])
                    )
                    elsewhere += max(one.total_calls for one in by_database.pop(least))
                by_database[database] = LogStatements(), LogStatements()
            statements, explained = by_database[database]
            ms, kind = float(found["ms"]), found["kind"]
            if kind in ("statement", "execute"):
                fetched = (found["name"] or "").startswith(" fetch from")
                statements.add(found["sql"], detail, ms, not fetched)
            elif kind == "plan":
                explained.add(*_explained(found["sql"]), ms)
            elif kind is None and session in last:
                sql, parameters, calls = last.pop(session)
                statements.add(sql, parameters, ms, calls)
        elif session and (logged := _LOGGED.fullmatch(message)):
            if len(last) > _SESSIONS:
                last.clear()
            calls = not message.startswith("execute fetch from")
            last[session] = (logged["sql"][: _LONGEST + 1], detail[: _LONGEST + 1], calls)
    # auto_explain repeats what log_min_duration_statement has
    which = 0 if any(statements.total_calls for statements, _ in by_database.values()) else 1
    of_databases = [pair[which] for pair in by_database.values()] or [LogStatements()]
    result = max(of_databases, key=lambda one: one.total_calls)
    result.calls_elsewhere = elsewhere + sum(one.total_calls for one in of_databases) - result.total_calls
    if not result.total_calls:
        raise InputError(f"{path.name} has no statement with its duration: {_HINT}")
    return result


def workload_of_log(path: Path, name: str, top: int, *, writes: bool) -> tuple[dict[str, Any], list[str]]:
    """Return a workload of the ``top`` statements with the most time, and its coverage.

    Raises:
        InputError: as :func:`read_log`; or no statement can be run.

    """
    log = read_log(path)
    rows = [
        {
            "query": normal,
            "calls": one.calls,
            "share_of_calls": 100 * one.calls / log.total_calls,
            "share_of_time": 100 * one.ms / log.total_ms if log.total_ms else math.nan,
            "samples": one.samples,
        }
        for normal, one in sorted(log.statements.items(), key=lambda item: -item[1].ms)
    ]
    scripts, lines = chosen(rows, top, "with the most time", partial(_script, writes=writes))
    if log.calls_elsewhere:
        lines.append(f"left out, since they ran in other databases: {log.calls_elsewhere:,} calls")
    if log.fastest_ms >= 1:
        lines.append(f"the log has no statement faster than {log.fastest_ms:g} ms: quicker ones are missing")
    keys = {
        "name": name,
        "title": f"{len(scripts)} statements of a server's log, with their values",
        "prose": "; ".join(lines),
        "private": True,
        "pgbench_tables": False,
        "scripts": scripts,
    }
    return keys, lines


def _script(row: Row, *, writes: bool) -> str:
    tokens = spoken(row["query"])
    check_use(tokens, writes=writes)
    if any(
        _CATALOG.match(text.upper()) and after != "("
        for (_, text), (_, after) in pairwise([*tokens, ("", "")])
    ):
        raise InputError("they read the server's own catalogs")
    runs, reasons = list[str](), Counter[str]()
    for sql, parameters in row["samples"]:
        try:
            runs.append(_with_values(sql, parameters))
        except InputError as reason:
            reasons[str(reason)] += 1
    if not runs:
        raise InputError(reasons.most_common(1)[0][0] if reasons else "they never ran to the end")
    return one_of(runs)


def _with_values(sql: str, parameters: str) -> str:
    if len(sql) > _LONGEST or len(parameters) > _LONGEST:
        raise InputError(f"they are longer than {_LONGEST:,} characters")
    if "\ufffd" in sql + parameters:
        raise InputError("they are not in UTF-8")
    values = {}
    for number, value in _PARAMETER.findall(parameters):
        if value.endswith("...'"):
            raise InputError("their values are cut in the log (log_parameter_max_length = -1 keeps them)")
        values[f"${number}"] = value if value == "NULL" else " " + literal(value[1:-1].replace("''", "'"))
    bare = sql.strip().rstrip("; \n")
    kinds = spoken(bare)
    if any(text == ";" for _, text in kinds):
        raise InputError("they are several statements at once")
    if any(kind == "parameter" and text not in values for kind, text in kinds):
        raise InputError("the log does not have their values (log_parameter_max_length = -1)")
    try:
        return f"{for_pgbench(bare, values)};\n"
    except InputError:
        raise InputError("they have a spelling that pgbench reads differently") from None


def _explained(plan: str) -> tuple[str, str]:
    head = plan.lstrip()
    try:
        if head.startswith("<explain"):
            found = {key.replace("-", " "): html.unescape(text) for key, text in _XML.findall(plan)}
        elif head.startswith("{"):
            found = json.loads(plan)
        else:
            found = {key: json.loads(text) for key, text in _YAML.findall(plan)}
    except ValueError:
        return "", ""
    if found:
        return str(found.get("Query Text", "")), str(found.get("Query Parameters", ""))
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
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if len(row) in _CSV_COLUMNS:
                yield row[_DATABASE], row[_PID], row[_SEVERITY], row[_MESSAGE], row[_DETAIL]
            elif row and next(reader, []):  # the last row of a log in use may be half written
                raise InputError(
                    f"{path.name}, before line {reader.line_num}: a row of csvlog has {len(row)} columns"
                )
    except csv.Error as reason:
        if "unexpected end of data" not in str(reason):
            raise InputError(f"{path.name}, line {reader.line_num}: no row of csvlog: {reason}") from reason


def _json(path: Path, lines: Iterator[str]) -> Iterator[Entry]:
    for number, (line, after) in enumerate(pairwise(chain(lines, [""])), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            severity = row["error_severity"]
        except (ValueError, LookupError, TypeError):
            if after:
                raise InputError(f"{path.name}, line {number}: no row of jsonlog") from None
            return
        database, session, message, detail = (
            str(row.get(key, "")) for key in ("dbname", "pid", "message", "detail")
        )
        yield database, session, severity, message, detail


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
            yield "", session, severity, "\n".join(message), "\n".join(detail)
            ids = _SESSION.search(found["prefix"])
            session, severity = (ids and ids[ids.lastindex or 0]) or "", found["severity"]
            message, detail = [found["message"]], []
            current, size = message, 0
    yield "", session, severity, "\n".join(message), "\n".join(detail)
