"""An external server's name, and checks of the role's rights without changes."""

from collections.abc import Mapping
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, urlsplit

import psycopg
from pydantic import Field, model_validator

from benchlib.errors import PreflightError
from benchlib.plan.level import Model, NotEmpty, SettingValue, is_off
from benchlib.plan.settings import spelled
from benchlib.server.changes import OURS, in_auto_conf
from benchlib.server.server import Session, fetch, read_sql, reason_of

_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
"""Secret parameters of libpq."""

_GRANTABLE = 150_000
"""The first version with grants on parameters."""

_OUR_SESSIONS = 5
"""Connections besides the clients': queries, advisory lock, two samplers, and pgbench's first one."""

RIGHTS = read_sql("rights")
_KNOWN_SCHEMAS = f"^pg_|^information_schema$|{OURS}"
"""The schemas of PostgreSQL and of benchlib."""

_GRANTS = {
    "may_create_database": ("create databases (not needed with 'own_schema')", "ALTER ROLE {role} CREATEDB"),
    "may_create_schema": (
        "create a schema in the database {database}",
        "GRANT CREATE ON DATABASE {database} TO {role}",
    ),
    "may_reload": (
        "have the server reload its settings",
        "GRANT EXECUTE ON FUNCTION pg_reload_conf() TO {role}",
    ),
    "sees_former": ("see the values that ALTER SYSTEM would replace", "GRANT pg_read_all_settings TO {role}"),
}
"""The action of each right in ``rights.sql``, and its GRANT."""

_ENDANGERING = ("fsync", "full_page_writes")
"""If off, a crash may destroy every database of the server."""

Missing = dict[str, str | None]
"""Reasons why a level cannot run on a server, each with the GRANT that helps, or None."""


class Target(Model):
    """An external server: a connection service, or a ``postgresql://`` URI.

    - ``own_schema``: create a schema with this prefix instead of a database;
    - ``beside``: the database's name, required if it holds other tables;
    - ``server_wide``: permit ``ALTER SYSTEM`` for parameters that no session can set.
    """

    server: NotEmpty
    own_schema: Annotated[str | None, Field(pattern="^[a-z_][a-z0-9_]{0,49}$")] = None
    beside: NotEmpty | None = None
    server_wide: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: Any) -> Any:
        return {"server": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        if "://" in self.server or "=" in self.server:
            parts = urlsplit(self.server)
            parameters = {name.lower() for name, _ in parse_qsl(parts.query)}
            if parts.scheme not in ("postgresql", "postgres"):
                raise ValueError("expected the name of a connection service, or a postgresql:// URI")
            if parts.password is not None or parameters & _SECRETS:
                raise ValueError(
                    "no password in a level: notebooks and reports would show it; "
                    "put it into .pgpass, the service file or PGPASSWORD"
                )
        if self.beside and not self.own_schema:
            raise ValueError("'beside' requires 'own_schema'")
        return self


def require(connection: Session, target: Target, settings: Mapping[str, SettingValue]) -> set[str]:
    """Check all that a level needs; return the settings that need ``ALTER SYSTEM``.

    Raises:
        PreflightError: lists all that is missing, with the GRANTs.

    """
    for_settings, server_wide = missing_for_settings(connection, target, settings)
    if missing := _missing_for_creation(connection, target) | for_settings:
        where = f"“{target.server}”, in the database {connection.info.dbname}"
        grants = [(where, grant) for grant in missing.values() if grant]
        raise PreflightError(f"cannot use external server “{target.server}”: {'; '.join(missing)}", grants)
    return server_wide


def _missing_for_creation(connection: Session, target: Target) -> Missing:
    """Return why benchlib cannot create its database or schema there."""
    rights, database = fetch(connection, RIGHTS)[0], connection.info.dbname
    missing: Missing = {"it is a read-only replica": None} if rights["replica"] else {}
    if target.own_schema is None:
        return missing | _missing_right(rights, "may_create_database")
    others = fetch(connection, read_sql("other_tables"), [_KNOWN_SCHEMAS])[0]["count"]
    if others and target.beside != database:
        reason = (
            f"the database {database} holds {others} other tables: remove 'own_schema' to use a new database, "
            f"or set beside: {database}"
        )
        missing[reason] = None
    return missing | _missing_right(rights, "may_create_schema")


def _missing_right(rights: Mapping[str, Any], name: str) -> Missing:
    """Return the missing right with its GRANT; empty if the role has it."""
    action, sql = _GRANTS[name]
    reason = f"the role {{role}} may not {action}".format_map(rights)
    return {} if rights[name] else {reason: sql.format_map(rights)}


def connections(connection: Session, clients: int) -> str:
    """Return a text with the needed and the free connections.

    Raises:
        PreflightError: there are too few.

    """
    free, needed = fetch(connection, read_sql("free_connections"))[0]["free"], clients + _OUR_SESSIONS
    if needed > free:
        raise PreflightError(
            f"{clients:,} clients and {_OUR_SESSIONS} sessions of benchlib need {needed:,} connections, {free:,} are "
            f"free: use at most {max(free - _OUR_SESSIONS, 0):,} clients, or raise max_connections"
        )
    return f"{needed:,} needed of {free:,}"


def missing_for_settings(
    connection: Session, target: Target, settings: Mapping[str, SettingValue]
) -> tuple[Missing, set[str]]:
    """Return why settings cannot be applied, and the names that need ``ALTER SYSTEM``.

    Values of parameters that no session can set are not checked.

    Raises:
        psycopg.Error: the server refuses the query.

    """
    may_alter = "has_parameter_privilege(name, 'ALTER SYSTEM')"
    if connection.info.server_version < _GRANTABLE:
        may_alter = "current_setting('is_superuser') = 'on'"
    query, names = read_sql("parameter_rights").format(may=may_alter), [name.lower() for name in settings]
    rows = {row["name"]: row for row in fetch(connection, query, [names])}
    rights, missing = fetch(connection, RIGHTS)[0], Missing()
    for name, value in settings.items():
        row = rows.get(name.lower())
        if reason := _unsettable_reason(target, row, value):
            missing[f"{name} = {spelled(value)}: {reason}"] = None
        elif row and row["wide"]:
            missing |= _missing_for_server(connection, target, row, rights)
        else:
            missing |= _missing_for_sessions(connection, name, value, rights)
    return missing, {name for name, row in rows.items() if row["wide"]}


def _unsettable_reason(target: Target, row: Mapping[str, Any] | None, value: SettingValue) -> str | None:
    """Return why no role could apply a setting, or None; ``row``: the parameter."""
    if row is None:
        return "the server has no such parameter"
    name, context = row["name"], row["context"]
    reasons = {
        "needs a restart of the server; benchlib does not restart external servers": context == "postmaster",
        "is fixed when the server is built or initialised": context == "internal",
        "would endanger every database of the external server": name in _ENDANGERING and is_off(value),
        "the tables are in a schema of benchlib": name == "search_path" and target.own_schema,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _missing_for_server(
    connection: Session, target: Target, row: Mapping[str, Any], rights: Mapping[str, Any]
) -> Missing:
    """Return why a parameter cannot be set for the whole server."""
    name, missing = row["name"], Missing()
    if not target.server_wide:
        reason = (
            f"{name} applies to the whole server: "
            "set server_wide: true in the level's target to change it for all sessions"
        )
        missing[reason] = None
    if not row["may_alter"]:
        missing |= _missing_grant(connection, "ALTER SYSTEM", name, rights)
    missing |= _missing_right(rights, "may_reload")
    return missing if row["source"] == "default" else missing | _missing_right(rights, "sees_former")


def _missing_for_sessions(
    connection: Session, name: str, value: SettingValue, rights: Mapping[str, Any]
) -> Missing:
    """Return why our sessions cannot set a parameter, by trying it."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT set_config(%s, %s, true)", [name, spelled(value)])
    except psycopg.errors.InsufficientPrivilege:
        return _missing_grant(connection, "SET", name, rights)
    except psycopg.DatabaseError as error:
        if connection.closed:
            raise
        return {f"{name} = {spelled(value)}: {reason_of(error)}": None}
    return {}


def _missing_grant(connection: Session, right: str, name: str, rights: Mapping[str, Any]) -> Missing:
    """Return that the role lacks a right to a parameter, with its GRANT."""
    reason = f"the role {rights['role']} may not {right} {name}"
    if connection.info.server_version < _GRANTABLE:
        return {f"{reason}; before PostgreSQL 15 only superusers may": None}
    return {reason: f"GRANT {right} ON PARAMETER {name} TO {rights['role']}"}


def former_value(connection: Session, name: str) -> str | None:
    """Return the value that ``ALTER SYSTEM`` set before, or None.

    Raises:
        psycopg.Error: the server refuses the query.

    """
    view = "pg_file_settings" if fetch(connection, RIGHTS)[0]["reads_conf"] else "pg_settings"
    return in_auto_conf(connection, view, name)
