"""The verdicts of every recorded study, figure by figure: a change of shape must not change one of them.

``python tests/test_recorded_verdicts.py`` writes ``tests/golden/verdicts.json`` anew, where a change is meant.
"""

import json
import math
from pathlib import Path

import pytest

from benchlib.study.experiment import shown
from benchlib.study.store import StudyFolder

DATA = Path(__file__).parent.parent / "data"
GOLDEN = Path(__file__).parent / "golden" / "verdicts.json"
NUMBERS = ("n", "mean", "sd", "percent_change", "ci_low", "ci_high", "p_value", "p_adjusted")
STUDIES = sorted(path.parent.name for path in DATA.glob("*-recorded/study.json"))


def verdicts(name: str) -> list[dict[str, object]]:
    table = shown(StudyFolder(name, DATA)).analysis.table
    rows = json.loads(table[["level", *NUMBERS, "verdict"]].to_json(orient="records", double_precision=15))
    assert len(rows) == len(table)
    return rows


@pytest.mark.parametrize("name", STUDIES)
def test_a_recorded_study_keeps_its_verdicts(name: str) -> None:
    kept = json.loads(GOLDEN.read_text())[name]
    found = verdicts(name)
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


if __name__ == "__main__":
    GOLDEN.write_text(
        json.dumps({name: verdicts(name) for name in STUDIES}, indent=1, ensure_ascii=False) + "\n"
    )
