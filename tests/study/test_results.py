"""Frames are what the raw files say: the right figure, a missing one or an error, never a wrong one."""

import json
import re
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes import WAL_PER_TRANSACTION, counters, pgbench_output, seal
from kept import TPS, place, ran, say

from benchlib.load.latency import keep_log
from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.plan.model import Generator, Load
from benchlib.plan.workload import Counted
from benchlib.stats.limits import Concern
from benchlib.study.experiment import shown
from benchlib.study.records import Flushes
from benchlib.study.results import TRIAL_COLUMNS, concerns, measured, time_to_steady
from benchlib.study.store import MEASUREMENT, TRANSACTION_LOG, StudyFolder


@pytest.fixture
def run(folder_of, tmp_path: Path) -> Callable[..., StudyFolder]:
    """Runs a small study on a fake bench; one block unless told otherwise."""
    return lambda blocks=1, **changes: ran(folder_of(blocks, **changes), tmp_path)


def note(folder: StudyFolder, levels: Iterable[str] = TPS, blocks: Iterable[int] = (1,), **facts) -> None:
    """Have kept trials say something more."""
    for level, block in product(levels, blocks):
        say(place(folder, level, block) / MEASUREMENT, **facts)
    seal(folder)


def replaced(folder: StudyFolder, name: str, content: str | bytes | None) -> pd.Series:
    """The row of the level “tuned” after one of its raw files was replaced (None: removed)."""
    (path := place(folder) / name).unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    seal(folder)
    frame = shown(folder).trials
    assert frame["error"].isna().sum() >= 2, "the other trials stay as they are"
    return frame.set_index("level").loc["tuned"]


def test_a_workload_may_count_the_transactions_of_one_script_per_minute(run, folder_of) -> None:
    folder, plan = run(), folder_of(1).read().plan
    assert shown(folder).trials["new_orders_per_minute"].isna().all()
    stdout = pgbench_output(tps=2000)[0].replace("<builtin: TPC-B (sort of)>", "multiple scripts")
    stdout += "".join(
        f"SQL script {n}: script {n}\n - weight: 1 (targets 50.0% of total)\n"
        f" - {rows} transactions ({rows / 60:.1f}% of total, tps = {tps:.6f})\n - number of failed transactions: 0 (0.000%)\n"
        " - latency average = 2.000 ms\n - latency stddev = 1.000 ms\n"
        for n, rows, tps in ((1, 4500, 1500.0), (2, 1500, 500.0))
    )
    replaced(folder, "stdout", stdout)
    counted = Counted(metric="new_orders_per_minute", script=2)
    workload = plan.workload.changed(counted=counted, scripts=plan.workload.scripts * 2)
    frame = measured(folder, plan.changed(workload=workload), folder.kept()).trials.set_index("level")
    assert frame.loc["tuned", "new_orders_per_minute"] == pytest.approx(30_000)


def test_a_row_per_trial_in_the_order_of_the_design_has_what_pgbench_printed(run) -> None:
    folder = run(2)
    frame = shown(folder).trials
    assert list(frame.columns) == list(TRIAL_COLUMNS)
    order = ["block", "position", "level", "seed"]
    assert frame[order].equals(pd.DataFrame(folder.read().trials)[order])
    assert frame[["error", "host", "latency_p95_ms"]].isna().all(axis=None)
    tuned = frame[frame.level == "tuned"].iloc[0]
    assert tuned.tps == tuned.speed == pytest.approx(2000)
    assert (tuned.latency_average_ms, tuned.latency_stddev_ms) == pytest.approx((2.0, 1.0))
    assert (tuned.transactions, tuned.failed_transactions, tuned.server_version) == (6000, 0, "18.4")
    assert tuned.client_cpu_share == pytest.approx(0.25 / (3.1 * 2))
    assert (tuned.wal_bytes_per_transaction, tuned.checkpoints) == (WAL_PER_TRANSACTION, 1)


def test_fewer_cores_than_threads_are_what_the_load_tool_can_fill(run) -> None:
    level = Level.model_validate({"cpu": {"load": "1"}})
    pinned = shown(run(levels={"tuned": level})).trials.set_index("level")["client_cpu_share"]
    assert [pinned["tuned"], pinned["defaults"]] == pytest.approx([0.25 / 3.1, 0.25 / (3.1 * 2)])


def test_hosts_that_trials_tell_are_those_of_every_figure(run) -> None:
    folder = run(6)
    note(folder, blocks=(1, 2, 3), ran_on="db1")
    note(folder, blocks=(4, 5, 6), ran_on="db2")
    experiment = shown(folder)
    assert experiment.trials.groupby("host")["block"].agg(set).to_dict() == {
        "db1": {1, 2, 3},
        "db2": {4, 5, 6},
    }
    assert "hosts" in {warning.code for warning in experiment.analysis.warnings}


def test_the_busiest_generator_tells_how_busy_the_load_tool_is(run) -> None:
    folder = run(load=Load(clients=4, threads=3, duration_s=3, generators=("gen1", "gen2")))
    times = {"load_wall_s": 3.0, "began_s": 1.0, "ended_s": 4.0}
    clock = {"clock_offset_s": 0.0, "clock_error_s": 0.0, "round_trip_s": 0.0}
    for measurement in folder.kept().values():
        path, generators = place(folder, measurement.trial.level), []
        for host, threads, cpu_s in (("gen1", 2, 3.0), ("gen2", 1, 2.7)):
            texts = pgbench_output(tps=500, clients=2, threads=threads, seed=measurement.trial.seed)
            for name, text in zip(("stdout", "stderr"), texts, strict=True):
                (path / f"{name}.{host}").write_text(text)
            made = Generator(host=host, load_argv=("pgbench", "--time=3"), load_cpu_s=cpu_s, **times, **clock)
            generators.append(made.model_dump(mode="json"))
        say(path / MEASUREMENT, generators=generators)
    seal(folder)
    assert shown(folder).trials["client_cpu_share"].to_list() == pytest.approx([0.9] * 3)


@pytest.mark.parametrize(
    ("rates", "seconds"),
    [
        ([100] * 8, 1),
        ([10, 40, 70, 90, 96, *[100] * 7], 5),
        ([10, 500, *[10] * 4, *[100] * 6], 7),  # a single fast second does not count
        ([100] * 7, None),
        ([0] * 12 + [1], None),
    ],
)
def test_the_time_to_the_steady_rate_is_read_from_the_progress(rates, seconds) -> None:
    assert time_to_steady([*enumerate(rates, 1)]) == seconds


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("stdout", None, "the trial's output is missing"),
        ("stdout", pgbench_output(tps=2000)[0].replace("tps = 2000", "tps = 20"), "pgbench summary: "),
        ("stderr", "pgbench: error: client 3 aborted in command 4", "did not run to its end: .*client 3"),
        ("statistics.json", '{"before": {"at": 1, "lsn": "x"}}', "statistics.json is damaged"),
        (Flushes.FILE, "{}", "fsync.json is damaged"),
        (TRANSACTION_LOG, "no parquet", TRANSACTION_LOG),
    ],
)
def test_a_damaged_file_is_an_error_not_a_figure(run, name, content, why) -> None:
    row = replaced(run(), name, content)
    assert re.search(why, row.error)
    told = ["trial", "block", "period", "position", "seed", "started_s", "server_version", "error"]
    assert row.drop(told).isna().all()


def test_what_is_told_after_a_trial_s_time_is_no_reading_of_it(run) -> None:
    folder = run()  # of three seconds
    late = "progress: 4.0 s, 0.0 tps, lat 0.000 ms stddev 0.000, 0 failed\n"
    assert pd.isna(replaced(folder, "stderr", (place(folder) / "stderr").read_text() + late).error)
    assert set(shown(folder).measured.progress["elapsed_s"]) == {1.0, 2.0, 3.0}


@pytest.mark.parametrize(("timeout", "cycles"), [("3 s", 1), ("1 s", None), ("2 s", None), ("30 min", None)])
def test_a_trial_of_whole_cycles_of_checkpoints_says_of_how_many(run, timeout, cycles) -> None:
    folder = run()  # of three seconds, in each a checkpoint
    note(folder, settings={"checkpoint_timeout": timeout})
    told = shown(folder).trials["checkpoint_cycles"]
    assert told.isna().all() if cycles is None else (told == cycles).all()


RESET = {"lsn": "0/0", "checkpointer": {"num_timed": 0, "num_requested": 0}}
NO_WAL, NO_CHECKPOINTER = {"lsn": None}, {"checkpointer": None, "bgwriter": {"buffers_alloc": 3}}


@pytest.mark.parametrize(
    ("before", "after", "wal", "checkpoints"),
    [
        ({}, RESET, None, None),
        (NO_WAL, NO_WAL, None, 1),
        (NO_CHECKPOINTER, NO_CHECKPOINTER, WAL_PER_TRANSACTION, None),
    ],
)
def test_what_the_counters_do_not_tell_is_missing(run, before, after, wal, checkpoints) -> None:
    told: Any = counters(6000)
    bent = {"before": told["before"] | before, "after": told["after"] | after}
    row = replaced(run(), "statistics.json", json.dumps(bent))
    assert row.tps == pytest.approx(2000)
    found = [row.error, row.wal_bytes_per_transaction, row.checkpoints]
    assert [None if pd.isna(value) else value for value in found] == [None, wal, checkpoints]


def doubts(folder: StudyFolder, **columns: float) -> list[Concern]:
    """The concerns about a study's trials, with columns of “tuned” replaced; that they are few is known."""
    measured = shown(folder).measured
    measured.trials.loc[measured.trials.level == "tuned", [*columns]] = [*columns.values()]
    return [concern for concern in concerns(measured, 0.03) if concern.code != "too_short"]


def test_failures_and_warnings_are_concerns_of_their_level_with_the_number_of_trials(run) -> None:
    folder = run(3)
    assert doubts(folder) == []
    found = doubts(folder, failed_transactions=100.0, client_cpu_share=0.99)
    assert [c.code for c in found if c.level == "tuned"] == ["failed_transactions", "client_bound"]
    note(folder, ["tuned"], [1], warnings=["replica1 was 4.5 s behind", "the disk was full"])
    note(folder, ["tuned", "control"], [2], warnings=["replica1 was 12 s behind"])
    found = doubts(folder)
    assert not any(concern.grave for concern in found)
    assert {(concern.code, concern.level, concern.value) for concern in found} == {
        ("trial_warning", "tuned", "replica1 was 4.5 s behind (2 of 3 trials)"),  # the figures of the first
        ("trial_warning", "tuned", "the disk was full (1 of 3 trials)"),
        ("trial_warning", "control", "replica1 was 12 s behind (1 of 3 trials)"),
    }


def test_latency_quantiles_come_from_the_transaction_log(run, tmp_path: Path) -> None:
    rows = (f"{n // 50} {n} {1000 * (n % 50 + 1)} 0 17000000{n % 50 + 1:02} 5\n" for n in range(6000))
    (tmp_path / "log.1").write_text("".join(rows))
    keep_log([tmp_path / "log.1"], tmp_path / TRANSACTION_LOG, ["pgbench"])
    row = replaced(run(), TRANSACTION_LOG, (tmp_path / TRANSACTION_LOG).read_bytes())
    assert row.latency_p50_ms == pytest.approx(25.5, abs=1)
    assert 47 <= row.latency_p95_ms <= 49


@pytest.mark.parametrize(
    ("ops_per_s", "commit", "per_s", "codes"),
    [
        (80.0, "on", 80.0, ["implausible_commit_rate"]),  # of four clients each waits for its own commit
        (800.0, "on", 800.0, []),
        (80.0, "off", float("nan"), []),
    ],
)
def test_more_commits_than_flushes_could_make_safe_are_flagged(run, ops_per_s, commit, per_s, codes) -> None:
    section = "Compare file sync methods using one 8kB write"
    rate = {"section": section, "method": "fdatasync", "ops_per_s": ops_per_s}
    used = {"fsync": "on", "synchronous_commit": commit, "wal_sync_method": "fdatasync"}
    told = json.dumps({"durability": used, "flushes": {"methods": [rate]}})
    folder = run(workload=load_workload("tpcb-like"))
    assert replaced(folder, Flushes.FILE, told).flushes_per_s == pytest.approx(per_s, nan_ok=True)
    assert [concern.code for concern in doubts(folder)] == codes
    assert pd.isna(replaced(run(name="b"), Flushes.FILE, told).flushes_per_s), "not all of it writes"


def test_latencies_of_statements_are_rows_where_the_load_tool_reports_them(run) -> None:
    folder = run()
    latencies = "statement latencies in milliseconds and failures:\n   0.312   0  UPDATE t SET a = 1;\n"
    replaced(folder, "stdout", pgbench_output(tps=2000)[0] + latencies)
    rows = shown(folder).measured.statements
    assert rows[["level", "latency_ms"]].to_numpy().tolist() == [["tuned", 0.312]]


WARNED = {False: 'role "…" at (an address) did not get “7”', True: "role … at (an address) did not get …"}


def test_warnings_show_no_roles_and_addresses_and_of_private_workloads_no_values(run) -> None:
    folder = run()
    note(folder, warnings=['role "crm_admin" at 10.1.2.3:5432 did not get “7”'])
    plan = folder.read().plan
    for private, text in WARNED.items():
        as_shown = plan.changed(workload=plan.workload.changed(private=private))
        assert {*measured(folder, as_shown, folder.kept()).warnings["warning"]} == {text}
