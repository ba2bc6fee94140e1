"""A workload: what a load tool runs, how its data are loaded, and what must hold afterwards."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from benchlib.plan.level import Model, Values

Tool = Literal["pgbench", "pgbench-init", "sysbench"]

_EMPTY_MIB = 60
_PGBENCH_MIB = 16  # pgbench's tables and indexes for one unit of scale (documentation: about 15 MB)
_SCALE = re.compile(r"(?<!:):scale\b")
_EXPLAINED = re.compile(
    r"(?:\s|--[^\n]*\n|\()*(?:SELECT|WITH|VALUES|TABLE|INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE
)


def _explainable(sql: str) -> str:
    if not _EXPLAINED.match(sql):
        raise ValueError(
            "only a query, INSERT, UPDATE, DELETE or MERGE has a plan; what has to go before belongs into 'explain_after'"
        )
    return sql


def at_scale(sql: str, scale: int) -> str:
    """A statement of a workload with the scale for each ``:scale``."""
    return _SCALE.sub(str(scale), sql)


class Script(Model):
    """One script of a workload: pgbench's built-in by name, or SQL text, with its weight."""

    builtin: Literal["tpcb-like", "simple-update", "select-only"] | None = None
    sql: str | None = None
    weight: Annotated[int, Field(ge=0, le=1_000_000)] = 1

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.builtin is None) == (self.sql is None):
            raise ValueError("a script has either 'builtin' or 'sql'")
        return self


class Beside(Model):
    """A script that ``clients`` run over and over beside the load, and whose transactions do not count.

    It has pgbench's tables, the scale and the load's variables as other scripts do. ``mib`` is how much disk what it leaves
    takes at most.
    """

    sql: str
    clients: PositiveInt = 1
    mib: NonNegativeInt = 0


class Invariant(Model):
    """What must hold after a trial, checked in the database itself.

    ``count`` is a query for one number that grows by ``per_transaction`` with every
    acknowledged transaction; ``violations`` one that counts rows that must not exist. Where
    the scripts of a workload differ, ``per_transaction`` has a number for each of them.
    """

    count: str | None = None
    per_transaction: int | tuple[int, ...] = 1
    violations: str | None = None

    def growth(self, report: Values) -> range:
        """By how much the count may have grown, given what pgbench reports of ``transactions`` and ``scripts``.

        More than one number where the counts of the scripts are short of the total, which is exact:
        pgbench's threads share the counters of a script without a lock (pgbench.c, processXactStats), so now and
        then one is lost, and whichever script it was of counts.
        """
        total, each = int(report["transactions"]), self.per_transaction
        if isinstance(each, int):
            return range(total * each, total * each + 1)
        ran = [row["transactions"] for row in report["scripts"]] or [total]
        counted = sum(rows * times for rows, times in zip(each, ran, strict=True))
        lost = total - sum(ran)
        return range(counted + lost * min(each), counted + lost * max(each) + 1)


class Sysbench(Model):
    """One of sysbench's own tests: how many tables it has, and how many rows each for one unit of scale."""

    test: Literal["oltp_write_only", "oltp_read_write", "oltp_read_only"]
    tables: PositiveInt
    rows_per_scale: PositiveInt


class Workload(Model):
    """What a load tool runs, how its data are loaded, and an invariant.

    pgbench runs ``scripts`` by their weights, sysbench the test that ``sysbench`` names,
    and for ``pgbench-init`` loading pgbench's tables is itself what is measured.

    ``pgbench_tables`` says that ``pgbench -i`` loads the data (sized by the scale
    factor, with ``fillfactor`` percent of each page filled); ``load_sql`` is run after it, with the
    scale for ``:scale``, and takes ``mib_per_scale`` of disk. ``unanalyzed_sql`` is run last: statistics know nothing
    of what it changes. ``vacuum`` names the tables that are brought back to a known state, and analysed, before and
    between trials (an empty name: all), ``truncate`` those that are emptied.

    What is ``beside`` runs from before a trial's warm-up until its load is over.

    ``explain`` are the statements whose plans are kept. They are run, after ``explain_after``, and rolled back.
    """

    name: Annotated[str, Field(pattern=r"^[^\W_][\w .+=-]{0,79}$")]
    title: str
    prose: str = ""
    tool: Tool = "pgbench"
    pgbench_tables: bool = True
    fillfactor: Annotated[int, Field(ge=10, le=100)] = 100
    load_sql: str = ""
    unanalyzed_sql: str = ""
    mib_per_scale: NonNegativeInt = 0
    scripts: Annotated[tuple[Script, ...], Field(max_length=128)] = ()  # pgbench takes no more
    beside: tuple[Beside, ...] = ()
    sysbench: Sysbench | None = None
    vacuum: tuple[str, ...] = ()
    truncate: tuple[str, ...] = ()
    explain_after: str = ""
    explain: tuple[Annotated[str, AfterValidator(_explainable)], ...] = ()
    invariant: Invariant = Invariant()

    @model_validator(mode="after")
    def _something_runs(self) -> Self:
        if self.tool == "pgbench" and not any(script.weight for script in self.scripts):
            raise ValueError("no script has a weight above 0")
        if self.tool != "pgbench" and (self.scripts or self.pgbench_tables):
            raise ValueError(f"{self.tool} brings its own tables and runs no scripts")
        if (self.tool == "sysbench") != (self.sysbench is not None):
            raise ValueError("the tool 'sysbench' and a section 'sysbench' go together")
        rows = self.invariant.per_transaction
        if isinstance(rows, tuple) and len(rows) != len(self.scripts):
            raise ValueError("'per_transaction' has one number, or one for each script")
        return self

    @property
    def contents(self) -> tuple[object, ...]:
        """What decides the data at a scale: workloads in which it is the same share what was loaded."""
        made = self.sysbench and (self.sysbench.tables, self.sysbench.rows_per_scale)
        return self.pgbench_tables and self.fillfactor, made, self.load_sql, self.unanalyzed_sql

    @property
    def writes_always(self) -> bool:
        """Whether every transaction is known to write: each adds to what the invariant counts."""
        rows = self.invariant.per_transaction
        each = rows if isinstance(rows, tuple) else (rows,)
        return self.invariant.count is not None and all(each)

    @property
    def label(self) -> str:
        """Its name, and how many clients run beside its load."""
        clients = self.clients_beside
        more = f"{clients} client{'s' if clients > 1 else ''} not counted"
        return f"{self.name} beside {more}" if clients else self.name

    @property
    def clients_beside(self) -> int:
        """How many clients run beside its load."""
        return sum(beside.clients for beside in self.beside)

    def data_mib(self, scale: int) -> int:
        """About how much disk a cluster with the data takes, its WAL aside, in MiB."""
        return _EMPTY_MIB + scale * (self.mib_per_scale + (_PGBENCH_MIB if self.pgbench_tables else 0))
