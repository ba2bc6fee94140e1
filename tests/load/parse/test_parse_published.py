"""What others published must be readable: the studies' figures in the tools' own formats."""

import pytest

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

MANAGED_RUN = """\
pgbench --protocol=prepared -P 60 --time=600 --client=1000 --jobs=2048 -h db.example -U bench benchdb
starting vacuum...end.
progress: 60.0 s, 4553.6 tps, lat 215.912 ms stddev 320.404
progress: 120.0 s, 3646.5 tps, lat 273.970 ms stddev 473.252
progress: 180.0 s, 3130.4 tps, lat 319.470 ms stddev 629.105
progress: 240.0 s, 3998.3 tps, lat 250.121 ms stddev 392.012
progress: 300.0 s, 3305.3 tps, lat 302.532 ms stddev 560.112
progress: 360.0 s, 3547.9 tps, lat 281.861 ms stddev 497.713
progress: 420.0 s, 3770.5 tps, lat 265.219 ms stddev 445.540
progress: 480.0 s, 3050.5 tps, lat 327.811 ms stddev 648.331
progress: 540.0 s, 3591.7 tps, lat 278.411 ms stddev 499.030
progress: 600.0 s, 3350.9 tps, lat 298.430 ms stddev 541.211
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 10000
query mode: prepared
number of clients: 1000
number of threads: 1000
duration: 600 s
number of transactions actually processed: 2157735
latency average = 278.149 ms
latency stddev = 503.396 ms
tps = 3573.331893 (including connections establishing)
tps = 3591.761033 (excluding connections establishing)
"""


def test_the_managed_study_read_write_run_of_9_6() -> None:
    read = parse_text(MANAGED_RUN)
    assert read["complete"]
    assert (read["transactions"], read["clients"], read["scale"]) == (2157735, 1000, 10000)
    assert (read["latency_average_ms"], read["latency_stddev_ms"]) == (278.149, 503.396)
    assert read["tps"] == 3591.761033
    assert read["tps_definition"] == "excluding connections establishing"
    assert read["tps_including_connections"] == 3573.331893
    assert [row["tps"] for row in read["progress"]] == [
        4553.6, 3646.5, 3130.4, 3998.3, 3305.3, 3547.9, 3770.5, 3050.5, 3591.7, 3350.9
    ]  # fmt: skip
    assert read["failed_transactions"] is None


def test_the_managed_study_first_died_on_max_connections() -> None:
    with pytest.raises(
        ParseError, match=r'no line "tps = …"; the text says: connection to database "benchdb"'
    ):
        parse_text(
            'connection to database "benchdb" failed:\nFATAL:  remaining connection slots are reserved\n'
        )


def test_the_managed_study_load_with_a_patched_9_6() -> None:
    read = parse_text(
        'NOTICE:  table "pgbench_history" does not exist, skipping\n'
        "creating tables...\n"
        "999900000 of 1000000000 tuples (99%) done (elapsed 1878.71 s, remaining 0.19 s)\n"
        "1000000000 of 1000000000 tuples (100%) done (elapsed 1878.90 s, remaining 0.00 s)\n"
        "vacuum...\n"
        "set primary keys...\n"
        "total time: 5978.44 s (insert 1878.90 s, commit 0.04 s, vacuum 2484.96 s, index 1614.54 s)\n"
        "done.\n"
    )
    assert read["kind"] == "pgbench_init"
    assert (read["rows"], read["scale"]) == (1_000_000_000, 10_000)
    assert read["phases_s"] == {
        "total": 5978.44, "insert": 1878.90, "commit": 0.04, "vacuum": 2484.96, "index": 1614.54
    }  # fmt: skip


SYSBENCH_05 = """\
sysbench 0.5:  multi-threaded system evaluation benchmark

Running the test with following options:
Number of threads: 1000
Report intermediate results every 60 second(s)
Random number generator seed is 0 and will be ignored

Threads started!

[  60s] threads: 1000, tps: 1604.92, reads: 0.00, writes: 6424.76, response time: 1237.83ms (95%), errors: 0.00, reconnects:  0.00
[ 120s] threads: 1000, tps: 1479.18, reads: 0.00, writes: 5916.05, response time: 1409.58ms (95%), errors: 0.00, reconnects:  0.00
OLTP test statistics:
    queries performed:
        read:                            0
        write:                           3603580
        other:                           1801790
        total:                           5405370
    transactions:                        900895 (1500.68 per sec.)
    read/write requests:                 3603580 (6002.71 per sec.)
    other operations:                    1801790 (3001.36 per sec.)
    ignored errors:                      0      (0.00 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          600.3231s
    total number of events:              900895
    total time taken by event execution: 600168.4211s
    response time:
         min:                                  8.41ms
         avg:                                666.19ms
         max:                               4932.51ms
         approx.  95 percentile:            1397.02ms

Threads fairness:
    events (avg/stddev):           900.8950/17.41
    execution time (avg/stddev):   600.1684/0.09
"""


def test_the_managed_study_sysbench_05_run() -> None:
    read = parse_text(SYSBENCH_05)
    assert (read["kind"], read["complete"], read["version"], read["threads"]) == (
        "sysbench",
        True,
        "0.5",
        1000,
    )
    assert (read["transactions"], read["tps"], read["errors"]) == (900895, 1500.68, 0)
    assert (read["latency_average_ms"], read["latency_p95_ms"]) == (666.19, 1397.02)
    assert [row["tps"] for row in read["progress"]] == [1604.92, 1479.18]
    assert read["progress"][0]["elapsed_s"] == 60
    assert read["progress"][0]["latency_p95_ms"] == 1237.83


def fsync_table(rows: str) -> str:
    return (
        "5 seconds per test\nO_DIRECT supported on this platform for open_datasync and open_sync.\n\n"
        "Compare file sync methods using one 8kB write:\n"
        "(in wal_sync_method preference order, except fdatasync is Linux's default)\n"
        f"{rows}\n"
        "Compare open_sync with different write sizes:\n"
        "(This is designed to compare the cost of writing 16kB in different write\nopen_sync sizes.)\n"
        "         1 * 16kB open_sync write          38.874 ops/sec   25724 usecs/op\n"
        "         2 *  8kB open_sync writes         20.085 ops/sec   49788 usecs/op\n\n"
        "Test if fsync on non-write file descriptor is honored:\n"
        "(If the times are similar, fsync() can sync data written on a different\ndescriptor.)\n"
        "        write, fsync, close                38.941 ops/sec   25680 usecs/op\n\n"
        "Non-Sync'ed 8kB writes:\n"
        "        write                          194317.245 ops/sec       5 usecs/op\n"
    )


def test_the_1c_study_debian_table() -> None:
    read = parse_text(
        fsync_table(
            "        open_datasync                      80.204 ops/sec   12468 usecs/op\n"
            "        fdatasync                          80.311 ops/sec   12452 usecs/op\n"
            "        fsync                              39.402 ops/sec   25379 usecs/op\n"
            "        fsync_writethrough                            n/a\n"
            "        open_sync                          39.384 ops/sec   25391 usecs/op\n"
        )
    )
    one = "Compare file sync methods using one 8kB write"
    assert (read["kind"], read["complete"], read["seconds_per_test"]) == ("pg_test_fsync", True, 5)
    assert read["methods"][0] == {
        "section": one, "method": "open_datasync", "ops_per_s": 80.204, "usecs_per_op": 12468.0
    }  # fmt: skip
    assert read["methods"][3] == {
        "section": one, "method": "fsync_writethrough", "ops_per_s": None, "usecs_per_op": None
    }  # fmt: skip
    assert [row["method"] for row in read["methods"]][5:] == [
        "1 * 16kB open_sync write", "2 * 8kB open_sync writes", "write, fsync, close", "write"
    ]  # fmt: skip
    assert read["methods"][-1]["section"] == "Non-sync'ed 8kB writes"


def test_the_1c_study_windows_table_with_its_lying_cache() -> None:
    read = parse_text(
        fsync_table(
            "        open_datasync                   48817.035 ops/sec      20 usecs/op\n"
            "        fdatasync                                     n/a\n"
            "        fsync                              79.688 ops/sec   12549 usecs/op\n"
            "        fsync_writethrough                 79.654 ops/sec   12554 usecs/op\n"
            "        open_sync                                     n/a\n"
        )
    )
    rates = {row["method"]: row["ops_per_s"] for row in read["methods"][:5]}
    assert rates == {
        "open_datasync": 48817.035, "fdatasync": None, "fsync": 79.688, "fsync_writethrough": 79.654,
        "open_sync": None,
    }  # fmt: skip


def test_a_torn_fsync_table_is_not_complete_and_its_last_row_is_left_out() -> None:
    table = fsync_table("        fsync                              79.688 ops/sec   12549 usecs/op\n")
    read = parse_text(table[: table.index("38.941") + 3])
    assert not read["complete"]
    assert len(read["methods"]) == 3


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("        fsync                              79.688 ops/sec   125 usecs/op\n", "contradicts itself"),
        ("        fsync                              79.688 ops/sec   12549 usecs/op\n" * 2, "two runs"),
    ],
)
def test_an_fsync_table_that_contradicts_itself_is_refused(row: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse_text(fsync_table(row))


def test_an_fsync_text_without_rows_is_refused() -> None:
    with pytest.raises(ParseError, match=r"ops/sec  … usecs/op"):
        parse_text("5 seconds per test\n")


SYSBENCH_10 = """\
sysbench 1.0.20 (using bundled LuaJIT 2.1.0-beta2)

Running the test with following options:
Number of threads: 8
Report intermediate results every 10 second(s)

[ 10s ] thds: 8 tps: 103.39 qps: 2079.37 (r/w/o: 1457.65/414.34/207.37) lat (ms,95%): 95.81 err/s: 0.00 reconn/s: 0.00
[ 20s ] thds: 8 tps: 101.90 qps: 2039.28 (r/w/o: 1427.89/407.50/203.90) lat (ms,95%): 97.55 err/s: 0.10 reconn/s: 0.00
SQL statistics:
    queries performed:
        read:                            28742
        write:                           8212
        other:                           4106
        total:                           41060
    transactions:                        2053   (102.56 per sec.)
    queries:                             41060  (2051.27 per sec.)
    ignored errors:                      1      (0.05 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          20.0168s
    total number of events:              2053

Latency (ms):
         min:                                   32.33
         avg:                                   77.97
         max:                                  174.12
         95th percentile:                       95.81
         sum:                               160079.10

Threads fairness:
    events (avg/stddev):           256.6250/2.50
"""


def test_sysbench_10() -> None:
    read = parse_text(SYSBENCH_10)
    assert (read["version"], read["transactions"], read["tps"], read["errors"]) == ("1.0.20", 2053, 102.56, 1)
    assert (read["latency_average_ms"], read["latency_p95_ms"], read["queries"]) == (77.97, 95.81, 41060)
    assert read["progress"][1]["queries_per_s"] == 2039.28
    assert read["progress"][1]["errors_per_s"] == 0.10


def test_sysbench_04_counts_deadlocks() -> None:
    text = SYSBENCH_05.replace(
        "ignored errors:                      0      (0.00", "deadlocks:       7      (0.01"
    )
    read = parse_text(text.replace("sysbench 0.5:", "sysbench 0.4.12:"))
    assert (read["version"], read["errors"]) == ("0.4.12", 7)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (("transactions:                        2053 ", "transactions:                        205 "), "are not 102.56 per second"),
        (("transactions:  ", "transaxions:  "), r'no line "transactions: N'),
        (("avg:                                   77.97", "avg:                                   77.9"), r'no line "avg: …"'),
        (("total time: ", "total tine: "), r'no line "total time: …s"'),
        (("max:                                  174.12", "max:                                   17.41"), "out of order"),
        (("percentile:                       95.81", "percentile:                      958.10"), "above the maximum"),
        (("[ 20s ]", "[ 10s ]"), "go back in time"),
    ],
)  # fmt: skip
def test_a_damaged_sysbench_report_is_refused(damage: tuple[str, str], why: str) -> None:
    assert damage[0] in SYSBENCH_10
    with pytest.raises(ParseError, match=why):
        parse_text(SYSBENCH_10.replace(*damage))


def test_sysbench_says_when_it_failed() -> None:
    read = parse_text("FATAL: `thread_run' function failed: database error\n" + SYSBENCH_10)
    assert not read["complete"]
    assert read["error_lines"] == ["FATAL: `thread_run' function failed: database error"]


@pytest.mark.parametrize("text", [SYSBENCH_05, SYSBENCH_10, MANAGED_RUN], ids=["0.5", "1.0", "pgbench 9.6"])
def test_a_published_text_cut_anywhere_is_right_or_refused(text: str) -> None:
    whole = parse_text(text)
    for cut in range(len(text)):
        try:
            read = parse_text(text[:cut])
        except ParseError:
            continue
        for key, value in read.items():
            assert value is None or value == whole[key]
