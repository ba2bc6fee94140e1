"""Server parameters: how they are written to a file, and whether what the server says is the same.

PostgreSQL shows a value in the unit of its parameter (``shared_buffers`` in 8kB pages),
so ``4GB`` and ``524288`` may be one value. Source of the units and of their rounding:
``src/backend/utils/misc/guc.c`` (``parse_int``, ``convert_to_base_unit``, ``ShowGUCOption``)
and the documentation's "Parameter Names and Values".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from benchlib.plan.level import SettingValue, is_off, is_on

_BYTES = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"([+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))\s*([A-Za-z]*)")
_OCTAL, _HEX = re.compile(r"[+-]?0[0-7]+"), re.compile(r"[+-]?0[xX]")

_SAME = {
    ("wal_compression", "on"): "pglz",
    ("wal_level", "archive"): "replica",
    ("wal_level", "hot_standby"): "replica",
    ("log_min_messages", "debug"): "debug2",
    ("client_min_messages", "debug"): "debug2",
}
"""Older words of an enumeration that the server shows as a newer one."""

_AUTOMATIC = {
    "wal_buffers": -1,
    "io_max_concurrency": -1,
    "transaction_buffers": 0,
    "subtransaction_buffers": 0,
    "commit_timestamp_buffers": 0,
}
"""Numbers that ask the server to choose one itself; what it shows then is its choice."""


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


def _number(text: str, vartype: str) -> float:
    """A number as the server reads it: whole parameters may be octal or hexadecimal, as in C."""
    if _HEX.match(text):
        return float(int(text, 16))
    if vartype == "integer" and _OCTAL.fullmatch(text):
        return float(int(text, 8))
    return float(text)


def in_unit(value: str, server: ServerSetting) -> float | None:
    """A number with an optional unit as a plain number in the parameter's own unit; None if it is not one."""
    match = _NUMBER.fullmatch(value)
    if not match:
        return None
    number, given = _number(match.group(1), server.vartype), match.group(2)
    if not math.isfinite(number):
        return None
    if not given:
        return number
    here, there = _unit_size(given), _unit_size(server.unit or "")
    if here is None or there is None or here[1] != there[1]:
        return None
    if not number.is_integer():
        # a fraction such as 30.1GB is rounded to a whole number of the next smaller unit, here MB
        sizes = list((_BYTES if here[1] else _SECONDS).values())
        smaller = max((size for size in sizes if size < here[0]), default=None)
        if smaller:
            return round(number * here[0] / smaller) * smaller / there[0]
    return number * here[0] / there[0]


def took(wanted: SettingValue, server: ServerSetting) -> bool:
    """Whether the server runs with the value that was asked for."""
    text = str(wanted).strip()
    if server.vartype in ("integer", "real"):
        number = in_unit(text, server)
        if number is None:
            return False
        if number == _AUTOMATIC.get(server.name):
            return True
        shown = _number(server.value, server.vartype)
        if server.vartype == "integer":
            return abs(number - shown) <= 0.5  # rounded to a whole number of its unit
        return math.isclose(float(f"{number:g}"), shown, rel_tol=1e-9)  # shown with six digits
    if server.vartype == "enum":
        word = "on" if is_on(text) else text.lower()
        text = _SAME.get((server.name, word), text)
    if server.vartype == "bool" or (server.vartype == "enum" and server.value in ("on", "off")):
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
        quoted = text.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{name} = '{quoted}'\n")
    return "".join(lines)
