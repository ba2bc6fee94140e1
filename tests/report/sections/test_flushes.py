"""Durability's section: flushes by method and place, beside the commits that they allow."""

import pytest
from bs4 import BeautifulSoup

from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.report.sections.device_flushes import flushes
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
def figure(view_of):
    """What is drawn of a study of those levels."""

    def make(leaving=leaving, workload="tpcb-like"):
        return flushes(view_of(TPS, leaving=leaving, levels=LEVELS, workload=load_workload(workload)))

    return make


def test_each_place_has_its_rates_and_each_level_is_beside_what_its_flushes_allow(figure):
    drawn = figure()
    soup = BeautifulSoup(drawn.svg, "html.parser")
    told = " | ".join(mark["aria-label"] for mark in soup.select(".bl-mark"))
    text = soup.get_text(" ")
    assert "where the WAL of “defaults” and 3 other levels lies" in text
    assert "open_datasync: 80.2 | fdatasync (in use): 80.3 | fsync (in use): 39.4 | " in told
    assert "open_datasync (in use): 48,817 | fsync: 79.7 | " in told
    assert "writethrough" not in told
    assert "defaults one client: at most 80.3: 170" in told
    assert "no wait no flush limits it: 4,000, [4,000, 4,000]" in told
    assert "implausible; one client: at most 39.4: ✕" in told
    assert told.count("implausible") == 1
    assert "✕ more than the device could have flushed" in drawn.caption
    assert drawn.title == "“fsync” commits more than the device can flush"


def test_what_need_not_write_is_held_to_no_limit(figure):
    drawn = figure(workload="select-only")
    marks = BeautifulSoup(drawn.svg, "html.parser").select(".bl-mark")
    assert sum("no flush limits it" in mark["aria-label"] for mark in marks) == 5
    assert "implausible" not in drawn.svg + drawn.caption
