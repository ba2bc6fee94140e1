"""The load tools: their command lines, their reports in the words of all, and what they are refused for."""

from pathlib import Path

import pytest

from benchlib.errors import LoadError, ParseError, PreflightError
from benchlib.host.shell import which
from benchlib.load import sysbench, tools
from benchlib.load.pgbench import Connection
from benchlib.load.tools import LOADING, Job, check, load_tool, read
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load
from benchlib.plan.workload import Script, Sysbench, Tool

SOCKET = Connection(host="/run/x", port=5432, user="postgres", dbname="bench")
STUDY = Sysbench(test="oltp_write_only", tables=250, rows_per_scale=45)
SYSBENCH = """sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Running the test with following options:
Number of threads: 4
Report intermediate results every 1 second(s)
Initializing random number generator from seed (3).

[ 1s ] thds: 4 tps: 1040.02 qps: 6276.07 (r/w/o: 0.00/4183.05/2093.02) lat (ms,95%): 8.13 err/s: 4.00 reconn/s: 0.00
[ 2s ] thds: 4 tps: 976.68 qps: 5852.07 (r/w/o: 0.00/3895.72/1956.35) lat (ms,95%): 8.58 err/s: 1.00 reconn/s: 0.00
SQL statistics:
    queries performed:
        total:                           12104
    transactions:                        2017   (1008.10 per sec.)
    queries:                             12104  (6050.23 per sec.)
    ignored errors:                      5      (2.50 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          2.0008s
    total number of events:              2017

Latency (ms):
         min:                                    0.49
         avg:                                    3.61
         max:                                   37.82
         95th percentile:                        8.28
"""
LOADED = """dropping old tables...
creating tables...
generating data (client-side)...
100000 of 100000 tuples (100%) done (elapsed 0.07 s, remaining 0.00 s)
vacuuming...
creating primary keys...
done in 0.37 s (drop tables 0.00 s, create tables 0.01 s, client-side generate 0.20 s, vacuum 0.08 s, primary keys 0.08 s).
"""
PGBENCH = """transaction type: <builtin: select only>
scaling factor: 1
query mode: simple
number of clients: 2
number of threads: 1
maximum number of tries: 1
duration: 1 s
number of transactions actually processed: 10000
number of failed transactions: 0 (0.000%)
latency average = 0.200 ms
initial connection time = 2.000 ms
tps = 10000.000000 (without initial connection time)
"""
TEXTS: dict[Tool, str] = {"pgbench": PGBENCH, "pgbench-init": LOADED, "sysbench": SYSBENCH}
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


def test_what_sysbench_ran_again_is_retried_and_nothing_failed() -> None:
    report = read("sysbench", SYSBENCH)
    assert (report["transactions"], report["tps"], report["latency_average_ms"]) == (2017, 1008.10, 3.61)
    assert (report["retried_transactions"], report["failed_transactions"]) == (5, 0)
    assert (report["clients"], report["threads"]) == (4, 4)
    assert report["latency_stddev_ms"] is None, "it does not tell"
    assert [(row["elapsed_s"], row["tps"]) for row in report["progress"]] == [(1, 1040.02), (2, 976.68)]


def test_how_long_loading_took_is_its_metric() -> None:
    report = read("pgbench-init", LOADED)
    assert (report["init_s"], report["rows"], report["scale"]) == (0.37, 100_000, 1)
    assert {part: report[part] for part in LOADING} == {
        "init_rows_s": 0.2,
        "init_vacuum_s": 0.08,
        "init_keys_s": 0.08,
    }
    untold = read("pgbench-init", "creating tables...\ndone.\n")
    assert [untold[part] for part in LOADING] == [None] * 3


def test_speed_is_one_measure_of_loads_and_of_loading() -> None:
    assert read("pgbench", PGBENCH)["speed"] == 10_000
    assert read("sysbench", SYSBENCH)["speed"] == 1008.10
    assert read("pgbench-init", LOADED)["speed"] == pytest.approx(100_000 / 0.37)


@pytest.mark.parametrize(
    "told",
    [
        LOADED.replace("100000 of 100000 tuples (100%) done (elapsed 0.07 s, remaining 0.00 s)\n", ""),
        "done.\n",
    ],
    ids=["no rows", "no seconds"],
)
def test_a_speed_of_loading_that_is_not_told_is_not_known(told: str) -> None:
    assert read("pgbench-init", told)["speed"] is None


def test_study_e_writes_from_1000_threads_into_250_tables_of_450_000_rows() -> None:
    load = Load(clients=1000, threads=8, protocol="prepared", duration_s=600)
    argv = sysbench.run_argv("sysbench", SOCKET, STUDY, load, 10_000, seed=7)
    assert argv == [
        "sysbench", "oltp_write_only", "--db-driver=pgsql", "--pgsql-host=/run/x", "--pgsql-port=5432",
        "--pgsql-user=postgres", "--pgsql-db=bench", "--tables=250", "--table-size=450000", "--threads=1000", "--time=600",
        "--events=0", "--rate=0", "--db-ps-mode=auto", "--rand-seed=7", "--report-interval=1", "run",
    ]  # fmt: skip
    assert "--db-ps-mode=disable" in sysbench.run_argv("sysbench", SOCKET, STUDY, Load(), 1, seed=7)
    assert "--time=5" in sysbench.run_argv("sysbench", SOCKET, STUDY, load, 1, seed=7, duration_s=5)


def test_its_tables_are_made_several_at_a_time() -> None:
    argv = sysbench.prepare_argv("sysbench", SOCKET, STUDY, 2)
    assert argv[-2:] == ["--threads=4", "prepare"]
    assert "--table-size=90" in argv
    assert "--threads=1" in sysbench.prepare_argv(
        "sysbench", SOCKET, STUDY.model_copy(update={"tables": 1}), 2
    )


def test_of_a_server_elsewhere_only_the_database_is_in_the_arguments() -> None:
    """libpq finds the rest in the environment, and has to be left to: sysbench's own defaults are others."""
    argv = sysbench.run_argv("sysbench", Connection(dbname="ours"), STUDY, Load(), 1, seed=7)
    words = {word for word in argv if "pgsql-" in word}
    assert words == {"--pgsql-host=", "--pgsql-port=", "--pgsql-user=", "--pgsql-db=ours"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"transaction_log": True}, "a log of its transactions"),
        ({"protocol": "extended"}, "the protocol 'extended'"),
        ({"rate": 12.5}, "a rate that is no whole number"),
        ({"latency_limit_ms": 5}, "a latency limit"),
        ({"max_tries": 3}, "a number of tries"),
        ({"variables": {"a": 1}, "report_per_command": True}, "a report per command, variables"),
        ({"connect_per_transaction": True}, "a connection for each transaction"),
    ],
)
def test_what_sysbench_cannot_do_is_refused_beforehand(
    asked: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysbench, "which", lambda name: Path("/usr/bin/sysbench"))
    workload = load_workload("sysbench-read-write")
    with pytest.raises(
        PreflightError, match=f"workload 'sysbench-read-write': sysbench has no such thing as .*{words}"
    ):
        check(workload, Load.model_validate(asked))
    check(workload, Load(rate=100, protocol="prepared"))


def test_a_quantile_of_loading_is_refused() -> None:
    with pytest.raises(PreflightError, match="workload 'load': loading has no transactions"):
        check(load_workload("load"), Load(transaction_log=True))
    check(load_workload("load"), Load())
    check(load_workload("mixed"), Load(transaction_log=True))


def test_an_absent_sysbench_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysbench, "which", lambda name: None)
    for ask in (
        lambda: check(load_workload("sysbench-write-only"), Load()),
        lambda: load_tool("sysbench", Path("pgbench")),
    ):
        with pytest.raises(
            PreflightError, match="no sysbench found on the PATH: install the package sysbench"
        ):
            ask()
    assert load_tool("pgbench", Path("pgbench")).warms


CRASHED = "Threads started!\n\n"
REFUSED = "Initializing worker threads...\n\nFATAL: Connection to database failed: FATAL:  sorry, too many clients already\n"


@pytest.mark.parametrize(
    ("stdout", "returncode", "words"),
    [
        (REFUSED, 1, "sysbench ended with status 1: FATAL: Connection to database failed: FATAL:  sorry, too many"),
        (CRASHED, -11, "sysbench was ended by signal 11: Threads started!"),
        ("", 1, "sysbench ended with status 1: it said nothing"),
        (f"{SYSBENCH}FATAL: PQexec() failed: 7 the database system is shutting down\n", 0, "did not run to its end: FATAL: PQexec"),
        (SYSBENCH.replace("2017   (1008.10", "0   (0.00"), 0, "without a single transaction"),
    ],
)  # fmt: skip
def test_a_run_of_sysbench_that_failed_is_told(stdout: str, returncode: int, words: str) -> None:
    with pytest.raises(LoadError) as caught:
        sysbench.summary(stdout, "", returncode)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_that_is_none_is_refused() -> None:
    with pytest.raises(ParseError):
        sysbench.summary("Threads started!\n", "", 0)


def test_a_load_that_failed_is_told_in_pgbench_s_words() -> None:
    tool = load_tool("pgbench-init", Path("pgbench"))
    died = "dropping old tables...\npgbench: error: PQputline failed\n"
    for text, returncode in ((died, 1), (LOADED + died, 0)):
        with pytest.raises((LoadError, ParseError)) as caught:
            tool.report("", text, returncode, ["pgbench", "--initialize"])
        assert "\n" not in str(caught.value)
    with pytest.raises(LoadError, match="loading the data failed: pgbench: error: PQputline failed"):
        tool.report("", died, 1, ["pgbench", "--initialize"])
    assert not tool.warms
    assert tool.report("", LOADED, 0, ["pgbench", "--initialize"])["init_s"] == 0.37


def test_pgbench_is_told_the_scale_of_its_tables_only_for_scripts_of_one_s_own() -> None:
    tool = load_tool("pgbench", Path("pgbench"))

    def argv(name: str) -> list[str]:
        workload = load_workload(name)
        scripts: list[tuple[Script, Path | None]] = [
            (script, Path("/x.sql") if script.sql else None) for script in workload.scripts
        ]
        return tool.argv(Job(SOCKET, workload, Load(), 9, 7, scripts))

    assert "--scale=9" in argv("mixed")
    assert [word for word in argv("mixed") if word.startswith("--file")] == [
        f"--file=/x.sql@{n}" for n in (7, 2, 1)
    ]
    assert "--scale=9" not in argv("tpcb-like")
    assert "--scale=9" not in argv("joins")


def test_loading_is_pgbench_s_own_with_the_pages_as_full_as_the_workload_says() -> None:
    tool = load_tool("pgbench-init", Path("pgbench"))
    argv = tool.argv(Job(SOCKET, load_workload("load"), Load(), 10_000, 7))
    assert argv[1] == "--initialize"
    assert {"--scale=10000", "--fillfactor=90"} <= set(argv)


def test_the_doctor_and_the_tool_look_for_the_same_program() -> None:
    assert tools.sysbench.which is which
