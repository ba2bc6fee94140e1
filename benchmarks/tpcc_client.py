"""What the load tool costs: tpcc-like by pgbench beside the same transactions by a Python client.

    python benchmarks/tpcc_client.py --rounds 10 --seconds 10 --out data/benchmarks/tpcc_client.csv

Both call the functions of the workload on one server, with the same mix, ranges and number of clients, one after the other
in each round, in random order. The client is a process for each connection, with psycopg's prepared statements. The ratio
is pgbench's transactions per second to the client's: above 1, the client is the slower one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psycopg

from benchlib.load.tool import Job
from benchlib.load.tools import load_tool
from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.server.cluster import Cluster
from benchlib.server.templates import Templates, workshop
from benchlib.study.environment import written

MIX = {"new order": 45, "payment": 43, "order status": 4, "delivery": 4, "stock level": 4}


class Client:
    """A connection that draws and runs transactions, as the scripts of tpcc-like do."""

    def __init__(self, connection: psycopg.Connection[Any], scale: int, seed: int) -> None:
        self.connection, self.scale, self.draw = connection, scale, random.Random(seed)

    def nurand(self, a: int, low: int, high: int, c: int) -> int:
        """Return a number of the standard's uneven distribution."""
        return ((self.draw.randint(0, a) | self.draw.randint(low, high)) + c) % (high - low + 1) + low

    def place(self, percent: int) -> tuple[int, int]:
        """Return a warehouse, and another one in so many of 100 cases."""
        home = self.draw.randint(1, self.scale)
        far = self.scale > 1 and self.draw.randint(1, 100) <= percent
        return home, 1 + (home - 1 + self.draw.randint(1, self.scale - 1)) % self.scale if far else home

    def customer(self) -> tuple[int, int]:
        """Return a customer's number, and the number of a name or -1."""
        name = (
            self.nurand(255, 0, 999, 223)
            if self.draw.randint(1, 100) <= 60  # TPC-C, 2.5.1.2
            else -1
        )
        return self.nurand(1023, 1, 3000, 259), name

    def run(self) -> None:
        """Run one transaction."""
        (kind,) = self.draw.choices([*MIX], [*MIX.values()])
        district, call = self.draw.randint(1, 10), self.connection.execute
        if kind == "new order":
            (home, other), customer = self.place(10), self.nurand(1023, 1, 3000, 259)
            items = [self.nurand(8191, 1, 100_000, 7911) for _ in range(self.draw.randint(5, 15))]
            with self.connection.transaction(force_rollback=self.draw.randint(1, 100) == 1):
                call("SELECT new_order(%s, %s, %s, %s::int[], %s)", [home, district, customer, items, other])
        elif kind == "payment":
            (home, other), (customer, name) = self.place(15), self.customer()
            theirs = district if other == home else self.draw.randint(1, 10)
            cents = self.draw.randint(100, 500_000)
            words = [home, district, other, theirs, customer, name, cents]
            call("SELECT payment(%s, %s, %s, %s, %s, %s, %s / 100.0)", words)
        elif kind == "order status":
            home, (customer, name) = self.draw.randint(1, self.scale), self.customer()
            call("SELECT order_status(%s, %s, %s, %s)", [home, district, customer, name])
        elif kind == "delivery":
            call(
                "SELECT delivery(%s, %s)", [self.draw.randint(1, self.scale), self.draw.randint(1, 10)]
            ).fetchall()
        else:
            call(
                "SELECT stock_level(%s, %s, %s)",
                [self.draw.randint(1, self.scale), district, self.draw.randint(10, 20)],
            )


def client(conninfo: dict[str, Any], scale: int, seed: int, seconds: float) -> int:
    """Run transactions for so long; return their number."""
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        mine, done, end = Client(connection, scale, seed), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            mine.run()
            done += 1
    return done


def by_client(cluster: Cluster, scale: int, clients: int, seed: int, seconds: int) -> float:
    """Return the transactions per second of the Python client."""
    there = cluster.connection
    conninfo = {"host": there.host, "port": there.port, "user": there.user, "dbname": there.dbname}
    with multiprocessing.get_context("spawn").Pool(clients) as pool:
        pool.starmap(client, [(conninfo, scale, n, 0.2) for n in range(clients)])  # imports and connects
        jobs = [(conninfo, scale, seed * 1000 + n, seconds) for n in range(clients)]
        return sum(pool.starmap(client, jobs)) / seconds


def by_pgbench(
    cluster: Cluster, templates: Templates, scale: int, clients: int, seed: int, seconds: int
) -> float:
    """Return the transactions per second of pgbench."""
    work, tool = load_workload("tpcc-like"), load_tool("pgbench", templates.pgbench())
    load = Load(clients=clients, threads=min(clients, 2), duration_s=seconds, protocol="prepared")
    scripts = written(work, templates.run.folder, templates.shell)
    argv = tool.argv(Job(cluster.connection, work, load, scale, seed, scripts))
    done = templates.shell.run(argv, timeout_s=seconds + 60)
    return float(tool.report(done.stdout, done.stderr, done.returncode, argv)["tps"])


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--scale", type=int, default=2, help="warehouses")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with workshop("a benchmark of load tools", options.scale, print) as templates:
        cluster = templates.loaded(Level(), load_workload("tpcc-like"))
        cluster.configure({"synchronous_commit": "off", "shared_buffers": "512MB"})
        cluster.start()
        try:
            for number in range(1, options.rounds + 1):
                drivers = {
                    "pgbench": lambda n: by_pgbench(
                        cluster, templates, options.scale, options.clients, n, options.seconds
                    ),
                    "client": lambda n: by_client(
                        cluster, options.scale, options.clients, n, options.seconds
                    ),
                }
                row: dict[str, Any] = {"round": number}
                for name in random.Random(number).sample([*drivers], 2):
                    row[name] = drivers[name](number)
                rows.append(row)
                print(
                    f"round {number}: pgbench {row['pgbench']:.0f}, client {row['client']:.0f} tps",
                    flush=True,
                )
        finally:
            cluster.stop()
    frame = pd.DataFrame(rows, columns=["round", "pgbench", "client"])
    if options.out:
        frame.to_csv(options.out, index=False)
    ratios = np.log(frame["pgbench"] / frame["client"])
    half = 1.96 * ratios.std(ddof=1) / len(ratios) ** 0.5
    low, middle, high = np.exp([ratios.mean() - half, ratios.mean(), ratios.mean() + half])
    print(
        f"pgbench / client: {middle:.2f} [{low:.2f}, {high:.2f}] in {len(frame)} rounds of {options.seconds} s"
    )


if __name__ == "__main__":
    main()
