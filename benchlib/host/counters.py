"""What a server did between two snapshots of its counters, by the same names for all versions (10 to 18).

What a version lacks, what the server does not time, and what was reset meanwhile, is null.
Source: PostgreSQL documentation, "The Cumulative Statistics System", of each version; its release notes:
17 moved the checkpointer's counters into a view of their own and those of backends to pg_stat_io, 18 those of
writing WAL to pg_stat_io.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Snapshot = Mapping[str, Any]
"""What :func:`benchlib.server.statistics.snapshot` gave."""

Figures = dict[str, float | None]

# each figure's view and column, in newer versions first
_SOURCES: dict[str, tuple[tuple[str, str], ...]] = {
    "commits": (("database", "xact_commit"),),
    "rollbacks": (("database", "xact_rollback"),),
    "blocks_read": (("database", "blks_read"),),
    "blocks_hit": (("database", "blks_hit"),),
    "block_read_ms": (("database", "blk_read_time"),),
    "block_write_ms": (("database", "blk_write_time"),),
    "temp_files": (("database", "temp_files"),),
    "temp_bytes": (("database", "temp_bytes"),),
    "deadlocks": (("database", "deadlocks"),),
    "checkpoints_timed": (("checkpointer", "num_timed"), ("bgwriter", "checkpoints_timed")),
    "checkpoints_requested": (("checkpointer", "num_requested"), ("bgwriter", "checkpoints_req")),
    "checkpoint_write_ms": (("checkpointer", "write_time"), ("bgwriter", "checkpoint_write_time")),
    "checkpoint_sync_ms": (("checkpointer", "sync_time"), ("bgwriter", "checkpoint_sync_time")),
    "buffers_by_checkpointer": (("checkpointer", "buffers_written"), ("bgwriter", "buffers_checkpoint")),
    "buffers_by_bgwriter": (("bgwriter", "buffers_clean"),),
    "buffers_by_backends": (("bgwriter", "buffers_backend"),),
    "fsyncs_by_backends": (("bgwriter", "buffers_backend_fsync"),),
    "buffers_allocated": (("bgwriter", "buffers_alloc"),),
    "bgwriter_halts": (("bgwriter", "maxwritten_clean"),),
    "wal_records": (("wal", "wal_records"),),
    "wal_full_page_images": (("wal", "wal_fpi"),),
    "wal_buffers_full": (("wal", "wal_buffers_full"),),
    "wal_writes": (("wal", "wal_write"),),
    "wal_syncs": (("wal", "wal_sync"),),
    "wal_write_ms": (("wal", "wal_write_time"),),
    "wal_sync_ms": (("wal", "wal_sync_time"),),
}
_TIMED_BY = {
    "block_read_ms": "io_timed", "block_write_ms": "io_timed", "wal_write_ms": "wal_timed", "wal_sync_ms": "wal_timed"
}  # fmt: skip

Operation = tuple[str, str | None, str | None]
# of pg_stat_io: the operation, its bytes (before 18: op_bytes each), its time
_OPERATIONS: tuple[Operation, ...] = (
    ("reads", "read_bytes", "read_time"),
    ("writes", "write_bytes", "write_time"),
    ("extends", "extend_bytes", "extend_time"),
    ("writebacks", None, "writeback_time"),
    ("fsyncs", None, "fsync_time"),
    ("hits", None, None),
    ("evictions", None, None),
    ("reuses", None, None),
)
_WHO = ("backend_type", "object", "context")
_NO_BACKENDS = ("checkpointer", "background writer")

_MOST_STATEMENTS = 20
# columns of pg_stat_statements, in newer versions first
_STATEMENT = {
    "calls": ("calls",),
    "rows": ("rows",),
    "total_ms": ("total_exec_time", "total_time"),
    "shared_blocks_hit": ("shared_blks_hit",),
    "shared_blocks_read": ("shared_blks_read",),
    "shared_blocks_dirtied": ("shared_blks_dirtied",),
    "shared_blocks_written": ("shared_blks_written",),
    "temp_blocks_written": ("temp_blks_written",),
    "wal_bytes": ("wal_bytes",),
}


def differences(before: Snapshot, after: Snapshot) -> Figures:
    """The server's counts over ``seconds``; units are in the names, ``buffers_*`` and ``blocks_*`` are pages.

    ``wal_bytes`` is how far the WAL's position moved, since that is the same in all versions.
    ``*_by_backends`` are of all processes but checkpointer and background writer, new pages included.
    """
    figures: Figures = {"seconds": after["at"] - before["at"]}
    known = before["lsn"] is not None and after["lsn"] is not None
    figures["wal_bytes"] = _rise(lsn_bytes(before["lsn"]), lsn_bytes(after["lsn"])) if known else None
    for name, sources in _SOURCES.items():
        found = (
            _between(before.get(view), after.get(view), column)
            for view, column in sources
            if column in (after.get(view) or ())
        )
        figures[name] = next(found, None)
    operations = io_differences(before, after)
    backends = [
        row for row in operations if row["object"] == "relation" and row["backend_type"] not in _NO_BACKENDS
    ]
    wal = [row for row in operations if row["object"] == "wal" and row["context"] == "normal"]
    if "buffers_backend" not in (after.get("bgwriter") or ()):
        written = _sum(row[name] for row in backends for name in ("write_bytes", "extend_bytes"))
        figures["buffers_by_backends"] = None if written is None else written / after["block_size"]
        figures["fsyncs_by_backends"] = _sum(row["fsyncs"] for row in backends)
    if "wal_write" not in (after.get("wal") or ()):
        for name, column in (
            ("writes", "writes"),
            ("syncs", "fsyncs"),
            ("write_ms", "write_ms"),
            ("sync_ms", "fsync_ms"),
        ):
            figures[f"wal_{name}"] = _sum(row[column] for row in wal)
    return figures | {name: None for name, switch in _TIMED_BY.items() if not after.get(switch)}


def io_differences(before: Snapshot, after: Snapshot) -> list[dict[str, Any]]:
    """The rows of pg_stat_io (16 and later; none before): ``backend_type``, ``object``, ``context``, and the operations.

    Bytes and milliseconds where there are some; null also for what such a process never does.
    """
    earlier = {tuple(row[name] for name in _WHO): row for row in before.get("io") or ()}
    rows = []
    for now in after.get("io") or ():
        then = earlier.get(tuple(now[name] for name in _WHO))
        row = {name: now[name] for name in _WHO}
        timed = after.get("wal_timed" if now["object"] == "wal" else "io_timed")
        for operation, size, time in _OPERATIONS:
            row[operation] = count = _between(then, now, operation)
            if size:
                row[size] = _between(then, now, size) if size in now else _times(count, now.get("op_bytes"))
            if time:
                row[time.replace("_time", "_ms")] = _between(then, now, time) if timed else None
        rows.append(row)
    return rows


def statement_differences(before: Snapshot, after: Snapshot) -> list[dict[str, Any]] | None:
    """The twenty statements with the most time, with ``query`` and its counts; None without pg_stat_statements."""
    if (told := after.get("statements")) is None:
        return None
    earlier = {_statement_key(row): row for row in before.get("statements") or ()}
    rows = []
    for now in told:
        then = earlier.get(_statement_key(now), {})
        row: dict[str, Any] = {"query": now["query"]}
        for name, columns in _STATEMENT.items():
            column = next((column for column in columns if column in now), None)
            row[name] = _rise(then.get(column, 0), now[column]) if column else None
        if row["calls"] and row["total_ms"] is not None:
            rows.append({**row, "mean_ms": row["total_ms"] / row["calls"]})
    return sorted(rows, key=lambda row: -row["total_ms"])[:_MOST_STATEMENTS]


def lsn_bytes(lsn: str) -> int:
    """A WAL position such as ``0/16B3740`` as a number of bytes.

    Source: PostgreSQL documentation, ``pg_lsn`` type.
    """
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def _statement_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["queryid"], row.get("toplevel")


def _between(then: Mapping[str, Any] | None, now: Mapping[str, Any] | None, column: str) -> float | None:
    """How far a counter of a row rose; null where it was reset meanwhile, or one of them lacks it."""
    if then is None or now is None or then.get("stats_reset") != now.get("stats_reset"):
        return None
    return _rise(then.get(column), now.get(column))


def _rise(then: float | None, now: float | None) -> float | None:
    return None if then is None or now is None or now < then else now - then


def _times(count: float | None, size: float | None) -> float | None:
    return None if count is None or size is None else count * size


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is told; null where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
