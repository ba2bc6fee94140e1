"""A workload's scripts as files that a load tool can read."""

from __future__ import annotations

from pathlib import Path

from benchlib.host.shell import Shell
from benchlib.plan.workload import Script, Workload


def written(workload: Workload, folder: Path, shell: Shell) -> list[tuple[Script, Path | None]]:
    """The workload's scripts, those that are SQL written to files in ``folder`` that the load tool can read."""
    pairs: list[tuple[Script, Path | None]] = []
    for number, script in enumerate(workload.scripts, 1):
        path = None
        if script.sql is not None:
            path = folder / f"{workload.name}-{number}.sql"
            if not path.exists():
                path.touch(mode=0o600)
                path.write_text(script.sql)
                shell.own(path)
        pairs.append((script, path))
    return pairs
