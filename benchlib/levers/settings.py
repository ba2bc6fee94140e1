"""The key ``settings``."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from benchlib.errors import PreflightError
from benchlib.levers.lever import Lever, Wish, text_of
from benchlib.plan.level import Level, SettingValue, is_off
from benchlib.plan.model import Plan
from benchlib.plan.settings import SETTINGS_FILE, read_conf, spelled
from benchlib.server.installations import find_installation

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")
_DECIDED = {
    *("data_directory", "config_file", "hba_file", "ident_file", "external_pid_file"),
    *("port", "listen_addresses", "unix_socket_directories", "unix_socket_group", "unix_socket_permissions"),
    *("logging_collector", "log_destination", "event_source"),
}
_CRASH_COSTS = {
    "fsync": "a power cut can corrupt the whole cluster (fsync = off)",
    "full_page_writes": "a power cut can leave torn pages (full_page_writes = off)",
    "synchronous_commit": "a crash loses the latest acknowledged commits (synchronous_commit = off)",
}


def _setting_names(settings: dict[str, SettingValue]) -> dict[str, SettingValue]:
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
    """Read a text or a file."""
    if not isinstance(value, str):
        return value
    text, where = value, ""
    if SETTINGS_FILE.fullmatch(name := value.strip()):
        text, where = text_of(name), f"{name}: "
    settings, faults = read_conf(text)
    if faults or not settings:
        raise ValueError(f"{where}no 'name = value' as in postgresql.conf: {'; '.join(faults) or 'any line'}")
    return settings


_LIBRARIES = ("lib*", "lib*/p*", "lib*/*/postgresql")
"""Directories of loadable libraries, relative to the parent of the programs' directory."""


class Settings(Lever):
    """Server parameters."""

    key = "settings"
    model = Annotated[dict[str, SettingValue], BeforeValidator(_by_name), AfterValidator(_setting_names)]
    elsewhere = True

    def conflict(self, level: Level) -> str | None:
        """Refuse parameters that benchlib decides."""
        if level.target:
            return None
        reasons = list[str]()
        if named := sorted(_DECIDED & level.settings.keys()):
            reasons.append(f"benchlib decides these of an embedded server: leave out {', '.join(named)}")
        if not level.replication and str(level.settings.get("synchronous_standby_names", "")).strip():
            reasons.append("synchronous_standby_names needs replicas: use 'replication', or leave it out")
        return "; ".join(reasons) or None

    def check(self, wish: Wish) -> None:
        """Check for preloaded libraries."""
        if wish.level.target:
            return
        installation = find_installation(wish.level.postgres)
        prefix = installation.bindir.parent
        folders = [file.parent for folder in _LIBRARIES for file in prefix.glob(f"{folder}/plpgsql.so")]
        for name in str(wish.level.settings.get("shared_preload_libraries", "")).split(","):
            library = name.strip(" \"'").removeprefix("$libdir/").removesuffix(".so")
            found = any((folder / f"{library}.so").is_file() for folder in folders)
            if library and folders and "/" not in library and not found:
                raise PreflightError(f"{installation.label} has no library '{library}': install it")

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return the values."""
        return {parameter: spelled(value) for parameter, value in plan.level(name).settings.items()}

    def crash_costs(self, level: Level) -> list[str]:
        """Return costs of reduced durability."""
        return [cost for name, cost in _CRASH_COSTS.items() if is_off(level.settings.get(name, "on"))]
