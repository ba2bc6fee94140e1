"""A trial of a workload on a temporary server."""

import contextlib
import re
from collections.abc import Callable, Iterator

from benchlib.errors import ParseError, TrialError
from benchlib.load.tool import Job
from benchlib.load.tools import load_tool
from benchlib.plan.level import Level
from benchlib.plan.workload import Workload
from benchlib.server.datasets import pinned
from benchlib.server.templates import workshop
from benchlib.study.bench import check_invariant, count_rows
from benchlib.study.environment import build, written
from benchlib.study.query_plans import ONCE, explained, run_once

_LONG_LIST = re.compile(r"(ARRAY\[[^]]{40})[^]]{40,}(?=\])")


def try_scripts(
    workload: Workload, postgres: str | None, tell: Callable[[str], None]
) -> Iterator[tuple[str, list[str]]]:
    """Run each script once at scale 1; yield its error (or "") and plans.

    Raises:
        BenchlibError: the data cannot be loaded or vacuumed.

    """
    what = f"check of workload “{workload.name}”"
    if workload.data:
        workload = workload.changed(data=pinned(workload.data, None, tell))
    with (
        workshop(what, 1, tell) as templates,
        contextlib.closing(
            build(Level(postgres=postgres), workload, templates.run.folder / "c1", templates)
        ) as environment,
    ):
        environment.settle()
        assert environment.site
        server, tool = environment.site.cluster, load_tool(workload.tool, templates.pgbench())
        for number, script in enumerate(written(workload, templates.run.folder, templates.shell)):
            error, statements = "", list[str]()
            job = Job(server.connection, workload, ONCE, 1, 1, [script])
            try:
                before = count_rows(server, workload)
                error, statements = run_once(server, environment.client, tool, job)
                ran = [{"transactions": int(other == number)} for other in range(len(workload.scripts))]
                if not error:
                    check_invariant(server, workload, before, {"transactions": 1, "scripts": ran})
            except (ParseError, TrialError) as reason:
                error = str(reason)
            plans = explained(server, statements)
            shown = [(_LONG_LIST.sub(r"\1…", statement), rows) for statement, rows in plans if rows]
            yield error, ["\n  ".join([statement, *map(str, rows)]) for statement, rows in shown]
