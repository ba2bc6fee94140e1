"""Notebooks are short and plain: a few cells of pandas on frames, stripped, and what they say of parameters is true."""

import ast
import json
import re
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest
from pages import planned

from benchlib.plan.parameters import checked, declared, from_yaml
from benchlib.plan.planning import answer_words
from benchlib.report.runs import is_overview

FOLDER = Path(__file__).parent.parent / "notebooks"
DATA = FOLDER.parent / "data"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
IMPORTED = {"benchlib.notebook", "pandas", "seaborn", "numpy", "matplotlib"}
MOST_LINES = 39
"""Lines of a parameters cell: one screen."""


@cache
def read(path):
    return nbformat.read(path, as_version=4)


@cache
def parameters_of(path):
    (cell,) = [c for c in read(path).cells if "parameters" in c.metadata.get("tags", [])]
    return declared(cell.source)


FACTORS = [path for path in NOTEBOOKS if not is_overview(parameters_of(path))]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return request.param


@pytest.fixture(params=FACTORS, ids=lambda path: path.stem)
def factor_notebook(request):
    return request.param


def test_a_notebook_is_short_and_its_code_is_a_few_plain_lines_without_outputs(notebook):
    cells = read(notebook).cells
    assert len(cells) <= 25
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    for cell in cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            assert len([line for line in cell.source.splitlines() if line.strip()]) <= 10, cell.source
            kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
            assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef}, cell.source


def test_a_notebook_imports_what_its_readers_know_and_the_library_by_one_name(notebook):
    code = "\n".join(cell.source for cell in read(notebook).cells if cell.cell_type == "code")
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    others = {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names} - IMPORTED
    assert {name for name in others if not name.startswith("matplotlib.")} == set()


def test_every_parameter_says_what_it_is_and_its_default_is_of_its_type(notebook):
    parameters = parameters_of(notebook)
    own = {"only": []} if "versions" in parameters else {}  # the levels, not the matrix of the profile
    assert checked(parameters, own) == {name: p.default for name, p in parameters.items()}
    assert not [name for name, p in parameters.items() if not p.help]
    assert parameters["factor"].default == notebook.stem


def test_the_parameters_fit_on_a_screen(notebook):
    (cell,) = [c for c in read(notebook).cells if "parameters" in c.metadata.get("tags", [])]
    lines = cell.source.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 160
    assert [line for line in lines if line.count("=") > 1] == [], "papermill cannot read such a line"


def test_a_notebook_states_its_question_its_expectation_and_what_to_try(factor_notebook):
    first, *_, last = (cell.source for cell in read(factor_notebook).cells if cell.cell_type == "markdown")
    for words in ("## Why it matters", "**Published.**", "**Expected.**", "**What would prove us wrong.**"):
        assert words in first
    assert "](https://www.postgresql.org/docs/" in first
    assert last.startswith("## To try next")
    assert len(re.findall(r"^(?:- `)?(?:benchlib|cp) .+", last.partition("To repeat")[0], re.MULTILINE)) >= 3


RECORDED = {
    path.stem: json.loads((DATA / path.stem / "study.json").read_text())
    for path in FOLDER.parent.glob("studies/*-recorded.yaml")
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_file_of_a_recorded_study_makes_its_levels_and_comparisons(name):
    recorded, given = (
        RECORDED[name],
        from_yaml((FOLDER.parent / "studies" / f"{name}.yaml").read_text(), name),
    )
    factor = planned(recorded["notebook"], **given).plan.factor
    assert {*factor.levels} >= {*recorded["plan"]["factor"]["levels"]}
    assert factor.baseline == recorded["plan"]["factor"]["baseline"]
    assert factor.against.items() >= recorded["plan"]["factor"]["against"].items()


def test_a_page_can_be_made_of_it(factor_notebook):
    shown = "\n".join(cell.source for cell in read(factor_notebook).cells if cell.cell_type == "code")
    for words in ("open_study()", "compare(", ".limits(", ".setup"):
        assert words in shown


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_every_profile_makes_a_study_with_a_control(profile, factor_notebook):
    study = planned(factor_notebook.stem, profile=profile)
    assert study.name == f"{factor_notebook.stem}-{profile}"
    assert study.plan.factor.controls
    assert study.blocks >= 3
    assert len(study.trials) == study.blocks * len(study.plan.factor.levels)


def test_every_profile_runs_some_of_what_answers_the_question(factor_notebook):
    profiles = parameters_of(factor_notebook)["profiles"].default
    for profile in {"quick", "standard", "recorded", "full"} & {*profiles}:
        study = planned(factor_notebook.stem, profile=profile)
        answers = checked(parameters_of(factor_notebook), {"profile": profile})["answers"]
        if study.declared.versions:  # all cells of a matrix answer it
            continue
        compared = {*map(study.plan.factor.named, answers)} & {*study.plan.factor.pairs()}
        assert compared
        assert compared == {*answer_words(study)} - {study.plan.factor.baseline}


def test_the_tuned_set_is_scaled_to_memory_and_its_durable_twin_differs_in_one_setting():
    plan = planned("configuration").plan
    tuned, durable = plan.level("tuned").settings, plan.level("tuned, durable").settings
    # a quarter and a half of 16 GB: the very values of the published study
    assert (tuned["shared_buffers"], tuned["effective_cache_size"]) == ("4096MB", "8192MB")
    assert tuned == {**durable, "synchronous_commit": "off"}


def test_taking_the_tuned_set_apart_gives_each_setting_alone_and_the_set_without_it():
    study = planned("configuration", shares_of="tuned")
    levels = study.plan.factor.levels
    assert study.name == "configuration-quick-shares"
    assert len(levels) == 2 + 1 + 7 + 7
    assert levels["only random_page_cost"].settings == {"random_page_cost": 1.1}
    assert "synchronous_commit" not in levels["without synchronous_commit"].settings
