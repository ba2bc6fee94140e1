"""The verdicts of every recorded study, figure by figure: a change of shape must not change one of them.

``python tests/test_recorded_verdicts.py`` writes ``tests/golden/verdicts.json`` anew, where a change is meant.
"""

import json
from pathlib import Path

import pandas as pd
import pytest

from benchlib.report.gate import gated
from benchlib.stats.analysis import Analysis
from benchlib.stats.effects import compare
from benchlib.stats.gate import SLOWER
from benchlib.study.experiment import shown
from benchlib.study.frames import OpenStudy
from benchlib.study.store import StudyFolder

DATA = Path(__file__).parent.parent / "data"
GOLDEN = Path(__file__).parent / "golden" / "verdicts.json"
NUMBERS = ["n", "mean", "sd", "percent_change", "ci_low", "ci_high", "p_value", "p_adjusted"]
STUDIES = sorted(path.parent.name for path in DATA.glob("*-recorded/study.json"))
QUICK = ("configuration-recorded", "durability-recorded", "own-recorded", "version-recorded")
"""Studies that ``make test`` reads too; ``make test-long`` reads them all."""


def verdicts(analysis: Analysis) -> pd.DataFrame:
    return analysis.table[["level", *NUMBERS, "verdict"]]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in STUDIES]
)
def test_a_recorded_study_keeps_its_verdicts_and_is_gated_by_them(name, recorded):
    study = OpenStudy(recorded(name))
    analysis, effects = recorded(name).analysis, compare(study.trials, **study.comparison)
    wanted, found = (
        frame.astype(dict.fromkeys(NUMBERS, float)).reset_index(drop=True)
        for frame in (pd.DataFrame(json.loads(GOLDEN.read_text())[name]), verdicts(analysis))
    )
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-9, atol=1e-9, check_dtype=False)
    told = effects.set_index("level")[[*NUMBERS[3:], "verdict"]]
    pd.testing.assert_frame_equal(told, analysis.table.set_index("level").loc[told.index, [*told.columns]])
    rows = gated(name, effects.to_dict("records"), effects.attrs, study.margin)
    worse = "−" if analysis.metric.higher_is_better else "+"
    assert all(change.startswith(worse) for outcome, _, _, change, _ in rows if outcome == SLOWER)


if __name__ == "__main__":
    tables = {name: verdicts(shown(StudyFolder(name, DATA)).analysis) for name in STUDIES}
    golden = {
        name: json.loads(of.to_json(orient="records", double_precision=15)) for name, of in tables.items()
    }
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
