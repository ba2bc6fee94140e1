"""Published figures: every file reads, every row has a source, and a damaged row is named."""

from pathlib import Path

import pytest

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS
from benchlib.study.published import Published, matching, published_for
from benchlib.study.results import TRIAL_COLUMNS

NOTEBOOKS = (
    "version", "configuration", "replication", "operating_system", "storage", "durability", "memory", "planner",
    "mixed_load", "managed",
)  # fmt: skip
FOLDER = Path(__file__).parents[2] / "data" / "published"
HEADER = ",".join(Published.model_fields)


def test_there_is_a_file_for_every_factor_that_comes_from_a_study():
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_every_row_has_a_source_and_conditions_and_a_metric_that_trials_have(notebook):
    frame = published_for(notebook, FOLDER)
    assert frame[["source", "conditions"]].ne("").all(axis=None)
    assert set(frame["metric"]) <= {"", *TRIAL_COLUMNS}
    assert {str(kind) for kind in frame[["value", "low", "high"]].dtypes} == {"float64"}
    for row in frame[frame["metric"].isin(list(METRICS))].itertuples():
        assert row.unit in ("", "%", METRICS[row.metric].unit)


def test_a_notebook_without_published_figures_has_no_rows(tmp_path):
    frame = published_for("combined", tmp_path)
    assert frame.empty
    assert list(frame) == list(Published.model_fields)
    assert published_for("configuration")["figure"].size  # found where the project is


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("speed,b,a,tps,fast,,,tps,,S,C,", "line 3 is damaged: column 'value': .*valid number"),
        ("speed,b,a,tps,nan,,,tps,,S,C,", "line 3 is damaged: column 'value': .*finite"),
        ("speed,b,a,tps,1,,,tps,,,C,", "line 3 is damaged: column 'source'"),
        ("speed,b,a,tps,,,,tps,,S,C,", "neither a number nor words"),
        ("speed,b,a,tps,,12,10,%,,S,C,", "ends before it begins"),
        ("speed,b,b,tps,1,,,tps,,S,C,", "or one with itself"),
        ("speed,b,a,tps,1", "line 3 is damaged: column 'source'"),
        ("speed,b,a,tps,1,,,tps,,S,C,,more", "cannot be read: .*line 3"),
        ('speed,b,a,tps,1,,,tps,"torn', "cannot be read: .*"),
        ("speed,b,a,tps,1,,,tps,caf\xe9,S,C,", "cannot be read: .*utf-8"),
    ],
)
def test_a_damaged_row_is_refused_with_its_line(tmp_path, row, why):
    text = f"{HEADER}\nspeed,b,a,tps,1,,,tps,,S,C,\n{row}\n"
    (tmp_path / "version.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=why):
        published_for("version", tmp_path)


def test_a_name_stands_for_the_level_or_for_the_crossed_levels_that_hold_its_parts():
    levels = ["run, crm", "run, erp", "load, crm", "rerun, crm"]
    assert matching("run", levels) == ["run, crm", "run, erp"]
    assert matching("run", ["run", *levels]) == ["run"]
    assert matching("crm, run", levels) == ["run, crm"]
    assert matching("sysbench", levels) == []
    assert matching("", levels) == []
