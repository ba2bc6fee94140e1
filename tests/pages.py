"""What pages are made of: a project with short notebooks, and studies that a fake bench ran."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBench, speeds

from benchlib.levers import BY_KEY
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Study
from benchlib.plan.parameters import checked
from benchlib.plan.planning import make_study
from benchlib.report.execute import notebook_parameters
from benchlib.study.loop import run_study
from benchlib.study.store import StudyFolder

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
PARAMETERS = """
factor: str = "template"  # its name
question: str = "Is it faster?"  # one sentence
study: str = ""  # its name
profile: str = "quick"  # which
profiles: dict = {"quick": {"blocks": 3}}  # by name
workload: str = "tpcb-like"  # which
levels: dict = {"defaults": {}, "tuned": {"settings": {"work_mem": "8MB"}}}  # by name
clients: int = 4  # sessions
run: bool = True  # else it is shown
"""
SHOWN = """from benchlib.notebook import compare, open_study
study = open_study()
effects = compare(study.run(), **study.comparison)
display(effects, study.limits(effects), study.setup)"""


def planned(notebook: str, **given: Any) -> Study:
    """Return the study that a notebook of the project makes of some parameters, on a host of 16 GiB."""
    values = checked(notebook_parameters(NOTEBOOKS / f"{notebook}.ipynb"), given)
    return make_study(values, 16 << 30, load_workload, BY_KEY)


@pytest.fixture
def notebook_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a notebook of these cells into a project of its own, in which the test then is."""
    (tmp_path / "notebooks").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def make(*sources: str, name: str = "template", parameters: str = PARAMETERS) -> Path:
        title = "# Template\n\n## About\n\nIts prose."
        cells = [{"cell_type": "markdown", "id": "title", "metadata": {}, "source": title}]
        for number, source in enumerate((parameters, *sources)):
            tagged = {} if number else {"tags": ["parameters"]}
            cell = {"cell_type": "code", "id": f"c{number}", "metadata": tagged, "source": source}
            cells.append({**cell, "outputs": [], "execution_count": None})
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        language = {"language_info": {"name": "python"}}
        path.write_text(
            json.dumps({"cells": cells, "metadata": language, "nbformat": 4, "nbformat_minor": 5})
        )
        return path

    return make


@pytest.fixture
def kept(folder_of: Callable[..., StudyFolder], tmp_path: Path) -> Callable[..., StudyFolder]:
    """Keeps a study of quiet blocks whose level "tuned" has an effect in percent; ``about`` are other fields of the study."""

    def make(
        name: str = "mine", percent: float = 0.0, *, blocks: int = 4, day: int = 1, noise: float = 0.003, failing: Any = None,
        about: dict[str, Any] | None = None, level: str = "tuned", **changes: Any,
    ) -> StudyFolder:  # fmt: skip
        folder = folder_of(blocks, name=name, **changes)
        host = {"processors": 2, "memory_mib": 4096}
        told = {"created": f"2026-01-{day:02d}T00:00:00+00:00", "host": host}
        parameters = {"factor": "template", "question": "Is it faster?", "study": name, "clients": 4, "workload": "tpcb-like"}  # fmt: skip
        fields = {"notebook": "template", "provenance": told, "parameters": parameters, **(about or {})}
        folder.write(folder.read().model_copy(update=fields))
        speed = speeds(day, noise, **{level: percent})
        # a kind of error after which a study goes on
        bench = FakeBench(folder.read().plan, tmp_path, speed, failing=failing, error_kind="InvariantError")
        run_study(folder, bench.open)
        return folder

    return make
