"""What a trial's load finds in memory, on a real server."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from clusters import Trials, bench_plan

from benchlib.errors import PreflightError
from benchlib.host import page_cache
from benchlib.levers import BY_KEY
from benchlib.levers.lever import Wish
from benchlib.server.cluster import Cluster


def test_what_runs_beside_the_load_would_end_with_the_restart(tmp_path: Path) -> None:
    plan = bench_plan({"first": {}, "second": {"cache": "cold"}}, "mixed-scan")
    assert BY_KEY["cache"].check(Wish(plan, "first", tmp_path)) == []
    with pytest.raises(PreflightError, match="restarts the server"):
        BY_KEY["cache"].check(Wish(plan, "second", tmp_path))


@pytest.mark.pg
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what it has in memory")
def test_a_cold_start_finds_nothing_in_memory_and_a_warm_one_all_data(
    trials: Trials, unguarded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, start = list[float](), Cluster.start

    def looked(cluster: Cluster, **how: Any) -> None:
        shares.append(page_cache.resident_share(cluster.data.resolve()))
        start(cluster, **how)

    bench = trials.bench(bench_plan({"cold": {"cache": "cold"}, "warm": {"cache": "warm"}}, "select-only"))
    monkeypatch.setattr(Cluster, "start", looked)
    cold, folder = trials.run(bench, "cold")
    assert cold.error is None
    assert cold.host["cache"].startswith("cold: less than 1")
    assert shares[-1] < 0.01
    counters = json.loads((folder / "statistics.json").read_text())
    assert counters["after"]["database"]["blks_read"] > counters["before"]["database"]["blks_read"]
    warm, _ = trials.run(bench, "warm")
    assert warm.error is None
    assert warm.host["cache"].startswith("warm, by ")
    assert shares[-1] > 0.9
