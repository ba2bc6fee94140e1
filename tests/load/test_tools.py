"""The load tools: their command lines, their reports in the same words, and runs that cannot be believed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchlib.errors import LoadError, ParseError, PreflightError
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
PGBENCH, LOADER, SYSBENCH_TOOL = (
    Pgbench(Path("pgbench")),
    PgbenchInit(Path("pgbench")),
    Sysbench(Path("sysbench")),
)


def job(
    name: str, load: Load | None = None, connection: Connection = HERE, scale: int = 9, **more: Any
) -> Job:
    """A job of a workload that comes along, each of its SQL scripts in a file."""
    workload = load_workload(name)
    scripts = [(each, Path(f"/x/{n}.sql") if each.sql else None) for n, each in enumerate(workload.scripts)]
    return Job(connection, workload, load or Load(), scale, 7, scripts, **more)


# --- command lines ------------------------------------------------------------------------


def test_pgbench_runs_a_built_in_script() -> None:
    assert PGBENCH.argv(job("tpcb-like", Load(clients=100, threads=200, duration_s=300), SOCKET)) == [
        "pgbench", "--host=/run/x", "--port=5432", "--username=postgres", "--client=100", "--jobs=100",
        "--protocol=simple", "--time=300", "--no-vacuum", "--progress=1", "--random-seed=7",
        "--builtin=tpcb-like", "bench",
    ]  # fmt: skip


def test_pgbench_mixes_scripts_by_weight_with_every_option_of_a_load() -> None:
    load = Load(
        clients=5, threads=2, duration_s=60, rate=250.5, latency_limit_ms=50, max_tries=3, protocol="prepared",
        connect_per_transaction=True, report_per_command=True, variables={"rows": 1000},
    )  # fmt: skip
    assert PGBENCH.argv(job("mixed", load, log_prefix=Path("/x/log"))) == [
        "pgbench", "--client=5", "--jobs=2", "--protocol=prepared", "--time=60", "--no-vacuum", "--progress=1",
        "--rate=250.5", "--latency-limit=50", "--max-tries=3", "--connect", "--report-per-command",
        "--random-seed=7", "--scale=9", "--log", "--log-prefix=/x/log", "--define=rows=1000",
        "--file=/x/0.sql@7", "--file=/x/1.sql@2", "--file=/x/2.sql@1", "bench",
    ]  # fmt: skip


def test_pgbench_is_told_the_scale_only_for_scripts_of_ones_own_on_its_tables() -> None:
    assert "--scale=9" not in PGBENCH.argv(job("tpcb-like")) + PGBENCH.argv(job("joins"))


def test_a_path_with_an_at_sign_is_not_taken_for_a_weight() -> None:
    script = (Script(sql="SELECT 1;\n"), Path("/home/a@b/x.sql"))
    argv = PGBENCH.argv(Job(HERE, load_workload("insert"), Load(), 1, 7, [script]))
    assert argv[-2] == "--file=/home/a@b/x.sql@1"


def test_pgbench_makes_its_tables_with_pages_as_full_as_the_workload_says() -> None:
    made = ["pgbench", "--initialize", "--scale=10000", "--fillfactor=90", "--quiet", "bench"]
    assert PGBENCH.fill_argv(HERE, load_workload("tpcb-like-90"), 10_000) == made
    assert LOADER.argv(job("load", scale=10_000)) == made
    assert not any("fillfactor" in each for each in PGBENCH.fill_argv(HERE, load_workload("tpcb-like"), 1))
    assert PGBENCH.fill_argv(HERE, load_workload("joins"), 1) == []
    assert LOADER.fill_argv(HERE, load_workload("load"), 1) == []


def test_sysbench_writes_from_1000_threads() -> None:
    load = Load(clients=1000, threads=8, protocol="prepared", duration_s=600)
    workload = load_workload("sysbench-write-only")
    assert workload.sysbench is not None
    tables, rows = workload.sysbench.tables, workload.sysbench.rows_per_scale
    place = [
        "--db-driver=pgsql",
        "--pgsql-host=/run/x",
        "--pgsql-port=5432",
        "--pgsql-user=postgres",
        "--pgsql-db=bench",
    ]
    size = [f"--tables={tables}", f"--table-size={rows * 100}", "--rand-type=uniform"]
    assert SYSBENCH_TOOL.argv(job("sysbench-write-only", load, SOCKET, 100)) == [
        "sysbench", "oltp_write_only", *place, *size, "--threads=1000", "--time=600", "--events=0", "--rate=0",
        "--db-ps-mode=auto", "--rand-seed=7", "--report-interval=1", "run",
    ]  # fmt: skip
    assert "--db-ps-mode=disable" in SYSBENCH_TOOL.argv(job("sysbench-write-only"))
    several = f"--threads={min(4, tables)}"
    filling = ["sysbench", "oltp_write_only", *place, *size, several, "prepare"]
    assert SYSBENCH_TOOL.fill_argv(SOCKET, workload, 100) == filling


def test_of_a_server_elsewhere_only_the_database_is_in_the_arguments() -> None:
    """libpq finds the rest in the environment, and has to be left to: sysbench's own defaults are others."""
    argv = SYSBENCH_TOOL.argv(job("sysbench-write-only", connection=Connection(dbname="ours")))
    options = {option for option in argv if "pgsql-" in option}
    assert options == {"--pgsql-host=", "--pgsql-port=", "--pgsql-user=", "--pgsql-db=ours"}


LOADS = st.builds(
    Load,
    clients=st.integers(1, 200),
    threads=st.integers(1, 300),
    protocol=st.sampled_from(["simple", "extended", "prepared"]),
    duration_s=st.integers(1, 7 * 86400),
    rate=st.none() | st.floats(1e-3, 1e7),
    latency_limit_ms=st.none() | st.floats(1e-3, 1e6),
    max_tries=st.none() | st.integers(1, 1000),
    connect_per_transaction=st.booleans(),
    report_per_command=st.booleans(),
    variables=st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), st.integers() | st.floats(-9, 9) | st.text("ab =@", min_size=1, max_size=4), max_size=2),
)  # fmt: skip


@pytest.fixture(scope="module")
def real() -> Pgbench:
    return Pgbench(find_pgbench().program("pgbench"))


@pytest.mark.pg
@settings(max_examples=20)
@given(
    load=LOADS,
    log=st.none() | st.just(Path("/x y")),
    weights=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=4),
    scale=st.integers(1, 10**6),
    fillfactor=st.integers(10, 100),
)
def test_pgbench_accepts_every_command_line(
    real: Pgbench, tmp_path_factory: pytest.TempPathFactory, load: Load, log: Path | None, weights: list[int], scale: int, fillfactor: int
) -> None:  # fmt: skip
    """Where no server is, it has accepted its options if it tried to connect."""
    path = tmp_path_factory.getbasetemp() / "a@b 1.sql"
    path.write_text("SELECT :rows;\n")
    scripts = [
        (Script(sql="SELECT 1;\n", weight=weight), path)
        if number % 2 == 0
        else (Script(builtin="select-only", weight=weight), None)
        for number, weight in enumerate(weights)
    ]
    own = [script for script, _ in scripts]
    workload = Workload.model_validate({"name": "w", "title": "W", "scripts": own, "fillfactor": fillfactor})
    argv = real.argv(Job(NOWHERE, workload, load, scale, 7, scripts, log))
    for each in (argv, real.fill_argv(NOWHERE, workload, scale)):
        assert UNREACHED in Shell().run(each, timeout_s=60).stderr
    wrong = [each.replace("--jobs=", "--jobs=-") for each in argv]
    assert UNREACHED not in Shell().run(wrong, timeout_s=60).stderr, "a usage error would have been noticed"


@pytest.mark.pg
def test_a_load_that_cannot_connect_is_told_in_pgbenchs_words(real: Pgbench) -> None:
    argv = real.argv(job("tpcb-like", connection=NOWHERE))
    done = Shell().run(argv, timeout_s=60)
    with pytest.raises(LoadError, match="status 1: pgbench: error: connection to server on socket"):
        real.report(done.stdout, done.stderr, done.returncode, argv)
    with pytest.raises(LoadError, match=r"^loading the data failed: pgbench: error: connection to server"):
        real.fill(Shell(), NOWHERE, load_workload("tpcb-like"), 1)


# --- reports ------------------------------------------------------------------------------

SYSBENCH = (Path(__file__).parent / "parse" / "texts" / "sysbench-1.0.txt").read_text()
LOADED = """dropping old tables...
creating tables...
generating data (client-side)...
100000 of 100000 tuples (100%) done (elapsed 0.07 s, remaining 0.00 s)
vacuuming...
creating primary keys...
done in 0.37 s (drop tables 0.00 s, create tables 0.01 s, client-side generate 0.20 s, vacuum 0.08 s, primary keys 0.08 s).
"""
STDOUT = """\
pgbench (18.4)
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 1
query mode: simple
number of clients: 4
number of threads: 2
maximum number of tries: 1
duration: 3 s
number of transactions actually processed: 6000
number of failed transactions: 0 (0.000%)
latency average = 2.000 ms
latency stddev = 1.000 ms
initial connection time = 4.567 ms
tps = 2000.000000 (without initial connection time)
"""
SEED = "pgbench: setting random seed to 1\n"
PROGRESS = "progress: 1.0 s, 2000.0 tps, lat 2.000 ms stddev 1.000, 0 failed\n"
ABORTED = (
    "FATAL:  terminating connection due to administrator command\n"
    "pgbench: error: client 0 aborted in command 7 (SQL) of script 0; perhaps the backend died while processing\n"
    "pgbench: error: Run was aborted; the above results are incomplete.\n"
)


TEXTS: dict[Tool, str] = {"pgbench": STDOUT, "pgbench-init": LOADED, "sysbench": SYSBENCH}
COMMON = {
    "complete", "errors", "transactions", "failed_transactions", "retried_transactions", "tps", "speed", "latency_average_ms",
    "latency_stddev_ms", "clients", "threads", "init_s", "progress", "scripts", "statements",
}  # fmt: skip


@pytest.mark.parametrize("tool", TEXTS)
def test_every_report_has_the_same_words(tool: Tool) -> None:
    report = read(tool, TEXTS[tool])
    assert set(report) >= COMMON
    assert report["complete"]
    assert report["errors"] == report["scripts"] == report["statements"] == []
    assert (report["tps"] is None) == (report["transactions"] is None) == (tool == "pgbench-init")
    assert (report["init_s"] is None) == (tool != "pgbench-init")
    speed = {"pgbench": 2000, "sysbench": 102.56, "pgbench-init": 100_000 / 0.37}[tool]
    assert report["speed"] == pytest.approx(speed)


def test_what_sysbench_ran_again_is_retried_and_nothing_failed() -> None:
    report = read("sysbench", SYSBENCH)
    assert (report["retried_transactions"], report["failed_transactions"]) == (1, 0)
    assert (report["clients"], report["threads"]) == (8, 8)
    assert report["latency_stddev_ms"] is None, "it does not tell"


def test_how_long_loading_took_is_its_metric() -> None:
    report = LOADER.report("", LOADED, 0, ["pgbench", "--initialize"])
    assert (report["init_s"], report["rows"], report["scale"]) == (0.37, 100_000, 1)
    assert [report[part] for part in LOADING] == [0.2, 0.08, 0.08]
    untold = read("pgbench-init", "creating tables...\ndone.\n")
    assert [untold[part] for part in (*LOADING, "speed")] == [None] * 4
    rows = "100000 of 100000 tuples (100%) done (elapsed 0.07 s, remaining 0.00 s)\n"
    assert read("pgbench-init", LOADED.replace(rows, ""))["speed"] is None


REFUSED = "Initializing worker threads...\n\nFATAL: Connection to database failed: FATAL:  sorry, too many clients already\n"
IDLE = STDOUT[: STDOUT.index("number of failed")].replace("6000", "0")  # versions print nothing more then


@pytest.mark.parametrize(
    ("tool", "stdout", "stderr", "returncode", "message"),
    [
        (PGBENCH, STDOUT, SEED + PROGRESS + ABORTED, 2, "pgbench ended with status 2: FATAL:  terminating connection due to"),
        (PGBENCH, "", SEED + "pgbench: error: connection to server failed: FATAL:  sorry, too many clients already\n", 1, "pgbench ended with status 1: pgbench: error: connection to server failed: FATAL:  sorry, too many"),
        (PGBENCH, "", SEED + PROGRESS, 2, "pgbench ended with status 2: it said nothing"),
        (PGBENCH, "", SEED + "Segmentation fault\n" + PROGRESS, -11, "pgbench was ended by signal 11: Segmentation fault"),
        (PGBENCH, STDOUT, SEED + ABORTED, 0, "pgbench did not run to its end: FATAL:  terminating"),
        (PGBENCH, IDLE, SEED, 0, "pgbench finished without a single transaction"),
        (PGBENCH, IDLE.replace("processed: 0", "processed: 0/20"), SEED, 0, "pgbench finished without a single transaction"),
        (LOADER, "", "dropping old tables...\npgbench: error: PQputline failed\n", 1, "pgbench --initialize ended with status 1: pgbench: error: PQputline failed"),
        (LOADER, "", LOADED + "pgbench: error: PQputline failed\n", 0, "pgbench --initialize did not run to its end: pgbench: error: PQputline"),
        (SYSBENCH_TOOL, REFUSED, "", 1, "sysbench ended with status 1: FATAL: Connection to database failed: FATAL:  sorry"),
        (SYSBENCH_TOOL, "Threads started!\n\n", "", -11, "sysbench was ended by signal 11: Threads started!"),
        (SYSBENCH_TOOL, f"{SYSBENCH}FATAL: PQexec() failed: 7 the database system is shutting down\n", "", 0, "sysbench did not run to its end: FATAL: PQexec"),
        (SYSBENCH_TOOL, SYSBENCH.replace("2053   (102.56", "0   (0.00"), "", 0, "sysbench finished without a single transaction"),
    ],
)  # fmt: skip
def test_a_run_that_failed_is_an_error_of_one_line_that_says_why(
    tool: LoadTool, stdout: str, stderr: str, returncode: int, message: str
) -> None:
    with pytest.raises(LoadError) as caught:
        tool.report(stdout, stderr, returncode, [])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tool", "stdout"),
    [
        *((PGBENCH, text) for text in ("", "hello\n", STDOUT[:200], STDOUT.replace("6000", "60"))),
        (SYSBENCH_TOOL, "Threads started!\n"),
        (LOADER, "creating tables...\n"),
    ],
)
def test_what_is_no_report_is_never_a_figure(tool: LoadTool, stdout: str) -> None:
    with pytest.raises(ParseError):
        tool.report(stdout, SEED, 0, [])


# --- what a load may ask for --------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"transaction_log": True}, "transaction_log"),
        ({"protocol": "extended"}, "protocol 'extended'"),
        ({"rate": 12.5}, "a fractional rate"),
        ({"variables": {"a": 1}, "report_per_command": True}, "report_per_command, variables"),
    ],
)
def test_what_sysbench_cannot_do_is_refused_beforehand(
    asked: dict[str, object], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysbench, "which", lambda name: Path("/usr/bin/sysbench"))
    workload = load_workload("sysbench-read-write")
    with pytest.raises(PreflightError, match=f"workload 'sysbench-read-write': sysbench cannot do {refusal}"):
        check(workload, Load.model_validate(asked))
    check(workload, Load(rate=100, protocol="prepared"))


def test_a_quantile_of_loading_is_refused() -> None:
    with pytest.raises(PreflightError, match="workload 'load': loading has no transactions"):
        check(load_workload("load"), Load(transaction_log=True))
    check(load_workload("load"), Load())
    check(load_workload("mixed"), Load(transaction_log=True))


def test_several_hosts_do_not_load_the_same_tables() -> None:
    with pytest.raises(PreflightError, match="workload 'load': one host loads the tables"):
        check(load_workload("load"), Load(generators=("gen1", "gen2")))
    check(load_workload("load"), Load(generators=("gen1",)))


def test_an_absent_sysbench_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysbench, "which", lambda name: None)
    message = "no sysbench found on the PATH: install the package sysbench"
    with pytest.raises(PreflightError, match=message):
        check(load_workload("sysbench-write-only"), Load())
    with pytest.raises(PreflightError, match=message):
        load_tool("sysbench", Path("pgbench"))
