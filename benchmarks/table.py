"""What the suite itself costs, in one table with spreads: `make bench`, an hour on a quiet machine.

    python benchmarks/table.py --rounds 3 --lines 10000000 --observer-blocks 200

A log of all transactions parsed against what pandas' and pyarrow's readers need for two of its columns
(benchmarks/logs.py); the analysis of a study of 9 blocks and 7 levels; a page made from what is kept; what
a study takes from its command to its page beside pgbench's trials and warm-ups, with trials of 15 s and of 60 s and clusters anew for each block; and what
watching a trial costs (benchmarks/observer.py). The table is kept in data/benchmarks/, with the rounds of the first and the
trials of the last beside it. The status is 1 where something is not as wanted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

import benchlib
from benchlib.host.facts import load_average
from benchlib.study.store import DATA_VARIABLE, StudyFolder

HERE = Path(__file__).parent
BENCHLIB = Path(sys.executable).with_name("benchlib")
LEVELS = (
    "{question: 'Does more memory help?', levels: {defaults: {}, more memory: {settings: {work_mem: 8MB}}}}\n"
)
BLOCKS, ARMS = 9, 7


@dataclass(frozen=True)
class Row:
    """One line of the table: the median of its rounds, or an estimate, with the spread."""

    what: str
    median: float
    low: float
    high: float
    unit: str
    spread: str
    wanted: str = ""
    good: bool | None = None


def row_of(what: str, values: Sequence[float], unit: str = "", most: float | None = None) -> Row:
    """The rounds in a line; ``most`` is what the median may be."""
    middle = float(np.median(values))
    wanted, good = ("", None) if most is None else (f"≤ {most:g}", middle <= most)
    return Row(what, middle, min(values), max(values), unit, f"rounds: {len(values)}", wanted, good)


def run(*words: object, cwd: Path | None = None, **environment: str) -> float:
    """Run a program, its output as it comes; the seconds it took. 1 is a benchmark's "not as wanted"."""
    started = time.perf_counter()
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=os.environ | environment, stdout=sys.stderr, check=False
    )
    if done.returncode not in (0, 1):
        raise click.ClickException(f"{' '.join(map(str, words))} ended with status {done.returncode}")
    return time.perf_counter() - started


def raw(script: str, out: Path, *words: object) -> pd.DataFrame:
    """What another benchmark measured; it replaces what is kept only if it is whole."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{script}.csv"
        run(sys.executable, HERE / f"{script}.py", *words, "--out", path)
        if not path.is_file():
            raise click.ClickException(f"benchmarks/{script}.py ended early")
        shutil.copyfile(path, out / path.name)
    return pd.read_csv(out / f"{script}.csv")


def logs(out: Path, rounds: int, lines: int) -> list[Row]:
    """A whole log parsed against two columns read by others, round by round."""
    frame = raw("logs", out, "--rounds", rounds, "--lines", lines)
    wall = frame.pivot(index="round", columns="contender", values="wall_s")
    return [
        row_of(
            f"benchlib parse of {lines:,} log lines / {other}", list(wall["parse"] / wall[other]), "×", most
        )
        for other, most in (("pyarrow", 1.5), ("pandas", None))
    ]


def analysis(rounds: int) -> Row:
    """The first verdicts that a process gives, its imports aside."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        seconds = list(fresh.map(analysis_s, range(rounds)))
    return row_of(f"analysis, {BLOCKS} blocks × {ARMS} levels", seconds, "s", 1)


def analysis_s(seed: int) -> float:
    """How long the analysis of a study takes in which nothing differs."""
    generator = np.random.default_rng(seed)
    trials = [
        {"block": block, "level": f"level {arm}", "tps": 1000 * float(np.exp(generator.normal(0, 0.03)))}
        for block in range(BLOCKS)
        for arm in range(ARMS)
    ]
    frame, started = pd.DataFrame(trials), time.perf_counter()
    benchlib.analyze(frame, baseline="level 0", controls=["level 1"])
    return time.perf_counter() - started


def studies(rounds: int, blocks: int, short_s: int, long_s: int) -> list[Row]:
    """A study of inserts as a user runs it, and its page once more; the longer trials once."""
    over: dict[int, list[float]] = {short_s: [], long_s: []}
    pages = list[float]()
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch)
        shutil.copytree(HERE.parent / "notebooks", project / "notebooks", ignore=shutil.ignore_patterns(".*"))
        (project / "levels.yaml").write_text(LEVELS)
        (project / "data").mkdir()
        place = {DATA_VARIABLE: str(project / "data")}
        for duration_s in [short_s] * rounds + [long_s]:
            name = f"bench-{len(pages)}"
            sizes = ["-p", "blocks", blocks, "-p", "duration_s", duration_s, "-p", "clients", 4]
            words = ["run", "configuration", "-f", "levels.yaml", *sizes, "-p", "study", name]
            wall = run(BENCHLIB, *words, cwd=project, **place)
            folder = StudyFolder(name, project / "data")
            kept, warmup_s = folder.kept().values(), folder.read().plan.load.warmup_s
            if len(kept) != 3 * blocks or any(m.error for m in kept):
                raise click.ClickException(f"the study {name} is not whole")
            # a cluster is warmed when it is built, and again before its trial
            load = sum((m.load_wall_s or 0) + 2 * warmup_s for m in kept)
            over[duration_s].append(100 * (wall / load - 1))
            pages.append(run(BENCHLIB, "report", name, cwd=project, **place))
    return [
        *(
            row_of(f"study of {3 * blocks} trials of {duration_s} s: beside pgbench", each, "%", most)
            for (duration_s, each), most in zip(over.items(), (25, 10), strict=True)
        ),
        row_of("page from what is kept", pages, "s"),
    ]


def observer(out: Path, blocks: int) -> Row:
    """The observer's price: the change of the tps, its 95 % interval, and the verdict."""
    trials = raw("observer", out, "--blocks", blocks)
    found = benchlib.analyze(trials, baseline="unobserved", controls=["control"], margin=0.02)
    row: Any = found.table.set_index("level").loc["observed"]
    return Row(
        what="tps while observed",
        median=row["percent_change"],
        low=row["ci_low"],
        high=row["ci_high"],
        unit="%",
        spread=f"95 % interval, {blocks} blocks",
        wanted="equivalent within ±2 %",
        good=row["verdict"] == "equivalent",
    )


def tools(out: Path, rounds: int, seconds: int) -> Row:
    """TPC-C-like by pgbench against a Python client's same transactions: the load tool's cost."""
    frame = raw("tpcc_client", out, "--rounds", rounds, "--seconds", seconds)
    ratios = list(frame["pgbench"] / frame["client"])
    return row_of("tps of tpcc-like by pgbench / by a client with psycopg", ratios, "×")


def lines_of(rows: Sequence[Row]) -> list[str]:
    """The table for a terminal."""
    cells: list[tuple[str, ...]] = [("", "median", "from", "to", "", "wanted")]
    for row in rows:
        figures = (f"{value:.3g} {row.unit}" for value in (row.median, row.low, row.high))
        held = "" if row.good is None else f"{row.wanted}: {'yes' if row.good else 'no'}"
        cells.append((row.what, *figures, row.spread, held))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]  # fmt: skip


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, help="of all but the observer's price")
@click.option("--lines", default=10_000_000, show_default=True, help="of the transaction log")
@click.option("--blocks", default=5, show_default=True, help="of the studies")
@click.option("--short", "short_s", default=15, show_default=True, help="seconds of their shorter trials")
@click.option("--long", "long_s", default=60, show_default=True, help="seconds of their longer trials")
@click.option("--observer-blocks", default=200, show_default=True)
@click.option("--tool-rounds", default=10, show_default=True, help="of the load tool's cost")
@click.option("--tool-seconds", default=10, show_default=True, help="of each of their runs")
@click.option("--out", default=Path("data/benchmarks"), show_default=True, type=click.Path(path_type=Path, file_okay=False))  # fmt: skip
def main(
    rounds: int,
    lines: int,
    blocks: int,
    short_s: int,
    long_s: int,
    observer_blocks: int,
    tool_rounds: int,
    tool_seconds: int,
    out: Path,
) -> None:
    """Measure one after the other, print the table and keep it."""
    out.mkdir(parents=True, exist_ok=True)
    parts: list[Callable[[], list[Row]]] = [
        lambda: [analysis(rounds)],
        lambda: logs(out, rounds, lines),
        lambda: studies(rounds, blocks, short_s, long_s),
        lambda: [tools(out, tool_rounds, tool_seconds)],
        lambda: [observer(out, observer_blocks)],
    ]
    rows, before = [], load_average()
    for part in parts:
        rows += part()
    pd.DataFrame([asdict(row) for row in rows]).to_csv(out / "table.csv", index=False, float_format="%.4g")
    click.echo(f"load average before: {before}")
    click.echo("\n".join(lines_of(rows)))
    sys.exit(any(row.good is False for row in rows))


if __name__ == "__main__":
    main()
