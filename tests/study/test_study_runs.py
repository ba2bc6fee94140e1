"""An experiment at a fixed rate: the capacity is measured once, its shares become rates, and what is late shows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBench

from benchlib.errors import InputError, Interrupted, PreflightError
from benchlib.plan.design import Trial
from benchlib.plan.fleet import Fleet, FleetHost
from benchlib.plan.level import Level, LoadPatch
from benchlib.plan.model import Load, Measurement, Plan, Study
from benchlib.report.view import View
from benchlib.study import runs
from benchlib.study.experiment import Experiment
from benchlib.study.fleet import Hosts
from benchlib.study.fleet_check import library
from benchlib.study.loop import same_study
from benchlib.study.runs import Runner
from benchlib.study.store import StudyFolder

TPS = 1000.0
HALF = Load(duration_s=3, rate="50 % of capacity")
QUIET: Callable[[object], None] = lambda progress: None  # noqa: E731 - what a run tells is of no interest here


class RatedBench(FakeBench):
    """A bench that keeps to the rate if its servers reach it; the schedule lag is 2 ms, or that of a queue."""

    def __init__(self, plan: Plan, workspace: Path, reaches: Mapping[str, float], **options: Any) -> None:
        super().__init__(plan, workspace, self.speed, **options)
        self.reaches = reaches

    def speed(self, trial: Trial) -> float:
        reached, rate = self.reaches.get(trial.level, TPS), self.plan.level_load(trial.level).rate
        return reached if rate is None else min(reached, float(rate))

    def measure(self, trial: Trial, folder: Path) -> Measurement:
        load = self.plan.level_load(trial.level)
        kept = super().measure(trial, folder)
        if load.rate is None:
            return kept
        lag = 2.0 + 500 * load.duration_s * (1 - self.speed(trial) / float(load.rate))
        told = f"\nrate limit schedule lag: avg {lag:.3f} (max {2 * lag:.3f}) ms\ninitial connection"
        stdout = folder / "stdout"
        stdout.write_text(stdout.read_text().replace("\ninitial connection", told))
        return kept.model_copy(update={"load_argv": (*kept.load_argv[:-1], f"--rate={load.rate:g}", "bench")})


class Host:
    """Takes the place of a machine: ``reaches`` is a level's tps, ``opened`` the studies that ran."""

    def __init__(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reaches: dict[str, float] = {}
        self.raising: dict[int, BaseException] = {}
        self.opened: list[str] = []
        self.workspace, self.identity = workspace, "this"
        workspace.mkdir()
        monkeypatch.setattr(runs, "preflight", lambda plan: [])
        monkeypatch.setattr(runs, "open_bench", self.open)
        monkeypatch.setattr(runs, "provenance", lambda study: {"host": {"identity": self.identity}})
        monkeypatch.setattr(runs.facts, "identity", lambda: self.identity)

    @contextmanager
    def open(self, plan: Plan, name: str, tell: Callable[[str], None]) -> Iterator[FakeBench]:
        self.opened.append(name)
        with RatedBench(plan, self.workspace, self.reaches, raising=self.raising).open(tell) as bench:
            yield bench


@pytest.fixture
def host(tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "workspace", monkeypatch)


@pytest.fixture
def view_of(plan_of: Callable[..., Plan]) -> Callable[..., View]:
    """The view of a study of three blocks, judged by latency, as a notebook would make it anew."""

    def make(load: Load = HALF, **changes: Any) -> View:
        plan = plan_of(load=load, metric="latency_average_ms", **changes)
        study = Study(name="rated", title="Rated", plan=plan, trials=plan.design(3))
        experiment = Experiment(StudyFolder("rated"), study)
        return View(experiment, Runner(experiment))

    return make


@pytest.mark.parametrize(
    ("levels", "changes", "message"),
    [
        ({"a": {"on": ["gen1"]}}, {}, "levels have replicas on gen1: run the study with a fleet"),
        ({"a": {"on": ["db1"]}}, {}, "replicas on db1, which can do one thing at a time"),
        (
            {"a": {"on": ["db2"]}},
            {"load": Load(generators=("db2",))},
            "load from db2, which can do one thing",
        ),
        (
            {"a": {"on": ["db2"]}, "b": {"on": ["db2"]}},
            {"rebuild_every": 2},
            "replicas on db2, which can do one",
        ),
    ],
)
def test_a_host_of_a_fleet_is_asked_for_what_it_is_there_for_and_for_one_thing_at_a_time(
    view_of, levels: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    roles = {"db1": ("server", "follower"), "db2": ("follower", "load"), "gen1": ("load",)}
    hosts = {name: FleetHost(roles=able) for name, able in roles.items()}
    replicated = {name: Level(replication=replication) for name, replication in levels.items()}
    runner = view_of(**{"load": Load(), "levels": replicated, **changes}).runner
    runner.hosts = Hosts(Fleet(scheduler="tcp://127.0.0.1:1", insecure=True, hosts=hosts))
    with pytest.raises(PreflightError, match=message):
        runner.preflight()


def test_what_hosts_lack_is_said_of_all_of_them_before_anything_runs(
    view_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(
        hosts: Hosts, names: list[str], function: Callable[..., Any], *arguments: Any
    ) -> tuple[dict[str, Any], list[str]]:
        if function is library:
            return {name: "0.0 (old)" if name == "db2" else library() for name in names}, []
        plan, role = arguments
        assert plan.level("a").part("replication")
        return {}, [f"{name}: cannot be {role}" for name in names]

    hosts = {"db1": FleetHost(address="10.0.0.1"), "db2": FleetHost(roles=("follower",), address="10.0.0.2")}
    runner = view_of(load=Load(), levels={"a": Level(replication={"on": ["db2"]})}).runner
    runner.hosts = Hosts(Fleet(scheduler="tcp://127.0.0.1:1", insecure=True, hosts=hosts))
    monkeypatch.setattr(Hosts, "ask", ask)
    with pytest.raises(
        PreflightError, match=r"^db2: runs benchlib 0\.0 \(old\), this is .*; db2: cannot be follower$"
    ):
        runner.preflight()


def test_a_host_that_has_to_be_reached_has_an_address(view_of) -> None:
    hosts = {"db1": FleetHost(address="10.0.0.1"), "db2": FleetHost(roles=("follower",))}
    runner = view_of(load=Load(), levels={"a": Level(replication={"on": ["db2"]})}).runner
    runner.hosts = Hosts(Fleet(scheduler="tcp://127.0.0.1:1", insecure=True, hosts=hosts))
    with pytest.raises(PreflightError, match="the fleet names no address of db2"):
        runner.preflight()


def test_a_build_that_was_made_anew_is_another_study(host, view_of, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"host": {"identity": host.identity}, "builds": {"tuned": "1"}}
    monkeypatch.setattr(runs, "provenance", lambda study: origin)
    monkeypatch.setattr(runs, "builds", lambda plan: {"tuned": "1"})
    load = Load(duration_s=3)
    view_of(load=load).runner.run(str)
    view_of(load=load).runner.run(str)
    monkeypatch.setattr(runs, "builds", lambda plan: {"tuned": "2"})
    with pytest.raises(InputError, match="was begun with another build of “tuned”"):
        view_of(load=load).runner.run(str)

    def gone(plan: Plan) -> dict[str, str]:
        raise PreflightError("no PostgreSQL there")

    monkeypatch.setattr(runs, "builds", gone)
    view_of(load=load).runner.run(str)  # which shows what is kept


def test_the_capacity_is_measured_first_and_its_share_is_the_rate_of_all_levels(host, view_of) -> None:
    view = view_of()
    assert "at 50 % of capacity." in str(view.summary())
    view.runner.run(QUIET)
    assert host.opened == ["rated-capacity", "rated"]
    assert view.experiment.plan.capacity_tps == TPS
    assert {view.experiment.plan.level_load(name).rate for name in view.experiment.plan.factor.levels} == {
        500.0
    }
    assert set(view.experiment.trials["rate_tps"]) == {500.0}
    assert set(view.experiment.trials["schedule_lag_average_ms"]) == {2.0}
    assert "at 500 tps (50 % of capacity)." in str(view.summary())
    assert view.experiment.facts()["Load"] == "tpcb-like, 4 clients at 500 tps (50 % of capacity)"
    assert "schedule lag" in view.mechanism().html
    assert not [concern for concern in view.experiment.analysis.warnings if concern.code == "rate_not_held"]


def test_the_capacity_is_that_of_the_baseline_without_a_limit(host, view_of) -> None:
    limited = Load(duration_s=60, rate="50 % of capacity", latency_limit_ms=5, transaction_log=True)
    view_of(limited, base=Level(load=LoadPatch(rate="10 % of capacity", clients=2))).runner.run(QUIET)
    capacity = StudyFolder("rated-capacity").read()
    load = capacity.plan.level_load("defaults")
    assert list(capacity.plan.factor.levels) == ["defaults", "control"]
    assert (load.rate, load.latency_limit_ms, load.transaction_log, load.clients) == (None, None, False, 2)
    assert load.duration_s == runs.CAPACITY_S
    assert (capacity.blocks, capacity.plan.metric) == (3, "tps")


def test_what_the_capacity_was_is_kept_and_a_level_may_have_a_share_or_a_rate_of_its_own(
    host, view_of
) -> None:
    host.reaches = {"control": 1010.0}
    levels = {
        "80": Level(load=LoadPatch(rate="80 % of capacity")),
        "few": Level(load=LoadPatch(rate=100)),
    }
    view = view_of(levels=levels)
    view.runner.run(QUIET)
    assert StudyFolder("rated").read().provenance["capacity"] == {
        "tps": 1005.0,
        "lowest_tps": 1000.0,
        "highest_tps": 1010.0,
        "trials": "6 of 3 s",
        "rates": {"50 % of capacity": "502 tps", "80 % of capacity": "804 tps"},
    }
    assert "50 % of capacity" in view.provenance().html
    rates = {name: view.experiment.plan.level_load(name).rate for name in view.experiment.plan.factor.levels}
    assert rates == {"defaults": 502.0, "control": 502.0, "80": 804.0, "few": 100.0}
    assert "each level at its own rate" in str(view.summary())
    for rate in ("502 tps (50 % of capacity)", "804 tps (80 % of capacity)", "100 tps"):
        assert rate in view.levels().html


def test_a_rate_in_numbers_needs_no_capacity(host, view_of) -> None:
    view = view_of(Load(duration_s=3, rate=200))
    view.runner.run(QUIET)
    assert host.opened == ["rated"]
    assert (view.experiment.plan.capacity_tps, set(view.experiment.trials["rate_tps"])) == (None, {200.0})


def test_the_same_again_measures_nothing_and_has_the_same_rates(host, view_of) -> None:
    view_of().runner.run(QUIET)
    host.reaches = {"defaults": 2000.0, "control": 2000.0}
    again = view_of()
    assert same_study(again.experiment.folder, again.experiment.study).plan.capacity_tps == TPS
    again.runner.run(QUIET)
    assert host.opened == ["rated-capacity", "rated"]
    assert again.experiment.plan.capacity_tps == TPS
    with pytest.raises(InputError, match=r"another plan \(load.rate\)"):
        view_of(HALF.model_copy(update={"rate": "60 % of capacity"})).runner.run(QUIET)


def test_an_interruption_between_the_two_goes_on_with_the_capacity_that_was_measured(host, view_of) -> None:
    host.raising = {4: KeyboardInterrupt()}
    with pytest.raises(Interrupted, match="3 of 6 trials are kept in data/rated-capacity"):
        view_of().runner.run(QUIET)
    assert not StudyFolder("rated").exists()
    host.raising = {}
    view_of().runner.run(QUIET)
    assert host.opened == ["rated-capacity", "rated-capacity", "rated"]
    assert len(StudyFolder("rated-capacity").kept()) == 6


def test_a_capacity_from_another_machine_is_none_of_ours(host, view_of) -> None:
    view_of().runner.run(QUIET)
    StudyFolder("rated").path.rename(StudyFolder("rated").path.with_name("elsewhere"))
    host.identity = "another"
    with pytest.raises(InputError, match="'rated-capacity' was begun on another machine"):
        view_of().runner.run(QUIET)


def test_a_level_that_cannot_hold_the_rate_gets_no_verdict(host, view_of) -> None:
    host.reaches = {"tuned": 400.0}
    view = view_of()
    view.runner.run(QUIET)
    (concern,) = [concern for concern in view.experiment.analysis.warnings if concern.code == "rate_not_held"]
    assert (concern.level, concern.grave) == ("tuned", True)
    assert concern.message.startswith(
        "'tuned' did not hold the rate of 500 tps in 3 of 3 trials: there it reached 400 tps"
    )
    assert "did not hold the rate" in str(view.headline())
