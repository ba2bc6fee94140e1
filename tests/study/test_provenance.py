"""What a study keeps of where it ran: every server with its build, and never a path."""

import json
from pathlib import Path

import pytest

from benchlib.plan.level import Level
from benchlib.server.installations import Installation
from benchlib.server.rights import Target
from benchlib.study import preflight, runs
from benchlib.study.runs import provenance

EIGHTEEN = Installation(
    "18.4", Path("/opt/a/bin"), "wheel", "'--prefix=/opt/a' '--without-icu'", "gcc 14 -O2"
)
ELEVEN = Installation("11.22", Path("/opt/b/bin"), "npm", None, "gcc 7 -Os")


@pytest.fixture
def two_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_installation", lambda name: {None: EIGHTEEN, "11": ELEVEN}[name])
    monkeypatch.setattr(runs, "find_pgbench", lambda *, abroad: EIGHTEEN)


@pytest.mark.usefixtures("two_builds")
def test_provenance_has_every_server_with_its_build_and_no_path(study_of, tmp_path: Path) -> None:
    kept = provenance(study_of(levels={"old": Level(postgres="11")}))
    assert kept["servers"] == [
        {"label": "PostgreSQL 11.22 (npm)", "compiler": "gcc 7 -Os", "configure": None},
        {"label": "PostgreSQL 18.4 (wheel)", "compiler": "gcc 14 -O2", "configure": "--without-icu"},
    ]
    assert "gcc 7 -Os" in kept["builds_differ"]
    assert "builds_differ" not in provenance(study_of())


@pytest.mark.usefixtures("two_builds")
def test_builds_differ_only_where_levels_are_compared_with_each_other(plan_of) -> None:
    levels = {"old": Level(postgres="11"), "old, twice": Level(postgres="11")}
    plan = plan_of(levels=levels)
    assert "gcc 7 -Os" in (preflight.builds_differ(plan) or "")
    apart = plan.factor.model_copy(update={"against": {"old, twice": "old"}})
    assert preflight.builds_differ(plan.model_copy(update={"factor": apart})) is None


class FakeRemote:
    """A server that is not ours and answers."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def identity(self) -> dict[str, object]:
        return {"version": "15.3", "provider": None}


@pytest.mark.usefixtures("two_builds")
def test_a_server_that_is_not_ours_is_asked_what_it_is_and_has_no_installation_here(
    study_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "Remote", FakeRemote)
    levels = {
        "theirs": Level(target="crm"),
        "their schema": Level(target={"server": "crm", "own_schema": "bench"}),
        "other": Level(target="postgresql://ann@db.example.org/x"),
        "old": Level(postgres="11"),
    }
    kept = provenance(study_of(levels=levels))
    assert [s["label"] for s in kept["servers"]] == ["PostgreSQL 11.22 (npm)", "PostgreSQL 18.4 (wheel)"]
    what = {"version": "15.3", "provider": None}
    assert kept["targets"] == {"service crm": what, "a server by URI": what}


@pytest.mark.usefixtures("two_builds")
def test_a_given_folder_is_told_by_its_file_system(study_of, tmp_path: Path) -> None:
    level = Level.model_validate({"storage": {"data": str(tmp_path)}})
    kept = provenance(study_of(levels={"elsewhere": level}))
    assert list(kept["given_folders"]) == ["a given folder"]
    assert kept["given_folders"]["a given folder"]["type"]
    assert str(tmp_path) not in json.dumps(kept)
