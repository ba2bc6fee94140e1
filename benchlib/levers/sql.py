"""The key ``sql``."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from benchlib.levers.lever import Lever, text_of
from benchlib.load.workloads.sql import spoken, tokens
from benchlib.plan.model import Plan

_FILE = re.compile(r"[^\s;]+\.sql")
_SHOWN = 200


def _statements(value: Any) -> Any:
    """Return statements as one text."""
    if isinstance(value, list | tuple):
        value = "\n".join(_ended(str(one)) for one in value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    if _FILE.fullmatch(text):
        text = text_of(text).strip()
        if "\ufffd" in text:
            raise ValueError(f"{value.strip()}: it is not UTF-8")
    words = spoken(text)
    if all(part == ";" for _, part in words):
        raise ValueError("there is no statement in it")
    if commands := [part for kind, part in words if kind == "refused" and part.startswith("\\")]:
        raise ValueError(f"{commands[0]} is a command of psql, not SQL: leave it out")
    return _ended(text)


def _ended(text: str) -> str:
    text = text.strip().rstrip("; \n")
    return f"{text}\n;" if text and tokens(text)[-1][1].startswith("--") else f"{text};"


class SqlLever(Lever):
    """Statements that run once, on the loaded data."""

    key = "sql"
    model = Annotated[str | None, BeforeValidator(_statements)]
    elsewhere = True
    unchanged = "as loaded"

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return one line."""
        text = " ".join((plan.level(name).sql or "").split())
        return {"schema change": text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"} if text else {}
