"""What crashes cost is told beside what was promised: what is not known is no zero, and no loss is no proof."""

from collections.abc import Callable
from typing import Any

import pytest
from benchlib.report.sections.durability import crashes
from benchlib.report.view import View
from page_parts import note, rows

from benchlib.plan.level import Level
from benchlib.study.crashed import KILLED, POWER_CUT, Crash, Kind, keep_crash
from benchlib.study.experiment import shown

LEVELS = {
    "late": Level(settings={"synchronous_commit": "off"}),
    "unsafe": Level(settings={"fsync": "off"}),
    "torn": Level(settings={"full_page_writes": "off"}),
}

HARMLESS = {
    "after_s": 1.0,
    "server_version": "18.4",
    "acknowledged": 500,
    "lost": 0,
    "oldest_lost_ms": None,
    "unacknowledged": 0,
    "recovery_s": 0.5,
    "damage": (),
}


@pytest.fixture
def view(folder_of) -> Callable[..., View]:
    """The view of a study with crashes; each is its level, its kind and what else than nothing it cost."""

    def make(*crashed: tuple[str, Kind, dict[str, Any]]) -> View:
        folder = folder_of(levels=LEVELS)
        for number, (level, kind, changes) in enumerate(crashed, 1):
            about = {"level": level, "kind": kind, "number": number}
            keep_crash(folder, Crash.model_validate({**HARMLESS, **about, **changes}))
        return View(shown(folder))

    return make


def test_crashes_are_added_up_by_level_and_kind(view) -> None:
    lost = {"lost": 7, "oldest_lost_ms": 81.2}
    table = crashes(
        view(("late", KILLED, lost), ("late", KILLED, {}), ("defaults", KILLED, {}), ("late", POWER_CUT, {}))
    )
    defaults, late = rows(table)
    assert defaults == {"level": "defaults", KILLED: "0 of 500 lost", POWER_CUT: "–", "may cost": "nothing"}
    assert late["may cost"] == "a crash loses the latest acknowledged commits (synchronous_commit = off)"
    assert late[KILLED] == "7 of 1,000 lost; in 1 of 2 crashes, the oldest acknowledged up to 81.2 ms before"
    assert late[POWER_CUT] == "0 of 500 lost"
    assert crashes(view()).html == table.html, "the same from what is kept, each time"


def test_an_age_that_is_not_known_is_not_said(view) -> None:
    (late,) = [row for row in rows(crashes(view(("late", KILLED, {"lost": 7})))) if row["level"] == "late"]
    assert late[KILLED] == "7 of 500 lost; in 1 of 1 crashes"


def test_what_cannot_be_read_is_not_known_rather_than_nothing(view) -> None:
    refused = {
        "lost": None,
        "unacknowledged": None,
        "recovery_s": None,
        "damage": ("PANIC:  no valid checkpoint",),
    }
    table = crashes(view(("unsafe", POWER_CUT, refused)))
    (row,) = rows(table)
    assert row[POWER_CUT] == "1 of 1 did not start: PANIC:  no valid checkpoint"
    assert "Nothing lost is no proof" not in note(table), "something was"
    assert "No server was killed." in note(table)


def test_a_level_that_breaks_its_promise_is_named(view) -> None:
    damage = {"damage": ("pages: invalid page in block 7",)}
    words = note(crashes(view(("defaults", KILLED, {"lost": 1}), ("torn", KILLED, damage))))
    assert "“defaults” promises to lose nothing, but 1 of 1 crashes (killed server) cost something." in words
    assert "“torn” promises to lose nothing, but 1 of 1 crashes (killed server) cost something." in words


def test_no_loss_is_no_proof(view) -> None:
    words = note(crashes(view(*[("defaults", KILLED, {})] * 10, ("torn", POWER_CUT, {}))))
    assert "where 1 of 1 crashes cost nothing, up to 95 %" in words
    assert "“torn” may lose something (power cut) and lost nothing in 1 of 1 crashes: luck" in words


def test_who_is_left_out_is_said_with_the_reason(view) -> None:
    words = note(crashes(view(("defaults", KILLED, {}))))
    assert "of “control”: its server is that of “defaults”." in words
    assert "No power was cut: that takes root" in words
