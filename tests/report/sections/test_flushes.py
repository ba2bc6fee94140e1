"""Durability's section: flushes by method, beside the commits that they lead to."""

import pytest
from benchlib.report.sections.durability import flushes
from bs4 import BeautifulSoup
from page_parts import named

from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.study.records import Flushes

SECTION = "Compare file sync methods using one 8kB write"
# published: Debian 8 on ext4, and Windows 7 on NTFS, whose cache says that it has written
DISK = {"open_datasync": 80.2, "fdatasync": 80.3, "fsync": 39.4, "fsync_writethrough": None}
CACHE = {"open_datasync": 48_817.0, "fsync": 79.7}
LEVELS = {
    "fsync": Level(settings={"wal_sync_method": "fsync"}),
    "no wait": Level(settings={"synchronous_commit": "off"}),
    "cache": Level(storage={"wal": "/mnt/cache"}),
}
TPS = {"defaults": 170.0, "control": 165.0, "fsync": 5000.0, "no wait": 4000.0, "cache": 3000.0}


def leaving(trial):
    """What a trial of a level leaves."""
    rates = CACHE if trial.level == "cache" else DISK
    durability = {
        "fsync": "on",
        "synchronous_commit": "off" if trial.level == "no wait" else "on",
        "wal_sync_method": {"fsync": "fsync", "cache": "open_datasync"}.get(trial.level, "fdatasync"),
    }
    methods = [{"section": SECTION, "method": method, "ops_per_s": ops} for method, ops in rates.items()]
    methods.append({"section": "Non-sync'ed 8kB writes", "method": "write", "ops_per_s": 1e6})
    return {Flushes.FILE: {"durability": durability, "flushes": {"methods": methods}}}


@pytest.fixture
def table(view_of):
    """What is shown of a study of those levels."""

    def make(leaving=leaving, workload="tpcb-like"):
        return flushes(view_of(TPS, leaving=leaving, levels=LEVELS, workload=load_workload(workload)))

    return make


def plain(shown):
    """The cells of each level that are not muted, by their headings."""
    page = BeautifulSoup(shown.html, "html.parser")
    heads = [cell.get_text() for cell in page.thead("th")]
    rows = [dict(zip(heads, row(["th", "td"]), strict=True)) for row in page.tbody("tr")]
    return {
        row["level"].get_text(): {
            head: cell.get_text() for head, cell in row.items() if "bl-quiet" not in cell.get("class", [])
        }
        for row in rows
    }


def test_each_level_has_the_rates_of_its_place_and_those_that_its_commits_wait_for_stand_out(table):
    rows = named(table())
    assert rows["defaults"] == {
        "level": "defaults", "open_datasync": "80.2", "fdatasync": "80.3", "fsync": "39.4", "commits a second": "170"
    }  # fmt: skip
    assert (rows["cache"]["open_datasync"], rows["cache"]["fdatasync"]) == ("48,817", "–")
    in_use = plain(table())
    assert {"fdatasync", "fsync"} & in_use["defaults"].keys() == {"fdatasync"}
    assert {"fdatasync", "fsync"} & in_use["fsync"].keys() == {"fsync"}
    assert "fdatasync" not in in_use["no wait"], "no flush limits it"


def test_what_need_not_write_waits_for_no_flush(table):
    rows = plain(table(workload="select-only"))
    assert not any({"fsync", "open_datasync"} & row.keys() for row in rows.values())
