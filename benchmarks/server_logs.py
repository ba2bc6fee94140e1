"""What reading a server's log costs: MB a second and memory, for the three formats.

    python benchmarks/server_logs.py --gb 1 --rounds 3 --out data/benchmarks/server_logs.csv

A log of PostgreSQL is made (statements with literals and with parameters, some of several lines; a tenth has names
that do not come again) and removed at the end. In each round each format is read once, in random order, as a process
of its own. The yardstick is Python's own reading of the file's lines in the same round, so that a busy machine
burdens both.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from logs import measure

LIMIT_MB = 300
FORMATS = ("csv", "json", "stderr")
READ = """
import sys, pathlib
from benchlib.server.statements.logs import workload_of_log
workload_of_log(pathlib.Path(sys.argv[1]), "own", 30, writes=False)
"""
LINES = """
import sys
with open(sys.argv[1], encoding="utf-8", newline="") as file:
    for line in file:
        pass
"""
START = '2026-11-27 23:53:23.513 UTC,"u","shop",7263,"[local]",6b0a17f3.1c5f,1,"SELECT",2026-11-27 23:53:23 UTC,3/0,0'


def rows() -> Iterator[tuple[str, str]]:
    """Yield messages with their detail."""
    draw = random.Random(1)
    while True:
        ms, number = f"duration: {draw.lognormvariate(0, 1):.3f} ms  ", draw.randrange(10**6)
        yield f"{ms}execute S_1: SELECT name FROM customers WHERE id = $1", f"parameters: $1 = '{number}'"
        yield (
            (
                f"{ms}statement: SELECT *\n  FROM orders AS o JOIN customers AS c ON c.id = o.customer\n"
                f"WHERE o.total > {number}.5 AND c.name = 'n''{number}' ORDER BY o.at DESC LIMIT 20"
            ),
            "",
        )
        yield (
            f"{ms}execute <unnamed>: UPDATE orders SET note = $1 WHERE id = $2",
            (f"parameters: $1 = 'it''s ü {number}', $2 = '{number}'"),
        )
        if number % 10 < 3:
            yield f"{ms}statement: SELECT count(*) FROM temporary_{number} WHERE a = {number}", ""


def write(path: Path, form: str, size: int) -> None:
    """Write a log of about this many bytes."""
    prefix = "2026-11-27 23:53:23.513 UTC [7263] u@shop "
    with path.open("w", encoding="utf-8") as file:
        written = 0
        for message, detail in rows():
            if form == "csv":
                message, detail = message.replace('"', '""'), detail.replace('"', '""')
                text = f'{START},LOG,00000,"{message}","{detail}",,,,,,,,"","client backend",,0\n'
            elif form == "json":
                row = {"timestamp": "2026-11-27 23:53:23.513 UTC", "user": "u", "dbname": "shop", "pid": 7263}
                row |= {"error_severity": "LOG", "message": message, **({"detail": detail} if detail else {})}
                text = json.dumps(row, ensure_ascii=False) + "\n"
            else:
                text = f"{prefix}LOG:  {message}".replace("\n", "\n\t") + "\n"
                text += f"{prefix}DETAIL:  {detail}\n" if detail else ""
            written += file.write(text)
            if written > size:
                return


def main() -> None:
    """Measure, print the figures, and save each time."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--gb", type=float, default=1)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    measured = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        logs = {form: Path(scratch) / f"p.{form}" for form in given.formats}
        for form, path in logs.items():
            write(path, form, int(given.gb * 1e9))
        for number in range(1, given.rounds + 1):
            for form in random.sample(list(logs), len(logs)):
                size = logs[form].stat().st_size / 1e6
                _, lines_s, _ = measure(LINES, logs[form])
                wall_s, cpu_s, peak_mb = measure(READ, logs[form])
                row = {"round": number, "format": form, "mb": round(size), "wall_s": wall_s, "cpu_s": cpu_s}
                measured.append(row | {"lines_cpu_s": lines_s, "peak_mb": peak_mb})
                print(measured[-1], flush=True)
    frame = pd.DataFrame(measured)
    if given.out:
        frame.to_csv(given.out, index=False)
    for name, group in frame.groupby("format"):
        rate, ratio = group["mb"] / group["cpu_s"], group["cpu_s"] / group["lines_cpu_s"]
        print(
            f"{name}: {rate.median():.0f} MB a second of processor ({rate.min():.0f} to {rate.max():.0f}), "
            f"{ratio.median():.0f} times as long as reading its lines ({ratio.min():.0f} to {ratio.max():.0f}), "
            f"at most {group['peak_mb'].max()} MB of memory"
        )
    good = frame["peak_mb"].max() <= LIMIT_MB
    print(f"within {LIMIT_MB} MB: {'yes' if good else 'no'}")
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
