"""Crashes of real servers: rows that must survive, rows that may be lost, and cleanup."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from clusters import eventually, remains
from hosts import ending

from benchlib.errors import InputError, Interrupted, PreflightError, ServerError, StudyError
from benchlib.plan.level import Level
from benchlib.study import crashes
from benchlib.study.crashed import KILLED, POWER_CUT, Crash, Kind, kept_crashes, left_out
from benchlib.study.crashes import crash_missing
from benchlib.study.crashes.commits import WORKLOAD, examine
from benchlib.study.store import StudyFolder

Crashed = Callable[..., list[Crash]]


def only(monkeypatch: pytest.MonkeyPatch, kind: Kind, *levels: str) -> None:
    """Crash these levels alone, and in this way alone; skip where that cannot be done."""
    try:
        crashes.check(kind)
    except PreflightError as reason:
        pytest.skip(str(reason))
    monkeypatch.setattr(crashes, "KINDS", (kind,))
    monkeypatch.setattr(crashes, "left_out", lambda plan, kind: plan.factor.levels.keys() - set(levels))


@pytest.fixture
def crashed(folder_of, scratch, monkeypatch):
    """Crashes levels, given by their settings, so many times each, and sees that nothing stays behind."""

    def make(kind, rounds, **levels):
        only(monkeypatch, kind, *levels)
        folder = folder_of(levels={name: Level(settings=settings) for name, settings in levels.items()})
        crash_missing(folder, rounds, print)
        kept = kept_crashes(folder)
        assert [(c.level, c.number) for c in kept] == [(n, i) for n in levels for i in range(1, rounds + 1)]
        assert [*scratch.iterdir(), *remains(scratch)] == []
        return kept

    return make


@pytest.mark.long
@pytest.mark.pg
def test_a_killed_server_loses_what_it_may_and_nothing_else(crashed):
    late = {"synchronous_commit": "off", "wal_writer_delay": "1s"}
    found = crashed(KILLED, 2, late=late, unsafe={"fsync": "off"})
    assert all(each.acknowledged and each.recovery_s and not each.damage for each in found)
    assert any(each.lost for each in found[:2])
    for each in found[:2]:
        assert (each.oldest_lost_ms is None) == (each.lost == 0)
        assert (each.oldest_lost_ms or 0) <= 3000
    assert [each.lost for each in found[2:]] == [0, 0], "the kernel finishes what it was given"


@pytest.mark.pg
@pytest.mark.long
@pytest.mark.parametrize(
    ("rounds", "settings", "show"),
    [
        (3, {}, lambda found: all(each.acknowledged and (each.lost, each.damage) == (0, ()) for each in found)),
        (2, {"fsync": "off"}, lambda found: all(each.lost or each.damage for each in found)),
        (12, {"full_page_writes": "off"},
         lambda found: {"invalid page" in words for each in found for words in each.damage} == {True}),
    ],
    ids=["nothing is lost", "what fsync is for", "torn pages"],
)  # fmt: skip
def test_a_power_cut_shows_what_a_setting_is_for(crashed, rounds, settings, show):
    assert show(crashed(POWER_CUT, rounds, cut=settings))


@pytest.mark.pg
def test_damage_is_reported_with_the_servers_messages(new_cluster):
    """A row without its value, then a page that is overwritten while the server is down, then no file at all."""
    cluster = new_cluster("18")

    def found():
        rows, damage = examine(cluster)
        assert rows == {(0, 0), (0, 1)}, "what can be read is read"
        return damage

    cluster.configure({"fsync": "off"})
    cluster.start()
    cluster.execute("CREATE DATABASE bench", dbname="postgres")
    cluster.execute(WORKLOAD.load_sql, "INSERT INTO acknowledged VALUES (0, 0), (0, 1)")
    assert found() == ("commits, by their rows and by the values that they raised: 2 and 0",)
    cluster.execute("UPDATE pages SET value = 1 WHERE id IN (1, 2)")
    assert found() == ()
    path = cluster.data / str(cluster.value("SELECT pg_relation_filepath('pages')"))
    cluster.stop()
    with path.open("r+b") as file:
        file.seek(7 * 8192 + 4096)
        file.write(b"torn" * 1024)
    cluster.start()
    assert any(words.startswith("pages: invalid page in block 7 of relation") for words in found())
    assert all(words.startswith("pages") for words in found())
    cluster.stop()
    path.unlink()
    cluster.start()
    assert any("could not open file" in words for words in found())


def test_a_level_that_cannot_be_built_is_named(folder_of, scratch, monkeypatch):
    monkeypatch.setattr(crashes, "build", Mock(side_effect=ServerError("it did not start")))
    only(monkeypatch, KILLED, "tuned")
    with ending((StudyError, r"level “tuned” cannot be crashed \(killed server\): it did not start")):
        crash_missing(folder_of(), 1, print)
    assert list(scratch.iterdir()) == []


def test_only_missing_crashes_run_and_each_is_saved_at_once(folder_of, scratch, monkeypatch):
    figures = {
        "after_s": 1, "server_version": "18.4", "acknowledged": 5, "lost": 0, "oldest_lost_ms": None,
        "unacknowledged": 0, "recovery_s": 0.5, "damage": (),
    }  # fmt: skip

    def no_power(kind):
        if kind == POWER_CUT:
            raise PreflightError("only root")

    folder, lines, saved = folder_of(), [], Crash.model_validate
    crash = Mock(side_effect=[{}, {}, KeyboardInterrupt] * 2)
    monkeypatch.setattr(crashes, "check", no_power)
    monkeypatch.setattr(
        crashes, "_crash", lambda plan, this, *_: saved({**this.model_dump(), **figures, **crash()})
    )
    with pytest.raises(InputError, match="run it before its crashes"):
        crash_missing(StudyFolder("none"), 3, lines.append)
    for kept in (2, 4):
        with pytest.raises(Interrupted, match=rf"2 of {8 - kept} crashes are saved"):
            crash_missing(folder, 3, lines.append)
        assert len(kept_crashes(folder)) == kept
    names = [(each.level, each.number) for each in kept_crashes(folder)]
    assert names == [("defaults", 1), ("defaults", 2), ("defaults", 3), ("tuned", 1)]
    assert lines[-1] == "small: crash 2/4 · “tuned”, killed server; power cut is skipped: only root"
    (folder.path / "crashes" / "gone.json").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"cannot read small/crashes/gone\.json \("):
        kept_crashes(folder)


def test_external_servers_replicas_and_own_devices_are_left_out(plan_of):
    ext4, memory = ({"file_system": kind, "size": 1 << 30} for kind in ("ext4", "tmpfs"))
    levels = {
        "load": Level(load={"clients": 9}),
        "theirs": Level(target={"server": "crm"}),
        "replica": Level(replication={"replicas": 1}),
        "memory": Level(storage={"wal": memory}),
        "capped": Level(storage={"write_iops": 500}),
        "ext4": Level(storage={"data": ext4}),
        "folder": Level(storage={"data": {"file_system": None, "path": "/mnt/fast"}}),
    }
    plan, never = plan_of(levels=levels), {"control", "load", "theirs", "replica"}
    assert left_out(plan, KILLED).keys() == never
    assert left_out(plan, POWER_CUT).keys() == never | {"memory", "folder"}
    assert left_out(plan, KILLED)["load"] == "it has the same server as “defaults”"


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user, not root")
def test_a_power_cut_needs_root():
    with pytest.raises(PreflightError, match="only root"):
        crashes.check(POWER_CUT)


DOOMED = """
from benchlib.study import crashes
from benchlib.study.store import StudyFolder
crashes.KINDS = ("power cut",)
crashes.crash_missing(StudyFolder("small"), 8, lambda line: print(line, flush=True))
"""


@pytest.mark.pg
@pytest.mark.long
def test_a_kill_amid_power_cuts_leaves_nothing(folder_of, scratch, monkeypatch):
    only(monkeypatch, POWER_CUT)
    folder, tunable = folder_of(), Path("/proc/sys/vm/dirty_expire_centisecs")
    expiry = tunable.read_text()
    doomed = subprocess.Popen([sys.executable, "-c", DOOMED], stdout=subprocess.PIPE, text=True)
    assert doomed.stdout is not None
    while not kept_crashes(folder):
        assert doomed.stdout.readline()
    time.sleep(1.5)
    doomed.kill()
    doomed.communicate()
    assert eventually(lambda: list(scratch.iterdir()) == [])
    assert (remains(scratch), tunable.read_text()) == ([], expiry)
