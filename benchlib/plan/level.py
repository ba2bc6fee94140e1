"""A level: a treatment, as a patch over the study's base."""

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
    model_validator,
)
from pydantic_core.core_schema import ValidationInfo

Values = Mapping[str, Any]
"""Values by name: a notebook's parameters, a level's patch, a tool's report."""
SettingValue = bool | int | float | str
"""A value of a server parameter."""

Protocol = Literal["simple", "extended", "prepared"]

# PostgreSQL accepts unique prefixes
_OFF = frozenset({"0", "of", "off", *("false"[:n] for n in range(1, 6)), "n", "no"})


class Model(BaseModel):
    """Immutable data; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def changed(self, **fields: Any) -> Self:
        """Return a changed copy, without validation."""
        return self.model_copy(update=fields)


def text_is(field: str) -> Any:
    """Return a validator for a model: a text stands for this field alone."""
    return model_validator(mode="before")(lambda value: {field: value} if isinstance(value, str) else value)


class Open(BaseModel):
    """Data that other versions may extend."""

    model_config = ConfigDict(frozen=True, extra="allow")


def problems(reason: ValidationError) -> list[str]:
    """Return a line for each problem."""
    lines = []
    for problem in reason.errors():
        where = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        message = f"{where + ': ' if where else ''}{problem['msg'].removeprefix('Value error, ')}"
        lines.append(" ".join(message.split()))
    return lines


def first_problem(reason: ValidationError) -> str:
    """Return the first problem, and the number of others."""
    first, *others = problems(reason)
    return f"{first} (and {len(others)} more)" if others else first


def share_of(whole: str, value: object) -> float | None:
    """Return 60.0 for ``"60 % of capacity"`` with ``whole`` "capacity", or None."""
    share = rf"\s*(\d{{1,9}}(?:\.\d+)?)\s*%\s*of\s+{whole}\s*"
    match = re.fullmatch(share, value, re.IGNORECASE) if isinstance(value, str) else None
    return float(match[1]) if match else None


CAPACITY, CALLS = "capacity", "its calls"
"""What a rate can be a share of: the baseline's unlimited speed, or the calls of a server in use."""


def _rate(value: object) -> object:
    whole, share = next(((w, s) for w in (CAPACITY, CALLS) if (s := share_of(w, value))), ("", None))
    try:
        number = float(value) if share is None else share  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number < math.inf or isinstance(value, bool):
        raise ValueError(f'{value!r} is not a rate such as 500 (per second) or "60 % of capacity"')
    return number if share is None else f"{number:g} % of {whole}"


Clients = Annotated[int, Field(ge=1, le=100_000)]
Rate = Annotated[float | str, BeforeValidator(_rate)]
"""A schedule in transactions/s, or text such as ``"60 % of capacity"``, ``"5 % of its calls"``."""
IN_PLACE_RATE = f"5 % of {CALLS}"
"""The default on a database in use."""
_LEAST_RATE = 1.0
NotEmpty = Annotated[str, Field(min_length=1)]
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], int | float | NotEmpty]


HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
"""A host's name in a fleet file."""
FROM = AliasChoices("from", "generators")
"""Names of the field for load generators: files say ``from``, a Python keyword."""


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("a host is named twice")
    return names


_Hosts = Annotated[tuple[HostName, ...], AfterValidator(_once)]
LoadHosts = Annotated[_Hosts, Field(validation_alias=FROM)]


class LoadPatch(Model):
    """Changes of the study's load; None changes nothing."""

    clients: Clients | None = None
    threads: Clients | None = None
    protocol: Protocol | None = None
    rate: Rate | None = None
    connect_per_transaction: bool | None = None
    variables: Variables | None = None
    generators: Annotated[_Hosts | None, Field(validation_alias=FROM)] = None

    def over(self, load: dict[str, Any]) -> dict[str, Any]:
        """Return a changed load; variables are merged by name."""
        changes = self.model_dump(exclude_none=True)
        if "variables" in changes:
            changes["variables"] = {**(load["variables"] or {}), **changes["variables"]}
        return {**load, **changes}


def rate_at(rate: float | str, capacity_tps: float | None, calls_tps: float | None = None) -> float | str:
    """Return a rate in transactions/s, or an unknown share as it is."""
    if (share := share_of(CALLS, rate)) is not None:
        return rate if calls_tps is None else max(_LEAST_RATE, float(f"{share / 100 * calls_tps:.3g}"))
    if (share := share_of(CAPACITY, rate)) is None or capacity_tps is None:
        return rate
    scheduled = share / 100 * capacity_tps
    return float(round(scheduled)) if scheduled >= 10 else float(f"{scheduled:.3g}")


class LevelKey(typing.Protocol):
    """A lever's part in making a study."""

    def read(self, value: Any, context: Values) -> Any:
        """Return plain JSON types, or raise ValueError."""

    def conflict(self, level: Level) -> str | None:
        """Return the conflict with other keys, or None."""


def _by_lever(value: Any, info: ValidationInfo) -> Any:
    context = info.context or {}
    lever: LevelKey | None = context.get("levers", {}).get(info.field_name)
    return lever.read(value, context) if lever else value


_ByLever = BeforeValidator(_by_lever)
"""Reads a key by its lever if the validation's context has ``levers``; otherwise unchanged."""


class Level(Model):
    """A treatment: its changes to the study's base, by lever.

    ``postgres`` is a version or a folder, ``target`` an external server. ``?`` after a kernel tunable: optional.
    """

    postgres: Annotated[str | None, _ByLever] = None
    settings: Annotated[dict[str, SettingValue], _ByLever] = {}
    initdb: tuple[str, ...] = ()
    sql: Annotated[str | None, _ByLever] = None
    workload: NotEmpty | None = None
    load: LoadPatch = LoadPatch()
    replication: Annotated[JsonValue, _ByLever] = None
    storage: Annotated[JsonValue, _ByLever] = None
    cache: Annotated[str | None, _ByLever] = None
    pooler: Annotated[JsonValue, _ByLever] = None
    host: Annotated[dict[str, int | str], _ByLever] = {}
    cpu: Annotated[JsonValue, _ByLever] = None
    target: Annotated[JsonValue, _ByLever] = None

    def part(self, key: str) -> Values:
        """Return a key's mapping, or an empty one."""
        value = getattr(self, key)
        return value if isinstance(value, Mapping) else {}

    @property
    def in_place(self) -> bool:
        """Return whether a database in use is measured."""
        return bool(self.part("target").get("in_place"))

    def without_load(self) -> Level:
        """Return the level without workload and load."""
        return self.changed(workload=None, load=LoadPatch())

    def over(self, base: Level) -> Level:
        """Return the level merged over ``base``."""
        named = self.model_dump(include=self.model_fields_set)  # keeps keys that are set to their defaults
        patched = {k: v for k, v in named.items() if v not in (None, (), {})}
        patched["settings"] = {**base.settings, **self.settings}
        patched["host"] = {**base.host, **self.host}
        patched["load"] = self.load.over(base.load.model_dump())
        return Level.model_validate({**base.model_dump(), **patched})


def cores_of(text: str) -> set[int]:
    """Return the cores in ``0-1,4``."""
    ends = [part.split("-") for part in text.split(",")]
    return {core for end in ends for core in range(int(end[0]), int(end[-1]) + 1)}


def is_off(value: object) -> bool:
    """Return whether PostgreSQL reads a value as off."""
    return str(value).strip().lower() in _OFF
