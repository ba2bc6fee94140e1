"""Every recorded run reads as reviewed; whatever happens to its text on its way, its numbers are right or it is refused."""

import json
import random
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parse_cases import CASES, GOLDEN, REVIEWED, Case, observed, outcome

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

GOLDENS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in GOLDEN.glob("*.json")}
EXPECTED = {
    f"{version}/{title}": report for version, runs in GOLDENS.items() for title, report in runs.items()
}
REPORTS = [case for case in CASES if "refused" not in outcome(case.both, case.argv)]
SUMMARIES = [case for case in REPORTS if outcome(case.both, case.argv)["kind"] == "pgbench_summary"]
LOST = ("killed_backend", "too_many_clients", "sql_error")
"""Cases that failed, though some versions end with status 0 then."""
WHOLE = [case for case in SUMMARIES if not case.rc and case.title not in LOST]
TIMED = [case for case in WHOLE if {"-T", "-R"} & {*case.argv} == {"-T"}]
LOGS = [case for case in CASES if case.log]
bounded = settings(derandomize=True, deadline=None, max_examples=60, database=None)

GARBAGE = st.sampled_from(
    [
        "", "postgres@db1:~$ pgbench -n -c 4 bench", "$ ", "NOTICE:  relation does not exist, skipping",
        "WARNING:  there is already a transaction in progress", "real\t0m2.031s", "tps = 12", "progress: 1.0 s, 3",
        "number of clients: ", "tps = 32 (excluding", "latency average = 0.8", "-- 3275.46 --", "done.x", "42",
        "pgbench: warning: scale option ignored, using count from pgbench_branches table (5)", "\x1b[2K", "```",
    ]
)  # fmt: skip


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@each(REVIEWED)
def test_a_recorded_run_reads_as_reviewed(case: Case) -> None:
    assert observed(case) == EXPECTED[case.name]


def test_no_golden_file_is_left_without_its_runs() -> None:
    assert EXPECTED.keys() == {case.name for case in REVIEWED}


def test_every_summary_has_every_key_whatever_the_version() -> None:
    assert len({tuple(sorted(outcome(case.both, case.argv))) for case in SUMMARIES}) == 1


def agrees(value: Any, truth: Any) -> bool:
    """Tell whether ``value`` says nothing otherwise than ``truth``; absent is allowed.

    The words of a statement may be cut where a newline hides that its line was: they are no number.
    """
    if value is None or value == truth:
        return True
    if isinstance(value, dict) and isinstance(truth, dict):
        torn = {"statement"} if str(truth.get("statement")).startswith(str(value.get("statement"))) else set()
        return all(key in torn or agrees(each, truth.get(key)) for key, each in value.items())
    if isinstance(value, list) and isinstance(truth, list):
        rest = iter(truth)  # rows may be missing, but not be others or in another order
        return all(any(agrees(row, each) for each in rest) for row in value)
    return False


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    """Leave out what tells of the text and not of the run."""
    return {key: value for key, value in report.items() if key not in ("errors", "notes", "complete")}


whole = cache(parse_text)
"""The report of a text that nothing has happened to."""


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Case, str]:
    """A report, and what may become of its text on its way."""
    case = draw(st.sampled_from(REPORTS))
    text, lines = case.both, case.both.splitlines(keepends=True)
    at = draw(st.integers(0, len(text)))
    line = draw(st.integers(0, len(lines) - 1))
    kept = case.stdout[: draw(st.integers(0, len(case.stdout)))]
    broken_into = draw(st.sampled_from(case.stderr.splitlines(keepends=True) or [""]))
    garbage = [f"{each}\n" for each in draw(st.lists(GARBAGE, min_size=1, max_size=6))]
    doubled = line + (not lines[line].startswith("     "))  # a script may well hold a statement twice
    becomes = [
        text[:at],
        text[at:],
        kept + case.stderr[:400],
        f"{kept}\n{case.stderr[:400]}",
        kept + broken_into + case.stdout[len(kept) :],
        "".join(lines[:line] + garbage + lines[line:]),
        "".join(lines[:line] + lines[line + 1 :]),
        "".join(lines[:doubled] + lines[line:]),
    ]
    return case, draw(st.sampled_from(becomes))


@settings(bounded, max_examples=200)
@given(damaged())
def test_a_damaged_text_is_right_or_refused(damaged: tuple[Case, str]) -> None:
    case, text = damaged
    try:
        report = parse_text(text)
    except ParseError:
        return
    assert agrees(numbers(report), numbers(whole(case.both)))


@bounded
@given(st.data())
def test_lines_of_stdout_and_stderr_in_any_mixture_read_the_same(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(REPORTS))
    streams = [case.stdout.splitlines(), case.stderr.splitlines()]
    chance, mixed = random.Random(data.draw(st.integers(0, 2**32))), []
    while any(streams):
        mixed.append(chance.choice([each for each in streams if each]).pop(0))
    report, unmixed = parse_text("\n".join(mixed) + "\n"), whole(case.both)
    assert (numbers(report), report["complete"]) == (numbers(unmixed), unmixed["complete"])


@each(TIMED)
def test_a_lost_digit_of_a_key_figure_is_refused(case: Case) -> None:
    """The one kind of damage that leaves the shape of a line whole."""
    with pytest.raises(ParseError):
        parse_text(re.sub(r"(?m)^(number of transactions actually processed: \d+)\d", r"\1", case.both))


@each(REPORTS[::5])
def test_a_terminal_changes_nothing(case: Case) -> None:
    plain, lines = case.both, case.both.splitlines(keepends=True)
    for dressed in (
        plain.replace("\n", "\r\n"),
        plain.replace("\n", "\r"),
        "".join(f"> {line}" for line in lines),
        "".join(f"    {line}" for line in lines),
        "".join(f"\x1b[32m{line.rstrip()}\x1b[0m\n" for line in lines),
        plain.replace(" = ", "\u00a0=\u00a0"),
        "postgres@db1:~$ cat notes\n" + plain + "postgres@db1:~$ ",
        "\ufeff" + plain,
    ):
        assert numbers(parse_text(dressed)) == numbers(whole(plain))


@bounded
@given(st.data())
def test_a_log_cut_anywhere_counts_only_whole_lines(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(LOGS))
    text = case.log[: data.draw(st.integers(0, len(case.log)))]
    report = outcome(text, case.argv)
    if report.get("kind") == "transaction_log":
        rows = [line.split() for line in text.splitlines()]
        uncut = sum(len(row) == len(rows[0]) and row[2].isdecimal() for row in rows)
        assert uncut - 2 <= report["transactions"] <= uncut
        latencies = {line.split()[2] for line in case.log.splitlines() if line.count(" ") > 2}
        edges = [report["latency_ms"][edge] for edge in ("min", "max")]
        assert all(value is None or f"{value * 1000:.0f}" in latencies for value in edges)
