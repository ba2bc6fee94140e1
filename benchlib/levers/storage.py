"""The key ``storage``."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, get_args

from benchlib.errors import PreflightError
from benchlib.host import facts
from benchlib.host.facts import block_devices, existing
from benchlib.host.page_cache import evict
from benchlib.levers import control_groups, volumes
from benchlib.levers.lever import Finding, Lever, Needs, Site, Wish, no_server, refusal
from benchlib.levers.volumes import FileSystem, Place
from benchlib.plan.level import Level
from benchlib.plan.model import Plan
from benchlib.plan.words import given_folders, size_words
from benchlib.server.cluster import Cluster

_WAL_FOLDER = re.compile(r"-[dgknNsSW]*X|--w(?!al-)|--x")
"""How options of initdb begin that name the WAL's directory, abbreviated or after other letters."""


class Storage(control_groups.Caps):
    """Directories of data and WAL, and limits."""

    data: Place | None = None
    wal: Place | None = None

    @property
    def places(self) -> dict[str, Place]:
        """Return the directories by purpose."""
        places = {"data": self.data, "wal": self.wal}
        return {kind: place for kind, place in places.items() if place}

    @property
    def on_our_devices(self) -> bool:
        """Whether all files are on file systems of the study."""
        return all(place and place.file_system for place in (self.data, self.wal or self.data))

    def devices(self, scratch: Path) -> tuple[str, ...]:
        """Return the block devices, perhaps below a planned file system."""
        return _devices({kind: Path(place.path or scratch) for kind, place in self.places.items()}, scratch)

    def check(self, wish: Wish, copies: int = 1) -> None:
        """Check directories, limits and space; add remarks to ``wish.found``.

        Raises:
            PreflightError: with reason and remedy.
        """
        for place in self.places.values():
            volumes.check(place, wish.scratch)
        data, needed = self.data, copies * wish.data_mib
        wanted = Counter[int]()
        for kind, place in self.places.items():
            if place.path:  # two of them may share a file system
                device = Path(place.path).stat().st_dev
                wanted[device] += place.size >> 20 if place.size else needed * (kind == "data")
                if wanted[device] > (free := facts.free_mib(Path(place.path))):
                    raise PreflightError(
                        f"{place.path} needs {wanted[device]:,} MiB of its file system, {free:,} MiB are free"
                    )
        if data and data.size and data.size >> 20 < needed:
            raise PreflightError(f"its data need about {needed:,} MiB, its storage has {data.size >> 20:,}")
        control_groups.check(self, self.devices(wish.scratch))
        remarks = control_groups.remarks(self, ours=self.on_our_devices)
        wish.found += [("remark", remark) for remark in remarks]

    def needs(self, data_mib: int) -> Needs:
        """Return a server's needs."""
        made = [place for place in self.places.values() if place.path is None]
        memory = sum((place.size or 0) >> 20 for place in made if place.file_system == "tmpfs")
        images = sum((place.size or 0) >> 20 for place in made) - memory
        return Needs(images + (0 if self.data else data_mib), memory)

    def provide(self, name: str, site: Site) -> dict[str, Path]:
        """Create the directories."""
        return {
            kind: volumes.provide(place, f"{name}-{kind}", site.scratch, site.shell, site.scope)
            for kind, place in self.places.items()
        }

    def cap(self, server: Cluster, places: Mapping[str, Path], name: str, site: Site) -> None:
        """Limit a stopped server. Its files are evicted, since cached pages are not charged.

        Raises:
            SettingError: the kernel refuses a limit.
        """
        if self.memory:
            for folder in places.values() if "data" in places else (server.placed, *places.values()):
                evict(folder)
        devices, ours = _devices(places, site.scratch), self.on_our_devices
        group = control_groups.make(self, devices, f"{site.scratch.name}-{name}", site.scope, ours=ours)
        server.groups = group.folders
        site.checks.append(group.check)
        site.lifts.append(group.lifted)
        site.remarks += control_groups.remarks(self, ours=ours)

    def words(self, plan: Plan) -> dict[str, str]:
        """Return directories and limits by heading."""
        headings, folders = {"data": "data", "wal": "WAL"}, given_folders(plan)
        cells = {headings[kind]: _place_words(place, folders) for kind, place in self.places.items()}
        caps = {"reads": (self.read_iops, self.read_bytes), "writes": (self.write_iops, self.write_bytes)}
        for heading, (iops, rate) in caps.items():
            parts = [f"{iops:,}\u00a0IOPS"] if iops else []
            parts += [f"{size_words(rate)} a second"] if rate else []
            if parts:
                cells[heading] = f"capped at {' and '.join(parts)}"
        if self.memory:
            cells["memory"] = f"capped at {size_words(self.memory)}, page cache included"
        return cells


class StorageLever(Lever):
    """Directories and limits."""

    key = "storage"
    model = Storage | None
    unchanged = "no cap"
    unchanged_of: ClassVar = {"data": "scratch folder", "WAL": "with the data"}

    def conflict(self, level: Level) -> str | None:
        """Refuse ``--waldir``."""
        if level.storage and any(map(_WAL_FOLDER.match, level.initdb)):
            return "name the folder of the WAL in 'storage', not in the options of initdb"
        return super().conflict(level)

    def survey(self, scratch: Path) -> list[Finding]:
        """Return rows for file systems and limits."""
        devices = block_devices(existing(scratch))
        small = {kind: Place(file_system=kind, size=320 << 20) for kind in get_args(FileSystem)}
        return [
            Finding(self.key, no_server(), "in existing directories"),
            *(Finding(f"storage: {kind}", refusal(volumes.check, small[kind], scratch)) for kind in small),
            Finding("storage: caps on I/O", refusal(control_groups.check, Storage(read_iops=1), devices)),
            Finding("storage: cap on memory", refusal(control_groups.check, Storage(memory=1), ())),
        ]

    def check(self, wish: Wish) -> None:
        """Check the storage."""
        storage_of(wish.level).check(wish)

    def before_files(self, site: Site) -> None:
        """Create the directories."""
        site.places = storage_of(site.level).provide(site.name, site)
        site.devices = _devices(site.places, site.scratch)

    def before_start(self, site: Site) -> None:
        """Set the limits."""
        storage_of(site.level).cap(site.cluster, site.places, site.name, site)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return directories and limits."""
        return storage_of(plan.level(name)).words(plan)

    def crash_costs(self, level: Level) -> list[str]:
        """Return the cost of tmpfs."""
        lost = "a power cut loses the cluster, which is in memory (tmpfs)"
        places = storage_of(level).places.values()
        return [lost] if any(place.file_system == "tmpfs" for place in places) else []


def storage_of(level: Level) -> Storage:
    """Return a level's storage."""
    return Storage.model_validate(level.storage or {})


def _devices(places: Mapping[str, Path], scratch: Path) -> tuple[str, ...]:
    folders = (places.get("data", scratch), *places.values())
    return tuple(dict.fromkeys(device for folder in folders for device in block_devices(existing(folder))))


def _place_words(place: Place, folders: Mapping[str, str]) -> str:
    """Return e.g. ``xfs of 4 GB (noatime)``."""
    folder = folders[place.path] if place.path else ""
    if not place.file_system:
        return folder
    options = f" ({place.mount_options})" if place.mount_options else ""
    made = f"{place.file_system} of {size_words(place.size or 0)}{options}"
    return f"{made}, on a loop device in {folder}" if folder else made
