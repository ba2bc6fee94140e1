"""The load tools: their command lines, their reports in the same words, and runs that cannot be believed."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fakes import pgbench_output

from benchlib.errors import LoadError, PreflightError
from benchlib.host.shell import Shell
from benchlib.load import sysbench
from benchlib.load.pgbench import LOADING, Pgbench, PgbenchInit
from benchlib.load.sysbench import Sysbench
from benchlib.load.tool import Connection, Job, LoadTool
from benchlib.load.tools import check, load_tool, read
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load
from benchlib.plan.workload import Script, Tool, Workload
from benchlib.server.installations import find_pgbench

HERE = Connection()
SOCKET = Connection(host="/run/x", port=5432, user="postgres", dbname="bench")
NOWHERE = Connection(host="/nonexistent/sockets", port=5432, user="postgres", dbname="bench")
UNREACHED = 'connection to server on socket "/nonexistent/sockets/.s.PGSQL.5432" failed'
PGBENCH, LOADER, SYSBENCH = Pgbench(Path("pgbench")), PgbenchInit(Path("pgbench")), Sysbench(Path("sysbench"))
TEXTS = Path(__file__).parent / "parse" / "texts"
STDOUT, STDERR = pgbench_output(tps=2000)
LOADED, DRIVEN = ((TEXTS / f"{name}.txt").read_text() for name in ("pgbench-init-17", "sysbench-1.0"))


def job(name: str, load: Load | None = None, at: Connection = HERE, scale: int = 9, **more: Any) -> Job:
    """A job of a workload that comes along, each of its scripts in a file whose path holds what begins a weight."""
    workload = load_workload(name)
    scripts = [(each, Path(f"/a@b/{n}.sql")) for n, each in enumerate(workload.scripts)]
    return Job(at, workload, load or Load(), scale, 7, scripts, **more)


# --- command lines ------------------------------------------------------------------------

EVERY_OPTION = Load(
    clients=5, threads=2, duration_s=60, rate=250.5, latency_limit_ms=50, max_tries=3, protocol="prepared",
    connect_per_transaction=True, report_per_command=True, variables={"rows": 1000},
)  # fmt: skip
AT_SOCKET = "--db-driver=pgsql --pgsql-host=/run/x --pgsql-port=5432 --pgsql-user=postgres --pgsql-db=bench"
ELSEWHERE = "--db-driver=pgsql --pgsql-host= --pgsql-port= --pgsql-user= --pgsql-db=ours"


def test_pgbench_is_told_a_load_and_the_scale_only_for_scripts_of_ones_own_on_its_tables() -> None:
    built_in = job("tpcb-like", Load(clients=100, threads=200, duration_s=300), SOCKET)
    assert " ".join(PGBENCH.argv(built_in)) == (
        "pgbench --host=/run/x --port=5432 --username=postgres --client=100 --jobs=100 --protocol=simple --time=300 --no-vacuum "
        "--progress=1 --random-seed=7 --builtin=tpcb-like@1 bench"
    )
    assert " ".join(PGBENCH.argv(job("mixed", EVERY_OPTION, log_prefix=Path("/x/log")))) == (
        "pgbench --client=5 --jobs=2 --protocol=prepared --time=60 --no-vacuum --progress=1 --rate=250.5 --latency-limit=50 "
        "--max-tries=3 --connect --report-per-command --random-seed=7 --scale=9 --log --log-prefix=/x/log --define=rows=1000 "
        "--file=/a@b/0.sql@7 --file=/a@b/1.sql@2 --file=/a@b/2.sql@1 bench"
    )
    assert "--scale=9" not in PGBENCH.argv(job("joins"))
    assert "--file=/a@b/0.sql@1" in PGBENCH.argv(job("insert"))


def test_pgbench_makes_its_tables_with_pages_as_full_as_the_workload_says() -> None:
    made = ["pgbench", "--initialize", "--scale=10000", "--fillfactor=90", "--quiet", "bench"]
    assert PGBENCH.fill_argv(HERE, load_workload("tpcb-like-90"), 10_000) == made
    assert LOADER.argv(job("load", scale=10_000)) == made
    assert not any("fillfactor" in each for each in PGBENCH.fill_argv(HERE, load_workload("tpcb-like"), 1))
    assert PGBENCH.fill_argv(HERE, load_workload("joins"), 1) == []
    assert LOADER.fill_argv(HERE, load_workload("load"), 1) == []


def test_sysbench_is_told_a_load_and_of_a_server_elsewhere_only_the_database() -> None:
    """libpq finds the rest in the environment, and has to be left to: sysbench's own defaults are others."""
    workload = load_workload("sysbench-write-only")
    assert workload.sysbench is not None
    size = f"--tables={workload.sysbench.tables} --table-size={workload.sysbench.rows_per_scale * 9} --rand-type=uniform"
    many = Load(clients=1000, threads=8, protocol="prepared", duration_s=600)
    assert " ".join(SYSBENCH.argv(job("sysbench-write-only", many, SOCKET))) == (
        f"sysbench oltp_write_only {AT_SOCKET} {size} --threads=1000 --time=600 --events=0 --rate=0 --db-ps-mode=auto "
        "--rand-seed=7 --report-interval=1 run"
    )
    assert " ".join(SYSBENCH.fill_argv(SOCKET, workload, 9)) == (
        f"sysbench oltp_write_only {AT_SOCKET} {size} --threads={min(4, workload.sysbench.tables)} prepare"
    )
    assert f"{ELSEWHERE} {size}" in " ".join(SYSBENCH.fill_argv(Connection(dbname="ours"), workload, 9))
    assert "--db-ps-mode=disable" in SYSBENCH.argv(job("sysbench-write-only"))


@pytest.mark.pg
@pytest.mark.parametrize(
    "load",
    [
        EVERY_OPTION,
        Load(clients=1, threads=300, protocol="extended", rate=1e-3, latency_limit_ms=1e-3, max_tries=1, variables={"a": "b =@", "C_": -9.5}),
        Load(clients=200, threads=200, duration_s=7 * 86400, rate=1e7, latency_limit_ms=1e6, max_tries=1000, variables={"_9": 2**62}),
    ],
)  # fmt: skip
def test_pgbench_accepts_every_command_line(load: Load, tmp_path: Path) -> None:
    """Where no server is, it has accepted its options if it tried to connect."""
    real = Pgbench(find_pgbench().program("pgbench"))
    path = tmp_path / "a@b 1.sql"
    path.write_text("SELECT :rows;\n")
    scripts = (Script(sql="SELECT 1;\n", weight=1_000_000), Script(builtin="select-only"))
    workload = Workload(name="w", title="W", scripts=scripts, fillfactor=10)
    argv = real.argv(Job(NOWHERE, workload, load, 10**6, 7, [(each, path) for each in scripts], Path("/x y")))
    for each in (argv, real.fill_argv(NOWHERE, workload, 10**6)):
        assert UNREACHED in Shell().run(each, timeout_s=60).stderr
    wrong = [each.replace("--jobs=", "--jobs=-") for each in argv]
    assert UNREACHED not in Shell().run(wrong, timeout_s=60).stderr, "a usage error would have been noticed"


@pytest.mark.pg
def test_a_load_that_cannot_connect_is_told_in_pgbenchs_words() -> None:
    real = Pgbench(find_pgbench().program("pgbench"))
    argv = real.argv(job("tpcb-like", at=NOWHERE))
    done = Shell().run(argv, timeout_s=60)
    with pytest.raises(LoadError, match="status 1: pgbench: error: connection to server on socket"):
        real.report(done.stdout, done.stderr, done.returncode, argv)
    with pytest.raises(LoadError, match=r"^loading the data failed: pgbench: error: connection to server"):
        real.fill(Shell(), NOWHERE, load_workload("tpcb-like"), 1)


# --- reports ------------------------------------------------------------------------------

COMMON = {
    "complete", "errors", "transactions", "failed_transactions", "retried_transactions", "tps", "speed", "latency_average_ms",
    "latency_stddev_ms", "clients", "threads", "init_s", "progress", "scripts", "statements",
}  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "text", "speed", "told"),
    [
        ("pgbench", STDOUT + STDERR, 2000, {"tps": 2000, "transactions": 6000, "init_s": None, "seed": 1}),
        ("sysbench", DRIVEN, 102.56, {"clients": 8, "threads": 8, "retried_transactions": 1, "failed_transactions": 0, "latency_stddev_ms": None, "init_s": None}),
        ("pgbench-init", LOADED, 200_000 / 0.29, {"tps": None, "transactions": None, "init_s": 0.29, "rows": 200_000, "scale": 2}),
        ("pgbench-init", LOADED, 200_000 / 0.29, dict(zip(LOADING, (0.15, 0.06, 0.07), strict=True))),
        ("pgbench-init", "creating tables...\ndone.\n", None, dict.fromkeys(LOADING)),
        ("pgbench-init", LOADED[LOADED.index("vacuuming") :], None, {"init_s": 0.29, "rows": None}),
    ],
)  # fmt: skip
def test_every_report_has_the_same_words(tool: Tool, text: str, speed: Any, told: dict[str, Any]) -> None:
    report = read(tool, text)
    assert set(report) >= COMMON
    assert report["complete"]
    assert report["errors"] == report["scripts"] == report["statements"] == []
    assert report["speed"] == pytest.approx(speed)
    assert {name: report[name] for name in told} == told


ABORTED = (
    "FATAL:  terminating connection due to administrator command\n"
    "pgbench: error: client 0 aborted in command 7 (SQL) of script 0; perhaps the backend died while processing\n"
    "pgbench: error: Run was aborted; the above results are incomplete.\n"
)
MANY = "sorry, too many clients already\n"
IDLE = STDOUT[: STDOUT.index("number of failed")].replace("6000", "0")  # versions print nothing more then


@pytest.mark.parametrize(
    ("tool", "stdout", "stderr", "returncode", "message"),
    [
        (PGBENCH, STDOUT, STDERR + ABORTED, 2, "pgbench ended with status 2: FATAL:  terminating connection due to"),
        (PGBENCH, "", STDERR, 2, "pgbench ended with status 2: no output"),
        (PGBENCH, "", f"Segmentation fault\n{STDERR}", -11, "pgbench was ended by signal 11: Segmentation fault"),
        (PGBENCH, STDOUT, STDERR + ABORTED, 0, "pgbench did not run to its end: FATAL:  terminating"),
        (PGBENCH, IDLE, STDERR, 0, "pgbench finished without a single transaction"),
        (PGBENCH, IDLE.replace("processed: 0", "processed: 0/20"), STDERR, 0, "pgbench finished without a single transaction"),
        (LOADER, "", f"{LOADED}pgbench: error: PQputline failed\n", 0, "pgbench --initialize did not run to its end: pgbench: error: PQputline"),
        (SYSBENCH, f"Initializing worker threads...\n\nFATAL: Connection to database failed: {MANY}", "", 1, "sysbench ended with status 1: FATAL: Connection"),
        (SYSBENCH, f"{DRIVEN}FATAL: PQexec() failed: 7 the database system is shutting down\n", "", 0, "sysbench did not run to its end: FATAL: PQexec"),
        (SYSBENCH, DRIVEN.replace("2053   (102.56", "0   (0.00"), "", 0, "sysbench finished without a single transaction"),
    ],
)  # fmt: skip
def test_a_failed_run_is_told_in_a_line(
    tool: LoadTool, stdout, stderr, returncode: int, message: str
) -> None:
    with pytest.raises(LoadError, match=rf"^{re.escape(message)}.*\Z"):
        tool.report(stdout, stderr, returncode, [])


# --- what a load may ask for --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked", "refusal"),
    [
        ("sysbench-read-write", {"transaction_log": True}, "sysbench cannot do transaction_log"),
        ("sysbench-read-write", {"protocol": "extended"}, "sysbench cannot do protocol 'extended'"),
        ("sysbench-read-write", {"rate": 12.5}, "sysbench cannot do a fractional rate"),
        ("sysbench-read-write", {"variables": {"a": 1}, "report_per_command": True}, "sysbench cannot do report_per_command, variables"),
        ("sysbench-read-write", {"rate": 100, "protocol": "prepared"}, None),
        ("load", {"transaction_log": True}, "loading has no transactions"),
        ("load", {"generators": ("gen1", "gen2")}, "only one host can load the tables"),
        ("load", {"generators": ("gen1",)}, None),
        ("mixed", {"transaction_log": True}, None),
    ],
)  # fmt: skip
def test_what_a_tool_cannot_do_is_refused(name: str, asked, refusal: str | None, monkeypatch) -> None:
    monkeypatch.setattr(sysbench, "which", lambda name: Path("/usr/bin/sysbench"))
    with pytest.raises(PreflightError, match=f"workload '{name}': {refusal}") if refusal else nullcontext():
        check(load_workload(name), Load.model_validate(asked))


def test_an_absent_sysbench_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysbench, "which", lambda name: None)
    with pytest.raises(PreflightError, match="install the package sysbench"):
        check(load_workload("sysbench-write-only"), Load())
    with pytest.raises(PreflightError, match="install the package sysbench"):
        load_tool("sysbench", Path("pgbench"))
