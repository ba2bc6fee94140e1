"""A level: one treatment, a declarative patch over what the study would run otherwise.

Every lever has a key here, of plain JSON types. What a key may hold is checked by its lever when a
study is made; what is kept is read without.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
)
from pydantic_core.core_schema import ValidationInfo

Values = Mapping[str, Any]
"""Values by name: a notebook's parameters, a level's patch, a tool's report."""
SettingValue = bool | int | float | str
"""What a server parameter may be set to; written to the file as PostgreSQL spells it."""

Protocol = Literal["simple", "extended", "prepared"]

# any beginning that tells them apart will do for PostgreSQL
_OFF = frozenset({"0", "of", "off", *("false"[:n] for n in range(1, 6)), "n", "no"})


class Model(BaseModel):
    """Base of all data here: immutable, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def changed(self, **fields: Any) -> Self:
        """The same with other values in some fields, which are not validated again."""
        return self.model_copy(update=fields)


class Open(BaseModel):
    """Base of data that other versions may say more in: what is not known of it is left as it is."""

    model_config = ConfigDict(frozen=True, extra="allow")


def problems(reason: ValidationError) -> list[str]:
    """All that a validation found, a line each: where, and what."""
    lines = []
    for problem in reason.errors():
        where = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        message = f"{where + ': ' if where else ''}{problem['msg'].removeprefix('Value error, ')}"
        lines.append(" ".join(message.split()))
    return lines


def first_problem(reason: ValidationError) -> str:
    """The first thing that a validation found, in one line: where, and what."""
    first, *others = problems(reason)
    return f"{first} (and {len(others)} more)" if others else first


def share_of(whole: str, value: object) -> float | None:
    """The percentage in a text such as ``"60 % of capacity"``, of which ``whole`` is the last word; None in any other value."""
    share = rf"\s*(\d{{1,9}}(?:\.\d+)?)\s*%\s*of\s+{whole}\s*"
    match = re.fullmatch(share, value, re.IGNORECASE) if isinstance(value, str) else None
    return float(match[1]) if match else None


def _rate(value: object) -> object:
    """Transactions a second, or a share of the baseline's capacity in its one spelling."""
    share = share_of("capacity", value)
    try:
        number = float(value) if share is None else share  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number < math.inf or isinstance(value, bool):
        raise ValueError(f'{value!r} is not a rate such as 500 (a second) or "60 % of capacity"')
    return number if share is None else f"{number:g} % of capacity"


Clients = Annotated[int, Field(ge=1, le=100_000)]
Rate = Annotated[float | str, BeforeValidator(_rate)]
"""Transactions that are scheduled a second: a number, or text such as ``"60 % of capacity"``."""
NotEmpty = Annotated[str, Field(min_length=1)]
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], int | float | NotEmpty]


HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
"""A host of a fleet, as its file names it."""
FROM = AliasChoices("from", "generators")
"""What the hosts that generate a load are called: ``from`` by people, which is no name in Python."""


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("a host is named twice")
    return names


_Hosts = Annotated[tuple[HostName, ...], AfterValidator(_once)]
LoadHosts = Annotated[_Hosts, Field(validation_alias=FROM)]


class LoadPatch(Model):
    """What a level changes of the study's load; what it leaves out stays."""

    clients: Clients | None = None
    threads: Clients | None = None
    protocol: Protocol | None = None
    rate: Rate | None = None
    connect_per_transaction: bool | None = None
    variables: Variables | None = None
    generators: Annotated[_Hosts | None, Field(validation_alias=FROM)] = None

    def over(self, load: dict[str, Any]) -> dict[str, Any]:
        """A load with these changes; of the variables, those that are named."""
        changes = self.model_dump(exclude_none=True)
        if "variables" in changes:
            changes["variables"] = {**(load["variables"] or {}), **changes["variables"]}
        return {**load, **changes}


def rate_at(rate: float | str, capacity_tps: float) -> float:
    """A rate in transactions a second; a share is one of ``capacity_tps``, whole where it is 10 or more."""
    share = share_of("capacity", rate)
    if share is None:
        return float(rate)
    scheduled = share / 100 * capacity_tps
    return float(round(scheduled)) if scheduled >= 10 else float(f"{scheduled:.3g}")


class LevelKey(typing.Protocol):
    """What a lever does with its key when a study is made."""

    def read(self, value: Any, context: Values) -> Any:
        """The value in plain JSON types and its one spelling; a ValueError where it cannot be."""

    def conflict(self, level: Level) -> str | None:
        """Why the key cannot stand beside the level's others; None if it can."""


def _by_lever(value: Any, info: ValidationInfo) -> Any:
    context = info.context or {}
    lever: LevelKey | None = context.get("levers", {}).get(info.field_name)
    return lever.read(value, context) if lever else value


_ByLever = BeforeValidator(_by_lever)
"""Reads a key by its lever where the validation's context brings the levers by key; what is kept is as it is."""


class Level(Model):
    """One treatment: what it changes of what the study would run otherwise.

    ``postgres`` names an installation (a version such as ``"16"``, or the folder of its
    binaries), ``settings`` are server parameters, ``initdb`` extra options of initdb,
    ``workload`` another workload, ``load`` what changes of the load, ``replication`` the
    replicas, ``storage`` places and caps, ``cache`` what the load finds in memory,
    ``pooler`` the pgbouncer that it goes through, ``host`` kernel tunables by the names that
    the studies use (with a ``?`` at the end where the kernel may lack it), and ``target`` a
    server that is not ours instead of a cluster of our own.
    """

    postgres: Annotated[str | None, _ByLever] = None
    settings: Annotated[dict[str, SettingValue], _ByLever] = {}
    initdb: tuple[str, ...] = ()
    workload: NotEmpty | None = None
    load: LoadPatch = LoadPatch()
    replication: Annotated[JsonValue, _ByLever] = None
    storage: Annotated[JsonValue, _ByLever] = None
    cache: Annotated[str | None, _ByLever] = None
    pooler: Annotated[JsonValue, _ByLever] = None
    host: Annotated[dict[str, int | str], _ByLever] = {}
    target: Annotated[JsonValue, _ByLever] = None

    def part(self, key: str) -> Values:
        """What a key holds by name; nothing where the level does not name the key."""
        value = getattr(self, key)
        return value if isinstance(value, Mapping) else {}

    def without_load(self) -> Level:
        """What it changes of its server, the load aside."""
        return self.changed(workload=None, load=LoadPatch())

    def over(self, base: Level) -> Level:
        """This level as a patch over ``base``: its settings, tunables and load win, the rest of base stays."""
        named = self.model_dump(include=self.model_fields_set)  # "asynchronous" is all defaults, and named
        patched = {k: v for k, v in named.items() if v not in (None, (), {})}
        patched["settings"] = {**base.settings, **self.settings}
        patched["host"] = {**base.host, **self.host}
        patched["load"] = self.load.over(base.load.model_dump())
        return Level.model_validate({**base.model_dump(), **patched})


def is_off(value: object) -> bool:
    """Whether a server parameter's value means off, as PostgreSQL reads booleans."""
    return str(value).strip().lower() in _OFF


def resolve_memory_shares(settings: Mapping[str, SettingValue], memory_bytes: int) -> dict[str, SettingValue]:
    """Settings such as ``"25 % of memory"`` as whole megabytes of this machine's memory."""
    resolved = dict(settings)
    for name, value in settings.items():
        if (share := share_of("memory", value)) is not None:
            resolved[name] = f"{max(1, int(memory_bytes * share / 100) >> 20)}MB"
    return resolved
