"""Whatever happens to a text on its way, its numbers are right or it is refused."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parse_cases import CASES, Case, outcome

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

REPORTS = [case for case in CASES if "refused" not in outcome(case.both, case.argv)]
LOGS = [case for case in CASES if case.log]
bounded = settings(derandomize=True, deadline=None, max_examples=150, database=None)

GARBAGE = st.sampled_from(
    [
        "", "postgres@db1:~$ pgbench -n -c 4 bench", "$ ", "NOTICE:  relation does not exist, skipping",
        "WARNING:  there is already a transaction in progress", "real\t0m2.031s", "tps = 12", "progress: 1.0 s, 3",
        "number of clients: ", "tps = 32 (excluding", "latency average = 0.8", "-- 3275.46 --", "done.x", "42",
        "pgbench: warning: scale option ignored, using count from pgbench_branches table (5)", "\x1b[2K", "```",
    ]
)  # fmt: skip


def agrees(found: Any, truth: Any) -> bool:
    """Tell whether nothing in ``found`` says otherwise than ``truth``; absent is allowed.

    The words of a statement may be cut where a newline hides that its line was: they are no number.
    """
    if found is None or found == truth:
        return True
    if isinstance(found, dict) and isinstance(truth, dict):
        words = {key for key in ("statement",) if str(truth.get(key)).startswith(str(found.get(key)))}
        return all(key in words or agrees(value, truth.get(key)) for key, value in found.items())
    if isinstance(found, list) and isinstance(truth, list):
        rest = iter(truth)  # rows may be missing, but not be others or in another order
        return all(any(agrees(row, each) for each in rest) for row in found)
    return False


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    """Leave out what tells of the text and not of the run."""
    return {key: value for key, value in report.items() if key not in ("errors", "notes", "complete")}


def right_or_refused(text: str, case: Case, *, argv: bool = False) -> None:
    try:
        found = parse_text(text, argv=case.argv if argv else None)
    except ParseError:
        return
    truth = parse_text(case.both, argv=case.argv if argv else None)
    assert agrees(numbers(found), numbers(truth))


@pytest.mark.parametrize("case", REPORTS, ids=lambda case: case.name)
def test_a_text_cut_anywhere_is_right_or_refused(case: Case) -> None:
    text = case.both
    for cut in range(0, len(text), 1 if len(text) < 600 else 7):
        right_or_refused(text[:cut], case)


@pytest.mark.parametrize("case", REPORTS, ids=lambda case: case.name)
def test_stdout_cut_anywhere_before_stderr_is_right_or_refused(case: Case) -> None:
    stdout, stderr = case.stdout, case.stderr[:400]
    for cut in range(0, len(stdout), 11):
        for glue in ("", "\n"):
            right_or_refused(stdout[:cut] + glue + stderr, case)


@bounded
@given(st.data())
def test_a_text_that_lost_its_beginning_is_right_or_refused(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(REPORTS))
    right_or_refused(case.both[data.draw(st.integers(0, len(case.both))) :], case)


@bounded
@given(st.data())
def test_lines_of_stdout_and_stderr_in_any_mixture_read_the_same(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(REPORTS))
    streams = [case.stdout.splitlines(), case.stderr.splitlines()]
    chance, mixed = random.Random(data.draw(st.integers(0, 2**32))), []
    while any(streams):
        mixed.append(chance.choice([each for each in streams if each]).pop(0))
    found, truth = parse_text("\n".join(mixed) + "\n"), parse_text(case.both)
    assert numbers(found) == numbers(truth)
    assert found["complete"] == truth["complete"]


@bounded
@given(st.data())
def test_a_line_of_stderr_breaking_into_stdout_never_gives_a_wrong_number(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from([each for each in REPORTS if each.stderr and each.stdout]))
    text, line = (
        case.stdout,
        data.draw(st.sampled_from(case.stderr.splitlines(keepends=True))),
    )
    at = data.draw(st.integers(0, len(text)))
    right_or_refused(text[:at] + line + text[at:], case)


@bounded
@given(st.data())
def test_garbage_lines_never_give_a_wrong_number(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(REPORTS))
    lines = case.both.splitlines()
    for _ in range(data.draw(st.integers(1, 6))):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(GARBAGE))
    right_or_refused("\n".join(lines), case)


@bounded
@given(st.data())
def test_lost_and_doubled_lines_never_give_a_wrong_number(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(REPORTS))
    lines = case.both.splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    right_or_refused("".join(lines[:at] + lines[at + 1 :]), case)
    if not lines[at].startswith("     "):  # a script may well hold the same statement twice
        right_or_refused("".join(lines[: at + 1] + lines[at:]), case)


@bounded
@given(st.data())
def test_a_lost_digit_of_a_key_figure_is_refused(data: st.DataObject) -> None:
    """The one kind of damage that leaves the shape of a line whole."""
    case = data.draw(
        st.sampled_from([each for each in REPORTS if "-T" in each.argv and "-R" not in each.argv])
    )
    start = "number of transactions actually processed: "
    lines = case.both.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(start))
    lines[at] = lines[at][:-1]
    with pytest.raises(ParseError):
        parse_text("\n".join(lines) + "\n") if parse_text(case.both)["complete"] else _refuse()


def _refuse() -> None:
    raise ParseError("a run that ended early has no time to compare with")


@pytest.mark.parametrize("case", REPORTS, ids=lambda case: case.name)
def test_a_terminal_changes_nothing(case: Case) -> None:
    truth = numbers(parse_text(case.both))
    plain = case.both
    for dressed in (
        plain.replace("\n", "\r\n"),
        plain.replace("\n", "\r"),
        "".join(f"> {line}" for line in plain.splitlines(keepends=True)),
        "".join(f"    {line}" for line in plain.splitlines(keepends=True)),
        "".join(f"\x1b[32m{line.rstrip()}\x1b[0m\n" for line in plain.splitlines()),
        plain.replace(" = ", "\u00a0=\u00a0"),
        "postgres@db1:~$ cat notes\n" + plain + "postgres@db1:~$ ",
        "\ufeff" + plain,
    ):
        assert numbers(parse_text(dressed)) == truth


@pytest.mark.parametrize("case", [each for each in REPORTS if each.stdout], ids=lambda case: case.name)
def test_a_summary_given_twice_is_ambiguous(case: Case) -> None:
    with pytest.raises(ParseError, match="two summaries"):
        parse_text(case.both * 2)


@bounded
@given(st.data())
def test_a_log_cut_anywhere_counts_only_whole_lines(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(LOGS))
    text = case.log[: data.draw(st.integers(0, len(case.log)))]
    found = outcome(text, case.argv)
    if found.get("kind") == "transaction_log":
        rows = [line.split() for line in text.splitlines()]
        whole = sum(len(row) == len(rows[0]) and row[2].isdecimal() for row in rows)
        assert whole - 2 <= found["transactions"] <= whole
        latencies = {line.split()[2] for line in case.log.splitlines() if line.count(" ") > 2}
        for edge in ("min", "max"):
            value = found["latency_ms"][edge]
            assert value is None or f"{value * 1000:.0f}" in latencies
