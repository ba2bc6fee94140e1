"""Levels that are crossed, compared with others than the baseline, run in part, or left out."""

import pytest
from test_planning import GIB, VALUES, WORKLOAD, planned, refused

from benchlib.errors import InputError
from benchlib.levers import BY_KEY
from benchlib.plan.model import Study
from benchlib.plan.planning import make_study

GRID = {
    "disk": {"slow": {"storage": {"read_iops": 100}}, "fast": {}},
    "load": {"read/write": {}, "read-only": {"workload": "reads"}},
    "clients": {"4 clients": {"load": {"clients": 4}}, "8 clients": {"load": {"clients": 8}, "settings": {"jit": "off"}}},
}  # fmt: skip
CROSSED = {"levels": {}, "baseline": "", "grid": GRID, "along": "disk", "workload": "w"}


def test_a_grid_is_crossed_into_levels_and_compared_along_one_dimension() -> None:
    factor = planned(**CROSSED).plan.factor
    assert list(factor.levels)[:3] == [
        "slow, read/write, 4 clients",
        "control",
        "slow, read/write, 8 clients",
    ]
    assert len(factor.levels) == 9
    assert factor.baseline == "slow, read/write, 4 clients"
    both = factor.levels["slow, read-only, 8 clients"]
    assert (both.workload, both.load.clients, both.settings) == ("reads", 8, {"jit": "off"})
    assert both.part("storage")["read_iops"] == 100
    assert factor.against == {
        f"fast, {load}, {clients}": f"slow, {load}, {clients}"
        for load in GRID["load"]
        for clients in GRID["clients"]
    }
    assert factor.cells["fast, read-only, 4 clients"] == {
        "disk": "fast", "load": "read-only", "clients": "4 clients"
    }  # fmt: skip
    assert "control" not in factor.cells


def test_an_answer_of_a_grid_is_named_by_some_of_its_values() -> None:
    study = planned(**CROSSED, answers={"fast, 8 clients": "it", "read-only, fast": "that"})
    assert study.plan.factor.named("fast, 8 clients") == "fast, read/write, 8 clients"
    assert study.plan.factor.named("read-only, fast") == "fast, read-only, 4 clients"
    assert study.plan.factor.named("fast, 16 clients") is None
    assert "'fast, slow' is not among" in refused(**CROSSED, answers={"fast, slow": "it"})


def test_shares_of_memory_and_data_are_those_of_the_whole_combination() -> None:
    """A cap and a workload of one dimension are what the settings and the storage of another take their share of."""
    grid: dict[str, object] = {
        "settings": {"defaults": {}, "tuned": {"settings": {"shared_buffers": "25 % of memory"}}},
        "memory": {
            "small": {"storage": {"memory": "50 % of data"}},
            "smaller": {"storage": {"memory": "64MB"}},
        },
        "load": {"read/write": {}, "heavy": {"workload": "heavy"}},
    }
    heavy = WORKLOAD.model_copy(update={"name": "heavy", "mib_per_scale": 20})
    plan = make_study({**VALUES, **CROSSED, "grid": grid, "along": ""}, GIB, {"w": WORKLOAD, "heavy": heavy}.__getitem__, BY_KEY).plan  # fmt: skip
    buffers = {name: plan.level(name).settings.get("shared_buffers") for name in plan.factor.levels}
    # of 110, 210 and 64 MB
    assert buffers["tuned, small, read/write"] == "27MB"
    assert buffers["tuned, small, heavy"] == "52MB"
    assert buffers["tuned, smaller, heavy"] == "16MB"
    assert buffers["defaults, small, heavy"] is None


def test_where_one_value_of_the_direction_is_left_the_last_other_dimension_is_compared() -> None:
    gone = {name: "no root" for name in planned(**CROSSED).plan.factor.levels if name.startswith("slow")}
    factor = make_study({**VALUES, **CROSSED}, 4 * GIB, lambda name: WORKLOAD, BY_KEY, gone).plan.factor
    assert factor.baseline == "fast, read/write, 4 clients"
    assert factor.against == {f"fast, {load}, 8 clients": f"fast, {load}, 4 clients" for load in GRID["load"]}


def test_without_a_direction_the_cells_of_a_grid_are_compared_with_the_first() -> None:
    factor = planned(**{**CROSSED, "along": "", "grid": {"disk": GRID["disk"]}}).plan.factor
    assert (factor.baseline, factor.against) == ("slow", {})


@pytest.mark.parametrize(("stem", "count"), [("d", 7), ("a_parameter_with_a_long_name_", 11)])
def test_a_screening_runs_24_of_the_combinations_named_by_dimension(stem: str, count: int) -> None:
    grid = {f"{stem}{number}": {"-": {}, "+": {"settings": {"jit": "off"}}} for number in range(count)}
    factor = planned(**{**CROSSED, "along": "", "grid": grid, "screen": True}).plan.factor
    assert len(factor.levels) == 25
    assert factor.baseline == "none"
    assert set(factor.levels) - {"control"} == set(factor.cells)
    for name, cell in factor.cells.items():
        left = [dimension for dimension, end in cell.items() if end == ("-" if "all" in name else "+")]
        whole = ("all but " * ("all" in name) + ", ".join(left)) if left else name
        assert name == whole or (len(whole) > 80 and "…" in name)
    assert set(factor.cells["all"].values()) == {"+"}
    assert "takes 6 to 11 dimensions" in refused(**{**CROSSED, "screen": True})
    assert "a grid; give one" in refused(screen=True)


def test_workloads_that_are_not_compared_are_parts_of_their_own() -> None:
    plan = make_study(
        {**VALUES, **CROSSED},
        4 * GIB,
        lambda name: WORKLOAD.model_copy(update={"name": name}),
        {},
    ).plan
    parts = plan.strata()
    assert (
        parts["slow, read/write, 4 clients"]
        == parts["control"]
        == parts["fast, read/write, 8 clients"]
        == "w"
    )
    assert parts["slow, read-only, 4 clients"] == parts["fast, read-only, 8 clients"] == "reads"


def test_a_profile_runs_only_a_part() -> None:
    few = {"quick": {**VALUES["profiles"]["quick"], "only": {"clients": ["8 clients"]}}}  # type: ignore[index]
    assert "slow, read/write, 4 clients" not in planned(**{**CROSSED, "profiles": few}).plan.factor.levels
    two = {"quick": {"only": ["slow, read/write, 4 clients", "fast, read-only, 8 clients"]}}
    factor = planned(**{**CROSSED, "along": "", "profiles": two}).plan.factor
    assert [*factor.levels] == ["slow, read/write, 4 clients", "control", "fast, read-only, 8 clients"]
    assert [*factor.cells] == two["quick"]["only"]
    levels = {"defaults": {}, "a": {"settings": {"jit": False}}, "b": {}, "c": {}}
    against = {"c": "b"}
    some = {"quick": {"only": ["defaults", "a", "c"]}}
    study = planned(levels=levels, against=against, profiles=some)
    assert list(study.plan.factor.levels) == ["defaults", "control", "a"]
    assert "“b”, which is left out" in study.left_out["c"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"grid": {"disk": []}}, "grid.disk: Input should be a valid dictionary"),
        ({"grid": {"disk": {"a": 3, "b": {}}}}, "grid.disk.a: Input should be"),
        ({"along": "tier"}, "'tier' is not a dimension"),
        ({"levels": {"a": {}}}, "give one of them"),
        ({"blocks": "auto"}, "where some are compared with others give their number"),
        ({"profiles": {"quick": {"only": {"disk": ["tape"]}}}}, "'only' wants dimensions"),
        ({"profiles": {"quick": {"only": ["slow"]}}}, "'only' names “slow”, which is no combination"),
    ],
)
def test_a_grid_that_makes_no_study_is_refused(changes: dict[str, object], why: str) -> None:
    assert why in refused(**{**CROSSED, **changes})


@pytest.mark.parametrize(
    ("against", "why"),
    [
        ({"tuned": "nobody"}, "'nobody' is not among the levels"),
        ({"defaults": "tuned"}, "'defaults' is the baseline"),
        ({"tuned": "more", "more": "tuned"}, "in the end compared with itself"),
    ],
)
def test_references_that_cannot_be_are_refused(against: dict[str, str], why: str) -> None:
    levels = {"defaults": {}, "tuned": {}, "more": {}}
    assert why in refused(levels=levels, against=against)


def left_out(reasons: dict[str, str], **changes: object) -> Study:
    return make_study({**VALUES, **changes}, 4 * GIB, lambda name: WORKLOAD, BY_KEY, reasons)


def test_levels_that_cannot_be_run_are_left_out_with_those_that_hang_on_them() -> None:
    levels = {"defaults": {}, "a": {}, "b": {}, "c": {}}
    study = left_out({"a": "it takes root"}, levels=levels, against={"b": "a"})
    assert list(study.plan.factor.levels) == ["defaults", "control", "c"]
    assert study.left_out["a"] == "it takes root"
    assert "“a”, which is left out" in study.left_out["b"]
    with pytest.raises(InputError, match="baseline: 'defaults' cannot be run here: it takes root"):
        left_out({"defaults": "it takes root"})


def test_of_a_grid_the_next_in_line_is_compared_with() -> None:
    disks = {"disk": {"slow": {}, "fast": {}, "faster": {}}, "clients": GRID["clients"]}
    reasons = dict.fromkeys(["slow, 4 clients", "slow, 8 clients"], "it takes root")
    factor = left_out(reasons, **{**CROSSED, "grid": disks}).plan.factor
    assert factor.baseline == "fast, 4 clients"
    assert factor.against == {
        "faster, 4 clients": "fast, 4 clients",
        "faster, 8 clients": "fast, 8 clients",
    }
    with pytest.raises(InputError, match="there are none; it takes root"):
        left_out(
            dict.fromkeys(["slow", "fast"], "it takes root"), **{**CROSSED, "grid": {"disk": GRID["disk"]}}
        )
