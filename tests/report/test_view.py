"""What a study shows of itself: warnings, servers, places and tunables, and never a path."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from fakes import FakeBench

from benchlib.errors import StudyError
from benchlib.load.latency import keep_log
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.plan.workload import Workload
from benchlib.report.figures.tables import Table
from benchlib.report.view import View
from benchlib.server.installations import Installation
from benchlib.server.target import Target
from benchlib.study import preflight, runs
from benchlib.study.experiment import Experiment, shown
from benchlib.study.loop import run_study
from benchlib.study.runs import provenance
from benchlib.study.store import TRANSACTION_LOG, StudyFolder

EIGHTEEN = Installation(
    "18.4", Path("/opt/a/bin"), "wheel", "'--prefix=/opt/a' '--without-icu'", "gcc 14 -O2"
)
ELEVEN = Installation("11.22", Path("/opt/b/bin"), "npm", None, "gcc 7 -Os")


@pytest.fixture
def kept(folder_of, tmp_path: Path) -> Callable[..., View]:
    """The view of a study of three blocks that ran; facts may be added to its measurements, or provenance."""

    def make(*, facts: dict[str, object] | None = None, **of_provenance: object) -> View:
        folder: StudyFolder = folder_of(3)
        tps = {"defaults": 1000.0, "control": 1001.0, "tuned": 2000.0}
        run_study(folder, FakeBench(folder.read().plan, tmp_path, tps).open)
        for path in folder.path.glob("trials/*/measurement.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), **(facts or {})}))
        return View(Experiment(folder, folder.read().model_copy(update={"provenance": of_provenance})))

    return make


def cells(table: Table) -> dict[str, str]:
    """A table of two columns; of rows with one heading the last."""
    rows = BeautifulSoup(table.html, "html.parser").tbody.find_all("tr")
    return {row.th.get_text(): row.find_all("td")[-1].get_text() for row in rows}


def test_what_the_bench_warned_of_is_a_reason_for_doubt(kept) -> None:
    said = kept(facts={"warnings": ["replica1 was gone"]}).validity().html.replace("&#39;", "'")
    assert re.search(r"all trials of [^:]*'tuned'[^:]*: replica1 was gone", said)


def test_servers_of_different_builds_are_a_reason_for_doubt(kept) -> None:
    view = kept(builds_differ="the versions come from different builds")
    assert "the versions come from different builds" in view.validity().html
    assert "builds" not in view.provenance().html
    assert not any(concern.code == "builds_differ" for concern in kept().experiment.analysis.warnings)


def test_a_set_that_can_be_taken_apart_is_named_if_there_is_one(kept, folder_of) -> None:
    assert "none of them changes two settings" in str(kept().shares())
    two = Level(settings={"work_mem": "8MB", "jit": "off"})
    folder = folder_of(name="two", levels={"replica": Level(replication="asynchronous"), "tuned": two})
    assert "shares_of = “tuned”" in str(View(shown(folder)).shares())


def test_provenance_tells_each_server_and_the_tunables_in_force(kept) -> None:
    servers = [
        {"label": "PostgreSQL 11.22 (npm)", "compiler": "gcc 7 -Os", "configure": None},
        {"label": "PostgreSQL 18.4 (wheel)", "configure": "--without-icu"},  # as older studies have it
    ]
    view = kept(
        facts={"host": {"vm.swappiness": "60"}}, servers=servers, host={"memory_mib": 7, "virtual": True}
    )
    html = view.provenance().html
    assert "PostgreSQL 11.22 (npm); gcc 7 -Os" in html
    assert "PostgreSQL 18.4 (wheel); --without-icu" in html
    found = cells(view.provenance())
    assert found["host, memory mib"] == "7"
    assert found["host, virtual"] == "yes"
    value, levels = found["tunable, vm.swappiness"].rstrip(")").split(" (")
    assert value == "60"
    assert set(levels.split(", ")) == {"defaults", "control", "tuned"}


@pytest.fixture
def two_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runs, preflight):
        monkeypatch.setattr(module, "find_installation", lambda name: {None: EIGHTEEN, "11": ELEVEN}[name])
    monkeypatch.setattr(runs, "find_pgbench", lambda: EIGHTEEN)


@pytest.mark.usefixtures("two_builds")
def test_provenance_has_every_server_with_its_build_and_no_path(study_of, tmp_path: Path) -> None:
    found = provenance(study_of(levels={"old": Level(postgres="11")}), tmp_path)
    assert found["servers"] == [
        {"label": "PostgreSQL 11.22 (npm)", "compiler": "gcc 7 -Os", "configure": None},
        {"label": "PostgreSQL 18.4 (wheel)", "compiler": "gcc 14 -O2", "configure": "--without-icu"},
    ]
    assert "gcc 7 -Os" in found["builds_differ"]
    assert "builds_differ" not in provenance(study_of(), tmp_path)


@pytest.mark.usefixtures("two_builds")
def test_builds_differ_only_where_levels_are_compared_with_each_other(plan_of) -> None:
    levels = {"old": Level(postgres="11"), "old, twice": Level(postgres="11")}
    plan = plan_of(levels=levels)
    assert "gcc 7 -Os" in (preflight.builds_differ(plan) or "")
    apart = plan.factor.model_copy(update={"against": {"old, twice": "old"}})
    assert preflight.builds_differ(plan.model_copy(update={"factor": apart})) is None


class FakeRemote:
    """A server that is not ours and answers."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def identity(self) -> dict[str, object]:
        return {"version": "15.3", "provider": None}


@pytest.mark.usefixtures("two_builds")
def test_a_server_that_is_not_ours_is_asked_what_it_is_and_has_no_installation_here(
    study_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "Remote", FakeRemote)
    levels = {
        "theirs": Level(target="crm"),
        "their schema": Level(target={"server": "crm", "own_schema": "bench"}),
        "other": Level(target="postgresql://ann@db.example.org/x"),
        "old": Level(postgres="11"),
    }
    found = provenance(study_of(levels=levels), tmp_path)
    assert [s["label"] for s in found["servers"]] == ["PostgreSQL 11.22 (npm)", "PostgreSQL 18.4 (wheel)"]
    what = {"version": "15.3", "provider": None}
    assert found["targets"] == {"service crm": what, "a server by URI": what}


@pytest.mark.usefixtures("two_builds")
def test_a_given_folder_is_told_by_its_file_system(study_of, tmp_path: Path) -> None:
    level = Level.model_validate({"storage": {"data": str(tmp_path)}})
    found = provenance(study_of(levels={"elsewhere": level}), tmp_path)
    assert list(found["given_folders"]) == ["a given folder"]
    assert found["given_folders"]["a given folder"]["type"]
    assert str(tmp_path) not in json.dumps(found)


def test_where_nothing_can_be_compared_the_first_failure_says_why(kept) -> None:
    with pytest.raises(StudyError, match="the first failure: PANIC: no space left"):
        _ = kept(facts={"error": "PANIC: no space left", "error_kind": "LoadError"}).experiment.analysis


WHY = (
    "mechanism",
    "waits",
    "waits_over_time",
    "devices",
    "correlation",
    "latency_ladder",
    "latency_over_time",
)


@pytest.fixture
def sampled(folder_of, tmp_path: Path) -> Callable[..., View]:
    """The view of a study whose trials were sampled; its plan may be changed."""

    def make(**changes: object) -> View:
        folder: StudyFolder = folder_of(3, **changes)
        plan = folder.read().plan
        speeds = {name: 1000.0 * (1 + place) for place, name in enumerate(plan.factor.levels)}
        run_study(folder, FakeBench(plan, tmp_path, speeds, instruments=True).open)
        return View(shown(folder))

    return make


def shown_words(view: View, what: str) -> str:
    shown = getattr(view, what)()
    return "" if shown is None else BeautifulSoup(shown._repr_html_(), "html.parser").get_text(" ")


def test_why_is_shown_of_a_study_that_was_sampled(sampled) -> None:
    view = sampled()
    assert "Server CPU, ms" in view.mechanism().html
    assert "lag" not in view.mechanism().html
    assert "IO: WALSync" in view.waits().alt
    assert "IO: WALSync" in view.waits_over_time().alt
    assert "Queue length (aqu_sz, requests): defaults" in view.devices().alt
    assert "less than twenty seconds" in str(view.correlation())
    assert "Checkpoints: defaults 3, control 3, tuned 3." in view.timeline().alt
    assert "No log of all transactions" in str(view.latency_ladder())
    assert view.latency_over_time() is None


def test_a_study_without_telemetry_says_so_and_still_shows_what_it_has(kept) -> None:
    view = kept()
    words = {what: shown_words(view, what) for what in WHY}
    assert "512" in words["mechanism"]
    assert "Not recorded, or there was none: server CPU, context switches" in words["mechanism"]
    for what in ("waits", "devices"):
        assert words[what].startswith("Nothing was sampled during these trials")
    assert "cannot be set against the host" in words["correlation"]
    assert words["waits_over_time"] == words["latency_over_time"] == ""
    assert "checkpoint" not in view.timeline().caption


def test_of_the_host_of_a_server_that_is_not_ours_nothing_is_shown(sampled) -> None:
    view = sampled(base=Level(target="crm"))
    assert "The host of defaults, control, tuned is not ours" in view.devices().caption
    assert "Queue length (aqu_sz, requests): not recorded" in view.devices().alt
    assert "Operational speed (transactions/s): defaults 1,000" in view.devices().alt
    assert "cannot be set against the host" in str(view.correlation())
    costs = view.experiment.recorded.costs
    assert costs[["server_cpu_ms_per_transaction", "context_switches_per_transaction"]].isna().all(axis=None)
    assert costs["tool_cpu_ms_per_transaction"].notna().all()


def test_latencies_are_shown_where_logs_are_kept(sampled, tmp_path: Path) -> None:
    view = sampled()
    log = "".join(f"0 {n} {1000 + n} 0 17000000{20 + n // 20:02d} 5\n" for n in range(60))
    (tmp_path / "log.1").write_text(log)
    for path in view.experiment.folder.path.glob("trials/*"):
        keep_log([tmp_path / "log.1"], path / TRANSACTION_LOG, ["pgbench"])
    assert "defaults: p50 1.03 ms" in view.latency_ladder().alt
    assert "over 3 seconds" in view.latency_over_time().alt


def test_of_many_levels_those_that_differ_most_share_a_panel(sampled) -> None:
    levels = {f"step {n}": Level(settings={"work_mem": f"{n}MB"}) for n in range(1, 9)}
    figure = sampled(levels=levels).devices()
    assert "Of the 10 levels the 5 that differ most from the baseline are shown beside it" in figure.caption
    shown = [name for name in ("defaults", "control", *levels) if f"{name} " in figure.alt]
    assert shown == ["defaults", "step 4", "step 5", "step 6", "step 7", "step 8"]


def test_levels_that_load_have_no_panel_over_time_and_the_others_are_compared_without_them(sampled) -> None:
    load = Workload(name="load", title="Load", tool="pgbench-init", pgbench_tables=False)
    view = sampled(levels={"tuned": Level(), "loading": Level(workload="load")}, workloads={"load": load})
    assert "tuned" in view.timeline().alt
    assert "loading" not in view.timeline().alt
    view.experiment.__dict__["trials"] = view.experiment.trials.assign(
        latency_average_ms=view.experiment.trials["latency_average_ms"].where(
            view.experiment.trials["level"] != "loading"
        )
    )
    assert "tuned" in view.exploratory().html
    view.experiment.__dict__["trials"] = view.experiment.trials.assign(
        latency_average_ms=None, latency_stddev_ms=None
    )
    assert str(view.exploratory()).startswith("The trials left no other figure")


def test_levels_that_are_named_share_a_panel_and_those_that_are_not_there_are_left_out(sampled) -> None:
    view = sampled()
    assert "transactions/s): tuned 3,000" in view.devices(["tuned", "nobody"]).alt
    assert str(view.devices(["nobody"])) == "None of these levels is in this study: nobody."


def test_levels_that_differ_in_clients_alone_are_a_curve(sampled) -> None:
    def level(clients: int, **settings: str) -> Level:
        return Level.model_validate({"load": {"clients": clients}, "settings": settings})

    levels = {f"tuned, {n} clients": level(n, work_mem="8MB") for n in (2, 4, 8)}
    levels |= {f"defaults {n}": level(n) for n in (2, 8)}
    alt = sampled(levels=levels).client_sweep().alt
    assert re.search(r"defaults: 2 clients [\d,]+, 4 clients [\d,]+, 8 clients [\d,]+; tuned: 2 clients", alt)
    assert "same number of clients" in str(sampled(name="other").client_sweep())
    assert str(sampled(name="other").client_sweep("joins")) == "No level of this study runs joins."


def test_waits_are_set_against_the_host_where_there_are_seconds_enough(sampled) -> None:
    table = sampled(load=Load(duration_s=6)).correlation()
    assert "45 seconds of 9 trials" in table.html
    assert "IO: WALSync" in table.html
