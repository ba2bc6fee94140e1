"""A pytest plugin (``-p coarse_clock``) under which clocks advance in steps of 1/64 s, as on some systems."""

import time

STEP_NS = 1_000_000_000 // 64


def coarsen(name: str) -> None:
    """Replace a clock of :mod:`time`, and its twin in nanoseconds, by one that advances in steps."""
    exact = getattr(time, f"{name}_ns")
    setattr(time, f"{name}_ns", lambda: exact() // STEP_NS * STEP_NS)
    setattr(time, name, lambda: exact() // STEP_NS * STEP_NS / 1e9)


for clock in ("time", "monotonic", "perf_counter", "process_time"):
    coarsen(clock)
