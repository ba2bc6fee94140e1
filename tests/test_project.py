"""The files around the library say the same things."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from pages import planned

from benchlib.cli import cli
from benchlib.plan.parameters import from_yaml

ROOT = Path(__file__).parent.parent
README, MAKEFILE, PYPROJECT = ((ROOT / n).read_text() for n in ("README.md", "Makefile", "pyproject.toml"))
SETTINGS = tomllib.loads(PYPROJECT)
PROJECT = SETTINGS["project"]
ASKED_FOR = {"jupyterlab", "psycopg", "pandas", "numpy", "scipy", "matplotlib", "seaborn", "papermill", "pytest"}  # fmt: skip


def named(lines):
    return {requirement.name.lower(): requirement for requirement in map(Requirement, lines)}


# --- requirements -----------------------------------------------------------------------

REQUIRED = named([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])


def test_conda_users_get_what_pip_s_get_with_the_same_lower_bounds():
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    conda = named(e for e in [*entries, *pip] if isinstance(e, str) and not e.startswith("-"))
    given = {name: str(requirement.specifier) for name, requirement in conda.items()}
    wanted = {name: str(each.specifier) for name, each in named(PROJECT["dependencies"]).items()}
    assert given.items() >= {**wanted, "python": PROJECT["requires-python"]}.items()
    assert set(REQUIRED) >= ASKED_FOR
    assert set(conda) >= ASKED_FOR
    assert PROJECT["requires-python"] == ">=3.11"
    assert "(3, 11)" in MAKEFILE


def test_every_requirement_is_pinned_to_a_version_that_it_allows_and_to_nothing_else():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line) for line in lines), "no addresses"
    pins = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    for name, requirement in REQUIRED.items():
        assert pins[name] in requirement.specifier, name
    (builder,) = map(Requirement, SETTINGS["build-system"]["requires"])
    assert [specifier.operator for specifier in builder.specifier] == ["=="]


def test_what_init_lays_out_and_what_servers_are_asked_are_in_the_package():
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]["benchlib"]
    files = {path.resolve() for pattern in patterns for path in (ROOT / "benchlib").glob(pattern)}
    for wanted in ("notebooks/*.ipynb", "data/published/*.csv", "benchlib/**/*.sql"):
        assert files >= set(ROOT.glob(wanted))


# --- README and examples ----------------------------------------------------------------


def example(path):
    """Parameters of a file, as ``-f`` takes it: to YAML's own rules "on" is no word."""
    return from_yaml((ROOT / "examples" / path).read_text(), path)


def test_the_readme_names_every_notebook_and_only_make_targets_that_exist():
    assert all(f"notebooks/{path.name}" in README for path in ROOT.glob("notebooks/*.ipynb"))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE)) <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))  # fmt: skip


def test_the_example_of_a_gate_is_a_study_of_two_builds_whose_status_is_the_job_s():
    plan = planned("template", **example("gate/builds.yaml"), blocks=12).plan
    builds = {str(plan.level(name).postgres) for name in plan.factor.levels}
    assert builds == {"/tmp/pg-with", "/tmp/pg-without"}
    steps = example("gate/workflow.yml")["jobs"]["gate"]["steps"]
    commands = re.findall(r"bin/benchlib (\w+)", "\n".join(step.get("run", "") for step in steps))
    assert commands == ["run", "check", "check", "check"]
    assert set(commands) <= set(cli.commands)


def test_the_example_of_a_pooler_compares_with_and_without_in_the_same_load():
    given = example("pooler/pooler.yaml")
    plan = planned("template", **given).plan
    for level in given["answers"]:
        other = plan.factor.pairs()[level]
        assert plan.level_load(level) == plan.level_load(other)
        assert bool(plan.level(level).pooler) > bool(plan.level(other).pooler)


def test_the_example_of_a_fleet_has_replicas_elsewhere_at_three_distances():
    recorded = from_yaml((ROOT / "studies" / "replication-recorded.yaml").read_text(), "recorded")
    plan = planned("replication", **{**recorded, **example("fleet/followers.yaml")}).plan
    parts = [plan.level(name).part("replication") for name in plan.factor.pairs() if name != "control"]
    assert [(part["on"], part.get("delay_ms")) for part in parts] == [(["db2"], of) for of in (None, 1, 5)]
    assert plan.level("standalone").storage, "of the profile"


# --- workflows, make --------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted([*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("examples/*/workflow.yml")]), ids=lambda p: p.stem)  # fmt: skip
def test_what_executes_in_a_workflow_may_only_read_and_actions_are_pinned(path):
    workflow = yaml.safe_load(path.read_text())
    for job in workflow["jobs"].values():
        if any("run" in step for step in job["steps"]):
            assert job.get("permissions", workflow["permissions"]) == {"contents": "read"}
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", f"actions/x@{'0' * 40}"))
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_continuous_integration_runs_the_tests_and_the_demo():
    assert {"demo", "coverage", "test"} <= set(re.findall(r"^make (\w+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))  # fmt: skip


@pytest.mark.parametrize("name", ["a$b", "a:b", "$(touch pwned)"])
def test_make_says_which_folder_will_not_do(tmp_path, name):
    (folder := tmp_path / name).mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    done = subprocess.run(["make", "--silent", "help"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'has a "$" or ":" in it' in done.stderr
    assert [path.name for path in folder.iterdir()] == ["Makefile"]


# --- the code ---------------------------------------------------------------------------

MODULES = {path.relative_to(ROOT / "benchlib").as_posix(): path.read_text() for path in ROOT.glob("benchlib/**/*.py")}  # fmt: skip
ACTS = {
    *("write_text", "write_bytes", "unlink", "mkdir", "symlink_to", "hardlink_to", "touch", "chmod", "rmdir"),
    *("rmtree", "copytree", "copyfile", "copy2", "move", "chown", "makedirs", "symlink"),
}
"""What makes, changes or removes files by its name alone."""
MODE = re.compile("'[rbt]*[wax+][rbt+]*'")


def acts_on_files(source):
    """The calls in a module that act on files, as methods of paths or functions of os and shutil."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        owner, _, name = ast.unparse(call.func).rpartition(".")
        given = [ast.unparse(each) for each in (*call.args, *(k.value for k in call.keywords))]
        opens = name == "open" and owner != "tarfile" and any(MODE.fullmatch(each) for each in given)
        of_frames = owner in ("files", "curate") or not call.args or given[0][0] in "'\""
        moves = name == "rename" and not of_frames
        if name in ACTS or opens or moves or (owner, name) == ("os", "remove"):
            yield ast.unparse(call)


def test_every_module_reads_at_one_sitting():
    assert [name for name, source in MODULES.items() if source.count("\n") > 700] == []


def test_files_are_touched_in_one_module_alone():
    found = {name: {*acts_on_files(source)} for name, source in MODULES.items() if name != "host/files.py"}
    of_the_kernel = {"levers/control_groups.py": {"folder.mkdir()"}, "host/changes.py": {"group.rmdir()"}}
    of_a_pipe = {"notebook.py": {"Path(pipe).open('w', buffering=1, encoding='utf-8')"}}
    assert {name: acts for name, acts in found.items() if acts} == of_the_kernel | of_a_pipe
