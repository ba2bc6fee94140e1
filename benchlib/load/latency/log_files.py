"""The log files of one pgbench, read in spans of whole lines by pyarrow's CSV reader."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from benchlib.errors import InputError, ParseError
from benchlib.load.parse.pgbench_logs import AGGREGATE_LINE, TRANSACTION_LINE, WORDS, log_columns
from benchlib.load.parse.text import options, real

_STATUS = pa.array([*WORDS, "ok"])
_BY_LENGTH = np.zeros(1 + max(map(len, WORDS)), np.int8)
_BY_LENGTH[[len(word) for word in WORDS]] = range(len(WORDS))
_SPAN = 8 << 20  # bytes that one processor reads at a time
_TORN = re.compile(rb"[0-9a-z ]{0,200}\r?")
_FORMAT = pa.csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, ignore_empty_lines=False)


@dataclass(frozen=True)
class Span:
    """Whole lines of a file, from byte ``start`` up to ``end``."""

    path: Path
    start: int
    end: int


class LogFiles:
    """The log files of all threads of one pgbench, whose command line was ``argv``.

    A last line without an end is torn: it is in none of the ``spans``, but counted in ``torn``.

    Raises:
        InputError: there is no log.
        ParseError: a log of intervals; columns that the command line does not ask for; a file whose end
            was never a line's beginning.

    """

    def __init__(self, paths: Sequence[Path], argv: Sequence[str]) -> None:
        if not paths:
            raise InputError("no transaction log: pgbench writes one with --log")
        command, first = options(argv), ""
        self.sampling_rate = real(command.get("sampling-rate"))
        self.spans: list[Span] = []
        self.torn = 0
        for path in paths:
            spans, torn = _spans(path)
            self.spans += spans
            self.torn += torn
        if self.spans:
            with self.spans[0].path.open("rb") as file:
                first = file.readline(200).decode(errors="replace").strip()
        if "aggregate-interval" in command or AGGREGATE_LINE.fullmatch(first):
            raise ParseError("a log of intervals (--aggregate-interval) has no single latencies: run without")
        self.columns = log_columns(first.count(" ") + 1, argv) if TRANSACTION_LINE.fullmatch(first) else ()
        if self.spans and not self.columns:
            raise _fault(self.spans[0], 0)
        if "lag_or_retries" in self.columns:
            raise ParseError("the log's seventh column is lag or retries: only the command line can tell")

    def table(self, span: Span, wanted: Sequence[str]) -> pa.Table:
        """The lines of a span: those ``wanted`` of the columns as numbers, and ``status``.

        ``latency`` is null where a word stands in its place; the status is that word, or "ok".

        Raises:
            ParseError: a line is none; it is named.

        """
        with pa.OSFile(str(span.path)) as file:
            file.seek(span.start)
            lines = file.read_buffer(span.end - span.start)
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(lines),
                read_options=pa.csv.ReadOptions(column_names=self.columns, use_threads=False),
                parse_options=_FORMAT,
                convert_options=pa.csv.ConvertOptions(
                    include_columns=wanted,
                    column_types=dict.fromkeys(self.columns, pa.int64()),
                    null_values=WORDS,
                ),
            )
        except pa.ArrowInvalid as reason:
            raise _fault(span, len(self.columns)) from reason
        status = np.full(len(table), len(WORDS), np.int8)
        words = _words(lines) if table["latency"].null_count else status[:0]
        nulls = {name: table[name].null_count for name in wanted if table[name].null_count}
        negative = any((pc.min(column).as_py() or 0) < 0 for column in table.columns)
        if negative or nulls != ({"latency": len(words)} if len(words) else {}):
            raise _fault(span, len(self.columns))
        if len(words):
            status[table["latency"].is_null().to_numpy()] = words
        return table.append_column("status", pa.DictionaryArray.from_arrays(status, _STATUS))


def _words(lines: pa.Buffer) -> NDArray[np.int8]:
    """Which of ``WORDS`` stand in some lines, in order: no two are of one length."""
    letters = np.flatnonzero(np.frombuffer(lines, np.uint8) >= ord("a"))
    beginnings = np.flatnonzero(np.diff(letters, prepend=-2) > 1)
    return _BY_LENGTH[np.minimum(np.diff(beginnings, append=len(letters)), len(_BY_LENGTH) - 1)]


def _spans(path: Path) -> tuple[list[Span], int]:
    """The whole lines of a file, and whether another one is torn."""
    spans: list[Span] = []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 4096))
        torn = file.read().rpartition(b"\n")[2]
        if not _TORN.fullmatch(torn):
            raise ParseError(f"{path.name} does not end as a transaction log does: {torn[:80]!r}")
        end, whole = 0, size - len(torn)
        while end < whole:
            start = end
            file.seek(min(start + _SPAN, whole - 1))
            file.readline()
            end = file.tell()
            spans.append(Span(path, start, end))
    return spans, int(bool(torn))


def _fault(span: Span, columns: int) -> ParseError:
    """The error that names the first line of a span that is none."""
    position = 0
    with span.path.open("rb") as file:
        for number, line in enumerate(file, 1):
            position += len(line)
            text = line.decode(errors="replace").rstrip("\r\n")
            sound = TRANSACTION_LINE.fullmatch(text) and text.count(" ") + 1 == columns
            if position > span.start and not sound:
                return ParseError(
                    f'{span.path.name}, line {number}: "{text[:80]}" is no line of this log'
                    f" of transactions, such as 0 1 1523 0 1795178920 475654{' 0' * (columns - 6)}"
                )
    return ParseError(f"{span.path.name}: figures of a transaction log do not fit into 64 bits")
