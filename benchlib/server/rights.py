"""What names a server that is not ours, and what it allows: asked in SQL, nothing is changed to find out."""

from collections.abc import Iterable, Mapping
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
"""The parameters of a libpq connection that are secrets."""

_GRANTABLE = 150_000
"""The version from which on other roles than superusers can be given the right to a parameter."""

_OUR_SESSIONS = 5
"""Connections beside the clients': the one that asks, the one by which the run is known, those that sample, and pgbench's first."""

RIGHTS = read_sql("rights")
_NOT_OTHERS = f"^pg_|^information_schema$|{OURS}"
"""The names of schemas that are the server's own or ours."""

_GRANTS = {
    "may_create_database": ("create databases (an 'own_schema' does without)", "ALTER ROLE {role} CREATEDB"),
    "may_create_schema": (
        "create a schema in the database {database}",
        "GRANT CREATE ON DATABASE {database} TO {role}",
    ),
    "may_reload": (
        "have the server reload its settings",
        "GRANT EXECUTE ON FUNCTION pg_reload_conf() TO {role}",
    ),
    "sees_former": ("see what ALTER SYSTEM would replace", "GRANT pg_read_all_settings TO {role}"),
}
"""What a role may not do without one of its rights, and what grants that."""

_NAME_LISTS = ("search_path", "local_preload_libraries", "session_preload_libraries", "temp_tablespaces")
"""``ALTER`` takes such a value name by name, and a text for one name."""

_ENDANGERING = ("fsync", "full_page_writes")
"""Off, a crash may destroy every database of the server."""

_OVERRULING = {
    "server": ("client", "override", "environment variable", "command line"),
    "database": ("client", "override", "user"),
    "sessions": ("override",),
}
"""Sources of a value, in words of ``pg_settings``, that count more than what is set for the server, a database, or our sessions."""

Lacks = dict[str, str | None]
"""Why a target does not do for a level, each reason with the SQL that mends it; None where none does."""


class Target(Model):
    """A server that is not ours: a connection service, or a ``postgresql://`` URI.

    The benchmark makes a database of its own there, or, with ``own_schema``, a schema whose name
    begins so in the database that the service names; where that database holds tables of others it
    is refused unless ``beside`` repeats its name. A text stands for the ``server``. Settings are made for that database,
    or for our sessions; those that no session may have for itself, with ``server_wide`` for everybody.
    Passwords belong into ``.pgpass``, the service file or the environment.
    """

    server: NotEmpty
    own_schema: Annotated[str | None, Field(pattern="^[a-z_][a-z0-9_]{0,49}$")] = None
    beside: NotEmpty | None = None
    server_wide: bool | None = None

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
        if self.beside and not self.own_schema:
            raise ValueError("'beside' names the database that 'own_schema' is made in")
        return self


def insist(connection: Session, target: Target, lacks: Lacks) -> None:
    """Make sure that nothing is lacking.

    Raises:
        PreflightError: something is: all of it, with what grants it.

    """
    if lacks:
        where = f"“{target.server}”, in the database {connection.info.dbname}"
        grants = [(where, grant) for grant in lacks.values() if grant]
        raise PreflightError(f"the target “{target.server}” will not do: {'; '.join(lacks)}", grants)


def of_place(connection: Session, target: Target) -> Lacks:
    """What keeps us from having a place of our own there, which touches nobody's tables."""
    rights, database = fetch(connection, RIGHTS)[0], connection.info.dbname
    lacks: Lacks = {"it is a replica, which can only be read": None} if rights["replica"] else {}
    if target.own_schema is None:
        return lacks | _lacking(rights, "may_create_database")
    others = fetch(connection, read_sql("tables_of_others"), [_NOT_OTHERS])[0]["count"]
    if others and target.beside != database:
        reason = (
            f"the database {database} holds tables of others ({others}): leave 'own_schema' out to have a database "
            f"of our own, or say beside: {database} to work next to them"
        )
        lacks[reason] = None
    return lacks | _lacking(rights, "may_create_schema")


def _lacking(rights: Mapping[str, Any], name: str) -> Lacks:
    """One of some rights, where our role does not have it."""
    what, sql = _GRANTS[name]
    reason = f"the role {{role}} may not {what}".format_map(rights)
    return {} if rights[name] else {reason: sql.format_map(rights)}


def connections(connection: Session, target: Target, clients: int) -> str:
    """How many connections the load needs, and of how many, in words.

    Raises:
        PreflightError: there are not so many.

    """
    limit = fetch(connection, read_sql("limits"), [target.own_schema is not None])[0]
    reserved = f" less {limit['reserved']} reserved" if limit["reserved"] else ""
    reason = f"{limit['name']} {limit['most']:,}{reserved} less {limit['in_use']} in use"
    free, needed = limit["free"], clients + _OUR_SESSIONS
    if needed > free:
        raise PreflightError(
            f"{clients:,} clients and {_OUR_SESSIONS} sessions of ours need {needed:,} connections, the target has room for "
            f"{max(free, 0):,} ({reason}): at most {max(free - _OUR_SESSIONS, 0):,} clients, or raise the limit"
        )
    return f"{needed:,} needed of {free:,} ({reason})"


def of_settings(
    connection: Session, target: Target, settings: Mapping[str, SettingValue]
) -> tuple[Lacks, set[str]]:
    """What keeps these settings from being made on this server; and those that no session may have for itself.

    What only a restart changes, what could not be restored, what we have no right to, and values that the server would not
    take. Values of a parameter that no session may set cannot be tried: ``ALTER SYSTEM`` itself refuses them.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    rights, rows, lacks = fetch(connection, RIGHTS)[0], _parameters(connection, settings), Lacks()
    for name, value in settings.items():
        row = rows.get(name.lower())
        if reason := _unfit(target, row, value):
            lacks[f"{name} = {spelled(value)}: {reason}"] = None
        elif row and row["wide"]:
            lacks |= _for_everybody(connection, target, row, rights)
        else:
            lacks |= _for_us(connection, name, value, rights)
    return lacks, {name for name, row in rows.items() if row["wide"]}


def _unfit(target: Target, row: Mapping[str, Any] | None, value: SettingValue) -> str | None:
    """Why nobody could make a setting, of the server's own ``row`` for its parameter; None if somebody could."""
    if row is None:
        return "the server has no such parameter"
    name = row["name"]
    whose = "server" if row["wide"] else "sessions" if target.own_schema else "database"
    reasons = {
        "needs a restart of the server, which is not ours to restart": row["context"] == "postmaster",
        "was decided when the server was built or initialised": row["context"] == "internal",
        "would endanger every database of a server that is not ours": name in _ENDANGERING and is_off(value),
        "a list of names would be taken for one: leave it to the server's owner": name in _NAME_LISTS,
        f"decided elsewhere ({row['source']}), which counts more": row["source"] in _OVERRULING[whose],
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _for_everybody(
    connection: Session, target: Target, row: Mapping[str, Any], rights: Mapping[str, Any]
) -> Lacks:
    """What keeps us from setting a parameter for the whole server."""
    name, lacks = row["name"], Lacks()
    if not target.server_wide:
        ask = "say server_wide: true in the level's target, and everybody there gets it"
        lacks[f"{name} is the whole server's: {ask}"] = None
    if not rights["alterable"]:
        lacks["this server does not allow ALTER SYSTEM (allow_alter_system = off)"] = None
    if not row["may_alter"]:
        lacks |= _ungranted(connection, "ALTER SYSTEM", name, rights)
    lacks |= _lacking(rights, "may_reload")
    return lacks if row["source"] == "default" else lacks | _lacking(rights, "sees_former")


def _for_us(connection: Session, name: str, value: SettingValue, rights: Mapping[str, Any]) -> Lacks:
    """What keeps us from setting a parameter for our own sessions: it is tried for one transaction."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT set_config(%s, %s, true)", [name, spelled(value)])
    except psycopg.errors.InsufficientPrivilege:
        return _ungranted(connection, "SET", name, rights)
    except psycopg.DatabaseError as error:
        if connection.closed:
            raise
        return {f"{name} = {spelled(value)}: {reason_of(error)}": None}
    return {}


def _ungranted(connection: Session, right: str, name: str, rights: Mapping[str, Any]) -> Lacks:
    """That our role has no right to a parameter."""
    reason = f"the role {rights['role']} may not {right} {name}"
    if connection.info.server_version < _GRANTABLE:
        return {f"{reason}, as before PostgreSQL 15 superusers alone may": None}
    return {reason: f"GRANT {right} ON PARAMETER {name} TO {rights['role']}"}


def former_value(connection: Session, name: str) -> str | None:
    """What ``ALTER SYSTEM`` has set; None for nothing.

    From the file itself where we may read it, otherwise from what the server says of its sources: one of the two
    tells it of a parameter that :func:`of_settings` has nothing against.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    view = "pg_file_settings" if fetch(connection, RIGHTS)[0]["reads_conf"] else "pg_settings"
    return in_auto_conf(connection, view, name)


def _parameters(connection: Session, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the server says of some parameters, by the name; of one that it does not have, nothing."""
    may = "has_parameter_privilege(name, 'ALTER SYSTEM')"
    if connection.info.server_version < _GRANTABLE:
        may = "current_setting('is_superuser') = 'on'"
    rows = fetch(connection, read_sql("asked_parameters").format(may=may), [[name.lower() for name in names]])
    return {row["name"]: row for row in rows}
