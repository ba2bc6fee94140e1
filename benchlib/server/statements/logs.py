"""A workload from a server's log: statements with the values that they ran with.

Formats: csvlog, jsonlog and stderr, each with ``log_min_duration_statement`` or ``log_duration``; auto_explain in
text and JSON. A log is read line by line in bounded memory. Source of the messages: ``src/backend/tcop/postgres.c``
(``exec_simple_query``, ``exec_execute_message``, ``errdetail_params``) and ``contrib/auto_explain/auto_explain.c``.
"""

import csv
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchlib.errors import InputError
from benchlib.load.workloads.sql import for_pgbench, literal, one_of, spoken

SAMPLES = 16
"""Executions of a statement that its script draws from."""
_LONGEST = 16_384
_STORED = 48 << 20
"""Characters of samples in memory; the statements with the least time are dropped above it."""
_FIELD = 64 << 20
_CSV_COLUMNS = range(22, 40)
_SEVERITY, _MESSAGE, _DETAIL, _PID = 11, 13, 14, 3
_STDERR = re.compile(
    r"(?P<prefix>.{0,300}?)(?P<severity>DEBUG[1-5]?|LOG|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC"
    r"|DETAIL|HINT|QUERY|CONTEXT|LOCATION|BACKTRACE|STATEMENT):  (?P<message>.*)",
    re.DOTALL,
)
_BELONGS = {"DETAIL", "HINT", "QUERY", "CONTEXT", "LOCATION", "BACKTRACE", "STATEMENT"}
_DURATION = re.compile(
    r"duration: (?P<ms>\d+(?:\.\d+)?) ms(?:  (?P<kind>\w+)(?P<name> [^:]*)?:\s?(?P<sql>.*))?", re.DOTALL
)
_LOGGED = re.compile(r"(?:statement|execute [^:]*): (?P<sql>.*)", re.DOTALL)
_PARAMETER = re.compile(r"\$(\d+) = (NULL|'(?:[^']|'')*')")
_CONSTANT = re.compile(
    r"""--[^\n]*|/\*.*?\*/|[eEbBxX]?'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|(?<![\w$."])[-+]?\d[\d.]*(?:[eE][-+]?\d+)?\b""",
    re.DOTALL,
)
_LIST = re.compile(r"\?(?:\s*,\s*\?)+")
_READS = {"SELECT", "WITH", "VALUES", "TABLE"}
_WRITES = {"INSERT", "UPDATE", "DELETE", "MERGE"}
_CATALOG = re.compile(r"PG_(?!TEMP)\w+$|INFORMATION_SCHEMA$")
_HINT = (
    "PostgreSQL logs statements with their time where log_min_duration_statement = 0 (or a limit in ms) is set, "
    "and lc_messages is 'C' or English"
)


class Entry(NamedTuple):
    """A message of a log: the session's process, the text, its detail."""

    pid: str
    message: str
    detail: str


@dataclass
class _Statement:
    """All executions of one normalised statement."""

    calls: int = 0
    ms: float = 0.0
    seen: int = 0
    samples: list[tuple[str, str]] = field(default_factory=list)


class LogStatements:
    """The statements of a log by normalised text.

    - ``total_calls``, ``total_ms``: of all executions, those of dropped statements too
    - ``fastest_ms``: shortest execution in the log
    """

    def __init__(self) -> None:
        self.statements: dict[str, _Statement] = {}
        self.total_calls, self.total_ms, self.fastest_ms = 0, 0.0, float("inf")
        self._stored, self._random = 0, random.Random(1)

    def add(self, sql: str, parameters: str, ms: float, calls: int) -> None:
        """Count an execution, and keep it among the samples by chance."""
        self.total_calls, self.total_ms = self.total_calls + calls, self.total_ms + ms
        self.fastest_ms = min(self.fastest_ms, ms) if calls else self.fastest_ms
        normal = normalised(sql[:_LONGEST])
        one = self.statements.get(normal)
        if one is None:
            one = self.statements[normal] = _Statement()
            self._stored += len(normal)
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
            self._stored += sum(map(len, sample))
        if self._stored > _STORED:
            self._drop_half()

    def _drop_half(self) -> None:
        ranked = sorted(self.statements.items(), key=lambda item: -item[1].ms)
        self.statements = dict(ranked[: len(ranked) // 2])
        self._stored = sum(
            len(normal) + sum(len(text) for sample in one.samples for text in sample)
            for normal, one in self.statements.items()
        )


def normalised(sql: str) -> str:
    """Return a statement on one line with ``?`` in place of constants, and no comments."""
    text = _CONSTANT.sub(lambda match: " " if match[0][:2] in ("--", "/*") else "?", sql)
    return " ".join(_LIST.sub("?", text).split()).rstrip("; ")


def read_log(path: Path) -> LogStatements:
    """Read a log, plain or gzip.

    Raises:
        InputError: it is no log of PostgreSQL, a row cannot be read, or no statement has a duration.

    """
    statements, explained, last = LogStatements(), LogStatements(), dict[str, tuple[str, str]]()
    for entry in _entries(path):
        found = _DURATION.fullmatch(entry.message)
        if not found:
            if logged := _LOGGED.fullmatch(entry.message):
                if len(last) > 10_000:
                    last.clear()
                last[entry.pid] = (logged["sql"], entry.detail)
            continue
        ms, kind = float(found["ms"]), found["kind"]
        if kind is None:
            if entry.pid in last:
                statements.add(*last.pop(entry.pid), ms, 1)
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
    """Return a workload of the ``top`` statements with the most time, and its coverage in lines.

    Each script runs one of at most 16 executions with the values that it had.

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
    unit = max(one.calls for one in taken) / 10_000
    for script, one in zip(scripts, taken, strict=True):
        script["weight"] = max(1, round(one.calls / max(unit, 1)))
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
    """Return a script that runs one of the statement's executions.

    Raises:
        InputError: it cannot be one; the reason.

    """
    words = [text.upper() for _, text in spoken(normal)]
    if not words or words[0] not in _READS | _WRITES:
        raise InputError("neither reading nor writing rows")
    if not writes and (_WRITES | {"INTO", "NEXTVAL", "SETVAL"}).intersection(words):
        raise InputError("writing (--writes includes them)")
    if any(_CATALOG.match(word) and after != "(" for word, after in pairwise([*words, ""])):
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
    """Return an executed statement with its values in place of ``$1`` and so on."""
    if len(sql) > _LONGEST or len(parameters) > _LONGEST:
        raise InputError(f"longer than {_LONGEST:,} characters")
    values = {}
    for number, value in _PARAMETER.findall(parameters):
        if value.endswith("...'"):
            raise InputError("values are cut in the log (log_parameter_max_length = -1 keeps them)")
        values[f"${number}"] = value if value == "NULL" else literal(value[1:-1].replace("''", "'"))
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
    return (
        f"{outcome}: {len(some)} statements, {100 * calls / log.total_calls:.3g} % of the calls, "
        f"{100 * ms / log.total_ms if log.total_ms else 0:.3g} % of the time"
    )


def _explained(plan: str) -> tuple[str, str]:
    """Return the statement and the parameters of an auto_explain message."""
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
    """Yield the messages of level LOG."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
            first = list(islice((line for line in file if line.strip()), 1))
            lines = chain(first, file)
            if not first:
                raise InputError(f"{path.name} is empty: {_HINT}")
            if first[0].startswith("{"):
                yield from _json(path, lines)
            elif len(next(csv.reader(first))) in _CSV_COLUMNS or first[0].count('",') > 3:
                yield from _csv(path, lines)
            elif _STDERR.fullmatch(first[0]):
                yield from _stderr(lines)
            else:
                raise InputError(
                    f"{path.name} is no log of PostgreSQL: its first line is neither csvlog, jsonlog, nor "
                    "a message such as “LOG:  duration: …”"
                )
    except (OSError, EOFError) as reason:
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
            elif row[_SEVERITY] == "LOG":
                yield Entry(row[_PID], row[_MESSAGE], row[_DETAIL])
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
        if severity == "LOG":
            yield Entry(str(row.get("pid", "")), row.get("message", ""), row.get("detail", ""))


def _stderr(lines: Iterator[str]) -> Iterator[Entry]:
    pid, severity, message, detail = "", "", list[str](), list[str]()
    current = message
    for line in lines:
        found = None if line.startswith("\t") else _STDERR.fullmatch(line.rstrip("\r\n"))
        if not found:
            current.append(line.rstrip("\r\n").removeprefix("\t"))
        elif found["severity"] in _BELONGS:
            current = detail if found["severity"] == "DETAIL" else []
            current.append(found["message"])
        else:
            if severity == "LOG":
                yield Entry(pid, "\n".join(message), "\n".join(detail))
            numbers = re.search(r"\[(\d+)[-\]]", found["prefix"])
            pid, severity = numbers[1] if numbers else "", found["severity"]
            message, detail = [found["message"]], []
            current = message
    if severity == "LOG":
        yield Entry(pid, "\n".join(message), "\n".join(detail))
