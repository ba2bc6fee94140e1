"""Conditions: what is declared in a notebook, held against trials whose figures are known."""

import json

import pandas as pd
import pytest
from fakes import FakeBench, seal

from benchlib.errors import InputError
from benchlib.report.view import View
from benchlib.study.conditions import FIGURES, checked, conditions, unmet
from benchlib.study.experiment import shown
from benchlib.study.loop import run_study
from benchlib.study.records import Counters


def declared(study, **of):
    return study.model_copy(update={"parameters": {"conditions": of}})


@pytest.fixture
def study(folder_of):
    return folder_of(2).read()


@pytest.fixture
def folder(folder_of, tmp_path):
    """A study of two blocks; its data are 100 MiB in 200 MiB of memory, and "tuned" is seen by autovacuum."""
    made = folder_of(2)
    run_study(made, FakeBench(made.read().plan, tmp_path, instruments=True).open)
    kept = json.loads((made.path / "study.json").read_text())
    kept["provenance"] = {"host": {"memory_mib": 200}}
    (made.path / "study.json").write_text(json.dumps(kept))
    for trial in made.read().trials:
        path = made.path / "trials" / trial.id / Counters.FILE
        counters = json.loads(path.read_text())
        for moment, vacuums in (("before", 0), ("after", 3 if trial.level == "tuned" else 0)):
            counters[moment] |= {
                "database_bytes": 100 << 20,
                "tables": {"autovacuums": vacuums, "growth": 1.5},
            }
        path.write_text(json.dumps(counters))
    seal(made)
    return made


def test_a_condition_is_a_figure_and_its_bound_at_all_levels_or_some(study):
    of = conditions(
        declared(study, dirty="dirty_peak_mib >= 64", few={"holds": "r_iops<=9.5", "levels": ["tuned"]})
    )
    assert [(c.figure, c.sign, c.bound, c.levels) for c in of.values()] == [
        ("dirty_peak_mib", ">=", 64, ()),
        ("r_iops", "<=", 9.5, ("tuned",)),
    ]
    assert str(of["dirty"]) == "peak of dirty memory, MiB ≥ 64"
    assert conditions(study) == {}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("checkpoints", "a figure and its bound"),
        ("chekpoints >= 1", "'chekpoints' is no figure of a trial: there are "),
        ({"levels": ["tuned"]}, "a figure and its bound"),
        ({"holds": "checkpoints >= 1", "level": ["tuned"]}, "level: Extra inputs"),
        ({"holds": "checkpoints >= 1", "levels": ["untuned"]}, "'untuned' is not among the levels"),
        (["checkpoints >= 1"], "a figure and its bound"),
        (7, "a figure and its bound"),
    ],
)
def test_what_is_none_is_refused_with_its_name(study, value, problem):
    with pytest.raises(InputError, match="parameter conditions: c") as refused:
        conditions(declared(study, c=value))
    assert problem in str(refused.value)


@pytest.mark.parametrize("given", [["checkpoints >= 1"], "checkpoints >= 1", 3])
def test_a_kept_study_may_hold_anything_in_their_place(study, given):
    with pytest.raises(InputError, match="parameter conditions: Input should be a valid dictionary"):
        conditions(study.model_copy(update={"parameters": {"conditions": given}}))
    odd = {
        "levels": [1],
        "grid": {"n": 3},
        "conditions": {"c": {"holds": "checkpoints >= 1", "levels": ["no"]}},
    }
    with pytest.raises(InputError, match="'no' is not among the levels"):
        conditions(study.model_copy(update={"parameters": odd}))


def test_levels_that_this_profile_or_machine_does_not_run_may_be_named(study):
    of = {"holds": "checkpoints >= 1", "levels": ["later", "16 clients"]}
    given = {
        "conditions": {"c": of},
        "levels": {"later": {}},
        "grid": {"n": {"4 clients": {}, "16 clients": {}}},
    }
    assert conditions(study.model_copy(update={"parameters": given}))["c"].levels == ("later", "16 clients")


def test_figures_have_a_row_per_trial_and_a_column_per_name(folder):
    experiment = shown(folder)
    figures = experiment.figures
    assert set(FIGURES) < set(figures.columns)
    assert len(figures) == 6
    assert figures["data_to_memory"].tolist() == [0.5] * 6
    assert figures["growth"].tolist() == [1.5] * 6
    assert figures.groupby("level")["autovacuums"].sum().to_dict() == {
        "control": 0,
        "defaults": 0,
        "tuned": 6,
    }
    assert figures["dirty_peak_mib"].between(20, 60).all()
    assert figures[["kib_per_read", "data_to_buffers", "cap_share"]].isna().all(axis=None)  # it reads nothing


def test_the_memory_is_that_of_the_host_that_ran_a_trial(folder, monkeypatch):
    kept = {
        name: one.model_copy(update={"ran_on": f"db{one.trial.block}"}) for name, one in folder.kept().items()
    }
    monkeypatch.setattr(type(folder), "kept", lambda _: kept)
    study = folder.read()
    hosts = {"db1": {"memory_mib": 50}, "db2": {"memory_mib": 400}}
    folder.write(study.model_copy(update={"provenance": {"host": hosts["db1"], "hosts": hosts}}))
    figures = shown(folder).figures.set_index("block")["data_to_memory"]
    assert (set(figures[1]), set(figures[2])) == ({2.0}, {0.25})


def test_a_condition_is_met_where_it_held_in_four_of_five_trials(study):
    figures = pd.DataFrame(
        {
            "level": ["defaults"] * 5 + ["control"] * 5 + ["tuned"] * 5,
            "checkpoints": [1, 1, 1, 0, 1, 0, 0, 1, 0, 0, *[None] * 5],
        }
    )
    rows = checked(declared(study, writes="checkpoints >= 1"), figures)
    assert rows[["level", "held", "trials", "met"]].to_numpy().tolist() == [
        ["defaults", 4, 5, True],
        ["control", 1, 5, False],
        ["tuned", 0, 0, None],
    ]
    (concern,) = unmet(rows)
    assert (concern.code, concern.level, concern.grave) == ("condition", "control", False)
    assert "writes: held in 1 of 5 trials of 'control'" in concern.message


def test_a_condition_may_be_of_what_a_level_is_compared_with(study):
    figures = pd.DataFrame({"level": ["defaults", "tuned"], "checkpoints": [0, 1]})
    of = {"holds": "checkpoints >= 1", "levels": ["tuned"], "at": "reference"}
    rows = checked(declared(study, writes=of), figures)
    assert rows[["level", "of", "met"]].to_numpy().tolist() == [["defaults", "tuned", False]]
    (concern,) = unmet(rows)
    assert concern.level == "tuned"
    assert "trials of 'defaults'" in concern.message


def test_what_could_not_show_is_not_called_inconclusive(folder):
    kept = json.loads((folder.path / "study.json").read_text())
    kept["parameters"]["conditions"] = {"awake": "autovacuums >= 1", "large": "data_to_memory >= 0.5"}
    (folder.path / "study.json").write_text(json.dumps(kept))
    view = View(shown(folder))
    analysis = view.experiment.analysis
    assert (
        dict(zip(analysis.table["level"], analysis.table["verdict"], strict=True))["tuned"] == "inconclusive"
    )
    assert list(analysis.unshown) == ["tuned"]  # the baseline's autovacuum slept
    assert (
        str(view.headline())
        .splitlines()[0]
        .endswith(", cannot be shown on this machine: “awake” was not met.")
    )
    assert str(view.headline()).splitlines()[1].startswith("Not met: awake (at “defaults”) · ")
    assert "cannot be shown here" in view.verdicts()._repr_html_()
    table = view.conditions()._repr_html_()
    assert table.index("not met") < table.index("data_to_memory" if "data_to_memory" in table else "large")
    assert "no conditions" not in table


def test_a_study_without_conditions_shows_none(folder):
    assert View(shown(folder)).conditions() is None
