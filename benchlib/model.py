"""The nouns of the suite, as validated, immutable data in plain JSON types.

A *level* is one treatment (see :mod:`benchlib.level`). A *factor* is a question with its
levels, a *workload* says what the load does and what must hold afterwards, and a *study* is
all of that with its ordered trials and where they ran. The words are the same in notebooks,
data files and pages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from benchlib.design import Trial
from benchlib.level import Clients, Level, Model, Protocol, Rate, Variables, patched_load

Arrangement = Literal["standing", "fresh"]


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


class Invariant(Model):
    """What must hold after a trial, checked in the database itself.

    ``count`` is a query for one number that grows by ``per_transaction`` with every
    acknowledged transaction; ``violations`` one that counts rows that must not exist.
    """

    count: str | None = None
    per_transaction: int = 1
    violations: str | None = None


class Workload(Model):
    """Scripts with weights, how their data is loaded, and an invariant.

    ``pgbench_tables`` says that ``pgbench -i`` loads the data (sized by the scale
    factor); ``load_sql`` is run after it. ``vacuum`` names the tables that are brought
    back to a known state between trials, ``truncate`` those that are emptied.
    """

    name: str
    title: str
    prose: str = ""
    pgbench_tables: bool = True
    load_sql: str = ""
    scripts: tuple[Script, ...] = Field(min_length=1, max_length=128)  # pgbench takes no more
    vacuum: tuple[str, ...] = ()
    truncate: tuple[str, ...] = ()
    invariant: Invariant = Invariant()

    @model_validator(mode="after")
    def _something_runs(self) -> Self:
        if not any(script.weight for script in self.scripts):
            raise ValueError("no script has a weight above 0")
        return self


class Load(Model):
    """How hard, and for how long, the load tool drives the server. Times in seconds.

    ``variables`` are what the workload's scripts may use as ``:name``.
    """

    clients: Clients = 4
    threads: Clients = 2
    protocol: Protocol = "simple"
    duration_s: Annotated[int, Field(ge=1, le=7 * 86400)] = 15
    warmup_s: Annotated[int, Field(ge=0, le=86400)] = 2
    rate: Rate | None = None
    latency_limit_ms: Annotated[float, Field(gt=0)] | None = None
    max_tries: Annotated[int, Field(ge=1)] | None = None
    connect_per_transaction: bool = False
    report_per_command: bool = False
    transaction_log: bool = False
    variables: Variables = {}


class Factor(Model):
    """A question, its levels in the order in which they are shown, and the baseline among them.

    ``controls`` are further arms of the baseline, each a cluster of its own: the A/A
    comparison that measures the noise. They are levels like any other, so the names
    are in ``levels`` too.
    """

    question: str
    baseline: str
    controls: tuple[str, ...] = ()
    levels: dict[str, Level]

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for name in (self.baseline, *self.controls):
            if name not in self.levels:
                raise ValueError(f"'{name}' is not among the levels: {', '.join(self.levels)}")
        if len(self.levels) < 2:
            raise ValueError("a factor needs at least two levels")
        for name in self.levels:
            if not name.strip() or len(name) > 80 or not name.isprintable():
                raise ValueError(f"level name {name!r}: want 1 to 80 printable characters")
        return self


class Plan(Model):
    """All that decides what a study runs: two studies with one plan are one study.

    ``looks``, where there are any, are the numbers of blocks after which it may stop early;
    a study without them runs all its blocks. ``workloads`` are those that levels name.
    """

    factor: Factor
    base: Level = Level()
    workload: Workload
    workloads: dict[str, Workload] = {}
    load: Load
    scale: Annotated[int, Field(ge=1, le=1_000_000)]
    arrangement: Arrangement = "standing"
    rebuild_every: Annotated[int, Field(ge=1)] = 2
    seed: int
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.03
    metric: str = "tps"
    looks: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _levels_can_run(self) -> Self:
        for name in self.factor.levels:
            try:
                level = self.level(name)
            except ValidationError as reason:
                raise ValueError(f"level “{name}”: {reason.errors()[0]['msg']}") from None
            if level.workload is not None and level.workload not in self.workloads:
                raise ValueError(f"level “{name}” names the workload '{level.workload}', which is not here")
        return self

    def level(self, name: str) -> Level:
        """A level as it runs: its patch over the study's base."""
        return self.factor.levels[name].over(self.base)

    def level_workload(self, name: str) -> Workload:
        """The workload that a level is run with."""
        named = self.level(name).workload
        return self.workload if named is None else self.workloads[named]

    def level_load(self, name: str) -> Load:
        """The load that a level is run with."""
        return Load.model_validate(patched_load(self.load.model_dump(), self.level(name).load))


class Study(Model):
    """A plan, its ordered trials and the provenance of all of it."""

    format: Literal[1] = 1
    name: str
    title: str
    notebook: str | None = None
    parameters: dict[str, Any] = {}
    plan: Plan
    trials: tuple[Trial, ...]
    provenance: dict[str, Any] = {}

    @property
    def blocks(self) -> int:
        """How many blocks the design has."""
        return max((t.block for t in self.trials), default=0)


class Measurement(Model):
    """What one trial left, beside its raw files: facts of the run, never derived figures.

    ``error`` is the reason that ended the trial, or null. Times are seconds since the
    epoch; ``settings`` is what the server itself said it ran with, ``host`` what the kernel
    said of the tunables, ``warnings`` what a reader has to know of this trial.
    """

    trial: Trial
    started_s: float
    finished_s: float
    load_argv: tuple[str, ...] = ()
    load_returncode: int | None = None
    load_wall_s: float | None = None
    load_cpu_s: float | None = None
    server_version: str | None = None
    settings: dict[str, str] = {}
    host: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    error: str | None = None
    error_kind: str | None = None
