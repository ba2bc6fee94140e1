"""What tests of pages share: trials whose truth is known, the page of their effects, notebooks, and studies that a fake bench ran."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4 as v4
import numpy as np
import pandas as pd
import pytest
from fakes import FakeBench, speeds

from benchlib.report.model import PageData, page_data
from benchlib.stats.effects import compare
from benchlib.study.frames import as_data
from benchlib.study.loop import run_study
from benchlib.study.store import StudyFolder

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
Trials = Callable[..., pd.DataFrame]


@pytest.fixture(scope="session")
def trials_of() -> Trials:
    """Makes quiet trials of five blocks: defaults, its control, and levels that are so many percent faster."""

    def make(noise: float = 0.005, blocks: int = 5, **percent: float) -> pd.DataFrame:
        random, levels = np.random.default_rng(1), {"defaults": 0.0, "control": 0.0, **percent}
        rows = [
            (block, level, 1000 * (1 + change / 100) * np.exp(random.normal(0, noise)))
            for block in range(1, blocks + 1)
            for level, change in levels.items()
        ]
        return pd.DataFrame(rows, columns=["block", "level", "tps"])

    return make


@pytest.fixture(scope="session")
def page_of(trials_of: Trials, study_of: Callable[..., Any]) -> Callable[..., PageData]:
    """Makes the page of such trials; ``about`` are other fields of it."""

    def make(answers: dict[str, str] | None = None, noise: float = 0.005, about: Any = None, **percent: float) -> PageData:  # fmt: skip
        arms = {"baseline": "defaults", "controls": ["control"]}
        effects = compare(trials_of(noise, **percent), **arms, answers=answers or {})
        page = page_data(study_of(name="mine"), as_data(effects), None, None, name="mine")
        return page.model_copy(update=about or {})

    return make


@pytest.fixture
def notebook_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a notebook of these cells into a project of its own, in which the test then is."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)

    def make(*sources: str, name: str = "template", parameters: str = PARAMETERS) -> Path:
        cells = [
            v4.new_markdown_cell("# Template\n\nProse of the notebook.", id="title"),
            v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}, id="parameters"),
        ]
        cells += [v4.new_code_cell(source, id=f"c{number}") for number, source in enumerate(sources)]
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        nbformat.write(v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), path)
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
