"""Real calibration: work that makes a known effect, and sessions that go on where they stopped."""

import json
from contextlib import contextmanager
from functools import partial
from random import Random

import calibrate
import pandas as pd
import pytest
from calibrate import Options, calibrate_here
from click.testing import CliRunner
from fakes import FakeBench
from simulation import Situation

from benchlib.errors import Interrupted
from benchlib.study import runs


@pytest.fixture
def benches(data_root, tmp_path, monkeypatch):
    """Servers whose transaction takes as long as it has steps, give or take 1 %."""
    opened: list[str] = []
    raising: dict[str, dict[int, BaseException]] = {}

    def tps(plan, trial):
        steps = plan.level_load(trial.level).variables["scale"]
        return 1e8 / steps * Random(trial.seed).gauss(1, 0.01)

    @contextmanager
    def open_bench(study, _):
        opened.append(study.name)
        yield FakeBench(study.plan, tmp_path, partial(tps, study.plan), raising=raising.get(study.name))

    monkeypatch.setattr(runs, "open_bench", open_bench)
    return opened, raising


@pytest.mark.long
def test_sessions_go_on_where_they_stopped(benches, data_root):
    opened, raising = benches
    raising["disk-001"] = {7: KeyboardInterrupt()}
    with pytest.raises(Interrupted, match="6 of 20 trials are saved"):
        calibrate_here(Options(sessions=2), lambda line: None)
    assert opened == ["processor-001", "disk-001"]
    raising.clear()
    kept = calibrate_here(Options(sessions=2), lambda line: None)
    assert opened[2:] == ["disk-001", "processor-002", "disk-002"]
    verdicts = pd.DataFrame(kept["verdicts"])
    assert len(verdicts) == 2 * 2 * 3
    changes = verdicts[verdicts["level"] == "injected"].groupby("load")["percent_change"].mean()
    assert changes.to_dict() == {"processor": pytest.approx(5, abs=2), "disk": pytest.approx(25, abs=2)}
    assert kept == json.loads((data_root / "calibration" / "summary.json").read_text())
    trials = pd.read_csv(data_root / "calibration" / "trials.csv")
    assert trials.groupby(["load", "session", "level"]).size().tolist() == [5] * 16
    assert trials["seed"].is_unique


@pytest.mark.parametrize(
    "words", ["--sessions 0", "--effect 5", "--simulate --blocks 3", "--simulate --sessions 9"]
)
def test_it_refuses_what_it_cannot_do(words, data_root):
    ended = CliRunner().invoke(calibrate.main, words.split())
    assert ended.exit_code in (1, 2)
    assert ended.output.splitlines()[-1].startswith("Error: ")


@pytest.mark.statistics
def test_it_simulates_and_shows_the_page(data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    some = [Situation(), Situation(contamination=0.1), Situation(drift=0.02)]
    monkeypatch.setattr(calibrate, "situations", lambda: some)
    ended = CliRunner().invoke(calibrate.main, ["--simulate", "--sessions", "1000"], catch_exceptions=False)
    assert "page: " in ended.output
    assert "promises kept" in (tmp_path / "reports" / "calibration.html").read_text()
