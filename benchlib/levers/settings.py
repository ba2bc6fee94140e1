"""``settings``: the parameters of a level's server, by name, as a text such as postgresql.conf has, or in such a file."""

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
_OF_A_CLUSTER = {"data_directory", "config_file", "hba_file", "ident_file", "external_pid_file"}
_REACHED_BY = {
    *("port", "listen_addresses", "unix_socket_directories", "unix_socket_group", "unix_socket_permissions"),
    *("logging_collector", "log_destination", "event_source"),
}
_CRASH_COSTS = {
    "fsync": "a power cut can corrupt the whole cluster (fsync = off)",
    "full_page_writes": "a power cut can leave torn pages (full_page_writes = off)",
    "synchronous_commit": "a crash loses the latest acknowledged commits (synchronous_commit = off)",
}


def _setting_names(settings: dict[str, SettingValue]) -> dict[str, SettingValue]:
    """Names in lower case, since PostgreSQL does not tell case apart; each once, each a name."""
    lowered: dict[str, SettingValue] = {}
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a server parameter")
        if "\0" in str(value):
            raise ValueError(f"{name}: no value of PostgreSQL's has a zero byte in it")
        if name.lower() in lowered:
            raise ValueError(f"{name.lower()} is there twice")
        lowered[name.lower()] = value
    return lowered


def _by_name(value: object) -> object:
    """Settings by name, of a text or of the file that it names; anything else as it is."""
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
"""Where servers have the libraries that they load, beside their folder of programs."""


def _listed(value: str) -> list[str]:
    """The names in a list of PostgreSQL's, unquoted."""
    return [name.strip().strip("\"'") for name in value.split(",") if name.strip().strip("\"'")]


def _free_huge_pages() -> int | None:
    """How many huge pages are free; None where the kernel does not tell."""
    rows = (read("/proc/meminfo") or "").splitlines()
    free = [line.split()[1] for line in rows if line.startswith("HugePages_Free:")]
    return int(free[0]) if free else None


class Settings(Lever):
    """Server parameters. The stand writes them to a file, and reads them back before each trial."""

    key = "settings"
    model = Annotated[dict[str, SettingValue], BeforeValidator(_by_name), AfterValidator(_setting_names)]
    elsewhere = True

    def conflict(self, level: Level) -> str | None:
        """Files of another cluster, as a postgresql.conf of it may name them: our server would start on its data."""
        if level.target:
            return None
        settings = level.settings
        waits = not level.replication and str(settings.get("synchronous_standby_names", "")).strip()
        refused = {
            "where a server of our own has its files is not a level's to say": _OF_A_CLUSTER & settings.keys(),
            "benchlib decides how its own server is reached and where it logs": _REACHED_BY & settings.keys(),
            "synchronous_standby_names without standbys would have every commit wait for ever ('replication' has some)":
                {"synchronous_standby_names"} if waits else set[str](),
        }  # fmt: skip
        return (
            "; ".join(
                f"{why}: leave out {', '.join(sorted(names))}" for why, names in refused.items() if names
            )
            or None
        )

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether its libraries are installed, and the huge pages that it insists on are there."""
        level = wish.level
        if level.target:
            return []
        installation = find_installation(level.postgres)
        folders = [installation.bindir.parent / place for place in _LIBRARIES]
        there = [folder for folder in folders if folder.is_dir()]
        for name in _listed(str(level.settings.get("shared_preload_libraries", ""))):
            file = f"{name.removeprefix('$libdir/').removesuffix('.so')}.so"
            if there and "/" not in file and not any((folder / file).is_file() for folder in there):
                raise PreflightError(
                    f"shared_preload_libraries: {installation.label} has no library '{name}': "
                    "install the extension for that server, or leave it out"
                )
        insists = str(level.settings.get("huge_pages", "")).lower() == "on"
        if insists and not any("hugepages" in key for key in level.host) and _free_huge_pages() == 0:
            raise PreflightError(
                "huge_pages = on, and this host has no free huge pages: reserve some (sysctl vm.nr_hugepages, "
                "or 'host' of the level), or take huge_pages = try"
            )
        return []

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """The level's own."""
        return dict(level.settings)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Each parameter's value as PostgreSQL spells it."""
        return {parameter: spelled(value) for parameter, value in plan.level(name).settings.items()}

    def crash_costs(self, level: Level) -> list[str]:
        """What is given up by switching off what makes commits durable."""
        return [cost for name, cost in _CRASH_COSTS.items() if is_off(level.settings.get(name, "on"))]
