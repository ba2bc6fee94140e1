"""What a run asks of its hosts, and an experiment at a fixed rate: the capacity is measured once, its shares become rates."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBench
from hosts import fleet_of

from benchlib.errors import InputError, Interrupted, PreflightError
from benchlib.plan.design import Trial
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
        self.workspace, self.identity, self.build = workspace, "this", "1"
        workspace.mkdir()
        monkeypatch.setattr(runs, "preflight", lambda plan: [])
        monkeypatch.setattr(runs, "open_bench", self.open)
        monkeypatch.setattr(runs, "builds", self.builds)
        monkeypatch.setattr(runs, "provenance", self.provenance)
        monkeypatch.setattr(runs.facts, "identity", lambda: self.identity)

    def provenance(self, study: Study) -> dict[str, Any]:
        return {"host": {"identity": self.identity}, "builds": self.builds(study.plan)}

    def builds(self, plan: Plan) -> dict[str, str]:
        if not self.build:
            raise PreflightError("no PostgreSQL there")
        return {"tuned": self.build} if "tuned" in plan.factor.levels else {}

    @contextmanager
    def open(self, plan: Plan, name: str, tell: Callable[[str], None]) -> Iterator[FakeBench]:
        self.opened.append(name)
        with RatedBench(plan, self.workspace, self.reaches, raising=self.raising).open(tell) as bench:
            yield bench


@pytest.fixture
def host(tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "workspace", monkeypatch)


@pytest.fixture
def experiment_of(plan_of: Callable[..., Plan]) -> Callable[..., Experiment]:
    """An experiment of three blocks, judged by latency, as a notebook would make it anew."""

    def make(load: Load = HALF, **changes: Any) -> Experiment:
        plan = plan_of(load=load, metric="latency_average_ms", **changes)
        study = Study(name="rated", title="Rated", plan=plan, trials=plan.design(3))
        return Experiment(StudyFolder("rated"), study)

    return make


@pytest.fixture
def run(experiment_of: Callable[..., Experiment]) -> Callable[..., Experiment]:
    """Runs such an experiment, and gives it."""

    def make(*load: Load, **changes: Any) -> Experiment:
        experiment = experiment_of(*load, **changes)
        Runner(experiment).run(lambda line: None)
        return experiment

    return make


def rates(experiment: Experiment) -> dict[str, object]:
    plan = experiment.plan
    return {name: plan.level_load(name).rate for name in plan.factor.levels}


def test_what_hosts_lack_is_said_of_all_of_them_before_anything_runs(
    experiment_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(hosts: Hosts, names: list[str], function: Callable[..., Any], *arguments: Any) -> Any:
        if function is library:
            return {name: "0.0 (old)" if name == "db2" else library() for name in names}, []
        plan, role = arguments
        assert plan.level("a").part("replication")
        return {}, [f"{name}: cannot be {role}" for name in names]

    monkeypatch.setattr(Hosts, "ask", ask)
    hosts = fleet_of(db1={"address": "10.0.0.1"}, db2={"roles": ("follower",), "address": "10.0.0.2"})
    experiment = experiment_of(Load(), levels={"a": Level(replication={"on": ["db2"]})})
    lacking = r"^db2: runs benchlib 0\.0 \(old\), this is .*; db2: cannot be follower$"
    with pytest.raises(PreflightError, match=lacking):
        Runner(experiment, hosts=hosts).preflight()


@pytest.mark.parametrize(
    ("on", "changes", "message"),
    [
        (["gen1"], {}, "levels have replicas on gen1: run the study with a fleet"),
        (["db1"], {}, "replicas on db1, which can do one thing at a time"),
        (["db2"], {"load": Load(generators=("db2",))}, "load from db2, which can do one thing"),
        (["db2", "db2"], {"rebuild_every": 2}, "replicas on db2, which can do one"),
        (["db3"], {}, "the fleet names no address of db3"),
    ],
)
def test_a_host_of_a_fleet_is_asked_for_what_it_is_there_for_and_for_one_thing_at_a_time(
    experiment_of, on: list[str], changes: dict[str, Any], message: str
) -> None:
    roles = {
        "db1": ("server", "follower"),
        "db2": ("follower", "load"),
        "db3": ("follower",),
        "gen1": ("load",),
    }
    hosts = fleet_of(**{name: {"roles": able} for name, able in roles.items()})
    levels = {f"on {i}": Level(replication={"on": [name]}) for i, name in enumerate(on)}
    with pytest.raises(PreflightError, match=message):
        Runner(experiment_of(**{"load": Load(), "levels": levels, **changes}), hosts=hosts).preflight()


def test_a_build_that_was_made_anew_is_another_study(host, run) -> None:
    load = Load(duration_s=3)
    for build in ("1", "1", "2", ""):  # one that is gone changes nothing that is kept
        host.build = build
        if build == "2":
            with pytest.raises(InputError, match="was begun with another build of “tuned”"):
                run(load)
        else:
            assert len(run(load).trials) == 9


def test_the_capacity_is_measured_first_and_its_share_is_the_rate_of_all_levels(host, experiment_of) -> None:
    experiment = experiment_of()
    view = View(experiment, Runner(experiment))
    assert "at 50 % of capacity." in str(view.summary())
    view.runner.run(str)
    assert host.opened == ["rated-capacity", "rated"]
    assert experiment.plan.capacity_tps == TPS
    assert set(rates(experiment).values()) == {500.0} == set(experiment.trials["rate_tps"])
    assert set(experiment.trials["schedule_lag_average_ms"]) == {2.0}
    assert "at 500 tps (50 % of capacity)." in str(view.summary())
    assert "schedule lag" in view.mechanism().html
    assert "rate_not_held" not in {concern.code for concern in experiment.analysis.warnings}


def test_the_capacity_is_that_of_the_baseline_without_a_limit(host, run) -> None:
    limited = Load(duration_s=60, rate="50 % of capacity", latency_limit_ms=5, transaction_log=True)
    run(limited, base=Level(load=LoadPatch(rate="10 % of capacity", clients=2)))
    capacity = StudyFolder("rated-capacity").read()
    load = capacity.plan.level_load("defaults")
    assert list(capacity.plan.factor.levels) == ["defaults", "control"]
    assert (load.rate, load.latency_limit_ms, load.transaction_log, load.clients) == (None, None, False, 2)
    assert load.duration_s == runs.CAPACITY_S
    assert (capacity.blocks, capacity.plan.metric) == (3, "tps")


def test_what_the_capacity_was_is_kept_and_a_level_may_have_a_share_or_a_rate_of_its_own(host, run) -> None:
    host.reaches = {"control": 1010.0}
    own = {"80": "80 % of capacity", "few": 100}
    experiment = run(levels={name: Level(load=LoadPatch(rate=rate)) for name, rate in own.items()})
    assert StudyFolder("rated").read().provenance["capacity"] == {
        "tps": 1005.0, "lowest_tps": 1000.0, "highest_tps": 1010.0, "trials": "6 of 3 s",
        "rates": {"50 % of capacity": "502 tps", "80 % of capacity": "804 tps"},
    }  # fmt: skip
    assert rates(experiment) == {"defaults": 502.0, "control": 502.0, "80": 804.0, "few": 100.0}
    levels = View(experiment).levels().html
    for rate in ("502 tps (50 % of capacity)", "804 tps (80 % of capacity)", "100 tps"):
        assert rate in levels


def test_a_rate_in_numbers_needs_no_capacity(host, run) -> None:
    experiment = run(Load(duration_s=3, rate=200))
    assert host.opened == ["rated"]
    assert (experiment.plan.capacity_tps, set(experiment.trials["rate_tps"])) == (None, {200.0})


def test_the_same_again_measures_nothing_and_has_the_same_rates(host, run, experiment_of) -> None:
    run()
    host.reaches = {"defaults": 2000.0, "control": 2000.0}
    again = experiment_of()
    assert same_study(again.folder, again.study).plan.capacity_tps == TPS
    assert run().plan.capacity_tps == TPS
    assert host.opened == ["rated-capacity", "rated"]
    with pytest.raises(InputError, match=r"another plan \(load.rate\)"):
        run(HALF.model_copy(update={"rate": "60 % of capacity"}))


def test_an_interruption_between_the_two_goes_on_with_the_capacity_that_was_measured(host, run) -> None:
    host.raising = {4: KeyboardInterrupt()}
    with pytest.raises(Interrupted, match="3 of 6 trials are kept in data/rated-capacity"):
        run()
    assert not StudyFolder("rated").exists()
    host.raising = {}
    run()
    assert host.opened == ["rated-capacity", "rated-capacity", "rated"]
    assert len(StudyFolder("rated-capacity").kept()) == 6


def test_a_capacity_from_another_machine_is_none_of_ours(host, run) -> None:
    run()
    StudyFolder("rated").path.rename(StudyFolder("rated").path.with_name("elsewhere"))
    host.identity = "another"
    with pytest.raises(InputError, match="'rated-capacity' was begun on another machine"):
        run()


def test_a_level_that_cannot_hold_the_rate_gets_no_verdict(host, run) -> None:
    host.reaches = {"tuned": 400.0}
    experiment = run()
    (concern,) = [each for each in experiment.analysis.warnings if each.code == "rate_not_held"]
    assert (concern.level, concern.grave) == ("tuned", True)
    for words in ("500 tps in 3 of 3 trials", "reached 400 tps"):
        assert words in concern.message
    assert "did not hold the rate" in str(View(experiment).headline())
