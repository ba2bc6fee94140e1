"""pgbench's transaction log (``-l``).

Source: ``doLog`` in pgbench.c, 9.6 to 19devel.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from benchlib.errors import ParseError
from benchlib.load.parse.text import Line, Text, missing_line, options

WORDS = ("skipped", "failed", "serialization", "deadlock", "other")
"""Words in place of a latency: skipped under a rate; the others are failures."""
STATUSES = (*WORDS, "ok")
"""How a transaction ended, by ``status`` number."""
_SKIPPED, _OK = 0, len(WORDS)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}

_COLUMNS = ("client", "transaction", "latency", "script", "epoch_s", "epoch_us")
_DIGITS = {"client": 7, "transaction": 12, "script": 3, "epoch_s": 10, "epoch_us": 6}
_MOST_DIGITS = 18  # of 64 bits
LINE = re.compile(
    rf"\d{{1,7}} \d{{1,12}} (?:\d{{1,18}}|{'|'.join(WORDS)}) \d{{1,3}} (?:\d{{9,10}}|0) \d{{1,6}}(?: \d{{1,18}}){{0,2}}"
)
_SAMPLED = Line("{rate:f}")
_SAMPLED_NOTE = "the log is sampled (--sampling-rate): clients' transaction numbers jump, so it counts a part of the transactions only"
_EXAMPLE = "0 1 1523 0 1795178920 475654"
_FIGURES = re.compile(r"\d+(?: |$)")
_UNCLEAR = "lag_or_retries"
_FORMAT: dict[str, Any] = {
    "delimiter": " ",
    "quote_char": False,
    "double_quote": False,
    "ignore_empty_lines": False,
}
_BLOCK = 4 << 20  # bytes that are parsed at a time
_BEGINNING = 1 << 16  # bytes that decide the columns
_LONGEST = 4096  # bytes of a line
_TORN = re.compile(r"[0-9a-z ]{0,200}")

Columns = dict[str, NDArray[Any]]


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Convert non-negative numbers to the smallest type."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def quantiles_ms(values_us: NDArray[Any], shares: Mapping[str, float]) -> dict[str, float | None]:
    """Return quantiles of microseconds, in ms; reorders the values."""
    if not len(values_us):
        return dict.fromkeys(shares)
    quantiles = np.quantile(values_us, [*shares.values()], overwrite_input=True) / 1000
    return dict(zip(shares, quantiles.tolist(), strict=True))


def file_blocks(
    name: str, file: pa.NativeFile, names: Sequence[str], torn: list[str] | None = None
) -> Iterator[Columns]:
    """Parse a file, block by block.

    ``status`` is an index of ``STATUSES``; ``latency`` is 0 for a word. ``torn`` collects torn lines; by
    default only the last line may be torn.

    Raises:
        ParseError: a line is not of this log.
    """
    size = file.size()
    file.seek(max(0, size - _LONGEST))
    tail = file.read().rpartition(b"\n")[2]
    rest = tail.decode(errors="replace").rstrip("\r")
    if torn is not None:
        torn += [rest] if rest else []
    elif not _TORN.fullmatch(rest):
        raise ParseError(f"{name} does not end as a transaction log does: {rest[:80]!r}")
    try:
        if size > len(tail):
            yield from _blocks(file.get_stream(0, size - len(tail)), names, torn)
    except ValueError:
        file.seek(0)
        raise _fault(name, file, names) from None


def _blocks(lines: pa.NativeFile, names: Sequence[str], torn: list[str] | None = None) -> Iterator[Columns]:
    """Parse whole lines; ValueError for a line that is not of this log."""

    def skip(row: Any) -> str:
        if torn is None:
            return "error"
        if _FIGURES.match(row.text or ""):
            torn.append(row.text)
        return "skip"

    types = {**dict.fromkeys(names, pa.int64()), "latency": pa.string()}
    with pa.csv.open_csv(
        lines,
        pa.csv.ReadOptions(column_names=names, block_size=_BLOCK),
        pa.csv.ParseOptions(**_FORMAT, invalid_row_handler=skip),
        pa.csv.ConvertOptions(column_types=types, null_values=[]),
    ) as reader:
        for batch in reader:
            table = dict(zip(names, batch.columns, strict=True))
            words = pc.index_in(table["latency"], pa.array(WORDS))
            table["latency"] = pc.if_else(words.is_null(), table["latency"], "0").cast(pa.int64())
            # to_numpy would import pandas
            columns = {name: np.from_dlpack(column) for name, column in table.items()}
            for name, values in columns.items():
                # without a sign, a negative number is above all others
                if values.view(np.uint64).max(initial=0) >= 10 ** _DIGITS.get(name, _MOST_DIGITS):
                    raise ValueError(name)
            yield {**columns, "status": np.from_dlpack(words.fill_null(_OK)).astype(np.int8)}


def _fault(name: str, file: pa.NativeFile, columns: Sequence[str]) -> ParseError:
    """Return the error for the first wrong line."""
    reader = io.BufferedReader(file)
    for number, raw in enumerate(iter(lambda: reader.readline(_LONGEST), b""), 1):
        line = raw.decode(errors="replace").rstrip("\r\n")
        if not _is_of_log(line, columns):
            return ParseError(
                f'{name}, line {number}: "{line[:80]}" is no line of this log of transactions,'
                f" such as {_EXAMPLE}{' 0' * (len(columns) - len(_COLUMNS))}"
            )
    return ParseError(f"{name} is no transaction log")


def _is_of_log(line: str, columns: Sequence[str]) -> bool:
    return line.count(" ") + 1 == len(columns) and LINE.fullmatch(line) is not None


def log_columns(argv: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that a command line requests."""
    command = options(argv)
    retried = command.get("max-tries", "1") != "1"
    return (*_COLUMNS, *["lag"] * ("rate" in command), *["retries"] * retried)


def _columns_of(lines: Iterable[str], argv: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns; without command line, maybe ``lag_or_retries``."""
    counts = Counter(line.count(" ") + 1 for line in lines if LINE.fullmatch(line))
    number = max(counts, key=lambda n: (counts[n], n), default=0)
    if not options(argv).keys() - {"sampling-rate"} or not number:
        return () if not number else (*_COLUMNS, *{7: [_UNCLEAR], 8: ["lag", "retries"]}.get(number, []))
    names = log_columns(argv)
    if len(names) != number:
        raise ParseError(f"{number} columns, but the command line asks for {len(names)}")
    return names


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Parse one run's logs, perhaps with torn lines."""
    names = _columns_of(text.lines, argv)
    # of the last line without newline, the last figure may be torn; only a lag or retries matter
    cut = {len(text.lines) - 1} if not text.terminated and len(names) > len(_COLUMNS) else set()
    known, torn = list[str](), list[str]()
    for index, line in enumerate(text.lines):
        if _is_of_log(line, names) and index not in cut:
            known.append(f"{line}\n")
        elif _FIGURES.match(line):
            torn.append(line)
    if not known:
        raise missing_line(_EXAMPLE, text)
    return _report(_blocks(pa.BufferReader("".join(known).encode()), names), torn, argv)


def parse_large(name: str, file: pa.NativeFile) -> dict[str, Any]:
    """Parse a file in blocks."""
    beginning = Text(file.read_at(_BEGINNING, 0).decode(errors="replace"))
    names = _columns_of(beginning.lines, None)
    if not names:
        raise missing_line(_EXAMPLE, beginning)
    torn = list[str]()
    return _report(file_blocks(name, file, names, torn), torn, None)


def _report(blocks: Iterable[Columns], torn: Sequence[str], argv: Sequence[str] | None) -> dict[str, Any]:
    parts = [
        {name: narrow(values) for name, values in block.items() if name != "epoch_us"} for block in blocks
    ]
    log = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if len(torn) > max(2, len(log["status"]) // 100):
        raise ParseError(f'lines of different shapes, such as "{torn[0]}": torn, or logs of several runs')
    status = log.pop("status")
    counts = dict(zip(STATUSES, np.bincount(status, minlength=len(STATUSES)).tolist(), strict=True))
    sampled = _check_numbers(log.pop("client"), log.pop("transaction"), status != _SKIPPED)
    ok = status == _OK
    latencies, scripts = log["latency"][ok], log["script"][ok]
    retries = log["retries"][status != _SKIPPED] if "retries" in log else None
    detailed = counts["serialization"] or counts["deadlock"]
    unclear = "the seventh column is lag or retries: only the command line can tell, so neither is given"
    figures = {int(script): _figures(latencies[scripts == script]) for script in np.unique(scripts)}
    return {
        "complete": not torn,
        "transactions": counts["ok"],
        "failed_transactions": len(status) - counts["ok"] - counts["skipped"],
        "skipped_transactions": counts["skipped"],
        "serialization_failures": counts["serialization"] if detailed else None,
        "deadlock_failures": counts["deadlock"] if detailed else None,
        "latency_ms": _figures(latencies),
        "lag_ms": _figures(log["lag"][ok]) if "lag" in log else None,
        "retries": None if retries is None else int(retries.sum()),
        "retried_transactions": None if retries is None else int(np.count_nonzero(retries)),
        "sampling_rate": (_SAMPLED.read(options(argv).get("sampling-rate", "")) or {}).get("rate"),
        "scripts": [
            {"script": script, "transactions": figure["n"], "latency_ms": figure}
            for script, figure in figures.items()
        ],
        "first_epoch_s": int(log["epoch_s"].min()),
        "last_epoch_s": int(log["epoch_s"].max()),
        "torn_lines": len(torn),
        "notes": [unclear] * (_UNCLEAR in log) + [_SAMPLED_NOTE] * sampled,
    }


def _check_numbers(clients: NDArray[Any], transactions: NDArray[Any], numbered: NDArray[Any]) -> bool:
    """Check that clients' transaction numbers rise; return whether the log is sampled."""
    order = np.argsort(clients, kind="stable")
    client, transaction, numbered = clients[order], transactions[order], numbered[order]
    of, number = client[numbered], transaction[numbered]
    for index in np.flatnonzero((of[1:] == of[:-1]) & (number[1:] <= number[:-1]))[:1] + 1:
        raise ParseError(f"transaction {number[index]} of client {of[index]} twice: several runs")
    # from 13 on skipped transactions have numbers too, before it that of the next
    same = client[1:] == client[:-1]
    before, after = transaction[:-1], transaction[1:]
    # a client's first transaction is number 0, or 1 up to 13
    first = np.concatenate([transaction[:1], after[~same]])
    steps = np.concatenate([after[same] - before[same], first[first > 1]])
    steps = steps[steps > 0]
    return bool(len(steps) > 2 and np.median(steps) > 1)


def _figures(values_us: NDArray[Any]) -> dict[str, float | int | None]:
    n = len(values_us)
    known = dict.fromkeys(("mean", "stddev", "min", "max"))
    if n:
        moments = values_us.mean(), values_us.std(), values_us.min(), values_us.max()
        known = dict(zip(known, (np.array(moments, float) / 1000).tolist(), strict=True))
    return {"n": n, **known, **quantiles_ms(values_us.copy(), QUANTILES)}
