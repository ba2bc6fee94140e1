"""Reading pgbench's log files: a line per transaction."""

import pytest

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

PLAIN = "".join(f"{n % 2} {n} {1000 + n} {n % 3 == 0:d} 1795178920 {100000 + n}\n" for n in range(100))
SEVEN = """\
0 1 1523 0 1795178920 475654 85
1 1 1407 0 1795178920 476928 60
0 2 skipped 0 1795178920 477992 0
1 2 457 0 1795178920 478451 1
"""
LIMITED, RETRIED = ["pgbench", "-R", "900", "-L", "1", "-l"], ["pgbench", "-l", "--max-tries=2"]


def test_a_seventh_column_is_lag_or_retries_as_the_command_line_says() -> None:
    lag = parse_text(SEVEN, argv=LIMITED)
    assert (lag["transactions"], lag["skipped_transactions"]) == (3, 1)
    assert (lag["lag_ms"]["n"], lag["lag_ms"]["max"], lag["retries"]) == (3, 0.085, None)
    retries = parse_text(SEVEN.replace("skipped", "failed"), argv=RETRIED)
    assert (retries["failed_transactions"], retries["lag_ms"]) == (1, None)
    assert (retries["retries"], retries["retried_transactions"]) == (146, 3)


def test_a_seventh_column_without_a_command_line_is_not_guessed() -> None:
    read = parse_text(SEVEN)
    assert (read["lag_ms"], read["retries"], read["retried_transactions"]) == (None, None, None)
    assert "only the command line can tell" in read["notes"][0]
    assert read["transactions"] == 3


@pytest.mark.parametrize("argv", [["pgbench", "-l", "-T", "1"], [*LIMITED, "--max-tries=3"]])
def test_columns_that_the_command_line_does_not_explain_are_refused(argv: list[str]) -> None:
    with pytest.raises(ParseError, match="7 columns, but the command line asks for"):
        parse_text(SEVEN, argv=argv)


def test_the_torn_last_line_of_a_killed_run_does_not_count() -> None:
    read = parse_text(PLAIN + "1 100 13")
    assert (read["complete"], read["transactions"], read["torn_lines"]) == (False, 100, 1)


def test_a_last_line_that_lacks_only_its_newline_counts_but_for_its_last_figure() -> None:
    assert parse_text(PLAIN.rstrip())["transactions"] == 100
    read = parse_text(SEVEN.rstrip(), argv=LIMITED)
    assert (read["transactions"], read["lag_ms"]["n"]) == (3, 2)


def test_files_of_a_killed_run_run_into_each_other_where_they_are_torn() -> None:
    read = parse_text(PLAIN + "1 26" + PLAIN.replace("\n0 ", "\n2 ").replace("\n1 ", "\n3 "))
    assert (read["complete"], read["transactions"], read["torn_lines"]) == (False, 199, 1)


def test_the_same_transaction_twice_is_refused() -> None:
    with pytest.raises(ParseError, match="twice"):
        parse_text(PLAIN + PLAIN)


def test_logs_of_different_shapes_are_refused() -> None:
    with pytest.raises(ParseError, match="different shapes"):
        parse_text(PLAIN + SEVEN)


def test_a_log_of_failures_only_has_no_latency() -> None:
    read = parse_text("0 1 failed 0 1795178920 475654\n")
    assert (read["transactions"], read["failed_transactions"], read["latency_ms"]["p50"]) == (0, 1, None)


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(ParseError, match="no line"):
        parse_text("", kind="transaction_log")
