"""Levels in words: what a reader sees at once, and what a page must not tell."""

from typing import Any

import pytest
from bs4 import BeautifulSoup

from benchlib.plan.level import Level, Place, Replication
from benchlib.plan.model import Factor, Load, Plan, Script, Workload
from benchlib.plan.words import given_folders
from benchlib.report.figures.levels import (
    levels_table,
    place_words,
    replication_words,
    size_words,
)

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


def rows(shown: Plan) -> dict[str, list[str]]:
    """The cells of each row, by its heading."""
    soup = BeautifulSoup(levels_table(shown).html, "html.parser")
    return {tr.th.get_text(): [td.get_text() for td in tr.find_all("td")] for tr in soup.tbody.find_all("tr")}


def note(shown: Plan) -> str:
    found = BeautifulSoup(levels_table(shown).html, "html.parser").find(class_="bl-note")
    return found.get_text() if found else ""


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
    ],
)  # fmt: skip
def test_each_lever_in_words(patch: dict[str, Any], wanted: dict[str, list[str]]) -> None:
    found = rows(plan(changed=patch))
    assert list(found)[-1] == "a crash"
    found.pop("a crash")
    assert found == wanted


def test_only_what_differs_is_in_the_table_and_the_rest_beneath_it() -> None:
    shown = plan(base={"settings": {"max_connections": 120}}, changed={"settings": {"work_mem": "8MB"}})
    assert list(rows(shown)) == ["work_mem", "a crash"]
    assert note(shown) == "The same at every level: max_connections = 120."
    assert note(plan(changed={"settings": {"work_mem": "8MB"}})) == ""


def test_what_is_as_at_the_baseline_is_muted() -> None:
    soup = BeautifulSoup(
        levels_table(plan(a={"settings": {"work_mem": "8MB"}}, b={"postgres": "16"})).html, "html.parser"
    )
    muted = {
        tr.th.get_text(): [td.get("class") for td in tr.find_all("td")] for tr in soup.tbody.find_all("tr")
    }
    assert muted["work_mem"] == [["bl-quiet"], None, ["bl-quiet"]]
    assert muted["PostgreSQL"] == [["bl-quiet"], ["bl-quiet"], None]


def test_levers_come_in_one_order_whichever_level_names_them_first() -> None:
    shown = plan(a={"host": {"vm.swappiness": 0}}, b={"settings": {"work_mem": "8MB"}}, c={"postgres": "16"})
    assert list(rows(shown)) == ["PostgreSQL", "work_mem", "vm.swappiness", "a crash"]


def test_a_crash_may_cost_the_cluster_in_memory_and_of_other_servers_nobody_knows() -> None:
    shown = plan(
        memory={"storage": {"data": {"file_system": "tmpfs", "size": "1GB"}}}, theirs={"target": "crm"}
    )
    nothing, lost, unknown = rows(shown)["a crash"]
    assert (nothing, unknown) == ("loses nothing", "not known of that server")
    assert "lies in memory" in lost


def test_what_a_server_that_is_not_ours_has_by_default_is_not_claimed() -> None:
    found = rows(
        plan(ours={"settings": {"work_mem": "8MB"}, "load": {"clients": 9}}, theirs={"target": "crm"})
    )
    assert found["work_mem"] == ["default", "8MB", "as it is there"]
    assert found["clients"] == ["4", "9", "4"]


def test_no_path_and_no_host_is_shown_and_several_are_told_apart() -> None:
    shown = plan(
        a={"storage": {"data": "/srv/secret-a"}, "postgres": "/home/ann/pg"},
        b={"storage": {"data": "/srv/secret-b", "wal": "/srv/secret-a"}},
        c={"target": "postgresql://bob@db1.example.org/x"},
        d={"target": "postgresql://bob@db2.example.org/x"},
    )
    html = levels_table(shown).html
    for secret in ("secret", "ann", "example", "bob"):
        assert secret not in html
    assert given_folders(shown) == {"/srv/secret-a": "given folder 1", "/srv/secret-b": "given folder 2"}
    found = rows(shown)
    assert found["data"][1:3] == ["given folder 1", "given folder 2"]
    assert found["WAL"][2] == "given folder 1"
    assert found["server"][3:] == ["server by URI 1", "server by URI 2"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"file_system": "xfs", "size": 4 * GB, "mount_options": "noatime"}, "xfs of 4\u00a0GB (noatime)"),
        (
            {"file_system": "ext4", "size": "512MB", "path": "/p"},
            "ext4 of 512\u00a0MB, on a loop device in P",
        ),
        ({"path": "/p"}, "P"),
    ],
)
def test_places(place: dict[str, Any], words: str) -> None:
    assert place_words(Place(**place), {"/p": "P"}) == words


@pytest.mark.parametrize(
    ("replication", "commit", "words"),
    [
        ({"replicas": 0}, None, "no replica"),
        ({}, None, "1 replica, asynchronous"),
        ({"replicas": 3}, None, "3 replicas, asynchronous"),
        ("synchronous", None, "1 replica, a commit waits for it"),
        ({"replicas": 2, "quorum": "ANY 1"}, "remote_apply", "2 replicas, a commit waits for ANY 1"),
        ("synchronous", "local", "1 replica, a commit waits for none (synchronous_commit)"),
        ("synchronous", False, "1 replica, a commit waits for none (synchronous_commit)"),
    ],
)
def test_replication(replication: Any, commit: Any, words: str) -> None:
    assert replication_words(Replication.model_validate(replication), commit) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [(8192, "8 kB"), (GB, "1 GB"), (GB * 3 // 2, "1.5 GB"), (2048 * GB, "2 TB"), (4096 << 40, "4096 TB")],
)  # fmt: skip
def test_sizes_in_powers_of_1024(size: int, words: str) -> None:
    assert size_words(size) == words.replace(" ", "\u00a0")
