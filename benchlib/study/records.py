"""Files of a trial besides the load tool's output."""

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from benchlib.errors import InputError
from benchlib.host import files
from benchlib.plan.level import Level, Open
from benchlib.study.store import StudyFolder

SERVER_LOG = "server.log"
BESIDE = "beside"
"""Raw output of the background load."""

_COMMIT = "Compare file sync methods using one 8kB write"

_RATIO = 100
"""Maximum compression ratio; samples reach a fifth of it."""

Rows = list[dict[str, Any]]


@contextlib.contextmanager
def understood(folder: StudyFolder, trial_id: str) -> Iterator[None]:
    """Convert errors from malformed files to an InputError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as reason:
        raise InputError(
            f"{folder.name}: the records of trial {trial_id} are damaged ({type(reason).__name__}: {reason}): "
            "restore them from a copy"
        ) from reason


class Record(Open):
    """One file of a trial."""

    FILE: ClassVar[str]

    def write(self, folder: Path) -> None:
        """Write the file into a running trial's folder."""
        files.write(folder / self.FILE, self.to_bytes())

    @classmethod
    def read(cls, folder: StudyFolder, trial_id: str) -> Self | None:
        """Return a saved trial's record, if any; InputError if damaged."""
        data = folder.raw(trial_id, cls.FILE)
        try:
            return None if data is None else cls.from_bytes(data)
        except (ValueError, OSError, EOFError, zlib.error):
            raise folder.damaged(trial_id, cls.FILE, "unexpected content") from None

    def to_bytes(self) -> bytes:
        """Return the content."""
        return self.model_dump_json(indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the record."""
        return cls.model_validate_json(data)


class Counters(Record):
    """Server counters before and after the load."""

    FILE = "statistics.json"
    before: dict[str, Any]
    after: dict[str, Any]


class Plans(Record):
    """Query plans after the load: ``statement, plan``."""

    FILE = "plans.json"
    after: Rows


class Cost(Record):
    """The cost of the level's ``sql``."""

    FILE = "schema.json"
    seconds: float
    size_bytes: int
    wal_bytes: int


class Query(Open):
    """A query's ``statement, plan`` (JSON of EXPLAIN)."""

    query: str
    statements: Rows = []


class QueryPlans(Record):
    """Plans by query; empty if it could not be explained."""

    FILE = "queries.json"
    queries: list[Query]


class Away(Open):
    """A remote replica's host: round trip and readings."""

    host: str
    round_trip_s: float
    readings: Rows


class ReplicaReadings(Record):
    """Replication lag; remote replicas by name; the verification afterwards."""

    FILE = "replication.json"
    lag: Rows = []
    elsewhere: dict[str, Away] = {}
    verified: dict[str, Any] | None = None


class FlushRate(Open):
    """One result of ``pg_test_fsync``; None without the method."""

    section: str
    method: str
    ops_per_s: float | None


class FlushTest(Open):
    """All results of ``pg_test_fsync``."""

    methods: list[FlushRate]


class Flushes(Record):
    """``pg_test_fsync`` on the WAL's device, and the server's ``durability`` settings."""

    FILE = "fsync.json"
    durability: dict[str, str]
    flushes: FlushTest

    def rows(self) -> Rows:
        """Return ``method, flushes_per_s, used`` for each ``wal_sync_method``."""
        used = self.durability.get("wal_sync_method")
        return [
            {"method": row.method, "flushes_per_s": row.ops_per_s, "used": row.method == used}
            for row in self.flushes.methods
            if row.section == _COMMIT
        ]

    def used_per_s(self) -> float | None:
        """Return flushes per second in use; None if commits are not flushed."""
        if "off" in (self.durability["fsync"], self.durability["synchronous_commit"]):
            return None
        return next((row["flushes_per_s"] for row in self.rows() if row["used"]), None)


class Parameters(Record):
    """``pg_settings`` by name: ``setting``, ``unit``, ``boot_val`` and ``source``."""

    FILE = "server_settings.json"
    __pydantic_extra__: dict[str, dict[str, Any]]


class Samples(Record):
    """Compressed readings of :class:`benchlib.host.sampler.Sampler` during the load."""

    FILE = "telemetry.json.gz"
    started: dict[str, float]
    interval_s: float
    readings: Rows
    waits: Rows | None = None
    samples: Rows | None = None

    def of_servers_host(self, level: Level) -> bool:
        """Return whether the server's host was read."""
        return not level.target or bool(dict(self).get("of_target"))

    def to_bytes(self, compresslevel: int = 6) -> bytes:
        """Return the content, reproducibly compressed."""
        return gzip.compress(self.model_dump_json().encode(), compresslevel, mtime=0)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the record, of limited size."""
        unpacking = zlib.decompressobj(wbits=31)
        unpacked = unpacking.decompress(data, _RATIO * len(data) + 1)
        if not unpacking.eof:
            raise ValueError("it is truncated, or too large when unpacked")
        return cls.model_validate_json(unpacked)


def rows_of(
    folder: StudyFolder,
    trials: pd.DataFrame,
    kind: type[Record],
    rows: Callable[[Any], Iterable[dict[str, Any]]],
    columns: list[str] | None = None,
) -> pd.DataFrame:
    """Return the ``rows`` of each trial's record by ``level, block``; InputError if it is malformed."""
    found = Rows()
    for level, block, name in zip(trials["level"], trials["block"], trials["trial"], strict=True):
        with understood(folder, name):
            if (record := kind.read(folder, name)) is not None:
                found += [{"level": level, "block": block, **row} for row in rows(record)]
    return pd.DataFrame(found, columns=columns)
