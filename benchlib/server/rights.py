"""An external server's name, and its role's rights."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, urlsplit

import psycopg
from pydantic import Field, model_validator

from benchlib.errors import PreflightError
from benchlib.plan.level import Model, NotEmpty, SettingValue, is_off, text_is
from benchlib.plan.settings import spelled
from benchlib.server.brakes import Brakes
from benchlib.server.changes import OURS, in_auto_conf
from benchlib.server.server import Session, fetch, read_sql, reason_of

_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
"""Secret parameters of libpq."""

_GRANTABLE = 150_000
"""The first version with grants on parameters."""

_OUR_SESSIONS = 5
"""Connections besides the clients': queries, advisory lock, two samplers, and pgbench's first one."""

_GRANTS = {
    "may_alter": "has_parameter_privilege(p.name, 'ALTER SYSTEM')",
    "grant": "'GRANT ALTER SYSTEM ON PARAMETER %%s TO %%I'",
    "before_15": "",
}
_SUPERUSER_ONLY = {
    "may_alter": "current_setting('is_superuser') = 'on'",
    "grant": "NULL",
    "before_15": "; before PostgreSQL 15 only superusers may",
}
RIGHTS = read_sql("rights")
_KNOWN_SCHEMAS = f"^pg_|^information_schema$|{OURS}"
"""The schemas of PostgreSQL and of benchlib."""

_ENDANGERING = ("fsync", "full_page_writes")
"""If off, a crash may destroy every database of the server."""

Missing = dict[str, str | None]
"""Reasons why a level cannot run on a server, each with the GRANT that helps, or None."""


class Target(Model):
    """An external server: a connection service, or a ``postgresql://`` URI.

    - ``own_schema``: create a schema with this prefix instead of a database;
    - ``beside``: the database's name, required if it holds other tables;
    - ``server_wide``: permit ``ALTER SYSTEM``;
    - ``in_place``: only read the database that is there, under ``brakes``.
    """

    server: NotEmpty
    own_schema: Annotated[str | None, Field(pattern="^[a-z_][a-z0-9_]{0,49}$")] = None
    beside: NotEmpty | None = None
    server_wide: bool | None = None
    in_place: bool | None = None
    brakes: Brakes | None = None
    _text = text_is("server")

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        if "://" in self.server or "=" in self.server:
            parts = urlsplit(self.server)
            parameters = {name.lower() for name, _ in parse_qsl(parts.query)}
            if parts.scheme not in ("postgresql", "postgres"):
                raise ValueError("expected the name of a connection service, or a postgresql:// URI")
            if parts.password is not None or parameters & _SECRETS:
                raise ValueError("no password in a level: use .pgpass, the service file or PGPASSWORD")
        if self.beside and not self.own_schema:
            raise ValueError("'beside' requires 'own_schema'")
        if self.in_place and (self.own_schema or self.server_wide):
            raise ValueError(
                "'in_place' creates and changes nothing: leave out 'own_schema' and 'server_wide'"
            )
        if self.brakes and not self.in_place:
            raise ValueError("'brakes' belong to 'in_place'")
        return self


def require(
    connection: Session, target: Target, settings: Mapping[str, SettingValue], template: str | None = None
) -> set[str]:
    """Check all that a level needs; return the settings that need ``ALTER SYSTEM``.

    Raises:
        PreflightError: lists all that is missing, with the GRANTs.

    """
    own = target.own_schema is not None
    parameters = {"own": own, "beside": target.beside, "known": _KNOWN_SCHEMAS}
    query = "missing_in_place" if target.in_place else "missing_for_creation"
    missing = _missing(fetch(connection, read_sql(query), parameters))
    if template and not target.in_place:
        missing |= _missing(fetch(connection, read_sql("missing_for_template"), {"template": template}))
    for_settings, server_wide = missing_for_settings(connection, target, settings)
    missing |= for_settings
    if missing:
        where = f"“{target.server}”, in the database {connection.info.dbname}"
        grants = [(where, grant) for grant in missing.values() if grant]
        raise PreflightError(f"cannot use external server “{target.server}”: {'; '.join(missing)}", grants)
    return server_wide


def _missing(rows: Iterable[Mapping[str, Any]]) -> Missing:
    return {row["reason"]: row["help"] for row in rows if row["reason"]}


def connections(connection: Session, clients: int) -> str:
    """Return the needed and the free connections as text.

    Raises:
        PreflightError: there are too few.

    """
    free, needed = fetch(connection, read_sql("free_connections"))[0]["free"], clients + _OUR_SESSIONS
    if needed > free:
        most = max(free - _OUR_SESSIONS, 0)
        raise PreflightError(f"{needed:,} connections needed, {free:,} free: use at most {most:,} clients")
    return f"{needed:,} needed of {free:,}"


def missing_for_settings(
    connection: Session, target: Target, settings: Mapping[str, SettingValue]
) -> tuple[Missing, set[str]]:
    """Return why settings cannot be applied, and the names that need ``ALTER SYSTEM``.

    Values of parameters that no session can set are not checked.
    """
    grantable = connection.info.server_version >= _GRANTABLE
    query = read_sql("missing_for_settings").format(**(_GRANTS if grantable else _SUPERUSER_ONLY))
    parameters = {
        "names": [*settings],
        "values": [*map(spelled, settings.values())],
        "own": target.own_schema is not None,
        "server_wide": bool(target.server_wide),
        "in_place": bool(target.in_place),
    }
    rows = fetch(connection, query, parameters)
    missing = _missing(rows)
    for name, value in settings.items():
        if name.lower() in _ENDANGERING and is_off(value):
            missing[f"{name} = off: would endanger every database of the external server"] = None
    for row in rows:
        if row["wide"] is False and not row["reason"]:
            missing |= _missing_for_sessions(connection, row["name"], row["value"])
    return missing, {row["name"].lower() for row in rows if row["wide"]}


def _missing_for_sessions(connection: Session, name: str, value: str) -> Missing:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT set_config(%s, %s, true)", [name, value])
    except psycopg.errors.InsufficientPrivilege:
        role = fetch(connection, RIGHTS)[0]["role"]
        grant = f"GRANT SET ON PARAMETER {name} TO {role}"
        return {
            f"the role {role} may not SET {name}": grant
            if connection.info.server_version >= _GRANTABLE
            else None
        }
    except psycopg.DatabaseError as error:
        if connection.closed:
            raise
        return {f"{name} = {value}: {reason_of(error)}": None}
    return {}


def former_value(connection: Session, name: str) -> str | None:
    """Return the value that ``ALTER SYSTEM`` set before."""
    view = "pg_file_settings" if fetch(connection, RIGHTS)[0]["reads_conf"] else "pg_settings"
    return in_auto_conf(connection, view, name)
