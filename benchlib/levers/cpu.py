"""The key ``cpu``.

Sources: taskset(1); kernel documentation, admin-guide/pm/cpufreq and intel_pstate.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import psutil
from pydantic import BeforeValidator, Field

from benchlib.errors import PreflightError, SettingError
from benchlib.host import facts
from benchlib.host.journal import Scope
from benchlib.host.shell import Shell, known, which
from benchlib.levers.host import Tunable
from benchlib.levers.lever import Finding, Lever, Site, Wish, no_server, refusal
from benchlib.plan.level import Level, Model, cores_of
from benchlib.plan.model import Plan
from benchlib.server.cluster import Cluster

_LIST = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*")
_NO_FREQUENCIES = "the kernel has no frequency control here, as in most virtual machines: leave '{}' out"


def listed(cores: set[int]) -> str:
    """Return cores as the shortest list."""
    firsts = sorted(core for core in cores if core - 1 not in cores)
    lasts = sorted(core for core in cores if core + 1 not in cores)
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in pairs)


def _cores(value: object) -> object:
    text = str(value).replace(" ", "")
    if isinstance(value, bool) or not _LIST.fullmatch(text) or not (cores := cores_of(text)):
        raise ValueError(f"{value!r} is not a list of cores such as 0-1 or 0,2")
    return listed(cores)


Cores = Annotated[str, BeforeValidator(_cores)]


class CpuParts(Model):
    """Lists of cores, and frequencies."""

    server: Cores | None = None
    load: Cores | None = None
    background: Cores | None = None
    governor: Annotated[str, Field(pattern=r"^[a-z_]+$")] | None = None
    turbo: bool | None = None

    @property
    def cores(self) -> dict[str, str]:
        """Return cores by user."""
        return self.model_dump(include={"server", "load", "background"}, exclude_none=True)

    @property
    def turbo_in_words(self) -> dict[str, str]:
        """Return the cell of turbo, if it is set."""
        return {} if self.turbo is None else {"turbo": "on" if self.turbo else "off"}

    def check(self) -> None:
        """Check cores and frequencies on this machine.

        Raises:
            PreflightError: one is not available.
        """
        if sys.platform != "linux" or (self.cores and not which("taskset")):
            raise PreflightError("'cpu' needs Linux and the program taskset")
        here = os.sched_getaffinity(0)
        for name, cores in self.cores.items():
            if absent := cores_of(cores) - here:
                raise PreflightError(
                    f"cpu: '{name}' names core {listed(absent)}, this machine has {listed(here)}"
                )
        for tunable, value in self.tunables():
            if why := tunable.unavailable(value):
                raise PreflightError(f"cpu: '{tunable}' cannot be set: {why}")

    def tunables(self) -> Iterator[tuple[Tunable, str]]:
        """Yield kernel files with their values.

        Raises:
            PreflightError: the kernel has none.
        """
        system = facts.ROOT / "sys/devices/system/cpu"
        if self.governor:
            policies = sorted(system.glob("cpufreq/policy*/scaling_governor"))
            if not policies:
                raise PreflightError(f"cpu: {_NO_FREQUENCIES.format('governor')}")
            yield from ((Tunable("governor", path, path.parent.name), self.governor) for path in policies)
        if self.turbo is not None:
            files = {system / "intel_pstate/no_turbo": not self.turbo, system / "cpufreq/boost": self.turbo}
            found = next(((path, on) for path, on in files.items() if path.exists()), None)
            if not found:
                raise PreflightError(f"cpu: {_NO_FREQUENCIES.format('turbo')}")
            yield Tunable("turbo", found[0]), str(int(found[1]))


class Cpu(Lever):
    """Cores by ``taskset``, which processes inherit."""

    key = "cpu"
    model = CpuParts | None
    unchanged = "all"
    unchanged_of: ClassVar = {"CPU governor": "as found", "turbo": "as found"}

    def survey(self, scratch: Path) -> list[Finding]:
        """Return rows for cores and frequencies."""
        parts = {"governor": CpuParts(governor="performance"), "turbo": CpuParts(turbo=False)}
        return [
            Finding(self.key, no_server() or refusal(CpuParts().check)),
            *(Finding(f"cpu: {name}", refusal(part.check)) for name, part in parts.items()),
        ]

    def check(self, wish: Wish) -> None:
        """Check the machine and the load."""
        if not wish.level.cpu:
            return
        cpu = cpu_of(wish.level)
        cpu.check()
        if cpu.load and wish.plan.level_load(wish.name).generators:
            raise PreflightError(
                "cpu: 'load' names cores of this machine, but the load comes from other hosts"
            )
        if cpu.background and not wish.plan.level_workload(wish.name).beside:
            raise PreflightError("cpu: 'background' names cores, but the workload has no background load")

    def before_files(self, site: Site) -> None:
        """Set the cores of new processes."""
        site.shell = replace(site.shell, cores=cpu_of(site.level).server or "")

    def before_start(self, site: Site) -> None:
        """Set the server's cores."""
        site.cluster.shell = site.shell
        if cores := cpu_of(site.level).server:
            site.checks.append(lambda: _read_back(site.cluster, cores))

    def before_trial(self, site: Site, scope: Scope) -> dict[str, str]:
        """Set the frequencies; read everything back."""
        cpu = cpu_of(site.level)
        in_force = {tunable.name: tunable.apply(value, scope) for tunable, value in cpu.tunables()}
        in_force |= cpu.turbo_in_words
        for name, cores in cpu.cores.items():
            if name == "server" and site.cluster.pid:
                _read_back(site.cluster, cores)
            elif name != "server":
                _read_back_of_client(site.shell, cores)
            in_force[f"cores: {name}"] = cores
        return in_force

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return cores and frequencies."""
        cpu = cpu_of(plan.level(name))
        cells = {f"cores: {who}": cores for who, cores in cpu.cores.items()}
        cells |= {"CPU governor": cpu.governor} if cpu.governor else {}
        return cells | cpu.turbo_in_words


def cpu_of(level: Level) -> CpuParts:
    """Return a level's cores and frequencies."""
    return CpuParts.model_validate(level.cpu or {})


def _read_back(cluster: Cluster, cores: str) -> None:
    """Check the cores of server processes."""
    server = psutil.Process(cluster.pid)
    for process in (server, *server.children(recursive=True)):
        if (on := known(process.cpu_affinity)) is not None and listed({*on}) != cores:
            raise SettingError(f"cpu: a process of the server runs on cores {listed({*on})}, not {cores}")


def _read_back_of_client(shell: Shell, cores: str) -> None:
    """Check the cores of a new process."""
    status = replace(shell, cores=cores).do("cat", "/proc/self/status")
    (on,) = re.findall(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    if listed(cores_of(on)) != cores:
        raise SettingError(f"cpu: the load would run on cores {on}, not {cores}")
