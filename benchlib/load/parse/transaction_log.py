"""pgbench's transaction log (``-l``): a line per transaction, a file per thread.

Source of the format: ``doLog`` of PostgreSQL's ``src/bin/pgbench/pgbench.c``, versions 9.6 to 19 in development.

A log may hold gigabytes. It is read in spans of whole lines, on all processors at once, by pyarrow's CSV
reader; line by line only where a span holds other lines too.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from benchlib.errors import ParseError
from benchlib.load.parse.text import Text, options, wanted

KIND = "transaction log"
WORDS = ("skipped", "failed", "serialization", "deadlock", "other")
"""What stands in place of a latency: skipped under a rate, the others are failures."""
STATUSES = (*WORDS, "ok")
"""How a transaction ended, by its number in the column ``status``."""
_SKIPPED, _OK = 0, len(WORDS)
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_MOMENTS: dict[str, Callable[[Any], Any]] = {"mean": np.mean, "stddev": np.std, "min": np.min, "max": np.max}

LINE = re.compile(rf"\d{{1,7}} \d+ (?:\d+|{'|'.join(WORDS)}) \d+ (?:\d{{9,10}}|0) \d{{1,6}}(?: \d+){{0,2}}")
_EXAMPLE = "0 1 1523 0 1795178920 475654"
_FIGURES = re.compile(r"\d+(?: |$)")
_COLUMNS = ("client", "transaction", "latency", "script", "epoch_s", "epoch_us")
_UNCLEAR = "lag_or_retries"
_TYPES = {
    **dict.fromkeys((*_COLUMNS, "retries"), pa.uint32()),
    **dict.fromkeys(("latency", "lag", _UNCLEAR), pa.uint64()),
    "script": pa.uint8(),
}
_FORMAT = pa.csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, ignore_empty_lines=False)
_SPAN = 8 << 20  # bytes that one processor reads at a time
_BEGINNING = 1 << 16  # bytes that tell the columns
_LONGEST = 4096  # bytes of a line
_WORKERS = min(pa.cpu_count(), 8)  # numpy and pyarrow let other threads run; more of them cost memory

Columns = dict[str, NDArray[Any]]
T = TypeVar("T")
R = TypeVar("R")


def ahead(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Like ``map``, in threads that are at most a few results ahead of the caller."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        for start in range(0, len(items), 2 * _WORKERS):
            yield from pool.map(work, items[start : start + 2 * _WORKERS])


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 in as little memory as they need."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def quantiles_ms(values_us: NDArray[Any]) -> dict[str, float | None]:
    """Quantiles in ms of microseconds by their names, interpolated linearly; None without a value."""
    if not len(values_us):
        return dict.fromkeys(_QUANTILES)
    quantiles = np.quantile(values_us, [*_QUANTILES.values()]) / 1000
    return dict(zip(_QUANTILES, quantiles.tolist(), strict=True))


class Span(NamedTuple):
    """Whole lines of a file, from byte ``start`` up to ``end``."""

    name: str
    start: int
    end: int


class Log:
    """The transaction log of one pgbench, whose command line was ``argv``.

    ``files`` are the logs of its threads: a name, and what opens each. What follows a file's last newline is
    in none of the ``spans`` but among the ``tails``. ``columns`` are empty for an empty log.

    Raises:
        ParseError: columns that the command line does not ask for; no line of a log.

    """

    def __init__(self, files: Mapping[str, Callable[[], BinaryIO]], argv: Sequence[str] | None) -> None:
        self._files = files
        self.spans: list[Span] = []
        self.tails: list[str] = []
        for name in files:
            self._divide(name)
        beginning = self.read(self.spans[0])[:_BEGINNING] if self.spans else b""
        self.text = Text(beginning.decode(errors="replace"))
        counts = Counter(line.count(" ") + 1 for line in self.text.lines if LINE.fullmatch(line))
        if self.spans and not counts:
            raise wanted(KIND, _EXAMPLE, self.text)
        columns = max(counts, key=lambda n: (counts[n], n), default=0)
        self.columns = log_columns(columns, argv) if columns else ()

    def _divide(self, name: str) -> None:
        with self._files[name]() as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - _LONGEST))
            tail = file.read().rpartition(b"\n")[2]
            if tail:
                self.tails.append(tail.decode(errors="replace").rstrip("\r"))
            edges, whole = [0], size - len(tail)
            while edges[-1] < whole:
                file.seek(edges[-1] + _SPAN)
                file.readline(_LONGEST)
                edges.append(min(file.tell(), whole))
        self.spans += [Span(name, start, end) for start, end in pairwise(edges)]

    def read(self, span: Span) -> bytes:
        """The lines of a span."""
        with self._files[span.name]() as file:
            file.seek(span.start)
            return file.read(span.end - span.start)

    def columns_of(self, lines: bytes, names: Sequence[str]) -> tuple[Columns, list[str]]:
        """Columns as :meth:`rows` gives them, and the torn lines, which are left out.

        Lines that hold no figures are left out too.

        Raises:
            ParseError: figures that are none of a log.

        """
        try:
            return self.rows(lines, names), []
        except ParseError:
            texts = Text(lines.decode(errors="replace")).lines
            whole = "".join(f"{line}\n" for line in texts if self.sound(line))
            torn = [line for line in texts if _FIGURES.match(line) and not self.sound(line)]
            return self.rows(whole.encode(), names), torn

    def rows(self, lines: bytes, names: Sequence[str], where: str = KIND) -> Columns:
        """Columns of some lines by ``names``, with ``latency``, 0 where a word stands in its place, and ``status``, a place in ``STATUSES``.

        Raises:
            ParseError: one is no line of this log; it says ``where``, and what is wrong.

        """
        wanted = list(dict.fromkeys(["latency", *names]))
        if not lines:
            return {name: np.array([], np.int64) for name in (*wanted, "status")}
        read = pa.csv.ReadOptions(column_names=self.columns, use_threads=False, block_size=len(lines) + 1)
        convert = pa.csv.ConvertOptions(include_columns=wanted, column_types=_TYPES, null_values=WORDS)
        try:
            table = pa.csv.read_csv(pa.BufferReader(lines), read, _FORMAT, convert)
        except pa.ArrowInvalid as reason:
            raise ParseError(f"{where}: no line such as {_EXAMPLE}: {reason}") from reason
        latency = table["latency"]
        words = re.findall(rb"[a-z]+", lines) if latency.null_count else []
        if not sum(column.null_count for column in table.columns) == latency.null_count == len(words):
            raise ParseError(f"{where}: one of {', '.join(WORDS)} where no latency stands")
        status = np.full(len(table), _OK, np.int8)
        if words:
            status[latency.is_null()] = [WORDS.index(word.decode()) for word in words]
            table = table.set_column(0, "latency", latency.fill_null(0))
        # to_numpy would import pandas
        return {"status": status, **{name: np.from_dlpack(table[name].chunk(0)) for name in wanted}}

    def sound(self, line: str) -> bool:
        """Whether a line is one of this log's."""
        return line.count(" ") + 1 == len(self.columns) and LINE.fullmatch(line) is not None


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
    return parse_log(Log({"the text": partial(io.BytesIO, text.body.encode())}, argv))


def parse_log(log: Log) -> dict[str, Any]:
    """Read a log in which a killed run left torn lines, also between those of other files.

    Raises:
        ParseError: no line of a log, or lines of another shape.

    """
    if not log.columns:
        raise wanted(KIND, _EXAMPLE, log.text)
    names = [name for name in ("script", "lag", "retries") if name in log.columns]
    parts = list(ahead(lambda span: _Part(*log.columns_of(log.read(span), names)), log.spans))
    # the last figure of a line without newline may have lost digits, which matters in a column of lag or retries
    whole = len(log.columns) == len(_COLUMNS)
    ends = (tail if whole else tail.rpartition(" ")[0] for tail in log.tails)
    parts += [_Part(*log.columns_of(f"{end}\n".encode(), names)) for end in ends]
    statuses = dict(zip(STATUSES, np.sum([part.statuses for part in parts], axis=0).tolist(), strict=True))
    torn, rows = [line for part in parts for line in part.torn], sum(statuses.values())
    if len(torn) > max(2, rows // 100):
        raise ParseError(
            f'{KIND}: lines of different shapes, such as "{torn[0]}": torn, or logs of several runs'
        )
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    latencies, scripts, retries = columns["latency"], columns["script"], columns.get("retries")
    total, numbers = _figures(latencies), range(1 + int(scripts.max(initial=0)))
    by_script = {n: _figures(latencies[scripts == n]) for n in numbers} if scripts.any() else {0: total}
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
        "scripts": [
            {"script": n, "transactions": own["n"], "latency_ms": own}
            for n, own in by_script.items()
            if own["n"]
        ],
        "torn_lines": len(torn),
        "notes": [unclear] if _UNCLEAR in log.columns else [],
    }


class _Part:
    """What the figures need of some lines, with as little memory as they can do with.

    ``columns`` have the latencies, scripts and lags of transactions that ended well, and the retries of all but the skipped.
    """

    def __init__(self, columns: Columns, torn: Sequence[str]) -> None:
        self.torn = torn
        status = columns["status"]
        self.statuses = np.bincount(status, minlength=len(STATUSES))
        done, counted = status == _OK, status != _SKIPPED
        self.columns = {
            name: narrow(columns[name][counted if name == "retries" else done])
            for name in ("latency", "script", "lag", "retries")
            if name in columns
        }


def _figures(values_us: NDArray[Any]) -> dict[str, float | int | None]:
    """Sum up durations given in microseconds, in milliseconds."""
    n = len(values_us)
    moments = {name: float(moment(values_us)) / 1000 if n else None for name, moment in _MOMENTS.items()}
    return {"n": n, **moments, **quantiles_ms(values_us)}
