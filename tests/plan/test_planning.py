"""From parameters to a study: sizes, arms, shares, room for clients, and what is refused in one line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.levers import BY_KEY
from benchlib.plan.model import Study
from benchlib.plan.planning import make_study, study_name
from benchlib.plan.workload import Script, Workload

GIB = 1 << 30
WORKLOAD = Workload(name="w", title="W", scripts=(Script(builtin="select-only"),))
VALUES = {
    "factor": "operating_system",
    "question": "Does it help?",
    "study": "",
    "profile": "quick",
    "profiles": {
        "quick": {"clients": 8, "threads": 2, "duration_s": 5, "warmup_s": 1, "blocks": 3, "scale": 10},
        "full": {"clients": 100, "threads": 100, "duration_s": 600, "blocks": 9, "scale": 300, "rebuild_every": 3},
    },
    "levels": {
        "defaults": {},
        "tuned": {"settings": {"shared_buffers": "25 % of memory", "jit": False, "work_mem": "8MB"}},
    },
    "baseline": "defaults",
    "workload": "w",
    "clients": 0,
    "duration_s": 0,
    "blocks": 0,
    "seed": 7,
}  # fmt: skip


def planned(**changes: object) -> Study:
    return make_study({**VALUES, **changes}, 4 * GIB, lambda name: WORKLOAD, BY_KEY)


def refused(**changes: object) -> str:
    with pytest.raises(InputError) as caught:
        planned(**changes)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_the_profile_gives_the_sizes() -> None:
    study = planned(profile="full")
    load = study.plan.load
    assert (load.clients, load.threads, load.duration_s, load.warmup_s) == (100, 100, 600, 2)
    assert (study.plan.scale, study.plan.rebuild_every, study.blocks) == (300, 3, 9)
    assert (study.title, study.notebook, study.plan.seed) == ("Operating system", "operating_system", 7)


def test_a_size_of_one_s_own_wins_and_zero_leaves_the_profile_s() -> None:
    study = planned(clients=32, blocks=4, scale=2, protocol="prepared", rate=0.0)
    load = study.plan.load
    assert (load.clients, load.duration_s, load.protocol, load.rate) == (32, 5, "prepared", None)
    assert (study.blocks, study.plan.scale) == (4, 2)


def test_answers_are_levels_of_the_notebook_run_or_not() -> None:
    some = {**VALUES["profiles"]["quick"], "only": ["defaults", "tuned"]}  # type: ignore[index]
    levels = {
        **VALUES["levels"],
        **{f"l{n}": {"over": "tuned", "settings": {"geqo_threshold": n}} for n in range(4)},
    }  # type: ignore[dict-item]
    more = {"levels": levels, "profiles": {"quick": some}}
    named = dict.fromkeys(["tuned", *(f"l{n}" for n in range(4))], "it")
    assert planned(**more, answers=named, lead="crashes", panel="costs").parameters["answers"] == named
    assert "'untuned' is not among the levels" in refused(answers={"untuned": "it"})
    assert "'control' is not among the levels" in refused(answers={"control": "it"})
    assert "answers: name at most 5" in refused(levels=levels, answers={**named, "defaults": "that"})
    assert "answers.tuned: " in refused(answers={"tuned": 3})
    assert "lead: Input should be '', 'crashes'" in refused(lead="crash")
    assert "panel: Input should be 'changes'" in refused(panel="")


def test_a_profile_may_scale_what_levels_and_base_say() -> None:
    scaled = {**VALUES["profiles"]["quick"], "base": {"settings": {"jit": True}}}  # type: ignore[index]
    scaled["levels"] = {"tuned": {"settings": {"work_mem": "1MB"}}}
    plan = planned(profiles={"quick": scaled}, base={"settings": {"geqo_threshold": 2, "jit": False}}).plan
    assert plan.base.settings == {"geqo_threshold": 2, "jit": True}
    assert plan.factor.levels["tuned"].settings == {
        "shared_buffers": "1024MB",
        "jit": False,
        "work_mem": "1MB",
    }
    capped = {**scaled, "base": {"storage": {"memory": "1GB"}}}
    levels = planned(profiles={"quick": capped}).plan.factor.levels
    assert (
        levels["tuned"].settings["shared_buffers"] == "256MB"
    )  # of the cap, which is all that the server may have


def test_a_level_may_stand_on_top_of_one_before_it() -> None:
    rungs = {
        "defaults": {"storage": {"memory": "1GB"}, "host": {"vm.swappiness": 1}},
        "more": {"over": "defaults", "host": {"vm.dirty_ratio": 10}},
        "most": {"over": "more", "host": {"vm.swappiness": 2}},
    }
    levels = planned(levels=rungs).plan.factor.levels
    assert levels["most"].host == {"vm.swappiness": 2, "vm.dirty_ratio": 10}
    assert levels["most"].part("storage")["memory"] == GIB
    for below in ("most", "later", 3, ["defaults"]):
        why = refused(levels={**rungs, "most": {"over": below}, "later": {}})
        assert why.startswith("level “most”: over: ")


def test_settings_may_be_a_text_or_a_file_and_merge_by_name(tmp_path: Path) -> None:
    file = tmp_path / "pgtune.conf"
    file.write_bytes(
        "\ufeff# of a tool\r\nWORK_MEM = 8MB\r\nshared_buffers '25 % of memory' # a share\r\n".encode()
    )
    levels = {
        "tuned": {"settings": str(file)},
        "more": {"over": "tuned", "settings": "jit off\nwork_mem=9MB"},
    }
    study = planned(levels={"defaults": {}, **levels})
    assert study.plan.level("more").settings == {"work_mem": "9MB", "shared_buffers": "1024MB", "jit": "off"}
    assert study.parameters["levels"]["tuned"] == {
        "settings": {"work_mem": "8MB", "shared_buffers": "25 % of memory"}
    }
    file.write_text("work_mem 8MB\nthe second line\n= 3\ninclude 'x'")
    why = refused(levels={"defaults": {}, **levels})
    assert why.startswith("level “tuned”: settings: ")
    assert why.endswith("line 2: the second line; line 3: = 3; line 4: include 'x'")
    assert "it cannot be read: No such file" in refused(levels={"defaults": {}, "a": {"settings": "x.conf"}})
    assert "level “base”: settings: no 'name = value'" in refused(base={"settings": "# nothing\n"})


def test_a_rate_is_a_number_or_a_share_of_a_capacity_still_to_be_measured() -> None:
    assert planned(rate="500").plan.load.rate == 500.0
    plan = planned(rate="60% of capacity").plan
    assert (plan.load.rate, plan.capacity_tps) == ("60 % of capacity", None)
    profiles = {"quick": {**VALUES["profiles"]["quick"], "rate": "60 % of capacity"}}  # type: ignore[index]
    assert planned(profiles=profiles).plan.load == plan.load
    assert planned(rate="").plan.load.rate is None
    assert "rate: '60 %' is not a rate such as 500 (a second) or \"60 % of capacity\"" in refused(rate="60 %")


def test_at_a_fixed_rate_latency_is_judged_because_the_tps_is_given() -> None:
    assert (planned().plan.metric, planned(metric="").plan.metric) == ("tps", "tps")
    assert planned(rate=500).plan.metric == "latency_average_ms"
    assert planned(rate=500, metric="latency_p99_ms").plan.load.transaction_log
    logged = {"quick": {"transaction_log": True, "rate": "60 % of capacity"}}
    assert planned(profiles=logged).plan.metric == "latency_p99_ms"
    own = {**VALUES["levels"], "slow": {"load": {"rate": "10 % of capacity"}}}  # type: ignore[dict-item]
    for changes in (
        {"rate": 500, "metric": "tps"},
        {"levels": own, "metric": "tps"},
        {"rate": 500, "pilot": True},
    ):
        assert refused(**changes).startswith("a fixed rate gives the tps")  # type: ignore[arg-type]


def test_auto_plans_all_looks() -> None:
    study = planned(blocks="auto")
    assert study.plan.looks
    assert study.blocks == study.plan.looks[-1]


@pytest.mark.parametrize("blocks", [-1, "many", 3.5, 1_000_001])
def test_an_impossible_number_of_blocks_is_refused_before_anything_is_made(blocks: object) -> None:
    assert "blocks" in refused(blocks=blocks)


def test_the_study_has_the_name_asked_for_or_one_of_factor_profile_and_shares() -> None:
    assert planned().name == "operating_system-quick"
    assert planned(study="mine").name == "mine"
    assert planned(shares_of="tuned").name == "operating_system-quick-shares"
    assert study_name(VALUES) == "operating_system-quick"


def test_every_level_runs_in_every_block_with_the_control_beside_the_baseline() -> None:
    study = planned()
    factor = study.plan.factor
    assert list(factor.levels) == ["defaults", "control", "tuned"]
    assert (factor.baseline, factor.controls) == ("defaults", ("control",))
    assert factor.levels["control"] == factor.levels["defaults"]
    assert len(study.trials) == 9
    assert planned().trials == study.trials
    assert planned(seed=8).trials != study.trials


def test_several_controls_are_numbered_and_none_is_none() -> None:
    assert planned(controls=3).plan.factor.controls == ("control 1", "control 2", "control 3")
    assert planned(controls=0).plan.factor.controls == ()
    for count in (-1, 6):
        assert "controls: Input should be" in refused(controls=count)


def test_shares_of_memory_are_of_this_machine_in_levels_and_base() -> None:
    study = planned(base={"settings": {"effective_cache_size": "50 % of memory"}})
    assert study.plan.factor.levels["tuned"].settings["shared_buffers"] == "1024MB"
    assert study.plan.level("defaults").settings == {"effective_cache_size": "2048MB"}


# --- shares ------------------------------------------------------------------------


def test_a_level_taken_apart_is_each_setting_alone_and_the_set_without_it() -> None:
    levels = {
        "defaults": {"settings": {"jit": True, "fsync": "on"}, "load": {"clients": 3}},
        "other": {"settings": {"jit": False}},
        "tuned": {"settings": {"jit": True, "fsync": "off", "work_mem": "8MB"}, "postgres": "16"},
    }
    factor = planned(levels=levels, shares_of="tuned").plan.factor
    assert list(factor.levels) == [
        "defaults", "control", "tuned", "only fsync", "only work_mem", "without fsync", "without work_mem"
    ]  # fmt: skip
    assert factor.levels["only fsync"].settings == {"jit": True, "fsync": "off"}
    assert factor.levels["without fsync"].settings == {"jit": True, "fsync": "on", "work_mem": "8MB"}
    assert factor.levels["without work_mem"].settings == {"jit": True, "fsync": "off"}
    only, without = factor.levels["only fsync"], factor.levels["without fsync"]
    assert (only.postgres, only.load.clients) == (None, 3), "alone: nothing else of the level comes along"
    assert (without.postgres, without.load.clients) == ("16", None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shares_of": "tunde"}, "parameter shares_of: 'tunde' is not one of the levels tuned"),
        ({"shares_of": "defaults"}, "parameter shares_of: 'defaults' is not one of the levels tuned"),
        ({"shares_of": "a", "levels": {"defaults": {}, "a": {"postgres": "16"}}}, "needs two settings"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused(changes: dict[str, object], why: str) -> None:
    assert why in refused(**changes)


# --- room for clients -----------------------------------------------------------------


@pytest.mark.parametrize(("clients", "wanted"), [(80, None), (81, 101), (300, 320)])
def test_the_server_has_room_for_all_clients(clients: int, wanted: int | None) -> None:
    assert planned(clients=clients).plan.base.settings.get("max_connections") == wanted


def test_a_server_that_is_not_ours_has_the_room_that_its_owner_gave_it() -> None:
    levels = {"defaults": {}, "own": {"settings": {"max_connections": 300}}, "cloud": {"target": "cloud"}}
    plan = planned(clients=200, levels=levels).plan
    room = {name: plan.level(name).settings.get("max_connections") for name in plan.factor.levels}
    assert room == {"defaults": 220, "control": 220, "own": 300, "cloud": None}


def test_a_share_of_memory_is_one_of_the_cap_and_of_a_target_s_nobody_knows() -> None:
    share = {"settings": {"shared_buffers": "25 % of memory"}}
    plan = planned(levels={"defaults": {}, "small": {**share, "storage": {"memory": "1GB"}}}).plan
    assert plan.level("small").settings == {"shared_buffers": "256MB"}
    assert "memory of its target" in refused(levels={"defaults": {}, "cloud": {**share, "target": "cloud"}})


def test_a_share_of_the_data_is_one_of_what_the_level_s_workload_loads() -> None:
    capped: dict[str, object] = {"storage": {"memory": "50 % of data"}}
    place: dict[str, object] = {"storage": {"data": {"file_system": "ext4", "size": "400% of data"}}}
    levels = {"a": capped, "b": {**capped, "workload": "heavy"}, "c": place}
    heavy = WORKLOAD.model_copy(update={"name": "heavy", "mib_per_scale": 20})
    study = make_study(
        {**VALUES, "levels": levels, "baseline": "a"},
        GIB,
        {"w": WORKLOAD, "heavy": heavy}.__getitem__,
        BY_KEY,
    )
    a, b, c = (study.plan.level(name).part("storage") for name in levels)
    assert (a["memory"], b["memory"]) == (110 << 20, 210 << 20)  # of 60 + 10 × 16 and 60 + 10 × 36
    assert c["data"]["size"] == 880 << 20


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"profile": "huge"}, "parameter profile: 'huge' is not one of quick, full"),
        ({"profiles": {"quick": None}}, "profiles.quick: Input should be a valid dictionary"),
        ({"profiles": {"quick": {"client": 5}}}, "do not make a study: client: Extra inputs are not permitted"),
        ({"profiles": {"quick": {"clients": "x", "threads": 0}}}, "(and 1 more)"),
        ({"metric": "tpz"}, "unknown metric 'tpz'; known: tps"),
        ({"baseline": "nothing"}, "parameter baseline: 'nothing' is not among the levels: defaults, tuned"),
        ({"levels": {}}, "parameter levels: there are none"),
        ({"levels": {"defaults": {}, "control": {}}}, "level “control”: that name is the A/A control's"),
        ({"levels": {"defaults": None}}, "levels.defaults: Input should be a valid dictionary"),
        ({"levels": {"defaults": {}, 16: {}}}, "levels.16: Input should be a valid string"),
        ({"levels": {"defaults": {}, "a\nb": {}}}, r"level name 'a\nb': want 1 to 80 printable"),
        ({"levels": {"defaults": {}, "a": {"setings": {}}}}, "level “a”: setings: Extra inputs are not permitted; keys are postgres, settings"),
    ],
)  # fmt: skip
def test_what_makes_no_study_is_refused_in_one_line_that_names_it(
    changes: dict[str, object], why: str
) -> None:
    assert why in refused(**changes)


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["settings", "load", "clients", "postgres", "x", "initdb"]), inner, max_size=2)
    ),
    max_leaves=5,
)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {}, optional={"levels": HOSTILE | st.dictionaries(st.just("defaults") | st.text(max_size=3), HOSTILE, max_size=3),
                      "profiles": HOSTILE | st.just({"quick": {}}) | st.dictionaries(st.just("quick"), HOSTILE),
                      "base": HOSTILE}
    )
)  # fmt: skip
def test_whatever_a_file_holds_it_is_a_study_or_one_line(changes: dict[str, object]) -> None:
    study, refusal = None, ""
    try:
        study = planned(**changes)
    except InputError as reason:
        refusal = str(reason)
    assert study or re.fullmatch(r"[^\n\r]+", refusal)
    if study:
        assert Study.model_validate_json(study.model_dump_json()).plan == study.plan


def test_a_part_of_a_ladder_compares_each_rung_with_the_next_below_that_runs() -> None:
    ladder = {
        "levels": {name: {} for name in ("defaults", "1", "2", "3", "4")},
        "against": {"2": "1", "3": "2", "4": "3"},
    }
    assert planned(**ladder, only=["defaults", "1", "3", "4"]).plan.factor.against == {"3": "1", "4": "3"}
    study = planned(**ladder, only=["defaults", "3", "4"])
    assert list(study.left_out) == ["3", "4"]  # nothing is left to compare them with
