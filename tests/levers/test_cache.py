"""What a trial's load finds in memory, on a real server."""

import json
import sys

import pytest
from clusters import bench_plan

from benchlib.host import page_cache
from benchlib.server.cluster import Cluster


@pytest.mark.pg
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what it has in memory")
def test_a_cold_start_finds_nothing_in_memory_and_a_warm_one_all_data(trials, unguarded, monkeypatch):
    shares, start = [], Cluster.start

    def looked(cluster, **how):
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
