"""The nouns of the suite, as validated, immutable data in plain JSON types.

A *level* is one treatment (see :mod:`benchlib.plan.level`). A *factor* is a question with its
levels, a *workload* (:mod:`benchlib.plan.workload`) says what the load does, and a *study* is
all of that with its ordered trials and where they ran. The words are the same in notebooks,
data files and pages.
"""

import json
from collections.abc import Iterable
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from benchlib.plan.design import Trial, randomised_blocks
from benchlib.plan.level import Clients, Level, LoadHosts, Model, Open, Protocol, Rate, Variables, rate_at
from benchlib.plan.workload import Workload

CLIENTS = "clients"
"""What a load has for its number of sessions."""


class Load(Model):
    """How hard, and for how long, the load tool drives the server. Times in seconds.

    ``variables`` are what the workload's scripts may use as ``:name``. Meanwhile the server is
    asked ``waits_hz`` times a second what the load's sessions wait for (0: never). With ``fsync_test``
    the rate of flushes of the WAL's place is measured first, once for each place; it takes 16 s.
    The hosts ``generators`` (``from``) of a fleet share the load; without any the server's own host drives it.
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


class Factor(Model):
    """A question, its levels in the order in which they are shown, and the baseline among them.

    ``controls`` are further arms of the baseline, each a cluster of its own: the A/A
    comparison that measures the noise. They are levels like any other, so the names
    are in ``levels`` too.

    ``against`` names for a level another one to be compared with than the baseline; a level that others are
    compared with is itself compared only where it has an entry too. Where the levels are combinations of a grid,
    ``cells`` holds for each of them, the controls aside, its value of each dimension.
    """

    question: str
    baseline: str
    controls: tuple[str, ...] = ()
    levels: Annotated[dict[str, Level], Field(min_length=2)]
    against: dict[str, str] = {}
    cells: dict[str, dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _cells_of_a_grid(cls, data: Any) -> Any:
        """Older studies keep the grid alone: there a level's name is one value of each dimension, joined by commas."""
        if isinstance(data, dict) and "grid" in data:
            grid = data["grid"]
            cells = {", ".join(ends): dict(zip(grid, ends, strict=True)) for ends in product(*grid.values())}
            run = {name: cell for name, cell in cells.items() if name in data["levels"]}
            data = {key: value for key, value in data.items() if key != "grid"} | {"cells": run}
        return data

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for name in (self.baseline, *self.controls, *self.against, *self.against.values()):
            if name not in self.levels:
                known = ", ".join([*self.levels][:20])
                raise ValueError(f"'{name}' is not among the levels: {known}")
        for name in self.levels:
            if not name.strip() or len(name) > 80 or not name.isprintable():
                raise ValueError(f"level name {name!r}: want 1 to 80 printable characters")
        arms, ending = {self.baseline, *self.controls}, set[str]()
        for name in self.against:
            if name in arms:
                raise ValueError(f"against: '{name}' is the baseline or its control")
            chain, at = set[str](), name
            while at in self.against and at not in ending:  # each link is followed once in all
                if at in chain:
                    raise ValueError(f"against: '{name}' is in the end compared with itself")
                chain.add(at)
                at = self.against[at]
            ending |= chain
        return self

    def named(self, name: str) -> str | None:
        """The level of that name; of a grid the first that has all values that the name holds. None if there is none."""
        if name in self.levels:
            return name
        return next((level for level, cell in self.cells.items() if among(name, cell.values())), None)

    def pairs(self) -> dict[str, str]:
        """What each level that is compared is compared with."""
        references = set(self.against.values()) - set(self.against)
        return {
            name: self.against.get(name, self.baseline)
            for name in self.levels
            if name != self.baseline and name not in references
        }


def among(name: str, ends: Iterable[str]) -> bool:
    """Whether the parts of a name between commas are all among some values of a grid's dimensions."""
    return set(name.split(", ")) <= set(", ".join(ends).split(", "))


class Plan(Model):
    """All that decides what a study runs: two studies with one plan are one study.

    ``looks``, where there are any, are the numbers of blocks after which it may stop early;
    a study without them runs all its blocks. ``workloads`` are those that levels name.

    ``capacity_tps`` is what the baseline reached without a limit, where rates are shares of it. It is
    measured, not asked for: None until then.
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

    @model_validator(mode="after")
    def _levels_can_run(self) -> Self:
        for name in self.factor.levels:
            named = self.level(name).workload
            if named is not None and named not in self.workloads:
                raise ValueError(f"level “{name}” names the workload '{named}', which is not here")
        return self

    @property
    def stands_side_by_side(self) -> bool:
        """Whether a cluster of each level stands all the time: only where it serves more than one block."""
        return self.arrangement == "standing" and self.rebuild_every > 1

    @property
    def abroad(self) -> bool:
        """Whether some levels run on servers that are not ours."""
        return any(self.level(name).target for name in self.factor.levels)

    def period(self, block: int) -> int:
        """In which period, counted from 1, a block's clusters stay; a server that is not ours is never built anew."""
        if self.arrangement == "fresh":
            return block
        abroad = self.base.target or all(level.target for level in self.factor.levels.values())
        return 1 if abroad else (block - 1) // self.rebuild_every + 1

    def design(self, blocks: int) -> tuple[Trial, ...]:
        """The ordered trials: every level once per block."""
        return randomised_blocks(list(self.factor.levels), blocks, self.seed)

    def level(self, name: str) -> Level:
        """A level as it runs: its patch over the study's base."""
        return self.factor.levels[name].over(self.base)

    def level_workload(self, name: str) -> Workload:
        """The workload that a level is run with."""
        named = self.level(name).workload
        return self.workload if named is None else self.workloads[named]

    def level_load(self, name: str) -> Load:
        """The load that a level is run with; a rate is a share until the capacity is known."""
        load = Load.model_validate(self.level(name).load.over(self.load.model_dump()))
        if load.rate is None or self.capacity_tps is None:
            return load
        return load.changed(rate=rate_at(load.rate, self.capacity_tps))

    def strata(self) -> dict[str, str]:
        """For each level the name of its part: levels of one workload, or compared with each other, are in one."""
        parts = {name: self.level_workload(name).name for name in self.factor.levels}
        for name, other in self.factor.pairs().items():
            merged, into = parts[name], parts[other]
            parts = {level: into if part == merged else part for level, part in parts.items()}
        return parts

    def alike(self, setting: str) -> list[list[str]]:
        """The levels without the controls, those together that differ in one server parameter alone, or in ``clients`` and threads."""
        hidden = {"load": {"clients", "threads"}} if setting == CLIENTS else {"settings": {setting}}
        groups = dict[str, list[str]]()
        for name in self.factor.levels:
            if name not in self.factor.controls:
                rest = self.level(name).model_dump(mode="json", exclude=hidden)
                groups.setdefault(json.dumps(rest, sort_keys=True), []).append(name)
        return list(groups.values())

    def asked_rate(self, name: str) -> float | str | None:
        """The rate that was asked for at a level: transactions a second, or a share of the capacity."""
        return self.level(name).load.rate or self.load.rate

    def capacity_shares(self) -> list[str]:
        """The rates that are shares of the capacity, as they were asked for, each once."""
        rates = (self.asked_rate(name) for name in self.factor.levels)
        return list(dict.fromkeys(rate for rate in rates if isinstance(rate, str)))


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


class Declared(BaseModel, frozen=True):
    """What a notebook's parameters say beside its sizes, as its cell declares them; what one does not declare is empty.

    Levels, and the values of a grid's dimensions, are patches by name; ``answers`` are levels in a reader's words, ``lead``
    is the finding that a headline begins with, and ``panel`` is that of the index.
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
    baseline: str = ""
    controls: Annotated[int, Field(ge=0, le=5)] = 1
    against: dict[str, str] = {}
    shares_of: str = ""
    screen: bool = False
    metric: str = ""
    answers: dict[str, str] = {}
    lead: Literal["", "crashes", "clients", "gains"] = ""
    panel: Literal["changes", "costs", "hardware"] = "changes"
    caveat: str = ""
    hosts: Literal["sample", "fixed"] = "sample"

    @property
    def stated_caveat(self) -> str:
        """The limit that the notebook states itself, or that its profile states."""
        profile = self.profiles.get(self.profile, {})
        return (self.caveat or str(profile.get("caveat", ""))).rstrip(". ")


AS_RUN = "question_as_run"
"""The fact of a study's provenance that has the question which it was run with, where that was changed since."""


class Study(Model):
    """A plan, its ordered trials and the provenance of all of it.

    ``left_out`` are levels that were asked for and cannot be run on this machine, each with the reason.
    ``levels_in_words`` has what each level runs with by the heading of a table's row, the same headings for all, and
    ``crash_costs`` what a crash may cost at each; studies of earlier versions have neither. ``extended`` are the numbers
    of blocks that the study had when it was whole and got more: looks at its verdicts that were not planned.
    ``notes`` are somebody's words on the study, for its page.
    Studies of ``format`` 1 have no checksums of what was measured.
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
        ids = {trial.id for trial in self.trials}
        once = {(trial.block, trial.level) for trial in self.trials}
        if len(ids) < len(self.trials) or len(once) < len(self.trials):
            raise ValueError("a trial is there twice: a level is in a block once, and each has its place")
        if unknown := {level for _, level in once} - self.plan.factor.levels.keys():
            raise ValueError(f"a trial of the level {min(unknown)!r}, which is not among the levels")
        return self

    @property
    def blocks(self) -> int:
        """How many blocks the design has."""
        return max((t.block for t in self.trials), default=0)

    @property
    def declared(self) -> Declared:
        """What its notebook declared: of parameters that make no study, as in somebody else's file, nothing."""
        try:
            return Declared.model_validate(self.parameters)
        except ValidationError:
            return Declared()


class Generator(Model):
    """What a host did that generated a part of a trial's load. Times in seconds.

    ``began_s`` and ``ended_s`` are by the server's clock, to within ``clock_error_s``; ``round_trip_s`` is its way to the server.
    """

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
    """What one trial left, beside its raw files: facts of the run, never derived figures.

    ``error`` is the reason that ended the trial, or null. Times are seconds since the
    epoch; ``settings`` is what the server itself said it ran with, ``host`` what the kernel
    said of the tunables, ``warnings`` what a reader has to know of this trial; ``ran_on`` names the host where
    several run the study.
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
