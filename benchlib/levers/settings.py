"""``settings``: the parameters of a level's server, by name, as a text such as postgresql.conf has, or in such a file."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from benchlib.host import files
from benchlib.levers.lever import Lever
from benchlib.plan.level import Level, SettingValue, is_off
from benchlib.plan.model import Plan
from benchlib.plan.settings import SETTINGS_FILE, read_conf, spelled
from benchlib.plan.words import decoded

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")
_OF_A_CLUSTER = {"data_directory", "config_file", "hba_file", "ident_file", "external_pid_file"}
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


class Settings(Lever):
    """Server parameters. The stand writes them to a file, and reads them back before each trial."""

    key = "settings"
    model = Annotated[dict[str, SettingValue], BeforeValidator(_by_name), AfterValidator(_setting_names)]
    elsewhere = True

    def conflict(self, level: Level) -> str | None:
        """Files of another cluster, as a postgresql.conf of it may name them: our server would start on its data."""
        if not level.target and (named := sorted(_OF_A_CLUSTER & level.settings.keys())):
            return f"where a server of our own has its files is not a level's to say: leave out {', '.join(named)}"
        return None

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """The level's own."""
        return dict(level.settings)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Each parameter's value as PostgreSQL spells it."""
        return {parameter: spelled(value) for parameter, value in plan.level(name).settings.items()}

    def crash_costs(self, level: Level) -> list[str]:
        """What is given up by switching off what makes commits durable."""
        return [cost for name, cost in _CRASH_COSTS.items() if is_off(level.settings.get(name, "on"))]
