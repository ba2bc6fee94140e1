"""A notebook as the suite leaves it: figures, tables, streams, an error, things that must not be shown."""

from collections.abc import Callable
from pathlib import Path

import nbformat.v4 as v4
import numpy as np
import pandas as pd
import pytest
from fakes import FakeBench

import benchlib
from benchlib.plan.model import Study
from benchlib.report.figures import drift, forest
from benchlib.report.figures.tables import verdict_table
from benchlib.report.page import Link, Page
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


def printed(name, text, tags=()):
    outputs = [v4.new_output("stream", name=name, text=text)]
    return v4.new_code_cell("print()", outputs=outputs, metadata={"tags": list(tags)})


def raised():
    error = v4.new_output(
        "error",
        ename="LoadError",
        evalue="3 <clients> aborted",
        traceback=["\x1b[31mLoadError\x1b[0m", "line 7"],
    )
    return v4.new_code_cell("1 / 0", outputs=[error])


@pytest.fixture(scope="session")
def notebook(analysis, trials):
    text = v4.new_markdown_cell
    hostile = "<img src='https://example.org/a.png' alt='far away'><script src='//example.org/x.js'></script>"
    hostile += "<div style='background:url(https://example.org/b.png)'>kept</div>"
    hostile += (
        "<style>@import 'https://example.org/c.css';</style><iframe src='https://example.org'></iframe>"
    )
    return v4.new_notebook(
        cells=[
            text("# Configuration\n\nDoes tuning help? See [the manual](https://www.postgresql.org/docs/)."),
            text("## Levels\n\n| setting | tuned |\n|---|---|\n| shared_buffers | 6GB |\n\n```sh\nmake\n```"),
            printed("stdout", "preflight \x1b[32mfine\x1b[0m & well\n"),
            printed("stderr", "a warning for the log"),
            printed("stdout", "trial 3 of 20", tags=["progress"]),
            printed("stdout", "not for readers", tags=["remove-output"]),
            text("hidden words", metadata={"tags": ["hide"]}),
            text("## The effect\n\n#### Too deep\n\n## The effect"),
            shown(forest(analysis), verdict_table(analysis, durability={"tuned": "the last commits"})),
            shown(forest(analysis), drift(trials, "tps", [*analysis.table["level"]])),
            shown(trials.head(2)),
            raised(),
            text(hostile),
            text("Mean <math><mi>d</mi></math> of the pairs; it cost $5 and $6."),
        ]
    )


@pytest.fixture(scope="session")
def page():
    return Page(
        title="Configuration: do the tuned settings help?",
        headline="“tuned” is faster than “defaults” & sure.",
        question="Defaults against a tuned set.",
        verdict="faster",
        facts=[("PostgreSQL", "18.4"), ("Blocks", "5")],
        durability=["tuned: the last commits"],
        downloads=[Link("Notebook with code", "configuration.ipynb"), Link("trials.csv", "trials.csv")],
    )


@pytest.fixture
def keep(data_root: Path, study_of: Callable[..., Study], tmp_path: Path) -> Callable[..., StudyFolder]:
    """Keeps a study of three blocks that ran on a fake bench."""

    def make(name: str, notebook: str | None = "configuration", **changes: object) -> StudyFolder:
        study = study_of(3, name=name, **changes)
        parameters = {"profile": "quick", "profiles": {}, "factor": "configuration", "clients": 8, "question": "?",
                      "workload": "/home/me/mine.toml", "levels": {"tuned": {"storage": {"data": "/mnt/fast"}}}}  # fmt: skip
        study = study.model_copy(
            update={"notebook": notebook, "title": "Configuration", "parameters": parameters}
        )
        folder = StudyFolder(name)
        folder.write(study)
        random = np.random.default_rng(1)
        speed = dict.fromkeys(study.plan.factor.levels, 1000.0) | {"tuned": 2000.0}
        bench = FakeBench(
            study.plan, tmp_path, lambda t: speed[t.level] * float(np.exp(random.normal(0, 0.01)))
        )
        run_study(folder, bench.open)
        return folder

    return make
