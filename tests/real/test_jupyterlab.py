"""JupyterLab in a browser: changed parameters, all cells run, a saved study."""

import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from clusters import eventually
from nbformat.reader import NotJSONError

pytestmark = [pytest.mark.browser, pytest.mark.pg]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def lab(project: Any) -> Iterator[str]:
    """The address of a JupyterLab in the project, started as ``make lab`` does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--notebook-dir=.", "--no-browser", f"--port={port}", "--ServerApp.port_retries=0"]
    options += ["--IdentityProvider.token=", *(["--allow-root"] if os.geteuid() == 0 else [])]
    server = project.start("jupyter", "lab", *options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        assert server.poll() is None
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=2).close()
        except OSError:
            return False
        return True

    try:
        assert eventually(answers)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def test_run_all_cells_makes_a_study_and_shows_it(project: Any, lab: str) -> None:
    path = project.folder / "notebooks" / "template.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    for before, after in (
        ("duration_s: int = 0", "duration_s: int = 2"),
        ('blocks: str = ""', 'blocks: str = "3"'),
        ('study: str = ""', 'study: str = "t"'),
    ):
        assert before in cell.source
        cell.source = cell.source.replace(before, after)
    nbformat.write(notebook, path)

    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        tab = browser.new_page()
        tab.goto(f"{lab}/lab/tree/notebooks/template.ipynb")
        tab.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
        # a notebook that has no kernel yet calls itself idle, too, and runs nothing
        tab.get_by_text("(ipykernel) | Idle").wait_for(timeout=120_000)
        tab.get_by_role("menuitem", name="Run", exact=True).click()
        tab.get_by_text("Run All Cells", exact=True).click()

        def are_all_run() -> bool:
            tab.wait_for_timeout(3000)
            tab.keyboard.press("Control+s")
            try:
                shown = project.shown("notebooks/template.ipynb")
                cells = nbformat.read(path, as_version=4).cells
            except NotJSONError:  # read while it was being saved
                return False
            return bool(shown) and all(c.execution_count for c in cells if c.cell_type == "code")

        assert eventually(are_all_run, 300)
        browser.close()
    assert len(project.shown("notebooks/template.ipynb")) > 10
    assert len(project.kept()) == 9
