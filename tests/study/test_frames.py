"""An open study is frames: each has its columns, of recorded studies and of one that has nothing of the kind."""

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

COLUMNS = {
    "trials": "trial block level tps error part doubt",
    "seconds": "level block second tps",
    "waits": "level block wait sessions",
    "checkpoints": "level block start_s end_s kind",
    "statements": "level block script statement latency_ms",
    "queries": "level block query transactions latency_average_ms latency_p95_ms share_percent plan part doubt",
    "by_query": "level against query share_percent base mean percent_change ci_low ci_high p_adjusted verdict plan",
    "figures": "level block data_to_memory",
    "conditions": "condition level of wanted median held trials met",
    "bottlenecks": "level bottleneck",
    "plans": "level statement text plan outline trials same execution_ms planning_ms temp_blocks worst_estimate explain",
    "costs": "level seconds size_bytes wal_bytes",
    "parameters": "parameter",
    "flushes": "level method flushes_per_s used",
    "replicas": "level block replica second replay_lag_s replay_lag_bytes write_lag_bytes",
    "hosts": "level server role host round_trip_ms busy_percent",
    "crashes": "level kind number acknowledged lost oldest_lost_ms recovery_s damage",
    "published": "level against",
    "setup": "what value",
    "provenance": "what value",
    "alike": "what value",
    "levels": "level",
}
RECORDED = {
    "durability-recorded": "trials seconds waits checkpoints flushes crashes levels setup provenance",
    "planner-recorded": "plans conditions parameters",
    "replication-recorded": "replicas published hosts",
    "memory-areas-recorded": "queries by_query",
    "combined-recorded": "design signs bottlenecks figures",
}


def frame_of(study, name):
    value = getattr(study, name)
    return value() if callable(value) else value


@pytest.fixture
def bare(folder_of, tmp_path):
    """A study of which nothing was sampled."""
    return OpenStudy(shown(ran(folder_of(), tmp_path)))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_study_that_has_nothing_of_a_kind_gives_an_empty_frame_with_the_same_columns(name, bare):
    frame = frame_of(bare, name)
    assert {*COLUMNS[name].split()} <= {*frame.columns}
    some = {"trials", "seconds", "figures", "bottlenecks", "hosts", "published", "setup", "provenance", "alike", "levels"}  # fmt: skip
    assert (len(frame) == 0) or name in some


@pytest.mark.parametrize(("study", "name"), [(study, name) for study, names in RECORDED.items() for name in names.split()])  # fmt: skip
def test_what_a_recorded_study_has_is_there_with_its_columns(study, name, recorded):
    frame = frame_of(OpenStudy(recorded(study)), name)
    assert len(frame)
    assert {*COLUMNS.get(name, "").split()} <= {*frame.columns}


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


@pytest.mark.parametrize("name", ["replication-paced-recorded", "storage-recorded", "durability-recorded"])
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
