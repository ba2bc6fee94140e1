"""What tools print, as data: ``parse_text`` reads the output of pgbench and its neighbours.

Three rules hold for every kind. What is absent is ``None``, never 0 (and ``nan`` and ``inf``
are absent; lists are empty). What cannot be trusted raises ``ParseError``, which names the line
that was wanted. ``complete`` is false when the text shows that the run failed on the way,
whatever its summary claims.

``pgbench_summary``
    Counts: ``transactions`` (processed; up to 10 the skipped are among them, see ``notes``),
    ``transactions_planned`` and ``transactions_per_client`` (under ``-t``), ``failed_transactions``,
    ``serialization_failures``, ``deadlock_failures``, ``other_failures``, ``retried_transactions``,
    ``retries``, ``skipped_transactions``, ``late_transactions``; the printed shares in percent: ``failed_percent``,
    ``serialization_failures_percent``, ``deadlock_failures_percent``, ``other_failures_percent``,
    ``retried_percent``, ``skipped_percent``, ``late_percent``.
    Times: ``latency_average_ms``, ``latency_includes_failures``, ``latency_stddev_ms``,
    ``latency_limit_ms``, ``rate_lag_average_ms``, ``rate_lag_max_ms``, ``initial_connection_ms``,
    ``average_connection_ms``, ``duration_s`` (asked for).
    Rates per second: ``tps`` (the comparable one), ``tps_definition`` (which that is, as printed: one of
    ``pgbench_summary.TPS_DEFINITIONS``), ``tps_including_connections`` and ``tps_excluding_connections``
    (up to 13).
    Conditions: ``client_version``, ``server_version``, ``transaction_type``, ``scale``,
    ``partition_method``, ``partitions``, ``query_mode``, ``clients``, ``threads``, ``max_tries``.
    ``scripts``: rows of ``script`` (from 1), ``name``, ``weight``, ``target_percent``, ``transactions``,
    ``transactions_attempted``, ``percent``, ``tps`` and the outcomes as above.
    ``statements``: rows of ``script``, ``latency_ms``, ``failures``, ``retries``, ``statement`` (``None``
    where its text is torn). ``progress``: rows of ``elapsed_s`` (``epoch_s`` under ``--progress-timestamp``),
    ``tps``, ``latency_ms``, ``stddev_ms``, ``failed``, ``lag_ms``, ``skipped``, ``retried``, ``retries``, all
    of the interval. ``errors``: the lines that tell of a failure. ``notes``.
``pgbench_init``
    ``rows`` of pgbench_accounts (``None`` when the server generates them), ``scale``, ``load_elapsed_s``
    (sending the rows), ``phases_s`` (seconds by phase, named as printed with ``_`` between words, and
    ``total``, which is ``None`` up to 12: no times are printed), ``errors``.
``transaction_log``
    ``transactions`` (with a latency), ``failed_transactions``, ``skipped_transactions``,
    ``serialization_failures`` and ``deadlock_failures`` (``None`` unless told apart), ``latency_ms`` and
    ``lag_ms`` (``n``, ``mean``, ``stddev``, ``min``, ``p50``, ``p90``, ``p95``, ``p99``, ``p999``, ``max``),
    ``retries``, ``retried_transactions``, ``sampling_rate``, ``scripts`` (rows of ``script`` from 0 as
    logged, ``transactions``, ``latency_ms``), ``first_epoch_s``, ``last_epoch_s`` (whole seconds), ``torn_lines``, ``notes``.
    A seventh column is lag or retries, and only ``argv`` tells which. In a log of more than 8 MiB it is checked only in
    samples that each client's transaction numbers rise, as those of one run do.
``pg_test_fsync``
    ``seconds_per_test``, ``methods`` (rows of ``section``, ``method``, ``ops_per_s``, ``usecs_per_op``; the
    figures are ``None`` where n/a).
``sysbench``
    ``version``, ``threads``, ``transactions``, ``tps``, ``queries`` (0.5: read/write requests),
    ``queries_per_s``, ``errors`` (those ignored; 0.4: deadlocks), ``errors_per_s``, ``reconnects``,
    ``reconnects_per_s``, ``duration_s``, ``latency_min_ms``, ``latency_average_ms``, ``latency_max_ms``,
    ``latency_p95_ms``, ``progress`` (rows of ``elapsed_s``, ``threads``, ``tps``, ``queries_per_s``,
    ``reads_per_s``, ``writes_per_s``, ``others_per_s``, ``latency_p95_ms``, ``errors_per_s``,
    ``reconnects_per_s``), ``error_lines``.
"""

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchlib.errors import ParseError
from benchlib.load.parse import pg_test_fsync, pgbench_init, pgbench_summary, sysbench, transaction_log
from benchlib.load.parse.text import Text
from benchlib.plan.words import decoded

__all__ = ["KINDS", "parse_file", "parse_runs", "parse_text"]

_ENOUGH = 1 << 20  # bytes at a large file's beginning and end that tell its kind

_PARSERS: dict[str, Callable[[Text, list[str] | None], dict[str, Any]]] = {
    "pgbench_summary": pgbench_summary.parse,
    "pgbench_init": pgbench_init.parse,
    "transaction_log": transaction_log.parse,
    "pg_test_fsync": pg_test_fsync.parse,
    "sysbench": sysbench.parse,
}
KINDS = tuple(_PARSERS)
"""Every kind of text that ``parse_text`` knows."""

# In this order: a run counts above the load that went before it in the same text, even one that was cut off,
# and what only a failed run leaves comes last.
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
    """Read what a tool printed, as data.

    ``text`` may be stdout and stderr together, copied from a terminal, with prompts, colours, quoting
    and notices around it. ``kind`` is one of ``KINDS`` and is recognised when absent; of a load and a run in
    one text, the run is read. ``argv`` is the command line, which decides what the text leaves open and must
    not contradict it. The result always holds ``kind`` and ``complete``; the module's documentation
    lists the other keys with their units.

    Raises ParseError for a text that cannot be trusted, naming the line that was wanted.
    """
    clean = Text(text)
    kind = kind or _recognise(clean)
    if kind not in _PARSERS:
        raise ParseError(f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    return {"kind": kind, **_PARSERS[kind](clean, argv)}


_ONCE_A_RUN = {
    "pgbench_summary": (
        re.compile(r"tps = [^ (]+ ?\((?:excluding|without initial|including reconnection)"),
        re.compile(
            r"pgbench \(\d|starting vacuum|progress: |transaction type: |\S*[#$%] .*pgbench |pgbench: "
        ),
    ),
    "sysbench": (
        re.compile(r"transactions: +\d"),
        re.compile(
            r"sysbench \d|Running the test|Number of threads: |Threads started|\[ *\d+s ?\] "
            r"|(?:OLTP test|SQL) statistics:|\S*[#$%] .*sysbench "
        ),
    ),
}
"""A line that each run has once, and what the next run begins with."""


def parse_runs(text: str, *, kind: str | None = None, argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Read each of several runs of pgbench, or sysbench, in one text, in their order, or the one thing that is there.

    What is between two runs belongs to none.

    Raises:
        ParseError: one of them cannot be trusted; the message says which.

    """
    lines = Text(text).lines
    ended = {
        each: [index for index, line in enumerate(lines) if once.match(line)]
        for each, (once, _) in _ONCE_A_RUN.items()
    }
    several = next((each for each in ended if len(ended[each]) > 1 and kind in (None, each)), None)
    if several is None:
        return [parse_text(text, kind=kind, argv=argv)]
    # rows of statements and scripts follow the rate: a run goes on until the next one begins
    own = [range(end + 1, following) for end, following in pairwise(ended[several])]
    first = _ONCE_A_RUN[several][1]
    cuts = [next((at for at in of if first.match(lines[at])), of.stop) for of in own]
    runs = []
    for number, (begin, end) in enumerate(pairwise([0, *cuts, len(lines)]), 1):
        try:
            runs.append(parse_text("\n".join([*lines[begin:end], ""]), kind=several, argv=argv))
        except ParseError as reason:
            raise ParseError(f"run {number} of {len(cuts) + 1}: {reason}") from None
    return runs


def parse_file(path: Path, *, kind: str | None = None) -> dict[str, Any]:
    """Read a file that a tool printed or logged; like :func:`parse_text`, in little memory for a large transaction log.

    Of a large file the kind is recognised by its beginning and its end. That no client counts a transaction twice, as in
    the logs of two runs, is checked only in samples of a log of more than 8 MiB.

    Raises:
        ParseError: the text cannot be trusted.
        OSError: the file cannot be read.

    """
    size = path.stat().st_size if path.is_file() else 0
    large = size > 2 * _ENOUGH
    if large and not kind:
        with path.open("rb") as file:
            beginning = file.read(_ENOUGH)
            file.seek(size - _ENOUGH)
            ends = beginning + b"\n" + file.read()
        kind = _recognise(Text(ends.decode(errors="replace")))
    if large and kind == "transaction_log":
        log = transaction_log.Log({path.name: partial(pa.OSFile, str(path))}, None)
        return {"kind": kind, **transaction_log.parse_log(log, None)}
    return parse_text(decoded(path.read_bytes()), kind=kind)


def _recognise(text: Text) -> str:
    for kind, mark in _MARKS.items():
        if re.search(mark, text.body, re.MULTILINE):
            return kind or "pgbench_summary"
    if text.lines and all(map(_AGGREGATED.fullmatch, text.lines[:100])):
        raise ParseError(
            "it is an aggregated log of pgbench (--aggregate-interval), a line an interval, which is not read: "
            "the summary has its totals"
        )
    if not text.body.strip():
        raise ParseError("there is nothing in it: it is empty")
    raise ParseError(
        'no line of a known kind, such as "tps = …", "done in … s (…)", "… ops/sec … usecs/op" or '
        f'"transactions: N (… per sec.)"; the kinds are {", ".join(KINDS)}'
    )
