"""The latencies of a trial's transactions: pgbench's log kept as compressed Parquet, and the figures in it."""

import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchlib.errors import InputError, ParseError, StudyError
from benchlib.load.parse.transaction_log import STATUSES, Log, Span, ahead, narrow, quantiles_ms

_COUNTS = ("time_us", "latency_us", "schedule_lag_us", "client", "transaction", "script", "retries")
SCHEMA = pa.schema({**dict.fromkeys(_COUNTS, pa.int64()), "status": pa.dictionary(pa.int8(), pa.string())})
"""A row per transaction: when it ended (since the epoch), its latency (null unless its status is ``ok``), how
late it started (null without ``--rate``), the client and its own count of transactions, the script (from 0),
how often it was tried again (null without ``--max-tries``), and ``ok`` or pgbench's word."""

EDGES_US = np.array([0, *np.ceil(10 ** (np.arange(10, 81) / 10))], np.int64)
"""Where the histogram's bins begin: ten per decade from 10 µs to 100 s, one below and one above."""

_NOTE = b"benchlib"  # in the file's metadata: JSON, ``torn`` and ``thin``
_THIN = ("time_us", "latency_us", "status")
_FORMAT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["script", "status"],
    "column_encoding": {name: "DELTA_BINARY_PACKED" for name in _COUNTS if name != "script"},
    "write_page_checksum": True,
}
_SECOND = 1_000_000  # µs
_MOST_SECONDS = 1_000_000
_MOST_ROWS = 20  # of a byte: a thinned log has two


@dataclass(frozen=True)
class Latency:
    """How long the transactions of one trial took; skipped and failed ones have no latency.

    ``quantiles_ms`` (``p50``, ``p90``, ``p95``, ``p99``, ``p999``) interpolate linearly and are None without a
    transaction. ``counts`` has a row per second from the first to the last in which a transaction ended, and
    a column per bin that begins in ``EDGES_US``.
    """

    quantiles_ms: dict[str, float | None]
    counts: NDArray[np.int64]


def keep_log(files: Sequence[Path], target: Path, argv: Sequence[str]) -> None:
    """Keep the log files of all threads of one pgbench, whose command line was ``argv``, as one Parquet file.

    Its columns are ``SCHEMA``. A torn last line of a file is left out, and counted in the file's note. Nothing
    is left at ``target`` when it fails.

    Raises:
        ParseError: a line that is none; columns that the command line does not ask for.
        InputError: there is no log.
        StudyError: the disk refused.

    """
    if not files:
        raise InputError("no transaction log: pgbench writes one with --log")
    log = Log({path.name: partial(io.FileIO, path) for path in files}, argv)
    schema = SCHEMA.with_metadata({_NOTE: json.dumps({"torn": len(log.tails)})})
    try:
        with pq.ParquetWriter(target, schema, **_FORMAT) as writer:
            for table in ahead(lambda span: _rows(log, span), log.spans):
                writer.write_table(table)
    except BaseException as reason:
        target.unlink(missing_ok=True)
        if isinstance(reason, OSError):
            raise StudyError(
                f"cannot keep the transaction log in {target.parent}: {reason}; free some space and run again"
            ) from reason
        raise


def _rows(log: Log, span: Span) -> pa.Table:
    """The lines of a span as rows of ``SCHEMA``."""
    columns = log.rows(log.read(span), log.columns, f"{span.name} from byte {span.start}")
    status = pa.array(columns["status"], pa.int8())
    absent = pa.nulls(len(status), pa.int64())
    rows = {
        "time_us": columns["epoch_s"].astype(np.int64) * _SECOND + columns["epoch_us"],
        "latency_us": pa.array(columns["latency"], mask=columns["status"] != STATUSES.index("ok")),
        "schedule_lag_us": columns.get("lag", absent),
        "retries": columns.get("retries", absent),
        "status": pa.DictionaryArray.from_arrays(status, STATUSES),
        **{name: columns[name] for name in ("client", "transaction", "script")},
    }
    return pa.table([rows[name] for name in SCHEMA.names], schema=SCHEMA)


def read_latency(path: Path) -> Latency:
    """The latencies in what ``keep_log`` kept.

    Raises:
        InputError: the file is damaged, or of another kind, or its times are not of one trial.

    """
    with _kept(path):
        table = pq.read_table(path, columns=["time_us", "latency_us"], page_checksum_verification=True)
        table = table.drop_null()
        latencies, seconds = narrow(table["latency_us"].to_numpy()), table["time_us"].to_numpy() // _SECOND
    first, last = (int(seconds.min()), int(seconds.max())) if len(seconds) else (0, -1)
    if last - first > min(_MOST_SECONDS, 86_400 + 100 * len(seconds)):
        raise ParseError(f"transaction log: times from {first} to {last} s: not of one trial")
    shape = last + 1 - first, len(EDGES_US)
    bins = (seconds - first) * shape[1] + np.searchsorted(EDGES_US, latencies, "right") - 1
    counts = np.bincount(bins, minlength=math.prod(shape)).reshape(shape)
    return Latency(quantiles_ms(latencies), counts)


def thin_log(path: Path, target: Path) -> bool:
    """Write a log that ``keep_log`` kept anew, with the same :class:`Latency`; False where it was thin already.

    Of a transaction the second in which it ended remains, its latency and status; inside a second they are sorted, which is
    what makes them small.

    Raises:
        InputError: the file is damaged, or of another kind.

    """
    with _kept(path) as note:
        if note.get("thin"):
            return False
        table = pq.read_table(path, columns=[*_THIN])
    second = pc.multiply(pc.divide(table["time_us"], _SECOND), _SECOND)
    order = [("time_us", "ascending"), ("latency_us", "ascending")]
    table = table.set_column(0, "time_us", second).sort_by(order)
    # of the other columns not even the names: in a file of a few kilobytes they weigh
    schema = pa.schema(map(SCHEMA.field, _THIN), {_NOTE: json.dumps({**note, "thin": True})})
    columns = [table[name] for name in _THIN]
    pq.write_table(pa.table(columns, schema=schema), target, **_FORMAT, compression_level=19)
    return True


@contextmanager
def _kept(path: Path) -> Iterator[dict[str, Any]]:
    """The note in a file of ours; what a damaged file raises until it is left becomes one error that names it."""
    try:
        note = json.loads((pq.read_schema(path).metadata or {})[_NOTE])
        if not isinstance(note, dict) or pq.read_metadata(path).num_rows > _MOST_ROWS * path.stat().st_size:
            raise ValueError("it is no log of ours")
        yield note
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as reason:
        raise InputError(
            f"cannot read {path.parent.name}/{path.name}: damaged, or not kept by benchlib"
        ) from reason
