"""Every notebook, three ways: JupyterLab's "run all", papermill, and the command line, on the recorded study of its name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from bs4 import BeautifulSoup

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
RECORDED = [f"{name}-recorded" for name in NAMES if (ROOT / "data" / f"{name}-recorded").is_dir()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the notebooks and what is kept, as a clone has them."""
    for name in ("notebooks", "data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns(".*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCHLIB_DATA", str(tmp_path / "data"))
    return tmp_path


def shown(path: Path) -> list[str]:
    """The text of all that a notebook's cells show as HTML, and nothing failed."""
    said = []
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", ()):
            assert output["output_type"] != "error", output.get("evalue")
            html = output.get("data", {}).get("text/html")
            said += [BeautifulSoup(html, "html.parser").get_text(" ", strip=True)] if html else []
    return said


def run(*words: str) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    program = Path(sys.executable).with_name(words[0])
    done = subprocess.run([program, *words[1:]], env=environment, capture_output=True, text=True, timeout=200, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("study", RECORDED)
def test_run_all_papermill_and_the_command_line_show_the_same(study: str, project: Path) -> None:
    name = study.removesuffix("-recorded")
    source = project / "notebooks" / f"{name}.ipynb"

    run("benchlib", "report", study)
    by_command = shown(project / "reports" / f"{study}.ipynb")

    run("papermill", str(source), "papermill.ipynb", "-p", "study", study, "-p", "run", "False")
    by_papermill = shown(project / "papermill.ipynb")

    notebook = nbformat.read(source, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    lines = [line.replace('study: str = ""', f'study: str = "{study}"') for line in cell.source.splitlines()]
    cell.source = "\n".join(lines).replace("run: bool = True", "run: bool = False")
    nbclient.NotebookClient(
        notebook, timeout=200, resources={"metadata": {"path": str(source.parent)}}
    ).execute()
    nbformat.write(notebook, project / "all.ipynb")
    by_hand = shown(project / "all.ipynb")

    assert len(by_command) > 10
    assert by_command == by_papermill == by_hand
