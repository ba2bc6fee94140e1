"""What a lever is: one key of a level, and all that the suite knows of it.

A lever says what its key may hold, whether that can be had on this machine, what it needs,
how it is set and read back, how a table words it, and what a crash may cost with it. What is
left as it is here does nothing, so a lever writes only what it has to say.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, ValidationInfo

from benchlib.errors import BenchlibError
from benchlib.host.journal import Chapter
from benchlib.host.shell import Process, Shell
from benchlib.levers.replicas import Replicas
from benchlib.load.tool import Connection
from benchlib.plan.level import Level, SettingValue, first_problem, share_of
from benchlib.plan.model import Plan
from benchlib.server.cluster import Cluster
from benchlib.server.installations import installations
from benchlib.server.replica import Replica

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)?", re.IGNORECASE)


def _bytes(value: object, info: ValidationInfo) -> object:
    """A size as PostgreSQL spells it (``512MB``; powers of 1024) in bytes; a share of the data in whole MiB.

    How large the data are says the validation's context, a function under ``data_mib``.
    """
    if not isinstance(value, str):
        return value
    if (share := share_of("data", value)) is not None:
        if not info.context:
            raise ValueError("nobody knows here how large the data are; give a size such as 4GB")
        return int(info.context["data_mib"]() * share / 100) << 20
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f'{value!r} is not a size such as 512MB, 4GB or "40 % of data"')
    return int(float(match[1]) * 1024 ** "bkmgt".index((match[2] or "B")[0].lower()))


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]


class Finding(NamedTuple):
    """Whether a lever, or a part of it, works on this machine: ``why_not`` is None where it does."""

    name: str
    why_not: str | None
    note: str | None = None


@dataclass(frozen=True)
class Needs:
    """What a level's servers take for as long as they stand: the scratch folder's disk and memory, in MiB."""

    scratch: int
    memory: int = 0


@dataclass
class Wish:
    """A level that a plan wants on this machine."""

    plan: Plan
    name: str
    scratch: Path

    @cached_property
    def level(self) -> Level:
        """The level as it runs, its base included."""
        return self.plan.level(self.name)

    @property
    def data_mib(self) -> int:
        """About how much disk the level's data take, and what runs beside the load leaves; their WAL aside."""
        workload = self.plan.level_workload(self.name)
        return workload.data_mib(self.plan.scale) + sum(beside.mib for beside in workload.beside)


@dataclass
class Site:
    """A server of ours while it is built and used, and what the levers have made for it.

    ``name`` is short and unique in the run, whose folder is ``scratch``. ``places`` has the folders of
    the ``data`` and the ``wal`` where they lie elsewhere, and ``devices`` those that hold them. ``checks`` are
    called after each trial, and raise where something did not hold; ``before_load`` are called before each trial's load, on a server
    that nobody has a session on, and tell what is in force then, by name; ``processes`` end with the site, and ``entrance`` is where
    the load connects to, if not to the server itself; ``lifts`` are entered while no trial runs, where what
    makes a trial slow would make its preparation slow. ``follower`` gives a replica, by its number, at a host of a fleet.
    """

    level: Level
    name: str
    scratch: Path
    shell: Shell
    chapter: Chapter
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
    """One key of a level.

    ``model`` is what pydantic checks its value by, where :class:`~benchlib.plan.level.Level` does not. ``elsewhere`` says whether it can be set on a server that is not ours, ``of_server`` whether
    it is the server's (and not the load's), ``unchanged`` how a table words what a level leaves alone.
    """

    key: ClassVar[str]
    model: ClassVar[Any]
    elsewhere: ClassVar[bool] = False
    of_server: ClassVar[bool] = True
    unchanged: ClassVar[str] = "default"

    # --- what it may hold -----------------------------------------------------------

    def read(self, value: Any, context: Mapping[str, Any]) -> Any:
        """The value in plain JSON types and its one spelling; ``context`` has what sizes are shares of.

        Raises:
            ValueError: it cannot be; the message says where and why.

        """
        adapter = TypeAdapter(self.model)
        try:
            return adapter.dump_python(adapter.validate_python(value, context=dict(context)), mode="json")
        except ValidationError as reason:
            raise ValueError(first_problem(reason)) from None

    def conflict(self, level: Level) -> str | None:
        """Why it cannot stand beside the level's other keys; None if it can."""
        if level.target and getattr(level, self.key) and not self.elsewhere:
            return f"'{self.key}' is for a server of our own, 'target' is one that is not"
        return None

    # --- whether it can be had ------------------------------------------------------

    def survey(self, scratch: Path) -> list[Finding]:
        """Whether it works here, whatever level may ask for it; a row for each part that may work alone."""
        return [Finding(self.key, no_server())]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether this machine can give what a level asks for; facts about it, as pairs of words.

        Raises:
            PreflightError: it cannot; the message says why and what to do.

        """
        return []

    def needs(self, wish: Wish, so_far: Needs) -> Needs:
        """What the level's servers need with this lever, given what they need with those before it."""
        return so_far

    # --- how it is set --------------------------------------------------------------

    def settings(self, level: Level) -> dict[str, SettingValue]:
        """The server parameters that it sets."""
        return {}

    def before_files(self, site: Site) -> None:
        """Make what has to be there before the server's files are."""

    def before_start(self, site: Site) -> None:
        """Do what is to be done when the files are there and the server does not run."""

    def after_start(self, site: Site) -> None:
        """Do what takes a running server."""

    def before_trial(self, site: Site, chapter: Chapter) -> dict[str, str]:
        """Set what holds only while trials run, noted in the chapter first; what is in force then, by name.

        Raises:
            SettingError: the kernel refuses it, or it did not take.

        """
        return {}

    # --- how it is told -------------------------------------------------------------

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """What a level has of it, base included, by the heading of a table's row; only what is named."""
        return {}

    def left_alone(self, plan: Plan, name: str, heading: str) -> str:
        """What a level has under a heading that only others name."""
        return self.unchanged

    def crash_costs(self, level: Level) -> list[str]:
        """What a crash may cost because of it, each in a few words.

        Source: PostgreSQL documentation, "Reliability and the Write-Ahead Log" and the
        descriptions of ``fsync``, ``full_page_writes`` and ``synchronous_commit``.
        """
        return []


def no_server() -> str | None:
    """Why no server of ours can run here; None if one can."""
    return None if installations() else "no PostgreSQL found"


def refusal(attempt: Callable[..., object], *args: object) -> str | None:
    """Why what is attempted cannot be had; None if it can."""
    try:
        attempt(*args)
    except BenchlibError as reason:
        return str(reason)
    return None
