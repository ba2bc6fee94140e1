"""What a notebook asks for, made a study or refused."""

from collections.abc import Mapping

import pytest

from benchlib.errors import InputError
from benchlib.levers import BY_KEY
from benchlib.plan.model import Study
from benchlib.plan.planning import make_study
from benchlib.plan.workload import Script, Workload

GIB = 1 << 30
WORKLOAD = Workload(name="w", title="W", scripts=(Script(builtin="select-only"),))
WORKLOADS = {
    "w": WORKLOAD,
    "reads": WORKLOAD.model_copy(update={"name": "reads"}),
    "heavy": WORKLOAD.model_copy(update={"name": "heavy", "mib_per_scale": 20}),
}
QUICK = {"clients": 8, "threads": 2, "duration_s": 5, "warmup_s": 1, "blocks": 3, "scale": 10}
FULL = {"clients": 100, "threads": 100, "duration_s": 600, "blocks": 9, "scale": 300, "rebuild_every": 3}
TUNED = {"settings": {"shared_buffers": "25 % of memory", "jit": False, "work_mem": "8MB"}}
VALUES = {
    **{"factor": "operating_system", "question": "Does it help?", "study": "", "workload": "w", "seed": 7},
    **{"profile": "quick", "profiles": {"quick": QUICK, "full": FULL}},
    **{"levels": {"defaults": {}, "tuned": TUNED}, "baseline": "defaults"},
    **{"clients": 0, "duration_s": 0, "blocks": 0},
}

DISK = {"slow": {"storage": {"read_iops": 100}}, "fast": {}}
LOAD = {"read/write": {}, "read-only": {"workload": "reads"}}
CLIENTS = {
    "4 clients": {"load": {"clients": 4}},
    "8 clients": {"load": {"clients": 8}, "settings": {"jit": "off"}},
}
GRID = {"disk": DISK, "load": LOAD, "clients": CLIENTS}
CROSSED = {"levels": {}, "baseline": "", "grid": GRID, "along": "disk"}
MATRIX = {"workloads": ["w", "reads"], "versions": ["16", "18"], "baseline": ""}


def planned(left_out: Mapping[str, str] | None = None, **changes: object) -> Study:
    return make_study({**VALUES, **changes}, 4 * GIB, WORKLOADS.__getitem__, BY_KEY, left_out or {})


def refused(left_out: Mapping[str, str] | None = None, **changes: object) -> str:
    with pytest.raises(InputError) as caught:
        planned(left_out, **changes)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def levels(*names: str, **more: object) -> dict[str, object]:
    """The baseline, others that differ in one setting, and those that are given."""
    plain = {name: {"settings": {"geqo_seed": n / 8}} for n, name in enumerate(names)}
    return {"defaults": {}, **plain, **more}
