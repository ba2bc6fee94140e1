"""How reading a text grows with its length: the processor's time for eight times the text.

    python benchmarks/long_texts.py --out long_texts.csv

Each text is a beginning and many times the same words, and is read as every kind. Eight times the text takes eight times
as long where reading is linear and sixty-four times where it is quadratic, as with a regular expression that tries again from
each place. The least of three rounds counts; texts below 10 ms are left out, since their ratio is noise.
"""

import contextlib
import time
from itertools import product
from pathlib import Path

import click
import pandas as pd

from benchlib.errors import BenchlibError
from benchlib.load.parse import KINDS, parse_text
from benchlib.load.tools import read
from benchlib.server.checkpoints import checkpoints

LOGGED = "0 1 1523 0 1795178920 475654\n"
BEGINNINGS = (
    "", "x", "pgbench ", "pgbench -", "pgbench (1", "number of transactions actually processed: ", "transaction type: ",
    "tps = ", "progress: 1.0 s, ", "sysbench 1", "transactions:", "[ 1s ] thds: ", "Compare file sync methods using",
    "done in 1.00 s (", "1 of 2 tuples (1%) done (elapsed ", LOGGED, "SQL script 1: ", "client 1 ",
    "2026-01-31 12:00:00.123 UTC [4711] LOG: ", "statement latencies in milliseconds:\n0.001 ", "\x1b[", "\x1b]",
    "connection to database ", "/pgbench", f"{LOGGED}0 2 1523 65535 1795178920 475654\n",
)  # fmt: skip
REPEATED = (
    *" 1.()\n'\"\\\t\r\x1b/", "1 ", "a ", "- ", "-c 1 ", "pgbench -", "pgbench ", "/pgbench", ", ", "a, ", "1.00 s, ", "a 1.00 s, ",
    "LOG: ", "LOG:  checkpoint ", "\x1b[", "\x1b]", "\x1b[1", "nan(", "tps = 1 ", "progress: 1 s, ", "client 1 ", "> ", "SQL script 1: a\n",
    LOGGED, "FATAL: ", "connection to server ", "x@1 ", "--define=a=b ", "creating tables...\n", "\u00a0",
)  # fmt: skip
LENGTH, LEAST_S = 4_000, 0.01


def read_all(text: str) -> None:
    """Read a text as everything that it could be."""
    for kind in (None, *KINDS):
        with contextlib.suppress(BenchlibError):
            parse_text(text, kind=kind, argv=["pgbench", *text[:99].split()])
    with contextlib.suppress(BenchlibError):
        read("pgbench", text)
    checkpoints(text, 0.0)


def seconds(text: str) -> float:
    """Return the processor's least time of three for reading a text."""
    took = []
    for _ in range(3):
        began = time.process_time()
        read_all(text)
        took.append(time.process_time() - began)
    return min(took)


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), help="A CSV file for all texts.")
def main(out: Path | None) -> None:
    """Measure all texts, and show those that grow fastest."""
    rows = []
    for beginning, repeated in product(BEGINNINGS, REPEATED):
        one, eight = (seconds(beginning + repeated * (n * LENGTH // len(repeated))) for n in (1, 8))
        rows.append({"beginning": beginning, "repeated": repeated, "seconds": eight, "ratio": eight / one})
    table = pd.DataFrame(rows)
    table["ratio"] = table["ratio"].where(table["seconds"] >= LEAST_S)
    if out:
        table.to_csv(out, index=False)
    print(table.dropna().nlargest(10, "ratio").to_string(index=False))
    print(f"eight times the text takes at most {table['ratio'].max():.1f} times as long")


if __name__ == "__main__":
    main()
