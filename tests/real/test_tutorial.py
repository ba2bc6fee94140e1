"""The commands of the tutorial, one after the other, in a new folder."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.pg, pytest.mark.long]

TUTORIAL = (Path(__file__).parent.parent.parent / "docs" / "tutorial.md").read_text()
ENVIRONMENT = ("make setup", ". .venv/bin/activate")
"""What the tests have already."""
SMALL = " -p duration_s 1 -p clients 2 -p scale 1"


def test_every_command_of_the_tutorial(project: Any) -> None:
    (levels,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL, re.DOTALL)
    (project.folder / "levels.yaml").write_text(levels)
    commands = "".join(re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)).splitlines()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        if command.startswith(ENVIRONMENT):
            continue
        small = re.sub(r"-p blocks (\d)", lambda found: f"-p blocks {3 if found[1] == '5' else 4}", command)
        small += SMALL * small.startswith("benchlib run")
        done = subprocess.run(
            ["bash", "-c", small], cwd=project.folder, env=project.environment | {"PATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{small}\n{done.stdout}{done.stderr}"
    assert (project.folder / "site" / "my-first.html").is_file()
    assert "control" in done.stdout
    assert project.has_nothing_left()
