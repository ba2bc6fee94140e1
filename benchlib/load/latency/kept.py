"""pgbench's transaction log as a Parquet file, and the figures from either."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchlib.errors import InputError, StudyError
from benchlib.load.latency.ahead import ahead
from benchlib.load.latency.figures import Extract, Latency, latency
from benchlib.load.latency.log_files import LogFiles, Span

SCHEMA = pa.schema(
    {
        "time_us": pa.int64(),
        "latency_us": pa.int64(),
        "schedule_lag_us": pa.int64(),
        "client": pa.int64(),
        "transaction": pa.int64(),
        "script": pa.int64(),
        "retries": pa.int64(),
        "status": pa.dictionary(pa.int8(), pa.string()),
    }
)
"""A row per transaction: when it ended (since the epoch), its latency (null unless its status is ``ok``), how
late it started (null without ``--rate``), the client and its own count of transactions, the script (from 0),
how often it was tried again (null without ``--max-tries``), and ``ok`` or pgbench's word."""

_NUMBERS = ("time_us", "latency_us", "schedule_lag_us", "client", "transaction", "retries")
NOTE = b"benchlib"
"""Where in the file's metadata its note is: JSON, ``torn`` and ``sampling_rate``."""

FORMAT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["script", "status"],
    "column_encoding": dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
    "write_page_checksum": True,
}
"""How the file is written."""

_MICRO = 1_000_000


def keep_log(parts: Sequence[Path], target: Path, argv: Sequence[str]) -> None:
    """Keep the log files of all threads of one pgbench, whose command line was ``argv``, as one Parquet file.

    Its columns are ``SCHEMA``. A torn last line of a file is left out, and counted in the file's note. Nothing
    is left at ``target`` when it fails.

    Raises:
        ParseError: a line that is none, named; a log of intervals; columns that the command line does
            not ask for.
        InputError: there is no log.
        StudyError: the disk refused.

    """
    log = LogFiles(parts, argv)
    note = {"torn": log.torn, "sampling_rate": log.sampling_rate}
    try:
        with pq.ParquetWriter(
            target,
            SCHEMA.with_metadata({NOTE: json.dumps(note)}),
            **FORMAT,
        ) as writer:
            for table in ahead(lambda span: _rows(log, span), log.spans):
                writer.write_table(table)
    except OSError as reason:
        target.unlink(missing_ok=True)
        raise StudyError(
            f"cannot keep the transaction log in {target.parent}: {reason}; free some space and run again"
        ) from reason
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def read_log(parts: Sequence[Path], argv: Sequence[str], *, window_s: int = 1) -> Latency:
    """The latencies in the log files of all threads of one pgbench; raises what ``keep_log`` raises."""
    log = LogFiles(parts, argv)
    wanted = [name for name in ("latency", "epoch_s", "lag") if name in log.columns]

    def extract(span: Span) -> Extract:
        table = log.table(span, wanted)
        lag = table["lag"] if "lag" in wanted else None
        return Extract(table["epoch_s"].to_numpy(), table["latency"], table["status"], lag, window_s)

    return latency(
        ahead(extract, log.spans), torn=log.torn, sampling_rate=log.sampling_rate, window_s=window_s
    )


def read_latency(path: Path, *, window_s: int = 1) -> Latency:
    """The latencies in what ``keep_log`` kept, over time in windows of ``window_s`` whole seconds.

    Raises:
        InputError: the file is damaged, or of another kind.

    """

    def extract(group: int) -> Extract:
        columns = ["time_us", "latency_us", "status", "schedule_lag_us"]
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read_row_group(group, columns, use_threads=False)
        lag = table["schedule_lag_us"]
        lag = None if lag.null_count == len(lag) else lag
        end_s = table["time_us"].to_numpy() // _MICRO
        return Extract(end_s, table["latency_us"], table["status"], lag, window_s)

    try:
        with pq.ParquetFile(path) as file:
            note, groups = json.loads((file.schema_arrow.metadata or {})[NOTE]), range(file.num_row_groups)
        return latency(
            ahead(extract, groups), torn=note["torn"], sampling_rate=note["sampling_rate"], window_s=window_s
        )
    except (pa.ArrowException, OSError, KeyError, ValueError) as reason:
        raise InputError(
            f"cannot read {path.parent.name}/{path.name}: damaged, or not kept by benchlib"
        ) from reason


def _rows(log: LogFiles, span: Span) -> pa.Table:
    """The lines of a span as rows of ``SCHEMA``."""
    table = log.table(span, log.columns)
    absent = pa.nulls(len(table), pa.int64())
    columns = {
        "time_us": pc.add(pc.multiply(table["epoch_s"], _MICRO), table["epoch_us"]),
        "latency_us": table["latency"],
        "schedule_lag_us": table["lag"] if "lag" in log.columns else absent,
        "retries": table["retries"] if "retries" in log.columns else absent,
        **{name: table[name] for name in ("client", "transaction", "script", "status")},
    }
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
