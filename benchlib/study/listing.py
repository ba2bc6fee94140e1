"""The list of saved studies; only changed ones are read."""

import contextlib
import json
from typing import Any

from benchlib.errors import BenchlibError, InputError
from benchlib.host import files
from benchlib.host.apart import apart
from benchlib.plan.design import Trial
from benchlib.study.archive import ARCHIVE
from benchlib.study.store import CHECKSUMS, MEASUREMENT, StudyFolder, data_root, stamp, study_names

_GROUP = 250
"""Studies that one process reads: a process costs as much as ten studies."""
_LIST = ".listing.json"
_FILES = ("study.json", CHECKSUMS, ARCHIVE, "trials")
_FORMS = {"study": str, "trials": int, "kept": int, "failed": int, "title": str}


def listing() -> tuple[list[dict[str, Any]], list[str]]:
    """Return ``study, trials, kept, failed, title`` per study, and errors.

    Neither checksums nor plans are checked.
    """
    root, names, known = data_root(), study_names(), dict[str, Any]()
    with contextlib.suppress(OSError, ValueError, RecursionError):
        saved = json.loads(files.read_plain(root / _LIST))
        known = {name: one for name, one in saved.items() if _valid(one)} if isinstance(saved, dict) else {}
    stamps = {name: [[*stamp(f"{root}/{name}/{file}")] for file in _FILES] for name in names}
    read = _read([name for name in names if known.get(name, {}).get("stamps") != stamps[name]])
    current: dict[str, Any] = {
        name: {"stamps": stamps[name], "row": read[name]} if name in read else known[name]
        for name in names
        if not isinstance(read.get(name), str)
    }
    if current != known:
        with contextlib.suppress(OSError, InputError):  # the next list reads the studies again
            files.write(root / _LIST, json.dumps(current))
    return [one["row"] for one in current.values()], [row for row in read.values() if isinstance(row, str)]


def _valid(entry: Any) -> bool:
    """Return whether an entry has its form: anybody may write it."""
    row = entry.get("row") if isinstance(entry, dict) else None
    return isinstance(row, dict) and {key: type(value) for key, value in row.items()} == _FORMS


def _read(names: list[str]) -> dict[str, dict[str, Any] | str]:
    rows = dict[str, dict[str, Any] | str]()
    groups = ["\n".join(names[start : start + _GROUP]) for start in range(0, len(names), _GROUP)]
    for group, found in apart(_rows, groups):
        if not isinstance(found, BenchlibError):
            rows |= found
            continue
        # one study broke a limit of the group's process: each has a process of its own
        for name, alone in apart(_rows, group.split("\n")):
            rows |= {name: str(alone)} if isinstance(alone, BenchlibError) else alone
    return rows


def _rows(group: str) -> dict[str, dict[str, Any] | str]:
    rows = dict[str, dict[str, Any] | str]()
    for name in group.split("\n"):
        try:
            rows[name] = _row(name)
        except BenchlibError as reason:
            rows[name] = str(reason)
    return rows


def _row(name: str) -> dict[str, Any]:
    folder = StudyFolder(name)
    try:
        study = json.loads(folder.stored("study.json") or b"")
        title = str(study["title"])
        trials = [Trial(int(t["block"]), int(t["position"]), t["level"], 0).id for t in study["trials"]]
    except (LookupError, TypeError, ValueError, RecursionError):
        study = folder.read()  # raises an error that says what is wrong
        title, trials = study.title, [trial.id for trial in study.trials]
    errors = []
    for trial_id in trials:
        if (data := folder.stored(f"trials/{trial_id}/{MEASUREMENT}")) is not None:
            try:
                errors.append(json.loads(data)["error"])
            except (LookupError, TypeError, ValueError, RecursionError) as reason:
                raise folder.damaged(trial_id, MEASUREMENT, f"{reason}") from None
    failed = len(errors) - errors.count(None)
    return {"study": name, "trials": len(trials), "kept": len(errors), "failed": failed, "title": title}
