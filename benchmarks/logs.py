"""How long the figures of a transaction log of ten million lines take, and how much memory.

    python benchmarks/logs.py --rounds 7 --out data/benchmarks/logs.csv

A log as pgbench writes it is made (two threads, 32 clients, 20,000 transactions per second, latencies
log-normal with stalls), and removed at the end. In each round every contender runs once, in random
order and in a process of its own: from log to all figures (``read_log``), log to Parquet (``keep_log``),
Parquet to all figures (``read_latency``), and for comparison pyarrow's and pandas' CSV readers,
which only read two columns, latency and time. Time counts from after the imports; the log is in the
page cache. The ratios are to pyarrow in the same round, so that a busy machine burdens both.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from benchlib.load.latency import keep_log, read_latency, read_log

LIMIT, LIMIT_MB = 1.25, 400
REFERENCE = "pyarrow"
NAMES = ["client", "transaction", "latency", "script", "epoch_s", "epoch_us"]
TWO = ["latency", "epoch_s"]
ARGV = ["pgbench", "--log", "--client=32", "--jobs=2"]


def make_log(folder: Path, lines: int) -> None:
    """Write the log files of two threads."""
    random_numbers = np.random.default_rng(1)
    schema = pa.schema([(name, pa.int64()) for name in NAMES])
    bare = pa.csv.WriteOptions(include_header=False, delimiter=" ")
    for thread in range(2):
        path = folder / f"log.4711{f'.{thread}' if thread else ''}"
        time_us, count = 1795178550 * 10**6, 0
        with pa.csv.CSVWriter(path, schema, write_options=bare) as writer:
            while count < lines // 2:
                n = min(500_000, lines // 2 - count)
                times = time_us + np.cumsum(random_numbers.exponential(100, n)).astype(np.int64)
                latencies = 200 + random_numbers.lognormal(7, 0.6, n).astype(np.int64)
                latencies[random_numbers.random(n) < 1e-4] += 500_000
                columns = [
                    random_numbers.integers(16 * thread, 16 * thread + 16, n),
                    np.arange(count, count + n) // 16,
                    latencies,
                    np.zeros(n, np.int64),
                    times // 10**6,
                    times % 10**6,
                ]
                writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema))
                time_us, count = int(times[-1]), count + n


def with_pyarrow(parts: list[Path]) -> None:
    """Read two columns, as fast as pyarrow's reader can be told to."""
    for part in parts:
        pa.csv.read_csv(
            part,
            read_options=pa.csv.ReadOptions(column_names=NAMES),
            parse_options=pa.csv.ParseOptions(delimiter=" ", quote_char=False),
            convert_options=pa.csv.ConvertOptions(
                include_columns=TWO, column_types=dict.fromkeys(NAMES, pa.int64())
            ),
        )


def with_pandas(parts: list[Path]) -> None:
    """Read two columns with the C parser."""
    for part in parts:
        pd.read_csv(part, sep=" ", names=NAMES, usecols=TWO, dtype=dict.fromkeys(TWO, np.int64))


def prepare(folder: Path, lines: int) -> None:
    """Make the log and what is kept of it."""
    (folder / "log").mkdir()
    make_log(folder / "log", lines)
    keep_log(sorted((folder / "log").iterdir()), folder / "kept.parquet", ARGV)


CONTENDERS: dict[str, Callable[[list[Path], Path], object]] = {
    "read_log": lambda parts, kept: read_log(parts, ARGV),
    "keep_log": lambda parts, kept: keep_log(parts, kept, ARGV),
    "read_latency": lambda parts, kept: read_latency(kept),
    "pyarrow": lambda parts, kept: with_pyarrow(parts),
    "pandas": lambda parts, kept: with_pandas(parts),
}


def run_one(name: str, folder: Path) -> None:
    """Run a contender in this process; print wall and processor seconds and peak memory."""
    parts = sorted((folder / "log").iterdir())
    wall, cpu = time.perf_counter(), time.process_time()
    CONTENDERS[name](parts, folder / "kept.parquet")
    spent = time.perf_counter() - wall, time.process_time() - cpu
    print(*spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def child(name: str, folder: Path, lines: int) -> str:
    """Do something in a process of its own; what that prints."""
    words = [sys.executable, __file__, "--child", name, str(folder), "--lines", str(lines)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    """The rounds, and what they say."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--lines", type=int, default=10_000_000)
    options.add_argument("--out", type=Path)
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        name, folder = given.child[0], Path(given.child[1])
        prepare(folder, given.lines) if name == "prepare" else run_one(name, folder)
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # here nothing large is done: a process starts with the peak memory of the one that started it
        child("prepare", folder, given.lines)
        log_mb = sum(part.stat().st_size for part in (folder / "log").iterdir()) / 1e6
        kept_mb = (folder / "kept.parquet").stat().st_size / 1e6
        for number in range(1, given.rounds + 1):
            for name in random.sample(list(CONTENDERS), len(CONTENDERS)):
                wall, cpu, peak = map(float, child(name, folder, given.lines).split())
                rows.append((number, name, round(wall, 3), round(cpu, 3), round(peak)))
    frame = pd.DataFrame(rows, columns=["round", "contender", "wall_s", "cpu_s", "peak_mb"])
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(given.out, index=False)
    print(f"{given.lines:,} lines, {log_mb:.0f} MB as a log, {kept_mb:.0f} MB kept; {given.rounds} rounds")
    table = frame.pivot(index="round", columns="contender")
    ratios = {name: table["wall_s"][name] / table["wall_s"][REFERENCE] for name in CONTENDERS}
    for name, ratio in ratios.items():
        wall, cpu, peak = (table[what][name] for what in ("wall_s", "cpu_s", "peak_mb"))
        print(
            f"{name:14}{wall.median():6.2f} s wall, {cpu.median():5.2f} s of processors, {peak.max():4} MB; "
            f"{ratio.median():.2f} times {REFERENCE} ({ratio.min():.2f} to {ratio.max():.2f})"
        )
    peak_mb = table["peak_mb"]["read_log"].max()
    good = ratios["read_log"].median() <= LIMIT and peak_mb < LIMIT_MB
    print(f"log to figures within {LIMIT} times {REFERENCE} and {LIMIT_MB} MB: {'yes' if good else 'no'}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
