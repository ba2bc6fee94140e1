"""A trial of a workload on a temporary server: each script once, its plans and its invariant."""

import contextlib
import re
from collections.abc import Callable, Iterator

import psycopg

from benchlib.errors import ParseError, TrialError
from benchlib.load.tool import Job
from benchlib.load.tools import load_tool
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.plan.workload import Workload
from benchlib.server.cluster import Cluster
from benchlib.server.templates import workshop
from benchlib.study.bench import check_invariant
from benchlib.study.environment import build, written

_ONCE = Load(clients=1, threads=1, duration_s=1)
_LONG_LIST = re.compile(r"(ARRAY\[[^]]{40})[^]]{40,}(?=\])")
_LOGGED = re.compile(r"LOG:  statement: (.*(?:\n\t.*)*)")


def try_scripts(
    workload: Workload, postgres: str | None, tell: Callable[[str], None]
) -> Iterator[tuple[str, list[str]]]:
    """Run each script once at scale 1; yield its error (or "") and its statements' plans.

    ``postgres``: the installation, as in a level.

    Raises:
        BenchlibError: the data cannot be loaded or vacuumed.

    """
    what = f"check of workload “{workload.name}”"
    logging = Level(postgres=postgres, settings={"log_statement": "all"})
    with (
        workshop(what, 1, tell) as templates,
        contextlib.closing(build(logging, workload, templates.run.folder / "c1", templates)) as environment,
    ):
        environment.settle()
        assert environment.site
        server, tool = environment.site.cluster, load_tool(workload.tool, templates.pgbench())
        for number, script in enumerate(written(workload, templates.run.folder, templates.shell)):
            count, error, log = workload.invariant.count, "", ""
            argv = tool.argv(Job(server.connection, workload, _ONCE, 1, 1, [script]))
            argv = ["--transactions=1" if word == "--time=1" else word for word in argv]
            try:
                before = int(server.value(count)) if count else None
                offset = server.log_size()
                done = environment.client.run(argv, timeout_s=tool.limit_s(_ONCE))
                log = server.log_text(offset)
                tool.report(done.stdout, done.stderr, done.returncode, argv)
                ran = [{"transactions": int(other == number)} for other in range(len(workload.scripts))]
                check_invariant(server, workload, before, {"transactions": 1, "scripts": ran})
            except (ParseError, TrialError) as reason:
                error = str(reason)
            yield error, _plans(server, log)


def _plans(server: Cluster, log: str) -> list[str]:
    plans = []
    with server.connect() as connection:
        for statement in dict.fromkeys(_LOGGED.findall(log)):
            with contextlib.suppress(psycopg.Error):
                # prepared: refuses several statements in one
                rows = connection.execute(f"EXPLAIN {statement}", prepare=True).fetchall()
                shown = _LONG_LIST.sub(r"\1…", statement)
                plans.append("\n  ".join([shown, *(str(row[0]) for row in rows)]))
    return plans
