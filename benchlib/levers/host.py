"""Kernel tunables, which the journal restores.

- any sysctl; ``kernel.sched_*`` in debugfs since Linux 5.13
- queue files of the servers' block devices; disks below loop, RAID and mapped devices stay as they are
- ``transparent_hugepage``, ``transparent_hugepage.defrag``

A name that ends in ``?`` is optional.

Sources: Linux documentation, admin-guide/sysctl, block/queue-sysfs, admin-guide/mm/transhuge.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from benchlib.errors import PreflightError, SettingError, os_errors_as
from benchlib.host import facts
from benchlib.host.changes import Written, write_kernel_file
from benchlib.host.facts import block_devices, queue_of
from benchlib.host.journal import Scope
from benchlib.levers.lever import Finding, Lever, Site, Wish
from benchlib.levers.storage import storage_of
from benchlib.plan.model import Plan

HUGE_PAGES = {"transparent_hugepage": "enabled", "transparent_hugepage.defrag": "defrag"}
KNOBS = {
    "kernel.sched_migration_cost_ns": ("migration_cost_ns",),
    "kernel.sched_min_granularity_ns": ("base_slice_ns", "min_granularity_ns"),
}
RATIOS = {
    "vm.dirty_ratio": "vm.dirty_bytes",
    "vm.dirty_background_ratio": "vm.dirty_background_bytes",
    "vm.overcommit_ratio": "vm.overcommit_kbytes",
}
STUDIED = (
    "vm.swappiness vm.dirty_ratio vm.dirty_background_ratio vm.dirty_bytes vm.dirty_background_bytes "
    "vm.zone_reclaim_mode vm.vfs_cache_pressure fs.file-max fs.suid_dumpable kernel.randomize_va_space "
    "kernel.sched_migration_cost_ns kernel.sched_min_granularity_ns scheduler read_ahead_kb nr_requests "
    "transparent_hugepage transparent_hugepage.defrag"
)
"""Tunables of the published studies, and related ones."""

_LACKS = "this kernel lacks it"
_MOVED = "this kernel lacks it, or has it in debugfs: mount that and run as root"
_ROOT_ONLY = "only root may set it"
_CHOSEN = re.compile(r"\[(.+?)\]")


@dataclass(frozen=True)
class Tunable:
    """One kernel file with one value; ``disk``: its device."""

    name: str
    path: Path
    disk: str = ""

    def __str__(self) -> str:
        return f"{self.name} of {self.disk}" if self.disk else self.name

    def unavailable(self, value: str | None = None) -> str | None:
        """Return why it, or this value, cannot be set."""
        try:
            # opening for writing changes nothing and shows more than the permissions
            os.close(os.open(self.path, os.O_RDWR))
            text = self.path.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return _MOVED if self.name in KNOBS else _LACKS
        except OSError as reason:
            return _ROOT_ONLY if os.geteuid() != 0 else f"refused by the kernel: {reason.strerror}"
        offered = facts.read(self.path.with_name("scaling_available_governors")) or ""
        if _CHOSEN.search(text):
            offered = _CHOSEN.sub(r"\1", text)
        if value is None or not offered or value in offered.split():
            return None
        return f"it offers {', '.join(offered.split())}, not {value}: if that is a module, load it"

    def read(self) -> str:
        """Return the value; of ``always [madvise] never`` the one in brackets."""
        text = self.path.read_text().strip()
        chosen = _CHOSEN.search(text)
        return chosen[1] if chosen else text

    def apply(self, value: str, scope: Scope) -> str:
        """Record the former state, set a value, and read it back.

        Raises:
            SettingError: the kernel refuses or changes it.
        """
        with os_errors_as(SettingError, f"the kernel refuses {self} {value}"):
            if self.read().split() != value.split():
                for path, former, written in self._former(value):
                    # an empty write changes nothing: an empty value is an empty line
                    scope.note(Written(path=path, former=former or "\n", value=written))
                write_kernel_file(self.path, value)
            in_force = self.read()
        if in_force.split() != value.split():
            raise SettingError(f"a kernel tunable did not take effect: {self} is {in_force}, not {value}")
        return in_force

    def _former(self, value: str) -> Iterator[tuple[Path, str, str]]:
        """Yield files with former and new values; the last is restored first."""
        if pair := next((pair for pair in RATIOS.items() if self.name in pair), None):
            ratio, amount = (self.path.with_name(name.removeprefix("vm.")) for name in pair)
            yield from self._former_of_pair(ratio, amount, value)
            return
        if self.name in ("scheduler", "nr_requests"):
            # a new scheduler resets its settings and nr_requests, which resets asynchronous ones:
            # restore them after it, the coarse (slice_idle) before the fine (slice_idle_us)
            queue = self.path.parent
            for path in [*sorted((queue / "iosched").glob("*"), reverse=True), queue / "nr_requests"]:
                if path != self.path and path.stat().st_mode & 0o200:
                    yield path, (former := path.read_text().strip()), former
        yield self.path, self.read(), value

    def _former_of_pair(self, ratio: Path, amount: Path, value: str) -> Iterator[tuple[Path, str, str]]:
        """Yield the active one of two files: setting one makes the other 0.

        Source: Linux, mm/page-writeback.c.
        """
        for path in (ratio, amount):
            if (former := path.read_text().strip()) != "0":
                yield path, former, value if path == self.path else "0"
                return
        # neither is active: only another ratio leads back to that state
        yield ratio, "0", "1"
        yield ratio, "1", value if ratio == self.path else "0"


def check(host: Mapping[str, int | str], devices: Sequence[str]) -> list[str]:
    """Check tunables; return remarks on those left out.

    Raises:
        PreflightError: one is not available, or two contradict.
    """
    return _split(host, devices)[1]


def apply(host: Mapping[str, int | str], devices: Sequence[str], scope: Scope) -> dict[str, str]:
    """Set tunables, recorded in the journal; return the values.

    Raises:
        PreflightError: one is no longer available.
        SettingError: the kernel refuses or changes a value.
    """
    wanted = _split(host, devices)[0]
    # a value of 0 follows from its other file; the scheduler resets nr_requests
    wanted.sort(key=lambda pair: pair[1] == "0" or pair[0].name == "nr_requests")
    return {tunable.name: tunable.apply(value, scope) for tunable, value in wanted}


def _split(
    host: Mapping[str, int | str], devices: Sequence[str]
) -> tuple[list[tuple[Tunable, str]], list[str]]:
    wanted: list[tuple[Tunable, str]] = []
    left_out, refused = list[str](), list[str]()
    for key, given in host.items():
        name, value = key.removesuffix("?"), str(given)
        why = _obstacle(name, value, devices)
        if why is None:
            wanted += [(tunable, value) for tunable in _tunables(name, devices)]
        elif key.endswith("?"):
            left_out.append(f"{name} is left out: {why}")
        else:
            refused.append(f"{name} ({why})")
    if refused:
        raise PreflightError(f"cannot be set here: {', '.join(refused)}; a name that ends in '?' is optional")
    in_force = {tunable.name for tunable, value in wanted if value != "0"}
    if clash := [f"{ratio} and {amount}" for ratio, amount in RATIOS.items() if {ratio, amount} <= in_force]:
        raise PreflightError(f"{clash[0]} are two files for one value: set one of them to 0 or leave it out")
    return wanted, left_out


def _obstacle(name: str, value: str | None, devices: Sequence[str]) -> str | None:
    tunables = _tunables(name, devices)
    if not tunables:
        return "the servers' directories are on no block device"
    return next((why for tunable in tunables if (why := tunable.unavailable(value))), None)


def _tunables(name: str, devices: Sequence[str]) -> list[Tunable]:
    if name in HUGE_PAGES:
        return [Tunable(name, facts.ROOT / "sys/kernel/mm/transparent_hugepage" / HUGE_PAGES[name])]
    if "." in name:
        path = facts.ROOT / "proc/sys" / name.replace(".", "/")
        moved = (facts.ROOT / "sys/kernel/debug/sched" / file for file in KNOBS.get(name, ()))
        path = next(filter(os.path.exists, (path, *moved)), path)  # only root can read debugfs
        return [Tunable(name, path)]
    disks = dict.fromkeys(map(queue_of, devices))
    return [Tunable(name, facts.ROOT / "sys/class/block" / disk / "queue" / name, disk) for disk in disks]


class Host(Lever):
    """Tunables by name."""

    key = "host"
    model = Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z0-9_.-]+\??$")], int | str],
        BeforeValidator(lambda value: value or {}),
    ]
    unchanged = "as found"

    def survey(self, scratch: Path) -> list[Finding]:
        """Return a row per published tunable."""
        devices = block_devices(facts.existing(scratch))
        parts = [Finding(f"host: {name}", _obstacle(name, None, devices)) for name in STUDIED.split()]
        none_works = all(part.why_not for part in parts)
        why_not = "no tunable can be set: see the rows below" if none_works else None
        return [Finding(self.key, why_not), *parts]

    def check(self, wish: Wish) -> None:
        """Check each value."""
        remarks = check(wish.level.host, storage_of(wish.level).devices(wish.scratch))
        wish.found += [("remark", remark) for remark in remarks]

    def before_files(self, site: Site) -> None:
        """Add remarks."""
        site.remarks += check(site.level.host, site.devices)

    def before_trial(self, site: Site, scope: Scope) -> dict[str, str]:
        """Set the tunables."""
        return apply(site.level.host, site.devices, scope)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the values."""
        return {
            key.removesuffix("?"): f"{value}, if it can be set" if key.endswith("?") else str(value)
            for key, value in plan.level(name).host.items()
        }
