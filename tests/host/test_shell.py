"""Processes of ours: run verbatim, stopped whole, with a clean environment, as the right user."""

import contextlib
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import needs
import psutil
import pytest

from benchlib.errors import PreflightError, TrialError
from benchlib.host.shell import USER_VARIABLE, Shell, allow_open_files, known, server_user, ticks, which

SH = "/bin/sh"
PATIENCE_S = 60.0
as_root = needs.root


def eventually_dead(pid: int) -> bool:
    """Whether a process ends; a dead one that nobody has buried runs no more."""
    for _ in ticks(PATIENCE_S):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                continue
        return True
    return False


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A file in which a test's processes leave their numbers; none of them outlives the test."""
    path = tmp_path / "pids"
    path.touch()
    yield path
    for pid in path.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_output_comes_back_as_text_with_the_status() -> None:
    done = Shell().run([SH, "-c", r"cat; printf 'a\r\nb\377'; printf 'oh' >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\r\nb�", "oh")
    assert done.wall_s >= 0
    assert Shell().run([SH, "-c", "kill -9 $$"]).returncode == -9


def test_output_goes_to_files_verbatim(tmp_path: Path) -> None:
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
    stdout.write_text("from before")
    done = Shell().run([SH, "-c", r"printf 'a\r\nb\377\0'; printf 'oh' >&2"], stdout=stdout, stderr=stderr)
    assert (stdout.read_bytes(), stderr.read_bytes()) == (b"a\r\nb\xff\0", b"oh")
    assert (done.stdout, done.stderr) == ("", "")


def test_what_cannot_be_started_is_a_trial_s_error() -> None:
    with pytest.raises(
        TrialError, match=r"^cannot start /nonexistent/pgbench \(No such file or directory\)$"
    ):
        Shell().run(["/nonexistent/pgbench"])


def test_cpu_time_of_the_process_and_its_children_is_counted() -> None:
    # by the clock that counts a child's time; so that only what is rounded can be missing
    burn = "import os\nwhile sum(os.times()[:2]) < 0.2: pass"
    done = Shell().run([SH, "-c", f"'{sys.executable}' -S -c '{burn}'; true"])
    assert done.cpu_s > 0.1


# --- stopping ----------------------------------------------------------------------


def test_a_time_limit_stops_the_process_and_says_so() -> None:
    with pytest.raises(TrialError, match=r"^sleep did not end within 0\.3 s and was stopped$"):
        Shell().run(["sleep", "61.25"], timeout_s=0.3)
    assert not [child for child in psutil.Process().children() if "61.25" in (known(child.cmdline) or ())]


def test_a_watcher_that_raises_stops_the_whole_group_even_who_does_not_listen(
    pids: Path, tmp_path: Path
) -> None:
    def watch() -> None:
        if len(pids.read_text().split()) == 3 and (tmp_path / "deaf").exists():
            raise TrialError("it stalls")

    deaf = '(trap \'\' TERM; echo > "$2"; exec sleep 60) & echo $! >> "$1"'
    plain = 'sleep 60 & echo $! >> "$1"'
    argv = [SH, "-c", f'echo $$ >> "$1"; {deaf}; {plain}; wait', SH, pids, tmp_path / "deaf"]
    with pytest.raises(TrialError, match=r"^it stalls$"):
        Shell().run(argv, watch=watch)
    assert all(eventually_dead(int(pid)) for pid in pids.read_text().split())


def test_an_interruption_stops_the_process_before_it_goes_on(
    pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(process: subprocess.Popen[bytes], **_: object) -> None:
        pids.write_text(str(process.pid))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Shell().run(["sleep", "60"])
    assert eventually_dead(int(pids.read_text()))


def test_a_process_has_a_session_of_its_own_so_that_ctrl_c_is_ours_to_pass_on() -> None:
    done = Shell().run([SH, "-c", "echo $$; ps -o sid= -p $$ || cut -d' ' -f6 /proc/$$/stat"])
    pid, session = done.stdout.split()
    assert pid == session


def test_a_process_that_stays_appends_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    process = Shell().start([SH, "-c", "echo out; echo err >&2; exec sleep 60"], log=log)
    assert process.poll() is None
    assert any("err" in log.read_text() for _ in ticks(PATIENCE_S))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert log.read_text() == "before\nout\nerr\n"


# --- surroundings ------------------------------------------------------------------


def test_the_caller_s_database_variables_and_locale_stay_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PGHOST", "PGOPTIONS", "PGDATA", "LANG", "LC_MESSAGES", "LC_ALL", "TZ"):
        monkeypatch.setenv(name, "foreign")
    done = Shell(environment={"EXTRA": "x"}).run([SH, "-c", "pwd -P; env"], cwd=tmp_path)
    folder, *lines = done.stdout.splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    assert folder == str(tmp_path.resolve())
    assert "foreign" not in variables.values()
    assert (variables["LC_ALL"], variables["TZ"], variables["EXTRA"]) == ("C", "UTC", "x")
    assert variables["PATH"].startswith(os.environ["PATH"])
    assert Shell(environment={"TZ": "own"}).run([SH, "-c", "pwd; echo $TZ"]).stdout == "/\nown\n"


@pytest.mark.skipif(shutil.which("chroot", path="/usr/sbin:/sbin") is None, reason="no chroot in sbin")
def test_programs_of_the_system_are_run_also_where_the_path_lacks_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program = which("chroot")
    assert program
    assert program.parent.name == "sbin"
    assert Shell().run(["chroot", "--version"]).returncode == 0


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
    script = (
        "tr '\\0' ' ' < /proc/$$/cmdline; echo; readlink /proc/$$/fd/0; id -u; cat /proc/$$/cgroup; "
        "cat /proc/self/cgroup; exec sleep 60"
    )
    process = shell.start([SH, "-c", script, "me", "two  words"], log=log, groups=groups)
    for _ in ticks(PATIENCE_S):
        if process.poll() is not None or "sleep" in Path(f"/proc/{process.pid}/comm").read_text():
            break
    for folder in groups:
        assert (folder / "cgroup.procs").read_text() == f"{process.pid}\n"
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    command, stdin, uid, *inside = log.read_text().splitlines()
    assert command.startswith(f"{SH} -c tr")
    assert command.endswith("me two  words ")
    assert stdin == os.devnull
    assert uid == str(pwd.getpwnam(shell.user).pw_uid if shell.user else os.getuid())
    assert sum(line.endswith(f"/{groups[0].name}") for line in inside) == 2 * len(groups)


def test_a_process_whose_group_is_gone_never_begins(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    process = Shell().start(["touch", tmp_path / "begun"], log=tmp_path / "log", groups=[gone])
    assert process.wait(PATIENCE_S)
    assert f"{gone}/cgroup.procs" in (tmp_path / "log").read_text()
    assert not (tmp_path / "begun").exists()


# --- who it is ------------------------------------------------------------------------


def test_an_ordinary_user_runs_servers_as_oneself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv(USER_VARIABLE, "nobody-at-all")
    assert server_user() is None
    assert Shell().make_directory(tmp_path / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("named", "users", "runs_them"),
    [
        (None, {"postgres": 101, "nobody": 65534}, "postgres"),
        (None, {"nobody": 65534}, "nobody"),
        ("bench", {"postgres": 101, "bench": 1001}, "bench"),
        ("root", {"postgres": 101, "root": 0}, None),
        ("ghost", {"postgres": 101}, None),
    ],
)
def test_root_runs_servers_as_somebody_unprivileged(
    monkeypatch: pytest.MonkeyPatch, named: str | None, users: dict[str, int], runs_them: str | None
) -> None:
    def known(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", users[name], users[name], "", "/", ""))

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(()))  # who runs as nobody here is another matter
    monkeypatch.setattr(pwd, "getpwnam", known)
    monkeypatch.setenv(USER_VARIABLE, named or "")
    if runs_them:
        assert server_user() == runs_them
    else:
        with pytest.raises(PreflightError, match=rf"\(tried {named or 'postgres, nobody'}\): set "):
            server_user()


@as_root
def test_a_process_runs_as_the_unprivileged_user_with_no_group_of_root_s(tmp_path: Path) -> None:
    user = server_user()
    assert user
    entry = pwd.getpwnam(user)
    done = Shell(user).run([SH, "-c", "id -u; id -g; id -G"])
    assert done.stdout.split() == [str(entry.pw_uid), str(entry.pw_gid), str(entry.pw_gid)]
    for _ in range(2):
        status = Shell(user).make_directory(tmp_path / "private").stat()
        assert (status.st_uid, status.st_mode & 0o777) == (entry.pw_uid, 0o700)


@as_root
def test_a_file_is_given_away_and_what_a_link_leads_to_is_not(tmp_path: Path) -> None:
    shell = Shell(server_user())
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic link"):
        shell.own(tmp_path / "link")
    assert (tmp_path / "file").stat().st_uid == 0
    shell.own(tmp_path / "file")
    assert (tmp_path / "file").stat().st_uid == shell.uid


@pytest.mark.parametrize(
    ("limits", "wanted"), [((64, 64), None), ((64, 4096), (256, 4096)), ((1024, -1), (1024, -1))]
)
def test_too_few_open_files_are_told_or_raised(
    limits: tuple[int, int], wanted: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_force = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda which: in_force[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: in_force.append(pair))
    with (
        contextlib.nullcontext()
        if wanted
        else pytest.raises(PreflightError, match="only 64 files may be open")
    ):
        allow_open_files()
    assert in_force[-1] == (wanted or limits)
