"""Real calibration: work that makes a known effect, and sessions that go on where they stopped."""

import json
from contextlib import contextmanager
from functools import partial
from random import Random

import pandas as pd
import pytest
from click.testing import CliRunner
from fakes import FakeBench

from benchlib.cli import cli, main
from benchlib.errors import Interrupted, StudyError
from benchlib.report import calibrate
from benchlib.report.calibrate import Options, calibrate_here, fit_work
from benchlib.stats.simulation import Situation
from benchlib.study import runs


def timed(fixed_us, step_us, steps=(5_000, 10_000, 20_000, 40_000)):
    rows = [(n, 1e6 / ((fixed_us + step_us * n) * slow)) for n in steps for slow in (1.0, 1.3, 2.0)]
    return pd.DataFrame([*rows, (5_000, None)], columns=["steps", "tps"])


@pytest.mark.parametrize("effect", [0.01, 0.5])
@pytest.mark.parametrize(("fixed_us", "step_us"), [(50, 0.04), (200, 0.01), (5, 0.3)])
def test_the_work_makes_the_effect_whatever_else_slows_some_trials(effect, fixed_us, step_us):
    work = fit_work(timed(fixed_us, step_us), effect)
    assert (work.fixed_us, work.step_us) == (pytest.approx(fixed_us), pytest.approx(step_us))
    before, after = (fixed_us + step_us * n for n in (work.baseline, work.injected))
    assert before == pytest.approx(1000, rel=1e-3)
    assert before / after == pytest.approx(1 + effect, abs=5e-4)


@pytest.mark.parametrize(
    "trials",
    [timed(50, -0.001), timed(2000, 0.01), timed(50, 0.04, steps=(5_000,)), timed(50, 0.04).assign(tps=None)],
    ids=["faster with more work", "never short enough", "one point", "all failed"],
)
def test_times_that_are_no_rising_line_are_refused(trials):
    with pytest.raises(StudyError, match="another --seed"):
        fit_work(trials, 0.05)


@pytest.fixture
def benches(data_root, tmp_path, monkeypatch):
    """Servers that answer as pgbench would have measured 50 µs and 0.04 µs a step, give or take 1 %."""
    opened: list[str] = []
    raising: dict[str, dict[int, BaseException]] = {}

    def tps(plan, trial):
        steps = plan.level_load(trial.level).variables["scale"]
        return 1e6 / (50 + 0.04 * steps) * Random(trial.seed).gauss(1, 0.01)

    @contextmanager
    def open_bench(plan, name, **_):
        bench = FakeBench(plan, tmp_path, partial(tps, plan), raising=raising.get(name))
        opened.append(name)
        yield bench

    monkeypatch.setattr(runs, "open_bench", open_bench)
    return opened, raising


def test_sessions_go_on_where_they_stopped(benches, data_root):
    opened, raising = benches
    raising["session-002"] = {7: KeyboardInterrupt()}
    with pytest.raises(Interrupted, match="6 of 20 trials are kept"):
        calibrate_here(Options(sessions=3), lambda line: None)
    assert opened == ["work", "session-001", "session-002"]
    raising.clear()
    kept = calibrate_here(Options(sessions=3), lambda line: None)
    assert opened[3:] == ["session-002", "session-003"]
    verdicts = pd.DataFrame(kept["verdicts"])
    assert verdicts.groupby("session")["level"].apply(set).tolist() == [{"control", "same", "+5 %"}] * 3
    assert verdicts.loc[verdicts["level"] == "+5 %", "percent_change"].mean() == pytest.approx(5, abs=1)
    assert kept == json.loads((data_root / "calibration" / "summary.json").read_text())
    trials = pd.read_csv(data_root / "calibration" / "trials.csv")
    assert trials.groupby(["session", "level"]).size().tolist() == [5] * 12
    assert trials["seed"].is_unique


@pytest.mark.parametrize(
    "words",
    [["--sessions", "0"], ["--effect", "5"], ["--simulate", "--blocks", "3"], ["--simulate", "--sessions", "9"]],
)  # fmt: skip
def test_the_command_refuses_in_one_line(words, capsys, data_root):
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_simulates_and_shows_the_page(data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    some = [Situation(), Situation(contamination=0.1), Situation(drift=0.02)]
    monkeypatch.setattr(calibrate, "situations", lambda: some)
    ended = CliRunner().invoke(cli, ["calibrate", "--simulate", "--sessions", "1000"], catch_exceptions=False)
    assert "page: " in ended.output
    assert "promises kept" in (tmp_path / "reports" / "calibration.html").read_text()
