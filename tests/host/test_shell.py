"""Processes of ours: run verbatim, stopped whole, with a clean environment, as the right user."""

import os
import pwd
import resource
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
from clusters import eventually
from host_parts import GROUPS, is_alive
from needs import root

from benchlib.errors import PreflightError, TrialError
from benchlib.host.shell import USER_VARIABLE, Shell, allow_open_files, known, server_user

SH = "/bin/sh"


def test_output_comes_back_as_text_with_the_status_or_goes_to_files_verbatim(tmp_path):
    argv = [SH, "-c", r"cat; printf 'a\r\nb\377'; printf 'oh' >&2; exit 3"]
    done = Shell().run(argv)
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\r\nb�", "oh")
    assert done.wall_s >= 0
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
    stdout.write_text("from before")
    done = Shell().run(argv, stdout=stdout, stderr=stderr)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert (stdout.read_bytes(), stderr.read_bytes()) == (b"a\r\nb\xff", b"oh")
    assert Shell().run([SH, "-c", "kill -9 $$"]).returncode == -9


def test_cpu_time_of_the_process_and_its_children_is_counted():
    # by the clock that counts a child's time; so that only what is rounded can be missing
    burn = "import os\nwhile sum(os.times()[:2]) < 0.2: pass"
    done = Shell().run([SH, "-c", f"'{sys.executable}' -S -c '{burn}'; true"])
    assert done.cpu_s > 0.1


# --- stopping ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "timeout_s", "message"),
    [
        (["/nonexistent/pgbench"], 600, r"cannot start /nonexistent/pgbench \(No such file or directory\)"),
        (["sleep", "61.25"], 0.3, r"sleep did not end within 0\.3 s and was stopped"),
        ([SH, "-c", "kill -STOP $$; sleep 61.25"], 600, "sh stood still, stopped by a signal, and was ended"),
    ],
)
def test_a_process_that_does_not_run_is_an_error_and_leaves_nothing(argv, timeout_s, message, monkeypatch):
    monkeypatch.setattr("benchlib.host.shell._STANDSTILL_S", 0.3)
    with pytest.raises(TrialError, match=f"^{message}$"):
        Shell().run(argv, timeout_s=timeout_s)
    assert not [child for child in psutil.Process().children() if "61.25" in str(known(child.cmdline))]


@pytest.mark.parametrize("error", [TrialError, KeyboardInterrupt])
def test_an_interruption_stops_even_who_is_deaf(error, tmp_path):
    pids, processes = tmp_path / "pids", []

    def watch():
        if len(text := pids.read_text().split()) == 3 and (tmp_path / "deaf").exists():
            processes.extend(psutil.Process(int(pid)) for pid in text)
            raise error

    deaf = '(trap \'\' TERM; echo > "$2"; exec sleep 60) & echo $! >> "$1"'
    script = f'echo $$ > "$1"; {deaf}; sleep 60 & echo $! >> "$1"; wait'
    pids.touch()
    with pytest.raises(error):
        Shell().run([SH, "-c", script, SH, pids, tmp_path / "deaf"], watch=watch)
    assert eventually(lambda: not any(map(is_alive, processes)))


def test_a_process_that_stays_appends_to_its_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    process = Shell().start([SH, "-c", "echo out; echo err >&2; exec sleep 60"], log=log)
    assert eventually(lambda: "err" in log.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    assert log.read_text() == "before\nout\nerr\n"


# --- surroundings ------------------------------------------------------------------


def test_the_caller_s_variables_stay_outside(monkeypatch, tmp_path):
    for name in ("PGHOST", "PGOPTIONS", "PGDATA", "LANG", "LC_MESSAGES", "LC_ALL", "TZ"):
        monkeypatch.setenv(name, "foreign")
    done = Shell(environment={"EXTRA": "x"}).run([SH, "-c", "pwd -P; env"], cwd=tmp_path)
    folder, *lines = done.stdout.splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    assert folder == str(tmp_path.resolve())
    assert "foreign" not in variables.values()
    assert (variables["LC_ALL"], variables["TZ"], variables["EXTRA"]) == ("C", "UTC", "x")
    assert variables["PATH"] == f"{os.environ['PATH']}:/usr/sbin:/sbin", "not every root has these"
    assert Shell(environment={"TZ": "own"}).run([SH, "-c", "pwd; echo $TZ"]).stdout == "/\nown\n"


# --- which control groups it is in ----------------------------------------------------


@pytest.mark.skipif(not GROUPS, reason="no control group hierarchy that this user may change")
def test_a_process_is_in_its_groups_and_is_itself(group, tmp_path):
    shell, log, groups = Shell(server_user()), tmp_path / "log", [*map(group, GROUPS[:2])]
    look = r"tr '\0' ' ' < /proc/$$/cmdline; echo; readlink /proc/$$/fd/0; id -u"
    script = f"{look}; cat /proc/$$/cgroup; cat /proc/self/cgroup; exec sleep 60"
    process = shell.start([SH, "-c", script, "me", "two  words"], log=log, groups=groups)
    assert eventually(lambda: "sleep" in Path(f"/proc/{process.pid}/comm").read_text())
    assert [(folder / "cgroup.procs").read_text() for folder in groups] == [f"{process.pid}\n"] * len(groups)
    process.kill()
    process.wait(60)
    command, stdin, uid, *inside = log.read_text().splitlines()
    assert command.startswith(f"{SH} -c tr")
    assert command.endswith("me two  words ")
    assert (stdin, uid) == (os.devnull, str(shell.uid))
    assert sum(line.endswith(f"/{groups[0].name}") for line in inside) == 2 * len(groups)


def test_a_process_whose_group_is_gone_never_begins(tmp_path):
    gone = tmp_path / "gone"
    process = Shell().start(["touch", tmp_path / "begun"], log=tmp_path / "log", groups=[gone])
    assert process.wait(60)
    assert f"{gone}/cgroup.procs" in (tmp_path / "log").read_text()
    assert not (tmp_path / "begun").exists()


# --- who it is ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("euid", "named", "users", "runs_them"),
    [
        (1000, "nobody-at-all", {}, None),
        (0, "", {"postgres": 101, "nobody": 65534}, "postgres"),
        (0, "", {"nobody": 65534}, "nobody"),
        (0, "bench", {"postgres": 101, "bench": 1001}, "bench"),
        (0, "root", {"postgres": 101, "root": 0}, PreflightError),
        (0, "ghost", {"postgres": 101}, PreflightError),
    ],
)
def test_root_runs_servers_as_another_and_other_users_themselves(euid, named, users, runs_them, monkeypatch):
    def entry(name):
        return pwd.struct_passwd((name, "x", users[name], users[name], "", "/", ""))

    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(()))  # who runs as nobody here is another matter
    monkeypatch.setattr(pwd, "getpwnam", entry)
    monkeypatch.setenv(USER_VARIABLE, named)
    refused = pytest.raises(PreflightError, match=rf"\(tried {named}\): set ")
    with refused if runs_them is PreflightError else nullcontext():
        assert server_user() == runs_them


@root
def test_a_process_runs_as_the_user_who_is_given_files_and_no_links(tmp_path):
    shell, file, link = Shell(server_user()), tmp_path / "file", tmp_path / "link"
    entry = pwd.getpwnam(shell.user or "root")
    assert entry.pw_uid
    ids = shell.run([SH, "-c", "id -u; id -g; id -G"]).stdout.split()
    assert ids == [str(entry.pw_uid), str(entry.pw_gid), str(entry.pw_gid)]
    for _ in range(2):
        status = shell.make_directory(tmp_path / "private").stat()
        assert (status.st_uid, status.st_mode & 0o777) == (entry.pw_uid, 0o700)
    file.touch()
    link.symlink_to("file")
    with pytest.raises(OSError, match="symbolic link"):
        shell.own(link)
    assert file.stat().st_uid == 0
    shell.own(file)
    assert file.stat().st_uid == shell.uid


@pytest.mark.parametrize(
    ("limits", "wanted"), [((64, 64), None), ((64, 4096), (256, 4096)), ((1024, -1), (1024, -1))]
)
def test_too_few_open_files_are_told(limits, wanted, monkeypatch):
    in_force = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda which: in_force[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: in_force.append(pair))
    with nullcontext() if wanted else pytest.raises(PreflightError, match="only 64 files may be open"):
        allow_open_files()
    assert in_force[-1] == (wanted or limits)
