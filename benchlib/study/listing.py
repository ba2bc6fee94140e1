"""The list of saved studies: how complete each is, read again only where its files have changed."""

import contextlib
import json
from typing import Any

from benchlib.errors import BenchlibError, InputError
from benchlib.host import files
from benchlib.host.apart import apart
from benchlib.study.archive import ARCHIVE
from benchlib.study.store import CHECKSUMS, StudyFolder, data_root, stamp, study_names

AT_A_TIME = 2
_LIST = ".listing.json"
_OF = ("study.json", CHECKSUMS, ARCHIVE, "trials")


def listing() -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each saved study (``study, trials, kept, failed, title``), by name, and why others cannot be read.

    What was read is kept in a hidden file beside the studies, with the times and sizes of a study's files.
    """
    root = data_root()
    path, rows, damaged = root / _LIST, dict[str, Any](), list[str]()
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        kept = json.loads(files.read_plain(path))
        known = {name: of for name, of in kept.items() if _is_one(of)} if isinstance(kept, dict) else {}
    stamps, names = dict[str, Any](), study_names()
    for name in names:
        stamps[name] = [[*stamp(f"{root}/{name}/{file}")] for file in _OF]
    changed = [name for name in names if known.get(name, {}).get("stamps") != stamps[name]]
    read = dict(apart(_row, changed, AT_A_TIME))
    for name in names:
        if isinstance(row := read.get(name), BenchlibError):
            damaged.append(str(row))
        else:
            rows[name] = {"stamps": stamps[name], "row": row} if row else known[name]
    if rows != known:
        with contextlib.suppress(OSError, InputError):  # a list that cannot be kept is read anew
            files.write(path, json.dumps(rows))
    return [each["row"] for each in rows.values()], damaged


def _is_one(of: Any) -> bool:
    """Whether it is what is kept of a study: the file may come from anybody."""
    forms = {"study": str, "trials": int, "kept": int, "failed": int, "title": str}
    row = of.get("row") if isinstance(of, dict) else None
    return isinstance(row, dict) and {key: type(value) for key, value in row.items()} == forms


def _row(name: str) -> dict[str, Any]:
    folder = StudyFolder(name)
    study, kept = folder.read(), folder.kept()
    failed = sum(measurement.error is not None for measurement in kept.values())
    numbers = {"trials": len(study.trials), "kept": len(kept), "failed": failed}
    return {"study": folder.name, **numbers, "title": study.title}
