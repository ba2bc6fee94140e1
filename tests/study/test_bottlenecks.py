"""What held a level back, by what was used up or by what its sessions did."""

import math

import pandas as pd
import pytest

from benchlib.plan.level import Level
from benchlib.study.instruments import NO_STATEMENT, WORKS, bottleneck, doing, nearest_cap


@pytest.mark.parametrize(
    ("processors", "tool", "cap", "sessions", "name"),
    [
        (0.98, 0.95, 1.0, {"disk": 9}, "load tool"),
        (0.15, 0.02, 1.0, {"disk": 5, "locks": 2}, "disk's cap"),
        (0.99, 0.24, math.nan, {NO_STATEMENT: 7.4, WORKS: 0.6}, "processors"),
        (0.9, 0.2, 0.5, {NO_STATEMENT: 4, "disk": 3}, "processors"),
        (0.75, 0.1, math.nan, {"disk": 5.5, NO_STATEMENT: 1.7}, "waits for the disk"),
        (0.7, 0.1, math.nan, {"replica": 5, "disk": 3}, "replica"),
        (0.2, 0.1, 1.0, {"replica": 5, "disk": 3}, "replica"),
        (0.2, 0.1, 1.0, {"replica": 2, "disk": 5}, "disk's cap"),
        (0.6, 0.1, math.nan, {"locks": 5, "disk": 3}, "waits for locks"),
        (0.4, 0.1, math.nan, {WORKS: 0.4, NO_STATEMENT: 0.4}, "too few clients"),
        (math.nan, math.nan, math.nan, {WORKS: 2}, WORKS),
        (math.nan, math.nan, math.nan, {}, "not known"),
    ],
)
def test_what_is_used_up_comes_before_what_sessions_do(processors, tool, cap, sessions, name) -> None:
    assert bottleneck(processors, tool, cap, sessions) == name


@pytest.mark.parametrize(
    ("reads", "mib_s", "share", "what"), [(300, 1, 0.5, "requests"), (30, 15, 0.75, "bytes")]
)
def test_the_cap_that_is_nearest_says_what_it_is_on(reads, mib_s, share, what) -> None:
    level = Level(storage={"read_iops": 600, "read_bytes": 20 << 20})
    seconds = pd.DataFrame({"r_iops": [reads] * 3, "r_mib_s": [mib_s] * 3})
    assert nearest_cap(level, seconds) == (pytest.approx(share), what)
    assert math.isnan(nearest_cap(Level(), seconds)[0])


def test_a_rate_that_was_held_is_what_held_a_level_back() -> None:
    assert bottleneck(0.4, 0.1, math.nan, {"disk": 1}, rate_held=True) == "the rate that was set"
    assert bottleneck(0.97, 0.1, math.nan, {"disk": 1}, rate_held=True) == "processors"


def test_wait_events_are_told_by_what_a_session_does() -> None:
    events = ["CPU", "Client: ClientRead", "LWLock: WALWrite", "IO: WalSync", "Lock: tuple", "IPC: SyncRep"]
    assert [*map(doing, events)] == [WORKS, NO_STATEMENT, "disk", "disk", "locks", "replica"]
    assert (doing("Timeout: SpinDelay"), doing("IPC: MessageQueueSend")) == ("locks", "other waits")
