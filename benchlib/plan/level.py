"""A level: one treatment, a declarative patch over what the study would run otherwise.

Every lever has a key, and what a key may hold is a small model here: plain JSON types,
checked before anything runs. What the keys do is the business of the levers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

SettingValue = bool | int | float | str
"""What a server parameter may be set to; written to the file as PostgreSQL spells it."""

Protocol = Literal["simple", "extended", "prepared"]
FileSystem = Literal["ext4", "xfs", "btrfs", "tmpfs"]

# any beginning that tells them apart will do for PostgreSQL
_OFF = frozenset({"0", "of", "off", *("false"[:n] for n in range(1, 6)), "n", "no"})
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)?", re.IGNORECASE)
_UNITS = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


class Model(BaseModel):
    """Base of all data here: immutable, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_DATA_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*of\s+data\s*", re.IGNORECASE)


def _bytes(value: object, info: ValidationInfo) -> object:
    """A size as PostgreSQL spells it (``512MB``; powers of 1024) in bytes; a share of the data in whole MiB.

    How large the data are says the validation's context, a function under ``data_mib``.
    """
    if not isinstance(value, str):
        return value
    if share := _DATA_SHARE.fullmatch(value):
        if not info.context:
            raise ValueError("nobody knows here how large the data are; give a size such as 4GB")
        return int(info.context["data_mib"]() * float(share[1]) / 100) << 20
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f'{value!r} is not a size such as 512MB, 4GB or "40 % of data"')
    return int(float(match.group(1)) * _UNITS[(match.group(2) or "B").lower()])


_CAPACITY_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*of\s+capacity\s*", re.IGNORECASE)


def _rate(value: object) -> object:
    """Transactions a second, or a share of the baseline's capacity in its one spelling."""
    share = _CAPACITY_SHARE.fullmatch(value) if isinstance(value, str) else None
    try:
        number = float(share[1] if share else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0) or isinstance(value, bool):
        raise ValueError(f'{value!r} is not a rate such as 500 (a second) or "60 % of capacity"')
    return f"{number:g} % of capacity" if share else number


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Clients = Annotated[int, Field(ge=1, le=100_000)]
Rate = Annotated[float | str, BeforeValidator(_rate)]
"""Transactions that are scheduled a second: a number, or text such as ``"60 % of capacity"``."""
NotEmpty = Annotated[str, Field(min_length=1)]
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], int | float | NotEmpty]


class LoadPatch(Model):
    """What a level changes of the study's load; what it leaves out stays."""

    clients: Clients | None = None
    threads: Clients | None = None
    protocol: Protocol | None = None
    rate: Rate | None = None
    variables: Variables | None = None


class Replication(Model):
    """How many replicas stream from the server, and how many a commit waits for.

    ``quorum`` is the head of ``synchronous_standby_names``, such as ``"FIRST 1"`` or ``"ANY 1"``;
    without one replication is asynchronous. What a commit waits for at each of them is the
    setting ``synchronous_commit``, as in PostgreSQL. The words ``"standalone"``,
    ``"asynchronous"`` and ``"synchronous"`` stand for none, one, and one with ``"FIRST 1"``.
    """

    replicas: Annotated[int, Field(ge=0, le=8)] = 1
    quorum: Annotated[str | None, Field(pattern=r"^(FIRST|ANY) [1-9]$")] = None

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        words = {"standalone": {"replicas": 0}, "asynchronous": {}, "synchronous": {"quorum": "FIRST 1"}}
        if isinstance(value, str):
            if value not in words:
                raise ValueError(f"{value!r} is not one of {', '.join(words)}")
            return words[value]
        return value

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Self:
        if self.quorum and int(self.quorum.split()[1]) > self.replicas:
            raise ValueError(f"a quorum of {self.quorum} can never be met by {self.replicas} replica(s)")
        return self

    def standby_names(self) -> str | None:
        """The value of ``synchronous_standby_names``; None where replication is asynchronous."""
        names = ", ".join(f"replica{n}" for n in range(1, self.replicas + 1))
        return f"{self.quorum} ({names})" if self.quorum else None


class Place(Model):
    """Where a folder of the server lies: in a given folder, or on a file system made for the study.

    A file system other than ``tmpfs`` is made on a loop device, whose file lies in ``path`` or
    the scratch folder. ``size`` is in bytes. A text that begins with ``/`` stands for the
    ``path``, another one for the ``file_system``.
    """

    path: Annotated[str | None, Field(pattern="^/")] = None
    file_system: FileSystem | None = None
    size: Size | None = None
    mount_options: Annotated[str, Field(pattern=r"^[A-Za-z0-9_=,.:/-]*$")] = ""

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"path": value} if value.startswith("/") else {"file_system": value}
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.path is None and self.file_system is None:
            raise ValueError("a place has a 'path', a 'file_system', or both")
        if self.file_system is None and (self.size or self.mount_options):
            raise ValueError("'size' and 'mount_options' belong to a 'file_system' made for the study")
        if self.file_system and self.size is None:
            raise ValueError(f"a {self.file_system} made for the study needs a 'size', such as 4GB")
        if self.file_system == "tmpfs" and self.path:
            raise ValueError("a tmpfs lies in memory and has no 'path'")
        return self


class Storage(Model):
    """Where the data and the WAL of the server lie, and what caps its control group has.

    Caps of block I/O are per second, on the devices that the places are on; ``memory`` caps the
    server with the page cache that it fills. Sizes in bytes.
    """

    data: Place | None = None
    wal: Place | None = None
    read_iops: Annotated[int, Field(gt=0)] | None = None
    write_iops: Annotated[int, Field(gt=0)] | None = None
    read_bytes: Size | None = None
    write_bytes: Size | None = None
    memory: Size | None = None

    @property
    def caps_io(self) -> bool:
        """Whether block I/O is capped."""
        return any((self.read_iops, self.write_iops, self.read_bytes, self.write_bytes))


_SECRETS = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
"""The parameters of a libpq connection that are secrets."""


class Target(Model):
    """A server that is not ours: a connection service, or a ``postgresql://`` URI.

    The benchmark makes a database of its own there, or, with ``own_schema``, a schema whose name
    begins so in the database that the service names; where that database holds tables of others it
    is refused unless ``beside`` repeats its name. A text stands for the ``server``.
    Passwords belong into ``.pgpass``, the service file or the environment.
    """

    server: NotEmpty
    own_schema: Annotated[str | None, Field(pattern="^[a-z_][a-z0-9_]{0,49}$")] = None
    beside: NotEmpty | None = None

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"server": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        if "://" in self.server or "=" in self.server:
            parts = urlsplit(self.server)
            given = {name.lower() for name, _ in parse_qsl(parts.query)}
            if parts.scheme not in ("postgresql", "postgres"):
                raise ValueError("want the name of a connection service, or a postgresql:// URI")
            if parts.password is not None or given & _SECRETS:
                raise ValueError(
                    "no password in a level: it would stand in notebooks and reports; "
                    "put it into .pgpass, the service file or PGPASSWORD"
                )
        if self.own_schema and self.own_schema.startswith("pg_"):
            raise ValueError("names that begin with pg_ are the server's own")
        if self.beside and not self.own_schema:
            raise ValueError("'beside' names the database that 'own_schema' is made in")
        return self


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


def rate_at(rate: float | str, capacity_tps: float) -> float:
    """A rate in transactions a second; a share is one of ``capacity_tps``, whole where it is 10 or more."""
    share = _CAPACITY_SHARE.fullmatch(rate) if isinstance(rate, str) else None
    if share is None:
        return float(rate)
    scheduled = float(share[1]) / 100 * capacity_tps
    return float(round(scheduled)) if scheduled >= 10 else float(f"{scheduled:.3g}")


def patched_load(load: dict[str, Any], patch: LoadPatch) -> dict[str, Any]:
    """A load with what a patch changes; of the variables, those that the patch names."""
    changes = patch.model_dump(exclude_none=True)
    if "variables" in changes:
        changes["variables"] = {**(load["variables"] or {}), **changes["variables"]}
    return {**load, **changes}


class Level(Model):
    """One treatment: what it changes of what the study would run otherwise.

    ``postgres`` names an installation (a version such as ``"16"``, or the folder of its
    binaries), ``settings`` are server parameters, ``initdb`` extra options of initdb,
    ``workload`` another workload, ``load`` what changes of the load, ``replication`` the
    replicas, ``storage`` places and caps, ``host`` kernel tunables by the names that
    the studies use (with a ``?`` at the end where the kernel may lack it), and ``target`` a
    server that is not ours instead of a cluster of our own.
    """

    postgres: Annotated[str | None, BeforeValidator(_version_text)] = None
    settings: Annotated[dict[str, SettingValue], AfterValidator(_setting_names)] = {}
    initdb: tuple[str, ...] = ()
    workload: NotEmpty | None = None
    load: LoadPatch = LoadPatch()
    replication: Replication | None = None
    storage: Storage | None = None
    host: Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z0-9_.-]+\??$")], int | str],
        BeforeValidator(lambda value: value or {}),
    ] = {}
    target: Target | None = None

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        if self.target:
            ours = ("postgres", "initdb", "replication", "storage", "host")
            if clash := [key for key in ours if getattr(self, key)]:
                raise ValueError(f"'{clash[0]}' is for a server of our own, 'target' is one that is not")
        if self.replication and "synchronous_standby_names" in self.settings:
            raise ValueError("'replication' decides synchronous_standby_names: leave it out of the settings")
        if self.storage and any(option.split("=")[0] in _WAL_FOLDER for option in self.initdb):
            raise ValueError("name the folder of the WAL in 'storage', not in the options of initdb")
        return self

    def over(self, base: Level) -> Level:
        """This level as a patch over ``base``: its settings, tunables and load win, the rest of base stays."""
        named = self.model_dump(include=self.model_fields_set)  # "asynchronous" is all defaults, and named
        patched = {k: v for k, v in named.items() if v not in (None, (), {})}
        patched["settings"] = {**base.settings, **self.settings}
        patched["host"] = {**base.host, **self.host}
        patched["load"] = patched_load(base.load.model_dump(), self.load)
        return Level.model_validate({**base.model_dump(), **patched})


_WAL_FOLDER = ("-X", "--waldir")


def is_off(value: object) -> bool:
    """Whether a server parameter's value means off, as PostgreSQL reads booleans."""
    return str(value).strip().lower() in _OFF


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
