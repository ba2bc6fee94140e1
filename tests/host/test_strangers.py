"""Another user of the machine can have us neither obey nor touch anything, nor keep us from running."""

import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import nbformat
import needs
import pytest
from host_parts import refused

from benchlib.errors import PreflightError
from benchlib.host import shell
from benchlib.host.changes import Made
from benchlib.host.guardian import SCRATCH_VARIABLE, guarded_run
from benchlib.host.journal import Journal
from benchlib.host.shell import Shell, server_user
from benchlib.host.sweep import processes_of, sweep
from benchlib.server.installations import describe

pytestmark = [*needs.ROOT]


@pytest.fixture
def precious(tmp_path):
    """A closed folder of root's with a file; nothing of it may change."""
    folder = tmp_path / "precious"
    folder.mkdir(mode=0o700)
    file = folder / "file"
    file.touch(mode=0o600)
    file.write_text("ours")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert file.read_text() == "ours"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, file)] == [0o700, 0o600]


def is_refused(outcome, *words):
    """Whether it is one line with these words, and the status of what is wrong."""
    return outcome.status == 2 and all(word in outcome.line for word in words)


def test_a_strangers_journal_that_seems_root_s_is_not_obeyed(mallory, precious, shared, recover):
    change = {"kind": "written", "path": str(precious / "file"), "former": "theirs", "value": "x"}
    words = [json.dumps({"id": "1", "change": change}) + "\n", "-c", "true"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    messages = []
    # a set-uid program that waits: the kernel says that its command line, which is theirs, is root's
    with mallory.start(*words, executable="/usr/bin/su", **pipes) as process:
        assert Path(f"/proc/{process.pid}/cmdline").stat().st_uid == 0
        mallory.do("mkdir -m 700 $1/run-x && ln -s /proc/$2/cmdline $1/run-x/journal", shared, process.pid)
        assert is_refused(recover(), "run-x belongs to another user: it is left alone")
        with guarded_run(shared, "test", messages.append):
            assert messages == [f"{shared}/run-x belongs to another user: it is left alone"]
        process.kill()
    assert (shared / "run-x" / "journal").is_symlink()


def test_an_open_run_folder_or_linked_journal_is_not_followed(shared, recover):
    (shared / "run-x").mkdir(mode=0o700)
    (shared / "run-x" / "journal").symlink_to("elsewhere")
    for words in ("run-x/journal ", "run-x is not followed"):
        assert is_refused(recover(), f"{shared}/{words}")
        refused(guarded_run(shared, "test"), words)
        (shared / "run-x").chmod(0o755)
    assert (shared / "run-x" / "journal").is_symlink()


def test_a_folder_in_the_place_of_ours_stays(mallory, shared, recover):
    (shared / "run-x").mkdir(mode=0o700)
    Journal(shared / "run-x" / "journal").scope().note(Made(folder=shared / "benchlib-x"))
    mallory.do("mkdir $1/benchlib-x && touch $1/benchlib-x/file", shared)
    outcome = recover()
    assert outcome.status == 1
    assert "benchlib-x belongs to another user" in outcome.err
    assert (shared / "benchlib-x" / "file").exists()


# --- the folders ----------------------------------------------------------------------------

THEIRS = "belongs to another user"


@pytest.mark.parametrize(
    ("theirs", "ours", "place", "words"),
    [
        ('mkdir -m 777 "$1/s" && mkdir -m 700 "$1/s/run-x"', "", "s", THEIRS),
        ('ln -s "$2" "$1/s"', "", "s", THEIRS),
        ('ln -s s "$1/s"', "", "s", THEIRS),
        ('mkdir -m 777 "$1/theirs"; ln -s theirs "$1/s"', 'mkdir "$1/theirs/deep"', "s/deep", THEIRS),
        ("", 'mkdir "$1/real"; ln -s real "$1/s"', "s", "is a link"),
        ("", 'mkdir -p "$1/open/s"; chmod 777 "$1/open"', "open/s", "open can be written to by others"),
    ],
    ids=["made first", "a link", "to itself", "below theirs", "our own link", "open to all"],
)
def test_a_scratch_folder_that_others_can_exchange_is_refused(
    theirs, ours, place, words, mallory, shared, precious, recover, monkeypatch
):
    (precious / "run-x").mkdir(mode=0o700)
    mallory.do(theirs, shared, precious)
    subprocess.run(["sh", "-c", ours, "sh", shared], check=True)
    monkeypatch.setenv(SCRATCH_VARIABLE, str(shared / place))
    assert is_refused(recover(), str(shared), words)
    refused(guarded_run(shared / place, "test"), rf"{words}|a link or no folder")
    with pytest.raises(PreflightError, match=words):
        sweep(shared / place / "run-x")  # as the guardian does
    (precious / "run-x").rmdir()


def test_a_run_folder_that_is_exchanged_all_the_time_is_never_followed(mallory, shared, precious, recover):
    loop = 'cd "$1"; while :; do mkdir -m 700 run-x; rmdir run-x; ln -s "$2" run-x; rm run-x; done'
    with mallory.start("sh", "-c", loop, "sh", shared, precious, stderr=subprocess.DEVNULL) as racer:
        outcomes = [recover() for _ in range(40)]
        racer.kill()
    assert {outcome.status for outcome in outcomes} <= {0, 2}


def test_a_runs_files_are_nobody_elses_and_a_shared_folder_stays_so(mallory, shared):
    with guarded_run(shared, "test") as run:
        (run.folder / "stdout").write_text("secret")
        look = 'ls "$1"; cat "$1/stdout"; test -x "$1" && echo passes'
        assert mallory.do(f"exec 2>/dev/null; {look}", run.folder) == ""
        assert Shell(server_user()).run(["test", "-x", run.folder]).returncode == 0
        assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_a_name_reaches_the_terminal_in_plain_text(mallory, shared, recover):
    mallory.do('mkdir "$1/$(printf "run-\\033[31m")"', shared)
    assert is_refused(recover(), "run-?[31m")


EXCHANGE = """cd "$1"; while sleep 0.02; do for name in $(ls -A); do case $name in
    *.old) ;;
    *) test -L "$name" || { mv "$name" "$name.old"; ln -s "$2" "$name"; } ;;
esac; done; done"""
EXECUTE = """
import sys, pathlib
from benchlib.report.execute import execute
execute(pathlib.Path(sys.argv[1]), {}, pathlib.Path('failed.ipynb'))
"""


def test_root_makes_nothing_in_a_temporary_folder_of_another_user(mallory, shared, precious, tmp_path):
    """There Jupyter would keep the file with the key of root's kernel."""
    cells = [*map(nbformat.v4.new_code_cell, ("x = 1", "import tempfile; tempfile.mkdtemp()"))]
    cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "x.ipynb")
    mallory.do('mkdir "$1"', theirs := shared / "theirs")
    environment = {**os.environ, "TMPDIR": str(theirs), "HOME": str(tmp_path)}
    with mallory.start("sh", "-c", EXCHANGE, "sh", theirs, precious, stderr=subprocess.DEVNULL) as racer:
        argv = [sys.executable, "-c", EXECUTE, tmp_path / "x.ipynb"]
        subprocess.run(argv, env=environment, cwd=tmp_path, check=True, timeout=600)
        racer.kill()
    assert [*theirs.iterdir()] == []


# --- processes and users --------------------------------------------------------------------


def test_what_a_user_may_not_stop_is_not_theirs(mallory, bob, shared):
    words = ("sh", "-c", "read _", "sh", shared / "run-x")
    pipe = {"stdin": subprocess.PIPE, "start_new_session": True}
    with mallory.start(*words, **pipe), bob.start(*words, **pipe) as own, bob.acting():
        assert [process.pid for process in processes_of(shared / "run-x")] == [own.pid]


def test_a_server_that_is_found_is_not_run(mallory, shared):
    script = """mkdir -p "$1" && cd "$1" && for name in postgres initdb; do
        printf '%s\n' "#!/bin/sh" "touch $2" "PostgreSQL 16.9 on x86_64, compiled by cc 1.0, 64-bit" > $name
        chmod 755 $name
    done"""
    mallory.do(script, shared / "theirs" / "bin", shared / "run")
    assert describe(shared / "theirs" / "bin").version == "16.9"
    assert not (shared / "run").exists()


def test_nobody_is_nobody_elses_user(monkeypatch, start):
    entry, others = pwd.getpwnam, {"postgres": "no-such-user"}
    monkeypatch.setattr(shell.pwd, "getpwnam", lambda name: entry(others.get(name, name)))
    monkeypatch.delenv(shell.USER_VARIABLE, raising=False)
    if shell._others_run_as(entry("nobody").pw_uid):
        pytest.skip("something runs as nobody here")
    start("sleep", "99", user="nobody")
    assert server_user() == "nobody"
    orphan = "sleep 99 >/dev/null 2>&1 & echo $!"
    left = subprocess.check_output(["sh", "-c", orphan], user="nobody")
    try:
        with pytest.raises(PreflightError, match=f"set {shell.USER_VARIABLE} to one that"):
            server_user()
        monkeypatch.setenv(shell.USER_VARIABLE, "nobody")
        assert server_user() == "nobody", "who says so may"
    finally:
        os.kill(int(left), 9)
