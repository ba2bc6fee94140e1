"""The suite on trial: work that makes a known effect, counts and intervals, and sessions that go on where they stopped."""

import json
import shutil
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pandas as pd
import pytest
from click.testing import CliRunner
from fakes import FakeBench

from benchlib.cli import cli, main
from benchlib.errors import InputError, Interrupted, StudyError
from benchlib.load.workloads import load_workload
from benchlib.report import calibrate
from benchlib.report.calibrate import Options, calibrate_here, exact_interval, fit_work, summarise
from benchlib.study import runs
from benchlib.study.experiment import Experiment
from benchlib.study.runs import Runner
from benchlib.study.store import StudyFolder


def timed(fixed_us, step_us, steps=(5_000, 10_000, 20_000, 40_000)):
    rows = [(n, 1e6 / ((fixed_us + step_us * n) * slow)) for n in steps for slow in (1.0, 1.3, 2.0)]
    return pd.DataFrame([*rows, (5_000, None)], columns=["steps", "tps"])


def verdicts(twins, words, percent=5.0):
    rows = [("control" if n % 2 else "same", 0.1, p, "equivalent") for n, p in enumerate(twins)]
    rows += [("+5 %", percent + n % 2, 0.001, word) for n, word in enumerate(words)]
    return pd.DataFrame(rows, columns=["level", "percent_change", "p_value", "verdict"]).assign(
        residual_sd=0.02
    )


@pytest.mark.parametrize("effect", [0.01, 0.05, 0.5])
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


def test_what_was_found_is_counted_with_its_uncertainty():
    found = summarise(verdicts([0.04, 0.2, 0.05, None, 0.01], ["faster"] * 3 + ["invalid", "inconclusive"]))
    assert (found["twins"], found["flagged"], found["injected"], found["found"]) == (4, 2, 5, 3)
    assert found["invalid"] == 1
    assert found["sigma_d"] == pytest.approx(0.02 * 2**0.5)
    value, low, high = found["changes"]["+5 %"]
    assert value == pytest.approx(5.4, abs=0.01)
    assert low < value < high
    assert summarise(verdicts([0.5], ["faster"]))["changes"]["+5 %"] == (pytest.approx(5.0), None, None)


def test_shares_have_exact_intervals():
    assert exact_interval(2, 40) == (pytest.approx(0.0061, abs=1e-4), pytest.approx(0.1692, abs=1e-4))
    assert exact_interval(20, 20)[1] == 1.0
    assert exact_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("wrong", [{"sessions": 0}, {"blocks": 2}, {"duration_s": 0}, {"effect": 5}, {"effect": float("nan")}, {"seed": -1}])  # fmt: skip
def test_options_that_make_no_calibration_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong)).removesuffix("_s")):
        Options(**wrong)


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


def test_sessions_go_on_where_they_stopped_and_find_what_is_there(benches, data_root):
    opened, raising = benches
    raising["session-002"] = {7: KeyboardInterrupt()}
    with pytest.raises(Interrupted, match="6 of 20 trials are kept"):
        calibrate_here(Options(sessions=3), lambda line: None)
    assert opened == ["work", "session-001", "session-002"]
    raising.clear()
    kept = calibrate_here(Options(sessions=3), lambda line: None)
    assert opened[3:] == ["session-002", "session-003"]
    assert (kept["twins"], kept["injected"], kept["found"]) == (6, 3, 3)
    assert kept["changes"]["+5 %"][0] == pytest.approx(5, abs=1)
    assert kept == json.loads((data_root / "calibration" / "summary.json").read_text(), object_hook=tupled)
    trials = pd.read_csv(data_root / "calibration" / "trials.csv")
    assert trials.groupby(["session", "level"]).size().tolist() == [5] * 12
    assert trials.groupby(["session", "block"])["position"].apply(sorted).tolist() == [[1, 2, 3, 4]] * 15
    assert trials["seed"].is_unique


def tupled(read):
    """JSON knows no tuples."""
    return {k: tuple(v) if isinstance(v, list) and not (v and isinstance(v[0], dict)) else v for k, v in read.items()}  # fmt: skip


def test_other_options_are_another_calibration():
    names = {Options(**o).name for o in ({}, {"blocks": 6}, {"duration_s": 3}, {"effect": 0.1}, {"seed": 2})}
    assert len(names) == 5
    assert Options(sessions=99).name == Options().name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sessions", "0"], "sessions: want 1 to 999, not 0"),
        (["--effect", "5"], "effect: want 0.005 to 1, not 5"),
        (["--simulate", "--blocks", "3"], "--blocks belongs to real studies"),
        (["--simulate", "--sessions", "9"], "want 1000 to 10000000 simulated sessions"),
    ],
)
def test_the_command_refuses_in_one_line(words, said, capsys, data_root):
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_command_simulates_and_shows_the_page(data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    cells = list(calibrate.protocol_cells())
    monkeypatch.setattr(calibrate, "protocol_cells", lambda: iter([*cells[:9], cells[9]]))
    monkeypatch.setattr(calibrate, "control_cells", lambda: iter(()))
    ended = CliRunner().invoke(cli, ["calibrate", "--simulate", "--sessions", "1000"], catch_exceptions=False)
    assert "page: " in ended.output
    assert "promises kept" in (tmp_path / "reports" / "calibration.html").read_text()


@pytest.fixture
def scratch():
    """A folder with a path short enough for sockets, which the servers' user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="bl", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.pg
@pytest.mark.slow
def test_real_servers_take_longer_for_more_work(data_root, scratch, monkeypatch):
    monkeypatch.setattr(calibrate, "_STEPS", (2_000, 60_000))
    monkeypatch.setattr(calibrate, "_FIT_BLOCKS", 1)
    study = calibrate._fit_study(Options(duration_s=1))
    measured = Experiment(StudyFolder("work"), study)
    Runner(measured, scratch=scratch).run(lambda progress: None)
    assert measured.trials["error"].isna().all()
    speed = measured.trials.set_index("level")["tps"]
    assert speed["2000 steps"] > 3 * speed["60000 steps"]


def test_the_workload_runs_without_being_told_how_much():
    # pgbench sets :scale itself; a name of our own would have to be defined by every user
    assert ":scale" in (load_workload("calibrated").scripts[0].sql or "")
