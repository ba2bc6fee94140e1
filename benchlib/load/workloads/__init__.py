"""Workloads are TOML files: those of the library and of one's own ``workloads/`` by name, any other by path.

One that is ``like`` another of the library has of it whatever it does not say itself.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchlib.errors import InputError
from benchlib.host import files
from benchlib.plan.level import problems
from benchlib.plan.workload import Script, Workload

LIBRARY = Path(__file__).parent
"""Where the library's own are."""
_OF_STUDY = re.compile(r"(.*?[./]study\.json)(?:#(.+))?")


def workload_paths() -> dict[str, Path]:
    """The files of all workloads by name: the library's, and those in ``workloads/`` here and above, of which the nearest wins.

    What is in them runs on servers, so a folder that somebody else may write to is passed over.
    """
    working = Path.cwd()
    own = (folder / "workloads" for folder in (*reversed(working.parents), working))
    folders = (LIBRARY, *filter(files.trusted, own))
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def load_workload(name: str) -> Workload:
    """The workload of that name, or in the file that ``name`` is the path of: of a ``study.json`` that of the study, as it was,
    of ``study.json#other`` the one that levels of it call ``other``.

    Raises:
        InputError: there is none, or the file is not a workload; the message names every fault, and for an unknown key
            those that there are.

    """
    known = workload_paths()
    kept, named = match.groups() if (match := _OF_STUDY.fullmatch(name)) else (None, None)
    path = Path(kept or name) if kept or name.endswith(".toml") else known.get(name)
    if path is None or not path.is_file():
        names = ", ".join(sorted(known))
        raise InputError(f"no workload '{name}': there are {names}, or give the path of a .toml file")
    try:
        return Workload.model_validate(_read(path, named))
    except ValidationError as reason:
        message = f"workload {path.name}: {'; '.join(problems(reason))}"
        if any(problem["type"] == "extra_forbidden" for problem in reason.errors()):
            keys = ", ".join(["like", *Workload.model_fields])
            message += f"; keys are {keys}; those of a script file, {', '.join(Script.model_fields)}"
        raise InputError(message) from reason


def _read(path: Path, named: str | None = None) -> dict[str, Any]:
    """What a file says, with the text of the scripts that it names as files, and all that it does not say of what it is like."""
    try:
        if path.suffix == ".json":
            plan = json.loads(path.read_bytes())["plan"]
            kept: dict[str, Any] = plan["workloads"][named] if named else plan["workload"]
            return kept
        keys = tomllib.loads(files.read_plain(path).decode())
        for script in (*_tables(keys.get("scripts")), *_tables(keys.get("beside"))):
            if "sql" not in script and isinstance(script.get("file"), str):
                script["sql"] = files.read_plain(path.parent / script.pop("file")).decode()
    # what TOML, JSON and the encoding raise are ValueErrors
    except (OSError, ValueError, LookupError, TypeError) as reason:
        raise InputError(f"workload {path.name} cannot be read: {reason}") from reason
    like = keys.pop("like", None)
    if like is None:
        return keys
    known = sorted(path.stem for path in LIBRARY.glob("*.toml"))
    if like not in known:
        raise InputError(f"workload {path.name}: like: {like!r} is none of {', '.join(known)}")
    return _read(LIBRARY / f"{like}.toml") | keys


def _tables(value: object) -> list[dict[str, Any]]:
    return [table for table in value if isinstance(table, dict)] if isinstance(value, list) else []
