"""Notebooks are thin, stripped, alike where they are shared, and what they say of parameters is true."""

import ast
from functools import cache
from pathlib import Path

import nbformat
import pytest
from benchlib.report.answers import words_of

from benchlib.levers import BY_KEY
from benchlib.load.workloads import load_workload
from benchlib.plan.parameters import checked, declared
from benchlib.plan.planning import make_study

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
GIB = 1 << 30


@cache
def read(path):
    return nbformat.read(path, as_version=4)


@cache
def parameters_of(path):
    (cell,) = [c for c in read(path).cells if "parameters" in c.metadata.get("tags", [])]
    return declared(cell.source)


def shared_cells(path):
    return {c.id: c.source for c in read(path).cells if "shared" in c.metadata.get("tags", [])}


def is_overview(path):
    """Whether a notebook has no study of its own, but shows the others'."""
    return not {"levels", "grid"} & set(parameters_of(path))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return request.param


@pytest.fixture(params=[path for path in NOTEBOOKS if not is_overview(path)], ids=lambda path: path.stem)
def factor_notebook(request):
    return request.param


def test_outputs_are_stripped(notebook):
    for cell in read(notebook).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_cells_are_thin(notebook):
    for cell in read(notebook).cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            assert len([line for line in cell.source.splitlines() if line.strip()]) <= 10
            kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
            assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.If}


def test_shared_cells_are_the_same_as_in_the_template(factor_notebook):
    assert shared_cells(factor_notebook) == shared_cells(FOLDER / "template.ipynb")


def test_every_code_cell_follows_some_prose(notebook):
    cells = read(notebook).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert sum(c.cell_type == "markdown" for c in cells) >= 6


def test_factor_is_the_file_name(notebook):
    assert parameters_of(notebook)["factor"].default == notebook.stem


def test_every_parameter_has_a_type_that_its_default_satisfies(notebook):
    parameters = parameters_of(notebook)
    assert checked(parameters, {}) == {name: p.default for name, p in parameters.items()}


def test_every_parameter_says_what_it_is(notebook):
    assert not [name for name, p in parameters_of(notebook).items() if not p.help]


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_every_profile_makes_a_study_with_a_control(factor_notebook, profile):
    values = checked(parameters_of(factor_notebook), {"profile": profile})
    study = make_study(values, 16 * GIB, load_workload, BY_KEY)
    assert study.name == f"{factor_notebook.stem}-{profile}"
    assert study.plan.factor.controls
    assert study.blocks >= 3
    assert len(study.trials) == study.blocks * len(study.plan.factor.levels)


def test_every_profile_runs_some_of_what_answers_the_question(factor_notebook):
    parameters = parameters_of(factor_notebook)
    for profile in {"quick", "standard", "recorded", "full"} & {*parameters["profiles"].default}:
        values = checked(parameters, {"profile": profile})
        study = make_study(values, 16 * GIB, load_workload, BY_KEY)
        compared = {*map(study.plan.factor.named, values["answers"])} & {*study.plan.factor.pairs()}
        assert compared
        assert compared == {*words_of(study)} - {study.plan.factor.baseline}, (
            "compared with what the words say"
        )


def test_the_tuned_set_is_scaled_to_the_machines_memory():
    values = checked(parameters_of(FOLDER / "configuration.ipynb"), {})
    plan = make_study(values, 16 * GIB, load_workload, BY_KEY).plan
    # a quarter and a half of 16 GB: the very values of the published study
    assert plan.level("tuned").settings["shared_buffers"] == "4096MB"
    assert plan.level("tuned").settings["effective_cache_size"] == "8192MB"


def test_tuned_and_its_durable_twin_differ_in_synchronous_commit_alone():
    values = checked(parameters_of(FOLDER / "configuration.ipynb"), {})
    plan = make_study(values, 16 * GIB, load_workload, BY_KEY).plan
    durable = plan.level("tuned, durable").settings
    assert plan.level("tuned").settings == {**durable, "synchronous_commit": "off"}


def test_taking_the_tuned_set_apart_gives_each_setting_alone_and_the_set_without_it():
    values = checked(parameters_of(FOLDER / "configuration.ipynb"), {"shares_of": "tuned"})
    study = make_study(values, 16 * GIB, load_workload, BY_KEY)
    levels = study.plan.factor.levels
    assert study.name == "configuration-quick-shares"
    assert len(levels) == 2 + 1 + 7 + 7
    assert levels["only random_page_cost"].settings == {"random_page_cost": 1.1}
    assert "synchronous_commit" not in levels["without synchronous_commit"].settings
