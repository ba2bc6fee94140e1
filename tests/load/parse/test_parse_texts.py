"""What is read of texts of each kind, and what is refused: a row is a text, words of it that are others, and the outcome."""

import json
from pathlib import Path
from typing import Any

import pytest
from parse_cases import TEXTS, edited, found

from benchlib.errors import ParseError
from benchlib.load.parse import parse_runs, parse_text

LOG = "".join(f"{n % 2} {n} {1000 + n} {n % 3 == 0:d} 1795178920 {100000 + n}\n" for n in range(100))
OTHER_LOG = LOG.replace("\n0 ", "\n2 ").replace("\n1 ", "\n3 ")
SEVEN, SCRIPTS, WINDOWS = TEXTS["log-7-columns"], TEXTS["pgbench-17-scripts"], TEXTS["pg_test_fsync-windows"]
SECTION = SCRIPTS[SCRIPTS.index(" - statement") : SCRIPTS.index("SQL script 2")]
READING = "progress: 2.0 s, 812.3 tps, lat 0.820 ms stddev 0.300\n"
RATE_LIMITED, RETRIED = "pgbench -R 900 -L 1 -l", "pgbench -l --max-tries=2"
INCLUDING = {"tps": 286.457154, "tps_definition": "including connections establishing"}
AVERAGE_MS, NONE_FAILED = "latency average = 11.148 ms", "failed transactions: 0 (0.000%)"
LOST_CLIENT = [
    "client 0 aborted in command 8 of script 0; FATAL:  terminating connection due to administrator command",
    "Client 3 aborted in state 8: ERROR:  deadlock detected",
    'connection to database "bench" failed:',
    "pgbench: fatal: Run was aborted; the above results are incomplete.",
    'pgbench: error: connection to server at "db" (10.0.0.1), port 5432 failed: Connection refused',
    "server closed the connection unexpectedly",
    "WARNING:  terminating connection because of crash of another server process",
    "select() failed: Bad file descriptor",
    "progress: 3.0 s, 3086.4 tpspgbench: error: Run was aborted; the above results are incomplete.",
]  # fmt: skip
SURVIVED = [
    "pgbench: warning: scale option ignored, using count from pgbench_branches table (5)",
    "pgbench: client 0 executing script",
    "starting vacuum...end.",
    "starting vacuum...pgbench: error: ERROR:  relation x does not exist\npgbench: detail: (ignoring this error and continuing anyway)",
    "ERROR:  relation x does not exist\n(ignoring this error and continuing anyway)",
]  # fmt: skip
NOTHING = ["nan", "-nan", "NaN", "inf", "-nan(ind)", "1.#INF"]
READ: list[tuple[str, str, dict[str, str], str, dict[str, Any]]] = [
    *(("-C counts connecting", "pgbench-12-reconnected", {}, argv, INCLUDING) for argv in ("pgbench -n -c 2 -T 2 -C -S bench",
        "pgbench -nCSc2 -T2 bench", "taskset -c 1 pgbench --conn", "-C")),
    ("a prompt tells of -C", "me@box:~$ pgbench -i bench\nme@box:~$ time pgbench -c 2 -T 2 -C -S bench # again\n + pgbench-12-reconnected",
        {}, "", INCLUDING),
    *(("no evidence of -C", f"{typed} + pgbench-12-reconnected", {}, "", {"tps": 518.640215}) for typed in ("",
        "$ pgbench -C bench\n$ pgbench -S bench\n", "$ pgbench -C 'torn\n")),
    *((each, f"progress: 1.0 s, {each} tps, lat {each} ms stddev {each}\n + pgbench-12", {"stddev = 2.715": f"stddev = {each}"},
        "", {"latency_stddev_ms": None, "progress.*.tps": [None], "progress.*.latency_ms": [None], "progress.*.stddev_ms": [None]}) for each in NOTHING),
    *(("a lost client", parts, {}, "", {"complete": False, "errors": [line], "failed_transactions": 0}) for line in LOST_CLIENT
        for parts in (f"{line}\n + pgbench-17", f"pgbench-17 + {line}")),
    *(("what pgbench survives", f"{line}\n + pgbench-17", {}, "", {"complete": True, "errors": []}) for line in SURVIVED),
    ("a last row without newline", SCRIPTS.rstrip(), {}, "", {"statements.2.statement": "SELECT 2;"}),
    ("a last row torn", SCRIPTS.rstrip()[:-2], {}, "",
        {"statements.2.latency_ms": 16.261, "statements.2.failures": 3, "statements.2.statement": None}),
    *(("words broken into", "pgbench-17", {"<builtin: TPC-B (sort of)>": name}, "", {"transaction_type": None})
        for name in ("<builtin: TPC-B", "<bprogress: 1.0 s", "a.spgbench: error: Run was aborted")),
    ("carriage returns of a terminal", "pgbench-init-17", {"remaining 0.07 s)\n": "remaining 0.07 s)\r"}, "", {"rows": 200000}),
    ("a load and a run", "pgbench-init-17 + pgbench-17", {}, "", {"kind": "pgbench_summary"}),
    ("a seventh column is lag", SEVEN, {}, RATE_LIMITED,
        {"transactions": 3, "skipped_transactions": 1, "lag_ms.n": 3, "lag_ms.max": 0.085, "retries": None}),
    ("a seventh column is retries", SEVEN, {"skipped": "failed"}, RETRIED,
        {"failed_transactions": 1, "lag_ms": None, "retries": 146, "retried_transactions": 3}),
    ("a seventh column may be either", SEVEN, {}, "", {"transactions": 3, "lag_ms": None, "retries": None, "retried_transactions": None}),
    ("a torn last line", f"{LOG}1 100 13", {}, "", {"complete": False, "transactions": 100, "torn_lines": 1}),
    ("a last line without newline", LOG.rstrip(), {}, "", {"complete": True, "transactions": 100}),
    ("its last figure may be torn", SEVEN.rstrip(), {}, RATE_LIMITED, {"transactions": 3, "lag_ms.n": 2}),
    ("files of a killed run", f"{LOG}1 26{OTHER_LOG}", {}, "", {"complete": False, "transactions": 199, "torn_lines": 1}),
    ("sysbench failed", "FATAL: `thread_run' function failed: database error\n + sysbench-1.0", {}, "",
        {"complete": False, "error_lines": ["FATAL: `thread_run' function failed: database error"]}),
    ("a torn table of flushes", WINDOWS[: WINDOWS.index("76.493") + 3], {}, "",
        {"complete": False, "methods.-1.method": "16 * 1kB open_sync writes"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "edits", "argv", "wanted"), [row[1:] for row in READ], ids=[row[0] for row in READ]
)
def test_is_read(parts: str, edits: dict[str, str], argv: str, wanted: dict[str, Any]) -> None:
    report = parse_text(edited(parts, edits), argv=argv.split() or None)
    assert {path: found(report, path) for path in wanted} == wanted


REFUSED: list[tuple[str, str, dict[str, str], str]] = [
    ("no line of a known kind", "hello\n", {}, ""),
    ('no line "number of clients: …"', "pgbench-17", {"number of clients: 10\n": ""}, ""),
    ("no line .number of transactions actually", "pgbench-17", {"number of transactions actually processed: 53811\n": ""}, ""),
    ('no line "tps = …"', "pgbench-17", {"tps = 897.024500 (without": "tps = 897.0245"}, ""),
    (r"took 6\.04 s of a run of 60 s", "pgbench-17", {"processed: 53811": "processed: 5381"}, ""),
    ("does not fit 10 clients|took", "pgbench-17", {"tps = 897": "tps = 8"}, ""),
    ("0 clients", "pgbench-17", {"clients: 10": "clients: 0"}, ""),
    ("does not fit 10 clients", "pgbench-17", {AVERAGE_MS: "latency average = 1.148 ms"}, ""),
    ("including failures", "pgbench-17", {NONE_FAILED: "failed transactions: 189 (0.350%)"}, ""),
    ("is not 0.35%", "pgbench-17", {NONE_FAILED: "failed transactions: 89 (0.350%)"}, ""),
    ("only digits follow", "pgbench-17", {"processed: 53811": "processed: 538\n11"}, ""),
    ("do not tell how many were planned", "pgbench-17", {"processed: 53811": "processed: 53811/60000"}, ""),
    ('no line "duration: … s"', "pgbench-17", {"duration: 60 s\n": ""}, ""),
    ("two summaries", "pgbench-17", {"pgbench (17.2)": "tps = 1.000000 (including connections establishing)"}, ""),
    ("contradicts an earlier line", "pgbench-17", {"query mode: simple\n": "query mode: simple\nquery mode: prepared\n"}, ""),
    ("took 600 s", "pgbench-17", {AVERAGE_MS: f"{AVERAGE_MS}\nlatency stddev = 1.000 ms", "tps = 897.024500": "tps = 89.702450"}, ""),
    ("took", "pgbench-17", {"tps = 897.024500": "tps = 0.024500"}, ""),
    *(("command line", "pgbench-17", {}, f"pgbench {option}") for option in ("-c 20", "--time=30", "--protocol=prepared", "-C")),
    ("no --connect", "pgbench-17-reconnected", {}, "pgbench -c 10"),
    ("late_transactions", "pgbench-17-limited", {"120/53811": "12/53811"}, ""),
    ("late_transactions|latency limit", "pgbench-17-limited", {"120/53811": "60000/53811"}, ""),
    ("fewer than", "pgbench-17-limited",
        {"latency average": "number of transactions retried: 1000 (1.858%)\ntotal number of retries: 123\nlatency average"}, ""),
    ("is below tps including", "pgbench-12", {"tps = 618.764555": "tps = 718.764555"}, ""),
    ("no line .tps = … .including", "pgbench-12", {"tps = 618.764555 (including connections establishing)\n": ""}, ""),
    ("no line .tps = … .excluding", "pgbench-12", {"tps = 622.977698 (excluding connections establishing)\n": ""}, ""),
    ("does not fit 10 clients", "pgbench-12", {"latency average = 15.844 ms": "latency average = 158.44 ms"}, ""),
    ("two", "pgbench-12", {"tps = 618.764555 (including connections establishing)": "tps = 9.1 (without initial connection time)"}, ""),
    ("holds no number", "pgbench-12", {"tps = 622.977698": "tps = inf"}, ""),
    ("do not fit 10 clients with 1000 each", "pgbench-12", {"10000/10000": "10000/1000"}, ""),
    ("two runs in one text", "pgbench-12", {"transaction type": "pgbench (17.2)\ntransaction type"}, ""),
    ("two runs", "pgbench-12", {"latency average": f"{READING}{READING.replace('2.0 s', '1.0 s')}latency average"}, ""),
    ("SQL script 2: … transactions", "pgbench-17-scripts", {" - 13500 transactions (25.1% of total, tps = 225.043500)\n": ""}, ""),
    ("contradicts an earlier line", "pgbench-17-scripts", {"SQL script 2: b.sql\n - weight: 1 (targets 25.0% of total)\n": ""}, ""),
    ('no line "SQL script 2: …"', SCRIPTS[: SCRIPTS.index("SQL script 2")], {}, ""),
    ('no line "SQL script 2: …"', "pgbench-17-scripts", {SECTION: SECTION * 2}, ""),
    (r"are not 74\.9%", "pgbench-17-scripts", {"- 40311": "- 4031"}, ""),
    ("two summaries", "pgbench-17-scripts", {"SQL script 1": f"{TEXTS['pgbench-12']}SQL script 1"}, ""),
    ('no line "tps = …"; the text says: connection to database "benchdb"',
        'connection to database "benchdb" failed:\nFATAL:  remaining connection slots are reserved\n', {}, ""),
    ('no line "done in … s', TEXTS["pgbench-init-17"].partition("done in")[0], {}, ""),
    ("200000 of 200000 tuples", "pgbench-init-17", {"200000 of 200000 tuples (100%)": "150000 of 200000 tuples (75%)"}, ""),
    ("two loads", "pgbench-init-17 + pgbench-init-17", {}, ""),
    ("two loads", "pgbench-init-17", {"100000 of 200000": "100000 of 300000"}, ""),
    ("do not add up", "pgbench-init-17", {"vacuum 0.06": "vacuum 6.06"}, ""),
    ('cannot read "vacuum', "pgbench-init-17", {"vacuum 0.06 s": "vacuum ?"}, ""),
    ("the text says: pgbench: error", "creating tables...\npgbench: error: connection to server failed: gone\n", {}, ""),
    *(("no line", f"pgbench-init-17 + {begun}^C\n", {}, "") for begun in ("pgbench (17.2)\n", "starting vacuum...end.\n", READING)),
    *(("7 columns, but the command line asks for", SEVEN, {}, argv) for argv in ("pgbench -l -T 1", f"{RATE_LIMITED} --max-tries=3")),
    ("twice", f"{LOG}{LOG}", {}, ""),
    ("different shapes", f"{LOG}{SEVEN}", {}, ""),
    ("aggregate-interval", "1795178920 100 5000 250000 10 90\n1795178930 100 5000 250000 10 90\n", {}, ""),
    ("contradicts itself", "pg_test_fsync-windows", {"79.688 ops/sec   12549 usecs/op": "79.688 ops/sec     125 usecs/op"}, ""),
    ("two runs", "pg_test_fsync-windows", {"79.688 ops/sec   12549 usecs/op": "1.0 ops/sec\n        fsync  1.0 ops/sec"}, ""),
    ("are not 102.56 per second", "sysbench-1.0",
        {"transactions:                        2053 ": "transactions:                        205 "}, ""),
    (r'no line "transactions: N', "sysbench-1.0", {"transactions:  ": "transaxions:  "}, ""),
    (r'no line "avg: …"', "sysbench-1.0", {"77.97": "77.9"}, ""),
    (r'no line "total time: …s"', "sysbench-1.0", {"total time: ": "total tine: "}, ""),
    ("out of order", "sysbench-1.0", {" 174.12": "  17.41"}, ""),
    ("above the maximum", "sysbench-1.0", {"percentile:                       95.81": "percentile:                      958.10"}, ""),
    ("go back in time", "sysbench-1.0", {"[ 20s ]": "[ 5s ]"}, ""),
    ('"progress: 3.0 s, viele.*cannot be read', "pgbench-16",
        {"transaction type": "progress: 3.0 s, viele tps, lat 7.9 ms stddev 1.0\ntransaction type"}, ""),
    (r'"\[ 20s \] thds: 4.*cannot be read', "sysbench 1.0.20\n[ 20s ] thds: 4 tps: 9 something new\n", {}, ""),
    ('"open_sync +12 000.*cannot be read',
        "Compare file sync methods using one 8kB write:\n        open_sync      12 000 ops/sec   80 usecs/op\n", {}, ""),
    ('"0,145  BEGIN.*cannot be read', "pgbench-16 + statement latencies in milliseconds and failures:\n0,145  BEGIN;\n", {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("why", "parts", "edits", "argv"), REFUSED, ids=[row[0] for row in REFUSED])
def test_is_refused(why: str, parts: str, edits: dict[str, str], argv: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse_text(edited(parts, edits), argv=argv.split() or None)


def test_a_kind_that_is_asked_for_is_read_or_refused() -> None:
    both = edited("pgbench-init-17 + pgbench-17", {})
    assert parse_text(both, kind="pgbench_init")["phases_s"]["total"] == 0.29
    with pytest.raises(ParseError, match="no line"):
        parse_text("", kind="transaction_log")


@pytest.mark.parametrize(
    "prefix",
    [
        "bench-1  | ", "[db1.example.org] out: ", "2026-11-01T10:00:{n:02}.123456Z ", "pod/x-7f {n} stdout F ", "# ", "- ", "// ",
        "Nov 01 10:00:{n:02} db1 pgbench[4711]: ", "[10:00:{n:02}] ", "| ", "DEBUG:root:", "db1 | 2026-11-01 10:00:{n:02},5 ",
    ],
)  # fmt: skip
def test_what_a_collector_puts_before_each_line_is_taken_off(prefix: str) -> None:
    text = "".join(f"{prefix.format(n=n)}{line}\n" for n, line in enumerate(TEXTS["pgbench-16"].splitlines()))
    assert parse_text(text) == parse_text(TEXTS["pgbench-16"])


def test_lists_of_ansible_and_markdown_are_read() -> None:
    lines = TEXTS["pgbench-16"].splitlines()
    for text in (
        (f"            {json.dumps(line)},\n" for line in lines),
        (f"- {line}<br>\n" for line in lines),
    ):
        assert parse_text("".join(text)) == parse_text(TEXTS["pgbench-16"])


def test_several_runs_are_read_each() -> None:
    run = TEXTS["pgbench-16"]
    other = edited("pgbench-16", {"1010": "2020", "505.0": "1010.0", "7.920": "3.960"})
    runs = parse_runs(f"warming up\n{run}\nagain\n$ pgbench -T 2 bench\n{other}{run}")
    assert [found(runs, path) for path in ("*.tps", "*.progress.1.elapsed_s")] == [
        [505, 1010, 505],
        [2, 2, 2],
    ]
    with pytest.raises(ParseError, match="run 2 of 2: "):
        parse_runs(run + run.replace("number of clients: 4\n", ""))


def test_the_command_line_gives_a_list_for_several_runs(command_line: Any, tmp_path: Path) -> None:
    run = TEXTS["pgbench-16"]
    for text, tps in ((run, 505), (run + run.replace("pgbench (16.4)\n", ""), [505, 505])):
        (tmp_path / "runs.txt").write_text(text)
        report = json.loads(command_line("parse", tmp_path / "runs.txt", "--json").out)
        assert found(report, "tps" if text == run else "*.tps") == tps


@pytest.mark.parametrize("name", ["sysbench-0.5", "sysbench-1.0", "pgbench-9.6"])
def test_a_text_cut_anywhere_is_right_or_refused(name: str) -> None:
    text = TEXTS[name]
    whole = parse_text(text)
    for cut in range(0, len(text), 3):
        try:
            read = parse_text(text[:cut])
        except ParseError:
            continue
        assert all(value in (None, whole[key]) for key, value in read.items())
