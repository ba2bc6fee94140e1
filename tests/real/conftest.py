"""A user's folder, in which programs run as from a terminal."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from clusters import eventually, short_folder

from benchlib.host.guardian import SCRATCH_VARIABLE
from benchlib.host.lock import LOCK_VARIABLE
from benchlib.study.store import DATA_VARIABLE

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 600
"""How long a test waits for what must come: a loaded machine takes its time, a broken run never gets there."""


class Project:
    """A folder with the notebooks and no study; what programs keep in a user's home is in it, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch, self.data, self.reports, home = (
            folder / name for name in ("s", "data", "reports", "home")
        )
        shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
        self.data.mkdir()
        home.mkdir()
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "COV_"))},
            SCRATCH_VARIABLE: str(self.scratch),
            DATA_VARIABLE: str(self.data),
            LOCK_VARIABLE: str(home / "lock"),
            "HOME": str(home),
        }

    def start(self, *words: object, **more: Any) -> "subprocess.Popen[str]":
        """Start a program of the environment that the tests run in, in a session of its own."""
        argv = [str(Path(sys.executable).with_name(str(words[0]))), *map(str, words[1:])]
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, **more}
        return subprocess.Popen(argv, cwd=self.folder, env=self.environment, text=True, **how)

    def call(self, *words: object, fails: bool = False, **more: Any) -> tuple[str, str]:
        """Run a program to its end; what it wrote to stdout and stderr."""
        with self.start(*words, **more) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        assert bool(process.returncode) == fails, err
        return out, err

    def kept(self) -> dict[str, float]:
        """The trials that are kept, with the time at which each was written."""
        paths = self.data.glob("t/trials/[!.]*/measurement.json")
        return {path.parent.name: path.stat().st_mtime for path in paths}

    def processes(self) -> list[psutil.Process]:
        """Every process that has to do with this project."""
        ours = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and str(self.folder) in " ".join(
                    [*process.cmdline(), process.cwd()]
                ):
                    ours.append(process)
            except (psutil.Error, OSError):
                continue
        return ours

    def has_nothing_left(self) -> bool:
        """Whether all that a run must not leave is gone before long."""
        return eventually(lambda: not self.processes() and not list(self.scratch.glob("run-*")), PATIENCE_S)

    def shown(self, notebook: str) -> list[str]:
        """What the cells of an executed notebook show as HTML; none of them failed."""
        cells = nbformat.read(self.folder / notebook, as_version=4).cells
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        assert [output.evalue for output in outputs if output.output_type == "error"] == []
        return [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]


@pytest.fixture
def project() -> Iterator[Project]:
    with short_folder() as folder:
        made = Project(folder)
        yield made
        for process in made.processes():
            process.kill()
