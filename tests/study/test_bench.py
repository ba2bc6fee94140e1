"""The bench on real servers: trials of a second, whole studies of a few, and what may go wrong meanwhile."""

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import Trials, bench_plan, eventually

from benchlib.errors import PreflightError, StudyError
from benchlib.load.pgbench import Pgbench
from benchlib.plan.design import Trial, randomised_blocks
from benchlib.plan.model import Study
from benchlib.plan.workload import Invariant, Script, Workload
from benchlib.study.bench import Bench, open_bench
from benchlib.study.loop import keep_study, run_study
from benchlib.study.preflight import preflight
from benchlib.study.records import Counters
from benchlib.study.stand import Stand
from benchlib.study.store import StudyFolder

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded")]

TWO: dict[str, Any] = {"first": {}, "second": {"settings": {"work_mem": "8MB"}}}


def processes_under(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if str(folder) in " ".join(words_of(p))]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return [*process.cmdline(), process.cwd()]
    except (psutil.Error, OSError):
        return []


@pytest.mark.parametrize(("arrangement", "blocks"), [("standing", 2), ("fresh", 1)])
def test_a_study_keeps_each_trial_whole_and_leaves_nothing_else(
    arrangement: str, blocks: int, scratch: Path
) -> None:
    plan = bench_plan(TWO, arrangement=arrangement)
    folder = StudyFolder("whole")
    design = randomised_blocks(list(TWO), blocks, plan.seed)
    keep_study(folder, Study(name="whole", title="Whole", plan=plan, trials=design))
    run_study(folder, lambda tell: open_bench(plan, "whole", tell=tell))
    kept = folder.kept()
    assert len(kept) == 2 * blocks
    for trial_id, measurement in kept.items():
        assert measurement.error is None
        assert measurement.load_returncode == 0
        assert measurement.load_wall_s is not None
        assert measurement.load_cpu_s is not None  # how much depends on the machine
        assert measurement.settings == (
            {"work_mem": "8192 kB"} if measurement.trial.level == "second" else {}
        )
        assert b"tps =" in (folder.raw(trial_id, "stdout") or b"")
        assert b"random seed" in (folder.raw(trial_id, "stderr") or b"")
        assert b"checkpoint" in (folder.raw(trial_id, "server.log") or b"")
        counters = Counters.read(folder, trial_id)
        assert counters is not None
        before, after = dict(counters.before), dict(counters.after)
        for view in ("database", "bgwriter", "wal", "checkpointer"):
            assert before[view] is not None
            assert after[view] is not None
        assert after["database"]["xact_commit"] > before["database"]["xact_commit"]
    hosts = {next(w for w in m.load_argv if w.startswith("--host")) for m in kept.values()}
    assert len(hosts) == 2, "standing: the second block meets the clusters of the first"
    assert list(scratch.glob("run-*")) == []
    assert eventually(lambda: processes_under(scratch) == [])


def test_what_is_changed_behind_pgbenchs_back_is_caught_and_the_level_gets_a_new_cluster(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, drive = trials.bench(bench_plan(TWO)), Bench._drive
    some = "test_table WHERE ctid IN (SELECT ctid FROM test_table LIMIT 3)"
    changes = {
        f"DELETE FROM {some}": "pgbench acknowledged .* new rows",
        f"UPDATE {some}".replace("WHERE", "SET value = 2 WHERE"): "3 rows contradict",
    }
    for statement, message in changes.items():

        def meddle(self: Bench, stand: Stand, *rest: Any, statement: str = statement) -> Any:
            read_report = drive(self, stand, *rest)
            stand.server.execute(statement)
            return read_report

        monkeypatch.setattr(Bench, "_drive", meddle)
        measurement, folder = trials.run(bench, "first")
        assert measurement.error_kind == "InvariantError"
        assert re.search(message, measurement.error or "")
        assert "tps =" in (folder / "stdout").read_text(), "the evidence is kept"
        assert "first" not in bench._standing


def test_the_load_asks_for_other_rows_than_its_warm_up_did(trials: Trials) -> None:
    """Else the first seconds of a trial find in memory what the rest of it has to read."""
    drawn = Workload(
        name="drawn",
        title="Numbers that are drawn",
        pgbench_tables=False,
        load_sql="CREATE TABLE drawn (number bigint);",
        scripts=(Script(sql="\\set number random(1, 1 << 62)\nINSERT INTO drawn VALUES (:number);\n"),),
        invariant=Invariant(violations="SELECT count(*) - count(DISTINCT number) FROM drawn"),
    )
    plan = bench_plan(TWO, load={"warmup_s": 1}, arrangement="fresh").model_copy(update={"workload": drawn})
    measurement, _ = trials.run(trials.bench(plan), "first")
    assert measurement.error is None


def test_clusters_are_built_anew_after_so_many_blocks(trials: Trials) -> None:
    bench = trials.bench(bench_plan(TWO, rebuild_every=2))
    seen = []
    for block in (1, 2, 3):
        for position, name in enumerate(TWO, 1):
            with bench._stand_for(Trial(block, position, name, seed=1)):
                pass
        seen.append({name: stand.server.folder.name for name, stand in bench._standing.items()})
    assert seen[0] == seen[1], "not rebuilt before its time"
    assert not set(seen[1].values()) & set(seen[2].values()), "each time in new folders"
    assert {path.name for path in bench.workspace.glob("c*")} == set(seen[2].values()), "the former are gone"


def test_a_cluster_of_one_block_stands_for_its_trial_alone(trials: Trials) -> None:
    bench = trials.bench(bench_plan(TWO, rebuild_every=1))
    measurement, _ = trials.run(bench, "first")
    assert measurement.error is None
    assert list(bench.workspace.glob("c*")) == []


@pytest.mark.parametrize("arrangement", [pytest.param("standing", marks=pytest.mark.long), "fresh"])
def test_a_server_killed_in_a_trial_costs_that_trial_only(
    arrangement: str, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = trials.bench(bench_plan(TWO, arrangement=arrangement))
    drive = Bench._drive
    killed: list[int] = []

    def kill_under_load(server: Any) -> None:
        eventually(
            lambda: (
                server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'") > 0
            )
        )
        os.kill(killed[0], signal.SIGKILL)

    def kill_soon(self: Bench, stand: Any, *rest: Any) -> Any:
        if not killed:
            killed.append(stand.server.pid)
            threading.Thread(target=kill_under_load, args=(stand.server,)).start()
        return drive(self, stand, *rest)

    monkeypatch.setattr(Bench, "_drive", kill_soon)
    measurement, folder = trials.run(bench, "first")
    assert measurement.error_kind == "ServerError"
    assert "the server ended during the trial" in (measurement.error or "")
    assert "\n" not in (measurement.error or "")
    assert (folder / "server.log").is_file()
    again, _ = trials.run(bench, "first")
    assert again.error is None
    assert again.load_argv[1] != measurement.load_argv[1], "on a new cluster"


@pytest.mark.long
def test_a_load_that_hangs_ends_at_its_limit(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = trials.bench(bench_plan(TWO))
    with bench._stand_for(Trial(1, 1, "first", seed=1)):
        pass
    monkeypatch.setattr(Pgbench, "limit_s", lambda self, load: 3.0)

    def freeze_the_sessions() -> None:
        server = bench._standing["first"].server

        def sessions() -> list[psutil.Process]:
            return [
                p
                for p in processes_under(server.folder)
                if "postgres: postgres bench" in " ".join(words_of(p))
            ]

        assert eventually(lambda: len(sessions()) > 2)
        for process in sessions():
            process.suspend()  # the sampler's own too: nothing may wait for it either

    threading.Thread(target=freeze_the_sessions).start()
    assert "did not end within 3 s and was stopped" in (trials.run(bench, "first")[0].error or "")
    assert trials.run(bench, "first")[0].error is None


def test_a_level_that_initdb_refuses_ends_the_run_before_it_begins(scratch: Path) -> None:
    levels = {"first": {}, "second": {"initdb": ["--no-such-option"]}}
    refusal = "level “second”: initdb failed: "
    with pytest.raises(PreflightError, match=refusal), open_bench(bench_plan(levels), "test"):
        raise AssertionError("opened")
    assert list(scratch.glob("run-*")) == []


@pytest.mark.parametrize("arrangement", ["standing", "fresh"])
def test_a_server_that_cannot_start_ends_the_study_or_its_trials(arrangement: str, trials: Trials) -> None:
    levels = {"first": {"settings": {"shared_preload_libraries": "no_such_library"}}, "second": {}}
    bench = trials.bench(bench_plan(levels, arrangement=arrangement))
    if arrangement == "standing":
        with pytest.raises(StudyError, match=r"level “first” cannot be built.*no_such_library"):
            trials.run(bench, "first")
    else:
        measurement, _ = trials.run(bench, "first")
        assert measurement.error_kind == "ServerError"
        assert "no_such_library" in (measurement.error or "")
    assert list(bench.workspace.glob("c*")) == []


def test_a_level_may_name_another_version(trials: Trials) -> None:
    bench = trials.bench(bench_plan({"16": {"postgres": "16"}, "18": {}}, arrangement="fresh"))
    measurement, folder = trials.run(bench, "16")
    assert measurement.error is None
    assert (measurement.server_version or "").startswith("16")
    counters = json.loads((folder / "statistics.json").read_text())
    assert counters["after"]["wal"]["wal_bytes"] > counters["before"]["wal"]["wal_bytes"]
    assert counters["after"]["checkpointer"] is None, "16 has no such view: null, not zero"


def test_a_scale_that_the_disk_cannot_hold_is_refused_before_anything_is_made(scratch: Path) -> None:
    with pytest.raises(
        PreflightError, match=r"needs about [\d,]+ MiB under .*, [\d,]+ are free: a smaller scale"
    ):
        preflight(bench_plan(TWO, workload="tpcb-like", scale=1_000_000))
    assert list(scratch.iterdir()) == []


def test_the_preflight_says_what_there_is_without_making_anything(scratch: Path) -> None:
    rows = dict(preflight(bench_plan(TWO)))
    assert "PostgreSQL 18" in rows["servers"]
    assert "pgbench of PostgreSQL 18" in rows["load tool"]
    assert list(scratch.iterdir()) == []
