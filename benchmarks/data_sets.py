"""What a level's copy of a real data set costs, against restoring its dump.

    python benchmarks/data_sets.py --gb 1 --rounds 3 --out data/benchmarks/data_sets.csv

A table of rows with two indexes is made, dumped (pg_dump, custom form) and restored as a study does it; then, in each
round and in random order, the dump is restored into a new cluster and the restored cluster is copied. Both are timed
until their files are on disk.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import pandas as pd

from benchlib.errors import LoadError
from benchlib.host.guardian import guarded_run, scratch_root
from benchlib.host.shell import Shell, server_user
from benchlib.plan.level import Level
from benchlib.plan.workload import Data
from benchlib.server.cluster import Cluster
from benchlib.server.datasets import pinned, restore
from benchlib.server.templates import FAST_LOADING, Templates

ROWS_PER_GB = 5_550_000
MADE = """
CREATE TABLE orders AS
SELECT i AS id, i::bigint * 7919 % 100000 AS customer, md5(i::text) || md5((i + 1)::text) AS note, now() + i * interval '1 s' AS at
FROM generate_series(1, {}) AS i;
ALTER TABLE orders ADD PRIMARY KEY (id);
CREATE INDEX ON orders (customer, at);
"""


def main() -> None:
    """Measure, print the ratio, and save each time."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--gb", type=float, default=1)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    shell, rows = Shell(server_user()), []
    with guarded_run(scratch_root(), "benchmarks/data_sets.py", print) as run:
        templates = Templates(run, shell, 1, lambda message: None)

        def started(name: str) -> Cluster:
            cluster = templates.empty(Level()).clone(run.folder / name)
            cluster.configure(FAST_LOADING)
            cluster.start(cut_off=True)
            return cluster

        source = started("source")
        source.execute(f"CREATE DATABASE {source.database}", dbname="postgres")
        source.execute(*MADE.format(int(given.gb * ROWS_PER_GB)).split(";"))
        size = source.value("SELECT pg_database_size(current_database())") >> 20
        program, dump = templates.program("pg_dump", Level()), run.folder / "own.dump"
        where: list[str | Path] = [
            "--host",
            source.sockets,
            "--username=postgres",
            f"--dbname={source.database}",
        ]
        shell.run([program, *where, "--format=custom"], stdout=dump).insist(LoadError, "pg_dump")
        source.stop()
        shell.remove(source.folder)
        data = pinned(Data(file=str(dump)), None, print)

        def restoring() -> Cluster:
            cluster = started("new")
            restore(data, cluster, shell, run.folder, lambda message: None)
            cluster.vacuum("FREEZE, ANALYZE")
            cluster.stop()
            return cluster

        first = restoring()
        template = first.clone(run.folder / "template")
        shell.remove(first.folder)

        def copying() -> Cluster:
            return template.clone(run.folder / "new")

        ways = {"restore": restoring, "copy": copying}
        for number in range(1, given.rounds + 1):
            for what in random.sample(list(ways), len(ways)):
                Shell().run(["sync"])
                begun = time.perf_counter()
                cluster = ways[what]()
                Shell().run(["sync"])
                seconds = time.perf_counter() - begun
                rows.append({"round": number, "what": what, "mib": size, "s": round(seconds, 3)})
                print(rows[-1], flush=True)
                shell.remove(cluster.folder)
    frame = pd.DataFrame(rows)
    if given.out:
        frame.to_csv(given.out, index=False)
    times = frame.pivot(index="round", columns="what", values="s")
    ratio = times["restore"] / times["copy"]
    print(
        f"{size} MiB: copy {times['copy'].median():.1f} s, restore {times['restore'].median():.1f} s: "
        f"{ratio.median():.1f} times as fast ({ratio.min():.1f} to {ratio.max():.1f})"
    )


if __name__ == "__main__":
    main()
