"""Provenance: every server with its build, and no path."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.server.installations import Installation
from benchlib.study import preflight, runs
from benchlib.study.runs import provenance

EIGHTEEN = Installation(
    "18.4", Path("/opt/a/bin"), "wheel", "'--prefix=/opt/a' '--without-icu'", "gcc 14 -O2"
)
ELEVEN = Installation("11.22", Path("/opt/b/bin"), "npm", None, "gcc 7 -Os")
OLD = Level(postgres="11")
WHAT = {"version": "15.3", "provider": None}


@pytest.fixture(autouse=True)
def two_builds_and_a_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_installation", {None: EIGHTEEN, "11": ELEVEN}.__getitem__)
    monkeypatch.setattr(runs, "find_pgbench", lambda *, abroad: EIGHTEEN)
    monkeypatch.setattr(runs, "Remote", lambda _: SimpleNamespace(identity=lambda: WHAT))


def test_provenance_has_every_server_with_its_build_and_no_path(study_of, tmp_path: Path) -> None:
    levels = {
        "old": OLD,
        "elsewhere": Level.model_validate({"storage": {"data": str(tmp_path)}}),
        "theirs": Level(target="crm"),
        "their schema": Level(target={"server": "crm", "own_schema": "bench"}),
        "other": Level(target="postgresql://ann@db.example.org/x"),
    }
    kept = provenance(study_of(levels=levels))
    assert kept["servers"] == [
        {"label": "PostgreSQL 11.22 (npm)", "compiler": "gcc 7 -Os", "configure": None},
        {"label": "PostgreSQL 18.4 (wheel)", "compiler": "gcc 14 -O2", "configure": "--without-icu"},
    ]
    assert kept["targets"] == {"service crm": WHAT, "a server by URI": WHAT}
    assert kept["given_folders"].keys() == {"a given folder"}
    assert kept["given_folders"]["a given folder"]["type"]
    assert "gcc 7 -Os" in kept["builds_differ"]
    assert not any(name in str(kept) for name in (str(tmp_path), "/opt", "db.example"))
    assert "builds_differ" not in provenance(study_of())


def test_builds_differ_only_where_levels_are_compared_with_each_other(plan_of) -> None:
    plan = plan_of(levels={"old": OLD, "old, twice": OLD})
    assert "gcc 7 -Os" in preflight.builds_differ(plan)
    apart = plan.factor.model_copy(update={"against": {"old, twice": "old"}})
    assert preflight.builds_differ(plan.model_copy(update={"factor": apart})) is None


def test_a_study_goes_on_with_the_servers_and_the_load_tool_it_was_begun_with(study_of, monkeypatch) -> None:
    origin = {
        "servers": [{"label": "PostgreSQL 18.4 (wheel)"}] * 2,
        "load_tool": "pgbench of PostgreSQL 18.4 (wheel)",
    }
    study = study_of().changed(provenance=origin)
    runner = runs.Runner(SimpleNamespace(study=study, folder=SimpleNamespace(name="small")))  # type: ignore[arg-type]
    for version, refused in (("18.4", False), ("18.5", True)):
        found = [f"PostgreSQL {version} (wheel)"], f"pgbench of PostgreSQL {version} (wheel)"
        monkeypatch.setattr(runs, "software", lambda plan, found=found: found)
        with (
            pytest.raises(InputError, match=r"begun with PostgreSQL 18\.4 .* here is PostgreSQL 18\.5")
            if refused
            else nullcontext()
        ):
            runner._check_software()
