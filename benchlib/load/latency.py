"""Transaction latencies of a trial, as compressed Parquet."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchlib.errors import InputError, StudyError, os_errors_as
from benchlib.host import files as host_files
from benchlib.load.parse import transaction_log as pgbench_log
from benchlib.load.parse.transaction_log import STATUSES, Columns, narrow, quantiles_ms

_COUNTS = ("time_us", "latency_us", "schedule_lag_us", "client", "transaction", "script", "retries")
METADATA = b"benchlib"
"""Key of the file's metadata; its value is a JSON object."""
SCHEMA = pa.schema(
    {**dict.fromkeys(_COUNTS, pa.int64()), "status": pa.dictionary(pa.int8(), pa.string())}, {METADATA: b"{}"}
)
"""A row per transaction: end (since the epoch), latency (null unless ``ok``), delayed start (null without
``--rate``), client, its transaction number, script (from 0), retries (null without ``--max-tries``),
``ok`` or pgbench's word.
"""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}

FORMAT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["script", "status"],
    "column_encoding": {name: "DELTA_BINARY_PACKED" for name in _COUNTS if name != "script"},
    "write_page_checksum": True,
}
"""Options of the Parquet files."""
SECOND = 1_000_000  # µs
_BATCH = 1 << 20  # rows that are read at a time
_MOST_ROWS = 20  # of a byte: a thinned log has two
_FEW_ROWS = 10_000_000  # of any file: of the shortest transactions a thinned log has fifty of a byte
_FEW_BYTES, _MOST_BYTES = 256 << 20, 400  # unpacked: of any file, of a byte


@dataclass(frozen=True)
class Latency:
    """Latencies of a trial's successful transactions; by script from 0."""

    quantiles_ms: dict[str, float | None]
    transactions: int
    scripts_p95_ms: dict[int, float | None]


def client_logs(folder: Path) -> list[Path]:
    """Return the log files in a directory."""
    return [folder / name for name in host_files.listed(folder, foreign=True)]


def _open(path: Path, owner: int) -> pa.NativeFile:
    descriptor = host_files.opened(path, owner=owner)
    try:
        return pa.OSFile(f"/dev/fd/{descriptor}")
    finally:
        os.close(descriptor)


def keep_log(files: Sequence[Path], target: Path, argv: Sequence[str], owner: int | None = None) -> None:
    """Save the logs of one pgbench (command line ``argv``) as one file with ``SCHEMA``.

    ``owner``: the files' user. Torn last lines are dropped.

    Raises:
        ParseError: a line that is not of this log.
        InputError: there is no log.
        StudyError: the disk refused.
    """
    if not files:
        raise InputError("no transaction log: run pgbench with --log")
    owner = os.geteuid() if owner is None else owner
    names = pgbench_log.log_columns(argv)
    message = f"cannot keep the transaction log in {target.parent}; free some space and run again"
    try:
        with os_errors_as(StudyError, message), pq.ParquetWriter(target, SCHEMA, **FORMAT) as writer:
            for path in files:
                with _open(path, owner) as file:
                    for columns in pgbench_log.file_blocks(path.name, file, names):
                        writer.write_table(_table(columns))
    except BaseException:
        host_files.remove(target)
        raise


def _table(columns: Columns) -> pa.Table:
    status = pa.array(columns["status"], pa.int8())
    absent = pa.nulls(len(status), pa.int64())
    values = {
        "time_us": columns["epoch_s"] * SECOND + columns["epoch_us"],
        "latency_us": pa.array(columns["latency"], mask=columns["status"] != STATUSES.index("ok")),
        "schedule_lag_us": columns.get("lag", absent),
        "retries": columns.get("retries", absent),
        "status": pa.DictionaryArray.from_arrays(status, STATUSES),
        **{name: columns[name] for name in ("client", "transaction", "script")},
    }
    return pa.table([values[name] for name in SCHEMA.names], schema=SCHEMA)


def read_latency(path: Path) -> Latency:
    """Return the latencies in a saved log."""
    parts, by_script = [np.array([], np.uint32)], [np.array([], np.uint8)]
    with readable(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        columns = [name for name in ("latency_us", "script") if name in file.schema_arrow.names]
        for batch in file.iter_batches(_BATCH, columns=columns):
            table = batch.filter(pc.is_valid(batch["latency_us"]))
            parts.append(narrow(table["latency_us"].to_numpy()))
            by_script += [narrow(table[name].to_numpy()) for name in columns[1:]]
    latencies, scripts = np.concatenate(parts), np.concatenate(by_script)
    # before the quantiles of all, which reorder the values
    p95 = {"p95": QUANTILES["p95"]}
    of_scripts = {int(n): quantiles_ms(latencies[scripts == n], p95)["p95"] for n in np.unique(scripts)}
    return Latency(quantiles_ms(latencies, QUANTILES), len(latencies), of_scripts)


def _note(path: Path) -> dict[str, Any]:
    """Return the note, if the unpacked size is plausible."""
    about, size = pq.read_metadata(path), path.stat().st_size
    note = json.loads((about.metadata or {})[METADATA])
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    # a footer may say anything: what the columns' own pages hold is what is unpacked
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    values = max([sum(group.num_rows for group in groups), *(column.num_values for column in columns)])
    if not isinstance(note, dict) or values > max(_FEW_ROWS, _MOST_ROWS * size) or values < about.num_rows:
        raise ValueError("not written by benchlib")
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if unpacked > max(_FEW_BYTES, _MOST_BYTES * size):
        raise ValueError("it unpacks to more than a log can hold")
    return note


@contextmanager
def readable(path: Path) -> Iterator[dict[str, Any]]:
    """Check a saved log and give its note; convert all errors of a damaged file."""
    try:
        yield _note(path)
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as reason:
        raise InputError(
            f"cannot read {path.parent.name}/{path.name}: damaged, or not kept by benchlib"
        ) from reason
