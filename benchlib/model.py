"""The nouns of the suite, as validated, immutable data in plain JSON types.

A *level* is one treatment: a declarative patch over what the study would run
otherwise. A *factor* is a question with its levels, a *workload* says what the load
does and what must hold afterwards, and a *study* is all of that with its ordered
trials and where they ran. The words are the same in notebooks, data files and pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from benchlib.design import Trial

SettingValue = bool | int | float | str
"""What a server parameter may be set to; written to the file as PostgreSQL spells it."""

Protocol = Literal["simple", "extended", "prepared"]
Arrangement = Literal["standing", "fresh"]

# any beginning that tells them apart will do for PostgreSQL
_OFF = frozenset({"0", "of", "off", *("false"[:n] for n in range(1, 6)), "n", "no"})
_ON = frozenset({"1", "on", *("true"[:n] for n in range(1, 5)), "y", "ye", "yes"})
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")


class Model(BaseModel):
    """Base of all data here: immutable, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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


Clients = Annotated[int, Field(ge=1, le=100_000)]
Rate = Annotated[float, Field(gt=0)]
NotEmpty = Annotated[str, Field(min_length=1)]
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], int | float | NotEmpty]


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


def _version_text(value: object) -> object:
    """A major version may be a number; 16.10 as a number is 16.1, so a decimal one is refused."""
    if isinstance(value, float):
        raise ValueError(f'write the version as text, "{value}": as a number its last zeros are lost')
    return str(value) if isinstance(value, int) else value


def _setting_names(settings: dict[str, SettingValue]) -> dict[str, SettingValue]:
    """Names in lower case, since PostgreSQL does not tell case apart; each once, each a name."""
    found: dict[str, SettingValue] = {}
    for name, value in settings.items():
        if not _SETTING.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a server parameter")
        if name.lower() in found:
            raise ValueError(f"{name.lower()} is there twice")
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"{name}: a value cannot hold a zero byte")
        found[name.lower()] = value
    return found


class LoadPatch(Model):
    """What a level changes of the study's load; what it leaves out stays."""

    clients: Clients | None = None
    threads: Clients | None = None
    protocol: Protocol | None = None
    rate: Rate | None = None
    variables: Variables | None = None


def _patched(load: dict[str, Any], patch: LoadPatch) -> dict[str, Any]:
    """A load with what a patch changes; of the variables, those that the patch names."""
    changes = patch.model_dump(exclude_none=True)
    if "variables" in changes:
        changes["variables"] = {**(load["variables"] or {}), **changes["variables"]}
    return {**load, **changes}


class Level(Model):
    """One treatment: what it changes of what the study would run otherwise.

    ``postgres`` names an installation (a version such as ``"16"``, or the folder of its
    binaries), ``settings`` are server parameters, ``initdb`` extra options of initdb,
    ``load`` what changes of the load. ``replication``, ``storage``, ``host`` and
    ``target`` belong to the vocabulary too; a study that names one is refused until the
    lever for it exists.
    """

    postgres: Annotated[str | None, BeforeValidator(_version_text)] = None
    settings: Annotated[dict[str, SettingValue], AfterValidator(_setting_names)] = {}
    initdb: tuple[str, ...] = ()
    load: LoadPatch = LoadPatch()
    replication: dict[str, Any] | None = None
    storage: dict[str, Any] | None = None
    host: dict[str, Any] | None = None
    target: str | None = None

    def over(self, base: Level) -> Level:
        """This level as a patch over ``base``: its settings and load win, the rest of base stays."""
        patched = {k: v for k, v in self.model_dump(exclude_unset=True).items() if v not in (None, (), {})}
        patched["settings"] = {**base.settings, **self.settings}
        patched["load"] = _patched(base.load.model_dump(), self.load)
        return Level.model_validate({**base.model_dump(), **patched})


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
    a study without them runs all its blocks.
    """

    factor: Factor
    base: Level = Level()
    workload: Workload
    load: Load
    scale: Annotated[int, Field(ge=1, le=1_000_000)]
    arrangement: Arrangement = "standing"
    rebuild_every: Annotated[int, Field(ge=1)] = 2
    seed: int
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.03
    metric: str = "tps"
    looks: tuple[int, ...] = ()

    def level(self, name: str) -> Level:
        """A level as it runs: its patch over the study's base."""
        return self.factor.levels[name].over(self.base)

    def level_load(self, name: str) -> Load:
        """The load that a level is run with."""
        return Load.model_validate(_patched(self.load.model_dump(), self.level(name).load))


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
    epoch; ``settings`` is what the server itself said it ran with.
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
    error: str | None = None
    error_kind: str | None = None


def is_off(value: object) -> bool:
    """Whether a server parameter's value means off, as PostgreSQL reads booleans."""
    return str(value).strip().lower() in _OFF


def is_on(value: object) -> bool:
    """Whether a server parameter's value means on, as PostgreSQL reads booleans."""
    return str(value).strip().lower() in _ON


def durability_loss(settings: Mapping[str, SettingValue]) -> str | None:
    """What a crash may cost with these settings, in a few words; None when nothing is given up.

    Source: PostgreSQL documentation, "Reliability and the Write-Ahead Log" and the
    descriptions of ``fsync``, ``full_page_writes`` and ``synchronous_commit``.
    """
    off = {name.lower() for name, value in settings.items() if is_off(value)}
    losses = []
    if "fsync" in off:
        losses.append("a power cut can corrupt the whole cluster (fsync = off)")
    if "full_page_writes" in off:
        losses.append("a power cut can leave torn pages (full_page_writes = off)")
    if "synchronous_commit" in off:
        losses.append("a crash loses the latest acknowledged commits (synchronous_commit = off)")
    return "; ".join(losses) or None


_MEMORY_SHARE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*of\s+memory\s*$", re.IGNORECASE)


def resolve_memory_shares(settings: Mapping[str, SettingValue], memory_bytes: int) -> dict[str, SettingValue]:
    """Settings such as ``"25 % of memory"`` as whole megabytes of this machine's memory."""
    resolved: dict[str, SettingValue] = {}
    for name, value in settings.items():
        share = _MEMORY_SHARE.match(value) if isinstance(value, str) else None
        resolved[name] = value
        if share:
            resolved[name] = f"{max(1, int(memory_bytes * float(share.group(1)) / 100) >> 20)}MB"
    return resolved
