"""What a server runs with is kept without a word of where it is or whose."""

import json

import pytest
from foreign import Foreign

from benchlib.host.journal import Journal
from benchlib.server.remote import Remote
from benchlib.server.rights import Target

pytestmark = pytest.mark.pg


def test_what_its_owner_has_set_and_neither_folder_nor_host_nor_name(
    foreign: Foreign, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with foreign.given(
        "ALTER SYSTEM SET work_mem = '7MB'",
        "ALTER SYSTEM SET primary_conninfo = 'host=secret.example user=somebody'",
        "ALTER ROLE maker SET random_page_cost = 1.5",
        "SELECT pg_reload_conf()",
        back="ALTER SYSTEM RESET work_mem;ALTER SYSTEM RESET primary_conninfo;SELECT pg_reload_conf();"
        "ALTER ROLE maker RESET random_page_cost",
    ):
        foreign.wait_until_it_shows("work_mem", "7MB")
        with journal.chapter() as chapter:
            of_maker = Remote.open(Target(server="maker"), chapter).parameters()
        monkeypatch.setattr(foreign.cluster, "database", "postgres")
        of_owner = foreign.cluster.parameters()
    foreign.wait_until_it_shows("work_mem", "4MB")
    assert of_maker["work_mem"] == {
        "setting": "7168",
        "unit": "kB",
        "boot_val": "4096",
        "source": "configuration file",
    }
    assert of_maker["random_page_cost"]["setting"] == "1.5", "as the sessions of the load have it"
    assert (of_maker["fsync"]["setting"], of_maker["fsync"]["source"]) == ("on", "default")
    assert of_owner["primary_conninfo"]["setting"] == "set"
    for text in json.dumps(of_maker), json.dumps(of_owner):
        assert "/" not in text
        for secret in ("secret", "somebody", "maker", foreign.cluster.folder.parent.name):
            assert secret not in text
