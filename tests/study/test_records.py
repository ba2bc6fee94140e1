"""What a trial leaves beside its output: written and read back by the same class, and a damaged file is named."""

import gzip
from typing import Any
from unittest.mock import Mock

import pytest
from fakes import counters, seal, telemetry
from kept import refused

from benchlib.server import statistics
from benchlib.study.bench import Bench
from benchlib.study.records import (
    Cost,
    Counters,
    Flushes,
    Parameters,
    Plans,
    Record,
    ReplicaReadings,
    Samples,
)

ONE, TWO = (f"Compare file sync methods using {size}" for size in ("one 8kB write", "two 8kB writes"))
RATES = [(TWO, "fdatasync", 40.0), (TWO, "open_sync", 40.0), (ONE, "fdatasync", 80.3), (ONE, "fsync_writethrough", None)]  # fmt: skip
TESTS = {"methods": [dict(zip(("section", "method", "ops_per_s"), rate, strict=True)) for rate in RATES]}
USED = {"fsync": "on", "synchronous_commit": "on", "wal_sync_method": "fdatasync"}
WORK_MEM = {"setting": "4096", "unit": "kB", "boot_val": "4096", "source": "default"}
RECORDS: list[Record] = [
    Counters(**counters(6000)),
    Plans(after=[{"statement": "SELECT 1", "plan": {"Plan": {}}}]),
    ReplicaReadings(lag=[{"at_s": 1.5, "replay_lag_s": None}], elsewhere={}, verified={"held": []}),
    Flushes(durability=USED, flushes={**TESTS, "complete": True}),
    Parameters(work_mem=WORK_MEM),
    Cost(seconds=1.5, size_bytes=8192, wal_bytes=900),
    Samples(**telemetry(tps=1000)),
]


@pytest.mark.parametrize("record", RECORDS, ids=[record.FILE for record in RECORDS])
def test_what_is_written_is_read_and_a_damaged_file_is_named(folder_of, record: Any) -> None:
    folder = folder_of(1)
    (trial := folder.path / "trials" / "one").mkdir(parents=True)
    assert record.read(folder, "one") is None
    record.write(trial)
    seal(folder)
    assert record.read(folder, "one") == record
    assert record.from_bytes(record.to_bytes()).to_bytes() == record.to_bytes(), "the same bytes again"
    for damage in (b"", b"[7]", b'{"before": ', gzip.compress(b"[]")):
        (trial / record.FILE).write_bytes(damage)
        seal(folder)
        assert f"one/{record.FILE} is damaged" in refused(record.read, folder, "one")


OTHERS = ("wal_sync_method", "fsync_writethrough"), ("wal_sync_method", "open_sync"), ("synchronous_commit", "off"), ("fsync", "off")  # fmt: skip


def test_a_commit_flushes_one_page_by_the_method_in_use() -> None:
    used = [USED, *({**USED, name: value} for name, value in OTHERS)]
    rates = [Flushes(durability=durability, flushes=TESTS).used_per_s() for durability in used]
    assert rates == [80.3, None, None, None, None]


def test_flushes_are_measured_for_each_device_and_its_settings(monkeypatch):
    rates = iter([{"methods": [1]}, {"methods": [2]}])
    monkeypatch.setattr(statistics, "fsync_rates", lambda *_: next(rates))
    made, hosts = Bench(Mock(), Mock()), ({}, {"read_ahead": "64kB"}, {})
    found = [made._flushes(Mock(level=Mock(storage={}, host=host))) for host in hosts]
    assert [one["methods"] for one in found] == [[1], [2], [1]]
