"""``benchlib init``: a folder to work in, laid out from the installed library."""

import hashlib
from pathlib import Path

import click

from benchlib.cli.terminal import echo
from benchlib.errors import InputError

_LAYOUT = Path(__file__).parent / "layout"
_FOLDERS = {"notebooks": "*.ipynb", "workloads": "", "data/published": "*.csv", "reports": ""}
"""The folders, and what they have from the library."""
_SUMS = ".laid-out"
"""The checksums of what was laid out, as ``sha256sum`` writes them: what has another is somebody's own work."""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Lay out FOLDER to work in: notebooks/, workloads/, data/ and reports/.

    Where an earlier version has laid it out notebooks are replaced, but for those that you have
    changed: they are named and stay as they are.

    \b
    Example:
      benchlib init mystudies && cd mystudies && benchlib run configuration
    """
    try:
        for name in _lay_out(folder):
            echo(f"{name} has been changed and stays as it is")
    except OSError as reason:
        raise InputError(f"cannot lay out {folder}: {reason.strerror} ({reason.filename})") from None
    echo(f"laid out: 'cd {folder}', then 'benchlib run configuration', or JupyterLab at notebooks/")


def _lay_out(folder: Path) -> list[str]:
    """Write what is not there, or is as an earlier version wrote it; the names of all else."""
    changed, listed = list[str](), folder / _SUMS
    lines = listed.read_text().splitlines() if listed.is_file() else []
    sums = dict(line.split("  ")[::-1] for line in lines)
    for name, ends in _FOLDERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for source in sorted((_LAYOUT / name).glob(ends)) if ends else ():
            path, data = folder / name / source.name, source.read_bytes()
            file, there = f"{name}/{source.name}", path.read_bytes() if path.is_file() else data
            if there != data and _sum(there) != sums.get(file):
                changed.append(file)
            else:
                path.write_bytes(data)
                sums[file] = _sum(data)
    listed.write_text("".join(f"{digest}  {file}\n" for file, digest in sorted(sums.items())))
    return changed


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
