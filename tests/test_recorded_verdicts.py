"""The verdicts of every recorded study, figure by figure: a change of shape must not change one of them.

``python tests/test_recorded_verdicts.py`` writes ``tests/golden/verdicts.json`` anew, where a change is meant.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchlib.report.gate import gated, status
from benchlib.stats.gate import SLOWER
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import StudyFolder

DATA = Path(__file__).parent.parent / "data"
Recorded = Callable[[str], Experiment]
GOLDEN = Path(__file__).parent / "golden" / "verdicts.json"
NUMBERS = ("n", "mean", "sd", "percent_change", "ci_low", "ci_high", "p_value", "p_adjusted")
STUDIES = sorted(path.parent.name for path in DATA.glob("*-recorded/study.json"))


def verdicts(experiment: Experiment) -> list[dict[str, object]]:
    table = experiment.analysis.table
    rows = json.loads(table[["level", *NUMBERS, "verdict"]].to_json(orient="records", double_precision=15))
    assert len(rows) == len(table)
    return rows


@pytest.mark.parametrize("name", STUDIES)
def test_a_recorded_study_keeps_its_verdicts(name: str, recorded: Recorded) -> None:
    kept = json.loads(GOLDEN.read_text())[name]
    found = verdicts(recorded(name))
    assert [(row["level"], row["verdict"]) for row in found] == [
        (row["level"], row["verdict"]) for row in kept
    ]
    for row, golden in zip(found, kept, strict=True):
        for number in NUMBERS:
            if golden[number] is None:
                assert row[number] is None, (row["level"], number)
            else:
                assert math.isclose(row[number], golden[number], rel_tol=1e-9, abs_tol=1e-9), (
                    row["level"],
                    number,
                )


@pytest.mark.parametrize("name", STUDIES)
def test_a_recorded_study_is_gated_as_its_verdicts_say(name: str, recorded: Recorded) -> None:
    analysis = recorded(name).analysis
    rows = gated(name, analysis, analysis.asked, analysis.margin)
    assert status(rows) in (0, 3, 4)
    worse = "−" if analysis.metric.higher_is_better else "+"
    assert all(change.startswith(worse) for outcome, _, _, change, _ in rows if outcome == SLOWER)


if __name__ == "__main__":
    golden = {name: verdicts(shown(StudyFolder(name, DATA))) for name in STUDIES}
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
