"""From parameters to a study: sizes, arms, shares, room for clients, and what is refused in one line."""

import re

import pytest
from asked import CROSSED, GIB, MATRIX, QUICK, TUNED, VALUES, WORKLOADS, levels, planned, refused
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.plan.level import Level
from benchlib.plan.model import Plan, Study
from benchlib.plan.planning import study_name
from benchlib.plan.workload import Beside, Data, Script, Workload

OWN = levels("tuned", slow={"load": {"rate": "10 % of capacity"}})
RUNGS = {
    "defaults": {"storage": {"memory": "1GB"}, "host": {"vm.swappiness": 1}},
    "more": {"over": "defaults", "host": {"vm.dirty_ratio": 10}},
}
SIX = levels("tuned", **{f"l{n}": {"over": "tuned", "settings": {"geqo_threshold": n}} for n in range(4)})


def test_the_profile_gives_the_sizes_and_a_size_of_one_s_own_wins():
    study = planned(profile="full")
    load = study.plan.load
    assert (load.clients, load.threads, load.duration_s, load.warmup_s) == (100, 100, 600, 2)
    assert (study.plan.scale, study.plan.rebuild_every, study.blocks) == (300, 3, 9)
    assert (study.title, study.notebook, study.plan.seed) == ("Operating system", "operating_system", 7)
    study = planned(clients=32, blocks=4, scale=2, protocol="prepared", rate=0.0)
    load = study.plan.load
    assert (load.clients, load.duration_s, load.protocol, load.rate) == (32, 5, "prepared", None)
    assert (study.blocks, study.plan.scale) == (4, 2)
    assert planned(blocks="auto").blocks == planned(blocks="auto").plan.looks[-1]


def test_answers_are_levels_of_the_notebook_run_or_not():
    named = dict.fromkeys([*SIX][1:], "it")
    some = {"quick": {**QUICK, "only": ["defaults", "tuned"]}}
    study = planned(levels=SIX, profiles=some, answers=named, panel="costs")
    assert study.parameters["answers"] == named


def test_a_profile_may_scale_what_levels_and_base_say():
    scaled = {"base": {"settings": {"jit": True}}, "levels": {"tuned": {"settings": {"work_mem": "1MB"}}}}
    plan = planned(
        profiles={"quick": {**QUICK, **scaled}}, base={"settings": {"geqo_threshold": 2, "jit": False}}
    ).plan
    assert plan.base.settings == {"geqo_threshold": 2, "jit": True}
    tuned = plan.factor.levels["tuned"].settings
    assert tuned == {"shared_buffers": "1024MB", "jit": False, "work_mem": "1MB"}


def test_a_level_may_stand_on_top_of_one_before_it():
    most = {"over": "more", "host": {"vm.swappiness": 2}}
    level = planned(levels={**RUNGS, "most": most}).plan.factor.levels["most"]
    assert level.host == {"vm.swappiness": 2, "vm.dirty_ratio": 10}
    assert level.part("storage")["memory"] == GIB


def test_settings_may_be_a_text_or_a_file_and_merge_by_name(tmp_path):
    file = tmp_path / "pgtune.conf"
    text = "\ufeff# of a tool\r\nWORK_MEM = 8MB\r\nshared_buffers '25 % of memory' # a share\r\n"
    file.write_bytes(text.encode())
    more = {"over": "tuned", "settings": "jit off\nwork_mem=9MB"}
    asked = levels(tuned={"settings": str(file)}, more=more)
    study = planned(levels=asked)
    assert study.plan.level("more").settings == {"work_mem": "9MB", "shared_buffers": "1024MB", "jit": "off"}
    kept = {"work_mem": "8MB", "shared_buffers": "25 % of memory"}
    assert study.parameters["levels"]["tuned"] == {"settings": kept}
    file.write_text("work_mem 8MB\nthe second line\n= 3\ninclude 'x'")
    why = refused(levels=asked)
    assert why.startswith("level “tuned”: settings: ")
    assert why.endswith("line 2: the second line; line 3: = 3; line 4: include 'x'")


SHARE, AVERAGE = "60 % of capacity", "latency_average_ms"
LOGGED = {"quick": {"transaction_log": True, "rate": 9}}


@pytest.mark.parametrize(
    ("changes", "rate", "metric"),
    [
        ({}, None, "tps"),
        ({"metric": "", "rate": ""}, None, "tps"),
        # at a fixed rate latency is judged because the tps is given
        ({"rate": "500"}, 500.0, AVERAGE),
        ({"rate": "60% of capacity"}, SHARE, AVERAGE),
        ({"profiles": {"quick": {**QUICK, "rate": SHARE}}}, SHARE, AVERAGE),
        ({"profiles": LOGGED}, 9.0, "latency_p99_ms"),
        ({"rate": 500, "metric": "latency_p99_ms"}, 500.0, "latency_p99_ms"),
    ],
)
def test_a_rate_is_a_number_or_a_share_of_a_capacity_still_to_be_measured(changes, rate, metric):
    plan = planned(**changes).plan
    assert (plan.load.rate, plan.metric, plan.capacity_tps) == (rate, metric, None)
    assert plan.load.transaction_log == (metric == "latency_p99_ms")


def test_several_queries_on_real_data_log_their_transactions_for_their_p95(monkeypatch):
    scripts = tuple(Script(sql=f"SELECT {number};") for number in (1, 2))
    shop = Workload(name="shop", title="Shop", data=Data(file="shop.dump"), scripts=scripts)
    monkeypatch.setitem(WORKLOADS, "shop", shop)
    assert planned(workload="shop").plan.load.transaction_log
    monkeypatch.setitem(WORKLOADS, "shop", shop.model_copy(update={"scripts": scripts[:1]}))
    assert not planned(workload="shop").plan.load.transaction_log


def test_the_study_has_the_name_asked_for_or_one_of_factor_profile_and_shares():
    assert planned().name == study_name(VALUES) == "operating_system-quick"
    assert planned(study="mine").name == "mine"
    assert planned(shares_of="tuned").name == "operating_system-quick-shares"


def test_every_level_runs_in_every_block_with_the_control_beside_the_baseline():
    study = planned()
    factor = study.plan.factor
    assert list(factor.levels) == ["defaults", "control", "tuned"]
    assert (factor.baseline, factor.controls) == ("defaults", ("control",))
    assert factor.levels["control"] == factor.levels["defaults"]
    assert len(study.trials) == 9
    assert planned().trials == study.trials != planned(seed=8).trials
    assert planned(controls=3).plan.factor.controls == ("control 1", "control 2", "control 3")
    assert planned(controls=0).plan.factor.controls == ()


def test_a_level_taken_apart_is_each_setting_alone_and_the_set_without_it():
    tuned = {"settings": {"jit": True, "fsync": "off", "work_mem": "8MB"}, "postgres": "16"}
    defaults = {"settings": {"jit": True, "fsync": "on"}, "load": {"clients": 3}}
    other = {"settings": {"jit": False}}
    factor = planned(
        levels={"defaults": defaults, "other": other, "tuned": tuned}, shares_of="tuned"
    ).plan.factor
    only, without = factor.levels["only fsync"], factor.levels["without fsync"]
    apart = ["only fsync", "only work_mem", "without fsync", "without work_mem"]
    assert list(factor.levels) == ["defaults", "control", "tuned", *apart]
    assert only.settings == {"jit": True, "fsync": "off"}
    assert without.settings == {"jit": True, "fsync": "on", "work_mem": "8MB"}
    assert factor.levels["without work_mem"].settings == {"jit": True, "fsync": "off"}
    assert (only.postgres, only.load.clients) == (None, 3), "alone: nothing else of the level comes along"
    assert (without.postgres, without.load.clients) == ("16", None)


@pytest.mark.parametrize(("clients", "wanted"), [(80, None), (81, 101), (300, 320)])
def test_the_server_has_room_for_all_clients(clients, wanted):
    assert planned(clients=clients).plan.base.settings.get("max_connections") == wanted


def test_background_clients_need_room_too(monkeypatch):
    beside = WORKLOADS["w"].changed(beside=(Beside(sql="SELECT 1", clients=40),))
    monkeypatch.setitem(WORKLOADS, "w", beside)
    assert planned(clients=80).plan.base.settings == {"max_connections": 140}


@pytest.mark.parametrize(
    ("key", "given", "none"),
    [
        ("pooler", "transaction", None), ("sql", "CREATE INDEX ON t (i)", None), ("initdb", ["-k"], []),
        ("load", {"rate": 500.0}, {"rate": None}),
    ],
)  # fmt: skip
def test_an_empty_key_undoes_the_base(key, given, none):
    plan = planned(base={key: given}, levels={"defaults": {}, "without": {key: none}}).plan
    plan = Plan.model_validate_json(plan.model_dump_json())
    assert plan.level("without") == Level()
    assert plan.level("defaults") == plan.level("control") != Level()


def test_a_null_rate_undoes_the_study_s():
    plan = planned(rate=500, levels={"defaults": {}, "free": {"load": {"rate": None}}}).plan
    assert [plan.level_load(name).rate for name in ("defaults", "free")] == [500, None]


def test_a_server_that_is_not_ours_has_the_room_that_its_owner_gave_it():
    asked = levels(own={"settings": {"max_connections": 300}}, cloud={"target": "cloud"})
    plan = planned(clients=200, levels=asked).plan
    room = {name: plan.level(name).settings.get("max_connections") for name in plan.factor.levels}
    assert room == {"defaults": 220, "control": 220, "own": 300, "cloud": None}


def test_a_share_of_memory_is_one_of_this_machine_s_or_of_the_cap():
    assert planned().plan.level("tuned").settings == {**TUNED["settings"], "shared_buffers": "1024MB"}
    based = planned(base=TUNED, levels=levels("plain")).plan
    assert based.level("plain").settings["shared_buffers"] == "1024MB"
    same = {value: value for value in ("25 %", "of memory", "4GB", 8192, True)}
    shares = {"25 % of memory": "1024MB", " 12.5%  OF Memory ": "512MB", "0.001 % of memory": "1MB"}
    for value, wanted in {**shares, **same}.items():
        plan = planned(levels=levels(a={"settings": {"work_mem": value}})).plan
        assert plan.level("a").settings == {"work_mem": wanted}
    # of the cap, which is all that the server may have
    cap = {"storage": {"memory": "1GB"}}
    capped = planned(levels=levels(tuned={**TUNED, **cap})), planned(profiles={"quick": {"base": cap}})
    assert {study.plan.level("tuned").settings["shared_buffers"] for study in capped} == {"256MB"}


def test_a_share_of_the_data_is_one_of_what_the_level_s_workload_loads():
    capped: dict[str, object] = {"storage": {"memory": "50 % of data"}}
    place = {"storage": {"data": {"file_system": "ext4", "size": "400% of data"}}}
    asked = {"a": capped, "b": {**capped, "workload": "heavy"}, "c": place}
    study = planned(levels=asked, baseline="a")
    a, b, c = (study.plan.level(name).part("storage") for name in asked)
    assert (a["memory"], b["memory"]) == (110 << 20, 210 << 20)  # of 60 + 10 × 16 and 60 + 10 × 36
    assert c["data"]["size"] == 880 << 20


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        *(({"blocks": blocks}, "blocks") for blocks in (-1, "many", 3.5, 1_000_001)),
        *(({"controls": count}, "controls: Input should be") for count in (-1, 6)),
        *(({"levels": {**RUNGS, "most": {"over": below}, "later": {}}}, "level “most”: over: ")
          for below in ("most", "later", 3, ["defaults"])),
        ({"rate": 500, "metric": "tps"}, "a fixed rate decides the tps"),
        ({"levels": OWN, "metric": "tps"}, "a fixed rate decides the tps"),
        ({"rate": "60 %"}, "rate: '60 %' is not a rate"),
        ({"answers": {"untuned": "it"}}, "'untuned' is not among the levels"),
        ({"levels": SIX, "answers": dict.fromkeys(SIX, "it")}, "answers: name at most 5"),
        ({"panel": "crash"}, "panel: Input should be 'changes'"),
        ({"levels": levels(a={"settings": "x.conf"})}, "it cannot be read: No such file"),
        ({"base": {"settings": "# nothing\n"}}, "level “base”: settings: no 'name = value'"),
        ({"shares_of": "tunde"}, "parameter shares_of: 'tunde' is not one of the levels tuned"),
        ({"shares_of": "a", "levels": levels(a={"postgres": "16"})}, "needs two settings"),
        ({"levels": levels(cloud={**TUNED, "target": "cloud"})}, "memory of an external server"),
        ({"profile": "huge"}, "parameter profile: 'huge' is not one of quick, full"),
        ({"profiles": {"quick": {"client": 5}}}, "client: Extra inputs are not permitted"),
        ({"profiles": {"quick": {"clients": "x", "threads": 0}}}, "(and 1 more)"),
        ({"metric": "tpz"}, "unknown metric 'tpz'; known: tps"),
        ({"baseline": "nothing"}, "parameter baseline: 'nothing' is not among the levels: defaults, tuned"),
        ({"levels": {}}, "parameter levels: no level can run"),
        ({"levels": levels("control")}, "level “control”: this name is reserved"),
        ({"levels": {"defaults": {}, 16: {}}}, "levels.16: Input should be a valid string"),
        ({"levels": levels("a\nb")}, r"level name 'a\nb': needs 1 to 80 printable"),
        ({"levels": levels(a={"setings": {}})}, "level “a”: setings: Extra inputs are not permitted; keys are"),
        # grids and references
        ({**CROSSED, "grid": {"disk": []}}, "grid.disk: Input should be a valid dictionary"),
        ({**CROSSED, "grid": {"disk": {"a": 3, "b": {}}}}, "grid.disk.a: Input should be"),
        ({**CROSSED, "along": "tier"}, "'tier' is not a dimension"),
        ({**CROSSED, "levels": {"a": {}}}, "give only one of them"),
        ({**CROSSED, "blocks": "auto"}, "needs one baseline"),
        ({**CROSSED, "only": {"disk": ["tape"]}}, "'only' needs dimensions"),
        ({**CROSSED, "only": ["slow"]}, "parameter only: 'slow' is not among the levels"),
        ({**CROSSED, "answers": {"fast, slow": "it"}}, "'fast, slow' is not among"),
        ({**CROSSED, "screen": True}, "needs 6 to 11 dimensions"),
        ({"screen": True}, "needs 6 to 11 dimensions"),
        ({"against": {"tuned": "nobody"}}, "'nobody' is not among the levels"),
        ({"against": {"defaults": "tuned"}}, "'defaults' is the baseline"),
        ({"levels": levels("a", "b"), "against": {"a": "b", "b": "a"}}, "compared with itself through other levels"),
        # matrices and surveys
        ({**MATRIX, "versions": ["16"]}, "two versions"),
        ({**MATRIX, "versions": ["16", "x"]}, "'x' is not a version"),
        ({**MATRIX, "versions": [17.1, "18"]}, "as text"),
        ({**MATRIX, "workloads": ["/a/x.toml", "/b/x.toml"]}, "each name once"),
        ({**MATRIX, "workloads": ["w", "/b/w.toml"]}, "each name once"),
        ({"survey": True}, "survey: needs a grid"),
        ({"survey": True, "against": {"tuned": "defaults"}}, "survey: needs a grid"),
    ],
)  # fmt: skip
def test_what_makes_no_study_is_refused_in_one_line_that_names_it(changes, why):
    assert why in refused(**changes)


KEYS = st.sampled_from(["settings", "load", "clients", "postgres", "x", "initdb"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
HOSTILE = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=5
)
LEVELS = HOSTILE | st.dictionaries(st.just("defaults") | st.text(max_size=3), HOSTILE, max_size=3)
PROFILES = HOSTILE | st.just({"quick": {}}) | st.dictionaries(st.just("quick"), HOSTILE)


@given(st.fixed_dictionaries({}, optional={"levels": LEVELS, "profiles": PROFILES, "base": HOSTILE}))
def test_whatever_a_file_holds_it_is_a_study_or_one_line(changes):
    study, refusal = None, ""
    try:
        study = planned(**changes)
    except InputError as reason:
        refusal = str(reason)
    if study:
        assert Study.model_validate_json(study.model_dump_json()).plan == study.plan
    else:
        assert re.fullmatch(r"[^\n\r]+", refusal)
