"""Trials and studies on real servers, failures during them, and background load."""

import os
import re
import signal
from typing import Any

import pytest
from clusters import bench_plan, eventually
from hosts import ending, meanwhile, run_for_real

from benchlib.errors import PreflightError, StudyError
from benchlib.host.shell import known
from benchlib.host.sweep import processes_of
from benchlib.load.pgbench import Pgbench
from benchlib.plan.design import Trial
from benchlib.plan.model import SampleQuery
from benchlib.plan.workload import Beside, Invariant, Script, Workload
from benchlib.server.statistics import BESIDE
from benchlib.study.environment import Environment
from benchlib.study.experiment import shown
from benchlib.study.frames import OpenStudy
from benchlib.study.preflight import preflight
from benchlib.study.records import Counters, Samples

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("ready_clusters", "unguarded")]

TWO: dict[str, Any] = {"first": {}, "second": {"settings": {"work_mem": "8MB"}}}
VIEWS = ("database", "bgwriter", "wal", "checkpointer")


@pytest.mark.parametrize(("arrangement", "blocks"), [("standing", 2), ("fresh", 1)])
def test_a_study_saves_each_trial_and_leaves_nothing_else(arrangement, blocks, scratch):
    folder = run_for_real("whole", bench_plan(TWO, arrangement=arrangement), blocks)
    kept = folder.kept()
    assert len(kept) == 2 * blocks
    for trial_id, measurement in kept.items():
        assert (measurement.error, measurement.load_returncode) == (None, 0)
        assert None not in (measurement.load_wall_s, measurement.load_cpu_s)
        second = measurement.trial.level == "second"
        assert measurement.settings == ({"work_mem": "8192 kB"} if second else {})
        wanted = {"stdout": b"tps =", "stderr": b"random seed", "server.log": b"checkpoint"}
        for name, words in wanted.items():
            assert words in (folder.raw(trial_id, name) or b"")
        counters = Counters.read(folder, trial_id)
        before, after = dict(counters.before), dict(counters.after)
        assert None not in [moment[view] for view in VIEWS for moment in (before, after)]
        assert after["database"]["xact_commit"] > before["database"]["xact_commit"]
    hosts = {word for m in kept.values() for word in m.load_argv if word.startswith("--host")}
    assert len(hosts) == 2, "standing: the second block meets the clusters of the first"
    assert list(scratch.glob("run-*")) == []
    assert eventually(lambda: processes_of(scratch) == [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM test_table", "pgbench acknowledged .* new rows"),
        ("UPDATE test_table SET value = 2", "3 rows violate"),
    ],
)
def test_rows_that_pgbench_did_not_write_fail_the_trial_and_remove_the_cluster(
    trials, monkeypatch, change, message
):
    bench, check_running = trials.bench(bench_plan(TWO)), Environment.check_running

    def meddle(environment):  # when the load has ended
        environment.server.execute(f"{change} WHERE ctid IN (SELECT ctid FROM test_table LIMIT 3)")
        check_running(environment)

    monkeypatch.setattr(Environment, "check_running", meddle)
    measurement, folder = trials.run(bench, "first")
    assert measurement.error_kind == "InvariantError"
    assert re.search(message, measurement.error or "")
    assert "tps =" in (folder / "stdout").read_text(), "the evidence is kept"
    assert list(bench.workspace.glob("c*")) == []


def test_load_and_warm_up_use_different_rows(trials):
    """Else the first seconds of a trial find in memory what the rest of it has to read."""
    drawn = Workload(
        name="drawn", title="Numbers that are drawn", pgbench_tables=False,
        load_sql="CREATE TABLE drawn (number bigint);",
        scripts=(Script(sql="\\set number random(1, 1 << 62)\nINSERT INTO drawn VALUES (:number);\n"),),
        invariant=Invariant(violations="SELECT count(*) - count(DISTINCT number) FROM drawn"),
    )  # fmt: skip
    plan = bench_plan(TWO, load={"warmup_s": 1}, arrangement="fresh").model_copy(update={"workload": drawn})
    assert trials.run(trials.bench(plan), "first")[0].error is None


@pytest.mark.parametrize(
    ("rebuild_every", "standing"), [(2, ["c001 c002", "c001 c002", "c003 c004"]), (1, [""])]
)
def test_clusters_are_rebuilt_after_rebuild_every_blocks(trials, rebuild_every, standing):
    bench, seen = trials.bench(bench_plan(TWO, rebuild_every=rebuild_every)), list[str]()
    for block in range(1, len(standing) + 1):
        for position, name in enumerate(TWO, 1):
            with bench._environment_for(Trial(block, position, name, seed=1)):
                pass
        seen.append(" ".join(sorted(path.name for path in bench.workspace.glob("c*"))))
    assert seen == standing


def sessions(environment, name):
    return environment.server.value(
        f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    )


def processes(folder, words):
    """Those of a run that have these in their command lines."""
    return [p for p in processes_of(folder) if words in " ".join(known(p.cmdline) or [])]


def kill(environment):
    assert eventually(lambda: sessions(environment, "pgbench") > 0)
    os.kill(environment.server.pid, signal.SIGKILL)


def freeze(environment):
    words = "postgres: postgres bench"
    assert eventually(lambda: len(processes(environment.server.folder, words)) > 2)
    for process in processes(environment.server.folder, words):
        process.suspend()  # the sampler's own too: nothing may wait for it either


@pytest.mark.parametrize(
    ("befalls", "error"),
    [
        (kill, "ServerError: the server ended during the trial"),
        pytest.param(freeze, "TrialError: .* did not end within 9 s", marks=pytest.mark.long),
    ],
)
def test_a_killed_or_frozen_server_fails_one_trial(befalls, error, trials, monkeypatch):
    monkeypatch.setattr(Pgbench, "limit_s", lambda self, load: 9.0)
    meanwhile(monkeypatch, befalls)
    bench = trials.bench(bench_plan(TWO))
    measurement, folder = trials.run(bench, "first")
    assert re.fullmatch(f"{error}.*", f"{measurement.error_kind}: {measurement.error}"), measurement.error
    assert (folder / "server.log").is_file()
    again, _ = trials.run(bench, "first")
    assert again.error is None
    assert again.load_argv[1] != measurement.load_argv[1], "on a new cluster"


def test_refused_initdb_options_end_the_run_before_it_begins(scratch, trials):
    levels = {"first": {}, "second": {"initdb": ["--no-such-option"]}}
    with pytest.raises(PreflightError, match="level “second”: initdb failed: "):
        trials.bench(bench_plan(levels))
    assert list(scratch.glob("run-*")) == []


@pytest.mark.parametrize("arrangement", ["standing", "fresh"])
def test_a_server_that_cannot_start_ends_the_study_or_its_trials(arrangement, trials):
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


def test_a_level_can_have_another_version(trials):
    bench = trials.bench(bench_plan({"16": {"postgres": "16"}, "18": {}}, arrangement="fresh"))
    measurement, folder = trials.run(bench, "16")
    assert (measurement.error, measurement.server_version[:2]) == (None, "16")
    counters = Counters.from_bytes((folder / Counters.FILE).read_bytes())
    assert counters.after["wal"]["wal_bytes"] > counters.before["wal"]["wal_bytes"]
    assert counters.after["checkpointer"] is None, "16 has no such view: null, not zero"


def test_the_preflight_reports_findings_and_creates_nothing(scratch):
    rows = dict(preflight(bench_plan(TWO)))
    assert "PostgreSQL 18" in rows["servers"]
    assert "pgbench of PostgreSQL 18" in rows["load tool"]
    with pytest.raises(PreflightError, match=r"needs about [\d,]+ MiB under .*, [\d,]+ MiB are free"):
        preflight(bench_plan(TWO, workload="tpcb-like", scale=1_000_000))
    assert list(scratch.iterdir()) == []


# --- what runs beside the load ------------------------------------------------------------------


BUSY = Beside(sql="SELECT count(*) FROM generate_series(1, 100 * :rows);\n", clients=2)
STUCK = Beside(sql="SELECT pg_sleep(600);\n")


def plan_beside(*beside):
    """A plan with a level that has these beside its load, and one that has nothing."""
    more = bench_plan({"a": {}, "b": {}}).workload.model_copy(update={"name": "more", "beside": beside})
    levels = {"alone": {}, "beside": {"workload": "more"}}
    load = {"variables": {"rows": 10}}
    return bench_plan(levels, load=load, workloads={"more": more}, arrangement="fresh")


def test_background_load_is_not_counted_and_leaves_nothing(scratch):
    folder = run_for_real("beside", plan_beside(BUSY, STUCK), 1)
    experiment = shown(folder)
    assert experiment.trials["error"].isna().all(), "no row is there but the load's"
    by_level = experiment.figures.set_index("level")
    for figure in ("wal_bytes_per_transaction", "server_cpu_ms_per_transaction"):
        assert by_level[figure].isna().to_dict() == {"alone": False, "beside": True}
    assert by_level["tool_cpu_ms_per_transaction"].notna().all()
    (trial,) = [t.id for t in folder.read().trials if t.level == "beside"]
    assert b"progress: " in (folder.raw(trial, "beside") or b""), "it ran"
    samples = Samples.read(folder, trial)
    seen = [sum(n for *_, n in sample["sessions"]) for sample in samples.waits]
    assert max(seen) in (1, 2), "of the load's two clients, and none of the three"


def test_a_failed_background_script_fails_the_trial_with_its_error(trials):
    measurement, folder = trials.run(trials.bench(plan_beside(Beside(sql="SELECT 1 / 0;\n"))), "beside")
    assert measurement.error_kind == "LoadError"
    assert re.search("background pgbench ended with status 2: .*division by zero", measurement.error)
    assert "division by zero" in (folder / "beside").read_text()


def test_a_killed_background_process_fails_one_trial(trials, monkeypatch):
    def kill(environment):
        assert eventually(lambda: sessions(environment, BESIDE) > 0)
        (process,) = processes(environment.run.folder, "beside-1")
        process.kill()

    bench = trials.bench(plan_beside(STUCK))
    meanwhile(monkeypatch, kill)
    error = trials.run(bench, "beside")[0].error or ""
    assert error.startswith("background pgbench was ended by signal 9")
    assert trials.run(bench, "beside")[0].error is None


def test_an_interruption_ends_the_sessions_of_the_background_load(trials, monkeypatch):
    left, close = [], Environment.close

    def interrupt(environment):
        assert eventually(lambda: sessions(environment, BESIDE) == 1)
        raise KeyboardInterrupt

    def counted(environment):
        left.append(sessions(environment, BESIDE))
        close(environment)

    meanwhile(monkeypatch, interrupt)
    monkeypatch.setattr(Environment, "close", counted)
    bench = trials.bench(plan_beside(STUCK))
    with pytest.raises(KeyboardInterrupt):
        trials.run(bench, "beside")
    assert left == [0], "before its server goes"


# --- a user's own queries -----------------------------------------------------------------------


def samples_of(**queries):
    return {name: SampleQuery.model_validate(query) for name, query in queries.items()}


def test_own_queries_are_columns_of_the_seconds(scratch):
    counted = "SELECT xact_commit, NULL AS nothing FROM pg_stat_database WHERE datname = current_database()"
    samples = samples_of(db={"sql": counted, "kind": "counter"}, n="SELECT 0.5 AS half")
    its_plan = bench_plan({"a": {}, "b": {}}, load={"duration_s": 3}, samples=samples)
    seconds = OpenStudy(shown(run_for_real("sampled", its_plan, 1))).seconds()
    by_level = seconds.groupby("level")
    assert by_level["n.half"].agg(["min", "max", "count"]).values.tolist() == [[0.5, 0.5, 3]] * 2
    assert by_level["db.xact_commit_per_s"].max().gt(10).all()
    assert seconds["db.nothing_per_s"].isna().all()


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT 'text' AS t", "sample 'x': column t is 'text', want a number"),
        ("SELECT 1 FROM generate_series(1, 2)", "sample 'x': want one row .*, got 2"),
        ("SELECT nothing", "sample 'x': column \"nothing\" does not exist: correct the query"),
        ("CREATE TABLE t ()", "sample 'x': cannot execute CREATE TABLE in a read-only transaction"),
    ],
    ids=["text", "rows", "error", "write"],
)
def test_a_query_that_gives_no_numbers_ends_the_run_at_once(trials, sql, why):
    with ending((StudyError, why)):
        trials.run(trials.bench(bench_plan({"a": {}, "b": {}}, samples=samples_of(x=sql))), "a")
