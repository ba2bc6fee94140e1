"""JupyterLab itself, in a browser: a user changes two parameters, has all cells run, and finds the study shown and kept."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.reader import NotJSONError

from benchlib.host.lock import LOCK_VARIABLE
from benchlib.study.store import DATA_VARIABLE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROOT = Path(__file__).parents[2]
LIMIT_S = 300

pytestmark = [
    pytest.mark.browser,
    pytest.mark.pg,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the notebooks, as a clone has them, and no study."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "data").mkdir(exist_ok=True)
    return tmp_path


@pytest.fixture
def lab(project: Path) -> Iterator[str]:
    """The address of a JupyterLab in that folder, started as ``make lab`` does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    environment |= {DATA_VARIABLE: str(project / "data"), LOCK_VARIABLE: str(project / "lock")}
    environment |= {
        f"JUPYTER_{kind}_DIR": str(project / "jupyter" / kind) for kind in ("CONFIG", "DATA", "RUNTIME")
    }
    options = ["--notebook-dir=.", "--no-browser", f"--port={port}", "--ServerApp.port_retries=0"]
    options += ["--IdentityProvider.token=", *(["--allow-root"] if os.geteuid() == 0 else [])]
    with (project / "lab.log").open("w") as log:
        server = subprocess.Popen(
            [Path(sys.executable).with_name("jupyter"), "lab", *options],
            cwd=project, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            assert server.poll() is None, (project / "lab.log").read_text()[-2000:]
            try:
                urllib.request.urlopen(f"{address}/api/status", timeout=2).close()
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def test_run_all_cells_makes_a_study_and_shows_it(project: Path, lab: str) -> None:
    path = project / "notebooks" / "template.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    for before, after in (("duration_s: int = 0", "duration_s: int = 2"), ('blocks: str = ""', 'blocks: str = "3"')):  # fmt: skip
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
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            tab.wait_for_timeout(3000)
            tab.keyboard.press("Control+s")
            try:
                cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
            except NotJSONError:  # read while it was being saved
                continue
            outputs = [output for c in cells for output in c.outputs]
            wrong = [output.evalue for output in outputs if output.output_type == "error"]
            if wrong or all(c.execution_count for c in cells):
                break
        browser.close()

    assert not wrong
    assert all(c.execution_count for c in cells), f"not all cells ran within {LIMIT_S} s"
    assert sum("text/html" in output.get("data", {}) for output in outputs) > 10
    study = json.loads((project / "data" / "template-quick" / "study.json").read_text())
    assert len(study["trials"]) == 9
    assert len(list((project / "data" / "template-quick" / "trials").iterdir())) == 9
