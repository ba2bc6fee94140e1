"""Ladders and factorials of a study that ran, on a fake bench with known effects."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.tables import Table
from benchlib.report.sections.combined_changes import gains, half_normal, waterfall
from benchlib.report.view import View
from page_parts import named

from benchlib.plan.design import Trial, screening
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Plan
from benchlib.stats import Concern
from benchlib.study.experiment import shown
from benchlib.study.store import StudyFolder

GRID = {"settings": ("defaults", "tuned"), "disk": ("slow", "fast")}
LEVELS = ["defaults, slow", "defaults, fast", "tuned, slow", "tuned, fast"]
TPS = {"defaults, slow": 1000.0, "control": 1003.0, "defaults, fast": 2000.0, "tuned, slow": 1500.0, "tuned, fast": 2100.0}  # fmt: skip


@pytest.fixture
def crossing(view_of: Callable[..., View], plan_of: Callable[..., Plan]) -> Callable[..., View]:
    def make(grid: dict[str, tuple[str, ...]], tps: dict[str, float], **parameters: Any) -> View:
        baseline, *others = tps
        factor = Factor(
            question="?",
            baseline=baseline,
            controls=("control",),
            levels=dict.fromkeys([baseline, *others], Level()),
            grid=grid,
        )
        plan = plan_of().model_copy(update={"factor": factor})

        # else the error were what arithmetic rounds, which is another on each processor
        def noisy(trial: Trial) -> float:
            return tps[trial.level] * float(np.exp(np.random.default_rng(trial.seed).normal(0, 0.005)))

        return view_of(noisy, blocks=4, plan=plan, about={"parameters": parameters})

    return make


@pytest.fixture
def crossed(crossing: Callable[..., View]) -> View:
    """A factorial of two changes that overlap: 2.0 and 1.5 times alone, 2.1 times together."""
    return crossing(GRID, TPS)


def test_gains_that_overlap_do_not_add_up(crossed: View) -> None:
    table = gains(crossed)
    assert {name: row["change"].partition(".")[0] for name, row in named(table).items()} == {
        "settings: tuned instead of defaults": "+50",
        "disk: fast instead of slow": "+99",
        "settings × disk": "−16",
        "all, if they multiplied": "+199",
        "all, as measured": "+109",
        "as measured, against that product": "−29",
    }


def test_a_dimension_of_which_one_value_was_run_is_no_change(crossing: Callable[..., View]) -> None:
    rest = {name if name == "control" else f"{name}, as it is": tps for name, tps in TPS.items()}
    view = crossing({**GRID, "kernel": ("as it is", "tuned")}, rest)
    table = gains(view)
    assert isinstance(table, Table)
    assert "kernel:" not in table.html
    assert "× kernel" not in table.html


def test_a_factorial_with_a_hole_is_none(crossing: Callable[..., View]) -> None:
    some = {name: tps for name, tps in TPS.items() if name != "tuned, fast"}
    view = crossing(GRID, some)
    assert "takes the levels with nothing, each change alone, and all of them" in str(gains(view))
    assert "some of its combinations are left out" in str(half_normal(view))


def test_each_change_alone_and_all_of_them_tell_whether_gains_add_up_but_nothing_of_pairs(
    crossing: Callable[..., View],
) -> None:
    grid = {**GRID, "kernel": ("as it is", "tuned")}
    tps = {
        "defaults, slow, as it is": 1000.0, "control": 1003.0, "defaults, slow, tuned": 1100.0,
        "defaults, fast, as it is": 2000.0, "tuned, slow, as it is": 1500.0, "tuned, fast, tuned": 2100.0,
    }  # fmt: skip
    table = gains(crossing(grid, tps))
    assert [*named(table)] == [
        "settings: tuned instead of defaults", "disk: fast instead of slow", "kernel: tuned instead of as it is",
        "all, if they multiplied", "all, as measured", "as measured, against that product",
    ]  # fmt: skip
    assert isinstance(table, Table)
    assert "×" not in table.html


def test_a_screening_tells_the_changes_that_matter_and_no_more(crossing: Callable[..., View]) -> None:
    grid = {f"change {number}": ("off", "on") for number in range(6)}
    runs = {", ".join(run): run for run in screening(grid)}
    first, *others = [
        (name, 1000.0 * 1.5 ** (run[2] == "on") * 0.7 ** (run[4] == "on")) for name, run in runs.items()
    ]
    tps = dict([first, ("control", first[1]), *others])
    screened = crossing(grid, tps, screen=True)
    figure = half_normal(screened)
    assert isinstance(figure, Figure)
    assert figure.title.startswith("2 of 6 effects stand out of the noise, most change 2: +")
    assert re.search(r" change 2: \+49\.6 %[^;]*faster; change 4: −\d+\.\d %[^;]*slower;", figure.alt)
    assert "×" not in figure.alt
    assert "run those that stood out once more" in str(gains(screened))
    assert "no whole factorial" in str(half_normal(crossing(grid, tps)))
    del tps[others[0][0]]
    assert "some of its combinations are left out" in str(half_normal(crossing(grid, tps, screen=True)))
    rest = {name: speed for name, speed in tps.items() if name == "control" or name.startswith("off")}
    assert "some of its combinations are left out" in str(half_normal(crossing(grid, rest, screen=True)))


def test_few_effects_do_not_tell_noise(crossed: View) -> None:
    assert "too few to tell noise" in str(half_normal(crossed))


def test_a_ladder_tells_each_step_and_the_way_so_far(crossed: View) -> None:
    figure = waterfall(crossed, ["defaults, slow", "tuned, slow", "tuned, fast"])
    assert isinstance(figure, Figure)
    assert figure.title.startswith("All 2 steps: +1")
    assert "tuned, slow so far +50.1 %: +50.1" in figure.alt  # of the mean of both arms of the start
    assert "tuned, fast so far +109.9 %: +39.8" in figure.alt


def test_what_was_not_measured_is_said(crossed: View, folder_of: Callable[..., StudyFolder]) -> None:
    assert "there is no good trial of 1 base" in str(waterfall(crossed, ["1 base", "tuned, fast"]))
    plain = folder_of(name="plain")
    for section in (gains, half_normal):
        assert "this study is no factorial" in str(section(View(shown(plain)))).lower()


def test_a_combination_without_a_verdict_spoils_what_is_made_of_it(
    crossed: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    grave = Concern("no_steady_state", "it drifts", grave=True, level="tuned, fast")
    analysis = replace(crossed.experiment.analysis, warnings=(grave,))
    table = analysis.table.assign(
        verdict=analysis.table["verdict"].mask(analysis.table["level"] == "tuned, fast", "invalid")
    )
    monkeypatch.setitem(vars(crossed.experiment), "analysis", replace(analysis, table=table))
    assert str(gains(crossed)) == "The study is invalid, and so is this: it drifts."
    steps = ["defaults, slow", "tuned, slow", "tuned, fast"]
    assert str(waterfall(crossed, steps)) == "The study is invalid, and so is this: it drifts."
    assert isinstance(waterfall(crossed, steps[:2]), Figure)
