"""Levels that are crossed, compared with others than the baseline, run in part, or left out."""

import pytest
from asked import CLIENTS, CROSSED, DISK, LOAD, QUICK, levels, planned, refused


def crossed(left_out=(), **changes):
    return planned(dict.fromkeys(left_out, "it takes root"), **{**CROSSED, **changes}).plan


def test_a_grid_is_crossed_into_levels_and_compared_along_one_dimension():
    factor = crossed().factor
    first = "slow, read/write, 4 clients"
    assert list(factor.levels)[:3] == [first, "control", "slow, read/write, 8 clients"]
    assert (len(factor.levels), factor.baseline) == (9, first)
    both = factor.levels["slow, read-only, 8 clients"]
    assert (both.workload, both.load.clients, both.settings) == ("reads", 8, {"jit": "off"})
    assert both.part("storage")["read_iops"] == 100
    rest = [f"{load}, {clients}" for load in LOAD for clients in CLIENTS]
    assert factor.against == {f"fast, {each}": f"slow, {each}" for each in rest}
    cell = {"disk": "fast", "load": "read-only", "clients": "4 clients"}
    assert factor.cells["fast, read-only, 4 clients"] == cell
    assert "control" not in factor.cells


def test_an_answer_of_a_grid_is_named_by_some_of_its_values():
    factor = crossed(answers={"fast, 8 clients": "it", "read-only, fast": "that"}).factor
    assert factor.named("fast, 8 clients") == "fast, read/write, 8 clients"
    assert factor.named("read-only, fast") == "fast, read-only, 4 clients"
    assert factor.named("fast, 16 clients") is None


def test_shares_of_memory_and_data_are_those_of_the_whole_combination():
    """A cap and a workload of one dimension are what the settings and the storage of another take their share of."""
    caps = {"small": {"storage": {"memory": "50 % of data"}}, "smaller": {"storage": {"memory": "64MB"}}}
    tuned = {"settings": {"shared_buffers": "25 % of memory"}}
    load = {"read/write": {}, "heavy": {"workload": "heavy"}}
    plan = crossed(grid={"settings": levels(tuned=tuned), "memory": caps, "load": load}, along="")
    # of 110, 210 and 64 MB
    wanted = {
        "tuned, small, read/write": "27MB",
        "tuned, small, heavy": "52MB",
        "tuned, smaller, heavy": "16MB",
        "defaults, small, heavy": None,
    }
    assert {name: plan.level(name).settings.get("shared_buffers") for name in wanted} == wanted


@pytest.mark.parametrize(("stem", "count"), [("d", 7), ("a_parameter_with_a_long_name_", 11)])
def test_a_screening_runs_24_of_the_combinations_named_by_dimension(stem, count):
    grid = {f"{stem}{number}": {"-": {}, "+": {"settings": {f"a.b{number}": 1}}} for number in range(count)}
    factor = crossed(along="", grid=grid, screen=True).factor
    assert (len(factor.levels), factor.baseline) == (25, "none")
    assert set(factor.levels) - {"control"} == set(factor.cells)
    for name, cell in factor.cells.items():
        left = [dimension for dimension, end in cell.items() if end == ("-" if "all" in name else "+")]
        whole = ("all but " * ("all" in name) + ", ".join(left)) if left else name
        assert name == whole or (len(whole) > 80 and "…" in name)
    assert set(factor.cells["all"].values()) == {"+"}


def test_workloads_that_are_not_compared_are_parts_of_their_own():
    parts = crossed().strata()
    assert {parts[name] for name in parts if "read-only" in name} == {"reads"}
    assert {parts[name] for name in parts if "read-only" not in name} == {"w"}


def test_a_profile_runs_only_a_part_of_a_grid_compared_with_its_first():
    few = ["slow, read/write, 4 clients", "fast, read-only, 8 clients"]
    for only, run in (({"clients": ["8 clients"], "load": ["read-only"]}, ["slow", "fast"]), (few, few)):
        factor = crossed(along="", profiles={"quick": {**QUICK, "only": only}}).factor
        assert [*factor.levels] == [run[0], "control", run[1]]
        assert ([*factor.cells], factor.against) == (run, {})


def test_a_part_of_a_ladder_compares_each_rung_with_the_next_below_that_runs():
    ladder = {"levels": levels("1", "2", "3", "4"), "against": {"2": "1", "3": "2", "4": "3"}}
    study = planned(**ladder, only=["defaults", "1", "3", "4"])
    assert study.plan.factor.against == {"3": "1", "4": "3"}
    alone = planned(**ladder, only=["defaults", "3", "4"])
    assert list(alone.left_out) == ["3", "4"]  # nothing is left to compare them with


def test_levels_that_cannot_be_run_are_left_out_with_those_that_hang_on_them():
    asked, why = {"levels": levels("a", "b", "c"), "against": {"b": "a"}}, "it takes root"
    study = planned({"a": why}, **asked)
    assert list(study.plan.factor.levels) == ["defaults", "control", "c"]
    assert study.left_out["a"] == why
    assert "reference “a” is left out" in study.left_out["b"]
    assert f"baseline: 'defaults' cannot be run here: {why}" in refused({"defaults": why}, **asked)
    alone = {**CROSSED, "grid": {"disk": DISK}}
    assert f"no level can run; {why}" in refused(dict.fromkeys(DISK, why), **alone)


def test_of_a_grid_the_next_in_line_is_compared_with_or_the_last_other_dimension():
    disks = {"disk": {**DISK, "faster": {"settings": {"work_mem": "8MB"}}}, "clients": CLIENTS}
    factor = crossed(["slow, 4 clients", "slow, 8 clients"], grid=disks).factor
    assert factor.baseline == "fast, 4 clients"
    assert factor.against == {f"faster, {clients}": f"fast, {clients}" for clients in CLIENTS}
    # one value of the direction is left
    factor = crossed([name for name in crossed().factor.levels if name.startswith("slow")]).factor
    assert factor.baseline == "fast, read/write, 4 clients"
    assert factor.against == {f"fast, {load}, 8 clients": f"fast, {load}, 4 clients" for load in LOAD}
