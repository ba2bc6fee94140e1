"""The list of saved studies and how complete each is. Only a study's plan and its measurements are read."""

import json
from typing import Any

from benchlib.errors import BenchlibError
from benchlib.host.apart import apart
from benchlib.plan.design import Trial
from benchlib.study.store import MEASUREMENT, StudyFolder, study_names

AT_A_TIME = 2


def listing() -> tuple[list[dict[str, Any]], list[str]]:
    """Return ``study, trials, kept, failed, title`` per study, and why others cannot be read.

    Neither checksums nor plans are checked: this takes a millisecond per study.
    """
    rows, damaged = list[dict[str, Any]](), list[str]()
    for _, found in apart(_row, study_names(), AT_A_TIME):
        if isinstance(found, BenchlibError):
            damaged.append(str(found))
        else:
            rows.append(found)
    return rows, damaged


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
