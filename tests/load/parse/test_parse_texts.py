"""What is read of texts and what is refused.

A row of ``read.json`` has a title, the names of texts (or words themselves), words in them that are others, the command line, and
parts of the report; one of ``refused.json`` first what the refusal says. ``lost_clients.txt`` has lines that tell of a lost client.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from parse_cases import CASES, HERE, TEXTS, edited, found

from benchlib.errors import ParseError
from benchlib.load.collected import Source, collect
from benchlib.load.parse import parse_runs, parse_text

RUN = TEXTS["pgbench-16"]
READ, REFUSED = (json.loads((HERE / f"{name}.json").read_text("utf-8")) for name in ("read", "refused"))
LOST = (HERE / "lost_clients.txt").read_text().splitlines()
Edits = dict[str, str]


@pytest.mark.parametrize(("title", "parts", "edits", "argv", "wanted"), READ, ids=[row[0] for row in READ])
def test_is_read(title: str, parts: str, edits: Edits, argv: str, wanted: dict[str, Any]) -> None:
    report = parse_text(edited(parts, edits), argv=argv.split() or None)
    assert {path: found(report, path) for path in wanted} == wanted


@pytest.mark.parametrize(("why", "parts", "edits", "argv"), REFUSED, ids=[row[0] for row in REFUSED])
def test_is_refused(why: str, parts: str, edits: Edits, argv: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse_text(edited(parts, edits), argv=argv.split() or None)


@pytest.mark.parametrize("line", LOST)
def test_a_lost_client_makes_a_run_incomplete_whatever_the_summary_claims(line: str) -> None:
    for text in (f"{line}\n{TEXTS['pgbench-17']}", TEXTS["pgbench-17"] + line):
        report = parse_text(text)
        assert (report["complete"], report["errors"], report["failed_transactions"]) == (False, [line], 0)


def test_a_kind_that_is_asked_for_is_read_or_refused() -> None:
    both = TEXTS["pgbench-init-17"] + TEXTS["pgbench-17"]
    assert parse_text(both, kind="pgbench_init")["phases_s"]["total"] == 0.29
    with pytest.raises(ParseError, match="no line"):
        parse_text("", kind="transaction_log")


@pytest.mark.parametrize(
    "prefix",
    [
        "bench-1  | ", "[db1.example.org] out: ", "2026-11-01T10:00:{n:02}.123456Z ", "pod/x-7f {n} stdout F ", "# ", "- ", "// ",
        "Nov 01 10:00:{n:02} db1 pgbench[4711]: ", "[10:00:{n:02}] ", "| ", "DEBUG:root:", "db1 | 2026-11-01 10:00:{n:02},5 ",
        "run1.log:{n}:", "{n:6}  ", "2026-11-{n:2} ",
    ],
)  # fmt: skip
def test_what_a_collector_puts_before_each_line_is_taken_off(prefix: str) -> None:
    text = "".join(f"{prefix.format(n=n)}{line}\n" for n, line in enumerate(RUN.splitlines()))
    assert parse_text(text) == parse_text(RUN)


def test_lists_and_tables_of_markdown_are_read() -> None:
    for begin, end in (("- ", "<br>"), ("| ", " |")):
        assert parse_text("".join(f"{begin}{line}{end}\n" for line in RUN.splitlines())) == parse_text(RUN)


def test_a_reading_that_broke_into_another_line_is_read_or_named() -> None:
    broken = RUN.replace("progress: 2.0 s", "pgbench : progress: 2.0 s")
    assert parse_text(broken) == parse_text(RUN)
    with pytest.raises(ParseError, match="looks like a line of progress"):
        parse_text(broken.replace("510.0 tps, lat", "510.0 tps\nlat"))


def test_decimal_commas_of_a_locale_are_read_in_figures_alone() -> None:
    banner, rest = RUN.split("\n", 1)
    comma = f"{banner}\n{re.sub(r'(?<=[0-9])[.](?=[0-9])', ',', rest)}"
    rows = "statement latencies in milliseconds and failures:\n        0,123 0  SELECT round(1,2);\n"
    assert parse_text(comma + rows)["statements"][0] | {"script": 1} == {"script": 1, "latency_ms": 0.123, "failures": 0, "retries": None, "statement": "SELECT round(1,2);"}  # fmt: skip
    assert parse_text(comma) == parse_text(RUN)


def test_several_runs_are_read_each() -> None:
    other = edited("pgbench-16", {"1010": "2020", "505.0": "1010.0", "7.920": "3.960"})
    runs = parse_runs(f"warming up\n{RUN}\nagain\n$ pgbench -T 2 bench\n{other}{RUN}")
    assert [(run["tps"], len(run["progress"])) for run in runs] == [(505, 2), (1010, 2), (505, 2)]
    with pytest.raises(ParseError, match="run 2 of 2: "):
        parse_runs(RUN + RUN.replace("number of clients: 4\n", ""))
    loop = f"{TEXTS['sysbench-1.0']}+ sysbench --threads=2 run\n{TEXTS['sysbench-1.0-percentile-99']}"
    assert [run["latency_p95_ms"] is None for run in parse_runs(loop)] == [False, True]


CLIENT = "pgbench: error: client 0 script 0 aborted in command 7 query 0: FATAL:  terminating connection"
ABORTED = "pgbench: error: Run was aborted; the above results are incomplete."


def test_a_failure_is_that_of_its_own_run_or_the_text_is_refused() -> None:
    terminal = f"{CLIENT}\n{RUN}{ABORTED}\n{RUN}"
    assert [run["complete"] for run in parse_runs(terminal)] == [False, True]
    for text, words in (
        (f"{RUN}{CLIENT}\n{ABORTED}\n{RUN}", "may belong to run 1 of 2 or to the next"),
        (f"{RUN}pgbench (16.4)\n{CLIENT}\n{RUN}", "a run after run 1 of 2 has no summary"),
    ):
        with pytest.raises(ParseError, match=words):
            parse_runs(text)


@pytest.mark.parametrize("prompt", ["[me@box ~]$ ", "me@mac ~ % ", "+ ", "$ pgbench -h box -i bench\n$ "])
def test_each_run_has_the_command_line_before_it(prompt: str) -> None:
    run = f"{prompt}pgbench -n -c 2 -T 2 -C -S bench\n{TEXTS['pgbench-12-reconnected']}"
    assert [run["tps"] for run in parse_runs(f"{run}\n{run}")] == [286.457154] * 2


def test_runs_whose_tps_counts_what_was_skipped_are_left_out_and_failures_are_named() -> None:
    (late,) = (case for case in CASES if case.name == "10.3/rate_late")
    collected = collect(
        [Source(f"pg{n}/run1.txt", text, float(n)) for n, text in ((10, late.both), (16, RUN))]
    )
    assert [bool(row["error"]) for row in collected.rows] == [True, False]
    assert collected.rows[0]["skipped_transactions"] == 21930
    told = [note for note in collected.notes if "skipped" in note]
    assert [note.partition(",")[0] for note in told] == ["runs left out: 1"]
    kept = [Source(f"pg{n}/run1.txt", edited("pgbench-17-limited", {}), float(n)) for n in (16, 17)]
    assert [note for note in collect(kept).notes if "failed or were skipped" in note]


def test_a_sampling_rate_is_no_command_line_of_the_run_beside_the_log() -> None:
    log = TEXTS["log-7-columns"]
    assert parse_text(log, argv=["pgbench", "--sampling-rate=0.1"])["sampling_rate"] == 0.1
    run = TEXTS["pgbench-17-reconnected"]
    assert parse_text(run, argv=["pgbench", "--sampling-rate=0.1"]) == parse_text(run)


def test_a_log_in_which_most_transactions_were_skipped_is_not_sampled() -> None:
    rows = [f"0 {n} {'skipped' if n % 3 else 900} 0 1700000000 {n} 5" for n in range(60)]
    assert not any("sampled" in note for note in parse_text("\n".join([*rows, ""]))["notes"])


def test_the_decimal_comma_of_a_load_is_read() -> None:
    text = TEXTS["pgbench-init-17"]
    assert parse_text(re.sub(r"(?<=\d)[.](?=\d\d s)", ",", text)) == parse_text(text)


def test_the_command_line_gives_a_list_for_several_runs(command_line: Any, tmp_path: Path) -> None:
    twice = RUN + RUN.replace("pgbench (16.4)\n", "")
    for text, path, tps in ((RUN, "tps", 505), (twice, "*.tps", [505, 505])):
        (tmp_path / "runs.txt").write_text(text)
        assert found(json.loads(command_line("parse", tmp_path / "runs.txt", "--json").out), path) == tps


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
