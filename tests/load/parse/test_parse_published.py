"""What others published must be readable: the studies' figures in the tools' own formats."""

import pytest
from parse_cases import published

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

MANAGED_RUN = published("gcp-9.6-run")
SYSBENCH_05, SYSBENCH_10 = published("gcp-sysbench-0.5"), published("sysbench-1.0")


def test_the_managed_study_read_write_run_of_9_6() -> None:
    read = parse_text(MANAGED_RUN)
    assert read["complete"]
    assert (read["transactions"], read["clients"], read["scale"]) == (2157735, 1000, 10000)
    assert (read["latency_average_ms"], read["latency_stddev_ms"]) == (278.149, 503.396)
    assert read["tps"] == 3591.759513
    assert read["tps_definition"] == "excluding connections establishing"
    assert read["tps_including_connections"] == 3573.331659
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
    read = parse_text(published("gcp-9.6-init"))
    assert read["kind"] == "pgbench_init"
    assert (read["rows"], read["scale"]) == (1_000_000_000, 10_000)
    assert read["phases_s"] == {
        "total": 5978.44, "insert": 1878.90, "commit": 0.04, "vacuum": 2484.96, "index": 1614.54
    }  # fmt: skip


def test_the_managed_study_sysbench_05_run() -> None:
    read = parse_text(SYSBENCH_05)
    assert (read["kind"], read["complete"], read["version"], read["threads"]) == (
        "sysbench",
        True,
        "0.5",
        1000,
    )
    assert (read["transactions"], read["tps"], read["errors"]) == (900895, 1500.68, 5)
    assert (read["latency_average_ms"], read["latency_p95_ms"]) == (666.19, 1397.02)
    assert [row["tps"] for row in read["progress"]][:2] == [1320.25, 1486.77]
    assert read["progress"][0]["elapsed_s"] == 60
    assert read["progress"][0]["latency_p95_ms"] == 1484.54


DEBIAN, WINDOWS = published("pg_test_fsync-debian"), published("pg_test_fsync-windows")


def test_the_1c_study_debian_table() -> None:
    read = parse_text(DEBIAN)
    one = "Compare file sync methods using one 8kB write"
    assert (read["kind"], read["complete"], read["seconds_per_test"]) == ("pg_test_fsync", True, 5)
    assert read["methods"][0] == {
        "section": one, "method": "open_datasync", "ops_per_s": 80.215, "usecs_per_op": 12467.0
    }  # fmt: skip
    assert read["methods"][3] == {
        "section": one, "method": "fsync_writethrough", "ops_per_s": None, "usecs_per_op": None
    }  # fmt: skip
    assert [row["method"] for row in read["methods"]][11:] == [
        "2 * 8kB open_sync writes", "4 * 4kB open_sync writes", "8 * 2kB open_sync writes",
        "16 * 1kB open_sync writes", "write, fsync, close", "write, close, fsync", "write",
    ]  # fmt: skip
    assert read["methods"][-1]["section"] == "Non-sync'ed 8kB writes"


def test_the_1c_study_windows_table_with_its_lying_cache() -> None:
    rates = {row["method"]: row["ops_per_s"] for row in parse_text(WINDOWS)["methods"][:5]}
    assert rates == {
        "open_datasync": 48817.44, "fdatasync": None, "fsync": 79.688, "fsync_writethrough": 80.072,
        "open_sync": None,
    }  # fmt: skip


def test_a_torn_fsync_table_is_not_complete_and_its_last_row_is_left_out() -> None:
    read = parse_text(WINDOWS[: WINDOWS.index("76.493") + 3])
    assert not read["complete"]
    assert len(read["methods"]) == 15


@pytest.mark.parametrize(
    ("row", "why"),
    [("79.688 ops/sec     125 usecs/op", "contradicts itself"), ("1.0 ops/sec\n        fsync  1.0 ops/sec", "two runs")],
)  # fmt: skip
def test_an_fsync_table_that_contradicts_itself_is_refused(row: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse_text(WINDOWS.replace("79.688 ops/sec   12549 usecs/op", row))


def test_sysbench_10() -> None:
    read = parse_text(SYSBENCH_10)
    assert (read["version"], read["transactions"], read["tps"], read["errors"]) == ("1.0.20", 2053, 102.56, 1)
    assert (read["latency_average_ms"], read["latency_p95_ms"], read["queries"]) == (77.97, 95.81, 41060)
    assert read["progress"][1]["queries_per_s"] == 2039.28
    assert read["progress"][1]["errors_per_s"] == 0.10


def test_sysbench_04_counts_deadlocks() -> None:
    text = SYSBENCH_05.replace(
        "ignored errors:                      5      (0.01", "deadlocks:       7      (0.01"
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
        (("[ 20s ]", "[ 5s ]"), "go back in time"),
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
    for cut in range(0, len(text), 3):
        try:
            read = parse_text(text[:cut])
        except ParseError:
            continue
        for key, value in read.items():
            assert value is None or value == whole[key]
