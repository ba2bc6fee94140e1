"""Scripts that run once, and the plans of their statements."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from benchlib.errors import BenchlibError, ParseError, TrialError
from benchlib.host import files
from benchlib.host.shell import Shell
from benchlib.load.tool import Job, LoadTool
from benchlib.load.workloads.sql import rolled_back
from benchlib.plan.model import Load
from benchlib.plan.workload import explainable
from benchlib.server.cluster import Cluster
from benchlib.server.server import Server
from benchlib.study.environment import Environment
from benchlib.study.records import Query, QueryPlans

ONCE = Load(clients=1, threads=1, duration_s=1)
"""One client, for :func:`run_once`."""
_LIMIT_S = 60
"""The longest time for a statement that only its plan is wanted of, in seconds."""
_LOGGED = re.compile(r"LOG:  statement: (.*(?:\n\t.*)*)")


def run_once(
    server: Cluster, client: Shell, tool: LoadTool, job: Job, options: str = ""
) -> tuple[str, list[str]]:
    """Run one transaction; return the error (or "") and the logged statements.

    ``options`` are for ``PGOPTIONS``.
    """
    argv = ["--transactions=1" if word == "--time=1" else word for word in tool.argv(job)]
    options = f"{client.environment.get('PGOPTIONS', '')} {options}".strip()
    client = replace(client, environment={**client.environment, "PGOPTIONS": options})
    error = ""
    with _logging(server):
        offset = server.log_size()
        try:
            done = client.run(argv, timeout_s=tool.limit_s(job.load))
            tool.report(done.stdout, done.stderr, done.returncode, argv)
        except (ParseError, TrialError) as reason:
            error = str(reason)
        logged = (text.replace("\n\t", "\n") for text in _LOGGED.findall(server.log_text(offset)))
        return error, list(dict.fromkeys(logged))


@contextlib.contextmanager
def _logging(server: Cluster) -> Iterator[None]:
    """Let new sessions of the load's role log their statements, which it may not set itself."""
    setting = f"ALTER ROLE {server.role} IN DATABASE {server.database} {{}}"
    writable = "SET default_transaction_read_only = off"
    server.execute(writable, setting.format("SET log_statement = 'all'"))
    try:
        yield
    finally:
        server.execute(writable, setting.format("RESET log_statement"))


def explained(
    server: Server, statements: Iterable[str], options: str = ""
) -> Iterator[tuple[str, list[Any] | None]]:
    """Yield statements with their ``EXPLAIN`` lines; None without a plan, or if refused."""
    with server.connect(as_load=True) as connection:
        for statement in statements:
            plan = None
            with contextlib.suppress(psycopg.Error):
                # prepared: refuses several statements in one
                rows = connection.execute(f"EXPLAIN {options} {statement}", prepare=True).fetchall()
                plan = [row[0] for row in rows]
            yield statement, plan


@contextlib.contextmanager
def explains_queries(environment: Environment, tool: LoadTool, job: Job, folder: Path) -> Iterator[None]:
    """Save each query's plans on exit; each script runs once and is rolled back."""
    yield
    assert environment.site
    server, records = environment.site.cluster, list[Query]()
    path = environment.run.folder / "once.sql"
    with environment.uncapped(), contextlib.suppress(BenchlibError, psycopg.Error):
        for query, script in zip(job.workload.queries, job.workload.scripts, strict=True):
            if script.sql is None:
                continue
            files.write(path, rolled_back(script.sql), mode=0o600)
            environment.client.own(path)
            single = replace(job, load=ONCE.changed(variables=job.load.variables), scripts=[(script, path)])
            limit = f"-c statement_timeout={_LIMIT_S}s"
            error, statements = run_once(server, environment.client, tool, single, limit)
            plans = list(explained(server, filter(explainable, statements), "(FORMAT JSON)"))
            known = not error and all(plan for _, plan in plans)
            rows = [{"statement": sql, "plan": plan[0][0]} for sql, plan in plans if plan and known]
            records.append(Query(query=query, statements=rows))
    QueryPlans(queries=records).write(folder)
