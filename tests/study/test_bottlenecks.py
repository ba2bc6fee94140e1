"""Bottlenecks by saturated resources and by the activity of sessions."""

from math import isnan, nan

import pandas as pd
import pytest

from benchlib.plan.level import Level
from benchlib.study.instruments import NO_STATEMENT, WORKS, activity, bottleneck, nearest_cap


@pytest.mark.parametrize(
    ("processors", "tool", "cap", "sessions", "rate_held", "name"),
    [
        (0.98, 0.95, 1.0, {"disk": 9}, False, "load tool"),
        (0.15, 0.02, 1.0, {"disk": 5, "locks": 2}, False, "disk's cap"),
        (0.99, 0.24, nan, {NO_STATEMENT: 7.4, WORKS: 0.6}, False, "processors"),
        (0.9, 0.2, 0.5, {NO_STATEMENT: 4, "disk": 3}, False, "processors"),
        (0.75, 0.1, nan, {"disk": 5.5, NO_STATEMENT: 1.7}, False, "waits for the disk"),
        (0.7, 0.1, nan, {"replica": 5, "disk": 3}, False, "replica"),
        (0.2, 0.1, 1.0, {"replica": 5, "disk": 3}, False, "replica"),
        (0.2, 0.1, 1.0, {"replica": 2, "disk": 5}, False, "disk's cap"),
        (0.6, 0.1, nan, {"locks": 5, "disk": 3}, False, "waits for locks"),
        (0.4, 0.1, nan, {WORKS: 0.4, NO_STATEMENT: 0.4}, False, "too few clients"),
        (nan, nan, nan, {WORKS: 2}, False, WORKS),
        (nan, nan, nan, {}, False, "not known"),
        (0.4, 0.1, nan, {"disk": 1}, True, "the rate that was set"),
        (0.97, 0.1, nan, {"disk": 1}, True, "processors"),
    ],
)
def test_a_saturated_resource_comes_before_the_activity_of_sessions(
    processors, tool, cap, sessions, rate_held, name
):
    assert bottleneck(processors, tool, cap, sessions, rate_held=rate_held) == name


@pytest.mark.parametrize(
    ("reads", "mib_s", "nearest"), [(300, 1, (0.5, "requests")), (30, 15, (0.75, "bytes"))]
)
def test_the_nearest_cap_has_its_kind(reads, mib_s, nearest):
    level = Level(storage={"read_iops": 600, "read_bytes": 20 << 20})
    seconds = pd.DataFrame({"r_iops": [reads] * 3, "r_mib_s": [mib_s] * 3})
    assert nearest_cap(level, seconds) == nearest
    assert isnan(nearest_cap(Level(), seconds)[0])


def test_wait_events_are_grouped_by_activity():
    wanted = {
        "CPU": WORKS, "Client: ClientRead": NO_STATEMENT, "LWLock: WALWrite": "disk", "IO: WalSync": "disk",
        "Lock: tuple": "locks", "IPC: SyncRep": "replica", "Timeout: SpinDelay": "locks",
        "IPC: MessageQueueSend": "other waits",
    }  # fmt: skip
    assert {event: activity(event) for event in wanted} == wanted
