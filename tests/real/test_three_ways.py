"""Notebooks with their recorded studies, run by hand, by papermill and by the command line."""

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", ["combined", "own", "planner", "replication"])
def test_run_all_papermill_and_the_command_line_show_the_same(name: str, project: Any) -> None:
    study, source = f"{name}-recorded", project.folder / "notebooks" / f"{name}.ipynb"
    shutil.copytree(ROOT / "data" / study, project.data / study)
    shutil.copytree(ROOT / "data" / "published", project.data / "published")
    project.call("benchlib", "report", study)
    project.call("papermill", source, "papermill.ipynb", "-p", "study", study, "-p", "run", "False")

    notebook = nbformat.read(source, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    for before, after in (
        ('study: str = ""', f'study: str = "{study}"'),
        ("run: bool = True", "run: bool = False"),
    ):
        assert before in cell.source
        cell.source = cell.source.replace(before, after, 1)
    nbformat.write(notebook, source)
    project.call("jupyter", "execute", "--inplace", source)

    executed = (f"reports/{study}.ipynb", "papermill.ipynb", f"notebooks/{name}.ipynb")
    by_command, by_papermill, by_hand = (
        [BeautifulSoup(html, "html.parser").get_text(" ", strip=True) for html in project.shown(path)]
        for path in executed
    )
    assert any({"percent_change", "verdict"} <= {*text.split()} for text in by_command), (
        "the effects are shown"
    )
    assert by_command == by_papermill == by_hand
