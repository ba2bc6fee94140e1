"""Files that somebody means ill with cost one line and nothing else; what a page shows says nothing of a machine."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from benchlib.errors import InputError
from benchlib.host import facts
from benchlib.plan.model import Factor
from benchlib.plan.parameters import from_yaml
from benchlib.plan.settings import read_conf
from benchlib.plan.words import scrubbed, unpublished, without
from benchlib.plan.workload import Script, Workload
from benchlib.study.store import project_root

BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 9))
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 50))


@pytest.mark.parametrize(
    "text", ["a: &a [*a]", "&a {b: *a}", BOMB, MERGES, "a: &a 1\nb: [" + "*a, " * 300 + "1]"]
)
def test_a_yaml_file_that_grows_without_end_is_refused_and_aliases_are_not(text: str) -> None:
    with pytest.raises(InputError, match=r"not YAML: (it has )?more than"):
        from_yaml(text, "levels.yaml")
    assert from_yaml("a: &a {b: 1}\nc: *a\n", "levels.yaml") == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_settings_line_without_end_is_a_fault() -> None:
    settings, (fault,) = read_conf("work_mem" + " " * 40_000 + "!")
    assert settings == {}
    assert fault.startswith("line 1: work_mem")


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", ".hidden", "a/b", "", "a\nb"])
def test_a_workload_s_name_is_no_path(name: str) -> None:
    with pytest.raises(ValidationError):
        Workload(name=name, title="X", scripts=(Script(sql="SELECT 1"),))


def test_a_long_chain_of_comparisons_is_read_and_a_ring_is_refused() -> None:
    names = [f"l{number}" for number in range(1600)]
    chain = dict(itertools.pairwise(names))
    about = {"question": "?", "baseline": "base", "levels": {name: {} for name in ["base", *names]}}
    assert len(Factor.model_validate({**about, "against": chain}).against) == 1599
    with pytest.raises(ValidationError, match="compared with itself"):
        Factor.model_validate({**about, "against": {**chain, names[-1]: names[0]}})


SHOWN = {
    'server at "10.1.2.3", port 5432 failed: role "crm" does not exist': 'server at … failed: role "…" does not exist',
    'connection to server on socket "/run/pg/.s.PGSQL.5432" failed': "connection to server on socket … failed",
    "could not open /home/ann/bench/run-1/c001/server.log": "could not open …/server.log",
    "see postgresql://ann:secret@db.example.org/crm": "see (a URI)",
    "host=db1 user=ann password='a b' dbname=x": "host=… user=… password=… dbname=x",
    "no route to fe80:0:0:0:1:2:3:4": "no route to (an address)",
    "host = db1 password='a\\' b' x": "host = … password=… x",
    'could not translate host name "db.corp" to address': 'could not translate host name "…" to address',
    "no route to 2001:db8::1, ::1": "no route to (an address), (an address)",
    "copy /home/Ann Lee/data to /mnt/x": "copy …/data to …/x",
    "1::int, x::text": "1::int, x::text",
    "no route to 10.1.2.3:5432": "no route to (an address)",
    "PostgreSQL 16.4 at 12:30:15 took 3.5.1 s": "PostgreSQL 16.4 at 12:30:15 took 3.5.1 s",
    "1/2 of the reads and/or writes": "1/2 of the reads and/or writes",
}


@pytest.mark.parametrize(("said", "shown"), SHOWN.items())
def test_a_message_is_published_without_addresses_roles_and_folders(said: str, shown: str) -> None:
    assert scrubbed(said) == shown


def test_settings_that_hold_secrets_are_not_published(plan_of) -> None:
    secret = {"primary_conninfo": "password=geheim", "archive_command": "scp %p ann@x"}
    plan = plan_of(levels={"tuned": {"settings": {**secret, "work_mem": "8MB"}}})
    text = without(str(plan.model_dump()), unpublished(plan))
    assert not any(value in text for value in secret.values())
    assert "8MB" in text


def test_mount_options_are_published_as_far_as_they_say_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "rw,noatime,lowerdir=/home/ann,addr=10.0.0.1,username=ann,commit=5"
    monkeypatch.setattr(facts, "mount_of", lambda _: SimpleNamespace(fstype="overlay", opts=options))
    assert facts.file_system(Path("/")) == {"type": "overlay", "options": "rw,noatime,commit=5"}


def test_a_project_whose_notebooks_are_a_link_is_none(tmp_path: Path, monkeypatch) -> None:
    """Else what lies beside the link, such as a ``bdb.py``, would be imported in the place of Python's own."""
    theirs, mine = tmp_path / "elsewhere", tmp_path / "mine"
    (theirs / "notebooks").mkdir(parents=True)
    mine.mkdir()
    (mine / "notebooks").symlink_to(theirs / "notebooks")
    monkeypatch.chdir(mine)
    assert project_root() not in (mine, theirs)
    monkeypatch.chdir(theirs)
    assert project_root() == theirs
