"""Notebooks executed for their pages: several at a time with the same bytes, overviews, and what fails alone."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import pytest

PARAMETERS = 'factor: str = "{name}"  # its name\nquestion: str = "How?"  # one sentence\nrun: bool = True  # nothing runs'


@pytest.fixture
def notebook(tmp_path: Path) -> Callable[..., Path]:
    """Writes an overview of that source into a project of its own."""
    (tmp_path / "notebooks").mkdir()

    def make(name: str, source: str) -> Path:
        parameters = v4.new_code_cell(
            PARAMETERS.format(name=name), metadata={"tags": ["parameters"]}, id="parameters"
        )
        cells = [
            v4.new_markdown_cell("# Title\n\nProse.", id="title"),
            parameters,
            v4.new_code_cell(source, id="own"),
        ]
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        nbformat.write(v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), path)
        return path

    return make


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs the command line in that project, some kernels at a time; the lines it prints."""

    def run(*words: str, kernels: int = 2) -> list[str]:
        code = f"from benchlib.report import runs; runs.KERNELS = {kernels}; from benchlib.cli import main; main({words!r})"
        environment = {
            **os.environ,
            "BENCHLIB_DATA": str(tmp_path / "data"),
            "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
            "IPYTHONDIR": str(tmp_path / "ipython"),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "runtime").iterdir()) == [], "no socket, no connection file"
        return done.stdout.splitlines()

    return run


@pytest.mark.slow
def test_pages_are_the_same_however_many_kernels_make_them(notebook, call, keep, tmp_path):
    keep("alone", notebook=None)
    notebook("slow", "import time; time.sleep(0.5); print('slow', run)")
    notebook("broken", "1 / 0")
    notebook("fast", "import os; print('fast', run, os.path.isdir('notebooks'))")
    made = []
    for kernels in (1, 3):
        lines = call("report", kernels=kernels)
        assert lines[0] == "left out: study 'alone' names no notebook"
        assert lines[1].startswith("left out: the notebook failed: ZeroDivisionError")
        assert [Path(line).name for line in lines[2:]] == ["fast.html", "slow.html", "index.html"]
        (tmp_path / "reports" / "broken.ipynb").unlink()  # it holds a traceback with the kernel's own paths
        made.append({path.name: path.read_bytes() for path in (tmp_path / "reports").iterdir()})
        shutil.rmtree(tmp_path / "reports")
    assert made[0] == made[1]
    assert b"fast False True" in made[0]["fast.html"]
    assert b"slow False" in made[0]["slow.html"]


def test_an_overview_is_run_as_a_study_is(notebook, call, tmp_path):
    notebook("overview", "print('shown', run, question)")
    headline, page, index = call("run", "overview", "-p", "question", "Why?")
    assert headline == "made from 0 kept studies"
    assert page == f"page: {tmp_path / 'reports' / 'overview.html'}"
    assert index == f"index: {tmp_path / 'reports' / 'index.html'}"
    assert "shown False Why?" in (tmp_path / "reports" / "overview.html").read_text()
