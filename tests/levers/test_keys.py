"""What each key of a level may hold, how it is spelled, and what cannot stand together."""

from typing import Any

import pytest
from pydantic import ValidationError

from benchlib.levers import BY_KEY
from benchlib.levers.replication import replication_of
from benchlib.plan.level import Level


def read(patch: dict[str, Any]) -> Level:
    return Level.model_validate(patch, context={"levers": BY_KEY, "data_mib": lambda: 1000})


@pytest.mark.parametrize(
    ("key", "text", "whole"),
    [
        ("replication", "standalone", {"replicas": 0}),
        ("replication", "asynchronous", {"replicas": 1}),
        ("replication", "synchronous", {"replicas": 1, "quorum": "FIRST 1"}),
        ("target", "reporting", {"server": "reporting"}),
        (
            "storage",
            {"data": "/mnt/fast"},
            {"data": {"path": "/mnt/fast", "file_system": None, "size": None, "mount_options": ""}},
        ),
        ("storage", {"memory": "1.5GB"}, {"memory": 3 << 29}),
        ("replication", {"delay_ms": 2}, {"replicas": 1, "delay_ms": 2.0}),
        ("replication", {"on": ["db2", "db3"]}, {"replicas": 2, "on": ["db2", "db3"]}),
    ],
)
def test_a_word_stands_for_the_usual_case(key: str, text: object, whole: dict[str, object]) -> None:
    level = read({key: text})
    assert {name: value for name, value in level.part(key).items() if value is not None} == whole
    assert read(level.model_dump()) == level


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ({"replication": "sync"}, "'sync' is not one of standalone, asynchronous, synchronous"),
        ({"replication": {"replicas": 1, "quorum": "ANY 2"}}, "ANY 2 can never be met by 1 replica"),
        ({"replication": {"quorum": "MANY 1"}}, "pattern"),
        ({"replication": {"delay_ms": 0}}, "greater than 0"),
        ({"replication": {"storage": {"data": "ext4"}}}, "needs a 'size'"),
        ({"replication": {"replicas": 3, "storage": [{}, {}]}}, "want a storage each, or one for all"),
        ({"replication": {"replicas": 1, "on": ["db2", "db3"]}}, "want a host each"),
        ({"replication": {"on": ["db2", "db2"]}}, "want a host each"),
        ({"storage": {"data": "ext4"}}, "needs a 'size'"),
        ({"storage": {"data": {"path": "relative"}}}, "pattern"),
        ({"storage": {"data": {"path": "/x", "mount_options": "noatime"}}}, "belong to a 'file_system'"),
        ({"storage": {"wal": {"file_system": "tmpfs", "size": "1GB", "path": "/x"}}}, "lies in memory"),
        ({"storage": {"wal": {}}}, "a 'path', a 'file_system', or both"),
        ({"storage": {"memory": "1 potato"}}, "not a size such as 512MB"),
        ({"storage": {"read_iops": 0}}, "greater than 0"),
        ({"host": {"vm.swappiness; rm": 1}}, "pattern"),
        ({"target": "postgresql://me:secret@db/bench"}, "no password in a level"),
        ({"target": "host=db user=me"}, "connection service, or a postgresql:// URI"),
        ({"target": {"server": "s", "beside": "shop"}}, "'own_schema'"),
    ],
)
def test_what_nothing_could_give_is_refused(patch: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        read(patch)


def test_one_storage_of_replicas_stands_for_all() -> None:
    replication = {"replicas": 2, "storage": {"wal": "/mnt/slow", "write_bytes": "10 % of data"}}
    assert [s.write_bytes for s in replication_of(read({"replication": replication})).storages] == [
        100 << 20
    ] * 2


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (
            {"replication": "synchronous", "settings": {"synchronous_standby_names": "x"}},
            "'replication' decides",
        ),
        (
            {"settings": {"port": 1, "listen_addresses": "*"}},
            "benchlib decides how its own server is reached",
        ),
        ({"settings": {"synchronous_standby_names": "a, b"}}, "synchronous_standby_names without standbys"),
        (
            {"settings": {"port": 1, "synchronous_standby_names": "a"}},
            "benchlib decides how its own server is reached and where it logs: leave out port; synchronous_standby_names",
        ),
        ({"storage": {"data": "/x"}, "initdb": ["--waldir=/y"]}, "name the folder of the WAL in 'storage'"),
        ({"target": "s", "postgres": "16"}, "'postgres' is for a server of our own"),
        ({"target": "s", "host": {"vm.swappiness": 1}}, "'host' is for a server of our own"),
    ],
)
def test_keys_that_cannot_stand_together_are_refused(patch: dict[str, object], why: str) -> None:
    level = read(patch)
    assert [reason[: len(why)] for lever in BY_KEY.values() if (reason := lever.conflict(level))] == [why]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"work_mem": 1, "WORK_MEM": 2}, "work_mem is there twice"),
        ({"fsync = off\nwork_mem": 1}, r"fsync = off\\nwork_mem' is not the name"),
        ({"seed": float("nan")}, "finite"),
        ({"work_mem": ["8MB"]}, "valid"),
        (None, "valid dictionary"),
    ],
)
def test_settings_that_no_file_could_hold_are_refused(settings: object, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        read({"settings": settings})


def test_names_of_parameters_are_one_in_any_case_and_may_have_a_dot() -> None:
    settings = {"Work_Mem": "8MB", "pg_stat_statements.max": 100}
    assert read({"settings": settings}).settings == {"work_mem": "8MB", "pg_stat_statements.max": 100}


def test_a_version_may_be_a_whole_number_but_not_a_decimal_one() -> None:
    assert read({"postgres": 16}).postgres == "16"
    assert read({"postgres": "16.10"}).postgres == "16.10"
    with pytest.raises(ValidationError, match=r'write the version as text, "16\.1"'):
        read({"postgres": 16.10})
