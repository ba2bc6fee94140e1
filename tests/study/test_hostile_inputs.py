"""Files that somebody means ill with cost one line and nothing else; what a page shows says nothing of a machine."""

import itertools
import os
import zipfile
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchlib.errors import InputError
from benchlib.host import facts, files
from benchlib.plan.model import Factor
from benchlib.plan.parameters import from_yaml
from benchlib.plan.settings import read_conf
from benchlib.plan.words import scrubbed, unpublished, without
from benchlib.plan.workload import Script, Workload
from benchlib.study import curate
from benchlib.study.store import project_root

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize("text", ["a: &a [*a]", "&a {b: *a}", BOMB, "a: &a 1\nb: [" + "*a, " * 300 + "1]"])
def test_a_yaml_file_that_grows_without_end_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not YAML: it h"):
        from_yaml(text, "levels.yaml")


def test_a_yaml_file_may_use_aliases() -> None:
    assert from_yaml("a: &a {b: 1}\nc: *a\n", "levels.yaml") == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_pipe_or_a_device_is_no_file_of_settings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"plain file|directory"):
            files.read_plain(path)


def test_a_settings_line_without_end_is_a_fault() -> None:
    settings, faults = read_conf("work_mem" + " " * 40_000 + "!")
    assert settings == {}
    assert [fault[:16] for fault in faults] == ["line 1: work_mem"]


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_archive_of_another_compression_is_refused(method: int, tmp_path: Path, data_root: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.writestr("x/study.json", "{}")
    with pytest.raises(InputError, match="compressed in a way"):
        curate.import_study(tmp_path / "x.zip")


def test_an_archive_of_very_many_files_is_refused(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curate, "_MOST_MEMBERS", 3)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for number in range(4):
            archive.writestr(f"x/trials/t{number}/stdout", "")
    with pytest.raises(InputError, match="more than 3 files"):
        curate.import_study(tmp_path / "x.zip")


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", ".hidden", "a/b", "", "a\nb"])
def test_a_workload_s_name_is_no_path(name: str) -> None:
    with pytest.raises(ValidationError):
        Workload(name=name, title="X", scripts=(Script(sql="SELECT 1"),))


def test_a_long_chain_of_comparisons_is_read_and_a_ring_is_refused() -> None:
    names = [f"l{number}" for number in range(1600)]
    chain = dict(itertools.pairwise(names))
    levels = {name: {} for name in ["base", *names]}
    about = {"question": "?", "baseline": "base", "levels": levels}
    assert len(Factor.model_validate({**about, "against": chain}).against) == 1599
    with pytest.raises(ValidationError, match="compared with itself"):
        Factor.model_validate({**about, "against": {**chain, names[-1]: names[0]}})


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            'connection to server at "10.1.2.3", port 5432 failed: FATAL: role "crm" does not exist',
            'connection to server at … failed: FATAL: role "…" does not exist',
        ),
        (
            'connection to server on socket "/run/pg/.s.PGSQL.5432" failed',
            "connection to server on socket … failed",
        ),
        ("could not open /home/ann/bench/run-1/c001/server.log", "could not open …/server.log"),
        ("see postgresql://ann:secret@db.example.org/crm", "see (a URI)"),
        ("host=db1 user=ann password='a b' dbname=x", "host=… user=… password=… dbname=x"),
        ("no route to fe80:0:0:0:1:2:3:4", "no route to (an address)"),
        ("PostgreSQL 16.4 at 12:30:15 took 3.5.1 s", "PostgreSQL 16.4 at 12:30:15 took 3.5.1 s"),
        ("1/2 of the reads and/or writes", "1/2 of the reads and/or writes"),
    ],
)
def test_a_message_is_published_without_addresses_roles_and_folders(said: str, shown: str) -> None:
    assert scrubbed(said) == shown


def test_settings_that_hold_secrets_are_not_published(plan_of) -> None:
    level = {
        "settings": {
            "primary_conninfo": "password=geheim",
            "archive_command": "scp %p ann@x",
            "work_mem": "8MB",
        }
    }
    plan = plan_of(levels={"tuned": level})
    text = without(str(plan.model_dump()), unpublished(plan))
    assert "geheim" not in text
    assert "ann@x" not in text
    assert "8MB" in text


def test_mount_options_are_published_as_far_as_they_say_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mount:
        fstype, opts = "overlay", "rw,noatime,lowerdir=/home/ann,addr=10.0.0.1,username=ann,commit=5"

    monkeypatch.setattr(facts, "mount_of", lambda _: Mount)
    assert facts.file_system(Path("/")) == {"type": "overlay", "options": "rw,noatime,commit=5"}


def test_a_project_whose_notebooks_are_a_link_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what lies beside the link, such as a ``bdb.py``, would be imported in the place of Python's own."""
    (tmp_path / "elsewhere" / "notebooks").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notebooks").symlink_to(tmp_path / "elsewhere" / "notebooks")
    monkeypatch.chdir(tmp_path / "mine")
    assert project_root() not in (tmp_path / "mine", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert project_root() == tmp_path / "elsewhere"
