"""What a trial leaves beside its output: written and read back by the same class, and a damaged file is named."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import counters, telemetry

from benchlib.errors import InputError
from benchlib.study.records import Counters, Flushes, Parameters, Plans, ReplicaReadings, Samples
from benchlib.study.store import StudyFolder

COMMIT = "Compare file sync methods using one 8kB write"
TWO = "Compare file sync methods using two 8kB writes"
FLUSHES = {
    "durability": {"fsync": "on", "synchronous_commit": "on", "wal_sync_method": "fdatasync"},
    "flushes": {
        "complete": True,
        "methods": [
            {"section": TWO, "method": "fdatasync", "ops_per_s": 40.0},
            {"section": TWO, "method": "open_sync", "ops_per_s": 40.0},
            {"section": COMMIT, "method": "fdatasync", "ops_per_s": 80.3},
            {"section": COMMIT, "method": "fsync_writethrough", "ops_per_s": None},
        ],
    },
}
RECORDS: list[tuple[Any, dict[str, Any]]] = [
    (Counters, counters(6000)),
    (Plans, {"after": [{"statement": "SELECT 1", "plan": {"Plan": {}}}]}),
    (
        ReplicaReadings,
        {"lag": [{"at_s": 1.5, "replay_lag_s": None}], "elsewhere": {}, "verified": {"held": []}},
    ),
    (Flushes, FLUSHES),
    (Parameters, {"work_mem": {"setting": "4096", "unit": "kB", "boot_val": "4096", "source": "default"}}),
    (Samples, telemetry(tps=1000)),
]


@pytest.mark.parametrize(("record", "content"), RECORDS, ids=[record.FILE for record, _ in RECORDS])
def test_what_is_written_is_read_and_a_damaged_file_is_named(
    folder_of: Callable[..., StudyFolder], record: Any, content: dict[str, Any]
) -> None:
    folder = folder_of(1)
    trial = folder.path / "trials" / "one"
    trial.mkdir(parents=True)
    assert record.read(folder, "one") is None
    record.model_validate(content).write(trial)
    assert record.read(folder, "one").model_dump() == content
    for damage in (b"", b"[7]", b'{"before": ', gzip.compress(b"[]")):
        (trial / record.FILE).write_bytes(damage)
        with pytest.raises(InputError, match=rf"one/{record.FILE} is damaged"):
            record.read(folder, "one")


def test_samples_are_the_same_bytes_again(tmp_path: Path) -> None:
    samples = Samples.model_validate(telemetry(tps=1000))
    assert samples.to_bytes() == Samples.from_bytes(samples.to_bytes()).to_bytes()


def test_a_commit_flushes_one_page() -> None:
    flushes = Flushes.model_validate(FLUSHES)
    assert flushes.used_per_s() == flushes.per_s("fdatasync") == 80.3
    assert flushes.per_s("fsync_writethrough") is None, "Linux has no such method"
    assert flushes.per_s("open_sync") is None
    lazy = {**FLUSHES, "durability": {**FLUSHES["durability"], "synchronous_commit": "off"}}
    assert Flushes.model_validate(lazy).used_per_s() is None
