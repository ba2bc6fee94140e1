"""What names a server that is not ours, and what it allows: asked in SQL, nothing is changed to find out."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from pydantic import Field, model_validator

from benchlib.errors import PreflightError
from benchlib.plan.level import Model, NotEmpty, SettingValue, is_off
from benchlib.plan.settings import spelled
from benchlib.server.server import Session, reason_of

_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
"""The parameters of a libpq connection that are secrets."""

_OUR_SESSIONS = 4
"""Connections beside the clients': the one that asks, those that sample, and pgbench's first."""

MAY_CHECKPOINT = """
    SELECT current_setting('is_superuser') = 'on' OR EXISTS (
        SELECT FROM pg_roles WHERE rolname = 'pg_checkpoint' AND pg_has_role(oid, 'USAGE'))
"""
"""Whether our role may have the server checkpoint: superusers, and since PostgreSQL 15 members of ``pg_checkpoint``."""

_PLACE = """
    SELECT current_user AS role, current_database() AS database, pg_is_in_recovery() AS replica,
           rolsuper OR rolcreatedb AS may_create_database,
           has_database_privilege(current_database(), 'CREATE') AS may_create_schema
    FROM pg_roles WHERE rolname = current_user
"""
_TABLES_OF_OTHERS = """
    SELECT count(*) AS tables FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
      -- those of an extension are nobody's, those in a schema with our mark are ours
      AND coalesce(obj_description(n.oid, 'pg_namespace'), '') !~ '^benchlib [0-9a-f]{8}$'
      AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                      AND d.deptype = 'e')
"""

_LIMIT = """
    -- sessions of ours that have just ended may still be there
    WITH others AS (SELECT * FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                    AND NOT (usename = current_user AND application_name = 'benchlib'))
    SELECT *, most - reserved - in_use AS free FROM (
        SELECT 'max_connections' AS name, current_setting('max_connections')::int AS most,
               current_setting('superuser_reserved_connections')::int
                 + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,
               -- what a session is, the server tells only of our own; every client's has a database
               (SELECT count(*)::int FROM others
                WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend') AS in_use
        UNION ALL SELECT 'our role''s limit', rolconnlimit, 0, (SELECT count(*)::int FROM others WHERE usename = rolname)
        FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0
        UNION ALL SELECT 'the database''s limit', datconnlimit, 0, (SELECT count(*)::int FROM others AS o WHERE o.datname = d.datname)
        FROM pg_database AS d WHERE datname = current_database() AND datconnlimit >= 0 AND %s
    ) AS limits ORDER BY free LIMIT 1
"""
"""The limit on connections that leaves us the fewest; the database's counts where the load runs in it."""

_READS_FILE = """
    has_function_privilege('pg_show_all_file_settings()', 'EXECUTE') AND has_table_privilege('pg_file_settings', 'SELECT')
"""
_PARAMETERS = """
    SELECT lower(name) AS name, context, source,
           coalesce(current_setting('allow_alter_system', true), 'on') = 'on' AS allowed,
           {may_alter} AS may_alter, has_function_privilege('pg_reload_conf()', 'EXECUTE') AS may_reload,
           {reads_file} OR pg_has_role('pg_read_all_settings', 'MEMBER') OR source = 'default' AS former_known
    FROM pg_settings WHERE lower(name) = ANY(%s)
"""
_IN_AUTO_CONF = "SELECT lower(name) AS name, setting FROM {} WHERE sourcefile LIKE '%postgresql.auto.conf'"

_NAME_LISTS = ("search_path", "local_preload_libraries", "session_preload_libraries", "temp_tablespaces")
"""``ALTER SYSTEM`` takes such a value name by name, so what stands in its file cannot be given back as it is."""

_ENDANGERING = ("fsync", "full_page_writes")
"""Off, a crash may destroy every database of the server."""

_OVERRULING = ("client", "user", "environment variable", "command line", "override")
"""Sources of a value, in words of ``pg_settings``, that count more than the file which ``ALTER SYSTEM`` writes."""


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


def check_place(connection: Session, target: Target) -> None:
    """Make sure that we may have a place of our own there, which touches nobody's tables.

    Raises:
        PreflightError: we may not, or others have tables beside it.

    """
    rights = _row(connection, _PLACE)
    role, database = rights["role"], rights["database"]
    if rights["replica"]:
        raise PreflightError(f"the target “{target.server}” is a replica, which can only be read")
    if target.own_schema is None:
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
    others = _row(connection, _TABLES_OF_OTHERS)["tables"]
    if others and target.beside != database:
        raise PreflightError(
            f"the database {database} holds tables of others ({others}): leave 'own_schema' out to have a database "
            f"of our own, or say beside: {database} to work next to them"
        )


def connections(connection: Session, target: Target, clients: int) -> str:
    """How many connections the load needs, and of how many, in words.

    Raises:
        PreflightError: there are not so many.

    """
    limit = _row(connection, _LIMIT, target.own_schema is not None)
    reserved = f" less {limit['reserved']} reserved" if limit["reserved"] else ""
    reason = f"{limit['name']} {limit['most']:,}{reserved} less {limit['in_use']} in use"
    free, needed = limit["free"], clients + _OUR_SESSIONS
    if needed > free:
        raise PreflightError(
            f"{clients:,} clients and {_OUR_SESSIONS} sessions of ours need {needed:,} connections, the target has room for "
            f"{max(free, 0):,} ({reason}): at most {max(free - _OUR_SESSIONS, 0):,} clients, or raise the limit"
        )
    return f"{needed:,} needed of {free:,} ({reason})"


def disk(connection: Session, needs_mib: int) -> str:
    """How much disk the data takes, and of how much, in words.

    Raises:
        PreflightError: less is free.

    """
    free = _free_mib(connection)
    if free is None:
        return f"about {needs_mib:,} MiB needed; what is free there, the server does not tell: look yourself"
    if needs_mib > free:
        raise PreflightError(
            f"the study needs about {needs_mib:,} MiB on the target, {free:,} are free: a smaller scale, or make room"
        )
    return f"about {needs_mib:,} MiB of {free:,} MiB free"


def _free_mib(connection: Session) -> int | None:
    """Free space where the server's data lies, in MiB; None where we may not know.

    No function of PostgreSQL tells it. Who may run programs there (superusers and members of
    ``pg_execute_server_program``) asks ``df``, as POSIX has it.
    """
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("CREATE TEMPORARY TABLE benchlib_df (line text)")
            connection.execute("COPY benchlib_df FROM PROGRAM 'df -Pk .'")
            free = r"SELECT min(substring(line FROM '\s(\d+)\s+\d+%\s')::bigint >> 10)::int AS mib FROM benchlib_df"
            mib: int | None = _row(connection, free)["mib"]
            return mib
    except psycopg.DatabaseError:
        if connection.closed:
            raise
        return None


def refusals(connection: Session, settings: Mapping[str, SettingValue]) -> list[str]:
    """Why these settings cannot be set on this server, a line each; empty if they can.

    What only a restart changes, what we have no right to, what could not be restored, and values that the server
    would not take. Values of a parameter that no session may set cannot be tried: ``ALTER SYSTEM`` itself refuses them.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    privilege = "has_parameter_privilege(name, 'ALTER SYSTEM')"
    if connection.info.server_version < 150_000:  # no role but superusers could be given the right
        privilege = "current_setting('is_superuser') = 'on'"
    query = sql.SQL(_PARAMETERS).format(may_alter=sql.SQL(privilege), reads_file=sql.SQL(_READS_FILE))
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = {row["name"]: row for row in cursor.execute(query, [[name.lower() for name in settings]])}
    lines = []
    for name, value in settings.items():
        row = rows.get(name.lower())
        if reason := _reason(connection, name, value, row) if row else "the server has no such parameter":
            lines.append(f"{name} = {spelled(value)}: {reason}")
    return lines


def _reason(connection: Session, name: str, value: SettingValue, row: Mapping[str, Any]) -> str | None:
    """Why one setting cannot be set, of the server's own ``row`` for its parameter; None if it can."""
    reasons = {
        "needs a restart of the server, which is not ours to restart": row["context"] == "postmaster",
        "was decided when the server was built or initialised": row["context"] == "internal",
        "would endanger every database of a server that is not ours": name in _ENDANGERING and is_off(value),
        "a list of names cannot be given back as it was: leave it to the server's owner": name in _NAME_LISTS,
        f"decided elsewhere ({row['source']}), which ALTER SYSTEM does not overrule": row["source"] in _OVERRULING,
        "this server does not allow ALTER SYSTEM (allow_alter_system = off)": not row["allowed"],
        "our role may not ALTER SYSTEM it (superusers may, and from PostgreSQL 15 on who was granted it)":
            not row["may_alter"],
        "our role may not have the server reload its settings (GRANT EXECUTE ON FUNCTION pg_reload_conf())":
            not row["may_reload"],
        "our role may not see what it would replace (GRANT pg_read_all_settings)": not row["former_known"],
    }  # fmt: skip
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        return reason
    if row["context"] in ("user", "superuser"):
        try:
            with connection.transaction(force_rollback=True):
                connection.execute("SELECT set_config(%s, %s, true)", [name, spelled(value)])
        except psycopg.errors.InsufficientPrivilege:
            return None  # the right to alter it does not include this one
        except psycopg.DatabaseError as error:
            if connection.closed:
                raise
            return reason_of(error)
    return None


def former_values(connection: Session, names: Iterable[str]) -> dict[str, str | None]:
    """What ``postgresql.auto.conf`` holds of these parameters now; None for what is not in it.

    From the file itself where we may read it, otherwise from what the server says of its sources. Ask
    :func:`refusals` first: of a parameter that passes it, one of the two tells.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    reads_file = connection.execute(f"SELECT {_READS_FILE}").fetchall()[0][0]
    view = sql.SQL("pg_file_settings" if reads_file else "pg_settings")
    former = dict(connection.execute(sql.SQL(_IN_AUTO_CONF).format(view)).fetchall())
    return {name: former.get(name.lower()) for name in names}


def _row(connection: Session, query: str, *parameters: object) -> dict[str, Any]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters or None).fetchall()[0]
