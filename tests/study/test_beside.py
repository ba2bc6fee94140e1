"""What runs beside the load on real servers: it does not count, it is in order or the trial fails, and nothing of it stays."""

from typing import Any

import pytest
from clusters import bench_plan, eventually
from hosts import meanwhile, run_for_real

from benchlib.host.shell import known
from benchlib.host.sweep import processes_of
from benchlib.plan.model import Plan
from benchlib.plan.workload import Beside
from benchlib.server.statistics import BESIDE
from benchlib.study.experiment import shown
from benchlib.study.records import Samples
from benchlib.study.stand import Stand

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded")]

SESSIONS = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{BESIDE}'"
BUSY = Beside(sql="SELECT count(*) FROM generate_series(1, 100 * :rows);\n", clients=2)
STUCK = Beside(sql="SELECT pg_sleep(600);\n")


def plan_beside(*beside: Beside) -> Plan:
    """A plan with a level that has these beside its load, and one that has nothing."""
    more = bench_plan({"a": {}, "b": {}}).workload.model_copy(update={"name": "more", "beside": beside})
    levels = {"alone": {}, "beside": {"workload": "more"}}
    load = {"variables": {"rows": 10}}
    return bench_plan(levels, load=load, workloads={"more": more}, arrangement="fresh")


def test_what_runs_beside_counts_for_nothing_and_leaves_nothing(scratch):
    folder = run_for_real("beside", plan_beside(BUSY, STUCK), 1)
    experiment = shown(folder)
    assert experiment.trials["error"].isna().all(), (
        "each row that the load inserted is there, and none besides"
    )
    by_level = experiment.costs.set_index("level")
    for figure in ("wal_bytes_per_transaction", "server_cpu_ms_per_transaction"):
        assert by_level[figure].isna().to_dict() == {"alone": False, "beside": True}
    assert by_level["tool_cpu_ms_per_transaction"].notna().all()
    (trial,) = [t.id for t in folder.read().trials if t.level == "beside"]
    assert b"progress: " in (folder.raw(trial, "beside") or b""), "it ran"
    samples = Samples.read(folder, trial)
    assert samples is not None
    sessions = [sum(n for *_, n in sample["sessions"]) for sample in samples.waits or []]
    assert max(sessions) in (1, 2), "of the load's two clients, and none of the three"


def test_one_that_fails_is_the_trials_error_in_its_own_words(trials):
    measurement, folder = trials.run(trials.bench(plan_beside(Beside(sql="SELECT 1 / 0;\n"))), "beside")
    assert measurement.error_kind == "LoadError"
    for words in ("pgbench beside the load ended with status 2: ", "division by zero"):
        assert words in (measurement.error or "")
    assert "division by zero" in (folder / "beside").read_text()


def test_one_that_is_killed_costs_its_trial_only(trials, monkeypatch):
    def kill(stand):
        assert eventually(lambda: stand.server.value(SESSIONS) > 0)
        (process,) = [
            p for p in processes_of(stand.run.folder) if "beside-1" in " ".join(known(p.cmdline) or [])
        ]
        process.kill()

    bench = trials.bench(plan_beside(STUCK))
    meanwhile(monkeypatch, kill)
    error = trials.run(bench, "beside")[0].error or ""
    assert error.startswith("pgbench beside the load was ended by signal 9")
    assert trials.run(bench, "beside")[0].error is None


def test_an_interruption_ends_it_with_its_sessions(trials, monkeypatch):
    sessions, close = list[Any](), Stand.close

    def interrupt(stand):
        assert eventually(lambda: stand.server.value(SESSIONS) == 1)
        raise KeyboardInterrupt

    def counted(stand):
        sessions.append(stand.server.value(SESSIONS))
        close(stand)

    meanwhile(monkeypatch, interrupt)
    monkeypatch.setattr(Stand, "close", counted)
    bench = trials.bench(plan_beside(STUCK))
    with pytest.raises(KeyboardInterrupt):
        trials.run(bench, "beside")
    assert sessions == [0], "before its server goes"
