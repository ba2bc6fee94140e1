"""What runs beside the load on real servers: it does not count, it is in order or the trial fails, and nothing of it stays."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from clusters import Trials, bench_plan, eventually

from benchlib.plan.model import Plan, Study
from benchlib.plan.workload import Beside
from benchlib.server.statistics import BESIDE
from benchlib.study.bench import Bench, open_bench
from benchlib.study.experiment import shown
from benchlib.study.loop import keep_study, run_study
from benchlib.study.records import Samples
from benchlib.study.stand import Stand
from benchlib.study.store import StudyFolder

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded")]

SESSIONS = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{BESIDE}'"
BUSY = Beside(sql="SELECT count(*) FROM generate_series(1, 100 * :rows);\n", clients=2)
STUCK = Beside(sql="SELECT pg_sleep(600);\n")


def plan_beside(*beside: Beside) -> Plan:
    """A plan with a level that has these beside its load, and one that has nothing."""
    more = bench_plan({"a": {}, "b": {}}).workload.model_copy(update={"name": "more", "beside": beside})
    return bench_plan(
        {"alone": {}, "beside": {"workload": "more"}},
        load={"variables": {"rows": 10}},
        workloads={"more": more},
        arrangement="fresh",
    )


def test_what_runs_beside_counts_for_nothing_and_leaves_nothing(scratch: Path) -> None:
    plan = plan_beside(BUSY, STUCK)
    folder = StudyFolder("beside")
    keep_study(folder, Study(name="beside", title="Beside", plan=plan, trials=plan.design(1)))
    run_study(folder, lambda tell: open_bench(plan, "beside", tell=tell))
    experiment = shown(folder)
    by_level = experiment.trials.set_index("level")
    assert by_level["error"].isna().all(), "each row that the load inserted is there, and none besides"
    assert by_level["wal_bytes_per_transaction"].isna().to_dict() == {"alone": False, "beside": True}
    by_level = experiment.costs.set_index("level")
    assert by_level["server_cpu_ms_per_transaction"].isna().to_dict() == {"alone": False, "beside": True}
    assert by_level["tool_cpu_ms_per_transaction"].notna().all()
    (trial,) = [t.id for t in folder.read().trials if t.level == "beside"]
    samples = Samples.read(folder, trial)
    assert samples is not None
    assert b"progress: " in (folder.raw(trial, "beside") or b""), "it ran"
    sessions = [sum(n for *_, n in sample["sessions"]) for sample in samples.waits or []]
    assert max(sessions) in (1, 2), "of the load's two clients, and none of the three"


@pytest.fixture
def bench(trials: Trials, request: pytest.FixtureRequest) -> Bench:
    return trials.bench(plan_beside(request.param))


@pytest.mark.parametrize("bench", [Beside(sql="SELECT 1 / 0;\n")], indirect=True)
def test_one_that_fails_is_the_trials_error_in_its_own_words(bench: Bench, trials: Trials) -> None:
    measurement, folder = trials.run(bench, "beside")
    assert measurement.error_kind == "LoadError"
    assert re.match(
        r"pgbench beside the load ended with status 2: .*division by zero", measurement.error or ""
    )
    assert "division by zero" in (folder / "beside").read_text()


@pytest.mark.parametrize("bench", [STUCK], indirect=True)
def test_one_that_is_killed_costs_its_trial_only(
    bench: Bench, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = Bench._drive
    servers = []

    def meddled(
        self: Bench, stand: Any, load: Any, seed: Any, folder: Any, notes: Any, watch: Any, during: Any
    ) -> Any:
        def kill() -> None:
            if not servers and eventually(lambda: stand.server.value(SESSIONS) > 0):
                servers.append(stand.server)
                ours = (p for p in Path("/proc").glob("[0-9]*") if b"beside-1" in _words(p / "cmdline"))
                for process in ours:
                    os.kill(int(process.name), signal.SIGKILL)
            watch()

        return drive(self, stand, load, seed, folder, notes, kill, during)

    monkeypatch.setattr(Bench, "_drive", meddled)
    error = trials.run(bench, "beside")[0].error or ""
    assert error.startswith("pgbench beside the load was ended by signal 9")
    assert trials.run(bench, "beside")[0].error is None


def _words(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("bench", [STUCK], indirect=True)
def test_an_interruption_ends_it_with_its_sessions(
    bench: Bench, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, close = [], Stand.close

    def interrupted(self: Bench, stand: Stand, *_: Any) -> Any:
        assert eventually(lambda: stand.server.value(SESSIONS) == 1)
        raise KeyboardInterrupt

    def counted(self: Stand) -> None:
        sessions.append(self.server.value(SESSIONS))
        close(self)

    monkeypatch.setattr(Bench, "_drive", interrupted)
    monkeypatch.setattr(Stand, "close", counted)
    with pytest.raises(KeyboardInterrupt):
        trials.run(bench, "beside")
    assert sessions == [0], "before its server goes"
