"""What a trial leaves beside the load tool's output: each file has one class, which alone writes and reads it."""

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from benchlib.errors import InputError
from benchlib.host import files, telemetry
from benchlib.plan.level import Level, Open
from benchlib.study.store import StudyFolder

SERVER_LOG = "server.log"
BESIDE = "beside"
"""What each pgbench beside the load printed, together."""

_COMMIT = "Compare file sync methods using one 8kB write"

_RATIO = 100
"""Bytes that each byte of a compressed file unpacks to at most; the samples' are a fifth of that."""

Rows = list[dict[str, Any]]


@contextlib.contextmanager
def understood(folder: StudyFolder, trial_id: str) -> Iterator[None]:
    """Turn what raw files do that hold something else than they should into one error that names the trial."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as reason:
        raise InputError(
            f"{folder.name}: what trial {trial_id} recorded is damaged ({type(reason).__name__}: {reason}): "
            "bring it back from a copy"
        ) from reason


class Record(Open):
    """One file of a trial."""

    FILE: ClassVar[str]

    def write(self, folder: Path) -> None:
        """Write the file into the folder of a trial that is under way."""
        files.write(folder / self.FILE, self.to_bytes())

    @classmethod
    def read(cls, folder: StudyFolder, trial_id: str) -> Self | None:
        """What a kept trial left, packed or not; None if it left no such file.

        Raises:
            InputError: the file is damaged.

        """
        data = folder.raw(trial_id, cls.FILE)
        try:
            return None if data is None else cls.from_bytes(data)
        except (ValueError, OSError, EOFError, zlib.error):
            raise folder.damaged(trial_id, cls.FILE, "it holds something else than it should") from None

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return self.model_dump_json(indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The record that a file's content holds."""
        return cls.model_validate_json(data)


class Counters(Record):
    """The server's counters right before and after the load, as :func:`benchlib.server.statistics.snapshot` gives them."""

    FILE = "statistics.json"
    before: dict[str, Any]
    after: dict[str, Any]


class Plans(Record):
    """The plans of the workload's statements after the load: rows of ``statement`` and ``plan``."""

    FILE = "plans.json"
    after: Rows


class Away(Open):
    """How far from its primary a replica's host is, and what that host counted, as in :class:`Samples`."""

    host: str
    round_trip_s: float
    readings: Rows


class ReplicaReadings(Record):
    """The replicas' lag while the load ran, a row per reading and replica, and what was found on them afterwards.

    ``elsewhere`` has the replicas, by name, that are on other hosts.
    """

    FILE = "replication.json"
    lag: Rows = []
    elsewhere: dict[str, Away] = {}
    verified: dict[str, Any] | None = None


class FlushRate(Open):
    """What one test of ``pg_test_fsync`` reached; None where the platform has no such method."""

    section: str
    method: str
    ops_per_s: float | None


class FlushTest(Open):
    """All tests of ``pg_test_fsync``."""

    methods: list[FlushRate]


class Flushes(Record):
    """What ``pg_test_fsync`` reached where the WAL lies; ``durability`` are the settings that decide whether, and how, a commit is flushed."""

    FILE = "fsync.json"
    durability: dict[str, str]
    flushes: FlushTest

    def per_s(self, method: str) -> float | None:
        """How often a second one page is flushed by a ``wal_sync_method``; None where the platform has no such method."""
        rates = {row.method: row.ops_per_s for row in self.flushes.methods if row.section == _COMMIT}
        return rates.get(method)

    def used_per_s(self) -> float | None:
        """The same by the method that commits use; None where they are not flushed, or by no known method."""
        used = self.durability
        if "off" in (used["fsync"], used["synchronous_commit"]):
            return None
        return self.per_s(used["wal_sync_method"])


class Parameters(Record):
    """What the server ran with: rows of ``pg_settings`` by name, each ``setting``, ``unit``, ``boot_val`` and ``source``."""

    FILE = "server_settings.json"
    __pydantic_extra__: dict[str, dict[str, Any]]


class Samples(Record):
    """What :class:`benchlib.host.sampler.Sampler` read during the load, compressed."""

    FILE = "telemetry.json.gz"
    started: dict[str, float]
    interval_s: float
    readings: Rows
    waits: Rows | None = None

    def of_servers_host(self, level: Level) -> bool:
        """Whether the readings are of the host that a level's server runs on: not those of a load tool elsewhere."""
        return not level.target or bool(dict(self).get("of_target"))

    def thinned(self) -> Self:
        """The same with the sums of each second in place of the single samples of waits."""
        return self.model_validate(telemetry.thinned(dict(self)))

    def to_bytes(self, compresslevel: int = 6) -> bytes:
        """The content of the file: the same for the same samples."""
        return gzip.compress(self.model_dump_json().encode(), compresslevel, mtime=0)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The record that a file's content holds."""
        unpacking = zlib.decompressobj(wbits=31)
        unpacked = unpacking.decompress(data, _RATIO * len(data) + 1)
        if not unpacking.eof:
            raise ValueError("it is cut, or unpacks to more than a sampler writes")
        return cls.model_validate_json(unpacked)
