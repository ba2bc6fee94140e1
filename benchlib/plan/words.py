"""Text for pages, without private names and paths."""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from benchlib.plan.level import Level
from benchlib.plan.model import Plan, Study
from benchlib.plan.settings import SETTINGS_FILE

HOST_GRANTS = (
    "GRANT pg_read_server_files TO our_role; "
    "GRANT EXECUTE ON FUNCTION pg_read_file(text, bigint, bigint, boolean) TO our_role"
)
"""Rights that are needed to sample the host of an external server."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NAMING_KEYS = Level.model_fields.keys() - {"settings", "initdb", "workload", "load", "host"}


def printable(text: str) -> str:
    """Return text without terminal control characters."""
    return _CONTROLS.sub("", text)


def decoded(data: bytes) -> str:
    """Return text from UTF-8 or UTF-16."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in data
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def size_words(size: int) -> str:
    """Return a size in bytes as text: ``1.5 GB``."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g}\u00a0{_UNITS[unit]}"


def time_words(seconds: float) -> str:
    """Return a duration as text: ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def rate_words(plan: Plan, name: str) -> str:
    """Return a level's rate: ``741 tps (60 % of capacity)``."""
    rate, requested = plan.level_load(name).rate, plan.asked_rate(name)
    if rate is None:
        return "no limit"
    if isinstance(rate, str):
        return rate
    return f"{rate:,.6g} tps ({requested})" if isinstance(requested, str) else f"{rate:,.6g} tps"


_SCRUBBED: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"\b\w[\w+.-]*://\S+": "(a URI)",
    r"\b(\w*password|passfile|host|hostaddr|user|port|service)([ \t]*=[ \t]*)('(?:[^'\\]|\\.)*'?|\S+)": r"\1\2…",
    r'(server (?:at|on socket) )"[^"]*"(?: \([^)]*\))?(?:, port \d+)?': r"\1…",
    r'\b(user|role|host|host name|address|database|service) "[^"]*"': r'\1 "…"',
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])": "(an address)",
    r"(?<![\w:.])(?=:*\w[\w:]*::|::\w|\w+::|(?:\w+:){3})"
    r"(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])": "(an address)",
    r"(?<![\w./~-])~?(?:/[\w.+@-]+(?: [\w.+@-]+)*(?=/))+/[\w.+@-]*":
        lambda match: "…/" + match[0].rstrip("/").rpartition("/")[2],
}  # fmt: skip
"""Patterns that reveal a machine, and their replacements."""


def scrubbed(text: str) -> str:
    """Return a message without addresses, roles, connection strings and folders."""
    for pattern, instead in _SCRUBBED.items():
        text = re.sub(pattern, instead, text)
    return text


_VALUES = re.compile(
    r"""(?:(?<!\w)|(?<=\b[eEbBxX]))'(?:[^']|'')*'|"[^"]*"|«[^»]*»|»[^«]*«|[“„][^“”]*[“”]
    |(?<=\()(?:.*(?=\))|[^()]*)|(?<=[^\W\da-z]{2}\ )\d+\ ?:.*""",  # LINE 1: in the server's language
    re.VERBOSE,
)


def without_values(text: str) -> str:
    """Return a message without quoted texts, key values and statements."""
    return _VALUES.sub("…", text)


_SECRET = re.compile(
    r"(?!password_encryption|.*_reload$)(primary_conninfo|.*_command|.*passphrase.*|.*password.*|krb_server_keyfile|ssl_.*_file|.*(secret|token|_key).*)"
)
"""Names of settings with secret values."""
_COMMON = re.compile(r".{0,4}|false|scram-sha-256", re.IGNORECASE)
"""Values of such settings that hide nothing; replacing ``true`` everywhere would spoil the downloads."""
_OF_LEVELS = {"answers", "against", "over"}
"""Parameters whose keys are names of levels."""
_OF_FILES = {"workload", "workloads", "fleet", "settings"}
"""Parameters that may name a file, of which only the name is published."""


def unpublished(plan: Plan, parameters: Mapping[str, Any] = MappingProxyType({})) -> dict[str, str]:
    """Return the private texts of a plan with replacements.

    ``parameters`` adds levels that did not run.
    """
    levels = [plan.level(name).model_dump(mode="json") for name in plan.factor.levels]
    texts = [found for patch in (*levels, parameters) for found in _texts(patch)]
    kinds: dict[str, str] = {}
    for names, text in texts:
        key = next((name for name in names if name in _NAMING_KEYS), "")
        if key and "://" in text:
            kinds.setdefault(text, "server by URI")
        elif key == "postgres" and "/" in text:
            kinds.setdefault(text, "given installation")
        elif key and text.startswith(("/", "~")):
            kinds.setdefault(text, "given folder")
        elif "settings" in names[:-1] and text.startswith(("/", "~/")):
            kinds.setdefault(text, "path in a setting")
    kinds |= {
        text: "hidden value"
        for names, text in texts
        if not _COMMON.fullmatch(text)
        and _OF_LEVELS.isdisjoint(names)
        and _SECRET.fullmatch(names[-1].lower())
    }
    alike = {kind: [text for text in kinds if kinds[text] == kind] for kind in kinds.values()}
    paths = [path.strip() for names, text in texts if names[-1] in _OF_FILES for path in text.split(",")]
    named = {path: PurePath(path).name for path in paths if "/" in path and SETTINGS_FILE.fullmatch(path)}
    return named | {
        text: f"{kind} {alike[kind].index(text) + 1}" if len(alike[kind]) > 1 else f"a {kind}"
        for text, kind in kinds.items()
    }


def private_texts(study: Study, declared: Mapping[str, Any] = MappingProxyType({})) -> dict[str, str]:
    """Return the private texts of a study's pages and files with replacements.

    ``declared`` adds the values in the notebook's own parameters cell.
    """
    hidden = unpublished(study.plan, {"given": study.parameters, "declared": declared})
    texts = {why: scrubbed(without(why, hidden)) for why in study.left_out.values()} | hidden
    forms = (pair for text, alias in texts.items() for pair in zip(_forms(text), _forms(alias), strict=True))
    return dict(forms)


def _forms(text: str) -> tuple[str, str, str]:
    """Return a text in HTML, in a cell by papermill, and as it is."""
    return html.escape(text, quote=False), text.encode("unicode_escape").decode().replace('"', r"\""), text


def _texts(value: object, *names: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield texts with the names that lead to them."""
    if isinstance(value, str):
        yield names, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, *names, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, *names)


def given_folders(plan: Plan) -> dict[str, str]:
    """Return the levels' data folders with replacements."""
    return {text: alias for text, alias in unpublished(plan).items() if "given folder" in alias}


def without(value: Any, replaced: Mapping[str, str]) -> Any:
    """Return plain data with the texts replaced."""
    if isinstance(value, str):
        for hidden in sorted(filter(value.__contains__, replaced), key=len, reverse=True):
            # whole path parts: /mnt/fast matches in /mnt/fast/base, not in /mnt/faster
            alias = replaced[hidden].replace("\\", r"\\")
            value = re.sub(rf"(?<![\w./-]){re.escape(hidden)}(?![\w-])", alias, value)
        return value
    if isinstance(value, Mapping):
        return {without(key, replaced): without(inner, replaced) for key, inner in value.items()}
    return [without(inner, replaced) for inner in value] if isinstance(value, list | tuple) else value
