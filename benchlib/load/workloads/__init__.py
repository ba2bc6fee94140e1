"""Workloads are TOML files: those of the library by name, anybody's own by path.

One that is ``like`` another has of it whatever it does not say itself.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchlib.errors import InputError
from benchlib.plan.level import first_problem
from benchlib.plan.workload import Workload

_FOLDER = Path(__file__).parent


def workload_names() -> list[str]:
    """The names of the workloads that come with the library."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_workload(name: str) -> Workload:
    """The workload of that name, or in the file that ``name`` is the path of.

    Raises:
        InputError: there is none, or the file is not a workload; the message names the key.

    """
    path = Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    try:
        return Workload.model_validate(_read(name, path))
    except ValidationError as reason:
        raise InputError(f"workload {path.name}: {first_problem(reason)}") from reason


def _read(name: str, path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(
            f"no workload '{name}': there are {', '.join(workload_names())}, or give the path of a .toml file"
        )
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise InputError(f"workload {path.name} cannot be read: {reason}") from reason
    like = keys.pop("like", None)
    if like is None:
        return keys
    if like not in workload_names():
        raise InputError(f"workload {path.name}: like: {like!r} is none of {', '.join(workload_names())}")
    return _read(like, _FOLDER / f"{like}.toml") | keys
