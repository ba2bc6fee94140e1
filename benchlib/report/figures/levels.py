"""Levels in words that a reader knows at once, and without a path of the machine or the host of a server."""

from collections.abc import Mapping

import pandas as pd

from benchlib.plan.level import Level, Place, Replication, SettingValue, Storage, is_off
from benchlib.plan.model import Plan
from benchlib.plan.words import given_folders, rate_words, target_words, unpublished
from benchlib.report.figures.tables import Quiet, Table, of_levels

_UNITS = ("bytes", "kB", "MB", "GB", "TB")

Part = tuple[str, dict[str, str]]
"""What a level names of one lever, by name; before it the words for what it leaves alone."""


def levels_table(plan: Plan) -> Table:
    """What differs between a plan's levels, a column each, or a row where they are many; what they have in common is the note.

    What is as at the baseline is muted.
    """
    names = list(plan.factor.levels)
    rows: list[list[str]] = []
    alike = []
    for parts in zip(*(_parts(plan, name) for name in names), strict=True):
        for key in dict.fromkeys(key for _, named in parts for key in named):
            cells = [named.get(key, left_alone) for left_alone, named in parts]
            if len(set(cells)) > 1:
                rows.append([key, *cells])
            else:
                alike.append(f"{key} = {cells[0]}")
    rows.append(["a crash", *(_lost(plan.level(name)) for name in names)])
    baseline = 1 + names.index(plan.factor.baseline)
    rows = [[Quiet(cell) if cell == row[baseline] else cell for cell in row] for row in rows]
    note = f"The same at every level: {'; '.join(alike)}." if alike else ""
    # of objects, since a column of texts would make plain ones of the muted
    frame = pd.DataFrame(rows, columns=["what", *names], dtype=object)
    return of_levels(frame, "What differs between the levels", numbers=False, note=note)


def _parts(plan: Plan, name: str) -> list[Part]:
    """What a level runs with, base included, lever by lever, in the order in which they are shown."""
    level, folders = plan.level(name), given_folders(plan)
    storage, replication = level.storage or Storage(), level.replication
    commit = level.settings.get("synchronous_commit")
    # of a server that is not ours nobody here knows what it has by default
    theirs = "as it is there" if level.target else ""
    return [
        ("the study's own", {"server": target_words(plan, level.target)} if level.target else {}),
        (theirs or "default", {"PostgreSQL": _postgres_words(plan, level.postgres)} if level.postgres else {}),
        (theirs or "default", {"initdb": " ".join(level.initdb)} if level.initdb else {}),
        (plan.workload.title, {"workload": plan.level_workload(name).title} if level.workload else {}),
        ("not given", _load_words(plan, name)),
        (theirs or "default", {key: _setting_words(value) for key, value in level.settings.items()}),
        (theirs or "no replica", {"replication": replication_words(replication, commit)} if replication else {}),
        (theirs or "scratch folder", {"data": place_words(storage.data, folders)} if storage.data else {}),
        (theirs or "with the data", {"WAL": place_words(storage.wal, folders)} if storage.wal else {}),
        (theirs or "no cap", _cap_words(storage)),
        (theirs or "as found", _host_words(level)),
    ]  # fmt: skip


def place_words(place: Place, folders: Mapping[str, str]) -> str:
    """A place: ``xfs of 4 GB (noatime)``; ``folders`` has what stands for its path."""
    where = folders[place.path] if place.path else ""
    if not place.file_system:
        return where
    made = f"{place.file_system} of {size_words(place.size or 0)}"
    if place.mount_options:
        made += f" ({place.mount_options})"
    return f"{made}, on a loop device in {where}" if where else made


def replication_words(replication: Replication, synchronous_commit: SettingValue | None = None) -> str:
    """How many replicas there are, and how many of them a commit waits for."""
    count = replication.replicas
    replicas = {0: "no replica", 1: "1 replica"}.get(count, f"{count} replicas")
    if not count:
        return replicas
    if not replication.quorum:
        return f"{replicas}, asynchronous"
    if is_off(synchronous_commit) or str(synchronous_commit).lower() == "local":
        return f"{replicas}, a commit waits for none (synchronous_commit)"
    return f"{replicas}, a commit waits for {'it' if count == 1 else replication.quorum}"


def size_words(size: int) -> str:
    """A size in bytes as PostgreSQL counts, in powers of 1024: ``4 GB``, ``1.5 GB``."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g}\u00a0{_UNITS[unit]}"


def _levels(plan: Plan) -> list[Level]:
    return [plan.level(name) for name in plan.factor.levels]


def _lost(level: Level) -> str:
    """What a crash may cost at a level; of a server that is not ours nobody here knows."""
    return level.durability_loss() or ("not known of that server" if level.target else "loses nothing")


def _setting_words(value: SettingValue) -> str:
    """A server parameter's value as PostgreSQL spells it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _postgres_words(plan: Plan, name: str) -> str:
    """An installation: its version, or that it is one in a folder."""
    return unpublished(plan).get(name, name)


def _load_words(plan: Plan, name: str) -> dict[str, str]:
    """What a level's load is, in those parts that any level changes: the study's own beside the change."""
    load = plan.level_load(name)
    patches = [level.load.model_dump(exclude_none=True) for level in _levels(plan)]
    changed = {key for patch in patches for key in patch}
    found = {"clients": str(load.clients), "threads": str(load.threads), "protocol": load.protocol}
    found["rate"] = rate_words(plan, name)
    found = {key: words for key, words in found.items() if key in changed}
    return found | {f":{key}": str(value) for key, value in load.variables.items() if "variables" in changed}


def _host_words(level: Level) -> dict[str, str]:
    """The kernel tunables; of one that is optional, which was in force is said by the trials."""
    return {
        key.removesuffix("?"): f"{value}, where it can be set" if key.endswith("?") else str(value)
        for key, value in level.host.items()
    }


def _cap_words(storage: Storage) -> dict[str, str]:
    """The caps of a level's control group."""
    found = {}
    for what, iops, rate in (
        ("reads", storage.read_iops, storage.read_bytes),
        ("writes", storage.write_iops, storage.write_bytes),
    ):
        caps = [f"{iops:,}\u00a0IOPS"] if iops else []
        caps += [f"{size_words(rate)} a second"] if rate else []
        if caps:
            found[what] = f"capped at {' and '.join(caps)}"
    if storage.memory:
        found["memory"] = f"capped at {size_words(storage.memory)}, page cache included"
    return found
