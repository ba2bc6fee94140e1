"""Frames are what the raw files say: the right figure, a missing one or an error, never a wrong one."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes import WAL_PER_TRANSACTION, FakeBench, counters, pgbench_output, seal

from benchlib.load.latency import keep_log
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Generator, Load
from benchlib.stats import Concern
from benchlib.study.experiment import shown
from benchlib.study.loop import run_study
from benchlib.study.records import Flushes
from benchlib.study.results import (
    TRIAL_COLUMNS,
    concerns,
    time_to_steady,
    tunables,
)
from benchlib.study.store import MEASUREMENT, TRANSACTION_LOG, StudyFolder

TPS = {"defaults": 1000.0, "control": 1010.0, "tuned": 2000.0}


@pytest.fixture
def run(folder_of, tmp_path: Path) -> Callable[..., StudyFolder]:
    """Runs a small study on a fake bench; one block unless told otherwise."""

    def make(blocks: int = 1, **options) -> StudyFolder:
        folder = folder_of(blocks)
        run_study(folder, FakeBench(folder.read().plan, tmp_path, TPS, **options).open)
        return folder

    return make


@pytest.fixture
def of_tuned(run) -> Callable[..., pd.Series]:
    """The row of the level “tuned” after one of its raw files was replaced (None: removed)."""

    def make(name: str, content: str | bytes | None, *, folder: StudyFolder | None = None) -> pd.Series:
        folder = folder or run()
        (trial,) = [t for t in folder.read().trials if t.level == "tuned"]
        path = folder.path / "trials" / trial.id / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        seal(folder)
        frame = shown(folder).trials
        assert frame["error"].isna().sum() >= 2, "the other trials stay as they are"
        return frame.set_index("level").loc["tuned"]

    return make


def figures(row: pd.Series) -> pd.Series:
    return row.drop(["trial", "block", "period", "position", "seed", "started_s", "server_version", "error"])


def test_a_row_per_trial_in_the_order_of_the_design(run) -> None:
    folder = run(2)
    frame = shown(folder).trials
    assert list(frame.columns) == list(TRIAL_COLUMNS)
    trials = folder.read().trials
    assert list(zip(frame.block, frame.position, frame.level, frame.seed, strict=True)) == [
        (t.block, t.position, t.level, t.seed) for t in trials
    ]
    assert frame["error"].isna().all()
    assert frame["host"].isna().all()


def test_hosts_that_trials_tell_are_those_of_every_figure(run, monkeypatch) -> None:
    folder = run(6)
    kept = {
        name: one.model_copy(update={"ran_on": "db1" if one.trial.block <= 3 else "db2"})
        for name, one in folder.kept().items()
    }
    monkeypatch.setattr(StudyFolder, "kept", lambda _: kept)
    experiment = shown(folder)
    assert experiment.trials.groupby("host")["block"].unique().map(list).to_dict() == {
        "db1": [1, 2, 3],
        "db2": [4, 5, 6],
    }
    figures = experiment.trials[["level", "block", "latency_average_ms"]]
    assert "hosts" in {warning.code for warning in experiment.analysis.warnings}
    assert experiment.leads(figures)["level"].to_list() == ["tuned"]


def test_the_busiest_generator_tells_how_busy_the_load_tool_is(folder_of, tmp_path: Path) -> None:
    load = Load(clients=4, threads=3, duration_s=3, generators=("gen1", "gen2"))
    folder = folder_of(1, load=load)
    run_study(folder, FakeBench(folder.read().plan, tmp_path, TPS).open)
    times = {"load_wall_s": 3.0, "began_s": 1.0, "ended_s": 4.0}
    clock = {"clock_offset_s": 0.0, "clock_error_s": 0.0, "round_trip_s": 0.0}
    for trial_id, measurement in folder.kept().items():
        place, generators = folder.path / "trials" / trial_id, []
        for host, threads, cpu_s in (("gen1", 2, 3.0), ("gen2", 1, 2.7)):
            texts = pgbench_output(tps=500, clients=2, threads=threads, seed=measurement.trial.seed)
            for name, text in zip(("stdout", "stderr"), texts, strict=True):
                (place / f"{name}.{host}").write_text(text)
            argv = tuple(word for word in measurement.load_argv if not re.match("--(client|jobs)=", word))
            generators.append(Generator(host=host, load_argv=argv, load_cpu_s=cpu_s, **times, **clock))
        told = measurement.model_copy(update={"generators": tuple(generators)})
        (place / MEASUREMENT).write_text(told.model_dump_json())
    seal(folder)
    assert shown(folder).trials["client_cpu_share"].to_list() == pytest.approx([0.9] * 3)


@pytest.mark.parametrize(
    ("rates", "seconds"),
    [
        ([100] * 8, 1),
        ([10, 40, 70, 90, 96, *[100] * 7], 5),
        ([10, 500, *[10] * 4, *[100] * 6], 7),  # one lucky second is none
        ([10, 97, 80, 97, *[100] * 6], 2),
        ([100] * 7, None),
        ([0] * 12 + [1], None),
    ],
)
def test_the_time_to_the_steady_rate_is_read_from_the_progress(rates: list[int], seconds: int | None) -> None:
    assert time_to_steady([(float(at), float(tps)) for at, tps in enumerate(rates, 1)]) == seconds


def test_figures_are_those_that_pgbench_printed(run) -> None:
    tuned = shown(run()).trials.set_index("level").loc["tuned"]
    assert tuned.tps == tuned.speed == pytest.approx(2000)
    assert tuned.latency_average_ms == pytest.approx(2.0)
    assert tuned.latency_stddev_ms == pytest.approx(1.0)
    assert (tuned.transactions, tuned.failed_transactions, tuned.server_version) == (6000, 0, "18.4")
    assert tuned.client_cpu_share == pytest.approx(0.25 / (3.1 * 2))
    assert tuned.wal_bytes_per_transaction == WAL_PER_TRANSACTION
    assert tuned.checkpoints == 1


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("stdout", None, "the trial's output is not there"),
        ("stdout", pgbench_output(tps=2000)[0].replace("tps = 2000", "tps = 20"), "pgbench summary: "),
        ("stderr", "pgbench: error: client 3 aborted in command 4", "the load did not run to its end: .*client 3"),
        ("statistics.json", '{"before": {"at": 1, "lsn": "x"}}', "statistics.json is damaged"),
        (TRANSACTION_LOG, "no parquet", TRANSACTION_LOG),
    ],
    ids=["gone", "lost digits of tps", "lost client", "counters", "log"],
)  # fmt: skip
def test_a_damaged_file_is_an_error_not_a_figure(of_tuned, name: str, content: str | None, why: str) -> None:
    row = of_tuned(name, content)
    assert re.search(why, row.error)
    assert figures(row).isna().all()


def test_what_is_told_after_a_trial_s_time_is_no_reading_of_it(run) -> None:
    folder = run()  # of three seconds
    for trial in folder.read().trials:
        with (folder.path / "trials" / trial.id / "stderr").open("a") as stderr:
            stderr.write("progress: 4.0 s, 0.0 tps, lat 0.000 ms stddev 0.000, 0 failed\n")
    seal(folder)
    experiment = shown(folder)
    assert experiment.trials["error"].isna().all()
    assert set(experiment.progress["elapsed_s"]) == {1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    ("timeout", "cycles"), [("3 s", 1), ("1 s", None), ("2 s", None), ("30 min", None), (None, None)]
)
def test_a_trial_of_whole_cycles_of_checkpoints_says_of_how_many(
    folder_of, tmp_path, timeout, cycles
) -> None:
    folder = folder_of(1)  # of three seconds, in each a checkpoint
    run_study(folder, FakeBench(folder.read().plan, tmp_path, TPS).open)
    settings = {} if timeout is None else {"checkpoint_timeout": timeout}
    for trial_id, measurement in folder.kept().items():
        told = measurement.model_copy(update={"settings": settings})
        (folder.path / "trials" / trial_id / MEASUREMENT).write_text(told.model_dump_json())
    seal(folder)
    told = shown(folder).trials["checkpoint_cycles"].to_list()
    assert all(pd.isna(told)) if cycles is None else told == [cycles] * 3


RESET = {"lsn": "0/0", "checkpointer": {"num_timed": 0, "num_requested": 0}}
NOT_COUNTED = {"checkpointer": None, "bgwriter": {"buffers_alloc": 3}}


@pytest.mark.parametrize(
    ("before", "after", "wal", "checkpointed"),
    [
        ({}, RESET, False, None),
        ({"lsn": None}, {"lsn": None}, False, 1),
        (NOT_COUNTED, NOT_COUNTED, True, None),
        (None, None, False, None),
    ],
    ids=["gone backwards", "no position in the WAL", "no checkpointer", "no counters"],
)
def test_what_the_counters_do_not_tell_is_missing(
    of_tuned, before: dict[str, object] | None, after: dict[str, object], wal: bool, checkpointed: int | None
) -> None:
    content: Any = counters(6000)
    if before is not None:
        content = {"before": {**content["before"], **before}, "after": {**content["after"], **after}}
    row = of_tuned("statistics.json", None if before is None else json.dumps(content))
    assert row.tps == pytest.approx(2000)
    assert pd.isna(row.error)
    assert pd.notna(row.wal_bytes_per_transaction) == wal
    assert (None if pd.isna(row.checkpoints) else row.checkpoints) == checkpointed


def doubts(folder: StudyFolder, **columns: float) -> list[Concern]:
    """The concerns about a study's trials, with columns of the level “tuned” replaced; that they are few is known."""
    measured = shown(folder).measured
    for name, value in columns.items():
        measured.trials.loc[measured.trials.level == "tuned", name] = value
    return [concern for concern in concerns(measured, 0.03) if concern.code != "too_short"]


def test_what_went_wrong_inside_a_trial_is_a_concern_of_its_level(run) -> None:
    folder = run(2)
    assert doubts(folder) == []
    found = doubts(folder, failed_transactions=100.0, client_cpu_share=0.99)
    assert [(concern.code, concern.level) for concern in found] == [
        ("failed_transactions", "tuned"),
        ("client_bound", "tuned"),
    ]


def note(folder: StudyFolder, level: str, block: int, **facts: object) -> None:
    """Have a kept trial say something more."""
    (trial,) = [t for t in folder.read().trials if (t.level, t.block) == (level, block)]
    path = folder.path / "trials" / trial.id / "measurement.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    seal(folder)


def test_a_warning_is_a_concern_of_its_level_with_the_number_of_trials(run) -> None:
    folder = run(3)
    note(folder, "tuned", 1, warnings=["replica1 was 4.5 s behind", "the disk was full"])
    note(folder, "tuned", 2, warnings=["replica1 was 12 s behind"])
    note(folder, "control", 2, warnings=["replica1 was 12 s behind"])
    found = doubts(folder)
    assert {(concern.level, concern.message) for concern in found} == {
        ("tuned", "2 of 3 trials of 'tuned': replica1 was 4.5 s behind (the figures of the first; they differ)"),
        ("tuned", "1 of 3 trials of 'tuned': the disk was full"),
        ("control", "1 of 3 trials of 'control': replica1 was 12 s behind"),
    }  # fmt: skip
    assert not any(concern.grave for concern in found)


def test_what_all_trials_of_several_levels_have_in_common_is_said_once(run) -> None:
    folder = run(2)
    for level, block in (("tuned", 1), ("tuned", 2), ("control", 1), ("control", 2), ("defaults", 2)):
        note(folder, level, block, warnings=["a cap is not whole"])
    found = doubts(folder)
    assert {concern.level for concern in found} == {None, "defaults"}
    (said,) = [concern.message for concern in found if concern.level is None]
    assert said.startswith("all trials of '")
    assert said.endswith("': a cap is not whole")
    assert "'control'" in said


def shown_tunables(folder: StudyFolder) -> dict[str, dict[str, str]]:
    return tunables(folder.read().plan, folder.kept())


def test_tunables_are_told_by_value_with_the_levels_that_had_it(run) -> None:
    folder = run(2)
    assert shown_tunables(folder) == {}
    for block in (1, 2):
        for level, value in (("defaults", "60"), ("control", "60"), ("tuned", "0")):
            note(folder, level, block, host={"vm.swappiness": value})
    (by_value,) = shown_tunables(folder).values()
    assert by_value == {"60": "defaults, control", "0": "tuned"}


LOG = "".join(
    f"{client} {number} {1000 * number} 0 17000000{number:02d} 5\n"
    for client in range(120)
    for number in range(1, 51)
)


@pytest.fixture
def kept_log(tmp_path: Path) -> bytes:
    """That log as a trial keeps it."""
    (tmp_path / "log.1").write_text(LOG)
    keep_log([tmp_path / "log.1"], tmp_path / TRANSACTION_LOG, ["pgbench"])
    return (tmp_path / TRANSACTION_LOG).read_bytes()


def test_latency_quantiles_come_from_the_transaction_log_where_there_is_one(
    run, of_tuned, kept_log: bytes
) -> None:
    assert shown(run()).trials["latency_p95_ms"].isna().all()
    row = of_tuned(TRANSACTION_LOG, kept_log)
    assert row.latency_p50_ms == pytest.approx(25.5, abs=1)
    assert 47 <= row.latency_p95_ms <= 49


def flush_test(ops_per_s: float, **durability: str) -> str:
    section = "Compare file sync methods using one 8kB write"
    rows = [
        {"section": section, "method": "fdatasync", "ops_per_s": ops_per_s, "usecs_per_op": 1e6 / ops_per_s}
    ]
    settings = {"fsync": "on", "synchronous_commit": "on", "wal_sync_method": "fdatasync", **durability}
    return json.dumps({"durability": settings, "flushes": {"methods": rows}})


def test_more_commits_than_flushes_could_make_safe_are_flagged(folder_of, of_tuned, tmp_path: Path) -> None:
    assert pd.isna(of_tuned(Flushes.FILE, flush_test(80.0)).flushes_per_s), "its workload has no invariant"
    folder = folder_of(1, name="writes", workload=load_workload("tpcb-like"))
    run_study(folder, FakeBench(folder.read().plan, tmp_path, TPS).open)
    row = of_tuned(
        Flushes.FILE, flush_test(80.0), folder=folder
    )  # of four clients each waits for its own commit
    assert row.flushes_per_s == 80
    (found,) = doubts(folder)
    assert (found.code, found.level) == ("implausible_commit_rate", "tuned")
    of_tuned(Flushes.FILE, flush_test(800.0), folder=folder)
    assert doubts(folder) == []
    assert pd.isna(
        of_tuned(Flushes.FILE, flush_test(80.0, synchronous_commit="off"), folder=folder).flushes_per_s
    )
    assert "damaged" in of_tuned(Flushes.FILE, "{}", folder=folder).error


def test_what_a_statement_took_is_a_row_per_trial_where_the_load_tool_told(run, of_tuned) -> None:
    folder = run()
    assert shown(folder).measured.statements.empty
    told = pgbench_output(tps=2000)[0] + (
        "statement latencies in milliseconds and failures:\n"
        "         0.002           0  \\set aid random(1, 100000 * :scale)\n"
        "         0.312           0  UPDATE pgbench_accounts SET abalance = 1;\n"
    )
    of_tuned("stdout", told, folder=folder)
    frame = shown(folder).measured.statements
    assert frame["latency_ms"].tolist() == [0.002, 0.312]
    assert set(frame["level"]) == {"tuned"}
