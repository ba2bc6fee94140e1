"""Reading pgbench's reports of runs and loads, case by case."""

import re

import pytest

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

HEAD = """\
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 1
query mode: simple
number of clients: 10
number of threads: 1
"""
RUN_12 = (
    HEAD
    + """\
number of transactions per client: 1000
number of transactions actually processed: 10000/10000
latency average = 15.844 ms
latency stddev = 2.715 ms
tps = 618.764555 (including connections establishing)
tps = 622.977698 (excluding connections establishing)
"""
)
RUN_17 = (
    "pgbench (17.2)\n"
    + HEAD
    + """\
maximum number of tries: 1
duration: 60 s
number of transactions actually processed: 53811
number of failed transactions: 0 (0.000%)
latency average = 11.148 ms
initial connection time = 45.758 ms
tps = 897.024500 (without initial connection time)
"""
)
READING = "progress: 2.0 s, 812.3 tps, lat 0.820 ms stddev 0.300\n"
RECONNECTED_12 = """\
transaction type: <builtin: select only>
scaling factor: 5
query mode: simple
number of clients: 2
number of threads: 1
duration: 2 s
number of transactions actually processed: 574
latency average = 6.982 ms
tps = 286.457154 (including connections establishing)
tps = 518.640215 (excluding connections establishing)
"""


def test_a_version_of_a_distribution_nests_brackets() -> None:
    banner = "pgbench (15.18 (Debian 15.18-0+deb12u1), server 13.5 (Ubuntu 13.5-0))"
    read = parse_text(RUN_17.replace("pgbench (17.2)", banner))
    assert read["client_version"] == "15.18 (Debian 15.18-0+deb12u1)"
    assert read["server_version"] == "13.5 (Ubuntu 13.5-0)"


@pytest.mark.parametrize(
    "argv",
    [
        ["pgbench", "-n", "-c", "2", "-T", "2", "-C", "-S", "bench"],
        ["pgbench", "-nCSc2", "-T2", "bench"],
        ["taskset", "-c", "1", "pgbench", "--conn"],
        ["-C"],
    ],
)
def test_with_reconnecting_the_older_comparable_rate_is_the_including_one(argv: list[str]) -> None:
    read = parse_text(RECONNECTED_12, argv=argv)
    assert (read["tps"], read["tps_definition"]) == (286.457154, "including connections establishing")


def test_the_prompt_in_the_text_tells_of_reconnecting_too() -> None:
    typed = "me@box:~$ pgbench -i bench\nme@box:~$ time pgbench -c 2 -T 2 -C -S bench # again\n"
    assert parse_text(typed + RECONNECTED_12)["tps"] == 286.457154


@pytest.mark.parametrize(
    "typed",
    ["", "me@box:~$ pgbench -C bench\nme@box:~$ pgbench -S bench\n", "me@box:~$ pgbench -C 'torn\n"],
    ids=["no prompt", "two runs typed", "a torn prompt"],
)
def test_without_evidence_of_reconnecting_it_is_the_excluding_one(typed: str) -> None:
    assert parse_text(typed + RECONNECTED_12)["tps"] == 518.640215


def test_9_5_spells_latency_with_a_colon_and_prints_zero_for_what_it_did_not_measure() -> None:
    text = RUN_12.replace("latency stddev = 2.715 ms\n", "")
    assert parse_text(text.replace("average = 15.844", "average: 0.000"))["latency_average_ms"] is None
    assert parse_text(text.replace("average = 15.844", "average: 16.161"))["latency_average_ms"] == 16.161


@pytest.mark.parametrize("nothing", ["nan", "-nan", "NaN", "inf", "-nan(ind)", "1.#INF"])
def test_not_a_number_is_absent(nothing: str) -> None:
    progress = f"progress: 1.0 s, {nothing} tps, lat {nothing} ms stddev {nothing}\n"
    read = parse_text(progress + RUN_12.replace("stddev = 2.715", f"stddev = {nothing}"))
    assert read["latency_stddev_ms"] is None
    row = read["progress"][0]
    assert (row["elapsed_s"], row["tps"], row["latency_ms"], row["stddev_ms"]) == (1.0, None, None, None)


def test_progress_has_every_part_that_a_version_prints() -> None:
    line = "progress: 5.0 s, 812.3 tps, lat 0.820 ms stddev 0.300, 2 failed, lag 0.120 ms, 7 skipped, 4 retried, 5 retries"
    assert parse_text(line + "\n" + RUN_17)["progress"] == [
        {
            "elapsed_s": 5.0, "epoch_s": None, "tps": 812.3, "latency_ms": 0.82, "stddev_ms": 0.3, "failed": 2,
            "lag_ms": 0.12, "skipped": 7, "retried": 4, "retries": 5,
        }
    ]  # fmt: skip


def test_19_in_development_counts_other_failures() -> None:
    text = RUN_17.replace(
        "failed transactions: 0 (0.000%)\n",
        "failed transactions: 189 (0.350%)\nnumber of serialization failures: 0 (0.000%)\n"
        "number of deadlock failures: 9 (0.017%)\nnumber of other failures: 180 (0.333%)\n"
        "number of transactions that a later version counts: 12 (0.022%)\n",
    ).replace("latency average = 11.148 ms", "latency average = 11.109 ms (including failures)")
    read = parse_text(text)
    assert (read["failed_transactions"], read["deadlock_failures"], read["other_failures"]) == (189, 9, 180)
    assert read["latency_includes_failures"]


@pytest.mark.parametrize(
    "line",
    [
        "client 0 aborted in command 8 of script 0; FATAL:  terminating connection due to administrator command",
        "Client 3 aborted in state 8: ERROR:  deadlock detected",
        'connection to database "bench" failed:',
        "pgbench: fatal: Run was aborted; the above results are incomplete.",
        'pgbench: error: connection to server at "db" (10.0.0.1), port 5432 failed: Connection refused',
        "server closed the connection unexpectedly",
        "WARNING:  terminating connection because of crash of another server process",
        "select() failed: Bad file descriptor",
        "progress: 3.0 s, 3086.4 tpspgbench: error: Run was aborted; the above results are incomplete.",
    ],
)
def test_a_lost_client_makes_a_run_incomplete_whatever_the_summary_claims(line: str) -> None:
    for text in (line + "\n" + RUN_17, RUN_17 + line):
        read = parse_text(text)
        assert not read["complete"]
        assert read["errors"] == [line]
        assert read["failed_transactions"] == 0


@pytest.mark.parametrize(
    "line",
    [
        "pgbench: warning: scale option ignored, using count from pgbench_branches table (5)",
        "pgbench: client 0 executing script",
        "starting vacuum...end.",
        "starting vacuum...pgbench: error: ERROR:  relation x does not exist\n"
        "pgbench: detail: (ignoring this error and continuing anyway)",
        "ERROR:  relation x does not exist\n(ignoring this error and continuing anyway)",
    ],
)
def test_what_pgbench_survives_leaves_a_run_complete(line: str) -> None:
    read = parse_text(line + "\n" + RUN_17)
    assert read["complete"]
    assert read["errors"] == []


def test_failed_transactions_are_among_the_planned() -> None:
    text = RUN_17.replace("duration: 60 s", "number of transactions per client: 5400").replace(
        "processed: 53811", "processed: 53811/54000"
    )
    text = text.replace("failed transactions: 0 (0.000%)", "failed transactions: 189 (0.350%)")
    assert parse_text(text.replace("11.148 ms", "11.109 ms (including failures)"))["complete"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (("number of clients: 10\n", ""), 'no line "number of clients: …"'),
        (("number of transactions actually processed: 53811\n", ""), "no line .number of transactions actually"),
        (("tps = 897.024500 (without", "tps = 897.0245"), 'no line "tps = …"'),
        (("processed: 53811", "processed: 5381"), r"took 6\.04 s of a run of 60 s"),
        (("tps = 897", "tps = 8"), "does not fit 10 clients|took"),
        (("clients: 10", "clients: 0"), "0 clients"),
        (("latency average = 11.148 ms", "latency average = 1.148 ms"), "does not fit 10 clients"),
        (("failed transactions: 0 (0.000%)", "failed transactions: 189 (0.350%)"), "including failures"),
        (("failed transactions: 0 (0.000%)", "failed transactions: 89 (0.350%)"), "is not 0.35%"),
        (("processed: 53811", "processed: 538\n11"), "only digits follow"),
        (("processed: 53811", "processed: 53811/60000"), "do not tell how many were planned"),
        (("duration: 60 s\n", ""), 'no line "duration: … s"'),
        (("pgbench (17.2)", "tps = 1.000000 (including connections establishing)"), "two summaries"),
        (("query mode: simple\n", "query mode: simple\nquery mode: prepared\n"), "contradicts an earlier line"),
    ],
)  # fmt: skip
def test_a_damaged_summary_is_refused(damage: tuple[str, str], why: str) -> None:
    assert damage[0] in RUN_17
    with pytest.raises(ParseError, match=why):
        parse_text(RUN_17.replace(*damage))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (("tps = 618.764555 (including", "tps = 718.764555 (including"), "is below tps including"),
        (("tps = 618.764555 (including connections establishing)\n", ""), "no line .tps = … .including"),
        (("tps = 622.977698 (excluding connections establishing)\n", ""), "no line .tps = … .excluding"),
        (("latency average = 15.844 ms", "latency average = 158.44 ms"), "does not fit 10 clients"),
        (("tps = 618.764555 (including connections establishing)", "tps = 9.1 (without initial connection time)"), "two"),
        (("tps = 622.977698", "tps = inf"), "holds no number"),
        (("10000/10000", "10000/1000"), "do not fit 10 clients with 1000 each"),
        (("transaction type", "pgbench (17.2)\ntransaction type"), "two runs in one text"),
        (("latency average", f"{READING}{READING.replace('2.0 s', '1.0 s')}latency average"), "two runs"),
    ],
)  # fmt: skip
def test_a_damaged_older_summary_is_refused(damage: tuple[str, str], why: str) -> None:
    assert damage[0] in RUN_12
    with pytest.raises(ParseError, match=why):
        parse_text(RUN_12.replace(*damage))


LIMITED = RUN_17.replace(
    "latency average",
    "number of transactions skipped: 200 (0.370%)\n"
    "number of transactions above the 50.0 ms latency limit: 120/53811 (0.223%)\nlatency average",
)


@pytest.mark.parametrize(
    "argv",
    [["-c", "20"], ["--time=30"], ["--protocol=prepared"], ["-C"]],
)
def test_the_report_of_another_command_line_is_refused(argv: list[str]) -> None:
    with pytest.raises(ParseError, match="command line"):
        parse_text(RUN_17, argv=["pgbench", *argv])


def test_reconnecting_that_was_not_asked_for_is_refused() -> None:
    text = RUN_17.replace("initial connection time", "average connection time", 1)
    text = text.replace("without initial connection time", "including reconnection times")
    assert parse_text(text)["tps_definition"] == "including reconnection times"
    with pytest.raises(ParseError, match="no --connect"):
        parse_text(text, argv=["pgbench", "-c", "10"])


def test_a_long_last_transaction_is_no_contradiction() -> None:
    """Two clients of one transaction of 4 s each, in a run of 1 s: measured with 16.14."""
    text = RUN_17.replace("clients: 10", "clients: 2").replace("duration: 60 s", "duration: 1 s")
    text = (
        text.replace("53811", "2").replace("11.148", "4004.733").replace("tps = 897.024500", "tps = 0.499409")
    )
    assert parse_text(text)["tps"] == 0.499409


def test_idle_clients_in_an_overlong_run_are_a_contradiction() -> None:
    text = RUN_17.replace(
        "latency average = 11.148 ms", "latency average = 11.148 ms\nlatency stddev = 1.000 ms"
    )
    assert parse_text(text)
    with pytest.raises(ParseError, match="took 600 s"):
        parse_text(text.replace("tps = 897.024500", "tps = 89.702450"))
    with pytest.raises(ParseError, match="took"):
        parse_text(RUN_17.replace("tps = 897.024500", "tps = 0.024500"))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (("120/53811", "12/53811"), "late_transactions"),
        (("120/53811", "60000/53811"), "late_transactions|latency limit"),
        (("latency average", "number of transactions retried: 1000 (1.858%)\ntotal number of retries: 123\nlatency average"), "fewer than"),
    ],
)  # fmt: skip
def test_a_damaged_count_is_refused(damage: tuple[str, str], why: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse_text(LIMITED.replace(*damage))


TWO_SCRIPTS = (
    RUN_17.replace("<builtin: TPC-B (sort of)>", "multiple scripts")
    + """\
SQL script 1: a.sql
 - weight: 3 (targets 75.0% of total)
 - 40311 transactions (74.9% of total, tps = 671.981000)
 - latency average = 9.100 ms
 - statement latencies in milliseconds and failures:
         9.100           0  SELECT 1;
SQL script 2: b.sql
 - weight: 1 (targets 25.0% of total)
 - 13500 transactions (25.1% of total, tps = 225.043500)
 - latency average = 17.263 ms
 - latency stddev = 1.203 ms
 - statement latencies in milliseconds and failures:
         1.002           0  \\sleep 1 ms
        16.261           3  SELECT 2;
"""
)


def test_shares_of_many_scripts_are_rounded() -> None:
    rows = [
        f"SQL script {n}: s{n}.sql\n - weight: 1 (targets 1.2% of total)\n - 500 transactions (1.2% of total, tps = 8.3)\n"
        for n in range(1, 81)
    ]
    head = RUN_17.replace("<builtin: TPC-B (sort of)>", "multiple scripts")
    total = re.search(r"actually processed: (\d+)", head)
    assert total
    text = re.sub(r"(?<=- )500(?= trans)", str(int(total[1]) // 80), head + "".join(rows))
    assert len(parse_text(text)["scripts"]) == 80


def test_a_last_row_without_its_newline_keeps_its_number_and_loses_words_that_may_be_torn() -> None:
    assert parse_text(TWO_SCRIPTS.rstrip())["statements"][-1]["statement"] == "SELECT 2;"
    torn = parse_text(TWO_SCRIPTS.rstrip()[:-2])["statements"][-1]
    assert (torn["latency_ms"], torn["failures"], torn["statement"]) == (16.261, 3, None)


def test_a_torn_reading_is_no_statement() -> None:
    text = RUN_12 + "statement latencies in milliseconds:\n         0.406  SELECT 1;\n0.517 ms stddev 0.101\n"
    assert [row["latency_ms"] for row in parse_text(text)["statements"]] == [0.406]


def test_words_that_another_line_broke_into_are_absent() -> None:
    for name in ("<builtin: TPC-B", "<bprogress: 1.0 s", "a.spgbench: error: Run was aborted"):
        assert parse_text(RUN_17.replace("<builtin: TPC-B (sort of)>", name))["transaction_type"] is None


SECTION = TWO_SCRIPTS[TWO_SCRIPTS.index(" - statement") : TWO_SCRIPTS.index("SQL script 2")]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ((" - 13500 transactions (25.1% of total, tps = 225.043500)\n", ""), "SQL script 2: … transactions"),
        (("SQL script 2: b.sql\n - weight: 1 (targets 25.0% of total)\n", ""), "contradicts an earlier line"),
        ((TWO_SCRIPTS[TWO_SCRIPTS.index("SQL script 2") :], ""), 'no line "SQL script 2: …"'),
        ((SECTION, SECTION * 2), 'no line "SQL script 2: …"'),
        (("- 40311", "- 4031"), r"are not 74\.9%"),
        (("SQL script 1", RUN_12 + "SQL script 1"), "two summaries"),
    ],
)
def test_damaged_reports_of_scripts_are_refused(damage: tuple[str, str], why: str) -> None:
    assert damage[0] in TWO_SCRIPTS
    with pytest.raises(ParseError, match=why):
        parse_text(TWO_SCRIPTS.replace(*damage))


LOAD = """\
dropping old tables...
creating tables...
generating data (client-side)...
100000 of 200000 tuples (50%) of pgbench_accounts done (elapsed 0.07 s, remaining 0.07 s)
200000 of 200000 tuples (100%) of pgbench_accounts done (elapsed 0.14 s, remaining 0.00 s)
vacuuming...
creating primary keys...
done in 0.29 s (drop tables 0.01 s, create tables 0.00 s, client-side generate 0.15 s, vacuum 0.06 s, primary keys 0.07 s).
"""


def test_of_a_load_that_tells_of_several_tables_the_accounts_count() -> None:
    tellers = "100 of 100 tuples (100%) of pgbench_tellers done (elapsed 0.00 s, remaining 0.00 s)\n"
    read = parse_text(LOAD.replace("100000 of", tellers + "100000 of"))
    assert (read["rows"], read["load_elapsed_s"]) == (200000, 0.14)


def test_a_load_joined_by_carriage_returns_on_a_terminal() -> None:
    assert parse_text(LOAD.replace("remaining 0.07 s)\n", "remaining 0.07 s)\r"))["rows"] == 200000


def test_a_load_and_a_run_in_one_text_are_the_run_unless_asked_otherwise() -> None:
    assert parse_text(LOAD + RUN_17)["kind"] == "pgbench_summary"
    assert parse_text(LOAD + RUN_17, kind="pgbench_init")["phases_s"]["total"] == 0.29


def test_a_load_and_a_run_that_was_cut_off_are_no_load() -> None:
    for begun in ("pgbench (17.2)\n", "starting vacuum...end.\n", READING):
        with pytest.raises(ParseError):
            parse_text(LOAD + begun + "^C\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LOAD[: LOAD.index("done in")], 'no line "done in … s'),
        (LOAD.replace("200000 of 200000 tuples (100%)", "150000 of 200000 tuples (75%)"), "200000 of 200000 tuples"),
        (LOAD + LOAD, "two loads"),
        (LOAD.replace("vacuum 0.06", "vacuum 6.06"), "do not add up"),
        (LOAD.replace("vacuum 0.06 s", "vacuum ?"), 'cannot read "vacuum'),
        (LOAD.replace("100000 of 200000", "100000 of 300000"), "two loads"),
        ("creating tables...\npgbench: error: connection to server failed: gone\n", "the text says: pgbench: error"),
    ],
)  # fmt: skip
def test_a_load_that_did_not_end_or_is_garbled_is_refused(text: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse_text(text)


def test_a_text_of_no_known_kind_names_what_was_wanted() -> None:
    with pytest.raises(ParseError, match=r"no line of a known kind, such as .tps = "):
        parse_text("hello\n")


@pytest.mark.parametrize("middle", [" ", "1 ", "connection to server ", "\x1b]", "pgbench ", "client 1 "])
def test_a_long_line_costs_no_more_than_its_length(middle: str) -> None:
    line = "x" + middle * 20_000 + "y\n"
    assert parse_text(line + RUN_17)["tps"] == parse_text(RUN_17)["tps"]
    with pytest.raises(ParseError, match="no line"):
        parse_text("Compare open_sync with different write sizes:\n" + line)


def test_counts_of_scripts_that_lost_a_few_to_each_other_are_no_torn_report() -> None:
    """Threads count scripts without locks: the weights say whether a line is missing."""
    lost = TWO_SCRIPTS.replace("40311 transactions (74.9%", "39100 transactions (72.7%")
    lost = lost.replace("13500 transactions (25.1%", "13100 transactions (24.3%")
    assert lost.count("72.7%") == lost.count("24.3%") == 1
    assert [row["percent"] for row in parse_text(lost)["scripts"]] == [72.7, 24.3]


def test_a_script_that_never_ran_has_no_transactions() -> None:
    idle = "SQL script 3: c.sql\n - weight: 0 (targets 0.0% of total)\n - 0 transactions (0.0% of total)\n"
    assert parse_text(TWO_SCRIPTS + idle)["scripts"][2]["transactions"] == 0


def test_two_readings_of_one_second_are_of_one_run() -> None:
    two = READING + READING.replace("812.3", "790.1")
    progress = parse_text(RUN_17.replace("latency average", f"{two}latency average", 1))["progress"]
    assert [row["tps"] for row in progress] == [812.3, 790.1]
