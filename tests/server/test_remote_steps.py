"""The three steps of the study of a managed server, each in a whole trial on a server that is not ours."""

from pathlib import Path
from typing import Any

import pytest
from foreign import Foreign

from benchlib.host.shell import which
from benchlib.load.workloads import load_workload
from benchlib.plan.design import Trial
from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan
from benchlib.study.bench import open_bench
from benchlib.study.records import Parameters

pytestmark = [pytest.mark.pg, pytest.mark.long]

RUN, LOAD, SYSBENCH = "tpcb-like-90", "load", "sysbench-write-only"
needs_sysbench = pytest.mark.skipif(which("sysbench") is None, reason="no sysbench on the PATH")


@pytest.mark.parametrize("own_schema", [None, "bench"])
@pytest.mark.parametrize("step", [RUN, LOAD, pytest.param(SYSBENCH, marks=needs_sysbench)])
def test_a_step_runs_and_leaves_the_server_as_it_was(
    foreign: Foreign, services: Path, tmp_path: Path, step: str, own_schema: str | None
) -> None:
    before = foreign.databases(), foreign.schemas()
    level: dict[str, Any] = {"workload": step, "target": {"server": "maker", "own_schema": own_schema}}
    levels = {name: Level.model_validate(level) for name in (step, "control")}
    plan = Plan(
        factor=Factor(question="?", baseline=step, controls=("control",), levels=levels),
        workload=load_workload(RUN),
        workloads={step: load_workload(step)},
        load=Load(clients=2, threads=1, duration_s=1, warmup_s=0, protocol="prepared"),
        scale=1,
        seed=7,
        arrangement="fresh",
    )
    (kept := tmp_path / "kept").mkdir()
    with (
        foreign.given(
            "GRANT CREATE ON DATABASE postgres TO maker",
            back="REVOKE CREATE ON DATABASE postgres FROM maker",
        ),
        open_bench(plan, "test") as bench,
    ):
        measurement = bench.measure(Trial(block=1, position=1, level=step, seed=1), kept)
    assert measurement.error is None
    assert (kept / Parameters.FILE).is_file()
    assert b"zebra" not in b"".join(path.read_bytes() for path in kept.iterdir())
    assert (foreign.databases(), foreign.schemas()) == before
