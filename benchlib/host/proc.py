"""What Linux counts of itself and of processes: read from ``/proc`` and ``/sys``, as it stands there.

What a kernel lacks, hides or does not count is None. ``root`` is where ``proc`` and ``sys`` are found.
Sources: man pages proc_stat(5), proc_pid_stat(5), proc_meminfo(5), proc_net(5); the kernel's
documentation, admin-guide/iostats and accounting/psi.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("/")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""CPU time in ``/proc`` is counted in ticks, so many to the second."""

_TRIES = 3


def host_counters(devices: Sequence[str], interfaces: Sequence[str], *, root: Path = ROOT) -> dict[str, Any]:
    """The host's counters of now.

    ``cpu`` are the ticks of all CPUs (user, nice, system, idle, iowait, irq, softirq, steal), ``pressure``
    the microseconds of stalls, ``devices`` the fields of each device's ``stat`` file, ``network`` the
    bytes that each interface received and sent.
    """
    stat, memory, network = (_table(root / "proc" / name) for name in ("stat", "meminfo", "net/dev"))
    return {
        "cpu": _numbers(stat.get("cpu"), 8),
        "context_switches": _number(stat.get("ctxt")),
        "dirty_kib": _number(memory.get("Dirty:")),
        "writeback_kib": _number(memory.get("Writeback:")),
        "pressure": {
            name: {
                kind: int(words[-1].removeprefix("total="))
                for kind, words in _table(root / "proc/pressure" / name).items()
            }
            for name in ("cpu", "io", "memory")
        },
        "devices": {
            name: _numbers((_read(root / "sys/class/block" / name / "stat") or "").split())
            for name in devices
        },
        "network": {name: _transferred(network.get(f"{name}:")) for name in interfaces},
    }


def network_interfaces(*, root: Path = ROOT) -> list[str]:
    """The interfaces with hardware (a virtual machine's too); without any, as in a container, all but loopback.

    Bridges, bonds and tunnels carry the bytes of others once more.
    """
    folder = root / "sys/class/net"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    hardware = [name for name in names if (folder / name / "device").exists()]
    return hardware or [name for name in names if name != "lo"]


def cpu_ticks(
    servers: Collection[int], tools: Collection[str], *, root: Path = ROOT
) -> tuple[dict[str, int], dict[str, int]]:
    """The CPU time that servers and load tools have taken since their start, with all their processes.

    ``servers`` are pids of postmasters, ``tools`` the names of load tools, which are looked for among our
    own children. The keys are pids as text; who is not there is not in it.

    No process that ends is lost: the kernel adds its time to that of its parent's ended children
    when the parent waits for it, as a postmaster does for each of its backends.
    """
    processes = _processes(root)
    for _ in range(_TRIES):
        # who ended during the scan may have been seen neither living nor among the ended: then once more
        seen = {pid: processes[pid].ended for pid in servers if pid in processes}
        if all((now := _process(pid, root)) and now.ended == ended for pid, ended in seen.items()):
            break
        processes = _processes(root)
    children = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)

    def ticks(pid: int) -> int:
        return processes[pid].own + processes[pid].ended + sum(map(ticks, children[pid]))

    found = [pid for pid in children[os.getpid()] if processes[pid].name in tools]
    return {str(pid): ticks(pid) for pid in servers if pid in processes}, {
        str(pid): ticks(pid) for pid in found
    }


class _Process(NamedTuple):
    """``own`` and ``ended``: the ticks of a process, and of those of its children that it has waited for."""

    name: str
    parent: int
    own: int
    ended: int


def _processes(root: Path) -> dict[int, _Process]:
    folder = root / "proc"
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    found = {int(name): _process(int(name), root) for name in names if name.isdigit()}
    return {pid: process for pid, process in found.items() if process}


def _process(pid: int, root: Path) -> _Process | None:
    try:  # the bare calls: there may be a thousand processes, and this comes every second
        file = os.open(f"{root}/proc/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(file, 4096)
        finally:
            os.close(file)
    except OSError:  # it has ended
        return None
    # the name may hold blanks and parentheses
    head, _, tail = text.rpartition(b")")
    fields = tail.split(maxsplit=15)
    user, system, ended_user, ended_system = map(int, fields[11:15])
    name = head.partition(b"(")[2].decode(errors="replace")
    return _Process(name, int(fields[1]), user + system, ended_user + ended_system)


def _read(path: Path) -> str | None:
    """A file's text; None where the kernel has no such file, or keeps it from us."""
    try:
        return path.read_text()
    except OSError:
        return None


def _table(path: Path) -> dict[str, list[str]]:
    """The lines of a file by their first word; none where there is no such file."""
    rows = (line.split() for line in (_read(path) or "").splitlines())
    return {row[0]: row[1:] for row in rows if row}


def _numbers(words: Sequence[str] | None, count: int | None = None) -> list[int] | None:
    return [int(word) for word in words[:count]] if words else None


def _number(words: Sequence[str] | None) -> int | None:
    return int(words[0]) if words else None


def _transferred(words: Sequence[str] | None) -> list[int] | None:
    return [int(words[0]), int(words[8])] if words else None
