"""The base class of levers."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, ValidationInfo

from benchlib.errors import BenchlibError
from benchlib.host import files
from benchlib.host.journal import Scope
from benchlib.host.shell import Process, Shell
from benchlib.levers.replicas import Replicas
from benchlib.load.tool import Connection
from benchlib.plan.level import Level, first_problem, share_of
from benchlib.plan.model import Plan
from benchlib.plan.words import decoded
from benchlib.server.cluster import Cluster
from benchlib.server.installations import installations
from benchlib.server.replica import Replica

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)?", re.IGNORECASE)


def _bytes(value: object, info: ValidationInfo) -> object:
    """Convert ``512MB`` (powers of 1024) or a share of the data to bytes."""
    if not isinstance(value, str):
        return value
    if (share := share_of("data", value)) is not None:
        if not info.context:
            raise ValueError("the size of the data is unknown here: give a size such as 4GB")
        return int(info.context["data_mib"]() * share / 100) << 20
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f'{value!r} is not a size such as 512MB, 4GB or "40 % of data"')
    return int(float(match[1]) * 1024 ** "bkmgt".index((match[2] or "B")[0].lower()))


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]


class Finding(NamedTuple):
    """Whether a part of a lever works here; ``why_not`` is None if so."""

    name: str
    why_not: str | None
    note: str | None = None


class Needs(NamedTuple):
    """MiB of scratch space and memory."""

    scratch: int
    memory: int = 0


@dataclass
class Wish:
    """A level of a plan, to be checked; ``found``: facts as (name, text)."""

    plan: Plan
    name: str
    scratch: Path
    found: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def level(self) -> Level:
        """Return the level, merged."""
        return self.plan.level(self.name)

    @property
    def data_mib(self) -> int:
        """Return the approximate size, without WAL."""
        workload = self.plan.level_workload(self.name)
        return workload.data_mib(self.plan.scale) + sum(beside.mib for beside in workload.beside)


@dataclass
class Site:
    """An embedded cluster, with mounts, control groups and processes.

    - ``name``: unique in the run; ``scratch``: the run's directory
    - ``places``: directories by purpose; ``devices``: their block devices
    - ``checks``: raise after a trial if a condition was lost
    - ``before_load``: run without sessions; return the state by name
    - ``lifts``: suspend limits between trials
    - ``entrance``: the load's connection, if not the server's
    - ``follower``: creates a replica on a fleet host
    """

    level: Level
    name: str
    scratch: Path
    shell: Shell
    scope: Scope
    program: Callable[[str], Path]
    cluster: Cluster
    places: dict[str, Path] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    checks: list[Callable[[], None]] = field(default_factory=list)
    lifts: list[Callable[[], AbstractContextManager[None]]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    follower: "Callable[[Site, int, str], Replica] | None" = None
    before_load: list[Callable[[], dict[str, str]]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    entrance: Connection | None = None
    replicas: Replicas = field(init=False)

    def __post_init__(self) -> None:
        self.replicas = Replicas(self.cluster)


class Lever:
    """One key of a level; by default its methods do nothing.

    - ``model``: validates the value, unless ``Level`` does
    - ``elsewhere``: works on an external server
    - ``of_server``: belongs to the server, not the load
    - ``unchanged``: the cell without the key; ``unchanged_of``: by row heading
    """

    key: ClassVar[str]
    model: ClassVar[Any]
    elsewhere: ClassVar[bool] = False
    of_server: ClassVar[bool] = True
    unchanged: ClassVar[str] = "default"
    unchanged_of: ClassVar[Mapping[str, str]] = {}

    # --- values ---------------------------------------------------------------------

    def read(self, value: Any, context: Mapping[str, Any]) -> Any:
        """Return the value in JSON types; ``context`` resolves relative sizes.

        Raises:
            ValueError: with place and reason.
        """
        adapter = TypeAdapter(self.model)
        try:
            return adapter.dump_python(adapter.validate_python(value, context=dict(context)), mode="json")
        except ValidationError as reason:
            raise ValueError(first_problem(reason)) from None

    def conflict(self, level: Level) -> str | None:
        """Return the conflict with other keys."""
        if level.target and getattr(level, self.key) and not self.elsewhere:
            return f"'{self.key}' works on embedded servers only, 'target' names an external one: use only one of them"
        return None

    # --- checks ---------------------------------------------------------------------

    def survey(self, scratch: Path) -> list[Finding]:
        """Return whether its parts work here."""
        return [Finding(self.key, no_server())]

    def check(self, wish: Wish) -> None:
        """Check this machine; add to ``wish.found``.

        Raises:
            PreflightError: with reason and remedy.
        """

    # --- actions --------------------------------------------------------------------

    def before_files(self, site: Site) -> None:
        """Prepare what the server's files need."""

    def before_start(self, site: Site) -> None:
        """Act when the files exist and the server is stopped."""

    def after_start(self, site: Site) -> None:
        """Act on the running server."""

    def before_trial(self, site: Site, scope: Scope) -> dict[str, str]:
        """Set values, recorded in the journal; return them by name.

        Raises:
            SettingError: the kernel refuses or changes a value.
        """
        return {}

    # --- texts ----------------------------------------------------------------------

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return cells by row heading."""
        return {}

    def left_alone(self, plan: Plan, name: str, heading: str) -> str:
        """Return the cell without a value."""
        return self.unchanged_of.get(heading, self.unchanged)

    def crash_costs(self, level: Level) -> list[str]:
        """Return the possible losses in a crash.

        Source: PostgreSQL documentation, "Reliability and the Write-Ahead Log".
        """
        return []


def no_server() -> str | None:
    """Return why no embedded server runs here."""
    return None if installations() else "no PostgreSQL found"


def text_of(name: str) -> str:
    """Return the text of a file that a level names; ValueError if it cannot be read."""
    try:
        return decoded(files.read_plain(Path(name)))
    except OSError as reason:
        raise ValueError(f"{name}: it cannot be read: {reason.strerror}") from None


def refusal(attempt: Callable[..., object], *args: object) -> str | None:
    """Return the message of an error."""
    try:
        attempt(*args)
    except BenchlibError as reason:
        return str(reason)
    return None
