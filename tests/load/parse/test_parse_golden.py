"""Every recorded run reads as reviewed, and key figures agree with a second, simpler look at the text."""

import json

import pytest
from parse_cases import CASES, GOLDEN, REVIEWED, Case, observed, outcome

EXPECTED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in GOLDEN.glob("*.json")}
SUMMARIES = [case for case in CASES if outcome(case.both, case.argv).get("kind") == "pgbench_summary"]


@pytest.mark.parametrize("case", REVIEWED, ids=lambda case: case.name)
def test_a_recorded_run_reads_as_reviewed(case: Case) -> None:
    assert observed(case) == EXPECTED[case.version][case.title]


def test_no_golden_file_is_left_without_its_runs() -> None:
    kept = {(version, title) for version, runs in EXPECTED.items() for title in runs}
    assert kept == {(case.version, case.title) for case in REVIEWED}


def after(text: str, start: str, end: str = "") -> str | None:
    """The rest of the line that begins so, up to ``end``: what grep and cut would find."""
    rests = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    return (rests[0].split(end)[0] if end else rests[0]) if rests else None


@pytest.mark.parametrize("case", SUMMARIES, ids=lambda case: case.name)
def test_the_key_figures_are_those_that_grep_finds(case: Case) -> None:
    text, read = case.stdout, outcome(case.both, case.argv)
    rates = [line.split()[2] for line in text.splitlines() if line.startswith("tps = ")]
    wanted = rates[0] if "-C" in case.argv or len(rates) == 1 else rates[1]
    assert read["tps"] == float(wanted)
    assert read["transactions"] == int(str(after(text, "number of transactions actually processed: ", "/")))
    assert read["clients"] == int(str(after(text, "number of clients: ")))
    assert read["latency_average_ms"] == float(str(after(text, "latency average = ", " ms")))
    for key, start in {
        "failed_transactions": "number of failed transactions: ",
        "skipped_transactions": "number of transactions skipped: ",
        "retries": "total number of retries: ",
    }.items():
        printed = after(text, start, " (")
        assert read[key] == (None if printed is None else int(printed))
    assert len(read["progress"]) == case.stderr.count("progress: ")
    assert len(read["statements"]) == sum(line.startswith("     ") for line in text.splitlines())
    assert len(read["scripts"]) == text.count("SQL script ")


def test_every_summary_has_every_key_whatever_the_version() -> None:
    assert len({tuple(sorted(outcome(case.both, case.argv))) for case in SUMMARIES}) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_that_failed_is_refused_or_incomplete(case: Case) -> None:
    report = outcome(case.both, case.argv)
    lost = case.rc or case.title in ("killed_backend", "too_many_clients")
    if case in SUMMARIES and not case.rc:
        assert report["complete"] is not bool(lost)
    if lost:
        assert "refused" in report or not report["complete"]
