"""``settings``: server parameters by name, as postgresql.conf text, or from such a file."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from benchlib.errors import PreflightError
from benchlib.host import files
from benchlib.host.facts import read
from benchlib.levers.lever import Lever, Wish
from benchlib.plan.level import Level, SettingValue, is_off
from benchlib.plan.model import Plan
from benchlib.plan.settings import SETTINGS_FILE, read_conf, spelled
from benchlib.plan.words import decoded
from benchlib.server.installations import find_installation

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")
_FILE_LOCATIONS = {"data_directory", "config_file", "hba_file", "ident_file", "external_pid_file"}
_CONNECTIONS_AND_LOG = {
    *("port", "listen_addresses", "unix_socket_directories", "unix_socket_group", "unix_socket_permissions"),
    *("logging_collector", "log_destination", "event_source"),
}
_CRASH_COSTS = {
    "fsync": "a power cut can corrupt the whole cluster (fsync = off)",
    "full_page_writes": "a power cut can leave torn pages (full_page_writes = off)",
    "synchronous_commit": "a crash loses the latest acknowledged commits (synchronous_commit = off)",
}


def _setting_names(settings: dict[str, SettingValue]) -> dict[str, SettingValue]:
    """Lower-case the names; refuse invalid and duplicate ones."""
    lowered: dict[str, SettingValue] = {}
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a server parameter")
        if "\0" in str(value):
            raise ValueError(f"{name}: the value has a zero byte, which PostgreSQL refuses")
        if name.lower() in lowered:
            raise ValueError(f"{name.lower()} is set twice")
        lowered[name.lower()] = value
    return lowered


def _by_name(value: object) -> object:
    """Read a text, or the file that it names; return other values unchanged."""
    if not isinstance(value, str):
        return value
    text, where = value, ""
    if SETTINGS_FILE.fullmatch(value.strip()):
        where = f"{value.strip()}: "
        try:
            text = decoded(files.read_plain(Path(value.strip())))
        except OSError as reason:
            raise ValueError(f"{where}it cannot be read: {reason.strerror}") from None
    settings, faults = read_conf(text)
    if faults or not settings:
        raise ValueError(f"{where}no 'name = value' as in postgresql.conf: {'; '.join(faults) or 'any line'}")
    return settings


_LIBRARIES = (
    *("lib", "lib/postgresql", "lib64", "lib64/pgsql", "lib64/postgresql"),
    "lib/x86_64-linux-gnu/postgresql",
)
"""Directories of loadable libraries, relative to the parent of the programs' directory."""


def _listed(value: str) -> list[str]:
    return [name.strip().strip("\"'") for name in value.split(",") if name.strip().strip("\"'")]


def _free_huge_pages() -> int | None:
    rows = (read("/proc/meminfo") or "").splitlines()
    free = [line.split()[1] for line in rows if line.startswith("HugePages_Free:")]
    return int(free[0]) if free else None


class Settings(Lever):
    """Server parameters, written to a file and read back before each trial."""

    key = "settings"
    model = Annotated[dict[str, SettingValue], BeforeValidator(_by_name), AfterValidator(_setting_names)]
    elsewhere = True

    def conflict(self, level: Level) -> str | None:
        """Refuse parameters that locate files, sockets or the log."""
        if level.target:
            return None
        reasons = list[str]()
        if named := sorted(_FILE_LOCATIONS & level.settings.keys()):
            reasons.append(
                f"benchlib decides where an embedded server has its files: leave out {', '.join(named)}"
            )
        if named := sorted(_CONNECTIONS_AND_LOG & level.settings.keys()):
            reasons.append(
                f"benchlib decides how an embedded server is reached and where it logs: leave out {', '.join(named)}"
            )
        if not level.replication and str(level.settings.get("synchronous_standby_names", "")).strip():
            reasons.append(
                "synchronous_standby_names without standbys makes every commit wait for ever: leave it out, "
                "or add replicas with 'replication'"
            )
        return "; ".join(reasons) or None

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """Check preloaded libraries and required huge pages."""
        level = wish.level
        if level.target:
            return []
        installation = find_installation(level.postgres)
        folders = [installation.bindir.parent / place for place in _LIBRARIES]
        library_folders = [folder for folder in folders if folder.is_dir()]
        for name in _listed(str(level.settings.get("shared_preload_libraries", ""))):
            file = f"{name.removeprefix('$libdir/').removesuffix('.so')}.so"
            found = any((folder / file).is_file() for folder in library_folders)
            if library_folders and "/" not in file and not found:
                raise PreflightError(
                    f"shared_preload_libraries: {installation.label} has no library '{name}': "
                    "install the extension for that server, or leave it out"
                )
        insists = str(level.settings.get("huge_pages", "")).lower() == "on"
        if insists and not any("hugepages" in key for key in level.host) and _free_huge_pages() == 0:
            raise PreflightError(
                "huge_pages = on, but this host has no free huge pages: reserve some (sysctl vm.nr_hugepages, "
                "or 'host' of the level), or use huge_pages = try"
            )
        return []

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """Return the level's parameters."""
        return dict(level.settings)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return each value as PostgreSQL spells it."""
        return {parameter: spelled(value) for parameter, value in plan.level(name).settings.items()}

    def crash_costs(self, level: Level) -> list[str]:
        """Return the costs of parameters that reduce durability."""
        return [cost for name, cost in _CRASH_COSTS.items() if is_off(level.settings.get(name, "on"))]
