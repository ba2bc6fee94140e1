"""Differences between two snapshots of a server's counters, PostgreSQL 10 to 18.

A count is null if the version lacks it or it was reset meanwhile.
Source: PostgreSQL documentation, "The Cumulative Statistics System", and the release notes of 17.
"""

from collections.abc import Mapping
from typing import Any

Snapshot = Mapping[str, Any]
"""A result of :func:`benchlib.server.statistics.snapshot`."""

# view and column of each count, newer versions first
_SOURCES = {
    "blocks_read": (("database", "blks_read"),),
    "temp_bytes": (("database", "temp_bytes"),),
    "checkpoints_timed": (("checkpointer", "num_timed"), ("bgwriter", "checkpoints_timed")),
    "checkpoints_requested": (("checkpointer", "num_requested"), ("bgwriter", "checkpoints_req")),
    "buffers_by_checkpointer": (("checkpointer", "buffers_written"), ("bgwriter", "buffers_checkpoint")),
    "buffers_by_bgwriter": (("bgwriter", "buffers_clean"),),
    "buffers_by_backends": (("bgwriter", "buffers_backend"),),
    "full_page_images": (("wal", "wal_fpi"),),
}


def server_counts(before: Snapshot, after: Snapshot) -> dict[str, float | None]:
    """Return the counts between two snapshots; ``buffers_*`` and ``blocks_*`` in pages.

    ``buffers_by_backends``: without checkpointer and background writer, with new pages.
    """
    counts: dict[str, float | None] = {}
    for name, sources in _SOURCES.items():
        rises = (_between(before.get(view), after.get(view), column) for view, column in sources)
        counts[name] = next((rise for rise in rises if rise is not None), None)
    counts["wal_bytes"] = _rise(_lsn_bytes(before["lsn"]), _lsn_bytes(after["lsn"]))
    if "buffers_backend" not in (after.get("bgwriter") or ()):
        counts["buffers_by_backends"] = _pages_by_backends(before, after)
    return counts


def _pages_by_backends(before: Snapshot, after: Snapshot) -> float | None:
    key = ("backend_type", "object", "context")
    earlier = {tuple(row[name] for name in key): row for row in before.get("io") or ()}
    pages = []
    for now in after.get("io") or ():
        if now["object"] == "relation" and now["backend_type"] not in ("checkpointer", "background writer"):
            then = earlier.get(tuple(now[name] for name in key))
            for operation in ("write", "extend"):
                # version 18: bytes; before: operations of op_bytes each
                column = f"{operation}_bytes" if f"{operation}_bytes" in now else f"{operation}s"
                if (rise := _between(then, now, column)) is not None:
                    pages.append(rise * now.get("op_bytes", 1) / after["block_size"])
    return sum(pages) if pages else None


def _lsn_bytes(lsn: str | None) -> int | None:
    if lsn is None:
        return None
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _between(then: Mapping[str, Any] | None, now: Mapping[str, Any] | None, column: str) -> float | None:
    if not then or not now or then.get("stats_reset") != now.get("stats_reset"):
        return None
    return _rise(then.get(column), now.get(column))


def _rise(then: float | None, now: float | None) -> float | None:
    return None if then is None or now is None or now < then else now - then
