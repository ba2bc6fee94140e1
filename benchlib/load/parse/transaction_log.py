"""pgbench's transaction log (``-l``): a file per thread.

Source: ``doLog`` in pgbench.c, 9.6 to 19devel. pyarrow's CSV reader parses spans of lines in parallel.
"""

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
from benchlib.load.parse.text import Line, Text, options, wanted

KIND = "transaction log"
WORDS = ("skipped", "failed", "serialization", "deadlock", "other")
"""Words in place of a latency: skipped under a rate; the others are failures."""
STATUSES = (*WORDS, "ok")
"""How a transaction ended, by ``status`` number."""
_SKIPPED, _OK = 0, len(WORDS)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}

LINE = re.compile(rf"\d{{1,7}} \d+ (?:\d+|{'|'.join(WORDS)}) \d+ (?:\d{{9,10}}|0) \d{{1,6}}(?: \d+){{0,2}}")
_SAMPLED = Line("{rate:f}")
_SAMPLED_NOTE = "the log is sampled (--sampling-rate): clients' transaction numbers jump, so it counts a part of the transactions only"
_EXAMPLE = "0 1 1523 0 1795178920 475654"
_FIGURES = re.compile(r"\d+(?: |$)")
_COLUMNS = ("client", "transaction", "latency", "script", "epoch_s", "epoch_us")
_UNCLEAR = "lag_or_retries"
_COUNTED = ("script", "epoch_s", "lag", "retries", _UNCLEAR)
_LIMITS = {"client": 10**7, "transaction": 1 << 40, "script": 128, "epoch_s": 10**10, "epoch_us": 10**6}
_FORMAT = pa.csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, ignore_empty_lines=False)
_NUMBERS = {word.encode(): number for number, word in enumerate(WORDS)}
_SPAN = 8 << 20  # bytes that one processor reads at a time
_BEGINNING = 1 << 16  # bytes that tell the columns
_LONGEST = 4096  # bytes of a line
_WORKERS = min(pa.cpu_count(), 8)  # numpy and pyarrow release the GIL; more threads cost memory
_SPARE = 2  # results that wait, so that no thread does

Columns = dict[str, NDArray[Any]]
T = TypeVar("T")
R = TypeVar("R")


def ahead(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Map in threads, at most a few results ahead."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(_WORKERS) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > _WORKERS + _SPARE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Convert non-negative numbers to the smallest type."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def quantiles_ms(values_us: NDArray[Any], shares: Mapping[str, float]) -> dict[str, float | None]:
    """Return named quantiles of microseconds in ms, or None; reorders the values."""
    if not len(values_us):
        return dict.fromkeys(shares)
    quantiles = np.quantile(values_us, [*shares.values()], overwrite_input=True) / 1000
    return dict(zip(shares, quantiles.tolist(), strict=True))


@dataclass(frozen=True)
class Span:
    """Whole lines of a file: bytes from ``start`` to ``end``."""

    name: str
    start: int
    end: int


class Log:
    """The transaction log of one pgbench.

    ``files``: for each thread's log a function that opens it. ``tails``: text after a last newline.

    Raises:
        ParseError: columns contradict ``argv``, or a file has no newlines.

    """

    def __init__(self, files: Mapping[str, Callable[[], pa.NativeFile]], argv: Sequence[str] | None) -> None:
        self._files = files
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
        """Return the lines of a span."""
        with self._files[span.name]() as file:
            file.seek(span.start)
            return file.read_buffer(span.end - span.start)

    def beginning(self, span: Span) -> Span:
        """Return its first lines."""
        short = replace(span, end=min(span.end, span.start + _BEGINNING))
        end = span.start + self.read(short).to_pybytes().rfind(b"\n") + 1
        return replace(span, end=end if end > span.start else span.end)

    def columns_of(self, span: Span, names: Sequence[str]) -> tuple[Columns, list[str]]:
        """Return columns of a span, with ``latency`` and ``status``, and the torn lines.

        Raises:
            ParseError: figures not from a log.

        """
        columns = self.rows(self.read(span), names)
        if columns is not None:
            return columns, []
        lines = Text(str(self.read(span), errors="replace")).lines
        whole = "".join(f"{line}\n" for line in lines if self.sound(line))
        columns = self.rows(whole.encode(), names)
        if columns is None:
            raise self.fault(span)
        return columns, [line for line in lines if _FIGURES.match(line) and not self.sound(line)]

    def rows(self, lines: pa.Buffer | bytes, names: Sequence[str]) -> Columns | None:
        """Return columns of some lines, or None if one is invalid.

        ``status`` is an index of ``STATUSES``; ``latency`` is 0 for a word.
        """
        wanted = list(dict.fromkeys(["latency", *names]))
        if not len(lines):
            return {name: np.array([], np.int64) for name in (*wanted, "status")}
        read = pa.csv.ReadOptions(column_names=self.columns, use_threads=False, block_size=len(lines) + 1)
        types = dict.fromkeys(self.columns, pa.int64())
        convert = pa.csv.ConvertOptions(include_columns=wanted, column_types=types, null_values=WORDS)
        try:
            table = pa.csv.read_csv(pa.BufferReader(lines), read, _FORMAT, convert)
        except pa.ArrowInvalid:
            return None
        status = np.full(len(table), _OK, np.int8)
        words = re.findall(rb"[a-z]+", lines) if table["latency"].null_count else []
        columns: Columns = {"status": status}
        for name, column in zip(wanted, table.columns, strict=True):
            if column.null_count != (len(words) if name == "latency" else 0):
                return None
            if column.null_count:
                status[column.is_null()] = [_NUMBERS[word] for word in words]
                column = column.fill_null(0)
            columns[name] = np.from_dlpack(column.chunk(0))  # to_numpy would import pandas
            # without a sign, a negative number is above all others
            if columns[name].view(np.uint64).max(initial=0) >= _LIMITS.get(name, 1 << 63):
                return None
        return columns

    def sound(self, line: str) -> bool:
        """Return whether a line belongs to this log."""
        return line.count(" ") + 1 == len(self.columns) and LINE.fullmatch(line) is not None

    def fault(self, span: Span) -> ParseError:
        """Return the error for the first invalid line of a span."""
        texts = (str(self.read(each), errors="replace") for each in self.spans if each.name == span.name)
        for place, line in enumerate((line for text in texts for line in text.split("\n")[:-1]), 1):
            if not self.sound(line.rstrip("\r")):
                return ParseError(
                    f'{span.name}, line {place}: "{line[:80]}" is no line of this log of transactions,'
                    f" such as {_EXAMPLE}{' 0' * (len(self.columns) - 6)}"
                )
        return ParseError(f"{span.name}: figures of a transaction log do not fit into 64 bits")


def log_columns(columns: int, argv: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns' names.

    Without ``argv`` a seventh is ``lag_or_retries``.

    Raises:
        ParseError: ``argv`` requests another number.

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
    """Parse the logs of one run in one text."""
    data = text.body.encode()
    return parse_log(Log({"the text": lambda: pa.BufferReader(data)}, argv), argv)


def parse_log(log: Log, argv: list[str] | None) -> dict[str, Any]:
    """Parse a log; a killed run may leave torn lines.

    Raises:
        ParseError: invalid lines, mixed shapes, or a repeated transaction.

    """
    if not log.columns:
        raise wanted(KIND, _EXAMPLE, log.text)
    sampled = _check_numbers(log)
    names = [name for name in _COUNTED if name in log.columns]
    parts = list(ahead(lambda span: _Part(*log.columns_of(span, names)), log.spans))
    parts += [_last(log, tail) for tail in log.tails.values()]
    statuses = dict(zip(STATUSES, np.sum([part.statuses for part in parts], axis=0).tolist(), strict=True))
    seconds = [second for part in parts for second in part.seconds]
    torn, rows = [line for part in parts for line in part.torn], sum(statuses.values())
    if len(torn) > max(2, rows // 100):
        raise ParseError(
            f'{KIND}: lines of different shapes, such as "{torn[0]}": torn, or logs of several runs'
        )
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    latencies, scripts, retries = columns["latency"], columns["script"], columns.get("retries")
    total = _figures(latencies)
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
        "sampling_rate": (_SAMPLED.read(options(argv).get("sampling-rate", "")) or {}).get("rate"),
        "scripts": [
            {"script": number, "transactions": figures["n"], "latency_ms": figures}
            for number in range(int(scripts.max(initial=0)) + 1)
            for figures in [_figures(latencies[scripts == number]) if scripts.any() else total]
            if figures["n"]
        ],
        "first_epoch_s": min(seconds, default=None),
        "last_epoch_s": max(seconds, default=None),
        "torn_lines": len(torn),
        "notes": [unclear] * (_UNCLEAR in log.columns) + [_SAMPLED_NOTE] * sampled,
    }


class _Part:
    """The figures of some lines, in little memory.

    ``columns``: successful transactions; retries of all but the skipped.
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


def _last(log: Log, line: str) -> _Part:
    """Parse a line without newline; its last figure may be torn."""
    sound = log.sound(line)
    columns = log.rows(f"{line}\n".encode() if sound else b"", log.columns)
    if columns is None:
        raise ParseError(f'{KIND}: figures that are none of a transaction log: "{line[:80]}"')
    part = _Part(columns, [line] if not sound and _FIGURES.match(line) else [])
    doubtful = log.columns[-1]
    if doubtful in part.columns:
        part.columns[doubtful] = part.columns[doubtful][:0]
    return part


def _check_numbers(log: Log) -> bool:
    """Check that transaction numbers rise; return whether the log is sampled.

    Above 8 MiB only the first lines of each 8 MiB are checked.

    Raises:
        ParseError: a number repeats.

    """
    names = ("client", "transaction")
    spans = log.spans if len(log.spans) == 1 else map(log.beginning, log.spans)
    parts = [log.columns_of(span, names)[0] for span in spans]
    # version 10 does not number skipped transactions
    clients, transactions = (
        np.concatenate([np.array([], np.int64), *(part[name][part["status"] != _SKIPPED] for part in parts)])
        for name in names
    )
    order = np.argsort(clients, kind="stable")
    client, transaction = clients[order], transactions[order]
    again = np.flatnonzero((np.diff(client) == 0) & (np.diff(transaction) <= 0)) + 1
    for place in again[:1]:
        raise ParseError(
            f"{KIND}: transaction {transaction[place]} of client {client[place]} twice: several runs"
        )
    gaps = np.diff(transaction)[np.diff(client) == 0]
    # a client's first transaction is number 0, or 1 up to 13
    first = transaction[np.flatnonzero(np.diff(client, prepend=np.int64(-1)))]
    steps = np.concatenate([gaps, first[first > 1]])
    return bool(len(steps) > 2 and np.median(steps) > 1)


def _figures(values_us: NDArray[Any]) -> dict[str, float | int | None]:
    n, values = len(values_us), values_us
    moments: dict[str, Callable[[], Any]] = {
        "mean": values.mean,
        "stddev": values.std,
        "min": values.min,
        "max": values.max,
    }
    known = {name: float(moment()) / 1000 if n else None for name, moment in moments.items()}
    return {"n": n, **known, **quantiles_ms(values_us.copy(), QUANTILES)}
