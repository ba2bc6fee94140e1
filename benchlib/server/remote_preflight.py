"""What a server that is not ours allows, asked before anything is changed on it."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row

from benchlib.errors import PreflightError
from benchlib.plan.level import SettingValue, Target
from benchlib.server.changes import connect_to, words_of
from benchlib.server.remote_settings import refusals

OUR_SESSIONS = 4
"""Connections beside the clients': the one that asks, those that sample, and pgbench's first."""

_OLDEST = 10
_HINTS = {
    "password": "; passwords come from the service file, PGPASSWORD or .pgpass",
    "definition of service": "; services stand in ~/.pg_service.conf, or in the file that PGSERVICEFILE names",
}
_MEBIBYTE = 1 << 20

_ROOM = """
    SELECT current_setting('max_connections')::int AS most,
           current_setting('superuser_reserved_connections')::int
             + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,
           -- what a session is, the server tells only of our own; every client's has a database
           (SELECT count(*)::int FROM pg_stat_activity
            WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
              AND pid <> pg_backend_pid()) AS in_use,
           (SELECT count(*)::int FROM pg_stat_activity
            WHERE usename = current_user AND pid <> pg_backend_pid()) AS ours_in_use,
           (SELECT count(*)::int FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()) AS here_in_use,
           (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role_limit,
           (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit
"""
_RIGHTS = """
    SELECT current_user AS role, current_database() AS database, pg_is_in_recovery() AS replica,
           rolsuper AS superuser, rolsuper OR rolcreatedb AS may_create_database,
           has_database_privilege(current_database(), 'CREATE') AS may_create_schema
    FROM pg_roles WHERE rolname = current_user
"""
MAY_CHECKPOINT = """
    SELECT current_setting('is_superuser') = 'on' OR EXISTS (
        SELECT FROM pg_roles WHERE rolname = 'pg_checkpoint' AND pg_has_role(oid, 'USAGE'))
"""
"""Whether our role may have the server checkpoint: superusers, and since PostgreSQL 15 members of ``pg_checkpoint``."""

_TABLES_OF_OTHERS = """
    SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
      -- those of an extension are nobody's, those in a schema with our mark are ours
      AND coalesce(obj_description(n.oid, 'pg_namespace'), '') !~ '^benchlib [0-9a-f]{8}$'
      AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                      AND d.deptype = 'e')
"""


def preflight(
    target: Target, *, clients: int, settings: Mapping[str, SettingValue], needs_mib: int
) -> list[tuple[str, str]]:
    """What the server offers of what a level asks for, as pairs of words, of which the first names its
    connection service. Nothing is changed on it.

    ``clients`` is the most that the load uses at once, ``needs_mib`` what its data takes, in MiB.

    Raises:
        PreflightError: it cannot be reached, or something is missing; one line says what.

    """
    with reaching(target) as connection:
        version = connection.info.parameter_status("server_version") or "of an unknown version"
        if connection.info.server_version < _OLDEST * 10_000:
            raise PreflightError(f"the target runs PostgreSQL {version}: {_OLDEST} or later is needed")
        check_rights(connection, target)
        if why := refusals(connection, settings):
            raise PreflightError(f"the target “{target.server}” cannot run these settings: {'; '.join(why)}")
        place = f"a schema {target.own_schema}" if target.own_schema else "a database"
        altered = [f"ALTER SYSTEM {name}" for name in settings]
        may_checkpoint = connection.execute(MAY_CHECKPOINT).fetchall()[0][0]
        checkpoints = (
            "CHECKPOINT" if may_checkpoint else "no CHECKPOINT, so a trial starts with what is dirty"
        )
        encrypted = "encrypted" if connection.pgconn.ssl_in_use else "not encrypted"
        name = "server by URI" if "://" in target.server else f"service {target.server}"
        return [
            (name, f"PostgreSQL {version}, answers in {_round_trip_ms(connection):.2g} ms, {encrypted}"),
            (f"{name}, connections", _connections(connection, target, clients)),
            (f"{name}, rights", ", ".join([f"{place} of our own", *altered, checkpoints])),
            (f"{name}, disk", _disk(connection, needs_mib)),
        ]


@contextlib.contextmanager
def reaching(target: Target) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the target as its user names it.

    Raises:
        PreflightError: it cannot be reached, or refuses; in one line, with what to look at.

    """
    try:
        with connect_to(target.server) as connection:
            yield connection
    except psycopg.Error as reason:
        words = words_of(reason)
        hint = next((hint for mark, hint in _HINTS.items() if mark in words), "")
        raise PreflightError(f"the target “{target.server}” cannot be used: {words}{hint}") from reason


def check_rights(connection: psycopg.Connection[Any], target: Target) -> None:
    """Make sure that we may have a place of our own there, which touches nobody's tables.

    Raises:
        PreflightError: we may not, or others have tables beside it.

    """
    with connection.cursor(row_factory=dict_row) as cursor:
        rights = cursor.execute(_RIGHTS).fetchall()[0]
    role, database, schema = rights["role"], rights["database"], target.own_schema
    if rights["replica"]:
        raise PreflightError(f"the target “{target.server}” is a replica, which can only be read")
    if schema is None:
        if not rights["may_create_database"]:
            raise PreflightError(
                f"the role {role} may not create databases on the target: ALTER ROLE {role} CREATEDB, or name an "
                "'own_schema' in a database where it may create one"
            )
        return
    if not rights["may_create_schema"]:
        raise PreflightError(
            f"the role {role} may not create a schema in the database {database}: "
            f"GRANT CREATE ON DATABASE {database} TO {role}"
        )
    others = connection.execute(_TABLES_OF_OTHERS).fetchall()[0][0]
    if others and target.beside != database:
        raise PreflightError(
            f"the database {database} holds tables of others ({others}): leave 'own_schema' out to have a database "
            f"of our own, or say beside: {database} to work next to them"
        )


def _connections(connection: psycopg.Connection[Any], target: Target, clients: int) -> str:
    with connection.cursor(row_factory=dict_row) as cursor:
        room = cursor.execute(_ROOM).fetchall()[0]
    bounds = [
        (
            room["most"] - room["reserved"] - room["in_use"],
            f"max_connections {room['most']:,} less {room['reserved']} reserved less {room['in_use']} in use",
        )
    ]
    if room["role_limit"] >= 0:
        bounds.append(
            (
                room["role_limit"] - room["ours_in_use"],
                f"our role's limit {room['role_limit']:,} less {room['ours_in_use']} in use",
            )
        )
    if target.own_schema and room["database_limit"] >= 0:
        bounds.append(
            (
                room["database_limit"] - room["here_in_use"],
                f"the database's limit {room['database_limit']:,} less {room['here_in_use']} in use",
            )
        )
    free, words = min(bounds)
    needed = clients + OUR_SESSIONS
    if needed > free:
        raise PreflightError(
            f"{clients:,} clients and {OUR_SESSIONS} sessions of ours need {needed:,} connections, the target has room for "
            f"{max(free, 0):,} ({words}): at most {max(free - OUR_SESSIONS, 0):,} clients, or raise the limit"
        )
    return f"{needed:,} needed of {free:,} ({words})"


def _round_trip_ms(connection: psycopg.Connection[Any]) -> float:
    """How long an empty question takes, in milliseconds: the median of nine."""
    times = []
    for _ in range(9):
        started = time.perf_counter()
        connection.execute("SELECT 1")
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def _disk(connection: psycopg.Connection[Any], needs_mib: int) -> str:
    free = _free_mib(connection)
    if free is None:
        return f"about {needs_mib:,} MiB needed; what is free there, the server does not tell: look yourself"
    if needs_mib > free:
        raise PreflightError(
            f"the study needs about {needs_mib:,} MiB on the target, {free:,} are free: a smaller scale, or make room"
        )
    return f"about {needs_mib:,} MiB of {free:,} MiB free"


def _free_mib(connection: psycopg.Connection[Any]) -> int | None:
    """Free space where the server's data lies, in MiB; None where we may not know.

    No function of PostgreSQL tells it. Who may run programs there (superusers and members of
    ``pg_execute_server_program``) asks ``df``, as POSIX has it.
    """
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("CREATE TEMPORARY TABLE benchlib_df (line text)")
            connection.execute("COPY benchlib_df FROM PROGRAM 'df -Pk .'")
            lines = [row[0] for row in connection.execute("SELECT line FROM benchlib_df")]
    except psycopg.DatabaseError:
        if connection.closed:
            raise
        return None
    match = re.search(r"\s(\d+)\s+\d+%\s", lines[-1]) if lines else None
    return int(match[1]) * 1024 // _MEBIBYTE if match else None
