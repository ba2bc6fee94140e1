"""Server parameters: how they are written to a file, and whether what the server says is the same.

PostgreSQL shows a value in the unit of its parameter (``shared_buffers`` in 8kB pages),
so ``4GB`` and ``524288`` may be one value. Source of the units and of their rounding:
``src/backend/utils/misc/guc.c`` (``convert_to_base_unit``) and the documentation's
"Parameter Names and Values".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from benchlib.model import SettingValue, is_off, is_on

_BYTES = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|0[xX][0-9a-fA-F]+)\s*([A-Za-z]*)\s*$")


class ServerSetting(NamedTuple):
    """One row of ``pg_settings``: the value in the unit of the parameter."""

    name: str
    value: str
    unit: str | None
    vartype: str

    def shown(self) -> str:
        """The value with its unit, as a person reads it: ``524288 x 8kB``, ``300 s``, ``on``."""
        if not self.unit:
            return self.value
        return f"{self.value} x {self.unit}" if self.unit[0].isdigit() else f"{self.value} {self.unit}"


def _unit_size(unit: str) -> tuple[float, bool] | None:
    """How many bytes (True) or seconds (False) a unit such as ``8kB`` or ``min`` is."""
    match = re.fullmatch(r"(\d*)([A-Za-z]+)", unit)
    if not match:
        return None
    times = int(match.group(1) or 1)
    if match.group(2) in _BYTES:
        return float(times * _BYTES[match.group(2)]), True
    if match.group(2) in _SECONDS:
        return times * _SECONDS[match.group(2)], False
    return None


def _in_unit(value: str, unit: str | None) -> float | None:
    """A number with an optional unit as a plain number in the parameter's own unit; None if it is not one."""
    match = _NUMBER.match(value)
    if not match:
        return None
    text, given = match.groups()
    number = float(int(text, 16)) if text[:2].lower() == "0x" else float(text)
    if not given:
        return number
    here, there = _unit_size(given), _unit_size(unit or "")
    if here is None or there is None or here[1] != there[1]:
        return None
    return number * here[0] / there[0]


def took(wanted: SettingValue, server: ServerSetting) -> bool:
    """Whether the server runs with the value that was asked for."""
    text = str(wanted).strip()
    if server.vartype == "bool":
        return (is_on(text) and server.value == "on") or (is_off(text) and server.value == "off")
    if server.vartype in ("integer", "real"):
        number = _in_unit(text, server.unit)
        if number is None:
            return False
        shown = float(
            int(server.value, 8) if server.value.startswith("0") and server.value.isdigit() else server.value
        )
        # the server rounds to a whole number of its unit
        tolerance = 0.5 if server.vartype == "integer" else 1e-9 * max(1.0, abs(shown))
        return abs(number - shown) <= tolerance
    if server.vartype == "enum" and server.value in ("on", "off"):
        return (is_on(text) and server.value == "on") or (is_off(text) and server.value == "off")
    squeezed = [re.sub(r"\s*,\s*", ",", t).strip().lower() for t in (text, server.value)]
    return squeezed[0] == squeezed[1]


def differences(wanted: Mapping[str, SettingValue], server: Mapping[str, ServerSetting]) -> list[str]:
    """What did not take, a line each: the parameter, the value asked for, the value found."""
    lines = []
    for name, value in wanted.items():
        found = server.get(name.lower())
        if found is None:
            lines.append(f"{name}: the server has no such parameter")
        elif not took(value, found):
            lines.append(f"{name}: asked for {value}, the server runs with {found.shown()}")
    return lines


def conf_text(settings: Mapping[str, SettingValue]) -> str:
    """Lines for a PostgreSQL configuration file, values quoted as the file wants them."""
    lines = []
    for name, value in settings.items():
        text = ("on" if value else "off") if isinstance(value, bool) else str(value)
        quoted = text.replace("\\", "\\\\").replace("'", "''")
        lines.append(f"{name} = '{quoted}'\n")
    return "".join(lines)
