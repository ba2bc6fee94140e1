"""A notebook as the suite leaves it: figures, tables, streams, things that must not be shown."""

import json
from collections.abc import Callable
from pathlib import Path

import nbformat.v4 as v4
import numpy as np
import pandas as pd
import pytest
from benchlib.report.figures.changes import forest
from benchlib.report.figures.over_time import drift
from benchlib.report.figures.tables import verdict_table
from benchlib.report.view import View
from fakes import FakeBench, seal

import benchlib
from benchlib.report.page import Page
from benchlib.study.experiment import shown as shown_study
from benchlib.study.loop import run_study
from benchlib.study.store import StudyFolder


@pytest.fixture(scope="session")
def trials():
    random = np.random.default_rng(3)
    rows = [
        (
            block,
            level,
            1400 * (1 + change / 100) * np.exp(random.normal(0, 0.02)),
            19.0 * (4 * block + number),
        )
        for block in range(1, 6)
        for number, (level, change) in enumerate({"defaults": 0, "control": 0, "tuned": 118}.items())
    ]
    return pd.DataFrame(rows, columns=["block", "level", "tps", "started_s"])


@pytest.fixture(scope="session")
def analysis(trials):
    return benchlib.analyze(trials, baseline="defaults", controls=("control",))


def shown(*things, tags=()):
    data = [{"text/html": thing._repr_html_(), "text/plain": "PLAIN TWIN"} for thing in things]
    outputs = [v4.new_output("display_data", data=part) for part in data]
    return v4.new_code_cell("secret = 'source code'", outputs=outputs, metadata={"tags": list(tags)})


def printed(name, text):
    return v4.new_code_cell("print()", outputs=[v4.new_output("stream", name=name, text=text)])


@pytest.fixture(scope="session")
def notebook(analysis, trials):
    text = v4.new_markdown_cell
    return v4.new_notebook(
        cells=[
            text("# Configuration\n\nDoes tuning help? See [the manual](https://www.postgresql.org/docs/)."),
            text("## Levels\n\n| setting | tuned |\n|---|---|\n| shared_buffers | 6GB |\n\n```sh\nmake\n```"),
            printed("stdout", "preflight \x1b[32mfine\x1b[0m & well\n"),
            printed("stderr", "a warning for the log"),
            text("hidden words", metadata={"tags": ["hide"]}),
            text("## The effect\n\n#### Too deep\n\n## The effect"),
            shown(forest(analysis), verdict_table(analysis, durability={"tuned": "the last commits"})),
            shown(drift(trials.assign(error=None), "tps")),
            shown(trials.head(2)),
            text("![far away](https://example.org/a.png) <b>text</b>; it cost $5 and $6."),
        ]
    )


@pytest.fixture(scope="session")
def page():
    return Page(
        title="Configuration: do the tuned settings help?",
        headline="“tuned” is faster than “defaults” & sure.",
        question="Defaults against a tuned set.",
        verdicts=["faster", "equivalent"],
        facts={"Study": "tuned-set", "Measured": "2026-10-21"},
        limits="5 blocks of 30 s · no checkpoint within a trial",
        card="configuration.png",
        downloads={"configuration.ipynb": "Notebook with code", "trials.csv": "trials.csv"},
    )


@pytest.fixture
def view_of(folder_of: Callable[..., StudyFolder], tmp_path: Path) -> Callable[..., View]:
    """The view of a study that ran on a fake bench at these speeds.

    ``leaving`` gives the files that a trial leaves besides, as JSON by their names; ``about`` are further fields of the study.
    """

    def make(tps=None, *, blocks=3, leaving=None, about=None, failing=None, instruments=False, **study):
        folder = folder_of(blocks, **study)
        folder.write(folder.read().model_copy(update=about or {}))
        bench = FakeBench(folder.read().plan, tmp_path, tps, failing=failing, instruments=instruments)
        run_study(folder, bench.open)
        for trial_id, measurement in folder.kept().items() if leaving else ():
            for name, content in leaving(measurement.trial).items():
                (folder.path / "trials" / trial_id / name).write_text(json.dumps(content))
        seal(folder)
        return View(shown_study(folder))

    return make


@pytest.fixture
def keep(view_of: Callable[..., View]) -> Callable[..., StudyFolder]:
    """Keeps a study of three blocks that ran on a fake bench."""

    def make(name: str, notebook: str | None = "configuration", **changes: object) -> StudyFolder:
        parameters = {"profile": "quick", "profiles": {}, "factor": "configuration", "clients": 8, "question": "?",
                      "workload": "/home/me/mine.toml", "levels": {"tuned": {"storage": {"data": "/mnt/fast"}}}}  # fmt: skip
        about = {"notebook": notebook, "title": "Configuration", "parameters": parameters}
        random = np.random.default_rng(1)
        speed = {"tuned": 2000.0}
        view = view_of(
            lambda trial: speed.get(trial.level, 1000.0) * float(np.exp(random.normal(0, 0.01))),
            name=name,
            about=about,
            **changes,
        )
        return view.experiment.folder

    return make
