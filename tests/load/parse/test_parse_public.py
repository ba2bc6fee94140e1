"""What people have: prefixes of log collectors, other languages, old versions, several runs, sampled logs."""

import json
from pathlib import Path

import pytest

from benchlib.errors import ParseError
from benchlib.load.parse import parse_runs, parse_text

RUN = """\
pgbench (16.4)
starting vacuum...end.
progress: 1.0 s, 500.0 tps, lat 7.900 ms stddev 1.000, 0 failed
progress: 2.0 s, 510.0 tps, lat 7.800 ms stddev 1.000, 0 failed
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 1
query mode: simple
number of clients: 4
number of threads: 2
maximum number of tries: 1
duration: 2 s
number of transactions actually processed: 1010
number of failed transactions: 0 (0.000%)
latency average = 7.920 ms
latency stddev = 1.000 ms
initial connection time = 4.567 ms
tps = 505.000000 (without initial connection time)
"""
PREFIXES = [
    *(
        "bench-1  | ",
        "[db1.example.org] out: ",
        "2026-11-01T10:00:{n:02}.123456Z ",
        "pod/x-7f {n} stdout F ",
        "# ",
        "- ",
        "// ",
    ),
    *(
        "Nov 01 10:00:{n:02} db1 pgbench[4711]: ",
        "[10:00:{n:02}] ",
        "| ",
        "DEBUG:root:",
        "db1 | 2026-11-01 10:00:{n:02},5 ",
    ),
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_a_collector_puts_before_each_line_is_taken_off(prefix):
    text = "".join(prefix.format(n=n) + line + "\n" for n, line in enumerate(RUN.splitlines()))
    assert parse_text(text) == parse_text(RUN)


def test_lines_as_ansible_lists_them_are_unquoted():
    text = "".join(f"            {json.dumps(line)},\n" for line in RUN.splitlines())
    assert parse_text(text) == parse_text(RUN)


def test_a_markdown_list_with_breaks_is_read():
    assert parse_text("".join(f"- {line}<br>\n" for line in RUN.splitlines())) == parse_text(RUN)


def test_several_runs_are_read_each():
    other = RUN.replace("1010", "2020").replace("505.0", "1010.0").replace("7.920", "3.960")
    runs = parse_runs(f"warming up\n{RUN}\nagain\n$ pgbench -T 2 bench\n{other}{RUN}")
    assert [run["tps"] for run in runs] == [505, 1010, 505]
    assert [len(run["progress"]) for run in runs] == [2, 2, 2]
    with pytest.raises(ParseError, match="run 2 of 2: "):
        parse_runs(RUN + RUN.replace("number of clients: 4\n", ""))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("progress: 3.0 s, viele tps, lat 7.9 ms stddev 1.0", RUN.replace("transaction type", "{}\ntransaction type")),
        ("[ 20s ] thds: 4 tps: 9 something new", "sysbench 1.0.20\n{}\n"),
        ("        open_sync      12 000 ops/sec   80 usecs/op", "Compare file sync methods using one 8kB write:\n{}\n"),
        ("0,145  BEGIN;", RUN + "statement latencies in milliseconds and failures:\n{}\n"),
    ],
)  # fmt: skip
def test_what_looks_like_a_row_and_is_not_understood_is_named(row, text):
    with pytest.raises(ParseError, match="cannot be read") as caught:
        parse_text(text.format(row))
    assert " ".join(row.split())[:12] in " ".join(str(caught.value).split())


def test_a_remark_behind_a_reading_is_left_out():
    text = RUN.replace(
        "lat 7.800 ms stddev 1.000, 0 failed", "lat 7.800 ms stddev 1.000, 0 failed <- vacuum begins"
    )
    assert parse_text(text)["progress"] == parse_text(RUN)["progress"]


def test_readings_of_sysbench_with_other_percentiles_and_without_colons_are_rows():
    end = """\
    transactions:                        700    (70.00 per sec.)
    total time:                          10.0000s
         avg:                                   57.00
"""
    new = "[ 5s ] thds: 8 tps: 71.00 qps: 1.00 (r/w/o: 1.00/2.00/3.00) lat (ms,99%): 90.00 err/s 1.20 reconn/s: N/A\n"
    old = "[  10s] threads: 8, tps: 70.00, reads/s: 12.30, writes/s: 3.34, response time: 71.32ms (99%)\n"
    rows = (
        parse_text(f"sysbench 1.0.19\n{new}{end}")["progress"]
        + parse_text(f"sysbench 0.5:  x\n{old}{end}")["progress"]
    )
    assert [(r["tps"], r["latency_p95_ms"], r["errors_per_s"]) for r in rows] == [
        (71, None, 1.2),
        (70, None, None),
    ]


def test_a_sampled_log_says_so():
    sampled = "".join(f"0 {n} 1500 0 1795178920 {n}\n" for n in (97, 195, 310, 402))
    whole = "".join(f"0 {n} 1500 0 1795178920 {n}\n" for n in range(4))
    assert any("sampled" in note for note in parse_text(sampled)["notes"])
    assert parse_text(whole)["notes"] == []


def test_an_aggregated_log_is_named():
    with pytest.raises(ParseError, match="aggregate-interval"):
        parse_text("1795178920 100 5000 250000 10 90\n1795178930 100 5000 250000 10 90\n")


def test_flushes_in_another_language_and_with_decimal_commas_are_read():
    text = (
        "5 Sekunden pro Test\n\nVergleich der Methoden bei einem Schreibvorgang von 8 kB:\n"
        "        fdatasync                          2315,125 ops/sec     432 usecs/op\n"
        "        fsync_writethrough                              n/a\n\n"
        "Nicht gesyncte 8-kB-Schreibvorgänge:\n        write                            609756,610 ops/sec       2 usecs/op\n"
    )
    assert [(row["method"], row["ops_per_s"]) for row in parse_text(text)["methods"]] == [
        ("fdatasync", 2315.125), ("fsync_writethrough", None), ("write", 609756.61)
    ]  # fmt: skip


def test_the_command_line_gives_a_list_for_several_runs(command_line, tmp_path: Path):
    (tmp_path / "runs.txt").write_text(RUN + RUN.replace("pgbench (16.4)\n", ""))
    assert len(json.loads(command_line("parse", tmp_path / "runs.txt", "--json").out)) == 2
    (tmp_path / "one.txt").write_text(RUN)
    assert json.loads(command_line("parse", tmp_path / "one.txt", "--json").out)["tps"] == 505
