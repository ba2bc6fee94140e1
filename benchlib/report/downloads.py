"""What a page offers to take along: trials, study, notebook; no path of the machine and no address of a server in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchlib.plan.words import unpublished
from benchlib.report.cells import Node, write_notebook
from benchlib.report.figures.frames import guarded
from benchlib.report.page import Link
from benchlib.study.experiment import Experiment


def write_downloads(root: Path, experiment: Experiment, notebook: Node) -> list[Link]:
    """Write a study's trials, its plan and its executed notebook beside its page; the links to them."""
    name, replaced = experiment.folder.name, unpublished(experiment.plan)
    levels = (experiment.plan.base, *experiment.plan.factor.levels.values())
    patches = [experiment.study.parameters, *(level.model_dump() for level in levels)]
    paths = {str(patch.get("workload")) for patch in patches}
    replaced |= {path: Path(path).name for path in paths if "/" in path}
    study = without(experiment.study.model_dump(mode="json"), replaced)
    trials = experiment.trials.map(lambda cell: guarded(without(cell, replaced)))
    trials.to_csv(root / f"{name}.trials.csv", index=False)
    (root / f"{name}.study.json").write_text(json.dumps(study, indent=2, ensure_ascii=False) + "\n")
    write_notebook(without(notebook, replaced), root / f"{name}.ipynb")
    return [
        Link("trials (CSV)", f"{name}.trials.csv"),
        Link("study (JSON)", f"{name}.study.json"),
        Link("notebook", f"{name}.ipynb"),
    ]


def without(value: Any, replaced: Mapping[str, str]) -> Any:
    """The value, of plain types, with what `replaced` names replaced in all its texts."""
    if isinstance(value, str):
        for hidden in sorted(replaced, key=len, reverse=True):
            # a whole path: /mnt/fast is not in /mnt/faster, but it is in /mnt/fast/base
            alias = replaced[hidden].replace("\\", r"\\")
            value = re.sub(rf"(?<![\w./-]){re.escape(hidden)}(?![\w-])", alias, value)
        return value
    if isinstance(value, Mapping):
        return {without(key, replaced): without(inner, replaced) for key, inner in value.items()}
    return [without(inner, replaced) for inner in value] if isinstance(value, list | tuple) else value
