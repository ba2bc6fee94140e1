"""Levels with ``sql`` in a study: one load, a copy for each level."""

import pytest
from clusters import bench_plan
from hosts import run_for_real

from benchlib.server.schema import change_schema
from benchlib.server.templates import Templates
from benchlib.study.records import Cost

pytestmark = pytest.mark.pg


@pytest.mark.usefixtures("unguarded")
def test_a_study_loads_the_data_once_and_copies_them_for_each_level_which_has_its_cost(scratch, monkeypatch):
    loads, changes, load = list[str](), list[str](), Templates.load
    monkeypatch.setattr(Templates, "load", lambda *args: (loads.append("load"), load(*args))[1])
    monkeypatch.setattr(
        "benchlib.server.templates.change_schema",
        lambda *args, **more: (changes.append(args[2]), change_schema(*args, **more))[1],
    )
    index = "CREATE INDEX ON test_table (value);"
    levels = {"without": {}, "with": {"sql": index}, "same": {"sql": index}, "full": {"sql": "VACUUM FULL;"}}
    folder = run_for_real("schema", bench_plan(levels), 1)
    assert [one.error for one in folder.kept().values()] == [None] * 4
    costs = {m.trial.level: Cost.read(folder, trial_id) for trial_id, m in folder.kept().items()}
    assert costs["without"] is None
    for name in ("with", "same"):
        assert min(costs[name].seconds, costs[name].size_bytes, costs[name].wal_bytes) > 0
    assert (loads, sorted(changes)) == (["load"], [index, "VACUUM FULL;"])
    assert list(scratch.glob("run-*")) == []
