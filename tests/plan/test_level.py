"""A level: what may be said, what is refused, and what a crash may cost at it."""

import pytest
from pydantic import ValidationError

from benchlib.plan.level import (
    Level,
    LoadPatch,
    Place,
    Replication,
    Storage,
    is_off,
    resolve_memory_shares,
)

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


@pytest.mark.parametrize(
    "value", [True, 1, "on", "yes", "t", "o", "", "offf", "local", "remote_apply", 2, None, "null"]
)
def test_other_words_are_not(value: object) -> None:
    assert not is_off(value)


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
