"""Server parameters: configuration files and values of ``pg_settings``.

Sources: PostgreSQL documentation, "Parameter Names and Values" and "pg_settings"; guc-file.l.
"""

import re
from collections.abc import Mapping
from typing import Literal

from benchlib.plan.level import SettingValue

_BYTES = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SHOWN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?: (?:x )?(\d*)([A-Za-z]+))?")

SETTINGS_FILE = re.compile(r"[^\n=]+\.conf|[^\s=]+")
"""Matches the name of a parameter file; other text is the file's content."""

_LETTER = r"[A-Za-z_\x80-\U0010ffff]"
_ID = rf"{_LETTER}(?:{_LETTER}|[0-9])*"
_CONF_LINE = re.compile(
    rf"""[ \t\r]*(?:
      (?P<name>{_ID}(?:\.{_ID})?)(?!{_LETTER}|[-.:/0-9])   # the longest token counts
      [ \t\r]*=?[ \t\r]*
      (?:'(?P<quoted>(?:[^'\\]|\\.|'')*)'
       |(?P<bare>(?!{_ID}\.{_ID}(?:[ \t\r\#]|$)){_LETTER}(?:{_LETTER}|[-.:/0-9])*
         |[+-]?(?:[0-9]+|0x[0-9a-fA-F]+)[a-zA-Z]*
         |[+-]?[0-9]*\.[0-9]*(?:[eE][+-]?[0-9]+)?))
      [ \t\r]*)?(?:\#.*)?""",
    re.VERBOSE,
)
_LONGEST_LINE = 8192
_INCLUDES = ("include", "include_if_exists", "include_dir")
_ESCAPED = re.compile(r"\\((?:[0-7]{1,3}\\)*[0-7]{1,3}|.)|''")
_ESCAPES = dict(zip("bfnrt", "\b\f\n\r\t", strict=True))


def spelled(value: SettingValue) -> str:
    """Return a value as PostgreSQL spells it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def conf_text(settings: Mapping[str, SettingValue]) -> str:
    """Return the lines of a configuration file."""
    escapes = str.maketrans({"\\": "\\\\", "'": "''", "\n": "\\n", "\r": "\\r"})
    return "".join(f"{name} = '{spelled(value).translate(escapes)}'\n" for name, value in settings.items())


def read_conf(text: str) -> tuple[dict[str, str], list[str]]:
    """Return settings and invalid lines of a postgresql.conf text.

    Include directives count as invalid.
    """
    settings, faults = dict[str, str](), list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        match = _CONF_LINE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        name = (match["name"] or "").lower() if match else ""
        if match is None or name in _INCLUDES:
            faults.append(f"line {number}: {line.strip()[:60]}")
        elif name:
            settings[name] = match["bare"] or _ESCAPED.sub(_unescaped, match["quoted"])
    return settings, faults


def _unescaped(mark: re.Match[str]) -> str:
    escaped: str | None = mark[1]
    if escaped is None:
        return "'"
    if escaped[0] not in "01234567":
        return _ESCAPES.get(escaped, escaped)
    return bytes(int(byte, 8) & 255 for byte in escaped.split("\\")).decode(errors="replace")


def shown(value: str, unit: str | None) -> str:
    """Return a value with its unit: ``524288 x 8kB``, ``on``."""
    if not unit:
        return value
    return f"{value} x {unit}" if unit[0].isdigit() else f"{value} {unit}"


def quantity(text: str) -> tuple[float, Literal["B", "s", ""]] | None:
    """Read a text of :func:`shown` in bytes, seconds or without unit."""
    match = _SHOWN.fullmatch(text)
    if match is None:
        return None
    number, times, unit = float(match[1]), int(match[2] or 1), match[3]
    if unit is None:
        return number, ""
    if unit in _BYTES:
        return number * times * _BYTES[unit], "B"
    return (number * times * _SECONDS[unit], "s") if unit in _SECONDS else None
