"""Transaction latencies of a trial: pgbench's log as compressed Parquet, and its quantiles."""

import json
import os
import re
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

from benchlib.errors import InputError, ParseError, StudyError, os_errors_as
from benchlib.host import files as host_files
from benchlib.load.parse.transaction_log import STATUSES, Log, Span, ahead, narrow, quantiles_ms

_COUNTS = ("time_us", "latency_us", "schedule_lag_us", "client", "transaction", "script", "retries")
SCHEMA = pa.schema({**dict.fromkeys(_COUNTS, pa.int64()), "status": pa.dictionary(pa.int8(), pa.string())})
"""A row per transaction: end (since the epoch), latency (null unless ``ok``), delayed start (null without
``--rate``), client, its transaction number, script (from 0), retries (null without ``--max-tries``),
``ok`` or pgbench's word.
"""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}

_NOTE = b"benchlib"  # in the file's metadata: JSON, ``torn`` and ``thin``
_FORMAT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["script", "status"],
    "column_encoding": {name: "DELTA_BINARY_PACKED" for name in _COUNTS if name != "script"},
    "write_page_checksum": True,
}
_SECOND = 1_000_000  # µs
_MOST_SECONDS = 1_000_000
_MOST_ROWS = 20  # of a byte: a thinned log has two
_FEW_ROWS = 10_000_000  # of any file: of the shortest transactions a thinned log has fifty of a byte
_FEW_BYTES, _MOST_BYTES = 256 << 20, 400  # unpacked: of any file, of a byte
_TORN = re.compile(r"[0-9a-z ]{0,200}")


@dataclass(frozen=True)
class Latency:
    """Latencies of one trial's successful transactions.

    ``quantiles_ms`` (linear interpolation) are None without transactions.
    """

    quantiles_ms: dict[str, float | None]
    transactions: int


def client_logs(folder: Path) -> list[Path]:
    """Return the log files in the load tool's directory."""
    return [folder / name for name in host_files.listed(folder, foreign=True)]


def _open(path: Path, owner: int) -> pa.NativeFile:
    """Open another user's log by descriptor."""
    descriptor = host_files.opened(path, owner=owner)
    try:
        return pa.OSFile(f"/dev/fd/{descriptor}")
    finally:
        os.close(descriptor)


def keep_log(files: Sequence[Path], target: Path, argv: Sequence[str], owner: int | None = None) -> None:
    """Save the logs of one pgbench (command line ``argv``) as one Parquet file with ``SCHEMA``.

    ``owner``: the files' user. Torn last lines are dropped and counted. A failure leaves no file.

    Raises:
        ParseError: an invalid line, or columns that contradict ``argv``.
        InputError: there is no log.
        StudyError: the disk refused.

    """
    if not files:
        raise InputError("no transaction log: run pgbench with --log")
    owner = os.geteuid() if owner is None else owner
    log = Log({path.name: partial(_open, path, owner) for path in files}, argv)
    if log.spans and not log.columns:
        raise log.fault(log.spans[0])
    if "lag_or_retries" in log.columns:
        raise ParseError("the log's seventh column is lag or retries: only the command line can tell")
    for name, tail in log.tails.items():
        if not _TORN.fullmatch(tail):
            raise ParseError(f"{name} does not end as a transaction log does: {tail[:80]!r}")
    schema = SCHEMA.with_metadata({_NOTE: json.dumps({"torn": len(log.tails)})})
    message = f"cannot keep the transaction log in {target.parent}; free some space and run again"
    try:
        with os_errors_as(StudyError, message), pq.ParquetWriter(target, schema, **_FORMAT) as writer:
            for table in ahead(lambda span: _rows(log, span), log.spans):
                writer.write_table(table)
    except BaseException:
        host_files.remove(target)
        raise


def _rows(log: Log, span: Span) -> pa.Table:
    columns = log.rows(log.read(span), log.columns)
    if columns is None:
        raise log.fault(span)
    status = pa.array(columns["status"], pa.int8())
    absent = pa.nulls(len(status), pa.int64())
    rows = {
        "time_us": columns["epoch_s"] * _SECOND + columns["epoch_us"],
        "latency_us": pa.array(columns["latency"], mask=columns["status"] != STATUSES.index("ok")),
        "schedule_lag_us": columns.get("lag", absent),
        "retries": columns.get("retries", absent),
        "status": pa.DictionaryArray.from_arrays(status, STATUSES),
        **{name: columns[name] for name in ("client", "transaction", "script")},
    }
    return pa.table([rows[name] for name in SCHEMA.names], schema=SCHEMA)


def read_latency(path: Path) -> Latency:
    """Return the latencies in a saved log.

    Raises:
        InputError: damaged, of another kind, or not of one trial.

    """

    def columns(group: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read_row_group(group, ["time_us", "latency_us"], use_threads=False).drop_null()
        return narrow(table["latency_us"].to_numpy()), table["time_us"].to_numpy() // _SECOND

    with _readable(path), pq.ParquetFile(path) as file:
        _note(path, file.schema_arrow)
        parts = list(ahead(columns, range(file.num_row_groups)))
    first = min((int(seconds.min()) for _, seconds in parts if len(seconds)), default=0)
    last = max((int(seconds.max()) for _, seconds in parts if len(seconds)), default=-1)
    rows = sum(len(seconds) for _, seconds in parts)
    if last - first > min(_MOST_SECONDS, 86_400 + 100 * rows):
        raise ParseError(f"transaction log: the times {first} to {last} s are not of one trial")
    latencies = np.concatenate([np.array([], np.uint32), *(latencies for latencies, _ in parts)])
    return Latency(quantiles_ms(latencies, QUANTILES), rows)


def thin_log(path: Path, target: Path) -> bool:
    """Write a smaller log with the same :class:`Latency`; return False if it is already small.

    Raises:
        InputError: damaged, or of another kind.

    """
    with _readable(path):
        note = _note(path, pq.read_schema(path))
        if note.get("thin"):
            return False
        table = pq.read_table(path, columns=["time_us", "latency_us"]).drop_null()
    second = pc.multiply(pc.divide(table["time_us"], _SECOND), _SECOND)
    rows = table.set_column(0, "time_us", second).sort_by(
        [(name, "ascending") for name in table.column_names]
    )
    thin = rows.replace_schema_metadata({_NOTE: json.dumps({**note, "thin": True})})
    pq.write_table(thin, target, **_FORMAT, compression_level=19)
    return True


def _note(path: Path, schema: pa.Schema) -> dict[str, Any]:
    note = json.loads((schema.metadata or {})[_NOTE])
    most = max(_FEW_ROWS, _MOST_ROWS * path.stat().st_size)
    about = pq.read_metadata(path)
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    rows = [group.num_rows for group in groups]
    # a footer may say anything: what the columns' own pages hold is what is unpacked
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    counted = max([about.num_rows, sum(rows), *(column.num_values for column in columns)])
    if not isinstance(note, dict) or counted > most or sum(rows) != about.num_rows:
        raise ValueError("not written by benchlib")
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if unpacked > max(_FEW_BYTES, _MOST_BYTES * path.stat().st_size):
        raise ValueError("it unpacks to more than a log can hold")
    return note


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn all errors of a damaged file into one that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as reason:
        raise InputError(
            f"cannot read {path.parent.name}/{path.name}: damaged, or not kept by benchlib"
        ) from reason
