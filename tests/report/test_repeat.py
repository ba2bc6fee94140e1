"""The command that a page names gives the page's answers again from the trials beside it, to the last digit that counts."""

import shlex
from pathlib import Path

import pandas as pd
import pytest

from benchlib.plan.level import Level
from benchlib.report.model import repeat_command
from benchlib.report.runs import write_downloads
from benchlib.stats import effects as effects_module
from benchlib.stats.effects import compare, effects_of
from benchlib.study.experiment import shown
from benchlib.study.frames import OpenStudy, guarded

DATA = Path(__file__).parents[2] / "data"
ALWAYS = "memory-areas-recorded"
STUDIES = sorted(path.parent.name for path in DATA.glob("*-recorded/study.json"))
SAME = ["level", "against", "n", "base", "mean", "percent_change", "ci_low", "ci_high", "equal_low", "equal_high", "p_value", "p_adjusted", "verdict"]  # fmt: skip


@pytest.fixture
def again(command_line, tmp_path, monkeypatch):
    """Runs the command that the page of a study names, beside its downloads; the effects that it finds."""

    def run(study):
        write_downloads(tmp_path, study, {"cells": [], "metadata": {}}, {})
        found = []
        judge = effects_module.judge
        monkeypatch.setattr(effects_module, "judge", lambda *args, **how: found.append(judge(*args, **how)) or found[-1])  # fmt: skip
        monkeypatch.chdir(tmp_path)
        program, *words = shlex.split(repeat_command(study.name, study.comparison))
        outcome = command_line(*words)
        assert (program, outcome.status) == ("benchlib", 0), outcome.err
        assert all(guarded(level) in outcome.out for level in study.answers)
        return effects_of(found[0], {guarded(level): words for level, words in study.answers.items()})

    return run


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.long] * (each != ALWAYS)) for each in STUDIES])  # fmt: skip
def test_the_command_of_a_page_gives_its_answers(name, recorded, again):
    study = OpenStudy(recorded(name))
    wanted = compare(study.trials, **study.comparison)
    found = again(study)
    pd.testing.assert_frame_equal(found[SAME], wanted[SAME], rtol=1e-9, atol=1e-9, check_dtype=False)


def test_levels_may_be_called_what_a_spreadsheet_would_compute_and_a_shell_would_split(kept, plan_of, again):
    names = ("=1+1", "a=b", "it's $HOME, or not")
    levels = {name: Level(settings={"work_mem": f"{n}MB"}) for n, name in enumerate(names, 2)}
    factor = plan_of(levels=levels).factor.model_copy(update={"against": {"a=b": "=1+1"}})
    study = OpenStudy(shown(kept(factor=factor)))
    wanted = compare(study.trials, **study.comparison)
    numbers = SAME[2:]
    pd.testing.assert_frame_equal(again(study)[numbers], wanted[numbers], rtol=1e-9, check_dtype=False)
