"""Another user of the machine can have us neither obey nor touch anything, nor keep us from running."""

import json
import os
import pwd
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import needs
import pytest
from conftest import Stranger

from benchlib.cli import main
from benchlib.errors import PreflightError
from benchlib.host import lock as lock_module
from benchlib.host import shell
from benchlib.host.guardian import SCRATCH_VARIABLE, guarded_run
from benchlib.host.lock import held_by, host_lock
from benchlib.host.shell import Shell, server_user
from benchlib.host.sweep import processes_of, sweep
from benchlib.server.installations import describe

pytestmark = [*needs.ROOT]


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
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


@pytest.fixture
def recover(capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[str | int | None, str, str]]:
    def call() -> tuple[str | int | None, str, str]:
        try:
            main(["recover"])
        except SystemExit as reason:
            return reason.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return call


Recover = Callable[[], tuple[str | int | None, str, str]]


def evil_note(target: Path) -> str:
    """A line of a journal that would overwrite a file."""
    change = {"kind": "written", "path": str(target), "former": "theirs", "value": "x"}
    return json.dumps({"id": "1", "change": change}) + "\n"


def is_refused(outcome: tuple[str | int | None, str, str], *words: str) -> bool:
    """Whether it is one line with these words, and the status of what is wrong."""
    status, out, err = outcome
    return status == 2 and out == "" and err.count("\n") == 1 and all(word in err for word in words)


# --- the journal ----------------------------------------------------------------------------


@pytest.fixture
def set_uid(mallory: Stranger, precious: Path) -> Iterator[int]:
    """A set-uid program that waits: the kernel says that its command line, which is theirs, is root's."""
    words = [evil_note(precious / "file"), "-c", "true"]
    with subprocess.Popen(
        words, executable="/usr/bin/su", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        user=mallory.name, group=mallory.name, extra_groups=[],
    ) as process:  # fmt: skip
        yield process.pid
        process.kill()


def test_a_strangers_journal_that_leads_to_what_root_seems_to_own_is_not_obeyed(
    mallory: Stranger, set_uid: int, shared: Path, recover: Recover
) -> None:
    assert Path(f"/proc/{set_uid}/cmdline").stat().st_uid == 0
    mallory.do("mkdir -m 700 $1/run-x && ln -s /proc/$2/cmdline $1/run-x/journal", shared, str(set_uid))
    assert is_refused(recover(), "run-x belongs to somebody else: it is left alone")
    messages: list[str] = []
    with guarded_run(shared, "test", messages.append):
        assert messages == [f"{shared}/run-x belongs to somebody else: it is left alone"]
    assert (shared / "run-x" / "journal").is_symlink()


@pytest.mark.parametrize("link", [os.symlink, os.link, lambda _, journal: os.mkfifo(journal, 0o600)])
def test_a_journal_is_a_plain_file_with_one_name(
    link: Callable[[Path, Path], None], shared: Path, tmp_path: Path, recover: Recover
) -> None:
    (tmp_path / "elsewhere").touch(mode=0o600)
    (shared / "run-x").mkdir(mode=0o700)
    link(tmp_path / "elsewhere", shared / "run-x" / "journal")
    assert is_refused(recover(), f"{shared}/run-x/journal ")
    with pytest.raises(PreflightError, match="run-x/journal"), guarded_run(shared, "test"):
        raise AssertionError("begun")
    assert os.path.lexists(shared / "run-x" / "journal")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "written", "path": "FILE", "former": "theirs", "value": "x"},
        {"kind": "written", "path": "/proc/sys/../../FILE", "former": "theirs", "value": "x"},
        {"kind": "written", "path": "/sys/kernel/uevent_helper", "former": "", "value": "x"},
        {"kind": "mounted", "target": "/proc"},
        {"kind": "attached", "file": "FILE"},
        {"kind": "grouped", "folder": "FOLDER/benchlib-x"},
        {"kind": "made", "folder": "FOLDER"},
    ],
    ids=lambda change: f"{change['kind']}-{next(reversed(change))}",
)
def test_even_our_own_journal_undoes_only_what_we_do(
    change: dict[str, str], precious: Path, shared: Path, recover: Recover
) -> None:
    (shared / "run-x").mkdir(mode=0o700)
    line = json.dumps({"id": "1", "change": change})
    for name, path in (("FILE", precious / "file"), ("FOLDER", precious)):
        line = line.replace(name, str(path))
    (shared / "run-x" / "journal").touch(mode=0o600)
    (shared / "run-x" / "journal").write_text(line + "\n")
    status, _, err = recover()
    assert status == 1
    assert "resists: line 1 of " in err


def test_a_folder_in_the_place_of_ours_is_not_removed(
    mallory: Stranger, shared: Path, recover: Recover
) -> None:
    (shared / "run-x").mkdir(mode=0o700)
    change = {"kind": "made", "folder": f"{shared}/benchlib-x"}
    (shared / "run-x" / "journal").touch(mode=0o600)
    (shared / "run-x" / "journal").write_text(json.dumps({"id": "1", "change": change}) + "\n")
    mallory.do("mkdir $1/benchlib-x && touch $1/benchlib-x/file", shared)
    status, _, err = recover()
    assert status == 1
    assert "benchlib-x belongs to somebody else" in err
    assert (shared / "benchlib-x" / "file").exists()


# --- the folders ----------------------------------------------------------------------------

SCRATCHES = {
    "made first by somebody else": 'mkdir -m 777 "$1/s" && mkdir -m 700 "$1/s/run-x"',
    "a link": 'ln -s "$2" "$1/s"',
    "a link to itself": 'ln -s s "$1/s"',
    "below somebody else's": 'mkdir -m 777 "$1/theirs"; ln -s theirs "$1/s"',
}


@pytest.mark.parametrize("way", SCRATCHES)
def test_a_scratch_folder_that_others_can_exchange_is_refused(
    way: str,
    mallory: Stranger,
    shared: Path,
    precious: Path,
    recover: Recover,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (precious / "run-x").mkdir(mode=0o700)
    mallory.do(SCRATCHES[way], shared, precious)
    scratch = shared / "s" if "below" not in way else shared / "s" / "deep"
    if "below" in way:
        (shared / "theirs" / "deep").mkdir()
    monkeypatch.setenv(SCRATCH_VARIABLE, str(scratch))
    assert is_refused(recover(), str(shared), "belongs to somebody else")
    with (
        pytest.raises(PreflightError, match=r"belongs to somebody else|a link or no folder"),
        guarded_run(scratch, "test"),
    ):
        raise AssertionError("begun")
    with pytest.raises(PreflightError, match="belongs to somebody else"):
        sweep(scratch / "run-x")  # as the guardian does
    assert (precious / "run-x").is_dir()
    (precious / "run-x").rmdir()


def test_a_scratch_folder_that_is_a_link_of_our_own_is_refused_too(
    shared: Path, recover: Recover, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "real").mkdir()
    (shared / "s").symlink_to("real")
    monkeypatch.setenv(SCRATCH_VARIABLE, str(shared / "s"))
    assert is_refused(recover(), "is a link")
    with pytest.raises(PreflightError, match="is a link"), guarded_run(shared / "s", "test"):
        raise AssertionError("begun")


def test_a_folder_that_all_may_write_to_and_is_not_sticky_is_refused_in_a_scratch_folders_path(
    shared: Path, recover: Recover, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "open" / "s").mkdir(parents=True)
    (shared / "open").chmod(0o777)
    monkeypatch.setenv(SCRATCH_VARIABLE, str(shared / "open" / "s"))
    assert is_refused(recover(), "open can be written to by others")


def test_a_run_folder_that_is_exchanged_all_the_time_is_never_followed(
    mallory: Stranger, shared: Path, precious: Path, recover: Recover
) -> None:
    loop = 'cd "$1"; while :; do mkdir -m 700 run-x; rmdir run-x; ln -s "$2" run-x; rm run-x; done'
    with mallory.start("sh", "-c", loop, "sh", shared, precious, stderr=subprocess.DEVNULL) as racer:
        outcomes = [recover() for _ in range(40)]
        racer.kill()
    assert {status for status, _, _ in outcomes} <= {0, 2}


def test_the_mode_of_a_shared_folder_stays(shared: Path) -> None:
    with guarded_run(shared, "test"):
        assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_a_runs_files_are_nobody_elses_business(mallory: Stranger, shared: Path) -> None:
    with guarded_run(shared, "test") as run:
        (run.folder / "stdout").write_text("secret")
        look = 'ls "$1"; cat "$1/stdout"; test -x "$1" && echo passes'
        assert mallory.do(f"exec 2>/dev/null; {look}", run.folder) == ""
        assert Shell(server_user()).run(["test", "-x", run.folder]).returncode == 0


def test_a_name_does_not_reach_the_terminal_as_it_is(
    mallory: Stranger, shared: Path, recover: Recover
) -> None:
    mallory.do('mkdir "$1/$(printf "run-\\033[31m")"', shared)
    assert is_refused(recover(), "run-?[31m")


def test_what_a_user_may_not_stop_is_none_of_their_runs(
    mallory: Stranger, bob: Stranger, shared: Path
) -> None:
    words = ("sh", "-c", "read _", "sh", shared / "run-x")
    with (
        mallory.start(*words, stdin=subprocess.PIPE),
        bob.start(*words, stdin=subprocess.PIPE) as own,
        user(bob),
    ):
        assert [process.pid for process in processes_of(shared / "run-x")] == [own.pid]


# --- the lock -------------------------------------------------------------------------------


@contextmanager
def user(one: Stranger) -> Iterator[None]:
    """Be another user meanwhile."""
    os.seteuid(one.uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait long, and sees no runs of others on this machine."""
    monkeypatch.setattr(lock_module, "_CLEANING_LIMIT_S", 0.1)
    monkeypatch.setattr(lock_module, "_guarded_users", set)


@pytest.fixture
def shared_lock(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(lock_module.LOCK_VARIABLE, str(shared / "lock"))
    return shared / "lock"


@contextmanager
def held(lock: Path, one: Stranger) -> Iterator[None]:
    """Somebody's process holds the lock, which all may write to."""
    one.do('touch "$1" && chmod 666 "$1"', lock)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with one.start("flock", lock, "sh", "-c", "echo; read _", **pipes) as holder:
        assert holder.stdout
        holder.stdout.readline()
        yield


def test_a_lock_that_no_run_holds_keeps_nobody_from_running(
    impatient: None, mallory: Stranger, bob: Stranger, shared_lock: Path
) -> None:
    with held(shared_lock, mallory):
        shared_lock.write_text("\x1b[2Jx (process 1, since yesterday)")
        assert held_by() is None
        messages: list[str] = []
        with host_lock("root's", messages.append):
            pass
        with user(bob), host_lock("bob's", messages.append):
            pass
        assert [line for line in messages if "is passed over" in line] == [messages[-1]] * 2
        assert all(line.isprintable() for line in messages)


@pytest.mark.parametrize(
    "make", ['touch "$1"; chmod 600 "$1"', 'mkdir "$1"', 'ln -s /etc/passwd "$1"', 'mkfifo -m 666 "$1"']
)
def test_a_lock_that_a_stranger_has_spoilt_keeps_nobody_from_running(
    make: str, impatient: None, mallory: Stranger, bob: Stranger, shared_lock: Path
) -> None:
    mallory.do(make, shared_lock)
    messages: list[str] = []
    with user(bob), host_lock("bob's", messages.append):
        pass
    assert messages == [f"the lock {shared_lock} is in the hands of what is no run: it is passed over"]


def test_a_run_of_another_user_is_waited_for(
    impatient: None, mallory: Stranger, shared_lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "_guarded_users", lambda: {mallory.uid})
    with held(shared_lock, mallory):
        shared_lock.write_text("\x1b[2Jstudy")
        with pytest.raises(PreflightError, match=r"^\?\[2Jstudy is running here"), host_lock("x"):
            raise AssertionError("two at once")


# --- programs and users ---------------------------------------------------------------------


def test_a_server_that_is_found_is_not_run(mallory: Stranger, shared: Path) -> None:
    script = """mkdir -p "$1" && cd "$1" && for name in postgres initdb; do
        printf '%s\n' "#!/bin/sh" "touch $2" "PostgreSQL 16.9 on x86_64, compiled by cc 1.0, 64-bit" > $name
        chmod 755 $name
    done"""
    mallory.do(script, shared / "theirs" / "bin", shared / "run")
    found = describe(shared / "theirs" / "bin")
    assert found
    assert found.version == "16.9"
    assert not (shared / "run").exists()


def test_nobody_is_nobody_elses_user(monkeypatch: pytest.MonkeyPatch) -> None:
    known = pwd.getpwnam
    monkeypatch.setattr(
        shell.pwd, "getpwnam", lambda name: known({"postgres": "no-such-user"}.get(name, name))
    )
    monkeypatch.delenv(shell.USER_VARIABLE, raising=False)
    if shell._others_run_as(known("nobody").pw_uid):
        pytest.skip("something runs as nobody here")
    with subprocess.Popen(["sleep", "99"], user="nobody") as ours:
        assert server_user() == "nobody"
        ours.kill()
    start = "sleep 99 >/dev/null 2>&1 & echo $!"  # left by its parent
    left = subprocess.run(["sh", "-c", start], user="nobody", stdout=subprocess.PIPE, check=True).stdout
    try:
        with pytest.raises(PreflightError, match=f"set {shell.USER_VARIABLE} to one that"):
            server_user()
        monkeypatch.setenv(shell.USER_VARIABLE, "nobody")
        assert server_user() == "nobody", "who says so may"
    finally:
        os.kill(int(left), 9)
