"""pgbench's transaction log (``-l``): a line per transaction, a file per thread.

Source of the format: ``doLog`` of PostgreSQL's ``src/bin/pgbench/pgbench.c``, versions 9.6 to 19 in development.

A log may hold gigabytes. It is read in spans of whole lines, on all processors at once, by pyarrow's CSV
reader; line by line only where a span holds other lines too.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from benchlib.errors import ParseError
from benchlib.load.parse.text import Text, options, real, wanted

KIND = "transaction log"
WORDS = ("skipped", "failed", "serialization", "deadlock", "other")
"""What stands in place of a latency: skipped under a rate, the others are failures."""
STATUSES = (*WORDS, "ok")
"""How a transaction ended, by its number in the column ``status``."""
_SKIPPED, _OK = 0, len(WORDS)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}

LINE = re.compile(rf"\d{{1,7}} \d+ (?:\d+|{'|'.join(WORDS)}) \d+ (?:\d{{9,10}}|0) \d{{1,6}}(?: \d+){{0,2}}")
_EXAMPLE = "0 1 1523 0 1795178920 475654"
_FIGURES = re.compile(r"\d+(?: |$)")
_COLUMNS = ("client", "transaction", "latency", "script", "epoch_s", "epoch_us")
_UNCLEAR = "lag_or_retries"
_COUNTED = ("script", "epoch_s", "lag", "retries", _UNCLEAR)
_TIME = ("epoch_s", "epoch_us")
_LIMITS = {"client": 10**7, "transaction": 1 << 40, "script": 1 << 16, "epoch_s": 10**10, "epoch_us": 10**6}
_FORMAT = pa.csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, ignore_empty_lines=False)
_BY_LENGTH = np.zeros(1 + max(map(len, WORDS)), np.int8)
_BY_LENGTH[[len(word) for word in WORDS]] = range(len(WORDS))
_SPAN = 8 << 20  # bytes that one processor reads at a time
_BEGINNING = 1 << 16  # bytes that tell the columns
_LONGEST = 4096  # bytes of a line
_WORKERS = min(pa.cpu_count(), 8)  # numpy and pyarrow let other threads run; more of them cost memory
_SPARE = 2  # results that wait, so that no thread does

Columns = dict[str, NDArray[Any]]
T = TypeVar("T")
R = TypeVar("R")


def ahead(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Like ``map``, in threads that are at most a few results ahead of the caller."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(_WORKERS) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > _WORKERS + _SPARE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 in as little memory as they need."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def quantiles_ms(ordered: NDArray[Any], shares: Iterable[float]) -> list[float]:
    """Quantiles in ms of sorted microseconds, of which there is at least one.

    Source: Hyndman and Fan (1996), definition 7, numpy's default; ``np.quantile`` would sort and copy again.
    """
    ranks = (len(ordered) - 1) * np.array([*shares])
    below = np.floor(ranks).astype(int)
    low, high = (ordered[each].astype(float) for each in (below, np.ceil(ranks).astype(int)))
    quantiles: list[float] = ((low + (high - low) * (ranks - below)) / 1000).tolist()
    return quantiles


@dataclass(frozen=True)
class Span:
    """Whole lines of a file, from byte ``start`` up to ``end``."""

    name: str
    start: int
    end: int


class Log:
    """The transaction log of one pgbench, whose command line was ``argv``.

    ``files`` are the logs of its threads: a name, and what opens each. What follows a file's last newline is
    in none of the ``spans`` but among the ``tails``, by the file's name. ``columns`` are empty for an empty log.

    Raises:
        ParseError: columns that the command line does not ask for; a file without newlines.

    """

    def __init__(
        self,
        files: Mapping[str, Callable[[], pa.NativeFile]],
        argv: Sequence[str] | None,
        *,
        strict: bool = False,
    ) -> None:
        self._files, self._strict = files, strict
        self.spans: list[Span] = []
        self.tails: dict[str, str] = {}
        for name in files:
            self._divide(name)
        self.text = Text("")
        if self.spans:
            self.text = Text(str(self.read(self.beginning(self.spans[0])), errors="replace"))
        counts = Counter(line.count(" ") + 1 for line in self.text.lines if LINE.fullmatch(line))
        columns = max(counts, key=lambda n: (counts[n], n), default=0)
        self.columns = log_columns(columns, argv) if columns else ()

    def _divide(self, name: str) -> None:
        with self._files[name]() as file:
            size = file.size()
            file.seek(max(0, size - _LONGEST))
            tail = file.read().rpartition(b"\n")[2]
            if len(tail) == _LONGEST:
                raise ParseError(f"{name} does not end as a transaction log does: {tail[:80]!r}")
            if tail:
                self.tails[name] = tail.decode(errors="replace").rstrip("\r")
            end, whole = 0, size - len(tail)
            while end < whole:
                start, end = end, min(end + _SPAN, whole)
                file.seek(end - 1)
                while b"\n" not in (piece := file.read(_LONGEST)):
                    end += len(piece)
                end += piece.index(b"\n")
                self.spans.append(Span(name, start, end))

    def read(self, span: Span) -> pa.Buffer:
        """The lines of a span."""
        with self._files[span.name]() as file:
            file.seek(span.start)
            return file.read_buffer(span.end - span.start)

    def beginning(self, span: Span) -> Span:
        """Its first lines."""
        short = replace(span, end=min(span.end, span.start + _BEGINNING))
        end = span.start + self.read(short).to_pybytes().rfind(b"\n") + 1
        return replace(span, end=end if end > span.start else span.end)

    def columns_of(self, span: Span, names: Sequence[str]) -> tuple[Columns, list[str]]:
        """Columns of a span by ``names``, with ``latency`` and ``status``, and its torn lines, which are left out.

        The status is a place in ``STATUSES``; the latency is 0 where a word stands in its place. Lines that hold no
        figures are left out too.

        Raises:
            ParseError: the log is ``strict``, and some line is none of it.

        """
        columns = self.rows(self.read(span), names)
        if columns is not None:
            return columns, []
        lines = [] if self._strict else Text(str(self.read(span), errors="replace")).lines
        whole = "".join(f"{line}\n" for line in lines if self.sound(line))
        columns = None if self._strict else self.rows(whole.encode(), names)
        if columns is None:
            raise self.fault(span)
        return columns, [line for line in lines if _FIGURES.match(line) and not self.sound(line)]

    def rows(self, lines: pa.Buffer | bytes, names: Sequence[str]) -> Columns | None:
        """Columns of some lines; None where one is no line of this log."""
        wanted = list(dict.fromkeys(["latency", *names]))
        if not len(lines):
            return {name: np.array([], np.int64) for name in (*wanted, "status")}
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(lines),
                read_options=pa.csv.ReadOptions(
                    column_names=self.columns, use_threads=False, block_size=len(lines) + 1
                ),
                parse_options=_FORMAT,
                convert_options=pa.csv.ConvertOptions(
                    include_columns=wanted,
                    column_types=dict.fromkeys(self.columns, pa.int64()),
                    null_values=WORDS,
                ),
            )
        except pa.ArrowInvalid:
            return None
        status = np.full(len(table), _OK, np.int8)
        words = _words(lines) if table["latency"].null_count else status[:0]
        columns: Columns = {"status": status}
        for name, column in zip(wanted, table.columns, strict=True):
            if column.null_count != (len(words) if name == "latency" else 0):
                return None
            if column.null_count:
                status[column.is_null()] = words
                column = column.fill_null(0)
            columns[name] = np.from_dlpack(column.chunk(0))  # to_numpy would import pandas
            # without a sign, a negative number is above all others
            if columns[name].view(np.uint64).max(initial=0) >= _LIMITS.get(name, 1 << 63):
                return None
        return columns

    def sound(self, line: str) -> bool:
        """Whether a line is one of this log's."""
        return line.count(" ") + 1 == len(self.columns) and LINE.fullmatch(line) is not None

    def fault(self, span: Span) -> ParseError:
        """The error that names the first line of a span that is none of this log's."""
        before = 0
        for each in (each for each in self.spans if each.name == span.name):
            lines = str(self.read(each), errors="replace").split("\n")[:-1]
            if each != span:
                before += len(lines)
                continue
            for number, line in enumerate(lines, before + 1):
                if not self.sound(line.rstrip("\r")):
                    return ParseError(
                        f'{span.name}, line {number}: "{line[:80]}" is no line of this log of transactions,'
                        f" such as {_EXAMPLE}{' 0' * (len(self.columns) - 6)}"
                    )
        return ParseError(f"{span.name}: figures of a transaction log do not fit into 64 bits")


def _words(lines: pa.Buffer | bytes) -> NDArray[np.int8]:
    """Which of ``WORDS`` stand in some lines, in order: no two are of one length."""
    letters = np.flatnonzero(np.frombuffer(lines, np.uint8) >= ord("a"))
    beginnings = np.flatnonzero(np.diff(letters, prepend=-2) > 1)
    return _BY_LENGTH[np.minimum(np.diff(beginnings, append=len(letters)), len(_BY_LENGTH) - 1)]


def log_columns(columns: int, argv: Sequence[str] | None) -> tuple[str, ...]:
    """The names of a transaction log's columns, of which there are ``columns``.

    A seventh could be ``lag`` or ``retries``; without a command line it is ``lag_or_retries``.

    Raises:
        ParseError: the command line asks for others.

    """
    command = options(argv)
    if not command:
        extra = {7: [_UNCLEAR], 8: ["lag", "retries"]}.get(columns, [])
    else:
        retried = command.get("max-tries", "1") != "1"
        extra = ["lag"] * ("rate" in command) + ["retries"] * retried
        if 6 + len(extra) != columns:
            raise ParseError(f"{KIND}: {columns} columns, but the command line asks for {6 + len(extra)}")
    return (*_COLUMNS, *extra)


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Read the log files of one run, given as one text; ``benchlib.load.parse`` lists the keys."""
    end = "\n" if text.terminated and text.lines else ""
    data = ("\n".join(text.lines) + end).encode()
    return parse_log(Log({"the text": lambda: pa.BufferReader(data)}, argv), argv)


def parse_log(log: Log, argv: list[str] | None) -> dict[str, Any]:
    """Read a log in which a killed run left torn lines, also between those of other files.

    Raises:
        ParseError: no line of a log, lines of another shape, or a transaction that is there twice.

    """
    if not log.columns:
        raise wanted(KIND, _EXAMPLE, log.text)
    _refuse_several_runs(log)
    names = [name for name in _COUNTED if name in log.columns]
    parts = list(ahead(lambda span: _Part(*log.columns_of(span, names)), log.spans))
    times = _times_us(log, parts)
    for tail in log.tails.values():
        part, time_us = _last(log, tail)
        parts.append(part)
        times += time_us
    statuses = dict(zip(STATUSES, np.sum([part.statuses for part in parts], axis=0).tolist(), strict=True))
    torn, rows = [line for part in parts for line in part.torn], sum(statuses.values())
    if len(torn) > max(2, rows // 100):
        raise ParseError(
            f'{KIND}: lines of different shapes, such as "{torn[0]}": torn, or logs of several runs'
        )
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    latencies, scripts, retries = columns["latency"], columns["script"], columns.get("retries")
    total = _figures(latencies)

    def of_script(number: int) -> dict[str, Any]:
        return _figures(latencies[scripts == number]) if scripts.any() else total

    detailed = statuses["serialization"] or statuses["deadlock"]
    unclear = "the seventh column is lag or retries: only the command line can tell, so neither is given"
    return {
        "complete": not torn,
        "transactions": statuses["ok"],
        "failed_transactions": rows - statuses["ok"] - statuses["skipped"],
        "skipped_transactions": statuses["skipped"],
        "serialization_failures": statuses["serialization"] if detailed else None,
        "deadlock_failures": statuses["deadlock"] if detailed else None,
        "latency_ms": total,
        "lag_ms": _figures(columns["lag"]) if "lag" in columns else None,
        "retries": None if retries is None else int(retries.sum()),
        "retried_transactions": None if retries is None else int(np.count_nonzero(retries)),
        "sampling_rate": real(options(argv).get("sampling-rate")),
        "scripts": [
            {"script": number, "transactions": own["n"], "latency_ms": own}
            for number in range(int(scripts.max(initial=0)) + 1)
            for own in [of_script(number)]
            if own["n"]
        ],
        "first_epoch_s": min(times, default=0) / 1e6,
        "last_epoch_s": max(times, default=0) / 1e6,
        "torn_lines": len(torn),
        "notes": [unclear] if _UNCLEAR in log.columns else [],
    }


class _Part:
    """What the figures need of some lines, with as little memory as they can do with.

    ``columns`` have the latencies, scripts and lags of transactions that ended well, and the retries of all but the skipped.
    ``seconds`` are the first and the last in which one ended.
    """

    def __init__(self, columns: Columns, torn: Sequence[str]) -> None:
        self.torn = torn
        status, seconds = columns["status"], columns["epoch_s"]
        odd = status[status != _OK]
        self.statuses = np.bincount(odd, minlength=len(STATUSES))
        self.statuses[_OK] = len(status) - len(odd)
        self.seconds = (int(seconds.min()), int(seconds.max())) if len(seconds) else ()
        done, counted = (status == _OK, status != _SKIPPED) if len(odd) else (slice(None), slice(None))
        self.columns = {
            name: narrow(columns[name][rows])
            for name, rows in (("latency", done), ("script", done), ("lag", done), ("retries", counted))
            if name in columns
        }


def _times_us(log: Log, parts: Sequence[_Part]) -> list[int]:
    """When the first and the last transaction ended: read again where the first and the last second are."""
    seconds = [second for part in parts for second in part.seconds]
    ends = {min(seconds, default=0), max(seconds, default=0)}
    spans = [span for span, part in zip(log.spans, parts, strict=True) if ends & {*part.seconds}]
    times = [_time_us(log.columns_of(span, _TIME)[0]) for span in spans]
    return [int(time_us) for each in times for time_us in (each.min(), each.max())]


def _time_us(columns: Columns) -> NDArray[np.int64]:
    return columns["epoch_s"] * 1_000_000 + columns["epoch_us"]


def _last(log: Log, line: str) -> tuple[_Part, list[int]]:
    """A line without newline, and its time: torn, or whole but for its last figure, which may have lost digits."""
    columns = log.rows(f"{line}\n".encode() if log.sound(line) else b"", log.columns)
    assert columns is not None
    times, doubtful = _time_us(columns).tolist(), log.columns[-1]
    if times and doubtful == "epoch_us":
        before = _time_us(log.columns_of(log.spans[-1], _TIME)[0])
        if times[0] < before[-1]:  # a thread logs in order of time
            columns, times = {name: values[:0] for name, values in columns.items()}, []
    if not times:
        return _Part(columns, [line] if _FIGURES.match(line) else []), []
    part = _Part(columns, [])
    if doubtful in part.columns:
        part.columns[doubtful] = part.columns[doubtful][:0]
    return part, [] if doubtful == "epoch_us" else times


def _refuse_several_runs(log: Log) -> None:
    """Make sure that no client counts its transactions twice: in a log of more than 8 MiB only by the first lines of each 8 MiB.

    Raises:
        ParseError: one does.

    """
    highest: dict[int, int] = {}
    for span in log.spans:
        whole = span if len(log.spans) == 1 else log.beginning(span)
        columns, _ = log.columns_of(whole, ["client", "transaction"])
        counted = columns["status"] != _SKIPPED  # 10 gives the skipped no number of their own
        clients, transactions = (columns[name][counted] for name in ("client", "transaction"))
        keys = np.sort(clients << 40 | transactions)
        doubles = keys[1:][keys[1:] == keys[:-1]].tolist()
        for client in np.unique(clients).tolist():
            own = transactions[clients == client]
            if own.min() <= highest.get(client, -1):
                doubles.append(client << 40 | int(own.min()))
            highest[client] = int(own.max())
        if doubles:
            client, transaction = divmod(doubles[0], 1 << 40)
            raise ParseError(f"{KIND}: transaction {transaction} of client {client} twice: several runs")


def _figures(latencies_us: NDArray[Any]) -> dict[str, float | int | None]:
    """Sum up durations given in microseconds, in milliseconds."""
    n = len(latencies_us)
    if not n:
        return {"n": 0, **dict.fromkeys(("mean", "stddev", "min", *QUANTILES, "max"))}
    ordered = np.sort(latencies_us)
    return {
        "n": n,
        "mean": float(ordered.mean()) / 1000,
        "stddev": float(ordered.std()) / 1000,
        "min": int(ordered[0]) / 1000,
        **dict(zip(QUANTILES, quantiles_ms(ordered, QUANTILES.values()), strict=True)),
        "max": int(ordered[-1]) / 1000,
    }
