"""An open study is frames: each has its columns, of recorded studies and of one that has nothing of the kind."""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kept import ran

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.stats.effects import compare
from benchlib.stats.limits import SENTENCES
from benchlib.study.experiment import shown
from benchlib.study.frames import OpenStudy, as_data, guarded
from benchlib.study.limits import disk_limits
from benchlib.study.plans import explained, statements
from benchlib.study.records import Parameters, Plans, ReplicaReadings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "files.md"


def documented():
    """The columns of each frame, as the page of frames has them; a row without a name continues the one above."""
    names, columns = [], defaultdict(set)
    for first, second in re.findall(
        r"^\| ?(.*?) ?\| (.*?) \|", PAGE.read_text().partition("## Frames")[2], re.MULTILINE
    ):
        names = re.findall(r"`study\.(\w+)(?!.*effects)", first) if first else names
        for name in names:
            columns[name] |= {*re.findall(r"`(\w+)`", second)}
    return columns


COLUMNS = documented()
RECORDED = {
    "durability-recorded": "trials seconds waits checkpoints flushes crashes levels setup provenance",
    "planner-recorded": "plans conditions parameters",
    "replication-recorded": "replicas published hosts",
    "memory-areas-recorded": "queries by_query",
    "combined-recorded": "design signs bottlenecks figures",
}


def frame_of(study, name):
    """A frame, of which the documented columns are there."""
    value = getattr(study, name)
    frame = value() if callable(value) else value
    assert COLUMNS[name] <= {*frame.columns, *frame.index.names}
    return frame


@pytest.fixture
def bare(folder_of, tmp_path):
    """A study of which nothing was sampled."""
    return OpenStudy(shown(ran(folder_of(), tmp_path)))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_study_that_has_nothing_of_a_kind_gives_an_empty_frame_with_the_same_columns(name, bare):
    some = {"trials", "seconds", "figures", "bottlenecks", "hosts", "published", "setup", "provenance", "alike", "levels"}  # fmt: skip
    assert len(frame_of(bare, name)) == 0 or name in some


@pytest.mark.parametrize(("study", "name"), [(study, name) for study, names in RECORDED.items() for name in names.split()])  # fmt: skip
def test_what_a_recorded_study_has_is_there_with_its_columns(study, name, recorded):
    assert len(frame_of(OpenStudy(recorded(study)), name))


def test_levels_say_how_they_differ_and_alike_what_they_share(folder_of, tmp_path):
    levels = {"tuned": Level(settings={"work_mem": "8MB"}, load={"clients": 8})}
    study = OpenStudy(shown(ran(folder_of(levels=levels), tmp_path)))
    table = study.levels.set_index("level")
    assert table.index.to_list() == ["defaults", "control", "tuned"]
    assert table.loc["tuned"].astype(str).str.contains("8MB").any()
    assert not {*study.alike["what"]} & {*table.columns}
    by = study.by_setting("clients")
    assert by.empty, "two things differ"


def test_a_grid_has_its_design_and_its_signs(recorded):
    study = OpenStudy(recorded("combined-recorded"))
    assert {*study.signs.to_numpy().ravel()} == {-1, 1}
    assert study.signs.index.to_list() == study.design.index.to_list()
    two = [name for name in study.design if study.design[name].nunique() == 2]
    assert study.signs.columns.to_list() == two
    assert study.signs.iloc[0].eq(-1).all()


@pytest.mark.parametrize(
    "name",
    ["durability-recorded", *(pytest.param(f"{name}-recorded", marks=pytest.mark.long) for name in ("replication-paced", "storage"))],
)  # fmt: skip
def test_limits_are_the_worst_first_and_name_only_levels_with_their_value(name, recorded):
    experiment = recorded(name)
    study = OpenStudy(experiment)
    effects = compare(study.trials, **study.comparison)
    limits = study.limits(effects)
    assert limits.columns.to_list() == ["code", "level", "value", "text", "grave"]
    assert len(limits) <= 7
    assert {*limits["code"]} <= {*SENTENCES}
    assert limits["grave"].to_list() == sorted(limits["grave"], reverse=True)
    worst, invalid = limits.attrs["by_level"], effects["verdict"].eq("invalid")
    assert {*worst} == {*effects.loc[effects["answer"].ne(""), "level"]}
    assert all(worst.get(level, "no answer") for level in effects.loc[invalid, "level"])
    values = {(c.code, c.level): c.value for c in experiment.concerns if c.level}
    for row in limits[limits["code"].isin({code for code, _ in values})].to_dict("records"):
        levels = [level for level in experiment.plan.factor.levels if f"“{level}”" in row["text"]]
        assert {values.get((row["code"], level)) for level in levels} == {row["value"]}


def test_the_same_limit_of_several_levels_is_said_once_with_two_of_their_names(folder_of, tmp_path):
    levels = {f"l{n}": Level(settings={"fsync": "off"}) for n in range(4)}
    tps = {"defaults": 1000.0, "control": 1001.0, **dict.fromkeys(levels, 1500.0)}
    study = OpenStudy(shown(ran(folder_of(3, levels=levels), tmp_path, tps)))
    limits = study.limits(compare(study.trials, **study.comparison)).set_index("code")
    text = limits.loc["durability", "text"]
    assert "“l0”, “l1”, …" in text
    assert "shared_machine" in limits.index


def test_what_has_not_begun_has_no_trials_and_misses_all(folder_of):
    study = OpenStudy(shown(folder_of()))
    assert study.trials.empty
    assert study.missing == 6
    assert "6 trials planned, 0 saved" in repr(study)
    assert study.preflight().empty
    assert study.run().empty


def test_no_cell_of_a_file_is_a_formula():
    safe = {"=1+1": "'=1+1", "@x": "'@x", "+cmd": "'+cmd", "-1.5": "-1.5", "-1e-3": "-1e-3", "a": "a", 7: 7}
    assert {cell: guarded(cell) for cell in safe} == safe


def test_a_frame_as_data_is_plain_json_with_null_for_what_is_missing():
    frame = pd.DataFrame({"x": [1.5, np.nan], "word": ["a", None]})
    frame.attrs = {"kind": "effects", "margin": 0.03}
    rows = [{"x": 1.5, "word": "a"}, {"x": None, "word": None}]
    assert as_data(frame) == {"kind": "effects", "rows": rows, "attrs": {"margin": 0.03}}


NODE = {"Node Type": "Seq Scan", "Plan Rows": 1, "Actual Rows": 1, "Actual Loops": 1, "Actual Total Time": 1.0, "Temp Written Blocks": 0}  # fmt: skip


def test_the_median_trial_of_a_plan_has_the_metric():
    trials = pd.DataFrame({"level": "a", "block": [1, 2, 3, 4], "tps": [np.nan, np.nan, np.nan, 5.0]})
    plan = {"Plan": NODE, "Execution Time": 1.0, "Planning Time": 1.0}
    record = Plans(after=[{"statement": "SELECT 1", "plan": plan}])
    planned = trials[["level", "block"]].assign(**statements(record)[0])
    assert explained(trials, planned, "tps")[["trials", "same", "plan"]].to_numpy().tolist() == [[4, 4, 1]]


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("plans", Plans(after=[{"statement": "SELECT 1", "plan": {"Plan": {}}}])),
        ("plans", Plans(after=[{}])),
        ("replicas", ReplicaReadings(lag=[{"replica": "r1"}])),
        ("parameters", Parameters(work_mem={})),
    ],
)
def test_a_malformed_record_is_named(folder_of, tmp_path, monkeypatch, name, record):
    study = OpenStudy(shown(ran(folder_of(), tmp_path)))
    assert len(study.trials)
    monkeypatch.setattr(type(record), "read", lambda *_: record)
    with pytest.raises(InputError, match=r"small: the records of trial \S+ are damaged \(KeyError"):
        getattr(study, name)()


@pytest.mark.parametrize(
    ("words", "caps"),
    [
        ("1,500 requests/s", {"read_iops": 1500, "write_iops": 1500}),
        ("1,000 requests/s (read), 500 requests/s (write)", {"read_iops": 1000, "write_iops": 500}),
        ("1\u00a0MB/s (write)", {"write_bytes": 1 << 20}),
    ],
)
def test_the_caps_of_a_disk_name_their_side(words, caps):
    assert disk_limits(Level(storage=caps)) == words
