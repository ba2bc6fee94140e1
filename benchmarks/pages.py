"""What pages cost: one from what is kept, all that are recorded, and one more beside a hundred kept studies.

    python benchmarks/pages.py --rounds 5 --beside 100

Each time is that of a ``benchlib report`` from its start to its end. One more page beside many studies is made in turn
with one beside a single study, so that a busy machine burdens both; told is the difference in pairs. First the pages of
the many are made, which takes some minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

DATA = Path(__file__).parents[1] / "data"


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--beside", default=100, show_default=True, help="studies that are kept already")
@click.option("--study", default="configuration-recorded", show_default=True, help="the one that is copied")
def main(rounds: int, beside: int, study: str) -> None:
    """Measure, and tell medians with the least and the most."""
    recorded = sorted(DATA.glob("*-recorded"))
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "recorded"
        for path in recorded:
            _copy(path, site, path.name)
        whole = [_report(site, anew=True) for _ in range(rounds)]
        _tell("one page", [_report(site, study) for _ in range(rounds)])
        _tell(f"all {len(recorded)} pages", whole)
        _tell("nothing changed", [_report(site) for _ in range(rounds)])
        pairs = [
            (_report(site, study, "--out", str(site / "one")), _nbconvert(site, study)) for _ in range(rounds)
        ]
        _tell("papermill and nbconvert for the same page", [other for _, other in pairs])
        _ratio("one page over papermill and nbconvert", [ours / other for ours, other in pairs])
        few, many = Path(scratch) / "few", Path(scratch) / "many"
        for folder, number in ((few, 1), (many, beside)):
            for copy in range(number):
                _copy(DATA / study, folder, f"kept-{copy}")
            _report(folder)
        seconds = []
        for copy in range(rounds):
            for folder in (few, many):
                _copy(DATA / study, folder, f"new-{copy}")
            seconds.append((_report(few), _report(many)))
        _tell("a new page beside 1 study", [one for one, _ in seconds])
        _tell(f"a new page beside {beside} studies", [other for _, other in seconds])
        _tell("longer by", [other - one for one, other in seconds])


def _copy(study: Path, folder: Path, name: str) -> None:
    """Keep a study once more, under another name."""
    shutil.copytree(study, folder / "data" / name)
    file = folder / "data" / name / "study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "name": name}))


def _report(folder: Path, *names: str, anew: bool = False) -> float:
    """The seconds of ``benchlib report`` on the studies of a folder."""
    if anew:
        shutil.rmtree(folder / "reports", ignore_errors=True)
    place = {"BENCHLIB_DATA": str(folder / "data"), "BENCHLIB_REPORTS": str(folder / "reports")}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from benchlib.cli import main; main()", "report", *names],
        env={**os.environ, **place},
        capture_output=True,
        check=True,
    )
    return time.perf_counter() - started


def _nbconvert(folder: Path, study: str) -> float:
    """The seconds of papermill and then nbconvert on the notebook of a study."""
    notebook = json.loads((folder / "data" / study / "study.json").read_text())["notebook"]
    place = {"BENCHLIB_DATA": str(folder / "data"), "BENCHLIB_REPORTS": str(folder / "reports")}
    with tempfile.TemporaryDirectory() as scratch:
        executed = Path(scratch) / "out.ipynb"
        started = time.perf_counter()
        for command in (
            [
                "papermill",
                f"notebooks/{notebook}.ipynb",
                str(executed),
                "-p",
                "study",
                study,
                "-p",
                "run",
                "False",
            ],
            ["jupyter-nbconvert", "--to", "html", str(executed)],
        ):
            program = str(Path(sys.executable).with_name(command[0]))
            subprocess.run(
                [program, *command[1:]],
                cwd=DATA.parent,
                env={**os.environ, **place},
                capture_output=True,
                check=True,
            )
        return time.perf_counter() - started


def _ratio(what: str, ratios: Sequence[float]) -> None:
    print(f"{what}: {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def _tell(what: str, seconds: Sequence[float]) -> None:
    print(f"{what}: {np.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})", flush=True)


if __name__ == "__main__":
    main()
