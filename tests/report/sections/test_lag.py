"""Replication's section: what is not known is said and never drawn as 0, and only what was verified is promised."""

from collections.abc import Callable
from dataclasses import asdict

import pytest
from benchlib.report.sections.replica_findings import replica_lag, replicas_verified
from benchlib.report.view import Statement, View
from page_parts import named, note

from benchlib.levers.replicas import Verified
from benchlib.plan.level import Level
from benchlib.study.records import ReplicaReadings

LEVELS = {
    "standalone": Level(),
    "asynchronous": Level(replication={"replicas": 1, "quorum": None}),
    "any of two": Level(replication={"replicas": 2, "quorum": "ANY 1"}),
    "local": Level(
        replication={"replicas": 1, "quorum": "FIRST 1"}, settings={"synchronous_commit": "local"}
    ),
}
STAGES = ("write", "flush", "replay")


def reading(second: int, replica: str, ms: float | None, kib: float | None) -> dict[str, object]:
    """What the primary says of a replica that is written at once, flushed later, and replayed last."""
    times = {f"{stage}_lag_s": ms and ms * place / 1000 for place, stage in enumerate(STAGES, 1)}
    wal = {f"{stage}_lag_bytes": kib and round(1024 * kib * place) for place, stage in enumerate(STAGES, 1)}
    return {
        "at_s": 1_700_000_000.3 + 1.002 * second,
        "replica": replica,
        "state": "streaming",
        **times,
        **wal,
    }


def kept_of(level: str, block: int) -> dict[str, object] | None:
    """What a trial of a level leaves: the first readings of asynchronous replication are idle ones."""
    if level == "asynchronous":
        lag = [
            reading(s, "replica1", None if s == 1 else 10.0 * block, 0 if s == 1 else 64.0) for s in range(4)
        ]
        return {"lag": lag, "verified": verified("on", [], 1000)}
    if level == "any of two":
        lag = [reading(s, f"replica{n}", 1.0 * n, 2.0 * n) for s in range(4) for n in (1, 2)]
        held = ["replica1", "replica2"] if block == 1 else ["replica2"]
        return {"lag": lag, "verified": verified("on", held, 1000)}
    if level == "local":
        lag = [reading(s, "replica1", None, None) for s in range(4)]
        return {"lag": lag, "verified": verified("local", [], None)}
    return None


def verified(mode: str, held: list[str], count: int | None) -> dict[str, object]:
    """What the bench keeps of replicas that kept their promise."""
    return asdict(Verified(mode, tuple(held), count, ()))


@pytest.fixture
def view(view_of) -> Callable[..., View]:
    """The view of a study of those levels, three blocks; what a trial leaves can be replaced."""

    def make(kept=kept_of, *, levels=LEVELS, **options) -> View:
        def leaving(trial):
            readings = kept(trial.level, trial.block)
            return {ReplicaReadings.FILE: readings} if readings else {}

        return view_of(leaving=leaving, levels=levels, **options)

    return make


def test_the_lag_is_told_by_level_in_time_and_in_wal_and_what_is_not_known_is_said(view) -> None:
    levels = named(replica_lag(view()))
    assert "standalone" not in levels
    alone = levels["asynchronous"]
    assert (alone["median, ms"], alone["maximum, ms"], alone["most WAL not replayed, KiB"]) == (
        "60",
        "90",
        "192",
    )
    assert [row["readings not known"] for row in levels.values()] == ["3", "0", "9"]
    assert levels["local"]["median, ms"] == "–"


def test_what_a_failover_loses_and_what_was_found(view) -> None:
    table = replicas_verified(view())
    alone, both, local = named(table).values()
    assert alone == {
        "level": "asynchronous",
        "a commit waits for": "none of them",
        "lost with the primary": "the latest commits: 64 KiB of WAL not yet written there at the worst of the readings, one a second",
        "trials verified": "3 of 3",
        "held at once": "not asked",
        "rows on each, all trials": "3,000",
    }
    assert both["a commit waits for"] == "ANY 1 of 2: flushed (on)"
    assert both["lost with the primary"].endswith("if the replica furthest ahead is promoted")
    assert both["held at once"] == "replica1 in 1 of 3 trials, replica2 in 3 of 3 trials"
    assert local["lost with the primary"] == "the latest commits: how many is not known"
    assert local["rows on each, all trials"] == "–"
    assert "Failed" not in note(table)


def test_of_replicas_on_other_hosts_the_way_and_their_load_are_told(view) -> None:
    def kept(level: str, block: int) -> dict[str, object] | None:
        readings = [{"at_s": at_s, **host_counters(at_s)} for at_s in (0.1, 3.1)]
        away = {"replica1": {"host": "db2", "round_trip_s": block / 1000, "readings": readings}}
        return (
            {**(kept_of(level, block) or {}), "elsewhere": away}
            if level == "asynchronous"
            else kept_of(level, block)
        )

    alone, both, _ = named(replicas_verified(view(kept))).values()
    assert (alone["round trip, ms"], alone["their hosts busy, %"]) == ("2", "25")
    assert both["round trip, ms"] == "–"


def host_counters(at_s: float) -> dict[str, object]:
    """What a host has counted of which a quarter was busy."""
    busy, idle = round(100 * at_s), round(300 * at_s)
    counts = {"context_switches": 1, "dirty_kib": 1, "pressure": {"io": {}}, "devices": {}}
    return {"cpu": [busy, 0, 0, idle, 0, 0, 0, 0], **counts}


def test_of_two_replicas_the_one_that_has_more_counts_for_a_failover(view) -> None:
    def kept(level: str, _: int) -> dict[str, object] | None:
        if level != "any of two":
            return None
        lag = [reading(s, f"replica{n}", 1.0, 2.0 * n) for s in (0, 1) for n in (1, 2)]
        return {"lag": lag, "verified": verified("off", [], 10)}

    levels = named(replicas_verified(view(kept)))
    assert (
        levels["any of two"]["lost with the primary"]
        == "the latest commits: 2 KiB of WAL not yet written there at the worst of the readings, one a second"
    )
    assert levels["asynchronous"]["trials verified"] == "0 of 3"
    assert levels["asynchronous"]["lost with the primary"] == "–"


def test_a_broken_promise_is_not_counted_and_its_reason_is_told(view) -> None:
    def broken(level: str, block: int) -> dict[str, object] | None:
        kept = kept_of(level, block)
        return {"lag": kept["lag"]} if kept and level == "any of two" else kept

    table = replicas_verified(view(broken, failing={"any of two": "replica1 holds 9 rows, the primary 10"}))
    row = named(table)["any of two"]
    assert row["trials verified"] == "0 of 3"
    assert row["lost with the primary"] == row["held at once"] == "–"
    assert "Failed, any of two: replica1 holds 9 rows, the primary 10." in note(table)


def test_a_study_without_replicas_says_so(view) -> None:
    alone = view(levels={"standalone": Level()})
    for section in (replica_lag, replicas_verified):
        assert isinstance(section(alone), Statement)
        assert "No level of this study has a replica" in str(section(alone))
