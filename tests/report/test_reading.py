"""What is kept is read and shown without levers and a driver for servers, and nothing loads Dask before there is a fleet."""

import subprocess
import sys

MODULES = ["notebook", "report.view", "report.site", "report.runs", "study.experiment"]
CODE = f"""
import sys, {", ".join(f"benchlib.{name}" for name in MODULES)}
print([name for name in sys.modules if name.startswith(("benchlib.levers", "psycopg"))])
import benchlib.cli, benchlib.study.runs
print("dask" in sys.modules)
"""


def test_what_is_not_needed_is_not_loaded():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]
