"""The list of saved studies: how complete each is, read again only where its files have changed."""

import contextlib
import json
from typing import Any

from benchlib.errors import InputError
from benchlib.host import files
from benchlib.study.archive import ARCHIVE
from benchlib.study.store import CHECKSUMS, StudyFolder, data_root, stamp, study_names

_LIST = ".listing.json"
_OF = ("study.json", CHECKSUMS, ARCHIVE, "trials")


def listing() -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each saved study (``study, trials, kept, failed, title``), by name, and why others cannot be read.

    What was read is kept in a hidden file beside the studies, with the times and sizes of a study's files.
    """
    path, rows, damaged = data_root() / _LIST, dict[str, Any](), list[str]()
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(path.read_bytes())
        known = known if isinstance(known, dict) else {}
    for name in study_names():
        folder = StudyFolder(name)
        stamps = [[*stamp(folder.path / file)] for file in _OF]
        try:
            if known.get(name, {}).get("stamps") != stamps:
                rows[name] = {"stamps": stamps, "row": _row(folder)}
            else:
                rows[name] = known[name]
        except InputError as reason:
            damaged.append(str(reason))
    if rows != known:
        with contextlib.suppress(OSError, InputError):  # a list that cannot be kept is read anew
            files.write(path, json.dumps(rows))
    return [each["row"] for each in rows.values()], damaged


def _row(folder: StudyFolder) -> dict[str, Any]:
    study, kept = folder.read(), folder.kept()
    failed = sum(measurement.error is not None for measurement in kept.values())
    numbers = {"trials": len(study.trials), "kept": len(kept), "failed": failed}
    return {"study": folder.name, **numbers, "title": study.title}
