"""Parses the output of pgbench and related tools.

Missing values are ``None``, never 0 (also ``nan`` and ``inf``). ``complete`` is false if the text
shows a failure. Keys that need an explanation:

``pgbench_summary``
    ``transactions``: up to 10 with skipped ones.
    ``transactions_planned``, ``transactions_per_client``: under ``-t``. ``duration_s``: requested.
    ``tps``: comparable; ``tps_definition``: how. ``scripts``: from 1.
    ``progress``: ``epoch_s`` under ``--progress-timestamp``.
``pgbench_init``
    ``rows``: of pgbench_accounts, if the client sent them; ``load_elapsed_s``: sending.
``transaction_log``
    ``transactions``: with latency. ``scripts``: from 0.
    Only ``argv`` shows whether a seventh column is lag or retries.
``sysbench``
    ``queries``: 0.5 counts read/write requests. ``errors``: ignored ones, of 0.4 deadlocks.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchlib.errors import ParseError, UnknownOutputError
from benchlib.load.parse import pg_test_fsync, pgbench_init, pgbench_summary, sysbench, transaction_log
from benchlib.load.parse.text import TYPED, Text, faults
from benchlib.plan.words import decoded

__all__ = ["KINDS", "kind_of_file", "parse_file", "parse_runs", "parse_text"]

_SAMPLE = 1 << 20  # bytes at each end of a large file that decide its kind

_PARSERS: dict[str, tuple[str, Callable[[Text, list[str] | None], dict[str, Any]]]] = {
    "pgbench_summary": ("pgbench summary", pgbench_summary.parse),
    "pgbench_init": ("pgbench init", pgbench_init.parse),
    "transaction_log": ("transaction log", transaction_log.parse),
    "pg_test_fsync": ("pg_test_fsync", pg_test_fsync.parse),
    "sysbench": ("sysbench", sysbench.parse),
}
KINDS = tuple(_PARSERS)
"""All kinds that ``parse_text`` knows."""

# In this order: a run, even a torn one, has priority over the load before it; signs of failure come last.
_MARKS = {
    "pgbench_summary": r"^(?:transaction type: |number of transactions actually processed: |tps = "
    r"|progress: \d|starting vacuum|pgbench \(\d)",
    "sysbench": r"^(?:sysbench \d|(?:OLTP test|SQL|General) statistics:|\[ *\d+s ?\] (?:thds|threads): )",
    "pg_test_fsync": r"^(?:Compare (?:file sync methods|open_sync) |\d+ seconds? per test$|\S+ +[\d.,]+ ops/sec"
    rf"|{pg_test_fsync.LIKE_A_ROW})",
    "pgbench_init": r"^(?:creating tables\.|generating data|\d+ of \d+ tuples |done in \d|total time: .*insert)",
    "transaction_log": rf"^{transaction_log.LINE.pattern}$",
    "": r"^(?:pgbench[ :]|client \d+ |connection to (?:database|server))",
}


_AGGREGATED = re.compile(r"\d{9,10}(?: \d+){5,14}")


def parse_text(text: str, *, kind: str | None = None, argv: list[str] | None = None) -> dict[str, Any]:
    """Parse a tool's output, or a terminal copy of it.

    By default the ``kind`` is recognised. ``argv`` decides ambiguities.

    Raises:
        ParseError: not reliable, or in contradiction to ``argv``.
    """
    clean = Text(text)
    kind = kind or _recognise(clean)
    if kind not in _PARSERS:
        raise ParseError(f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    title, parse = _PARSERS[kind]
    try:
        return {"kind": kind, **parse(clean, argv)}
    except ParseError as reason:
        raise ParseError(f"{title}: {reason}") from None


_ONCE_A_RUN = {
    "pgbench_summary": (
        r"tps = [^ (]+ ?\((?:excluding|without initial|including reconnection)",
        rf"pgbench \(\d|starting vacuum|progress: |transaction type: |\S*[#$%] .*pgbench |.*{TYPED.pattern}",
    ),
    "sysbench": (
        r"transactions: +\d",
        r"sysbench \d|Running the test|Number of threads: |Threads started|\[ *\d+s ?\] "
        r"|(?:OLTP test|SQL) statistics:|\S*[#$%] .*sysbench ",
    ),
}
"""A line that each run has once, and the beginning of the next run."""
_ABOVE = "Run was aborted; the above"


def parse_runs(text: str, *, kind: str | None = None, argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Parse several runs in one text; errors name the run's number."""
    lines = Text(text).lines
    for tool, marks in _ONCE_A_RUN.items():
        ends = [index for index, line in enumerate(lines) if re.match(marks[0], line)]
        if len(ends) > 1 and kind in (None, tool):
            break
    else:
        return [parse_text(text, kind=kind, argv=argv)]
    # rows of statements and scripts follow the rate: a run goes on until the next one begins
    between = [range(end + 1, following) for end, following in pairwise(ends)]
    cuts = [0]
    for number, part in enumerate(between, 1):
        cuts.append(_beginning(lines, cuts[-1], part, marks[1], f"run {number} of {len(ends)}"))
    runs, whole = [], Text(text).terminated
    for number, (begin, end) in enumerate(pairwise([*cuts, len(lines)]), 1):
        ended = [""] if end < len(lines) or whole else []
        try:
            runs.append(parse_text("\n".join([*lines[begin:end], *ended]), kind=tool, argv=argv))
        except ParseError as reason:
            raise ParseError(f"run {number} of {len(ends)}: {reason}") from None
    return runs


def _beginning(lines: list[str], begin: int, part: range, mark: str, run: str) -> int:
    """Return where the next run begins, in ``part``; ``begin`` is where the run before it does.

    Raises:
        ParseError: a failure may belong to either.
    """
    cut = next((n for n in part if re.match(mark, lines[n])), part.stop)
    if lost := faults(lines[part.start : cut]):
        # a terminal shows the clients' errors before the summary, and this line after it
        known = bool(faults(lines[begin : part.start])) and all(_ABOVE in line for line in lost)
        if not known:
            raise ParseError(f'"{lost[0]}" may belong to {run} or to the next: parse each on its own')
    banners = [n for n in range(cut, part.stop) if lines[n].startswith("pgbench (")]
    if len(banners) > 1 and (lost := faults(lines[banners[0] : banners[-1]])):
        raise ParseError(f"a run after {run} has no summary; the text says: {lost[0]}")
    return cut


def kind_of_file(path: Path) -> str:
    """Return the kind of a file, of a large one by both ends."""
    with pa.OSFile(str(path)) as file:
        ends = file.read(_SAMPLE)
        if file.size() > 2 * _SAMPLE:
            ends += b"\n" + file.read_at(_SAMPLE, file.size() - _SAMPLE)
    return _recognise(Text(ends.decode(errors="replace")))


def parse_file(path: Path, *, kind: str | None = None) -> list[dict[str, Any]]:
    """Parse a file; a large transaction log in blocks."""
    if path.is_file() and path.stat().st_size > 2 * _SAMPLE:
        kind = kind or kind_of_file(path)
        if kind == "transaction_log":
            with pa.OSFile(str(path)) as file:
                return [{"kind": kind, **transaction_log.parse_large(path.name, file)}]
    return parse_runs(decoded(path.read_bytes()), kind=kind)


def _recognise(text: Text) -> str:
    for kind, mark in _MARKS.items():
        if re.search(mark, text.body, re.MULTILINE):
            return kind or "pgbench_summary"
    if text.lines and all(map(_AGGREGATED.fullmatch, text.lines[:100])):
        raise UnknownOutputError(
            "this is an aggregated log of pgbench (--aggregate-interval), which is not supported: "
            "use the summary"
        )
    if not text.body.strip():
        raise UnknownOutputError("there is nothing in it: it is empty")
    raise UnknownOutputError(
        'no line of a known kind, such as "tps = …", "done in … s (…)", "… ops/sec … usecs/op" or '
        f'"transactions: N (… per sec.)"; the kinds are {", ".join(KINDS)}'
    )
