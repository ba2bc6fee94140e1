"""Levels, factors, plans: what may be said, what is refused, and what survives a file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchlib.design import Trial
from benchlib.level import (
    Level,
    LoadPatch,
    Place,
    Replication,
    Storage,
    Target,
    is_off,
    is_on,
    resolve_memory_shares,
)
from benchlib.model import Factor, Load, Measurement, Plan, Script, Study, Workload

GIB = 1 << 30
SPELLINGS_OF_OFF = [False, 0, "off", "OFF", " Off ", "of", "false", "fals", "f", "FALSE", "no", "n", "0"]


def test_a_level_is_a_patch_over_the_base() -> None:
    base = Level(
        postgres="16",
        settings={"fsync": True, "work_mem": "4MB"},
        load=LoadPatch(clients=8, protocol="prepared"),
    )
    level = Level(settings={"work_mem": "8MB", "jit": False}, load=LoadPatch(clients=32))
    over = level.over(base)
    assert over.postgres == "16"
    assert over.settings == {"fsync": True, "work_mem": "8MB", "jit": False}
    assert (over.load.clients, over.load.protocol) == (32, "prepared")
    assert level.settings == {"work_mem": "8MB", "jit": False}, "the level itself stays as it is"


def test_an_empty_level_is_its_base_and_a_full_one_wins_everywhere() -> None:
    full = Level(
        postgres="18",
        settings={"jit": "off"},
        initdb=("--wal-segsize=64",),
        load=LoadPatch(clients=2, threads=1, rate=10.5),
        workload="insert",
        replication=Replication(replicas=2, quorum="ANY 1"),
        storage=Storage(data=Place(file_system="xfs", size="4GB"), read_iops=500),
        host={"vm.swappiness": 0},
    )
    assert Level().over(full) == full
    assert full.over(Level(postgres="16", initdb=("--no-sync",), storage=Storage(memory="1GB"))) == full


def test_tunables_are_patched_one_by_one() -> None:
    base = Level(host={"vm.swappiness": 60, "read_ahead_kb": 4096})
    assert Level(host={"read_ahead_kb": 256}).over(base).host == {"vm.swappiness": 60, "read_ahead_kb": 256}


@pytest.mark.parametrize(
    ("key", "text", "whole"),
    [
        ("replication", "standalone", {"replicas": 0}),
        ("replication", "asynchronous", {"replicas": 1}),
        ("replication", "synchronous", {"replicas": 1, "quorum": "FIRST 1"}),
        ("target", "reporting", {"server": "reporting"}),
        ("storage", {"data": "/mnt/fast"}, {"data": {"path": "/mnt/fast"}}),
        ("storage", {"memory": "1.5GB"}, {"memory": 3 << 29}),
    ],
)
def test_a_word_stands_for_the_usual_case(key: str, text: object, whole: dict[str, object]) -> None:
    assert Level.model_validate({key: text}) == Level.model_validate({key: whole})


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ({"replication": "sync"}, "'sync' is not one of standalone, asynchronous, synchronous"),
        ({"replication": {"replicas": 1, "quorum": "ANY 2"}}, "ANY 2 can never be met by 1 replica"),
        ({"replication": {"quorum": "MANY 1"}}, "pattern"),
        (
            {"replication": "synchronous", "settings": {"synchronous_standby_names": "x"}},
            "'replication' decides",
        ),
        ({"storage": {"data": "ext4"}}, "needs a 'size'"),
        ({"storage": {"data": {"path": "relative"}}}, "pattern"),
        ({"storage": {"data": {"path": "/x", "mount_options": "noatime"}}}, "belong to a 'file_system'"),
        ({"storage": {"wal": {"file_system": "tmpfs", "size": "1GB", "path": "/x"}}}, "lies in memory"),
        ({"storage": {"wal": {}}}, "a 'path', a 'file_system', or both"),
        ({"storage": {"memory": "1 potato"}}, "not a size such as 512MB"),
        ({"storage": {"read_iops": 0}}, "greater than 0"),
        ({"storage": {"data": "/x"}, "initdb": ["--waldir=/y"]}, "name the folder of the WAL in 'storage'"),
        ({"host": {"vm.swappiness; rm": 1}}, "pattern"),
        ({"target": "postgresql://me:secret@db/bench"}, "no password in a level"),
        ({"target": "postgresql://me@db/bench?password=x"}, "no password in a level"),
        ({"target": "postgresql://me@db/bench?sslkey=k&sslpassword=x"}, "no password in a level"),
        ({"target": "host=db user=me"}, "connection service, or a postgresql:// URI"),
        ({"target": {"server": "s", "own_schema": "pg_mine"}}, "the server's own"),
        ({"target": {"server": "s", "beside": "shop"}}, "'own_schema'"),
        ({"target": "s", "postgres": "16"}, "'postgres' is for a server of our own"),
        ({"target": "s", "host": {"vm.swappiness": 1}}, "'host' is for a server of our own"),
    ],
)
def test_a_lever_that_nothing_could_turn_is_refused(patch: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Level.model_validate(patch)


def test_a_quorum_becomes_the_names_that_a_commit_waits_for() -> None:
    level = Level(replication=Replication(replicas=2, quorum="ANY 1"), settings={"jit": "off"})
    assert level.server_settings() == {
        "jit": "off",
        "synchronous_standby_names": "ANY 1 (replica1, replica2)",
    }
    assert Level(replication="asynchronous").server_settings() == {}


@pytest.mark.parametrize("name", ["Work_Mem", "WORK_MEM"])
def test_parameter_names_are_one_in_any_case(name: str) -> None:
    assert Level(settings={name: "8MB"}).over(Level(settings={"work_mem": "4MB"})).settings == {
        "work_mem": "8MB"
    }


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"work_mem": 1, "WORK_MEM": 2}, "work_mem is there twice"),
        ({"work mem": 1}, "'work mem' is not the name"),
        ({"": 1}, "'' is not the name"),
        ({"fsync = off\nwork_mem": 1}, r"fsync = off\\nwork_mem' is not the name"),
        ({"log_line_prefix": "\0"}, "zero byte"),
        ({"seed": float("nan")}, "finite"),
        ({"seed": float("inf")}, "finite"),
        ({"work_mem": None}, "valid"),
        ({"work_mem": ["8MB"]}, "valid"),
        (None, "valid dictionary"),
    ],
)
def test_settings_that_no_file_could_hold_are_refused(settings: object, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Level.model_validate({"settings": settings})


def test_an_extension_s_parameter_has_a_dot_in_its_name() -> None:
    assert Level(settings={"pg_stat_statements.max": 100}).settings == {"pg_stat_statements.max": 100}


@pytest.mark.parametrize(
    "patch",
    [
        {"setting": {}},
        {"load": {"client": 4}},
        {"load": {"duration_s": 4}},
        {"load": {"clients": 0}},
        {"load": {"clients": -1}},
        {"load": {"threads": 100_001}},
        {"load": {"rate": 0}},
        {"load": {"rate": float("inf")}},
        {"load": {"rate": True}},
        {"load": {"rate": 10**400}},
        {"load": {"rate": "0 % of capacity"}},
        {"load": {"rate": "60 %"}},
        {"load": {"protocol": "fast"}},
        {"load": {"variables": {"a-b": 1}}},
        {"load": {"variables": {"1st": 1}}},
        {"load": {"variables": {"": 1}}},
        {"load": {"variables": {"a": ""}}},
        {"initdb": "--no-sync"},
        {"target": 5},
        {"workload": ""},
    ],
)
def test_a_misspelt_key_or_an_impossible_load_is_refused(patch: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Level.model_validate(patch)


def test_a_version_may_be_a_whole_number_but_not_a_decimal_one() -> None:
    assert Level.model_validate({"postgres": 16}).postgres == "16"
    assert Level.model_validate({"postgres": "16.10"}).postgres == "16.10"
    with pytest.raises(ValidationError, match=r'write the version as text, "16\.1"'):
        Level.model_validate({"postgres": 16.10})


def test_nothing_can_be_changed_once_it_is_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Level().postgres = "16"  # type: ignore[misc]


@pytest.mark.parametrize("value", SPELLINGS_OF_OFF)
def test_every_spelling_of_off_is_off(value: object) -> None:
    assert is_off(value)
    assert not is_on(value)


@pytest.mark.parametrize("value", [True, 1, "on", "On", "true", "tru", "t", "yes", "ye", "y", "1"])
def test_every_spelling_of_on_is_on(value: object) -> None:
    assert is_on(value)
    assert not is_off(value)


@pytest.mark.parametrize("value", ["o", "", "offf", "local", "remote_apply", 2, None, "null"])
def test_other_words_are_neither(value: object) -> None:
    assert not is_on(value)
    assert not is_off(value)


@pytest.mark.parametrize("value", SPELLINGS_OF_OFF)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fsync", "corrupt the whole cluster"),
        ("full_page_writes", "torn pages"),
        ("synchronous_commit", "latest acknowledged commits"),
        ("Synchronous_Commit", "latest acknowledged commits"),
    ],
)
def test_what_a_crash_may_cost_is_said(name: str, words: str, value: object) -> None:
    loss = Level(settings={name: value}).durability_loss()
    assert loss is not None
    assert words in loss


def test_losses_add_up_and_safe_settings_lose_nothing() -> None:
    settings = {"fsync": "off", "full_page_writes": False, "synchronous_commit": "no"}
    memory = Storage(wal=Place(file_system="tmpfs", size="1GB"))
    loss = Level(settings=settings, storage=memory).durability_loss()
    assert loss is not None
    assert loss.count(";") == 3
    assert Level().durability_loss() is None
    safe = {"fsync": "on", "synchronous_commit": "local", "full_page_writes": 1}
    assert Level(settings=safe).durability_loss() is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("25 % of memory", "1024MB"),
        ("25% of memory", "1024MB"),
        (" 12.5 %  OF Memory ", "512MB"),
        ("0.001 % of memory", "1MB"),
        ("25 %", "25 %"),
        ("of memory", "of memory"),
        ("4GB", "4GB"),
        (8192, 8192),
        (True, True),
    ],
)
def test_shares_of_memory_become_megabytes_and_the_rest_stays(value: object, wanted: object) -> None:
    assert resolve_memory_shares({"shared_buffers": value}, 4 * GIB) == {"shared_buffers": wanted}  # type: ignore[dict-item]


def factor(**changes: object) -> Factor:
    parts = {"question": "?", "baseline": "a", "levels": {"a": {}, "b": {}}}
    return Factor.model_validate({**parts, **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"baseline": "c"}, "'c' is not among the levels: a, b"),
        ({"controls": ("c",)}, "'c' is not among the levels"),
        ({"levels": {"a": {}}}, "at least two levels"),
        ({"levels": {}}, "not among the levels"),
        ({"levels": {"a": {}, " ": {}}}, "1 to 80 printable"),
        ({"levels": {"a": {}, "b\n": {}}}, "1 to 80 printable"),
        ({"levels": {"a": {}, "b" * 81: {}}}, "1 to 80 printable"),
        ({"levels": {"a": {}, 5: {}}}, "valid string"),
    ],
)
def test_a_factor_that_cannot_be_compared_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        factor(**changes)


def test_a_factor_keeps_the_order_of_its_levels() -> None:
    made = factor(levels={"b": {}, "a": {}, "c": {}})
    assert list(Factor.model_validate_json(made.model_dump_json()).levels) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ({}, "either 'builtin' or 'sql'"),
        ({"builtin": "select-only", "sql": "SELECT 1"}, "either 'builtin' or 'sql'"),
        ({"builtin": "select"}, "'tpcb-like', 'simple-update' or 'select-only'"),
        ({"sql": "SELECT 1", "weight": -1}, "greater than or equal to 0"),
    ],
)
def test_a_script_has_one_source_and_a_weight(script: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Script.model_validate(script)


def test_a_workload_in_which_nothing_would_run_is_refused() -> None:
    with pytest.raises(ValidationError, match="no script has a weight above 0"):
        Workload(name="n", title="t", scripts=(Script(sql="SELECT 1", weight=0),))
    with pytest.raises(ValidationError, match="no script has a weight"):
        Workload(name="n", title="t", scripts=())
    with pytest.raises(ValidationError, match="at most 128"):
        Workload(name="n", title="t", scripts=(Script(sql="SELECT 1"),) * 129)


def test_a_plan_gives_each_level_its_own_load(plan_of) -> None:
    plan = plan_of(
        base=Level(settings={"jit": "off"}, load=LoadPatch(protocol="extended")),
        levels={"many": Level(load=LoadPatch(clients=99, rate=12.5))},
    )
    assert plan.level("defaults").settings == {"jit": "off"}
    many = plan.level_load("many")
    assert (many.clients, many.rate, many.protocol, many.duration_s) == (99, 12.5, "extended", 3)
    assert plan.level_load("defaults") == plan.load.model_copy(update={"protocol": "extended"})


def test_a_share_of_the_capacity_is_a_rate_once_the_capacity_is_known(plan_of) -> None:
    levels = {"own": Level(load=LoadPatch(rate="33.3% of Capacity")), "fixed": Level(load=LoadPatch(rate=7))}
    plan = plan_of(load=Load(rate="60 % of capacity"), levels=levels)
    assert plan.capacity_shares() == ["60 % of capacity", "33.3 % of capacity"]
    assert plan.level_load("defaults").rate == "60 % of capacity"
    known = plan.model_copy(update={"capacity_tps": 1234.5})
    assert known.capacity_shares() == plan.capacity_shares(), "what was asked for does not change"
    assert [known.level_load(name).rate for name in ("defaults", "own", "fixed")] == [741.0, 411.0, 7.0]
    slow = plan.model_copy(update={"capacity_tps": 4.5678})
    assert slow.level_load("defaults").rate == 2.74
    assert plan_of().capacity_shares() == []


def test_a_level_changes_those_variables_that_it_names_and_no_others(plan_of) -> None:
    plan = plan_of(
        load=Load(variables={"rows": 10, "share": 0.5}),
        base=Level(load=LoadPatch(variables={"rows": 20, "name": "x"})),
        levels={"more": Level(load=LoadPatch(variables={"rows": 30}))},
    )
    assert plan.level_load("defaults").variables == {"rows": 20, "share": 0.5, "name": "x"}
    assert plan.level_load("more").variables == {"rows": 30, "share": 0.5, "name": "x"}
    assert plan.load.variables == {"rows": 10, "share": 0.5}


@pytest.mark.parametrize(
    "changes",
    [{"scale": 0}, {"margin": 0}, {"margin": 1}, {"margin": float("nan")}, {"rebuild_every": 0},
     {"arrangement": "lying"}, {"seed": "x"}, {"load": {"duration_s": 0}}, {"load": {"warmup_s": -1}}],
)  # fmt: skip
def test_impossible_sizes_are_refused(plan_of, changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        plan_of(**changes)


def test_a_level_may_have_a_workload_of_its_own(plan_of) -> None:
    reads = Workload(name="reads", title="Reads", scripts=(Script(builtin="select-only"),))
    plan = plan_of(levels={"read": Level(workload="reads")}, workloads={"reads": reads})
    assert plan.level_workload("read") is reads
    assert plan.level_workload("defaults") is plan.workload
    with pytest.raises(ValidationError, match="names the workload 'writes', which is not here"):
        plan_of(levels={"write": Level(workload="writes")})


def test_a_level_that_cannot_run_over_the_base_is_refused_with_its_name(plan_of) -> None:
    with pytest.raises(ValidationError, match=r"level “elsewhere”: .*'storage' is for a server of our own"):
        plan_of(
            base=Level(storage=Storage(memory="1GB")), levels={"elsewhere": Level(target=Target(server="s"))}
        )


def test_a_study_counts_its_blocks(study_of) -> None:
    assert study_of(3).blocks == 3
    assert study_of(3).model_copy(update={"trials": ()}).blocks == 0


# --- whatever is said survives its file --------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,12}(\.[a-z_]{1,5})?", fullmatch=True)
VALUES = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
TUNABLES = st.dictionaries(
    st.from_regex(r"[a-z0-9_.]{1,12}\??", fullmatch=True), st.integers() | TEXT, max_size=2
)
STORAGES = st.builds(
    Storage, data=st.builds(Place, path=st.just("/mnt/a")), memory=st.none() | st.integers(1)
)
LOADS = st.builds(
    LoadPatch,
    clients=st.none() | st.integers(1, 100_000),
    threads=st.none() | st.integers(1, 100_000),
    protocol=st.sampled_from([None, "simple", "extended", "prepared"]),
    rate=st.none() | st.floats(0.001, 1e9) | st.integers(1, 999).map("{} % of capacity".format),
)
LEVELS = st.builds(
    Level,
    postgres=st.none() | TEXT,
    settings=st.dictionaries(NAMES, VALUES, max_size=3),
    initdb=st.lists(TEXT, max_size=2).map(tuple),
    load=LOADS,
    host=TUNABLES,
    storage=st.none() | STORAGES,
    replication=st.none() | st.builds(Replication, replicas=st.integers(0, 8)),
)


def same_types(one: object, other: object) -> bool:
    """Equal, and no whole number has become a decimal one or a word."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same_types(one[k], other[k]) for k in one)
    return type(one) is type(other) and one == other


@given(LEVELS)
def test_a_level_survives_its_file(level: Level) -> None:
    again = Level.model_validate_json(level.model_dump_json())
    assert again == level
    assert same_types(again.settings, level.settings)


@given(LEVELS, LEVELS)
def test_a_level_over_itself_and_over_nothing_is_itself(level: Level, base: Level) -> None:
    assert level.over(level).settings == level.settings
    assert level.over(Level()).model_dump() == level.model_dump()
    assert level.over(base).over(base) == level.over(base)


@given(LEVELS, st.integers(), st.integers(1, 9), st.floats(0.001, 0.999))
def test_a_study_survives_its_file(level: Level, seed: int, scale: int, margin: float) -> None:
    plan = Plan(
        factor=Factor(question="?", baseline="a", levels={"a": Level(), "b “level”": level}),
        workload=Workload(name="w", title="W", scripts=(Script(sql="SELECT 1;\n"),)),
        load=Load(),
        scale=scale,
        seed=seed,
        margin=margin,
    )
    study = Study(name="s", title="S", plan=plan, trials=(Trial(1, 1, "a", 5), Trial(1, 2, "b “level”", 6)))
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_a_measurement_survives_its_file_and_absent_figures_stay_absent() -> None:
    measurement = Measurement(
        trial=Trial(2, 3, "tuned", 99),
        started_s=1.5,
        finished_s=2.25,
        load_argv=("pgbench", "bench"),
        error="gone",
    )
    text = measurement.model_dump_json()
    assert Measurement.model_validate_json(text) == measurement
    assert json.loads(text)["load_cpu_s"] is None


def test_a_file_of_a_later_format_is_refused(study_of) -> None:
    later = study_of().model_dump(mode="json") | {"format": 2}
    with pytest.raises(ValidationError, match="format"):
        Study.model_validate(later)
