"""The site in reports/: one recorded study of each notebook, the summary, the index and the calibration, from data/ alone.

    python benchmarks/recorded_site.py             # make reports: about two minutes, no server
    python benchmarks/recorded_site.py --check     # exit code 1 if reports/ no longer matches data/

The pages are made in a temporary folder and copied into reports/ at the end, so a failure leaves reports/ as it was.
Times of execution and fingerprints of this checkout are left out: the same data and code give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
DATA, REPORTS, SOURCES = ROOT / "data", ROOT / "reports", "sources.json"
STUDIES = (
    "combined-recorded",
    "configuration-recorded",
    "durability-recorded",
    "managed-recorded",
    "memory-recorded",
    "mixed_load-recorded",
    "operating_system-recorded",
    "own-recorded",
    "planner-recorded",
    "pooler-recorded",
    "replication-recorded",
    "storage-recorded",
    "version-matrix-recorded",
    "version-workloads-recorded",
)
"""The main recorded study of each notebook, and a second matrix; ``pooler-recorded`` ran with the notebook ``template``."""
ENDINGS = ("html", "ipynb", "json", "study.json", "trials.csv")
FILES = (
    "index.html", "comparisons.html", "methodology.html", "summary.html", "summary.ipynb", SOURCES,
    "calibration.html", "calibration.simulated.csv", "calibration.summary.json", "calibration.trials.csv",
    *(f"{name}.{ending}" for name in STUDIES for ending in ENDINGS),
)  # fmt: skip
_MARK = re.compile(r"<!-- [0-9a-f]{64} -->\n")
_FROM = ("published", "calibration", *STUDIES)


def digest(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of a folder's files."""
    total = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()


def problems(data: Path = DATA, reports: Path = REPORTS) -> Iterator[str]:
    """Yield a sentence for each missing file, and for each folder of ``data`` that has changed since the pages were made."""
    yield from (f"reports/{name} is missing" for name in FILES if not (reports / name).is_file())
    if not (reports / SOURCES).is_file():
        return
    made_from = json.loads((reports / SOURCES).read_text())
    for name in _FROM:
        if made_from.get(name) != digest(data / name):
            yield f"data/{name} has changed since reports/ was made"


def _trace(text: str, site: Path) -> str:
    """Return the name of this host or one of its folders, if the text has it; of a host's names only those that are no plain word."""
    host = socket.gethostname()
    names = [
        str(ROOT),
        str(site),
        str(Path.home()),
        *([host] if re.search(r"\w[\d-]", host) and len(host) > 5 else []),
    ]
    return next((name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text)), "")


@click.command()
@click.option("--check", is_flag=True, help="make nothing: compare reports/ with data/")
def main(check: bool) -> None:
    """Make the recorded site, or compare it with the data."""
    if check:
        found = [*problems()]
        print("\n".join(found) or "reports/ matches data/")
        sys.exit(f"run 'make reports': {len(found)} problems" if found else 0)
    with tempfile.TemporaryDirectory(prefix="benchlib-site-") as scratch:
        site = Path(scratch)
        _make(site)
        (site / SOURCES).write_text(
            json.dumps({name: digest(DATA / name) for name in _FROM}, indent=1) + "\n"
        )
        if missing := [name for name in FILES if not (site / name).is_file()]:
            sys.exit(f"these files were not made, and reports/ stays as it was: {', '.join(missing)}")
        if traced := {name: trace for name in FILES if (trace := _trace((site / name).read_text(), site))}:
            sys.exit(f"these files name this machine, and reports/ stays as it was: {traced}")
        REPORTS.mkdir(exist_ok=True)
        for name in FILES:
            shutil.copyfile(site / name, REPORTS / name)
    size = sum((REPORTS / name).stat().st_size for name in FILES)
    print(f"site: {REPORTS / 'index.html'} ({len(FILES)} files, {size / 1e6:.1f} MB)")


def _make(site: Path) -> None:
    """Make the pages in a folder, without what differs from one time to the next."""
    os.environ |= {"BENCHLIB_REPORTS": str(site), "BENCHLIB_DATA": str(DATA)}
    os.environ.pop("BENCHLIB_ADDRESS", None)
    from calibration_page import publish

    from benchlib.errors import BenchlibError
    from benchlib.report.runs import report_studies

    publish(site)
    try:
        for line in report_studies(STUDIES, alone=True):
            print(line.replace(f"{site}/", ""), flush=True)
    except BenchlibError as reason:
        sys.exit(f"{reason}; reports/ stays as it was")
    for path in site.glob("*.ipynb"):
        path.write_text(_timeless(path.read_text()))
    for name in STUDIES:
        path = site / f"{name}.json"
        page = json.loads(path.read_text())
        path.write_text(
            json.dumps({**page, "fingerprint": "", "page": ""}, indent=1, ensure_ascii=False) + "\n"
        )
    path = site / "summary.html"
    path.write_text(_MARK.sub("", path.read_text()))


def _timeless(text: str) -> str:
    """Return an executed notebook without times of execution and random names of cells."""
    notebook = json.loads(text)
    for part in (notebook, *notebook["cells"]):
        for name in ("papermill", "execution"):
            part["metadata"].pop(name, None)
        if "injected-parameters" in part["metadata"].get("tags", ()):
            part["id"] = "injected-parameters"
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    main()
