"""What a transaction log of ten million lines costs: time against others' readers, and memory.

    python benchmarks/logs.py --rounds 7 --out data/benchmarks/logs.csv

A log as pgbench writes it is made (32 clients, 20,000 transactions per second, latencies log-normal with
stalls), and removed at the end. In each round every contender runs once, in random order, as a process of its own
that is timed whole: ``benchlib parse``, log to Parquet (``keep_log``), Parquet to figures (``read_latency``), and for
comparison pyarrow's and pandas' CSV readers, which only read two columns, latency and time. The log is in the page
cache. The ratios are to pyarrow in the same round, so that a busy machine burdens both.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

LIMIT, LIMIT_MB = 1.5, 500
NAMES = ["client", "transaction", "latency", "script", "epoch_s", "epoch_us"]
ARROW = f"""
import sys, pyarrow as pa, pyarrow.csv
pa.csv.read_csv(
    sys.argv[1],
    read_options=pa.csv.ReadOptions(column_names={NAMES}),
    parse_options=pa.csv.ParseOptions(delimiter=" ", quote_char=False),
    convert_options=pa.csv.ConvertOptions(
        include_columns=["latency", "epoch_s"], column_types=dict.fromkeys({NAMES}, pa.int64())
    ),
)
"""
PANDAS = f"""
import sys, pandas
pandas.read_csv(sys.argv[1], sep=" ", names={NAMES}, usecols=["latency", "epoch_s"], dtype="int64")
"""
KEEP = """
import sys, pathlib
from benchlib.load.latency import keep_log
keep_log([pathlib.Path(sys.argv[1])], pathlib.Path(sys.argv[2]), ["pgbench", "--log"])
"""
READ = """
import sys, pathlib
from benchlib.load.latency import read_latency
read_latency(pathlib.Path(sys.argv[2]))
"""
PARSE = """
import sys
from benchlib.cli import main
main(["parse", sys.argv[1], "--json"])
"""
CONTENDERS = {"keep_log": KEEP, "parse": PARSE, "read_latency": READ, "pyarrow": ARROW, "pandas": PANDAS}


def make_log(path: Path, lines: int) -> None:
    """Write the log of one thread."""
    random_numbers = np.random.default_rng(1)
    schema = pa.schema([(name, pa.int64()) for name in NAMES])
    bare = pa.csv.WriteOptions(include_header=False, delimiter=" ")
    time_us, count = 1795178550 * 10**6, 0
    with pa.csv.CSVWriter(path, schema, write_options=bare) as writer:
        while count < lines:
            numbers = np.arange(count, min(count + 500_000, lines))
            n = len(numbers)
            times = time_us + np.cumsum(random_numbers.exponential(50, n)).astype(np.int64)
            latencies = 200 + random_numbers.lognormal(7, 0.6, n).astype(np.int64)
            latencies[random_numbers.random(n) < 1e-4] += 500_000
            columns = [numbers % 32, numbers // 32, latencies, numbers * 0, times // 10**6, times % 10**6]
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema))
            time_us, count = int(times[-1]), count + n


def measure(program: str, *arguments: Path) -> tuple[float, float, int]:
    """Run a program in a process; its wall and processor seconds and its peak memory in MB."""
    before = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"a contender failed with status {status}")
    wall = time.perf_counter() - before
    return round(wall, 3), round(used.ru_utime + used.ru_stime, 3), round(used.ru_maxrss / 1024)


def main() -> None:
    """The rounds, and what they say."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--lines", type=int, default=10_000_000)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        log, kept = Path(scratch) / "log.4711", Path(scratch) / "kept.parquet"
        make_log(log, given.lines)
        measure(KEEP, log, kept)
        for number in range(1, given.rounds + 1):
            names = random.sample(list(CONTENDERS), len(CONTENDERS))
            rows += [(number, name, *measure(CONTENDERS[name], log, kept)) for name in names]
        print(f"{given.lines:,} lines, {log.stat().st_size / 1e6:.0f} MB; {given.rounds} rounds")
    frame = pd.DataFrame(rows, columns=["round", "contender", "wall_s", "cpu_s", "peak_mb"])
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(given.out, index=False)
    table = frame.pivot(index="round", columns="contender")
    ratios = table["wall_s"].div(table["wall_s"]["pyarrow"], axis=0)
    for name in CONTENDERS:
        wall, cpu, peak = (table[what][name] for what in ("wall_s", "cpu_s", "peak_mb"))
        print(
            f"{name:14}{wall.median():6.2f} s wall, {cpu.median():5.2f} s of processors, {peak.max():4} MB; "
            f"{ratios[name].median():.2f} times pyarrow ({ratios[name].min():.2f} to {ratios[name].max():.2f})"
        )
    good = ratios["parse"].median() <= LIMIT and table["peak_mb"]["parse"].max() <= LIMIT_MB
    print(f"benchlib parse within {LIMIT} times pyarrow and {LIMIT_MB} MB: {'yes' if good else 'no'}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
