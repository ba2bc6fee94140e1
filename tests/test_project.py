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

from benchlib.levers import BY_KEY
from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.plan.parameters import checked
from benchlib.plan.planning import make_study
from benchlib.report.execute import notebook_parameters

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED_FOR = {
    "jupyterlab",
    "psycopg",
    "pandas",
    "numpy",
    "scipy",
    "matplotlib",
    "seaborn",
    "papermill",
    "pytest",
}


def requirements():
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    return {r.name.lower(): r for r in map(Requirement, lines)}


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in found.items()}


def conda():
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    named = [Requirement(e) for e in [*entries, *pip] if isinstance(e, str) and not e.startswith("-")]
    return {r.name.lower(): r for r in named}


def test_the_packages_that_were_asked_for_are_there_for_pip_and_for_conda():
    assert set(requirements()) >= ASKED_FOR
    assert set(conda()) >= ASKED_FOR


def test_every_requirement_is_pinned_to_a_version_that_it_allows():
    for name, requirement in requirements().items():
        assert pins()[name] in requirement.specifier, name


def test_conda_users_get_every_run_time_dependency_with_the_same_lower_bound():
    wanted = {r.name.lower(): str(r.specifier) for r in map(Requirement, PROJECT["dependencies"])}
    given = {name: str(r.specifier) for name, r in conda().items()}
    assert wanted.items() <= given.items()


def test_the_lowest_python_is_the_same_everywhere():
    assert PROJECT["requires-python"] == ">=3.11"
    assert "python>=3.11" in (ROOT / "environment.yml").read_text()
    assert "(3, 11)" in (ROOT / "Makefile").read_text()


def test_pins_are_names_and_versions_and_nothing_else():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line), line


def test_the_readme_names_every_notebook_and_only_make_targets_that_exist():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{path.name}" in readme
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", readme, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_levels_in_the_readme_are_levels_and_name_every_key():
    text, grid = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    context = {"levers": BY_KEY, "data_mib": lambda: 100}
    patches = yaml.safe_load(text)["levels"]
    levels = {name: Level.model_validate(patch, context=context) for name, patch in patches.items()}
    named = {key for level in levels.values() for key in level.model_fields_set}
    assert named == set(Level.model_fields)
    given = yaml.safe_load(grid)
    made = checked(notebook_parameters(ROOT / "notebooks" / "template.ipynb"), given)
    study = make_study(made, 16 << 30, load_workload, BY_KEY)
    assert len(study.plan.factor.levels) == 13  # twelve, as the README says, and the control
    assert len(study.plan.factor.against) == 6


def test_the_workload_in_the_readme_is_one(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "read.sql").write_text("SELECT 1;")
    workload = load_workload(str(tmp_path / "mine.toml"))
    assert [script.weight for script in workload.scripts] == [9, 1]


def test_what_init_lays_out_and_what_servers_are_asked_are_in_the_package():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = tools["package-data"]["benchlib"]
    files = {path.resolve() for pattern in patterns for path in (ROOT / "benchlib").glob(pattern)}
    wanted = (
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("data/published/*.csv"),
        *ROOT.glob("benchlib/**/*.sql"),
    )
    assert files >= set(wanted)


def test_continuous_integration_runs_the_tests_and_the_demo():
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in script
    assert "make demo" in script


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.stem)
def test_what_executes_in_a_workflow_may_only_read_and_actions_are_pinned(path):
    workflow = yaml.safe_load(path.read_text())
    for job in workflow["jobs"].values():
        permissions = job.get("permissions", workflow["permissions"])
        actions = {step["uses"]: step.get("with", {}) for step in job["steps"] if "uses" in step}
        assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in actions)
        if any("run" in step for step in job["steps"]):
            assert permissions == {"contents": "read"}
        for action, options in actions.items():
            assert "checkout" not in action or options["persist-credentials"] is False


def test_what_builds_the_package_is_pinned():
    (requirement,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [s.operator for s in Requirement(requirement).specifier] == ["=="]


@pytest.mark.parametrize("name", ["a$b", "a:b", "$(touch pwned)"])
def test_make_says_which_folder_will_not_do(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    done = subprocess.run(["make", "help"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'the path of this checkout has a "$" or ":" in it' in done.stderr
    assert list(folder.iterdir()) == [folder / "Makefile"]


def test_every_module_reads_at_one_sitting():
    long = {
        p.name: n for p in (ROOT / "benchlib").rglob("*.py") if (n := len(p.read_text().splitlines())) > 450
    }
    assert not long


ACTS = {
    *("write_text", "write_bytes", "unlink", "mkdir", "symlink_to", "hardlink_to", "touch", "chmod", "rmdir"),
    *("rmtree", "copytree", "copyfile", "copy2", "move", "chown", "makedirs", "symlink", "remove", "rename"),
}
"""What makes, changes or removes files by name."""
OF_THE_KERNEL = {
    "host/files.py": ACTS,
    "levers/control_groups.py": {"mkdir", "write_text"},
    "host/changes.py": {"rmdir", "write_text"},
}
"""The one module that may, and those that write to the kernel's own file systems, which are root's."""


def acts_on_files(source: str) -> set[str]:
    """Names of the calls in a module that act on files, as methods of paths or functions of os and shutil."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        value = getattr(node.func, "value", None)
        owner = getattr(value, "id", getattr(value, "attr", ""))
        modes = [
            a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)
        ]
        if (
            name == "open"
            and owner != "tarfile"
            and any(isinstance(mode, str) and set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
        ):
            found.add("open")
        elif name in ACTS and owner not in (
            "files",
            "host_files",
            "curate",
            "shell",
            "client",
            "path",
            "tarfile",
        ):
            named = isinstance(node.args[0], ast.Constant) if node.args else name in ("rename", "remove")
            if not named:  # a column of a frame
                found.add(name)
    return found


def test_files_are_touched_in_one_module_alone():
    others = {}
    for path in (ROOT / "benchlib").rglob("*.py"):
        name = path.relative_to(ROOT / "benchlib").as_posix()
        if more := acts_on_files(path.read_text()) - OF_THE_KERNEL.get(name, set()):
            others[name] = more
    assert others == {}
