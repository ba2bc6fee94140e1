"""A notebook's kernel imports the library and what it needs; what lies in the working folder stands in for none of it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchlib.errors import BenchlibError, StudyError
from benchlib.report.execute import find_notebook
from benchlib.report.site import write_file
from benchlib.study.store import notebooks

SHADOWING = [
    "bdb", "json", "matplotlib", "benchlib", "ipykernel_launcher", "sitecustomize", "usercustomize", "ipython_config",
    "ipython_kernel_config", "jupyter_config",
]  # fmt: skip
EVIL = "import os\nopen(os.environ['PWNED'], 'a').write(__file__)\n"
DRIVER = """
import sys, pathlib
from benchlib.report.execute import execute
made = execute(pathlib.Path(sys.argv[1]), {}, pathlib.Path("failed.ipynb"))
print(*(output["text"] for output in made["cells"][-1]["outputs"]))
"""


@pytest.fixture
def run(notebook_of, tmp_path):
    """Executes a notebook of one cell, as a command does; returns what the cell printed."""

    def execute(source: str) -> str:
        notebook_of(source, name="x", parameters='factor: str = "x"  # its name')
        words = [sys.executable, "-P", "-c", DRIVER, "notebooks/x.ipynb"]
        environment = {**os.environ, "PWNED": str(tmp_path / "pwned")}
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return execute


def test_the_working_folder_stands_in_for_no_module_and_its_own_can_be_imported(run, tmp_path: Path) -> None:
    for name in SHADOWING:
        (tmp_path / f"{name}.py").write_text(EVIL)
    (tmp_path / "beside_the_notebooks.py").write_text("ANSWER = 42")
    modules = "bdb, json, matplotlib, benchlib, beside_the_notebooks"
    assert run(f"import {modules}\nprint(beside_the_notebooks.ANSWER)") == "42"
    assert not (tmp_path / "pwned").exists()
    assert not list(tmp_path.glob("*ipc*")), "its sockets lie in a folder of its own"


def test_no_notebook_is_one_of_ours_where_no_folder_is_trusted(tmp_path: Path, monkeypatch) -> None:
    """As where the library is installed without a project, and the working folder is somebody's."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "x.ipynb").write_text("{}")
    (tmp_path / "notebooks").symlink_to(tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    assert "x" not in notebooks()
    monkeypatch.setattr("benchlib.host.files.trusted", lambda path: False)
    assert notebooks() == {}
    with pytest.raises(BenchlibError, match="no notebook 'x'"):
        find_notebook("x")


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.rename", full)
    with pytest.raises(StudyError, match=r"cannot write .*x\.html: free some space.*No space left"):
        write_file(tmp_path / "x.html", "a page")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_long_temporary_folder_is_no_obstacle_to_the_sockets_of_a_kernel(
    run, tmp_path, monkeypatch
) -> None:
    (tmp_path / ("ä" * 100)).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("ä" * 100)))
    assert run("print(42)") == "42"
