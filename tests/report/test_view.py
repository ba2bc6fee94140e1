"""What a study shows of itself: warnings, servers, places and tunables, and never a path."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchlib.report.view import View, _together
from fakes import seal
from page_parts import rows

from benchlib.load.latency import keep_log
from benchlib.plan.design import Trial
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.plan.workload import Workload
from benchlib.stats import Concern
from benchlib.study.records import ReplicaReadings, Samples
from benchlib.study.store import TRANSACTION_LOG


@pytest.fixture
def kept(view_of) -> Callable[..., View]:
    """The view of a study of three blocks that ran; facts may be added to its measurements, or provenance."""

    def make(*, facts: dict[str, object] | None = None, **provenance: object) -> View:
        tps = {"defaults": 1000.0, "control": 1001.0, "tuned": 2000.0}
        view = view_of(tps, about={"provenance": provenance})
        for path in view.experiment.folder.path.glob("trials/*/measurement.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), **(facts or {})}))
        seal(view.experiment.folder)
        return view

    return make


def test_what_the_bench_warned_of_is_a_reason_for_doubt(kept) -> None:
    reasons = kept(facts={"warnings": ["replica1 was gone"]}).validity().html.replace("&#39;", "'")
    assert re.search(r"all trials of [^:]*'tuned'[^:]*: replica1 was gone", reasons)


def test_who_ran_what_is_told_where_several_hosts_did(view_of) -> None:
    def leaving(trial: Trial) -> dict[str, object]:
        away = {"replica1": {"host": "db2", "round_trip_s": 0.0012, "readings": []}}
        return {ReplicaReadings.FILE: {"elsewhere": away}} if trial.level == "tuned" else {}

    levels = {"tuned": Level(replication={"replicas": 1, "on": ["db2"]})}
    told = view_of(
        {"defaults": 1000.0, "control": 1001.0, "tuned": 900.0}, levels=levels, leaving=leaving
    ).hosts()
    assert told.title == "Of 2 hosts 1 served, 1 followed; round trips of 1.2 ms"
    assert "this machine: server, load tool; db2: replica1, 1.2 ms away" in told.alt
    of_server, of_replica = told.numbers.astype(object).to_numpy().tolist()
    assert of_server[:3] == ["this machine", "server, load tool", "all"]
    assert of_replica == ["db2", "replica1", "tuned", 1.2, 1.2]


def test_a_server_that_is_not_ours_serves_and_a_failed_trial_s_generators_are_not_its_servers(
    view_of,
) -> None:
    levels = {"tuned": Level(target="shop"), "far": Level(load={"from": ["gen1"]})}
    told = view_of(
        {"defaults": 1000.0, "control": 1001.0, "tuned": 900.0, "far": 900.0}, levels=levels
    ).hosts()
    assert told.title == "Of 2 hosts 1 made the load, 2 served"
    ran = {tuple(row) for row in told.numbers[["host", "runs"]].to_numpy().tolist()}
    assert ran == {
        ("this machine", "server, load tool"), ("this machine", "server"),
        ("this machine", "load tool"), ("the target", "server"),
    }  # fmt: skip


def test_one_host_that_does_everything_is_not_told(kept) -> None:
    assert kept().hosts() is None


def test_caps_that_all_levels_have_alike_are_among_the_facts(view_of) -> None:
    words = {"reads": "capped at 600 IOPS", "writes": "capped at 600 IOPS", "memory": "capped at 1 GB"}
    every = {"defaults": words, "control": words, "tuned": words}
    speeds = dict.fromkeys(every, 1000.0)
    alike = view_of(speeds, about={"levels_in_words": every})
    assert alike.experiment.facts()["Caps"] == "reads and writes 600 IOPS; memory 1 GB"
    every = {name: {**words, "reads": name, "memory": "as it is"} for name in every}
    apart = view_of(speeds, about={"levels_in_words": every}, name="apart")
    assert apart.experiment.facts()["Caps"] == "writes 600 IOPS"


def test_servers_of_different_builds_are_a_reason_for_doubt(kept) -> None:
    view = kept(builds_differ="the versions come from different builds")
    assert "the versions come from different builds" in view.validity().html
    assert "builds" not in view.provenance().html
    assert not any(concern.code == "builds_differ" for concern in kept().experiment.analysis.warnings)


def test_provenance_tells_each_server_and_the_tunables_in_force(kept) -> None:
    servers = [
        {"label": "PostgreSQL 11.22 (npm)", "compiler": "gcc 7 -Os", "configure": None},
        {"label": "PostgreSQL 18.4 (wheel)", "configure": "--without-icu"},  # as older studies have it
    ]
    view = kept(
        facts={"host": {"vm.swappiness": "60"}}, servers=servers, host={"memory_mib": 7, "virtual": True}
    )
    facts = [tuple(row.values()) for row in rows(view.provenance())]
    *facts, script, check = facts
    assert script == ("tpcb-like, script 1, weight 1 of 1", "pgbench's tpcb-like")
    assert check == ("tpcb-like, check after a trial", "none"), "none is named where the workload has none"
    assert facts[:-1] == [
        ("server", "PostgreSQL 11.22 (npm); gcc 7 -Os"),
        ("server", "PostgreSQL 18.4 (wheel); --without-icu"),
        ("host, memory mib", "7"),
        ("host, virtual", "yes"),
    ]
    assert facts[-1][0] == "tunable, vm.swappiness"
    value, levels = facts[-1][1].rstrip(")").split(" (")
    assert value == "60"
    assert set(levels.split(", ")) == {"defaults", "control", "tuned"}


def test_of_a_fleet_what_differs_between_hosts_stands_side_by_side(kept) -> None:
    hosts = {"db1": {"kernel": "6.1", "processors": 4}, "db2": {"kernel": "6.5", "processors": 4}}
    facts = dict(tuple(row.values()) for row in rows(kept(host=hosts["db1"], hosts=hosts).provenance()))
    assert facts["host, kernel"] == "db1: 6.1; db2: 6.5"
    assert facts["host, processors"] == "4"


@pytest.fixture
def sampled(view_of) -> Callable[..., View]:
    """The view of a study whose trials were sampled, each level faster by 1,000 than the one before; its plan may be changed."""

    def make(**changes: Any) -> View:
        levels = ["defaults", "control", *changes.get("levels", ["tuned"])]
        speeds = {name: 1000.0 * place for place, name in enumerate(levels, 1)}
        return view_of(speeds, instruments=True, **changes)

    return make


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        (["disk, 1", "disk, 8"], "“disk …”"),
        (["disk, 1", "ram, 1"], "“disk, 1”, “ram, 1”"),
        (["disk, 1", "disk, 8", "ram, 1", "ram, 8"], "“disk, 1”, “disk, 8”, “ram, 1” and 1 more"),
        (["ram, 1"], "“ram, 1”"),
        (["disk, 1", "disk, 8", "ram, 1", "ram, 8", "tape"], "all levels"),
    ],
)
def test_levels_that_alone_begin_alike_are_told_by_that(levels, words) -> None:
    assert _together(levels, ["disk, 1", "disk, 8", "ram, 1", "ram, 8", "tape"]) == words


def test_why_is_shown_of_a_study_that_was_sampled(sampled) -> None:
    view = sampled()
    assert str(view.why()).startswith("What held the levels back: ")
    assert "(all levels)" in str(view.why())
    mechanism = view.mechanism().html
    assert "What held each level back" in mechanism
    assert "Server CPU, ms" in mechanism
    assert "lag" not in mechanism
    assert "IO: WALSync" in view.waits().alt
    assert "Queue length" in view.devices().svg
    assert view.correlation() is None, "of less than twenty seconds"
    assert "while a checkpoint was written" in view.timeline().caption
    assert view.latency_ladder() is None


def test_a_study_without_telemetry_shows_what_it_has(kept) -> None:
    view = kept()
    assert "512" in view.mechanism().html
    for what in (
        "why",
        "waits",
        "devices",
        "correlation",
        "latency_ladder",
        "shares",
        "conditions",
    ):
        assert getattr(view, what)() is None, what
    assert "checkpoint" not in view.timeline().caption


def test_nothing_is_checked_where_nothing_is_to_be_run(kept) -> None:
    assert kept().preflight() is None


def test_grave_doubts_stand_apart(sampled, monkeypatch) -> None:
    view = sampled()
    grave = Concern("failures", "a tenth failed", level="tuned", grave=True)
    analysis = dataclasses.replace(view.experiment.analysis, warnings=(grave, Concern("drift", "it drifts")))
    monkeypatch.setitem(view.experiment.__dict__, "analysis", analysis)
    assert [row["what"] for row in rows(view.doubts())] == ["a tenth failed"]
    assert [row["about"] for row in rows(view.validity())] == ["the study"]


def test_the_command_that_repeats_stands_apart_from_the_one_that_extends(kept) -> None:
    repeat, extend = str(kept().rerun()).split("\n\n")
    assert repeat.endswith("benchlib run template -f small.study.json -p study small-again")
    assert extend.endswith("benchlib run template -f small.study.json -p study small -p blocks 5")


def test_of_the_host_of_a_server_that_is_not_ours_nothing_is_shown(sampled) -> None:
    view = sampled(base=Level(target="crm"))
    devices = view.devices()
    assert "The host of defaults, control, tuned is not ours and was not sampled" in devices.caption
    assert "GRANT pg_read_server_files TO our_role; GRANT EXECUTE" in devices.caption
    assert "Operational speed" in devices.svg
    assert "Queue length" not in devices.svg
    assert view.correlation() is None
    costs = view.experiment.costs
    assert costs[["server_cpu_ms_per_transaction", "context_switches_per_transaction"]].isna().all(axis=None)
    assert costs["tool_cpu_ms_per_transaction"].notna().all()


def test_the_host_of_a_server_that_is_not_ours_is_shown_where_it_was_sampled(sampled) -> None:
    view = sampled(base=Level(target="crm"))
    for path in view.experiment.folder.path.glob(f"trials/*tuned*/{Samples.FILE}"):
        Samples.model_validate({**dict(Samples.from_bytes(path.read_bytes())), "of_target": True}).write(
            path.parent
        )
    seal(view.experiment.folder)
    devices = view.devices()
    assert "The host of defaults, control is not ours" in devices.caption
    assert "The devices of tuned are all disks of its host" in devices.caption
    assert "Queue length" in devices.svg
    assert view.experiment.trials.set_index("level")["processors_share"].dropna().index.unique().tolist() == [
        "tuned"
    ]
    costs = view.experiment.costs.set_index("level")["context_switches_per_transaction"]
    assert costs.dropna().index.unique().tolist() == ["tuned"]


def test_latencies_are_shown_where_logs_are_kept(sampled, tmp_path: Path) -> None:
    view = sampled()
    for path in view.experiment.folder.path.glob("trials/*"):
        done = {"defaults": 3000, "control": 6000, "tuned": 9000}[path.name.rpartition("-")[2]]
        rows = (f"0 {n} {1000 + n % 60} 0 17000000{20 + 3 * n // done:02d} 5\n" for n in range(done))
        (tmp_path / "log.1").write_text("".join(rows))
        keep_log([tmp_path / "log.1"], path / TRANSACTION_LOG, ["pgbench"])
    seal(view.experiment.folder)
    assert "defaults quantile p50: 1.03 (" in view.latency_ladder().alt


def test_of_many_levels_those_that_differ_most_share_a_panel(sampled) -> None:
    levels = {f"step {n}": Level(settings={"work_mem": f"{n}MB"}) for n in range(1, 9)}
    figure = sampled(levels=levels).devices()
    assert "Of the 10 levels the 5 that differ most" in figure.caption
    shown = list(dict.fromkeys(figure.numbers["level"]))
    assert shown == ["defaults", "step 4", "step 5", "step 6", "step 7", "step 8"]


def test_levels_that_load_have_no_panel_over_time_and_the_others_are_compared_without_them(sampled) -> None:
    load = Workload(name="load", title="Load", tool="pgbench-init", pgbench_tables=False)
    view = sampled(levels={"tuned": Level(), "loading": Level(workload="load")}, workloads={"load": load})
    timeline = view.timeline().svg
    assert "tuned" in timeline
    assert "loading" not in timeline
    trials = view.experiment.trials
    latency = trials["latency_average_ms"].where(trials["level"] != "loading")
    view.experiment.__dict__["trials"] = trials.assign(latency_average_ms=latency)
    took = next(row for row in rows(view.mechanism()) if row.get("figure") == "Mean latency, ms")
    assert "%" in took["tuned"]
    assert took["loading"] == "–"


def test_levels_that_differ_in_clients_alone_are_a_curve(sampled) -> None:
    def level(clients: int, **settings: str) -> Level:
        return Level.model_validate({"load": {"clients": clients}, "settings": settings})

    levels = {f"tuned, {n} clients": level(n, work_mem="8MB") for n in (2, 4, 8)}
    levels |= {f"defaults {n}": level(n) for n in (2, 8)}
    view = sampled(levels=levels)
    assert view.client_sweep().numbers.query("series == 'tuned'")["clients"].to_list() == [2, 4, 8]
    assert view.change_by_clients() is None  # all are compared with one number of clients
    assert sampled(name="other").client_sweep() is None


def test_waits_are_set_against_the_host_where_there_are_seconds_enough(sampled) -> None:
    table = sampled(load=Load(duration_s=6)).correlation()
    assert "45 seconds of 9 trials" in table.html
    assert "IO: WALSync" in table.html
