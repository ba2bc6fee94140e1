"""How much faster a loaded data set is restored than loaded again: on the scratch folder's disk, and on others.

Each round loads (`pgbench -i`, VACUUM FREEZE ANALYZE, CHECKPOINT, with the bench's settings for loading) and restores,
from memory and, as root, with nothing of it in memory, in an order that changes from round to round. Neither
waits for the disk; how long until all is on disk is told beside it. Starting and stopping the server is
in neither. The figures go to data/benchmarks/restore.csv.

    python benchmarks/restore.py --scale 100 --rounds 5 --on scratch --on xfs --on btrfs
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pandas as pd

from benchlib.host import facts
from benchlib.host.guardian import guarded_run, scratch_root
from benchlib.host.shell import Shell, server_user
from benchlib.levers import volumes
from benchlib.levers.volumes import Place
from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.server.copying import copy_tree
from benchlib.server.templates import FAST_LOADING, Templates, load

MIB_PER_SCALE = 70
"""Room for two data sets with their WAL, and a third that is being made."""


@click.command()
@click.option("--scale", default=100, show_default=True, help="of pgbench's tables")
@click.option("--rounds", default=5, show_default=True)
@click.option("--on", "kinds", multiple=True, default=["scratch"], show_default=True,
              type=click.Choice(["scratch", "ext4", "xfs", "btrfs"]), help="the scratch folder, or one made (as root)")  # fmt: skip
@click.option(
    "--out", default=Path("data/benchmarks/restore.csv"), show_default=True, type=click.Path(path_type=Path)
)
def main(scale: int, rounds: int, kinds: tuple[str, ...], out: Path) -> None:
    """Measure, tell the ratios, and keep every time."""
    rows = [row for kind in kinds for row in _measure(kind, scale, rounds)]
    table = pd.DataFrame(rows)
    table.to_csv(out, index=False, float_format="%.3f")
    for on, times in table.groupby("on", sort=False):
        for column in ("s", "s_until_on_disk"):
            seconds = times.pivot(index="round", columns="what", values=column)
            for what in seconds.columns.drop("load"):
                ratio = seconds["load"] / seconds[what]
                print(
                    f"{on}: {what} {seconds[what].median():.2f} s, load {seconds['load'].median():.2f} s ({column}): "
                    f"{ratio.median():.1f} times as fast (from {ratio.min():.1f} to {ratio.max():.1f})"
                )


def _measure(kind: str, scale: int, rounds: int) -> list[dict[str, object]]:
    shell = Shell(server_user())
    rows: list[dict[str, object]] = []
    with guarded_run(scratch_root(), "benchmarks/restore.py", print) as run, run.journal.scope() as scope:
        folder = shell.make_directory(run.folder / "disk")
        if kind != "scratch":
            place = Place(file_system=kind, size=(MIB_PER_SCALE * scale + 1024) * facts.MEBIBYTE)
            volumes.check(place, run.folder)
            folder = volumes.provide(place, kind, run.folder, shell, scope)
        templates = Templates(run, shell, scale, lambda message: None)
        workload = load_workload("tpcb-like")

        def loading(new: Path) -> tuple[Callable[[], None], Callable[[], None]]:
            cluster = templates.empty(Level()).clone(run.folder / new.name, data=shell.make_directory(new))
            cluster.configure(FAST_LOADING)
            cluster.start()
            cluster.execute(f"CREATE DATABASE {cluster.database}", dbname=cluster.maintenance)

            def work() -> None:
                load(cluster, workload, scale, shell, templates.pgbench())

            return work, cluster.stop

        def restoring(new: Path) -> tuple[Callable[[], None], Callable[[], None]]:
            return lambda: copy_tree(shell, folder / "template", new), lambda: None

        def forgetful(new: Path) -> tuple[Callable[[], None], Callable[[], None]]:
            Path("/proc/sys/vm/drop_caches").write_text("3")
            return restoring(new)

        work, end = loading(folder / "template")
        work()
        end()
        ways = {"load": loading, "restore": restoring}
        if os.geteuid() == 0:
            ways["restore, not in memory"] = forgetful
        generator = np.random.default_rng(1)
        for number in range(1, rounds + 1):
            for what in map(str, generator.permutation(list(ways))):
                new = folder / "new"
                Shell().run(["sync"])
                work, end = ways[what](new)
                started = time.perf_counter()
                work()
                done = time.perf_counter()
                Shell().run(["sync", "--file-system", folder])
                on_disk = time.perf_counter()
                end()
                size = sum(p.stat().st_size for p in new.rglob("*") if p.is_file()) // facts.MEBIBYTE
                rows.append({"on": kind, "scale": scale, "round": number, "what": what,
                             "mib": size, "s": done - started, "s_until_on_disk": on_disk - started,
                             "load_average": facts.load_average()})  # fmt: skip
                print(rows[-1], flush=True)
                shutil.rmtree(new)
                shutil.rmtree(run.folder / new.name, ignore_errors=True)
    return rows


if __name__ == "__main__":
    main()
