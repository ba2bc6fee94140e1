"""What a server runs with is kept without a word of where it is or whose."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign import Foreign, foreign_server

from benchlib.host.journal import Journal
from benchlib.plan.level import Target
from benchlib.server.parameters import parameters
from benchlib.server.remote import Remote

pytestmark = pytest.mark.pg


@pytest.fixture(scope="module", params=["18", pytest.param("16", marks=pytest.mark.slow)])
def foreign(request: pytest.FixtureRequest) -> Iterator[Foreign]:
    with foreign_server(request.param) as server:
        server.cluster.execute(
            "ALTER SYSTEM SET work_mem = '7MB'",
            "ALTER SYSTEM SET primary_conninfo = 'host=secret.example user=somebody'",
            "ALTER ROLE maker SET random_page_cost = 1.5",
            dbname="postgres",
        )
        server.cluster.execute("SELECT pg_reload_conf()", dbname="postgres")
        server.wait_until_it_shows("work_mem", "7MB")
        yield server


@pytest.fixture
def of_maker(foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """The server as an ordinary role sees it."""
    file = tmp_path / "services"
    file.write_text(foreign.service("maker", more=f"password={foreign.password('maker')}"))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    journal = Journal(tmp_path / "journal")
    yield Remote.open(Target(server="maker"), "test", journal.chapter())
    assert journal.undo() == []


def test_what_its_owner_has_set_stands_beside_postgresql_s_own(of_maker: Remote) -> None:
    found = parameters(of_maker)
    assert found["work_mem"] == {
        "setting": "7168",
        "unit": "kB",
        "boot_val": "4096",
        "source": "configuration file",
    }
    assert found["random_page_cost"]["setting"] == "1.5", "as the sessions of the load have it"
    assert (found["fsync"]["setting"], found["fsync"]["source"]) == ("on", "default")


def test_no_folder_no_host_and_no_name_is_kept(of_maker: Remote, foreign: Foreign) -> None:
    for text in json.dumps(parameters(of_maker)), json.dumps(_as_superuser(foreign)):
        assert "/" not in text
        for secret in ("secret", "somebody", "maker", foreign.cluster.folder.parent.name):
            assert secret not in text
    assert _as_superuser(foreign)["primary_conninfo"]["setting"] == "set"


def _as_superuser(foreign: Foreign) -> dict[str, dict[str, str]]:
    foreign.cluster.database = "postgres"
    return parameters(foreign.cluster)
