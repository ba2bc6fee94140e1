"""Settings of a server that is not ours: whether ``ALTER SYSTEM`` would take them, and what it would replace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from benchlib.plan.level import SettingValue, is_off, is_on
from benchlib.plan.settings import ServerSetting, in_unit
from benchlib.server.changes import words_of

_NAME_LISTS = frozenset(
    {"search_path", "local_preload_libraries", "session_preload_libraries", "temp_tablespaces"}
)
"""``ALTER SYSTEM`` takes such a value name by name, so what stands in its file cannot be given back as it is."""

_ENDANGERING = frozenset({"fsync", "full_page_writes"})
"""Off, a crash may destroy every database of the server."""

_FIXED_BY = {
    "client": "the connection's options",
    "user": "a setting of our role",
    "environment variable": "the server's environment",
    "command line": "the server's command line",
    "override": "the server itself",
}

_RIGHTS = """
    SELECT current_setting('is_superuser') = 'on' AS superuser,
           has_function_privilege('pg_reload_conf()', 'EXECUTE') AS may_reload,
           has_function_privilege('pg_show_all_file_settings()', 'EXECUTE')
             AND has_table_privilege('pg_file_settings', 'SELECT') AS reads_file,
           pg_has_role('pg_read_all_settings', 'MEMBER') AS reads_sources,
           coalesce(current_setting('allow_alter_system', true), 'on') = 'on' AS allowed
"""
_PARAMETERS = """
    SELECT name, setting, unit, vartype, context, source, sourcefile, min_val, max_val, enumvals
    FROM pg_settings WHERE lower(name) = ANY(%s)
"""
_IN_AUTO_CONF = "SELECT lower(name) AS name, setting FROM {} WHERE sourcefile LIKE '%postgresql.auto.conf'"


def spelled(value: SettingValue) -> str:
    """A value as ``ALTER SYSTEM`` takes it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def refusals(connection: psycopg.Connection[Any], settings: Mapping[str, SettingValue]) -> list[str]:
    """Why these settings cannot be set on this server, a line each; empty if they can.

    What only a restart changes, what we have no right to, what could not be restored, and values
    that the server would not take. Nothing is changed to find out.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    return [f"{name} = {spelled(value)}: {why}" for name, value, why in _refused(connection, settings)]


def former_values(connection: psycopg.Connection[Any], names: Iterable[str]) -> dict[str, str | None]:
    """What ``postgresql.auto.conf`` holds of these parameters now; None for what is not in it.

    From the file itself where we may read it, otherwise from what the server says of its sources. Ask
    :func:`refusals` first: of a parameter that passes it, one of the two tells.

    Raises:
        psycopg.Error: the server refuses to be asked.

    """
    found: dict[str, str | None] = dict.fromkeys(names)
    with connection.cursor(row_factory=dict_row) as cursor:
        source = sql.SQL(
            "pg_file_settings" if cursor.execute(_RIGHTS).fetchall()[0]["reads_file"] else "pg_settings"
        )
        held = cursor.execute(sql.SQL(_IN_AUTO_CONF).format(source)).fetchall()
    found.update({row["name"]: row["setting"] for row in held if row["name"] in found})
    return found


def _refused(
    connection: psycopg.Connection[Any], settings: Mapping[str, SettingValue]
) -> Iterator[tuple[str, SettingValue, str]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rights = cursor.execute(_RIGHTS).fetchall()[0]
        known = {row["name"].lower(): row for row in cursor.execute(_PARAMETERS, [list(settings)])}
    for name, value in settings.items():
        if name not in known:
            yield name, value, "the server has no such parameter"
        elif why := (
            _by_nature(name, value, known[name])
            or _by_rights(connection, name, known[name], rights)
            or _by_value(connection, name, value, known[name])
        ):
            yield name, value, why


def _by_nature(name: str, value: SettingValue, row: Mapping[str, Any]) -> str | None:
    if row["context"] == "postmaster":
        return "needs a restart of the server, which is not ours to restart"
    if row["context"] == "internal":
        return "was decided when the server was built or initialised"
    if name in _ENDANGERING and is_off(value):
        return "would endanger every database of a server that is not ours"
    if name in _NAME_LISTS:
        return "a list of names cannot be given back as it was: leave it to the server's owner"
    if row["source"] in _FIXED_BY:
        return f"decided by {_FIXED_BY[row['source']]}, which ALTER SYSTEM does not overrule"
    return None


def _by_rights(
    connection: psycopg.Connection[Any], name: str, row: Mapping[str, Any], rights: Mapping[str, Any]
) -> str | None:
    if not rights["allowed"]:
        return "this server does not allow ALTER SYSTEM (allow_alter_system = off)"
    if not rights["superuser"] and not _has_right(connection, name, "ALTER SYSTEM"):
        return (
            "our role may not ALTER SYSTEM it (superusers may, and from PostgreSQL 15 on who was granted it)"
        )
    if not rights["may_reload"]:
        return "our role may not have the server reload its settings (GRANT EXECUTE ON FUNCTION pg_reload_conf())"
    if not (rights["reads_file"] or rights["reads_sources"] or row["source"] == "default"):
        return "our role may not see what it would replace (GRANT pg_read_all_settings)"
    return None


def _by_value(
    connection: psycopg.Connection[Any], name: str, value: SettingValue, row: Mapping[str, Any]
) -> str | None:
    if row["context"] in ("user", "superuser"):
        try:
            with connection.transaction(force_rollback=True):
                parameter = sql.Identifier(*name.split("."))
                connection.execute(
                    sql.SQL("SET LOCAL {} = {}").format(parameter, sql.Literal(spelled(value)))
                )
        except psycopg.errors.InsufficientPrivilege:
            pass  # the right to alter it does not include this one: what follows must do
        except psycopg.DatabaseError as reason:
            if connection.closed:
                raise
            return words_of(reason)
        else:
            return None
    # a parameter of the whole server cannot be tried without setting it
    text = spelled(value)
    if row["vartype"] == "bool" and not (is_on(text) or is_off(text)):
        return "want on or off"
    words = [word.lower() for word in row["enumvals"] or ()]
    if row["vartype"] == "enum" and not (text.lower() in words or is_on(text) or is_off(text)):
        return f"want one of {', '.join(row['enumvals'])}"
    if row["vartype"] in ("integer", "real"):
        number = in_unit(text, ServerSetting(name, row["setting"], row["unit"], row["vartype"]))
        if number is None:
            return f"want a number{' in ' + row['unit'] if row['unit'] else ''}"
        if not float(row["min_val"]) <= number <= float(row["max_val"]):
            return (
                f"outside of {row['min_val']} to {row['max_val']}{' ' + row['unit'] if row['unit'] else ''}"
            )
    return None


def _has_right(connection: psycopg.Connection[Any], name: str, right: str) -> bool:
    """Whether our role was granted a right on a parameter, which can be since PostgreSQL 15."""
    if connection.info.server_version < 150_000:
        return False
    row = connection.execute("SELECT has_parameter_privilege(%s, %s)", [name, right]).fetchone()
    return bool(row and row[0])
