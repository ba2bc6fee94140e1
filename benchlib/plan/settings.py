"""Server parameters: how they are written to a file, and how what a server shows is read.

Source: the documentation's "Parameter Names and Values" and "pg_settings".
"""

import re
from collections.abc import Mapping
from typing import Literal

from benchlib.plan.level import SettingValue

_BYTES = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SHOWN = re.compile(r"([+-]?[\d.]+(?:e[+-]?\d+)?)(?: (?:x )?(\d*)([A-Za-z]+))?")


def spelled(value: SettingValue) -> str:
    """A value as PostgreSQL spells it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def conf_text(settings: Mapping[str, SettingValue]) -> str:
    """Lines for a PostgreSQL configuration file, values quoted as the file wants them."""
    escapes = str.maketrans({"\\": "\\\\", "'": "''", "\n": "\\n", "\r": "\\r"})
    return "".join(f"{name} = '{spelled(value).translate(escapes)}'\n" for name, value in settings.items())


def shown(value: str, unit: str | None) -> str:
    """A row of ``pg_settings`` as a person reads it: ``524288 x 8kB``, ``300 s``, ``on``."""
    if not unit:
        return value
    return f"{value} x {unit}" if unit[0].isdigit() else f"{value} {unit}"


def quantity(text: str) -> tuple[float, Literal["B", "s", ""]] | None:
    """A number as :func:`shown` gives it, in bytes, in seconds or without a unit; None for words."""
    match = _SHOWN.fullmatch(text)
    if match is None:
        return None
    number, times, unit = float(match[1]), int(match[2] or 1), match[3]
    if unit is None:
        return number, ""
    if unit in _BYTES:
        return number * times * _BYTES[unit], "B"
    return (number * times * _SECONDS[unit], "s") if unit in _SECONDS else None
