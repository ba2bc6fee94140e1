"""What a plan needs of this machine, checked before anything is started."""

from __future__ import annotations

from pathlib import Path

from benchlib.errors import PreflightError
from benchlib.host import facts as host
from benchlib.host.devices import block_devices
from benchlib.host.guardian import scratch_root
from benchlib.host.shell import server_user
from benchlib.levers import control_groups, replicas, tunables, volumes
from benchlib.load import tools
from benchlib.plan.level import Level, Storage
from benchlib.plan.model import Plan
from benchlib.server.installations import builders_differ, find_installation, find_pgbench, find_program_for
from benchlib.server.remote import Remote

_WAL_MIB = 1200


def preflight(plan: Plan, scratch: Path | None = None) -> list[tuple[str, str]]:
    """What the plan needs of this machine and what there is, as pairs of words.

    Raises:
        PreflightError: something is missing; nothing has been started.

    """
    scratch = scratch or scratch_root()
    rows: list[tuple[str, str]] = []
    levels = {name: plan.level(name) for name in plan.factor.levels}
    asked = set()
    for name, level in levels.items():
        load = plan.level_load(name)
        alike = level.target and (level.target.model_dump_json(), load.clients, str(level.settings))
        if alike in asked:  # each question goes to a server over the network, and has one answer
            continue
        asked |= {alike} if alike else set()
        try:
            rows += _level(plan, name, level, scratch)
        except PreflightError as reason:
            raise PreflightError(f"level “{name}”: {reason}") from reason
    ours = [level for level in levels.values() if not level.target]
    found = {find_installation(level.postgres) for level in ours}
    if words := builds_differ(plan):
        rows.append(("builders", words))
    tool = f"pgbench of {find_pgbench().label}"
    return [
        *([("servers", ", ".join(sorted({i.label for i in found})))] if found else []),
        ("load tool", tool),
        *([("run as", server_user() or "the user who started the notebook")] if found else []),
        *([("disk", _disk(plan, ours, scratch))] if found else []),
        (
            "memory",
            f"{host.memory_bytes() // host.MEBIBYTE:,} MiB, {host.available_memory_mib():,} MiB available",
        ),
        ("processors", f"{host.processors()} for servers and load tool together"),
        *dict.fromkeys(rows),
    ]


def builds_differ(plan: Plan) -> str | None:
    """A warning, where servers of levels that are compared with each other were built differently; None where not.

    Raises:
        PreflightError: a server is not there.

    """
    levels = {name: plan.level(name) for name in plan.factor.levels}
    built = {name: find_installation(level.postgres) for name, level in levels.items() if not level.target}
    apart = set()
    for pair in plan.factor.pairs().items():
        both = {built[name] for name in pair if name in built}
        apart |= both if builders_differ(both) else set()
    return builders_differ(apart)


def cannot_run(plan: Plan, scratch: Path | None = None) -> dict[str, str]:
    """The levels of a plan that this machine cannot run, each with the reason."""
    scratch = scratch or scratch_root()
    reasons: dict[str, str] = {}
    asked: dict[str, str | None] = {}
    for name in plan.factor.levels:
        level = plan.level(name)
        alike = level.model_dump_json(exclude={"settings", "initdb"} if not level.target else set())
        if alike not in asked:
            try:
                _level(plan, name, level, scratch)
                asked[alike] = None
            except PreflightError as reason:
                asked[alike] = str(reason)
        if words := asked[alike]:
            reasons[name] = words
    return reasons


def _level(plan: Plan, name: str, level: Level, scratch: Path) -> list[tuple[str, str]]:
    """What a level asks for beyond a plain server; once for each that asks for the same."""
    tools.check(plan.level_workload(name), plan.level_load(name))
    if level.target:
        return Remote(level.target).preflight(
            clients=plan.level_load(name).clients,
            settings=level.settings,
            needs_mib=_at_once_mib(plan, level.target.server),
        )
    installation = find_installation(level.postgres)
    if level.replication and (words := replicas.refusal(level)):
        raise PreflightError(words)
    if _replicas(level):
        find_program_for(installation, "pg_basebackup")
    storage = level.storage or Storage()
    places = [place for place in (storage.data, storage.wal) if place]
    for place in places:
        volumes.check(place, scratch)
    if any(place.file_system == "tmpfs" for place in places):
        _check_memory(plan)
    # what is made for the study is not there yet: the disk below it stands for it
    folders = [Path(place.path) if place.path else scratch for place in places]
    devices = block_devices(host.existing(scratch)) if storage.data is None else []
    devices += [device for folder in folders for device in block_devices(host.existing(folder))]
    needed = data_mib(plan, name) << 20
    if storage.data and storage.data.size and storage.data.size < needed:
        raise PreflightError(
            f"its data takes about {needed >> 20:,} MiB, its storage has {storage.data.size >> 20:,}"
        )
    if storage.caps_io or storage.memory:
        control_groups.check(storage, devices)
    remarks = control_groups.remarks(storage) + tunables.check(level.host, devices)
    return [("remark", remark) for remark in remarks]


def _check_memory(plan: Plan) -> None:
    """Whether memory holds all file systems in it that stand at once.

    Raises:
        PreflightError: it does not.

    """
    storages = [plan.level(name).storage or Storage() for name in plan.factor.levels]
    sizes = [
        sum(
            place.size or 0 for place in (storage.data, storage.wal) if place and place.file_system == "tmpfs"
        )
        for storage in storages
    ]
    wanted = (sum(sizes) if plan.arrangement == "standing" else max(sizes)) // host.MEBIBYTE
    if wanted > (free := host.available_memory_mib()):
        raise PreflightError(
            f"the levels' file systems in memory (tmpfs) take {wanted:,} MiB together, {free:,} are available: "
            "a smaller 'size', fewer levels, or the arrangement 'fresh'"
        )


def data_mib(plan: Plan, name: str) -> int:
    """About how much disk a level's data takes, its WAL aside."""
    return plan.level_workload(name).data_mib(plan.scale)


def _at_once_mib(plan: Plan, server: str) -> int:
    """About how much disk a server that is not ours needs for the levels that it has at once."""
    levels = {name: plan.level(name).target for name in plan.factor.levels}
    sizes = [data_mib(plan, name) for name, target in levels.items() if target and target.server == server]
    return sum(sizes) if plan.arrangement == "standing" else max(sizes)


def _disk(plan: Plan, ours: list[Level], scratch: Path) -> str:
    """How much of the scratch folder's disk the clusters take, in words.

    Raises:
        PreflightError: more than is free.

    """
    names = [name for name in plan.factor.levels if not plan.level(name).target]
    templates = {
        (
            find_installation(plan.level(n).postgres).bindir,
            plan.level(n).initdb,
            plan.level_workload(n).contents,
        ): n
        for n in names
    }
    standing = (
        names if plan.arrangement == "standing" else [max(names, key=lambda n: _in_scratch_mib(plan, n))]
    )
    disk = (
        sum(data_mib(plan, n) for n in templates.values())
        + sum(_in_scratch_mib(plan, n) for n in standing)
        + _WAL_MIB
    )
    free = host.free_mib(scratch)
    if disk > free:
        raise PreflightError(
            f"the study needs about {disk:,} MiB under {scratch}, {free:,} are free: "
            "a smaller scale, the arrangement 'fresh', or another BENCHLIB_SCRATCH"
        )
    return f"about {disk:,} MiB of {free:,} MiB free"


def _in_scratch_mib(plan: Plan, name: str) -> int:
    """About how much of the scratch folder's disk a level's servers take: images whole, none of what lies elsewhere."""
    level = plan.level(name)
    storage = level.storage or Storage()
    images = sum(
        (place.size or 0) >> 20
        for place in (storage.data, storage.wal)
        if place and place.path is None and place.file_system != "tmpfs"
    )
    return images + (data_mib(plan, name) * (1 + _replicas(level)) if storage.data is None else 0)


def _replicas(level: Level) -> int:
    return level.replication.replicas if level.replication else 0
