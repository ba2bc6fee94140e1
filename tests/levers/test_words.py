"""Levels in words: what a reader sees at once, what a page must not tell, and what a crash may cost."""

import pytest
from clusters import bench_plan

from benchlib.levers import server_settings, worded
from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.plan.model import Study
from benchlib.plan.words import given_folders

TMPFS = {"file_system": "tmpfs", "size": "1GB"}
LOOP = {"file_system": "ext4", "size": 512 << 20, "path": "/p", "mount_options": "noatime"}


def study(**levels):
    """A study of the defaults and these levels, which may have another workload than the plan's ``insert``."""
    plan = bench_plan({"defaults": {}, **levels}, workloads={"other": load_workload("select-only")})
    return worded(Study(name="s", title="S", plan=plan, trials=()))


def rows(**levels):
    """The cells of the defaults and these levels by heading."""
    cells = study(**levels).levels_in_words
    return {heading: [words[heading].replace("\u00a0", " ") for words in cells.values()] for heading in cells["defaults"]}  # fmt: skip


@pytest.mark.parametrize(
    ("patch", "wanted"),
    [
        ({"postgres": "16"}, {"PostgreSQL": ["default", "16"]}),
        ({"postgres": "/home/ann/pg/bin"}, {"PostgreSQL": ["default", "a given installation"]}),
        ({"settings": {"fsync": False, "work_mem": "8MB"}}, {"fsync": ["default", "off"], "work_mem": ["default", "8MB"]}),
        ({"initdb": ["--data-checksums"]}, {"initdb": ["default", "--data-checksums"]}),
        ({"sql": "CREATE INDEX\n  ON t (i);"}, {"schema change": ["as loaded", "CREATE INDEX ON t (i);"]}),
        ({"sql": "x" * 900}, {"schema change": ["as loaded", "x" * 199 + "…"]}),
        ({"workload": "other"}, {"workload": [load_workload(name).title for name in ("insert", "select-only")]}),
        ({"load": {"clients": 16}}, {"clients": ["2", "16"]}),
        ({"load": {"rate": 1500, "protocol": "prepared"}}, {"protocol": ["simple", "prepared"], "rate": ["no limit", "1,500 tps"]}),
        ({"load": {"variables": {"n": 3}}}, {":n": ["not given", "3"]}),
        ({"pooler": {"pool_size": 5}}, {"pooler": ["none", "mode transaction, up to 5 connections"]}),
        ({"cache": "cold"}, {"cache": ["as the warm-up leaves it", "cold"]}),
        ({"storage": {"data": "/mnt/fast"}}, {"data": ["scratch folder", "a given folder"]}),
        ({"storage": {"data": LOOP}}, {"data": ["scratch folder", "ext4 of 512 MB (noatime), on a loop device in a given folder"]}),
        ({"storage": {"wal": TMPFS}}, {"WAL": ["with the data", "tmpfs of 1 GB"]}),
        ({"storage": {"read_iops": 500}}, {"reads": ["no cap", "capped at 500 IOPS"]}),
        ({"storage": {"write_iops": 5000, "write_bytes": 8192}}, {"writes": ["no cap", "capped at 5,000 IOPS and 8 kB a second"]}),
        ({"storage": {"memory": "1.5GB"}}, {"memory": ["no cap", "capped at 1.5 GB, page cache included"]}),
        ({"host": {"vm.swappiness": 0, "sched.x?": 5}}, {"vm.swappiness": ["as found", "0"], "sched.x": ["as found", "5, if it can be set"]}),
        ({"cpu": {"server": "0", "turbo": False}}, {"cores: server": ["all", "0"], "turbo": ["as found", "off"]}),
        ({"target": "production"}, {"server": ["the study's own", "service production"]}),
        ({"target": {"server": "crm", "own_schema": "bench"}}, {"server": ["the study's own", "service crm, schema bench"]}),
        (
            {"target": {"server": "crm", "server_wide": True}, "settings": {"jit": True}},
            {"server": ["the study's own", "service crm, server-wide settings for all its users"], "jit": ["default", "on"]},
        ),
    ],
)  # fmt: skip
def test_each_lever_in_words(patch, wanted):
    assert rows(changed=patch) == wanted


@pytest.mark.parametrize(
    ("replication", "commit", "words"),
    [
        ({"replicas": 0}, "on", "no replica"),
        ({"replicas": 3}, "on", "3 replicas, asynchronous"),
        ("synchronous", "on", "1 replica, a commit waits for it"),
        ({"replicas": 2, "quorum": "ANY 1"}, "remote_apply", "2 replicas, a commit waits for ANY 1"),
        ({"delay_ms": 2}, "on", "1 replica, 2 ms longer each way, asynchronous"),
        ({"on": ["db2", "db3"]}, "on", "2 replicas on db2, db3, asynchronous"),
        ("synchronous", "local", "1 replica, a commit waits for none (synchronous_commit)"),
        ("synchronous", False, "1 replica, a commit waits for none (synchronous_commit)"),
    ],
)
def test_replication(replication, commit, words):
    cells = rows(a={"replication": replication, "settings": {"synchronous_commit": commit}})
    assert cells["replication"] == ["no replica", words]


def test_levers_come_in_one_order_and_what_a_server_that_is_not_ours_has_by_default_is_not_claimed():
    levels = {"ours": {"settings": {"work_mem": "8MB"}, "load": {"clients": 9}}, "theirs": {"target": "crm"}}
    assert list(rows(**levels, other={"postgres": "16"}).items()) == [
        ("server", ["the study's own", "the study's own", "service crm", "the study's own"]),
        ("PostgreSQL", ["default", "default", "server's own", "16"]),
        ("clients", ["2", "9", "2", "2"]),
        ("work_mem", ["default", "8MB", "server's own", "default"]),
    ]


def test_no_path_and_no_host_is_told_and_several_are_told_apart():
    levels = {
        "a": {"storage": {"data": "/srv/secret-a"}, "postgres": "/home/ann/pg"},
        "b": {"storage": {"data": "/srv/secret-b", "wal": "/srv/secret-a"}},
        "c": {"target": "postgresql://bob@db1.example.org/x"},
        "d": {"target": "postgresql://bob@db2.example.org/x"},
    }
    folders = {"/srv/secret-a": "given folder 1", "/srv/secret-b": "given folder 2"}
    assert given_folders(study(**levels).plan) == folders
    cells = rows(**levels)
    assert not [word for word in ("secret", "ann", "example", "bob") if word in str(cells)]
    assert [*cells["data"][1:3], cells["WAL"][2]] == ["given folder 1", "given folder 2", "given folder 1"]
    assert cells["server"][3:] == ["server by URI 1", "server by URI 2"]


def test_what_replicas_have_of_their_own():
    own = {"replicas": 2, "storage": [{"data": "/srv/secret"}, {"write_bytes": 2048}]}
    assert rows(a={"replication": own}, b={"replication": {"storage": {}}}) == {
        "replication": ["no replica", "2 replicas, asynchronous", "1 replica, asynchronous"],
        "replica 1: data": ["not given", "a given folder", "not given"],
        "replica 2: writes": ["not given", "capped at 2 kB a second", "not given"],
    }


RISKY = {"settings": {"full_page_writes": False, "synchronous_commit": "no"}, "storage": {"wal": TMPFS}}


@pytest.mark.parametrize(
    ("level", "costs"),
    [
        ({}, []),
        ({"settings": {"fsync": "on", "synchronous_commit": "local", "full_page_writes": 1}}, []),
        ({"settings": {"fsync": "fals"}}, ["corrupt the whole cluster"]),
        (RISKY, ["torn pages", "latest acknowledged", "is in memory"]),
    ],
)
def test_what_a_crash_may_cost(level, costs):
    told = study(a=level).crash_costs["a"]
    assert [part in cost for part, cost in zip(costs, told, strict=True)] == [True] * len(costs)


def test_a_quorum_becomes_the_names_that_a_commit_waits_for():
    quorum = {"replicas": 2, "quorum": "ANY 1"}
    names = {"synchronous_standby_names": "ANY 1 (replica1, replica2)"}
    assert server_settings(Level(replication=quorum, settings={"jit": "off"})) == {"jit": "off", **names}
    assert server_settings(Level(replication="asynchronous")) == {}
