"""One load from several generators: its parts make the whole again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import pgbench_output
from hypothesis import given
from hypothesis import strategies as st

from benchlib.load.pgbench import Pgbench
from benchlib.load.shared import common_tps, merged, overlap, split
from benchlib.load.tools import read
from benchlib.load.workloads import load_workload
from benchlib.plan.model import Load


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 6), st.integers(1, 2**31 - 1))
def test_parts_make_the_whole(clients: int, threads: int, hosts: int, seed: int) -> None:
    names = tuple(f"g{n}" for n in range(hosts))
    load = Load(clients=clients, threads=threads, rate=900.0, generators=names)
    parts, seeds = zip(*split(load, seed).values(), strict=True)
    assert sum(part.clients for part in parts) == clients
    assert max(part.clients for part in parts) - min(part.clients for part in parts) <= 1
    assert sum(float(part.rate or 0) for part in parts) == pytest.approx(900)
    assert all(1 <= part.threads <= part.clients for part in parts)
    conditions = Pgbench(Path("pgbench")).conditions(load, load_workload("insert"), 1)
    assert conditions["threads"] == sum(part.threads for part in parts)
    assert len(set(seeds)) == len(parts)
    assert all(1 <= own < 2**31 for own in seeds)


def report(tps: float, shift_s: float = 0, **speeds: Sequence[float | None]) -> dict[str, Any]:
    """What one of the generators reports, its readings so much later and of those speeds."""
    whole = read("pgbench", "\n".join(pgbench_output(tps=tps)))
    rows = zip(whole["progress"], speeds.get("readings", [tps] * 3), strict=True)
    progress = [{**row, "elapsed_s": row["elapsed_s"] + shift_s, "tps": speed} for row, speed in rows]
    return {**whole, "progress": progress}


def test_counts_and_speeds_are_sums_and_latencies_are_those_of_all_transactions() -> None:
    parts = [report(600), report(200)]
    whole = merged(parts)
    assert (whole["transactions"], whole["clients"], whole["tps"]) == (2400, 8, pytest.approx(800))
    assert [row["tps"] for row in whole["progress"]] == pytest.approx([800] * 3)
    values = [
        part["latency_average_ms"] + sign * part["latency_stddev_ms"] for part in parts for sign in (1, -1)
    ]
    together = np.repeat(values, [900, 900, 300, 300])
    assert whole["latency_average_ms"] == pytest.approx(together.mean())
    assert whole["latency_stddev_ms"] == pytest.approx(together.std())


@pytest.mark.parametrize("complete", [True, False])
def test_averaged_percentiles_are_none_and_all_parts_must_have_ended(complete: bool) -> None:
    ended = {"latency_p95_ms": 3.0, **report(600)}
    whole = merged([ended, {**ended, "complete": complete}])
    assert (whole["latency_p95_ms"], whole["complete"]) == (None, complete)


def test_no_figure_of_the_whole_is_that_of_the_first_generator() -> None:
    counts = {"retries": 8, "deadlock_failures": 2, "failed_transactions": 3, "initial_connection_ms": 5.0}
    latency = {"latency_average_ms": 2.0, "latency_stddev_ms": 1.0}
    script = {"script": 1, "tps": 300.0, "transactions": 900, **latency, **counts}
    parts = [report(600) | counts | {"scripts": [script]} for _ in range(2)]
    parts[1]["initial_connection_ms"] = 9.0
    for part in parts:
        part["progress"] = [row | {"failed": 5, "skipped": 7, "lag_ms": 1.0} for row in part["progress"]]
    whole = merged(parts, [0.0, 0.0])
    [row], second = whole["scripts"], whole["progress"][0]
    assert (row["script"], row["tps"], row["transactions"]) == (1, pytest.approx(600), 1800)
    assert [row[name] for name in [*counts][:3]] == [whole[name] for name in [*counts][:3]] == [16, 4, 6]
    assert (whole["initial_connection_ms"], whole["seed"], whole["duration_s"]) == (None, 1, 3)
    assert [second[name] for name in ("failed", "skipped", "lag_ms", "stddev_ms")] == [10, 14, 1.0, None]
    late = merged([parts[0], {**parts[1], "tps": 400.0}], [0.0, 1.5])
    assert late["scripts"][0]["tps"] / late["tps"] == pytest.approx(600 / 1000)


@pytest.mark.parametrize(
    ("windows", "share"),
    [([(0, 10), (0, 10)], 1), ([(0, 10), (5, 15)], 1 / 3), ([(0, 1), (2, 3)], 0), ([(4, 4)], 0)],
)
def test_the_overlap_is_the_part_of_the_time_in_which_all_measured(windows, share: float) -> None:
    assert overlap(windows) == pytest.approx(share)


def test_readings_are_put_together_by_their_seconds_as_far_as_all_tell_them() -> None:
    together = merged([report(600), report(200, shift_s=1.4)])["progress"]
    assert [row["elapsed_s"] for row in together] == [2, 3]
    first, second, _ = merged([report(600), report(200, readings=[None, 200, 200])])["progress"]
    assert (first["tps"], first["latency_ms"], second["tps"]) == (None, None, pytest.approx(800))


def test_the_common_rate_is_of_the_time_in_which_all_measured() -> None:
    parts = [report(600), report(200)]
    assert common_tps(parts, [0.0, 0.0]) == merged(parts, [5.0, 5.0])["tps"] == pytest.approx(800)
    # a server that is used up: who is alone in the first second has all of it
    alone, late = (report(1600 / 3, readings=speeds) for speeds in ([800, 400, 400], [400, 400, 800]))
    assert common_tps([alone, late], [0.0, 1.0]) == pytest.approx(800)
    assert merged([alone, late], [0.0, 1.0])["transactions"] == 3200
    assert common_tps(parts, [0.0, 99.0]) is None
    assert common_tps([parts[0], {**parts[1], "tps": None}], [0.0, 0.0]) is None
