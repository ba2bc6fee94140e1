"""A workload: what a load tool runs."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from benchlib.plan.level import Model, Values, text_is

Tool = Literal["pgbench", "pgbench-init", "sysbench"]

HIDDEN = "-- private"
"""Stands for SQL that is not published."""
_EMPTY_MIB = 60
_PGBENCH_MIB = 16  # pgbench's tables and indexes for one unit of scale (documentation: about 15 MB)
_SCALE = re.compile(r"(?<!:):scale\b")
_EXPLAINED = re.compile(
    r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/|\()*(?:SELECT|WITH|VALUES|TABLE|INSERT|UPDATE|DELETE|MERGE)\b",
    re.IGNORECASE,
)


def explainable(sql: str) -> bool:
    """Return whether a statement has a plan."""
    return bool(_EXPLAINED.match(sql))


def _explainable(sql: str) -> str:
    if not explainable(sql):
        raise ValueError(
            "only a query, INSERT, UPDATE, DELETE or MERGE has a plan; put other statements into 'explain_after'"
        )
    return sql


def at_scale(sql: str, scale: int) -> str:
    """Put the scale in place of ``:scale``."""
    return _SCALE.sub(str(scale), sql)


class Script(Model):
    """A pgbench built-in or SQL text."""

    builtin: Literal["tpcb-like", "simple-update", "select-only"] | None = None
    sql: str | None = None
    title: str = ""
    weight: Annotated[int, Field(ge=0, le=1_000_000)] = 1

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.builtin is None) == (self.sql is None):
            raise ValueError("a script has either 'builtin' or 'sql'")
        return self


class Beside(Model):
    """A background script; it fills at most ``mib`` of disk."""

    sql: str
    clients: PositiveInt = 1
    mib: NonNegativeInt = 0


class Invariant(Model):
    """A condition that the database must meet after a trial.

    ``count`` is a query whose number grows by ``per_transaction``; ``violations`` counts rows that must not exist.
    """

    count: str | None = None
    per_transaction: int | tuple[int, ...] = 1
    violations: str | None = None

    def growth(self, report: Values) -> range:
        """Return the possible growth of the count, from pgbench's report.

        Counts of scripts can miss some (pgbench.c, processXactStats).
        """
        total, growths = int(report["transactions"]), self.per_transaction
        if isinstance(growths, int):
            return range(total * growths, total * growths + 1)
        ran = [row["transactions"] for row in report["scripts"]] or [total]
        counted = sum(rows * times for rows, times in zip(growths, ran, strict=True))
        lost = total - sum(ran)
        return range(counted + lost * min(growths), counted + lost * max(growths) + 1)


class Counted(Model):
    """A metric: transactions of one script (from 1) per minute."""

    metric: Literal["new_orders_per_minute"]
    script: PositiveInt = 1


class Data(Model):
    """A data set: a dump's ``file``, a running ``service``, or a target's ``template`` database.

    ``tables`` are of the service, ``sha256`` and ``mib`` of the dump; ``superuser``: restored by one, for what needs it.
    """

    file: str | None = None
    service: str | None = None
    tables: tuple[str, ...] = ()
    template: str | None = None
    sha256: str = ""
    mib: NonNegativeInt = 0
    superuser: bool = False
    _text = text_is("file")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.file, self.service, self.template))) != 1:
            raise ValueError("data have one source: 'file' (a dump), 'service' or 'template'")
        if self.tables and not self.service:
            raise ValueError("'tables' belong to a 'service'")
        if self.superuser and self.template:
            raise ValueError("'superuser' belongs to a dump, a template is copied")
        return self


class Sysbench(Model):
    """A sysbench test and its tables."""

    test: Literal["oltp_write_only", "oltp_read_write", "oltp_read_only"]
    tables: PositiveInt
    rows_per_scale: PositiveInt


class Workload(Model):
    """A workload of one load tool.

    - ``data``: restored once and copied; ``load_sql`` runs after it.
    - ``pgbench_tables``: load with ``pgbench -i``, before ``load_sql`` (``mib_per_scale`` of disk).
    - ``unanalyzed_sql``: runs last; statistics do not include it.
    - ``vacuum``, ``truncate``: tables to clean between trials (``""``: all).
    - ``private``: its SQL is not published.
    - ``counted``: a metric beside tps. ``beside``: background load.
    - ``explain``: statements whose plans are saved, after ``explain_after``.
    """

    name: Annotated[str, Field(pattern=r"^[^\W_][\w .+=-]{0,79}$")]
    title: str
    prose: str = ""
    tool: Tool = "pgbench"
    data: Data | None = None
    pgbench_tables: bool = True
    fillfactor: Annotated[int, Field(ge=10, le=100)] = 100
    load_sql: str = ""
    unanalyzed_sql: str = ""
    mib_per_scale: NonNegativeInt = 0
    scripts: Annotated[tuple[Script, ...], Field(max_length=128)] = ()  # pgbench takes no more
    counted: Counted | None = None
    beside: tuple[Beside, ...] = ()
    sysbench: Sysbench | None = None
    vacuum: tuple[str, ...] = ()
    truncate: tuple[str, ...] = ()
    explain_after: str = ""
    explain: tuple[Annotated[str, AfterValidator(_explainable)], ...] = ()
    invariant: Invariant = Invariant()
    private: bool = False

    @model_validator(mode="before")
    @classmethod
    def _own_tables(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("data"):
            return {"pgbench_tables": False, **value}
        return value

    @model_validator(mode="after")
    def _something_runs(self) -> Self:
        if self.tool == "pgbench" and not any(script.weight for script in self.scripts):
            raise ValueError("no script has a weight above 0")
        if self.tool != "pgbench" and (self.scripts or self.pgbench_tables):
            raise ValueError(f"{self.tool} brings its own tables; leave out 'scripts' and 'pgbench_tables'")
        if (self.tool == "sysbench") != (self.sysbench is not None):
            raise ValueError("the tool 'sysbench' and a section 'sysbench' go together")
        if self.counted and self.counted.script > len(self.scripts):
            raise ValueError(f"'counted' names script {self.counted.script} of {len(self.scripts)}")
        rows = self.invariant.per_transaction
        if isinstance(rows, tuple) and len(rows) != len(self.scripts):
            raise ValueError("'per_transaction' has one number, or one for each script")
        return self

    @property
    def queries(self) -> tuple[str, ...]:
        """Return a unique name for each script."""
        names = [one.title or one.builtin or f"script {n}" for n, one in enumerate(self.scripts, 1)]
        return tuple(
            f"{name} (script {n})" if names.count(name) > 1 else name for n, name in enumerate(names, 1)
        )

    @property
    def by_query(self) -> bool:
        """Return whether results by script matter."""
        count = sum(script.sql is not None for script in self.scripts)
        return count > 1 or (count == 1 and self.data is not None)

    @property
    def contents(self) -> tuple[object, ...]:
        """Return a key of the loaded data: equal keys share a template."""
        made = self.sysbench and (self.sysbench.tables, self.sysbench.rows_per_scale)
        return self.pgbench_tables and self.fillfactor, made, self.data, self.load_sql, self.unanalyzed_sql

    @property
    def template(self) -> str | None:
        """Return the external database to copy."""
        return self.data.template if self.data else None

    @property
    def writes_always(self) -> bool:
        """Return whether all transactions raise the count."""
        rows = self.invariant.per_transaction
        growths = rows if isinstance(rows, tuple) else (rows,)
        return self.invariant.count is not None and all(growths)

    @property
    def label(self) -> str:
        """Return the name, with background clients."""
        clients = self.clients_beside
        more = f"{clients} client{'s' if clients > 1 else ''} not counted"
        return f"{self.name} beside {more}" if clients else self.name

    @property
    def clients_beside(self) -> int:
        """Return the number of background clients."""
        return sum(beside.clients for beside in self.beside)

    def published(self) -> Self:
        """Return the workload without folders and addresses, or private SQL."""
        work, data = self, self.data
        if data and data.file:
            work = work.changed(data=data.changed(file=data.file.rpartition("/")[2]))
        elif data and data.service and re.search("[=/]", data.service):
            work = work.changed(data=data.changed(service="a server"))
        if not self.private:
            return work
        scripts = tuple(one.changed(sql=(one.title or HIDDEN) if one.sql else None) for one in self.scripts)
        beside = tuple(one.changed(sql=HIDDEN) for one in self.beside)
        shown = {"load_sql", "unanalyzed_sql", "explain_after"}
        hidden = {name: HIDDEN if getattr(self, name) else "" for name in shown}
        return work.changed(scripts=scripts, beside=beside, explain=(), invariant=Invariant(), **hidden)

    def data_mib(self, scale: int) -> int:
        """Return the approximate size in MiB, without WAL."""
        return (
            _EMPTY_MIB
            + (self.data.mib if self.data else 0)
            + scale * (self.mib_per_scale + (_PGBENCH_MIB if self.pgbench_tables else 0))
        )
