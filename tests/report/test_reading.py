"""What is kept is read and shown without levers, and without a driver for servers."""

import subprocess
import sys

MODULES = ["notebook", "report.view", "report.site", "report.runs", "study.experiment"]
CODE = f"""
import sys, {", ".join(f"benchlib.{name}" for name in MODULES)}
print([name for name in sys.modules if name.startswith(("benchlib.levers", "psycopg"))])
"""


def test_reading_and_showing_what_is_kept_loads_no_lever_and_no_psycopg():
    assert subprocess.check_output([sys.executable, "-c", CODE], text=True).strip() == "[]"
