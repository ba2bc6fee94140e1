"""Processes of ours: run verbatim, stopped whole, with a clean environment, as the right user."""

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchlib.errors import PreflightError, TrialError
from benchlib.host.shell import (
    USER_VARIABLE,
    Shell,
    TimeLimitError,
    clean_environment,
    server_user,
    ticks,
    which,
)

SH = "/bin/sh"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


def alive(pid: int) -> bool:
    """Whether a process still runs; a dead one that nobody has buried does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def eventually_dead(pid: int) -> bool:
    end = time.monotonic() + 5
    while alive(pid) and time.monotonic() < end:
        pass
    return not alive(pid)


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    """A file in which a test's processes leave their numbers; none of them outlives the test."""
    path = tmp_path / "pids"
    path.touch()
    yield path
    for word in path.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(word), signal.SIGKILL)


def test_output_comes_back_as_text_with_the_status() -> None:
    done = Shell().run([SH, "-c", r"printf 'a\r\nb\377'; printf 'oh' >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\r\nb�", "oh")
    assert done.wall_s > 0


def test_output_goes_to_files_verbatim(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("from before")
    done = Shell().run([SH, "-c", r"printf 'a\r\nb\377\0'; printf 'oh' >&2"], stdout=out, stderr=err)
    assert (out.read_bytes(), err.read_bytes()) == (b"a\r\nb\xff\0", b"oh")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_one_output_to_a_file_leaves_the_other_as_text(tmp_path: Path) -> None:
    done = Shell().run([SH, "-c", "echo a; echo b >&2"], stdout=tmp_path / "out")
    assert (done.stdout, done.stderr) == ("", "b\n")


def test_more_output_than_a_pipe_holds_is_no_deadlock() -> None:
    done = Shell().run(
        [sys.executable, "-S", "-c", "import sys; print('x' * 300000); sys.stderr.write('y' * 300000)"]
    )
    assert (len(done.stdout), len(done.stderr)) == (300_001, 300_000)


def test_a_signal_s_end_is_a_negative_status() -> None:
    assert Shell().run([SH, "-c", "kill -9 $$"]).returncode == -9


def test_nothing_is_read_from_the_terminal() -> None:
    assert Shell().run(["cat"]).stdout == ""


def test_what_cannot_be_started_is_a_trial_s_error(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=r"^cannot start /nonexistent/pgbench: No such file or directory$"):
        Shell().run(["/nonexistent/pgbench"])
    closed = tmp_path / "closed"
    closed.write_text("#!/bin/sh\n")
    closed.chmod(0o600)
    with pytest.raises(TrialError, match="Permission denied"):
        Shell().run([closed])
    with pytest.raises(TrialError, match="cannot start"):
        Shell().start(["/nonexistent/postgres"], log=tmp_path / "log")


# --- stopping ----------------------------------------------------------------------


def test_a_time_limit_stops_the_process_and_says_so(notes: Path) -> None:
    with pytest.raises(TimeLimitError, match=r"^sh did not end within 0\.2 s and was stopped$"):
        Shell().run([SH, "-c", f"echo $$ > {notes}; exec sleep 60"], timeout_s=0.2)
    (pid,) = map(int, notes.read_text().split())
    assert eventually_dead(pid)


@pytest.mark.parametrize("to_files", [True, False])
def test_a_time_limit_stops_the_whole_group_even_who_does_not_listen(
    notes: Path, tmp_path: Path, to_files: bool
) -> None:
    deaf = f"(trap '' TERM; echo started >> {tmp_path}/started; exec sleep 60) & echo $! >> {notes}"
    plain = f"sleep 60 & echo $! >> {notes}"
    files = {"stdout": tmp_path / "out", "stderr": tmp_path / "err"} if to_files else {}
    with pytest.raises(TimeLimitError):
        Shell().run([SH, "-c", f"echo $$ >> {notes}; {deaf}; {plain}; wait"], timeout_s=0.5, **files)
    pids = [int(word) for word in notes.read_text().split()]
    assert len(pids) == 3
    assert (tmp_path / "started").exists()
    assert all(eventually_dead(pid) for pid in pids)


def test_an_interruption_stops_the_process_before_it_goes_on(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(process: subprocess.Popen[bytes], **_: object) -> None:
        notes.write_text(str(process.pid))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Shell().run(["sleep", "60"])
    assert eventually_dead(int(notes.read_text()))


def test_a_watcher_is_asked_while_the_process_runs_and_stops_it_by_raising(notes: Path) -> None:
    asked = []

    def watch() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise TrialError("it stalls")

    with pytest.raises(TrialError, match=r"^it stalls$"):
        Shell().run([SH, "-c", f"echo $$ > {notes}; exec sleep 60"], watch=watch)
    assert eventually_dead(int(notes.read_text()))
    assert asked[-1] - asked[0] < 5


@pytest.mark.parametrize("timeout_s", [None, 60])
def test_a_content_watcher_loses_no_output(timeout_s: float | None) -> None:
    script = "import sys, time; print('x' * 300000, flush=True); time.sleep(0.5); print('end')"
    done = Shell().run([sys.executable, "-S", "-c", script], timeout_s=timeout_s, watch=lambda: None)
    assert (len(done.stdout), done.stdout[-4:]) == (300_005, "end\n")


def test_the_time_limit_holds_with_a_watcher_too() -> None:
    with pytest.raises(TimeLimitError, match=r"within 0\.5 s"):
        Shell().run(["sleep", "60"], timeout_s=0.5, watch=lambda: None)


def test_a_process_has_a_session_of_its_own_so_that_ctrl_c_is_ours_to_pass_on() -> None:
    done = Shell().run([SH, "-c", "echo $$; ps -o sid= -p $$ || cut -d' ' -f6 /proc/$$/stat"])
    pid, session = done.stdout.split()
    assert pid == session


def test_a_process_that_stays_appends_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    process = Shell().start([SH, "-c", "echo out; echo err >&2; exec sleep 60"], log=log)
    assert process.poll() is None
    while "err" not in log.read_text():
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    assert log.read_text() == "before\nout\nerr\n"


# --- what it costs ----------------------------------------------------------------


def test_cpu_time_of_the_process_and_its_children_is_counted() -> None:
    burn = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    done = Shell().run([SH, "-c", f"'{sys.executable}' -S -c '{burn}'; true"])
    assert done.cpu_s >= 0.2
    assert done.wall_s >= 0.2
    assert Shell().run(["sleep", "0.05"]).cpu_s < 0.05


# --- surroundings ------------------------------------------------------------------


def test_the_caller_s_database_variables_and_locale_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "PGHOST",
        "PGPORT",
        "PGOPTIONS",
        "PGDATA",
        "PGAPPNAME",
        "LANG",
        "LC_MESSAGES",
        "LC_ALL",
        "TZ",
    ):
        monkeypatch.setenv(name, "foreign")
    text = Shell(environment={"EXTRA": "x"}).run(["env"]).stdout
    variables = dict(line.split("=", 1) for line in text.splitlines())
    assert "foreign" not in variables.values()
    assert not [name for name in variables if name.startswith("PG")]
    assert (variables["LC_ALL"], variables["TZ"], variables["EXTRA"]) == ("C", "UTC", "x")
    assert variables["PATH"] == os.environ["PATH"]
    assert clean_environment({"TZ": "own"})["TZ"] == "own"


def test_a_process_starts_where_it_is_told_to(tmp_path: Path) -> None:
    assert Shell().run(["pwd"]).stdout == "/\n"
    assert Shell().run([SH, "-c", "pwd -P"], cwd=tmp_path).stdout == f"{tmp_path.resolve()}\n"


# --- which control groups it is in ----------------------------------------------------


@pytest.fixture
def groups() -> Iterator[tuple[Path, ...]]:
    """Two control groups on different hierarchies, or one where there is only one hierarchy."""
    roots = [
        Path(disk.mountpoint)
        for disk in psutil.disk_partitions(all=True)
        if disk.fstype in ("cgroup", "cgroup2")
        and os.access(disk.mountpoint, os.W_OK)
        # a process enters a cpuset only when that has been given processors
        and "cpuset" not in disk.opts.split(",")
    ][:2]
    if not roots:
        pytest.skip("no control group hierarchy that this user may change")
    folders = tuple(root / f"benchlib-test-{os.getpid()}" for root in roots)
    for folder in folders:
        folder.mkdir()
    yield folders
    for folder in folders:
        folder.rmdir()


def test_a_process_and_its_children_are_in_the_groups_and_it_is_itself(
    groups: tuple[Path, ...], tmp_path: Path
) -> None:
    shell = Shell(server_user())
    log = tmp_path / "log"
    script = "tr '\\0' ' ' < /proc/$$/cmdline; echo; readlink /proc/$$/fd/0; id -u; cat /proc/$$/cgroup; cat /proc/self/cgroup; exec sleep 60"
    process = shell.start([SH, "-c", script, "me", "two  words"], log=log, groups=groups)
    for _ in ticks(5):
        if process.poll() is not None or "sleep" in Path(f"/proc/{process.pid}/comm").read_text():
            break
    for folder in groups:
        assert (folder / "cgroup.procs").read_text() == f"{process.pid}\n"
    process.send_signal(signal.SIGKILL)
    process.wait(5)
    command, stdin, uid, *inside = log.read_text().splitlines()
    assert command.startswith(f"{SH} -c tr")
    assert command.endswith("me two  words ")
    assert stdin == os.devnull
    assert uid == str(pwd.getpwnam(shell.user).pw_uid if shell.user else os.getuid())
    assert sum(line.endswith(f"/{groups[0].name}") for line in inside) == 2 * len(groups)


def test_a_run_inside_groups_gives_the_same_as_without(groups: tuple[Path, ...], tmp_path: Path) -> None:
    done = Shell().run([SH, "-c", "echo a; cat; sleep 0.1; echo b >&2; exit 3"], groups=groups)
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\n", "b\n")
    assert 0.1 <= done.wall_s < 1
    out = tmp_path / "out"
    assert Shell().run(["printf", "x"], stdout=out, groups=groups).returncode == 0
    assert out.read_text() == "x"
    with pytest.raises(TimeLimitError):
        Shell().run(["sleep", "60"], timeout_s=0.2, groups=groups)
    missing = Shell().run(["/nonexistent/pgbench"], groups=groups)
    assert missing.returncode == 127
    assert "/nonexistent/pgbench: not found" in missing.stderr


def test_a_process_whose_group_is_gone_never_begins(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    words = f"^cannot put a process into the control group {gone}: No such file or directory$"
    with pytest.raises(TrialError, match=words):
        Shell().run(["touch", tmp_path / "begun"], groups=[gone])
    with pytest.raises(TrialError, match=words):
        Shell().start(["touch", tmp_path / "begun"], log=tmp_path / "log", groups=[gone])
    assert not (tmp_path / "begun").exists()


# --- who it is ------------------------------------------------------------------------


def test_an_ordinary_user_runs_servers_as_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv(USER_VARIABLE, "nobody-at-all")
    assert server_user() is None


def test_root_runs_servers_as_somebody_unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"root": 0, "postgres": 101, "nobody": 65534, "bench": 1001}

    def known(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", users[name], users[name], "", "/", ""))

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", known)
    monkeypatch.delenv(USER_VARIABLE, raising=False)
    assert server_user() == "postgres"
    monkeypatch.setenv(USER_VARIABLE, "bench")
    assert server_user() == "bench"
    for wrong in ("root", "ghost"):
        monkeypatch.setenv(USER_VARIABLE, wrong)
        with pytest.raises(
            PreflightError, match=rf"\(tried {wrong}\): set {USER_VARIABLE} to one that exists"
        ):
            server_user()
    monkeypatch.delenv(USER_VARIABLE)
    del users["postgres"]
    assert server_user() == "nobody"
    del users["nobody"]
    with pytest.raises(PreflightError, match="tried postgres, nobody"):
        server_user()


@as_root
def test_a_process_runs_as_the_unprivileged_user_with_no_group_of_root_s() -> None:
    user = server_user()
    assert user
    entry = pwd.getpwnam(user)
    done = Shell(user).run([SH, "-c", "id -u; id -g; id -G"])
    assert done.stdout.split() == [str(entry.pw_uid), str(entry.pw_gid), str(entry.pw_gid)]


@as_root
def test_its_folder_is_private_and_its_own(tmp_path: Path) -> None:
    user = server_user()
    assert user
    folder = Shell(user).make_directory(tmp_path / "data")
    status = folder.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (pwd.getpwnam(user).pw_uid, 0o700)
    assert Shell(user).make_directory(tmp_path / "data") == folder


@as_root
def test_files_are_given_away_with_all_in_them_but_not_what_a_link_leads_to(tmp_path: Path) -> None:
    user = server_user()
    assert user
    uid = pwd.getpwnam(user).pw_uid
    foreign = tmp_path / "foreign"
    foreign.write_text("root's")
    folder = tmp_path / "own"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").touch()
    (folder / "link").symlink_to(foreign)
    (folder / "broken").symlink_to("nowhere")
    Shell(user).own(folder)
    for path in (folder, folder / "deep", folder / "deep" / "file", folder / "link", folder / "broken"):
        assert path.lstat().st_uid == uid
    assert foreign.stat().st_uid == 0
    Shell(user).own(foreign)
    assert foreign.stat().st_uid == uid


def test_oneself_owns_everything_already(tmp_path: Path) -> None:
    before = tmp_path.stat().st_uid
    Shell().own(tmp_path)
    assert tmp_path.stat().st_uid == before
    assert Shell().make_directory(tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_programs_are_found_on_the_path() -> None:
    found = which("sh")
    assert found
    assert found.name == "sh"
    assert which("no-such-program-anywhere") is None


def test_polling_ends() -> None:
    assert list(ticks(0)) == []
    assert len(list(ticks(0.02, pause_s=0.005))) >= 1
