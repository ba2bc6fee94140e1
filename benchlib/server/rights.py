"""What names a server that is not ours, and what it allows: asked in SQL, nothing is changed to find out."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import psycopg
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

MAY_READ_FILES = """
    SELECT current_setting('is_superuser') = 'on'
        OR has_function_privilege('pg_read_file(text, bigint, bigint, boolean)', 'EXECUTE') AND EXISTS (
            SELECT FROM pg_roles WHERE rolname = 'pg_read_server_files' AND pg_has_role(oid, 'USAGE'))
"""
"""Whether our role may have the server read files of its host, such as those of its kernel."""

_READS_CONF = """
    has_function_privilege('pg_show_all_file_settings()', 'EXECUTE') AND has_table_privilege('pg_file_settings', 'SELECT')
"""
_RIGHTS = f"""
    SELECT quote_ident(current_user) AS role, quote_ident(current_database()) AS database, pg_is_in_recovery() AS replica,
           rolsuper OR rolcreatedb AS may_create_database, current_setting('server_version_num')::int >= 150000 AS grantable,
           has_database_privilege(current_database(), 'CREATE') AS may_create_schema,
           coalesce(current_setting('allow_alter_system', true), 'on') = 'on' AS alterable,
           has_function_privilege('pg_reload_conf()', 'EXECUTE') AS may_reload, {_READS_CONF} AS reads_conf,
           {_READS_CONF} OR pg_has_role('pg_read_all_settings', 'USAGE') AS sees_former
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

_PARAMETERS = """
    SELECT lower(name) AS name, context, source, context NOT IN ('user', 'superuser') AS wide, {} AS may_alter
    FROM pg_settings WHERE lower(name) = ANY(%s)
"""
_IN_AUTO_CONF = "SELECT setting FROM {} WHERE lower(name) = %s AND sourcefile LIKE '%%postgresql.auto.conf'"
_OF_OUR_ROLE = """
    SELECT substr(item, strpos(item, '=') + 1) AS setting FROM pg_db_role_setting, unnest(setconfig) AS item
    WHERE lower(split_part(item, '=', 1)) = %s
      AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND setrole = (SELECT oid FROM pg_roles WHERE rolname = current_user)
"""

_NAME_LISTS = ("search_path", "local_preload_libraries", "session_preload_libraries", "temp_tablespaces")
"""``ALTER`` takes such a value name by name, so what it had before cannot be given back as it is."""

_ENDANGERING = ("fsync", "full_page_writes")
"""Off, a crash may destroy every database of the server."""

_OVERRULING = {
    "server": ("client", "override", "environment variable", "command line"),
    "database": ("client", "override", "user"),
    "role": ("client", "override"),
}
"""Sources of a value, in words of ``pg_settings``, that count more than what is set for the whole server, for a database, or for
a role in a database."""


class Target(Model):
    """A server that is not ours: a connection service, or a ``postgresql://`` URI.

    The benchmark makes a database of its own there, or, with ``own_schema``, a schema whose name
    begins so in the database that the service names; where that database holds tables of others it
    is refused unless ``beside`` repeats its name. A text stands for the ``server``. Settings are made for that database,
    or for our role in the one that is named; those that no session may have for itself, with ``server_wide`` for everybody.
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
        if self.own_schema and self.own_schema.startswith("pg_"):
            raise ValueError("names that begin with pg_ are the server's own")
        if self.beside and not self.own_schema:
            raise ValueError("'beside' names the database that 'own_schema' is made in")
        return self


class Lack(NamedTuple):
    """Why a target does not do for a level, and the SQL that mends it; None where none does."""

    reason: str
    grant: str | None = None


def insist(connection: Session, target: Target, lacks: Iterable[Lack]) -> None:
    """Make sure that nothing is lacking.

    Raises:
        PreflightError: something is: all of it, with what grants it.

    """
    if lacks := list(dict.fromkeys(lacks)):
        reasons, where = reasons_of(lacks), f"“{target.server}”, in the database {connection.info.dbname}"
        grants = [(where, lack.grant) for lack in lacks if lack.grant]
        raise PreflightError(f"the target “{target.server}” will not do: {reasons}", grants)


def reasons_of(lacks: Iterable[Lack]) -> str:
    """Why, each reason once, in a line."""
    return "; ".join(dict.fromkeys(lack.reason for lack in lacks))


def of_place(connection: Session, target: Target) -> Iterator[Lack]:
    """What keeps us from having a place of our own there, which touches nobody's tables."""
    rights, database = _row(connection, _RIGHTS), connection.info.dbname
    role = rights["role"]
    if rights["replica"]:
        yield Lack("it is a replica, which can only be read")
    if target.own_schema is None:
        if not rights["may_create_database"]:
            reason = f"the role {role} may not create databases (an 'own_schema' does without)"
            yield Lack(reason, f"ALTER ROLE {role} CREATEDB")
        return
    if not rights["may_create_schema"]:
        reason = f"the role {role} may not create a schema in the database {database}"
        yield Lack(reason, f"GRANT CREATE ON DATABASE {rights['database']} TO {role}")
    others = _row(connection, _TABLES_OF_OTHERS)["tables"]
    if others and target.beside != database:
        yield Lack(
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


def of_settings(connection: Session, target: Target, settings: Mapping[str, SettingValue]) -> Iterator[Lack]:
    """What keeps these settings from being made on this server.

    What only a restart changes, what could not be restored, what we have no right to, and values that the server would not
    take. Values of a parameter that no session may set cannot be tried: ``ALTER SYSTEM`` itself refuses them.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    rights, rows = _row(connection, _RIGHTS), _parameters(connection, settings)
    for name, value in settings.items():
        row = rows.get(name.lower())
        if reason := _unfit(target, row, value):
            yield Lack(f"{name} = {spelled(value)}: {reason}")
        elif row and row["wide"]:
            yield from _for_everybody(target, row, rights)
        elif lack := _for_us(connection, name, value, rights):
            yield lack


def _unfit(target: Target, row: Mapping[str, Any] | None, value: SettingValue) -> str | None:
    """Why nobody could make a setting, of the server's own ``row`` for its parameter; None if somebody could."""
    if row is None:
        return "the server has no such parameter"
    name = row["name"]
    whose = "server" if row["wide"] else "role" if target.own_schema else "database"
    reasons = {
        "needs a restart of the server, which is not ours to restart": row["context"] == "postmaster",
        "was decided when the server was built or initialised": row["context"] == "internal",
        "would endanger every database of a server that is not ours": name in _ENDANGERING and is_off(value),
        "a list of names cannot be given back as it was: leave it to the server's owner": name in _NAME_LISTS,
        f"decided elsewhere ({row['source']}), which counts more": row["source"] in _OVERRULING[whose],
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _for_everybody(target: Target, row: Mapping[str, Any], rights: Mapping[str, Any]) -> Iterator[Lack]:
    """What keeps us from setting a parameter for the whole server."""
    name, role = row["name"], rights["role"]
    if not target.server_wide:
        yield Lack(
            f"{name} is the whole server's: say server_wide: true in the level's target, and everybody there gets it"
        )
    if not rights["alterable"]:
        yield Lack("this server does not allow ALTER SYSTEM (allow_alter_system = off)")
    if not row["may_alter"]:
        yield _ungranted("ALTER SYSTEM", name, rights)
    if not rights["may_reload"]:
        grant = f"GRANT EXECUTE ON FUNCTION pg_reload_conf() TO {role}"
        yield Lack(f"the role {role} may not have the server reload its settings", grant)
    if not rights["sees_former"] and row["source"] != "default":
        grant = f"GRANT pg_read_all_settings TO {role}"
        yield Lack(f"the role {role} may not see what ALTER SYSTEM would replace", grant)


def _for_us(connection: Session, name: str, value: SettingValue, rights: Mapping[str, Any]) -> Lack | None:
    """What keeps us from setting a parameter for our own sessions: it is tried for one transaction."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT set_config(%s, %s, true)", [name, spelled(value)])
    except psycopg.errors.InsufficientPrivilege:
        return _ungranted("SET", name, rights)
    except psycopg.DatabaseError as error:
        if connection.closed:
            raise
        return Lack(f"{name} = {spelled(value)}: {reason_of(error)}")
    return None


def _ungranted(right: str, name: str, rights: Mapping[str, Any]) -> Lack:
    """That our role has no right to a parameter."""
    reason = f"the role {rights['role']} may not {right} {name}"
    if not rights["grantable"]:
        return Lack(f"{reason}, as before PostgreSQL 15 superusers alone may")
    return Lack(reason, f"GRANT {right} ON PARAMETER {name} TO {rights['role']}")


def server_wide(connection: Session, names: Iterable[str]) -> set[str]:
    """Those of some parameters that no session may have for itself."""
    return {name for name, row in _parameters(connection, names).items() if row["wide"]}


def former_value(connection: Session, name: str, *, wide: bool) -> str | None:
    """What ``ALTER SYSTEM`` has set, or what our role has in this database; None for nothing.

    The former from the file itself where we may read it, otherwise from what the server says of its sources: one of the two
    tells it of a parameter that :func:`of_settings` has nothing against.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    reads_conf = _row(connection, _RIGHTS)["reads_conf"]
    query = (
        _IN_AUTO_CONF.format("pg_file_settings" if reads_conf else "pg_settings") if wide else _OF_OUR_ROLE
    )
    row = connection.execute(query, [name.lower()]).fetchone()
    return row[0] if row else None


def _parameters(connection: Session, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the server says of some parameters, by the name; of one that it does not have, nothing."""
    may = "has_parameter_privilege(name, 'ALTER SYSTEM')"
    if connection.info.server_version < 150_000:  # no role but superusers could be given the right
        may = "current_setting('is_superuser') = 'on'"
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_PARAMETERS.format(may), [[name.lower() for name in names]])
        return {row["name"]: row for row in rows}


def _row(connection: Session, query: str, *parameters: object) -> dict[str, Any]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters or None).fetchall()[0]
