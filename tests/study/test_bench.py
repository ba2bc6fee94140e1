"""The bench on real servers: trials of a second, whole studies of four, and what may go wrong meanwhile."""

import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchlib.errors import PreflightError, StudyError
from benchlib.load.workloads import load_workload
from benchlib.plan.design import Trial, randomised_blocks
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Measurement, Plan, Study
from benchlib.study import bench as bench_module
from benchlib.study.bench import Bench, open_bench
from benchlib.study.loop import keep_study, run_study
from benchlib.study.preflight import preflight
from benchlib.study.records import Counters
from benchlib.study.stand import Stand
from benchlib.study.store import StudyFolder

pytestmark = pytest.mark.pg

TWO = {"first": {}, "second": {"settings": {"work_mem": "8MB"}}}

WORKLOADS = ("insert", "select-only", "simple-update", "tpcb-like")

WRONG_COUNT = """
name = "wrong-count"
title = "Writes one row, claims two"
pgbench_tables = false
load_sql = "CREATE TABLE t (n integer)"
scripts = [{sql = "INSERT INTO t VALUES (1);"}]
truncate = ["t"]
[invariant]
count = "SELECT count(*) FROM t"
per_transaction = 2
"""


def plan(
    levels: dict[str, Any] | None = None,
    workload: str = "insert",
    load: dict[str, Any] | None = None,
    **more: Any,
) -> Plan:
    levels = levels or TWO
    return Plan(
        factor=Factor(
            question="?", baseline=next(iter(levels)), levels={k: Level.model_validate(v) for k, v in levels.items()}
        ),
        workload=load_workload(workload),
        load=Load.model_validate({"clients": 2, "threads": 1, "duration_s": 1, "warmup_s": 0, **(load or {})}),
        scale=more.pop("scale", 1),
        seed=7,
        **more,
    )  # fmt: skip


class Trials:
    """Opens benches and runs single trials on them."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack, self.folder = stack, folder

    def bench(self, its_plan: Plan) -> Bench:
        return self.stack.enter_context(open_bench(its_plan, "test"))

    def run(self, bench: Bench, level: str, block: int = 1, position: int = 1) -> tuple[Measurement, Path]:
        folder = self.folder / f"raw-{block}-{position}-{level}"
        folder.mkdir()
        bench.prepare(block)
        return bench.measure(Trial(block, position, level, 7 + position), folder), folder


@pytest.fixture(scope="module")
def fresh_bench() -> Iterator[Bench]:
    """One bench for the tests that need nothing special: a new cluster for each trial."""
    levels = {"two": {}, "three": {"load": {"clients": 3, "protocol": "prepared"}}}
    folder = Path(tempfile.mkdtemp(prefix="bl", dir="/var/tmp"))
    with open_bench(plan(levels, arrangement="fresh"), "test", scratch=folder) as bench:
        yield bench
    shutil.rmtree(folder)


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    with ExitStack() as stack:
        yield Trials(stack, tmp_path)


def run_whole(its_plan: Plan, blocks: int, name: str) -> StudyFolder:
    folder = StudyFolder(name)
    levels = list(its_plan.factor.levels)
    study = Study(
        name=name, title=name, plan=its_plan, trials=randomised_blocks(levels, blocks, its_plan.seed)
    )
    keep_study(folder, study)
    run_study(folder, lambda tell: open_bench(its_plan, name, tell=tell))
    return folder


def processes_under(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if str(folder) in " ".join(words_of(p))]


def eventually(what: Callable[[], bool], within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()


def words_of(process: psutil.Process) -> list[str]:
    try:
        return [*process.cmdline(), process.cwd()]
    except (psutil.Error, OSError):
        return []


@pytest.mark.parametrize("arrangement", ["standing", "fresh"])
def test_a_study_keeps_each_trial_whole_and_leaves_nothing_else(arrangement: str, scratch: Path) -> None:
    folder = run_whole(plan(arrangement=arrangement), 2, arrangement)
    kept = folder.kept()
    assert len(kept) == 4
    for trial_id, measurement in kept.items():
        assert measurement.error is None
        assert measurement.load_returncode == 0
        assert measurement.load_wall_s is not None
        assert 1 <= measurement.load_wall_s < 5
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
        committed = after["database"]["xact_commit"] - before["database"]["xact_commit"]
        assert committed >= 10
    hosts = {next(w for w in m.load_argv if w.startswith("--host")) for m in kept.values()}
    assert len(hosts) == {"standing": 2, "fresh": 4}[arrangement]
    assert list(scratch.glob("run-*")) == []
    assert eventually(lambda: processes_under(scratch) == [])


@pytest.mark.parametrize("workload", ["insert", pytest.param("tpcb-like", marks=pytest.mark.slow)])
def test_a_workloads_invariant_holds_after_its_trial(workload: str, trials: Trials) -> None:
    bench = trials.bench(plan(workload=workload, arrangement="fresh"))
    assert bench.plan.workload.invariant.count
    assert bench.plan.workload.invariant.violations
    assert trials.run(bench, "first")[0].error is None


def test_a_wrong_count_is_caught_and_the_level_gets_a_new_cluster(trials: Trials, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(WRONG_COUNT)
    bench = trials.bench(plan(workload=str(tmp_path / "w.toml"), rebuild_every=9))
    measurement, folder = trials.run(bench, "first")
    assert measurement.error_kind == "InvariantError"
    assert "pgbench acknowledged" in (measurement.error or "")
    assert "tps =" in (folder / "stdout").read_text(), "the evidence is kept"
    assert "first" not in bench._standing


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        ("DELETE FROM test_table WHERE ctid IN (SELECT ctid FROM test_table LIMIT 1)", "new rows"),
        ("UPDATE test_table SET value = 2 WHERE ctid IN (SELECT ctid FROM test_table LIMIT 3)", "3 rows contradict"),
    ],
)  # fmt: skip
def test_what_is_changed_behind_pgbenchs_back_is_caught(
    behind: str, words: str, fresh_bench: Bench, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, _stand_for = bench_module._drive, fresh_bench._stand_for
    stands: list[Stand] = []

    @contextmanager
    def watched(trial: Trial) -> Iterator[Stand]:
        with _stand_for(trial) as stand:
            stands.append(stand)
            yield stand

    def meddle(*args: Any, **options: Any) -> Any:
        done = drive(*args, **options)
        stands[-1].server.execute(behind)
        return done

    monkeypatch.setattr(fresh_bench, "_stand_for", watched)
    monkeypatch.setattr(bench_module, "_drive", meddle)
    measurement, _ = trials.run(fresh_bench, "two")
    assert measurement.error_kind == "InvariantError"
    assert words in (measurement.error or "")


def test_clusters_are_built_anew_and_change_places(trials: Trials) -> None:
    bench = trials.bench(plan(rebuild_every=2))
    seen = []
    for block in (1, 2, 3, 5):
        bench.prepare(block)
        seen.append({name: stand.server.folder.name for name, stand in bench._standing.items()})
    assert [list(names) for names in seen] == [
        ["first", "second"],
        ["first", "second"],
        ["second", "first"],
        ["first", "second"],
    ]
    assert seen[0] == seen[1], "not rebuilt before its time"
    folders = [folder for places in seen[1:] for folder in places.values()]
    assert len(set(folders)) == len(folders), "each time in new folders"
    there = {path.name for path in bench.workspace.glob("c*")}
    assert there == set(seen[-1].values()), "the former ones are gone"


@pytest.mark.parametrize("arrangement", [pytest.param("standing", marks=pytest.mark.slow), "fresh"])
def test_a_server_killed_in_a_trial_costs_that_trial_only(
    arrangement: str, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = trials.bench(plan(arrangement=arrangement, load={"duration_s": 2}))
    started: list[int] = []
    drive = bench_module._drive

    def kill_soon(stand: Stand, limit_s: float, argv: Any, *rest: Any) -> Any:
        host = next(word.removeprefix("--host=") for word in argv if word.startswith("--host="))
        started.append(int((Path(host).parent / "data" / "postmaster.pid").read_text().split()[0]))
        if len(started) == 1:
            timer = threading.Timer(0.7, os.kill, (started[0], signal.SIGKILL))
            timer.start()
        return drive(stand, limit_s, argv, *rest)

    monkeypatch.setattr(bench_module, "_drive", kill_soon)
    begun = time.monotonic()
    measurement, folder = trials.run(bench, "first")
    assert time.monotonic() - begun < 10
    assert measurement.error_kind == "ServerError"
    assert "the server ended during the trial" in (measurement.error or "")
    assert "\n" not in (measurement.error or "")
    assert measurement.load_argv
    assert (folder / "server.log").is_file()
    again, _ = trials.run(bench, "first", position=2)
    assert again.error is None
    assert again.load_argv[1] != measurement.load_argv[1], "on a new cluster"
    assert len(set(started)) == 2


@pytest.mark.slow
def test_a_load_that_hangs_ends_at_its_limit(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = trials.bench(plan())
    bench.prepare(1)
    drive = bench_module._drive
    monkeypatch.setattr(bench_module, "_drive", lambda stand, limit_s, *rest: drive(stand, 3.0, *rest))

    def freeze_the_sessions() -> None:
        for process in processes_under(bench._standing["first"].server.folder):
            if "postgres: postgres bench" in " ".join(words_of(process)):
                process.suspend()  # the sampler's own too: nothing may wait for it either

    timer = threading.Timer(0.7, freeze_the_sessions)
    timer.start()
    begun = time.monotonic()
    measurement, _ = trials.run(bench, "first")
    assert time.monotonic() - begun < 25
    assert measurement.error_kind == "TimeLimitError"
    assert trials.run(bench, "first", position=2)[0].error is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"work_memory": "8MB"}, "level “second”.* unrecognized configuration parameter \"work_memory\""),
        ({"work_mem": "8 pigs"}, "level “second”.* invalid value for parameter \"work_mem\""),
    ],
)  # fmt: skip
def test_a_level_that_the_server_would_refuse_ends_the_run_before_it_begins(
    setting: dict[str, str], words: str, scratch: Path
) -> None:
    with (
        pytest.raises(PreflightError, match=words),
        open_bench(plan({"first": {}, "second": {"settings": setting}}), "t"),
    ):
        raise AssertionError("opened")
    assert list(scratch.glob("run-*")) == []


@pytest.mark.parametrize("arrangement", ["standing", "fresh"])
def test_a_server_that_cannot_start_ends_the_study_or_its_trials(arrangement: str, trials: Trials) -> None:
    levels = {"first": {}, "second": {"settings": {"shared_preload_libraries": "no_such_library"}}}
    bench = trials.bench(plan(levels, arrangement=arrangement))
    if arrangement == "standing":
        with pytest.raises(StudyError, match=r"level “second” cannot be built.*no_such_library"):
            bench.prepare(1)
    else:
        measurement, _ = trials.run(bench, "second")
        assert measurement.error_kind == "ServerError"
        assert "no_such_library" in (measurement.error or "")
        assert list(bench.workspace.glob("c*")) == []


def test_a_level_may_name_another_version(trials: Trials) -> None:
    bench = trials.bench(plan({"16": {"postgres": "16"}, "18": {}}, arrangement="fresh"))
    for position, version in enumerate(("16", "18"), 1):
        measurement, folder = trials.run(bench, version, position=position)
        assert measurement.error is None
        assert (measurement.server_version or "").startswith(version)
        counters = json.loads((folder / "statistics.json").read_text())
        assert counters["after"]["wal"]["wal_bytes"] > counters["before"]["wal"]["wal_bytes"]
        # 16 has no such view: null, not zero
        assert (counters["after"]["checkpointer"] is None) == (version == "16")


def test_the_load_tools_own_work_is_kept_with_the_trial(trials: Trials) -> None:
    bench = trials.bench(plan(workload="select-only", load={"clients": 4}, arrangement="fresh"))
    kept, _ = trials.run(bench, "first")
    assert kept.load_cpu_s is not None
    assert kept.load_wall_s is not None
    assert 0.05 < kept.load_cpu_s / kept.load_wall_s <= 1.05, (
        "one thread is never busy for longer than it runs"
    )


def test_a_scale_that_the_disk_cannot_hold_is_refused_before_anything_is_made(scratch: Path) -> None:
    with pytest.raises(
        PreflightError, match=r"needs about [\d,]+ MiB under .*, [\d,]+ are free: a smaller scale"
    ):
        preflight(plan(workload="tpcb-like", scale=1_000_000))
    assert list(scratch.iterdir()) == []


def test_the_preflight_says_what_there_is_without_making_anything(scratch: Path) -> None:
    rows = dict(preflight(plan()))
    assert "PostgreSQL 18" in rows["servers"]
    assert "pgbench of PostgreSQL 18" in rows["load tool"]
    assert list(scratch.iterdir()) == []
