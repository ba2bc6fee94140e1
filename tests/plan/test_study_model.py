"""Levels, factors, plans: what may be said, what is refused, and what survives a file."""

import json

from hypothesis import given
from hypothesis import strategies as st

from benchlib.plan.design import Trial
from benchlib.plan.level import Level, LoadPatch
from benchlib.plan.model import Factor, Load, Measurement, Plan, Study
from benchlib.plan.workload import Script, Workload


def factor(**changes: object) -> Factor:
    parts = {"question": "?", "baseline": "a", "levels": {"a": {}, "b": {}}}
    return Factor.model_validate({**parts, **changes})


def test_a_plan_gives_each_level_its_own_load(plan_of):
    plan = plan_of(
        load=Load(duration_s=3, variables={"rows": 10, "share": 0.5}),
        base=Level(
            settings={"jit": "off"}, load={"protocol": "extended", "variables": {"rows": 20, "name": "x"}}
        ),
        levels={"many": Level(load=LoadPatch(clients=99, rate=12.5, variables={"rows": 30}))},
    )
    assert plan.level("defaults").settings == {"jit": "off"}
    some = {"protocol": "extended", "variables": {"rows": 20, "share": 0.5, "name": "x"}}
    assert plan.level_load("defaults") == plan.load.model_copy(update=some)
    many = {"protocol": "extended", "variables": {"rows": 30, "share": 0.5, "name": "x"}}
    assert plan.level_load("many") == plan.load.model_copy(update={**many, "clients": 99, "rate": 12.5})
    assert plan.load.variables == {"rows": 10, "share": 0.5}


def test_a_share_of_the_capacity_is_a_rate_once_the_capacity_is_known(plan_of):
    levels = {"own": Level(load=LoadPatch(rate="33.3% of Capacity")), "fixed": Level(load=LoadPatch(rate=7))}
    plan = plan_of(load=Load(rate="60 % of capacity"), levels=levels)
    asked = ["60 % of capacity", "33.3 % of capacity"]
    known = {None: [*asked, 7.0], 1234.5: [741.0, 411.0, 7.0], 4.5678: [2.74, 1.52, 7.0]}
    for capacity, rates in known.items():
        at = plan.model_copy(update={"capacity_tps": capacity})
        assert [at.level_load(name).rate for name in ("defaults", "own", "fixed")] == rates
        assert at.capacity_shares() == asked, "what was asked for does not change"
    assert plan_of().capacity_shares() == []


# --- whatever is said survives its file --------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = st.lists(st.text("abz_", min_size=1, max_size=9), min_size=1, max_size=2).map(".".join)
VALUES = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
RATES = st.floats(0.001, 1e9) | st.integers(1, 999).map("{} % of capacity".format)
LOADS = st.fixed_dictionaries({"clients": st.none() | st.integers(1, 100_000)}, optional={"rate": RATES})
LEVELS = st.builds(
    Level,
    postgres=st.none() | TEXT,
    settings=st.dictionaries(NAMES, VALUES, max_size=3),
    initdb=st.lists(TEXT, max_size=2).map(tuple),
    load=LOADS,
    host=st.dictionaries(st.sampled_from(["vm.swappiness", "a_b?"]), st.integers() | TEXT),
    storage=st.sampled_from([None, {"data": {"path": "/mnt/a"}, "memory": 9}]),
    replication=st.none() | st.fixed_dictionaries({"replicas": st.integers(0, 8)}),
)


@given(LEVELS, st.integers(), st.integers(1, 9), st.floats(0.001, 0.999))
def test_a_study_survives_its_file(level, seed, scale, margin):
    workload = Workload(name="w", title="W", scripts=(Script(sql="SELECT 1;\n"),))
    asked = factor(levels={"a": {}, "b “level”": level})
    plan = Plan(factor=asked, workload=workload, load=Load(), scale=scale, seed=seed, margin=margin)
    study = Study(name="s", title="S", plan=plan, trials=(Trial(1, 1, "a", 5), Trial(1, 2, "b “level”", 6)))
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_a_measurement_survives_its_file_and_absent_figures_stay_absent():
    times = {"started_s": 1.5, "finished_s": 2.25}
    measurement = Measurement(trial=Trial(2, 3, "tuned", 99), **times, load_argv=("x",), error="gone")
    text = measurement.model_dump_json()
    assert Measurement.model_validate_json(text) == measurement
    assert json.loads(text)["load_cpu_s"] is None


THERE = Level(target={"server": "there"})


def test_clusters_stay_for_their_period_and_servers_that_are_not_ours_for_all(plan_of):
    assert [plan_of(rebuild_every=2).period(block) for block in (1, 2, 3)] == [1, 1, 2]
    assert plan_of(base=THERE).period(3) == 1
    assert plan_of(factor=factor(levels={"a": THERE, "b": THERE})).period(3) == 1
    assert plan_of(factor=factor(levels={"a": THERE, "b": {}})).period(3) == 3
