"""pgbench's command lines as the published studies have them, and reports that cannot be believed."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchlib.errors import InputError, LoadError, ParseError
from benchlib.host.shell import Shell
from benchlib.load.pgbench import Connection, init_argv, initialise, run_argv, summary
from benchlib.plan.model import Load
from benchlib.plan.workload import Script
from benchlib.server.installations import find_pgbench

HERE = Connection()
SOCKET = Connection(host="/run/x", port=5432, user="postgres", dbname="bench")
SELECT_ONLY = [(Script(builtin="select-only"), None)]


def file(number: int = 1, weight: int = 1) -> tuple[Script, Path]:
    return Script(sql="SELECT 1;\n", weight=weight), Path(f"/run/x/script-{number}.sql")


# --- the command lines of the studies ---------------------------------------------------


def test_study_a_inserts_from_100_clients_on_100_threads() -> None:
    load = Load(clients=100, threads=100, duration_s=300)
    assert run_argv("pgbench", SOCKET, load, [file()], seed=2021) == [
        "pgbench", "--host=/run/x", "--port=5432", "--username=postgres", "--client=100", "--jobs=100",
        "--protocol=simple", "--time=300", "--no-vacuum", "--progress=1", "--random-seed=2021",
        "--file=/run/x/script-1.sql", "bench",
    ]  # fmt: skip


@pytest.mark.parametrize("clients", [4, 8, 16, 32, 64, 96])
def test_study_b_sweeps_clients_over_reads(clients: int) -> None:
    assert init_argv("pgbench", HERE, 10_000) == [
        "pgbench",
        "--initialize",
        "--scale=10000",
        "--quiet",
        "bench",
    ]
    argv = run_argv("pgbench", HERE, Load(clients=clients, threads=8, duration_s=600), SELECT_ONLY)
    assert argv == [
        "pgbench", f"--client={clients}", f"--jobs={min(8, clients)}", "--protocol=simple", "--time=600",
        "--no-vacuum", "--progress=1", "--builtin=select-only", "bench",
    ]  # fmt: skip


def test_study_c_mixes_three_scripts_by_weight_at_a_rising_rate() -> None:
    scripts = [file(1, 7), file(2, 2), file(3, 1)]
    load = Load(
        clients=5, threads=2, duration_s=60, rate=250.5, report_per_command=True, variables={"rows": 1000}
    )
    assert run_argv("pgbench", HERE, load, scripts, seed=3, scale=685) == [
        "pgbench", "--client=5", "--jobs=2", "--protocol=simple", "--time=60", "--no-vacuum", "--progress=1",
        "--rate=250.5", "--report-per-command", "--random-seed=3", "--scale=685", "--define=rows=1000",
        "--file=/run/x/script-1.sql@7", "--file=/run/x/script-2.sql@2", "--file=/run/x/script-3.sql@1", "bench",
    ]  # fmt: skip


def test_study_d_asks_for_latencies_under_a_limit_with_every_transaction_logged() -> None:
    load = Load(clients=8, threads=2, duration_s=60, rate=1000, latency_limit_ms=50, max_tries=3)
    argv = run_argv(
        "pgbench", HERE, load, SELECT_ONLY, log_prefix=Path("/run/x/log"), failures_detailed=True, vacuum=True,
        exit_on_abort=True, progress_timestamp=True, progress_s=5,
    )  # fmt: skip
    assert argv == [
        "pgbench", "--client=8", "--jobs=2", "--protocol=simple", "--time=60", "--progress=5",
        "--progress-timestamp", "--rate=1000", "--latency-limit=50", "--max-tries=3", "--failures-detailed",
        "--exit-on-abort", "--log", "--log-prefix=/run/x/log", "--builtin=select-only", "bench",
    ]  # fmt: skip


def test_study_e_loads_and_drives_a_thousand_prepared_clients() -> None:
    assert init_argv("pgbench", HERE, 10_000, fillfactor=90, quiet=False) == [
        "pgbench", "--initialize", "--scale=10000", "--fillfactor=90", "bench"
    ]  # fmt: skip
    load = Load(clients=1000, threads=2048, duration_s=600, protocol="prepared")
    scripts = [(Script(builtin="tpcb-like"), None)]
    assert run_argv("pgbench", HERE, load, scripts, progress_s=60) == [
        "pgbench", "--client=1000", "--jobs=1000", "--protocol=prepared", "--time=600", "--no-vacuum",
        "--progress=60", "--builtin=tpcb-like", "bench",
    ]  # fmt: skip


def test_every_option_of_loading_has_its_place() -> None:
    argv = init_argv(
        "/x/pgbench", SOCKET, 5, fillfactor=70, steps="dtgvpf", partitions=8, partition_method="hash",
        foreign_keys=True, unlogged_tables=True, tablespace="fast", index_tablespace="slow",
    )  # fmt: skip
    assert argv == [
        "/x/pgbench", "--initialize", "--host=/run/x", "--port=5432", "--username=postgres", "--scale=5",
        "--fillfactor=70", "--init-steps=dtgvpf", "--partitions=8", "--partition-method=hash", "--foreign-keys",
        "--unlogged-tables", "--tablespace=fast", "--index-tablespace=slow", "--quiet", "bench",
    ]  # fmt: skip


# --- single options ----------------------------------------------------------------------


def test_a_warm_up_and_a_count_replace_the_duration() -> None:
    load = Load(duration_s=60)
    assert "--time=5" in run_argv("pgbench", HERE, load, SELECT_ONLY, duration_s=5)
    counted = run_argv("pgbench", HERE, load, SELECT_ONLY, transactions=100, progress_s=None)
    assert "--transactions=100" in counted
    assert not [word for word in counted if word.startswith(("--time", "--progress"))]


def test_logs_are_sampled_or_aggregated() -> None:
    where = Path("/x")
    load = Load(duration_s=60)
    assert "--aggregate-interval=10" in run_argv(
        "p", HERE, load, SELECT_ONLY, log_prefix=where, aggregate_interval_s=10
    )
    assert "--sampling-rate=0.01" in run_argv(
        "p", HERE, load, SELECT_ONLY, log_prefix=where, sampling_rate=0.01
    )


def test_reconnecting_is_an_option() -> None:
    assert "--connect" in run_argv("p", HERE, Load(connect_per_transaction=True), SELECT_ONLY)
    assert "--connect" not in run_argv("p", HERE, Load(), SELECT_ONLY)


@pytest.mark.parametrize(
    ("rate", "word"),
    [
        (1_234_567.0, "--rate=1234567"),
        (0.1, "--rate=0.1"),
        (1e-7, "--rate=1e-07"),
        (123456.789, "--rate=123456.789"),
    ],
)
def test_a_number_is_written_with_all_its_digits(rate: float, word: str) -> None:
    assert word in run_argv("p", HERE, Load(rate=rate), SELECT_ONLY)


def test_builtin_scripts_have_weights_too_and_one_script_needs_none() -> None:
    both = [(Script(builtin="tpcb-like", weight=3), None), (Script(builtin="select-only", weight=0), None)]
    assert run_argv("p", HERE, Load(), both)[-3:-1] == ["--builtin=tpcb-like@3", "--builtin=select-only@0"]
    assert run_argv("p", HERE, Load(), both[:1])[-2] == "--builtin=tpcb-like"


def test_a_path_with_an_at_sign_is_not_taken_for_a_weight() -> None:
    script = (Script(sql="SELECT 1;\n"), Path("/home/a@b/x.sql"))
    assert run_argv("p", HERE, Load(), [script])[-2] == "--file=/home/a@b/x.sql@1"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"aggregate_interval_s": 5}, "needs a log"),
        ({"sampling_rate": 0.5}, "needs a log"),
        ({"log_prefix": Path("/x"), "aggregate_interval_s": 5, "sampling_rate": 0.5}, "not both"),
        ({"log_prefix": Path("/x"), "aggregate_interval_s": 7}, "does not divide the duration"),
        ({"log_prefix": Path("/x"), "aggregate_interval_s": 20}, "does not divide the duration"),
        ({"progress_s": None, "progress_timestamp": True}, "need a progress report"),
    ],
)
def test_options_that_pgbench_would_refuse_together_are_refused_first(
    options: dict[str, object], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        run_argv("p", HERE, Load(duration_s=10), SELECT_ONLY, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a number of partitions"):
        init_argv("p", HERE, 1, partition_method="hash")


# --- pgbench's own opinion -----------------------------------------------------------------


@pytest.fixture(scope="module")
def program() -> Path:
    return find_pgbench().program("pgbench")


@pytest.fixture(scope="module")
def script_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("at@sign") / "script 1.sql"
    path.write_text("SELECT :rows;\n")
    return path


def no_server(argv: list[str]) -> str:
    """What pgbench says where no server is: it has accepted its options if it tried to connect."""
    done = Shell().run(argv, timeout_s=30)
    assert done.returncode != 0
    return done.stderr


NOWHERE = Connection(host="/nonexistent/sockets", port=5432, user="postgres", dbname="bench")
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
LOGS = st.sampled_from(
    [{}, {"log_prefix": Path("/x y")}, {"log_prefix": Path("/x"), "aggregate_interval_s": 1},
     {"log_prefix": Path("/x"), "sampling_rate": 0.25}]
)  # fmt: skip


@pytest.mark.pg
@settings(max_examples=60)
@given(
    load=LOADS,
    log=LOGS,
    weights=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=4),
    more=st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(1, 2**31 - 1), "transactions": st.integers(1, 10**6), "scale": st.integers(1, 10**6),
            "progress_s": st.none() | st.integers(1, 60), "failures_detailed": st.booleans(),
            "exit_on_abort": st.booleans(), "vacuum": st.booleans(),
        },
    ),
)  # fmt: skip
def test_pgbench_accepts_every_command_line_of_a_load(
    program: Path, script_file: Path, load: Load, log: dict, weights: list[int], more: dict
) -> None:
    kinds = ["tpcb-like", "simple-update", "select-only"]
    scripts = [
        (Script(sql="SELECT 1;\n", weight=weight), script_file)
        if number % 2 == 0
        else (Script(builtin=kinds[number % 3], weight=weight), None)  # type: ignore[arg-type]
        for number, weight in enumerate(weights)
    ]
    said = no_server(run_argv(program, NOWHERE, load, scripts, **{"progress_s": 1, **log, **more}))
    assert 'connection to server on socket "/nonexistent/sockets/.s.PGSQL.5432" failed' in said


@pytest.mark.pg
@settings(max_examples=20)
@given(
    scale=st.integers(1, 1_000_000),
    options=st.fixed_dictionaries(
        {},
        optional={
            "fillfactor": st.integers(10, 100), "steps": st.text("dtgGvpf", min_size=1, max_size=7), "quiet": st.booleans(),
            "foreign_keys": st.booleans(), "unlogged_tables": st.booleans(), "tablespace": st.just("fast"),
            "index_tablespace": st.just("slow"), "partitions": st.integers(1, 99),
        },
    ),
    method=st.sampled_from([None, "range", "hash"]),
)  # fmt: skip
def test_pgbench_accepts_every_command_line_of_a_load_of_data(
    program: Path, scale: int, options: dict, method: str | None
) -> None:
    if "partitions" in options:
        options = {**options, "partition_method": method}
    said = no_server(init_argv(program, NOWHERE, scale, **options))
    assert 'connection to server on socket "/nonexistent/sockets/.s.PGSQL.5432" failed' in said


@pytest.mark.pg
def test_a_usage_error_would_have_been_noticed(program: Path) -> None:
    assert "connection to server" not in no_server(
        [str(program), "--host=/nonexistent/sockets", "--jobs=0", "x"]
    )


@pytest.mark.pg
def test_a_load_that_cannot_connect_is_told_in_pgbench_s_words(program: Path, tmp_path: Path) -> None:
    argv = run_argv(program, NOWHERE, Load(), SELECT_ONLY, seed=1)
    done = Shell().run(argv, stdout=tmp_path / "out", stderr=tmp_path / "err", timeout_s=30)
    said = (tmp_path / "err").read_text()
    with pytest.raises(LoadError, match=r"status 1: pgbench: error: connection to server on socket"):
        summary((tmp_path / "out").read_text(), said, done.returncode, argv)
    with pytest.raises(LoadError, match=r"^loading the data failed: pgbench: error: connection to server"):
        initialise(Shell(), init_argv(program, NOWHERE, 1))


# --- reports ------------------------------------------------------------------------------

ARGV = ["pgbench", "--client=4", "--jobs=2", "--time=3", "bench"]
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


def failed(stdout: str, stderr: str, returncode: int = 0) -> str:
    with pytest.raises(LoadError) as caught:
        summary(stdout, stderr, returncode, ARGV)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_report_is_believed() -> None:
    report = summary(STDOUT, SEED + PROGRESS + PROGRESS.replace("1.0 s", "2.0 s"), 0, ARGV)
    assert (report["tps"], report["transactions"], report["clients"]) == (2000.0, 6000, 4)
    assert len(report["progress"]) == 2


@pytest.mark.parametrize(
    ("stderr", "why"),
    [
        (SEED + PROGRESS + ABORTED, "FATAL:  terminating connection due to administrator command"),
        (SEED + "pgbench: error: connection to server failed: FATAL:  sorry, too many clients already\n", "too many clients"),
        (SEED + PROGRESS, "it said nothing"),
        ("", "it said nothing"),
        (SEED + "Segmentation fault\n" + PROGRESS, "Segmentation fault"),
    ],
)  # fmt: skip
def test_a_failed_load_is_an_error_with_the_line_that_says_why(stderr: str, why: str) -> None:
    message = failed(STDOUT, stderr, returncode=2)
    assert message.startswith("pgbench ended with status 2: ")
    assert why in message


def test_a_lost_client_is_an_error_whatever_the_status() -> None:
    assert failed(STDOUT, SEED + ABORTED).startswith("pgbench did not run to its end: FATAL:  terminating")


def test_a_load_without_a_single_transaction_is_an_error_not_a_speed_of_0() -> None:
    # versions print nothing more then
    head = STDOUT[: STDOUT.index("number of failed")].replace("6000", "0")
    assert failed(head, SEED) == "pgbench finished without a single transaction"
    counted = head.replace("duration: 3 s", "number of transactions per client: 5").replace(
        ": 0\n", ": 0/20\n"
    )
    assert failed(counted, SEED) == "pgbench finished without a single transaction"
    all_failed = (
        head
        + "number of failed transactions: 3 (100.000%)\ntps = 0.000000 (without initial connection time)\n"
    )
    assert failed(all_failed, SEED) == "pgbench finished without a single transaction"


@pytest.mark.parametrize("stdout", ["", "hello\n", STDOUT[:200], STDOUT.replace("6000", "60")])
def test_what_is_no_report_is_never_a_figure(stdout: str) -> None:
    with pytest.raises(ParseError):
        summary(stdout, SEED, 0, ARGV)
