"""Workloads are TOML files."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchlib.errors import InputError
from benchlib.host import files
from benchlib.plan.level import problems
from benchlib.plan.workload import HIDDEN, Script, Workload

LIBRARY = Path(__file__).parent
"""Directory of the library's workloads."""
_STUDY_FILE = re.compile(r"((?:.*?[./])?study\.json)(?:#(.+))?")


def workload_paths() -> dict[str, Path]:
    """Return all workload files by name; the nearest ``workloads/`` wins.

    Skips directories that other users can write to, since SQL runs on servers.
    """
    working = Path.cwd()
    own = (folder / "workloads" for folder in (*reversed(working.parents), working))
    folders = (LIBRARY, *filter(files.trusted, own))
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def load_workload(name: str) -> Workload:
    """Return a workload by name or file.

    ``study.json#other`` is the one that a study's levels call ``other``.

    Raises:
        InputError: no such workload, or an invalid file.
    """
    known = workload_paths()
    study, level_name = match.groups() if (match := _STUDY_FILE.fullmatch(name)) else (None, None)
    path = Path(study or name) if study or name.endswith(".toml") else known.get(name)
    if path is None or not path.is_file():
        names = ", ".join(sorted(known))
        raise InputError(f"no workload '{name}'. Known: {names}; or give the path of a .toml file")
    try:
        return Workload.model_validate(_read(path, level_name))
    except ValidationError as reason:
        message = f"workload {path.name}: {'; '.join(problems(reason))}"
        if any(problem["type"] == "extra_forbidden" for problem in reason.errors()):
            keys = ", ".join(["like", *Workload.model_fields])
            message += f"; keys are {keys}; those of a script file, {', '.join(Script.model_fields)}"
        raise InputError(message) from reason


def _read(path: Path, named: str | None = None) -> dict[str, Any]:
    """Return the keys, also of files and inherited."""
    try:
        if path.suffix == ".json":
            plan = json.loads(path.read_bytes())["plan"]
            workload: dict[str, Any] = plan["workloads"][named] if named else plan["workload"]
            if workload.get("private") and any(
                one.get("sql") in (one.get("title"), HIDDEN) for one in workload["scripts"]
            ):
                raise ValueError("its workload is private, without SQL: take study.json from data/NAME")
            return workload
        keys = tomllib.loads(files.read_plain(path).decode())
        for script in (*keys.get("scripts", ()), *keys.get("beside", ())):
            if isinstance(script, dict) and "sql" not in script and isinstance(script.get("file"), str):
                script["sql"] = files.read_plain(path.parent / script.pop("file")).decode()
        data = {"file": keys["data"]} if isinstance(keys.get("data"), str) else keys.get("data")
        if isinstance(data, dict) and data.get("file"):
            keys["data"] = {**data, "file": str(Path(path.parent, data["file"]).absolute())}
    # TOML, JSON and the encoding raise ValueErrors
    except (OSError, ValueError, LookupError, TypeError) as reason:
        raise InputError(f"workload {path.name} cannot be read: {reason}") from reason
    like = keys.pop("like", None)
    if like is None:
        return keys
    known = sorted(path.stem for path in LIBRARY.glob("*.toml"))
    if like not in known:
        raise InputError(f"workload {path.name}: like: {like!r} is not one of {', '.join(known)}")
    return _read(LIBRARY / f"{like}.toml") | keys
