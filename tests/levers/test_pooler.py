"""A load that goes through pgbouncer: what may be asked for, what this machine has, and a trial of it."""

import gzip
import json
from pathlib import Path

import pytest
from clusters import bench_plan

from benchlib.errors import PreflightError
from benchlib.host.shell import which
from benchlib.host.sweep import processes_of
from benchlib.host.telemetry import transaction_costs
from benchlib.levers import BY_KEY
from benchlib.levers.lever import Wish
from benchlib.server import statistics
from benchlib.study.bench import Bench
from benchlib.study.records import Samples

POOLER = BY_KEY["pooler"]


@pytest.mark.parametrize(
    ("version", "mode", "load", "why"),
    [
        ("1.18.0", "transaction", {"protocol": "extended"}, None),
        ("1.18.0", "session", {"protocol": "prepared"}, None),
        ("1.18.0", "transaction", {"protocol": "prepared"}, r"1\.18 has no prepared statements .* 1\.21 has"),
        ("1.21.0", "transaction", {"protocol": "prepared"}, None),
        ("1.21.0", "statement", {}, "refuses BEGIN"),
        ("1.21.0", "transaction", {"generators": ["gen1"]}, "accepts local connections only"),
    ],
)
def test_what_a_load_asks_of_pgbouncer(version, mode, load, why, scratch, monkeypatch):
    program = scratch / "pgbouncer"
    program.write_text(f"#!/bin/sh\necho 'PgBouncer {version}'\n")
    program.chmod(0o755)
    monkeypatch.setattr("benchlib.levers.pooler.which", lambda name: program)
    levels = {"straight": {}, "pooled": {"pooler": {"mode": mode}, "load": load}}
    wish = Wish(bench_plan(levels, "foreign-key"), "pooled", Path("/"))
    if why:
        with pytest.raises(PreflightError, match=why):
            POOLER.check(wish)
    else:
        POOLER.check(wish)
        assert wish.found == [("pooler", f"pgbouncer {version[:4]}")]


@pytest.fixture
def pooled(trials, unguarded, monkeypatch):
    """A bench with a level that goes straight, and one through a pooler of each mode."""
    if not which("pgbouncer"):
        pytest.skip("no pgbouncer here")
    # a pooler's sessions stay, so that each wait for their end would last until its limit
    monkeypatch.setattr(statistics, "ticks", lambda seconds: [None])
    load = {"clients": 4, "connect_per_transaction": True}
    modes = {m: {"pooler": {"mode": m, "pool_size": 2}, "load": load} for m in ("session", "transaction")}
    return trials.bench(bench_plan({"straight": {}, **modes}, arrangement="fresh"))


def samples(folder):
    return json.loads(gzip.decompress((folder / Samples.FILE).read_bytes()))


@pytest.mark.pg
def test_a_load_goes_through_pgbouncer_whose_processor_time_is_told(pooled, trials, scratch):
    for mode in ("session", "transaction"):
        measurement, folder = trials.run(pooled, mode)
        assert measurement.error is None
        assert {"--port=6432", "--connect", "--client=4"} <= set(measurement.load_argv)
        assert len(samples(folder)["readings"][-1]["pooler_ticks"]) == 1
        assert transaction_costs(samples(folder), 1000)["pooler_cpu_ms_per_transaction"] is not None
        assert [process for process in processes_of(scratch) if "pgbouncer" in process.name()] == []
    measurement, folder = trials.run(pooled, "straight")
    assert "--port=5432" in measurement.load_argv
    assert samples(folder)["readings"][-1]["pooler_ticks"] == {}


@pytest.mark.pg
def test_a_pooler_that_ends_costs_the_trial(pooled, trials, monkeypatch):
    drive = Bench._drive

    def end_it(self, environment, *rest):
        for process in environment.site.processes:
            process.kill()
            process.wait()
        return drive(self, environment, *rest)

    monkeypatch.setattr(Bench, "_drive", end_it)
    measurement, _ = trials.run(pooled, "transaction")
    assert "pgbouncer has ended" in (measurement.error or "")
    assert trials.run(pooled, "straight")[0].error is None
