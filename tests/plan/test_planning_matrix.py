"""Workloads and versions become a grid of one builder, compared with one version of the same workload."""

from types import SimpleNamespace

import pytest
from asked import MATRIX, VALUES, planned, refused

from benchlib.errors import InputError
from benchlib.plan.model import PACKAGES, WHEEL
from benchlib.plan.parameters import Parameter, checked
from benchlib.report import runs
from benchlib.stats.limits import STANDS_OUT


def test_workloads_and_versions_are_crossed_and_compared_with_the_first_version():
    plan = planned(**MATRIX).plan
    assert list(plan.factor.levels) == ["w, 16", "control", "w, 18", "reads, 16", "reads, 18"]
    assert plan.factor.pairs() == {"control": "w, 16", "w, 18": "w, 16", "reads, 18": "reads, 16"}
    assert planned(**{**MATRIX, "versions": [16, 18]}).plan.factor == plan.factor
    assert (plan.level("reads, 18").postgres, plan.level("reads, 18").workload) == (f"18 {WHEEL}", "reads")


def test_a_named_baseline_is_the_reference_of_each_workload_and_the_order_stays():
    plan = planned(**{**MATRIX, "versions": ["13", "16", "17"], "baseline": "16"}).plan
    assert plan.factor.baseline == "w, 16"
    assert plan.factor.against == {f"{w}, {v}": f"{w}, 16" for w in ("w", "reads") for v in ("13", "17")}
    assert [cell["version"] for cell in plan.factor.cells.values()][:3] == ["13", "16", "17"]
    assert plan.level("w, 13").postgres == f"13 {PACKAGES}"


def test_a_survey_repeats_the_references_and_has_no_other_control():
    factor = planned(**MATRIX, survey=True).plan.factor
    assert factor.controls == ()
    assert (planned(**MATRIX, survey=True).blocks, planned(**MATRIX, survey=True, blocks=1).blocks) == (2, 1)
    assert "a survey has 1 or 2" in refused(**MATRIX, survey=True, blocks=4)
    assert factor.repeats == {f"{w}, 16, again {n}": f"{w}, 16" for w in ("w", "reads") for n in (1, 2, 3)}


def test_a_confirmed_survey_keeps_the_value_along_its_dimension():
    grid = {name: {end: {"settings": {name: end}} for end in ("on", "off")} for name in ("jit", "fsync")}
    study = planned(levels={}, baseline="", grid=grid, along="fsync", survey=True)
    out = SimpleNamespace(verdict=STANDS_OUT, level="on, off", against="on, on", error=0.05)
    own = runs._of_survey(study, SimpleNamespace(comparisons=[out]))  # type: ignore[arg-type]
    assert (own["baseline"], own["only"]) == ("on", ["on, on", "on, off"])


def test_the_command_of_a_survey_with_confirm_runs_enough_fresh_blocks(monkeypatch):
    study = planned(**{**MATRIX, "baseline": "16"}, survey=True, blocks=2, only=[])
    out = SimpleNamespace(verdict=STANDS_OUT, level="w, 18", against="w, 16", error=0.05)
    data = SimpleNamespace(complete="", comparisons=[out])
    monkeypatch.setattr(runs, "StudyFolder", lambda name: SimpleNamespace(read=lambda: study))
    monkeypatch.setattr(runs.site, "data_of", lambda name: data)
    parameters = {
        name: Parameter(name, type(value).__name__, value) for name, value in study.parameters.items()
    }
    again = {**MATRIX, "baseline": "16", "survey": True, "blocks": 2, "study": "looked"}
    values = runs.confirmed(parameters, again)
    assert int(values["blocks"]) >= 3
    assert (values["survey"], values["study"], values["only"]) == (
        False,
        "looked-confirmed",
        ["w, 16", "w, 18"],
    )
    assert runs.confirmed(parameters, {**again, "blocks": 7})["blocks"] == 7
    with pytest.raises(InputError, match="parameter baseline"):
        runs.confirmed(parameters, {**again, "baseline": "18"})


PARAMETERS = {
    name: Parameter(name, type(value).__name__, value)
    for name, value in {
        **VALUES, "workloads": [], "versions": [], "only": [], "answers": {"tuned": "it"}, "leave_out": True,
        "profiles": {"quick": {"only": ["tuned"], "workloads": ["w"], "versions": ["16", "17", "18"]}, "full": {}},
    }.items()
}  # fmt: skip


def test_a_list_is_text_with_commas_too_and_a_version_that_is_named_is_not_left_out():
    values = checked(PARAMETERS, {"workloads": "w, reads", "versions": "16,18", "profile": "full"})
    assert (values["workloads"], values["versions"]) == (["w", "reads"], ["16", "18"])
    assert (values["answers"], values["baseline"], values["leave_out"]) == ({}, "", False)


@pytest.mark.parametrize("sizes", [5, None, {"workloads": 5}, {"versions": "16"}, {"versions": None}])
def test_a_profile_of_another_type_is_refused(sizes):
    with pytest.raises(InputError, match="parameter profiles"):
        checked(PARAMETERS, {"profiles": {"quick": sizes}})


def test_a_profile_may_be_a_matrix_unless_levels_are_chosen():
    values = checked(PARAMETERS, {})
    assert (values["workloads"], values["versions"], values["leave_out"]) == (["w"], ["16", "17", "18"], True)
    assert values["profiles"]["quick"].keys() == {"workloads", "versions"}
    assert checked(PARAMETERS, values) == values, "as a saved study gives them"
    one = checked(PARAMETERS, {"workload": "reads", "versions": "16,18"})
    assert (one["workloads"], one["versions"]) == ([], ["16", "18"])
    chosen = checked(PARAMETERS, {"only": ["tuned"]})
    assert (chosen["versions"], chosen["answers"]) == ([], {"tuned": "it"})
