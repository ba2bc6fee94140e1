"""Kept studies for tests: run on a fake bench, found, read and bent."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBench

from benchlib.errors import InputError
from benchlib.study.loop import run_study
from benchlib.study.store import StudyFolder

TPS = {"defaults": 1000.0, "control": 1010.0, "tuned": 2000.0}
"""Speeds of which “tuned” leads."""


def ran(folder: StudyFolder, workspace: Path, tps: Mapping[str, float] = TPS, **options: Any) -> StudyFolder:
    """The same study, run on a fake bench."""
    run_study(folder, FakeBench(folder.read().plan, workspace, tps, **options).open)
    return folder


def place(folder: StudyFolder, level: str = "tuned", block: int = 1) -> Path:
    """Where the files of a trial are."""
    (trial,) = [t for t in folder.read().trials if (t.level, t.block) == (level, block)]
    return folder.path / "trials" / trial.id


def say(path: Path, **facts: Any) -> None:
    """Have a file of JSON say something else."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(action: Callable[..., object], *args: Any, kind: type[Exception] = InputError) -> str:
    """Why something is refused, in one line."""
    with pytest.raises(kind) as caught:
        action(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)
