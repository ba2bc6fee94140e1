"""A pytest plugin (``-p coarse_clock``) under which clocks advance in steps of 1/64 s, as on some systems."""

import time

STEP_NS = 1_000_000_000 // 64


class CoarseClock:
    """A clock of :mod:`time` that advances in steps; what another process gets of it is that process's own clock."""

    def __init__(self, name: str, unit_ns: float) -> None:
        self._exact = getattr(time, f"{name.removesuffix('_ns')}_ns")
        self.__name__, self._unit_ns = name, unit_ns

    def __call__(self) -> float:
        """Return the time, rounded down to a step."""
        ticks: int = self._exact() // STEP_NS * STEP_NS
        return ticks if self._unit_ns == 1 else ticks / self._unit_ns

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (time, self.__name__)


CLOCKS = {
    f"{name}{ending}": CoarseClock(f"{name}{ending}", unit_ns)
    for name in ("time", "monotonic", "perf_counter", "process_time")
    for ending, unit_ns in (("_ns", 1), ("", 1e9))
}
for clock, coarse in CLOCKS.items():
    setattr(time, clock, coarse)
