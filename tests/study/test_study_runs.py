"""Requirements of a run on its hosts, and rates as shares of a capacity that is measured once."""

from math import inf
from unittest.mock import Mock

import pytest
from fakes import FakeBench
from hosts import fleet_of

from benchlib.errors import InputError, Interrupted, PreflightError
from benchlib.plan.level import Level, LoadPatch
from benchlib.plan.model import Load
from benchlib.study import runs
from benchlib.study.experiment import Experiment
from benchlib.study.fleet import Hosts
from benchlib.study.fleet_check import library
from benchlib.study.frames import OpenStudy
from benchlib.study.runs import Runner
from benchlib.study.store import StudyFolder

TPS = 1000.0
HALF = Load(duration_s=3, rate="50 % of capacity")
REPLICATED = {"a": Level(replication={"on": ["db2"]})}


class RatedBench(FakeBench):
    """A bench whose tool tells in its command line to which rate it was limited."""

    def measure(self, trial, folder):
        kept, rate = super().measure(trial, folder), self.plan.level_load(trial.level).rate
        words = () if rate is None else (f"--rate={rate:g}",)
        return kept.model_copy(update={"load_argv": (*kept.load_argv[:-1], *words, "bench")})


@pytest.fixture
def host(tmp_path, data_root, monkeypatch):
    """Takes the place of a machine: ``reaches`` is a level's tps, ``opened`` the studies that ran, ``origin`` where they do."""
    made = Mock(reaches={}, raising={}, opened=[], origin={"host": {"identity": "this"}})

    def open_bench(study, tell):
        def speed(trial):
            return min(made.reaches.get(trial.level, TPS), study.plan.level_load(trial.level).rate or inf)

        made.opened.append(study.name)
        return RatedBench(study.plan, tmp_path, speed, raising=made.raising).open(tell)

    monkeypatch.setattr(runs, "preflight", lambda plan: [])
    monkeypatch.setattr(runs, "open_bench", open_bench)
    monkeypatch.setattr(runs, "builds", lambda plan: made.origin.get("builds", {}))
    monkeypatch.setattr(runs, "provenance", lambda study: made.origin)
    monkeypatch.setattr(runs.facts, "identity", lambda: made.origin["host"]["identity"])
    return made


@pytest.fixture
def experiment_of(study_of):
    """An experiment of three blocks, judged by latency, as a notebook would make it anew."""

    def make(load=HALF, **changes):
        study = study_of(3, name="rated", load=load, metric="latency_average_ms", **changes)
        return Experiment(StudyFolder("rated"), study)

    return make


@pytest.fixture
def run(experiment_of):
    """Runs such an experiment, and gives it."""

    def make(*load, **changes):
        experiment = experiment_of(*load, **changes)
        Runner(experiment).run(str)
        return experiment

    return make


def test_a_host_with_another_library_is_reported_before_anything_runs(experiment_of, monkeypatch):
    libraries = {"db1": library(), "db2": "0.0 (old)"}
    monkeypatch.setattr(Hosts, "ask", lambda hosts, names, function: (libraries, []))
    hosts = fleet_of(db1={"address": "10.0.0.1"}, db2={"roles": ("follower",), "address": "10.0.0.2"})
    with pytest.raises(PreflightError, match=r"^db2: runs benchlib 0\.0 \(old\), this is "):
        Runner(experiment_of(Load(), levels=REPLICATED), hosts=hosts).preflight()


@pytest.mark.parametrize(
    ("on", "changes", "message"),
    [
        (["gen1"], {}, "levels have replicas on gen1: run the study with a fleet"),
        (["db1"], {}, "replicas on db1, which has a second task"),
        (["db2"], {"load": Load(generators=("db2",))}, "load from db2, which has a second task"),
        (["db2", "db2"], {"rebuild_every": 2}, "replicas on db2, which has a second task"),
        (["db3"], {}, "the fleet file has no address for host db"),
        (["load"], {"load": Load(generators=("gen1",))}, "the fleet file has no address for host db1"),
    ],
)
def test_a_host_needs_the_role_and_has_one_task_at_a_time(experiment_of, on, changes, message):
    roles = {
        "db1": ("server", "follower"),
        "db2": ("follower", "load"),
        "db3": ("follower",),
        "gen1": ("load",),
        "load": ("follower",),
    }
    hosts = fleet_of(**{name: {"roles": able} for name, able in roles.items()})
    levels = {f"on {i}": Level(replication={"on": [name]}) for i, name in enumerate(on)}
    with pytest.raises(PreflightError, match=message):
        Runner(experiment_of(**{"load": Load(), "levels": levels, **changes}), hosts=hosts).preflight()


def test_a_rebuilt_server_needs_a_new_study(host, run, monkeypatch):
    host.origin["builds"] = {"tuned": "1"}
    run(Load(duration_s=3))
    run(Load(duration_s=3))
    host.origin["builds"] = {"tuned": "2"}
    with pytest.raises(InputError, match="was begun with another build of “tuned”"):
        run(Load(duration_s=3))
    gone = PreflightError("no PostgreSQL there")
    monkeypatch.setattr(runs, "builds", Mock(side_effect=gone))
    assert len(run(Load(duration_s=3)).trials) == 9, "what is kept is shown"


def test_the_capacity_is_measured_first_and_its_shares_are_the_rates(host, experiment_of):
    host.reaches = {"control": 1010.0}
    own = {"80": "80 % of capacity", "few": 100}
    experiment = experiment_of(levels={name: Level(load=LoadPatch(rate=rate)) for name, rate in own.items()})
    Runner(experiment).run(str)
    assert host.opened == ["rated-capacity", "rated"]
    assert StudyFolder("rated").read().provenance["capacity"] == {
        "tps": 1005.0, "lowest_tps": 1000.0, "highest_tps": 1010.0, "trials": "6 of 3 s",
        "rates": {"50 % of capacity": "502 tps", "80 % of capacity": "804 tps"},
    }  # fmt: skip
    rates = {"defaults": 502.0, "control": 502.0, "80": 804.0, "few": 100.0}
    assert {name: experiment.plan.level_load(name).rate for name in experiment.plan.factor.levels} == rates
    assert experiment.trials.groupby("level")["rate_tps"].max().to_dict() == rates
    levels = OpenStudy(experiment).levels.set_index("level")
    wanted = {"80": "804 tps (80 % of capacity)", "few": "100 tps", "defaults": "502 tps (50 % of capacity)"}
    assert all(levels.loc[name].str.contains(rate, regex=False).any() for name, rate in wanted.items())
    assert "rate_not_held" not in {concern.code for concern in experiment.analysis.warnings}


def test_the_capacity_is_measured_without_limits(host, run):
    limited = Load(duration_s=60, rate="50 % of capacity", latency_limit_ms=5, transaction_log=True)
    run(limited, base=Level(load=LoadPatch(rate="10 % of capacity", clients=2)))
    capacity = StudyFolder("rated-capacity").read()
    load = capacity.plan.level_load("defaults")
    assert list(capacity.plan.factor.levels) == ["defaults", "control"]
    assert (load.rate, load.latency_limit_ms, load.transaction_log, load.clients) == (None, None, False, 2)
    assert load.duration_s == runs.CAPACITY_S
    assert (capacity.blocks, capacity.plan.metric) == (3, "tps")


def test_a_rate_in_numbers_needs_no_capacity(host, run):
    experiment = run(Load(duration_s=3, rate=200))
    assert host.opened == ["rated"]
    assert (experiment.plan.capacity_tps, set(experiment.trials["rate_tps"])) == (None, {200.0})


def test_the_same_again_measures_nothing_and_has_the_same_rates(host, run):
    assert run().plan.level_load("defaults").rate == TPS / 2
    host.reaches = {"defaults": 2000.0, "control": 2000.0}
    assert run().plan.capacity_tps == TPS
    assert host.opened == ["rated-capacity", "rated"]
    with pytest.raises(InputError, match=r"another plan \(load.rate\)"):
        run(HALF.model_copy(update={"rate": "60 % of capacity"}))


def test_an_interrupted_capacity_study_continues(host, run):
    host.raising = {4: KeyboardInterrupt()}
    with pytest.raises(Interrupted, match="3 of 6 trials are saved in data/rated-capacity"):
        run()
    assert not StudyFolder("rated").exists()
    host.raising = {}
    run()
    assert host.opened == ["rated-capacity", "rated-capacity", "rated"]
    assert len(StudyFolder("rated-capacity").kept()) == 6


def test_a_capacity_from_another_machine_is_refused(host, run):
    run()
    StudyFolder("rated").path.rename(StudyFolder("rated").path.with_name("elsewhere"))
    host.origin = {"host": {"identity": "another"}}
    with pytest.raises(InputError, match="'rated-capacity' was begun on another machine"):
        run()


def test_a_level_that_cannot_hold_the_rate_gets_no_verdict(host, run):
    host.reaches = {"tuned": 400.0}
    experiment = run()
    (concern,) = [each for each in experiment.analysis.warnings if each.code == "rate_not_held"]
    assert (concern.level, concern.grave) == ("tuned", True)
    assert concern.value.startswith("400 of 500 tps")
    assert concern.value.endswith("in 3 of 3 trials")
