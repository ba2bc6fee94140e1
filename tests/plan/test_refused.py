"""What no model of a plan takes: each is refused in a line that names it."""

import pytest
from pydantic import ValidationError

from benchlib.plan.fleet import Fleet
from benchlib.plan.level import Level, first_problem
from benchlib.plan.model import Factor, Plan, Study
from benchlib.plan.workload import Data, Workload

TLS = {"scheduler": "tls://10.0.0.1:8786", "tls": "certificates"}
FACTOR = {"question": "?", "baseline": "a", "levels": {"a": {}, "b": {}}}
CERTIFICATES = "give the folder that 'benchlib fleet certificates' created"
SCHEDULER = "give the address of a 'scheduler'"
NAMED = {"name": "n", "title": "t"}
PLAN = {"workload": {**NAMED, "scripts": [{"sql": "x"}]}, "load": {}, "scale": 1, "seed": 1}


@pytest.mark.parametrize(
    ("model", "values", "why"),
    [
        # one open to everybody
        (Fleet, {**TLS, "scheduler": "tcp://10.0.0.1:8786"}, "anyone who connects could run code on every host"),
        (Fleet, {"scheduler": "tls://10.0.0.1:8786"}, CERTIFICATES),
        (Fleet, {"hosts": {"db1": {"ssh": "db1"}}}, CERTIFICATES),
        (Fleet, {"tls": "certificates", "hosts": {"db1": {}}}, SCHEDULER),
        (Fleet, {"tls": "certificates"}, SCHEDULER),
        (Fleet, {**TLS, "hosts": {"gen1": {"roles": ["load"]}}}, "none of the hosts has the role 'server'"),
        (Fleet, {**TLS, "hosts": {"../db": {}}}, "hosts"),
        (Fleet, {**TLS, "hosts": {"db1": {"address": "db1.lan"}}}, "hosts.db1.address"),
        (Fleet, {**TLS, "hosts": {"db1": {"scratch": "~/fast"}}}, "hosts.db1.scratch"),
        (Fleet, {**TLS, "workers": 3}, "workers: Extra inputs are not permitted"),
        (Fleet, ["db1"], "valid dictionary"),
        (Factor, {**FACTOR, "baseline": "c"}, "'c' is not among the levels: a, b"),
        (Factor, {**FACTOR, "controls": ("c",)}, "'c' is not among the levels"),
        (Factor, {**FACTOR, "levels": {"a": {}}}, "at least 2 items"),
        *((Factor, {**FACTOR, "levels": {"a": {}, name: {}}}, "1 to 80 printable") for name in (" ", "b" * 81)),
        (Factor, {**FACTOR, "levels": {"a": {}, 5: {}}}, "valid string"),
        (Plan, {**PLAN, "factor": {**FACTOR, "levels": {"a": {}, "b": {"workload": "writes"}}}},
         "names the workload 'writes', which the plan lacks"),
        (Study, {"format": 3}, "format"),
        (Workload, {**NAMED, "scripts": [{"sql": "SELECT 1", "weight": 0}]}, "no script"),
        (Workload, {**NAMED, "scripts": [{"sql": "x"}] * 129}, "at most 128"),
        (Data, {}, "one source"),
        (Data, {"file": "a.dump", "service": "shop"}, "one source"),
        (Data, {"file": "a.dump", "tables": ["orders"]}, "'tables' belong to a 'service'"),
        (Data, {"template": "a", "superuser": True}, "'superuser' belongs to a dump"),
        (Level, {"setting": {}}, "setting: Extra"),
        (Level, {"initdb": "--no-sync"}, "initdb"),
        *((Level, {"load": load}, f"load.{next(iter(load))}")
          for load in ({"client": 4}, {"clients": 0}, {"variables": {"a-b": 1}}, {"variables": {"a": ""}},
                       *({"rate": rate} for rate in (0, True, 10**400, "0 % of capacity", "60 %")))),
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_plan_is_refused_in_a_line(model, values, why):
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    assert why in first_problem(caught.value)
