"""Conditions of a notebook, checked with trials whose figures are known."""

import json

import pandas as pd
import pytest
from fakes import seal
from kept import ran

from benchlib.errors import InputError
from benchlib.stats.effects import compare
from benchlib.study.conditions import FIGURES, checked, conditions, unmet
from benchlib.study.experiment import shown
from benchlib.study.frames import OpenStudy
from benchlib.study.records import Counters


@pytest.fixture
def declared(study_of):
    """A study whose notebook declares these conditions, and more."""
    return lambda given, **more: study_of().changed(parameters={"conditions": given, **more})


@pytest.fixture
def folder(folder_of, tmp_path):
    """A study of two blocks; its data are 100 MiB in 200 MiB of memory, and "tuned" is seen by autovacuum."""
    made = ran(folder_of(2), tmp_path, {}, instruments=True)
    made.write(made.read().model_copy(update={"provenance": {"host": {"memory_mib": 200}}}))
    for trial in made.read().trials:
        path = made.path / "trials" / trial.id / Counters.FILE
        counters = json.loads(path.read_text())
        for moment, vacuums in (("before", 0), ("after", 3 * (trial.level == "tuned"))):
            counters[moment] |= {
                "database_bytes": 100 << 20,
                "tables": {"autovacuums": vacuums, "growth": 1.5},
            }
        path.write_text(json.dumps(counters))
    seal(made)
    return made


def test_a_condition_is_a_figure_and_its_bound_at_all_levels_or_some(declared):
    some = {"holds": "r_iops<=9.5", "levels": ["tuned"]}
    of = conditions(declared({"dirty": "dirty_peak_mib >= 64", "few": some}))
    assert [(c.figure, c.sign, c.bound, c.levels) for c in of.values()] == [
        ("dirty_peak_mib", ">=", 64, ()),
        ("r_iops", "<=", 9.5, ("tuned",)),
    ]
    assert str(of["dirty"]) == "peak of dirty memory, MiB ≥ 64"
    assert conditions(declared(None)) == {}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"c": "checkpoints"}, "c: .*a figure and its bound"),
        ({"c": "chekpoints >= 1"}, "c: .*'chekpoints' is not a figure of a trial"),
        ({"c": {"levels": ["tuned"]}}, "c: .*a figure and its bound"),
        ({"c": {"holds": "checkpoints >= 1", "level": ["tuned"]}}, r"c\.level: Extra inputs"),
        ({"c": {"holds": "checkpoints >= 1", "levels": ["untuned"]}}, "c: 'untuned' is not a level"),
        (["checkpoints >= 1"], "Input should be a valid dictionary"),
    ],
)
def test_a_malformed_condition_is_refused_with_its_name(declared, given, problem):
    for study in (declared(given), declared(given, levels=[1], grid={"n": 3})):  # it may hold anything
        with pytest.raises(InputError, match=f"parameter conditions: {problem}"):
            conditions(study)


def test_conditions_can_name_levels_that_are_left_out(declared):
    of = {"c": {"holds": "checkpoints >= 1", "levels": ["later", "16 clients"]}}
    study = declared(of, levels={"later": {}}, grid={"n": {"4 clients": {}, "16 clients": {}}})
    assert conditions(study)["c"].levels == ("later", "16 clients")


def test_figures_have_a_row_per_trial_and_a_column_per_name(folder):
    figures = shown(folder).figures
    assert set(FIGURES) < set(figures.columns)
    assert figures[["data_to_memory", "growth"]].to_numpy().tolist() == [[0.5, 1.5]] * 6
    autovacuums = figures.groupby("level")["autovacuums"].sum()
    assert autovacuums.to_dict() == {"control": 0, "defaults": 0, "tuned": 6}
    assert figures["dirty_peak_mib"].between(20, 60).all()
    assert figures[["kib_per_read", "data_to_buffers", "cap_share"]].isna().all(axis=None)  # it reads nothing


def test_the_memory_is_that_of_the_host_that_ran_a_trial(folder, monkeypatch):
    kept = {name: m.model_copy(update={"ran_on": f"db{m.trial.block}"}) for name, m in folder.kept().items()}
    monkeypatch.setattr(type(folder), "kept", lambda _: kept)
    hosts = {"db1": {"memory_mib": 50}, "db2": {"memory_mib": 400}}
    provenance = {"host": hosts["db1"], "hosts": hosts}
    folder.write(folder.read().model_copy(update={"provenance": provenance}))
    figures = shown(folder).figures.set_index("block")["data_to_memory"]
    assert (set(figures[1]), set(figures[2])) == ({2.0}, {0.25})


def test_a_condition_is_met_where_it_held_in_four_of_five_trials(declared):
    checkpoints = {"defaults": [1, 1, 1, 0, 1], "control": [0, 0, 1, 0, 0], "tuned": [None] * 5}
    figures = pd.DataFrame(checkpoints).melt(var_name="level", value_name="checkpoints")
    rows = checked(declared({"writes": "checkpoints >= 1"}), figures)
    assert rows[["level", "held", "trials", "met"]].to_numpy().tolist() == [
        ["defaults", 4, 5, True],
        ["control", 1, 5, False],
        ["tuned", 0, 0, None],
    ]
    assert checked(declared({"few": "checkpoints <= 1"}), figures)["held"].tolist() == [5, 5, 0]
    (concern,) = unmet(rows)
    assert (concern.code, concern.level, concern.grave) == ("condition", "control", False)
    assert concern.value.startswith("writes (")


def test_a_condition_can_apply_to_the_reference_level(declared):
    figures = pd.DataFrame({"level": ["defaults", "tuned"], "checkpoints": [0, 1]})
    of = {"holds": "checkpoints >= 1", "levels": ["tuned"], "at": "reference"}
    rows = checked(declared({"writes": of}), figures)
    assert rows[["level", "of", "met"]].to_numpy().tolist() == [["defaults", "tuned", False]]
    (concern,) = unmet(rows)
    assert concern.level == "tuned"


def test_an_unmet_condition_is_a_limit_of_its_comparison(folder):
    study = OpenStudy(shown(folder))
    assert study.conditions().empty
    of = {"awake": "autovacuums >= 1", "large": "data_to_memory >= 0.5"}
    folder.write(folder.read().model_copy(update={"parameters": {"conditions": of}}))
    study = OpenStudy(shown(folder))
    limits = study.limits(compare(study.trials, **study.comparison))
    # the autovacuum of what "tuned" is compared with slept
    assert list(limits.attrs["unmet"]) == ["tuned"]
    assert limits.attrs["unmet"]["tuned"].startswith("awake (")
    assert limits.loc[limits["code"] == "condition", "level"].to_list() == ["defaults, control"]
