"""A screening that ran on a fake bench with known effects: what it answers, and the grid that confirms it."""

import math
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchlib.report.entries import entry_of
from benchlib.report.sections.combined_changes import confirm, half_normal
from benchlib.report.view import View
from bs4 import BeautifulSoup
from fakes import Outcome
from page_parts import named

from benchlib.errors import InputError
from benchlib.levers import BY_KEY
from benchlib.load.workloads import load_workload
from benchlib.plan.design import Trial
from benchlib.plan.model import Study
from benchlib.plan.parameters import checked
from benchlib.plan.planning import make_study
from benchlib.report import screening
from benchlib.report.execute import notebook_parameters
from benchlib.report.runs import confirmed
from benchlib.study.experiment import shown
from benchlib.study.store import StudyFolder

PARAMETERS = notebook_parameters(Path(__file__).parents[3] / "notebooks" / "template.ipynb")
SETTINGS = {"jit": "off", "fsync": "off", "work_mem": "8MB", "wal_compression": "on", "max_wal_size": "4GB", "temp_buffers": "9MB"}  # fmt: skip
SIZES = {"clients": 4, "threads": 2, "duration_s": 3, "warmup_s": 0, "blocks": 3, "scale": 1}
VALUES = checked(
    PARAMETERS,
    {
        "question": "Which of these matter?",
        "study": "many",
        "screen": True,
        "grid": {name: {"as it is": {}, "changed": {"settings": {name: value}}} for name, value in SETTINGS.items()},
        "profiles": {"quick": SIZES},
        "workload": "tpcb-like",
    },
)  # fmt: skip
KNOWN = {"fsync": 0.4, "work_mem": -0.2}
"""What two of the changes do to the logarithm of the speed; the others do nothing."""


def study_of(values: dict[str, Any]) -> Study:
    return make_study(values, 4 << 30, load_workload, BY_KEY)


@pytest.fixture(scope="module")
def screenings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a screening is laid by when it has run: it has many trials."""
    return tmp_path_factory.mktemp("screenings")


@pytest.fixture
def screened(view_of: Callable[..., View], screenings: Path, data_root: Path) -> Callable[..., View]:
    """A screening that is kept as ``many``; ``known`` are its changes' effects."""

    def make(known: dict[str, float]) -> View:
        plan, laid_by = study_of(VALUES).plan, screenings / ("+".join(known) or "none")
        if laid_by.exists():
            shutil.copytree(laid_by, data_root / "many")
            return View(shown(StudyFolder("many")))

        def tps(trial: Trial) -> float:
            cell = plan.factor.cells.get(trial.level, {})  # at the control nothing is changed
            luck = np.random.default_rng(trial.seed).normal(0, 0.01)
            return 1000 * math.exp(luck + sum(known.get(name, 0) for name in cell if cell[name] == "changed"))

        about = {"parameters": VALUES, "notebook": "template"}
        view = view_of(tps, blocks=3, name="many", plan=plan, about=about)
        shutil.copytree(data_root / "many", laid_by)
        return view

    return make


def test_each_change_is_told_with_its_interval_and_what_stands_out_is_named(
    screened: Callable[..., View],
) -> None:
    view = screened(KNOWN)
    table = screening.main_effects(view.experiment)
    assert table["effect"].tolist()[:2] == ["fsync", "work_mem"]
    truth = [100 * math.expm1(KNOWN.get(name, 0)) for name in table["effect"]]
    assert table["percent"].to_numpy() == pytest.approx(truth, abs=1.5)
    assert (table["ci_low"] < table["percent"]).all()
    assert table["change"][0] == "fsync: changed instead of as it is"
    assert table["verdict"].tolist() == ["faster", "slower", *["inconclusive"] * 4]
    assert ["fsync = off" in cost for cost in table["gives_up"]] == [True, *[False] * 5]
    assert str(half_normal(view).title).startswith("2 of 6 effects stand out of the noise, most fsync: +49")
    assert "confirm these, in all 4 combinations" in str(confirm(view))
    assert str(confirm(view)).endswith("benchlib run template -p study many --confirm")
    levels = named(view.verdicts())
    assert "none" in levels
    assert any(name.startswith("all but ") for name in levels)


def test_index_and_headline_tell_the_changes_and_not_some_combinations(screened: Callable[..., View]) -> None:
    entry = entry_of(screened(KNOWN).experiment, "fingerprint")
    assert entry.headline.startswith(
        "2 of 6 changes stand out of the noise: fsync: changed instead of as it is, +49"
    )
    assert "faster, but a power cut can corrupt the whole cluster" in entry.headline
    assert [(answer.words.split(":")[0], answer.verdict) for answer in entry.answers] == [
        ("fsync", "faster"),
        ("work_mem", "slower"),
    ]
    assert "3 trials of 3 s a level" in entry.limits


def test_the_confirming_study_is_the_grid_of_what_stands_out(screened: Callable[..., View]) -> None:
    screened(KNOWN)
    given = confirmed(PARAMETERS, {"study": "many", "blocks": "5"})
    study = study_of(checked(PARAMETERS, given))
    assert (study.name, study.blocks) == ("many-confirmed", 5)
    both = ("as it is", "changed")
    ends = [f"fsync {one}, work_mem {other}" for one, other in product(both, both)]
    assert [name for name in study.plan.factor.levels if name != "control"] == ends
    assert [study.plan.level(name).settings for name in ends] == [
        {},
        {"work_mem": "8MB"},
        {"fsync": "off"},
        {"fsync": "off", "work_mem": "8MB"},
    ]


def test_without_anything_that_stands_out_there_is_nothing_to_confirm(
    screened: Callable[..., View], command_line: Callable[..., Outcome]
) -> None:
    view = screened({})
    assert view.headline().text.startswith("None of 6 changes stands out of the noise: ")
    assert "nothing to confirm" in str(confirm(view))
    outcome = command_line("run", "template", "-p", "study", "many", "--confirm")
    assert outcome.status == 2
    assert "nothing stands out of the noise in 'many'" in outcome.line


def test_what_is_no_whole_screening_is_not_confirmed(screened: Callable[..., View]) -> None:
    def refusal(name: str = "many") -> str:
        with pytest.raises(InputError) as caught:
            confirmed(PARAMETERS, {"study": name})
        assert "\n" not in str(caught.value)
        return str(caught.value)

    view = screened(KNOWN)
    folder = view.experiment.folder
    folder.write(folder.read().model_copy(update={"trials": view.experiment.plan.design(4)}))
    assert "'many' is not complete: 25 of its trials are missing" in refusal()
    whole = {"trials": view.experiment.plan.design(3), "parameters": {**VALUES, "screen": False}}
    folder.write(folder.read().model_copy(update=whole))
    assert "no screening" in refusal()
    assert "never" in refusal("never")


def test_a_page_of_a_screening(
    screened: Callable[..., View], command_line: Callable[..., Outcome], tmp_path: Path
) -> None:
    screened(KNOWN)
    assert command_line("report", "many").status == 0
    page = BeautifulSoup((tmp_path / "reports" / "many.html").read_text(), "html.parser")
    text = " ".join(page.get_text().split())
    for part in (
        "2 of 6 changes stand out of the noise",
        "What each change brings",
        "2 of 6 effects stand out of the noise",
        "--confirm",
    ):
        assert part in text
    assert "no factorial" not in text
