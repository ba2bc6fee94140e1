"""Levels in words: what a reader sees at once, what a page must not tell, and what a crash may cost."""

from typing import Any

import pytest

from benchlib.levers import server_settings, worded
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.plan.words import given_folders, size_words
from benchlib.plan.workload import Script, Workload

GB = 1 << 30


def workload(name: str) -> Workload:
    return Workload(name=name, title=f"{name} transactions", scripts=(Script(builtin="tpcb-like"),))


def plan(base: dict[str, Any] | None = None, **levels: Any) -> Plan:
    factor = Factor(
        question="Does it help?",
        baseline="defaults",
        levels={"defaults": Level(), **{name: Level(**patch) for name, patch in levels.items()}},
    )
    return Plan(factor=factor, base=Level(**(base or {})), workload=workload("small"), load=Load(), scale=1, seed=1,
                workloads={"big": workload("big")})  # fmt: skip


def study(asked: Plan) -> Study:
    return worded(Study(name="s", title="S", plan=asked, trials=()))


def rows(asked: Plan) -> dict[str, list[str]]:
    """The cells of all levels by heading."""
    cells = study(asked).levels_in_words
    return {heading: [words[heading] for words in cells.values()] for heading in cells["defaults"]}


@pytest.mark.parametrize(
    ("patch", "wanted"),
    [
        ({"postgres": "16"}, {"PostgreSQL": ["default", "16"]}),
        ({"postgres": "/home/ann/pg/bin"}, {"PostgreSQL": ["default", "a given installation"]}),
        ({"settings": {"work_mem": "8MB"}}, {"work_mem": ["default", "8MB"]}),
        ({"settings": {"fsync": False}}, {"fsync": ["default", "off"]}),
        ({"initdb": ["--data-checksums"]}, {"initdb": ["default", "--data-checksums"]}),
        ({"workload": "big"}, {"workload": ["small transactions", "big transactions"]}),
        ({"load": {"clients": 16}}, {"clients": ["4", "16"]}),
        ({"load": {"rate": 1500, "protocol": "prepared"}}, {"protocol": ["simple", "prepared"], "rate": ["no limit", "1,500 tps"]}),
        ({"load": {"variables": {"n": 3}}}, {":n": ["not given", "3"]}),
        ({"load": {"connect_per_transaction": True}}, {"connect_per_transaction": ["no", "yes"]}),
        ({"pooler": {"pool_size": 5}}, {"pooler": ["none", "mode transaction, up to 5 connections"]}),
        ({"cache": "cold"}, {"cache": ["as the warm-up leaves it", "cold"]}),
        ({"replication": "asynchronous"}, {"replication": ["no replica", "1 replica, asynchronous"]}),
        ({"storage": {"data": "/mnt/fast"}}, {"data": ["scratch folder", "a given folder"]}),
        ({"storage": {"wal": {"file_system": "tmpfs", "size": "1GB"}}}, {"WAL": ["with the data", "tmpfs of 1\u00a0GB"]}),
        ({"storage": {"read_iops": 500}}, {"reads": ["no cap", "capped at 500\u00a0IOPS"]}),
        (
            {"storage": {"write_iops": 5000, "write_bytes": "20MB"}},
            {"writes": ["no cap", "capped at 5,000\u00a0IOPS and 20\u00a0MB a second"]},
        ),
        ({"storage": {"memory": "1.5GB"}}, {"memory": ["no cap", "capped at 1.5\u00a0GB, page cache included"]}),
        ({"host": {"vm.swappiness": 0, "sched.x?": 5}}, {"vm.swappiness": ["as found", "0"], "sched.x": ["as found", "5, where it can be set"]}),
        ({"target": "production"}, {"server": ["the study's own", "service production"]}),
        ({"target": {"server": "crm", "own_schema": "bench"}}, {"server": ["the study's own", "service crm, schema bench"]}),
        (
            {"target": {"server": "crm", "server_wide": True}, "settings": {"work_mem": "8MB"}},
            {"server": ["the study's own", "service crm, server-wide settings for everybody there"], "work_mem": ["default", "8MB"]},
        ),
    ],
)  # fmt: skip
def test_each_lever_in_words(patch: dict[str, Any], wanted: dict[str, list[str]]) -> None:
    assert rows(plan(changed=patch)) == wanted


def test_levers_come_in_one_order_whichever_level_names_them_first() -> None:
    asked = plan(a={"host": {"vm.swappiness": 0}}, b={"settings": {"work_mem": "8MB"}}, c={"postgres": "16"})
    assert list(rows(asked)) == ["PostgreSQL", "work_mem", "vm.swappiness"]


def test_what_a_server_that_is_not_ours_has_by_default_is_not_claimed() -> None:
    levels = {"ours": {"settings": {"work_mem": "8MB"}, "load": {"clients": 9}}, "theirs": {"target": "crm"}}
    cells = rows(plan(**levels))
    assert cells["work_mem"] == ["default", "8MB", "as it is there"]
    assert cells["clients"] == ["4", "9", "4"]


def test_no_path_and_no_host_is_told_and_several_are_told_apart() -> None:
    asked = plan(
        a={"storage": {"data": "/srv/secret-a"}, "postgres": "/home/ann/pg"},
        b={"storage": {"data": "/srv/secret-b", "wal": "/srv/secret-a"}},
        c={"target": "postgresql://bob@db1.example.org/x"},
        d={"target": "postgresql://bob@db2.example.org/x"},
    )
    cells = rows(asked)
    assert not [word for word in ("secret", "ann", "example", "bob") if word in str(cells)]
    assert given_folders(asked) == {"/srv/secret-a": "given folder 1", "/srv/secret-b": "given folder 2"}
    assert cells["data"][1:3] == ["given folder 1", "given folder 2"]
    assert cells["WAL"][2] == "given folder 1"
    assert cells["server"][3:] == ["server by URI 1", "server by URI 2"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"file_system": "xfs", "size": 4 * GB, "mount_options": "noatime"}, "xfs of 4\u00a0GB (noatime)"),
        (
            {"file_system": "ext4", "size": 512 << 20, "path": "/p"},
            "ext4 of 512\u00a0MB, on a loop device in a given folder",
        ),
    ],
)
def test_places(place: dict[str, Any], words: str) -> None:
    assert rows(plan(a={"storage": {"data": place}}))["data"][1] == words


@pytest.mark.parametrize(
    ("replication", "commit", "words"),
    [
        ({"replicas": 0}, "on", "no replica"),
        ({"replicas": 3}, "on", "3 replicas, asynchronous"),
        ("synchronous", "on", "1 replica, a commit waits for it"),
        ({"replicas": 2, "quorum": "ANY 1"}, "remote_apply", "2 replicas, a commit waits for ANY 1"),
        ({"delay_ms": 2}, "on", "1 replica, 2\u00a0ms longer each way, asynchronous"),
        ({"on": ["db2", "db3"]}, "on", "2 replicas on db2, db3, asynchronous"),
        ("synchronous", "local", "1 replica, a commit waits for none (synchronous_commit)"),
        ("synchronous", False, "1 replica, a commit waits for none (synchronous_commit)"),
    ],
)
def test_replication(replication: Any, commit: Any, words: str) -> None:
    level = {"replication": replication, "settings": {"synchronous_commit": commit}}
    assert rows(plan(a=level))["replication"][1] == words


def test_what_replicas_have_of_their_own() -> None:
    own = {"replicas": 2, "storage": [{"data": "/srv/secret"}, {"write_bytes": 2048}]}
    cells = rows(
        plan(a={"replication": own}, b={"replication": {"replicas": 2}}, c={"replication": {"storage": {}}})
    )
    assert cells == {
        "replication": ["no replica", *["2 replicas, asynchronous"] * 2, "1 replica, asynchronous"],
        "replica 1: data": ["not given", "a given folder", "not given", "not given"],
        "replica 2: writes": ["not given", "capped at 2\u00a0kB a second", "not given", "not given"],
    }


@pytest.mark.parametrize(
    ("size", "words"), [(8192, "8 kB"), (GB, "1 GB"), (GB * 3 // 2, "1.5 GB"), (4096 << 40, "4096 TB")]
)
def test_sizes_in_powers_of_1024(size: int, words: str) -> None:
    assert size_words(size) == words.replace(" ", "\u00a0")


@pytest.mark.parametrize(
    ("level", "costs"),
    [
        ({}, []),
        ({"settings": {"fsync": "on", "synchronous_commit": "local", "full_page_writes": 1}}, []),
        ({"settings": {"fsync": "fals"}}, ["corrupt the whole cluster"]),
        (
            {
                "settings": {"full_page_writes": False, "synchronous_commit": "no"},
                "storage": {"wal": {"file_system": "tmpfs", "size": GB}},
            },
            ["torn pages", "latest acknowledged commits", "lies in memory"],
        ),
    ],
)
def test_what_a_crash_may_cost(level: dict[str, Any], costs: list[str]) -> None:
    told = study(plan(a=level)).crash_costs["a"]
    assert [part in cost for part, cost in zip(costs, told, strict=True)] == [True] * len(costs)


def test_a_quorum_becomes_the_names_that_a_commit_waits_for() -> None:
    quorum = {"replicas": 2, "quorum": "ANY 1"}
    assert server_settings(Level(replication=quorum, settings={"jit": "off"})) == {
        "jit": "off",
        "synchronous_standby_names": "ANY 1 (replica1, replica2)",
    }
    assert server_settings(Level(replication="asynchronous")) == {}
