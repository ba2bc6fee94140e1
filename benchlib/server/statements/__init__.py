"""A workload from ``pg_stat_statements``, with parameter values from ``pg_stats``.

The server only runs our queries, and prepares each statement to learn its parameter types.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from benchlib.errors import InputError, PreflightError
from benchlib.load.workloads.drawn import can_draw, drawn, filled, value_of
from benchlib.load.workloads.sql import for_pgbench, spoken
from benchlib.server.server import Server, asking, fetch, reason_of

Row = Mapping[str, Any]
_MIB_PER_SCALE = 32  # data and indexes
_MAX_ELEMENTS, _MAX_PARAMETERS = 20, 250
_READ_COMMANDS = {"SELECT", "WITH", "VALUES", "TABLE"}
_WRITE_COMMANDS = {"INSERT", "UPDATE", "DELETE", "MERGE"}
_WRITE_WORDS = _WRITE_COMMANDS | {"INTO", "NEXTVAL", "SETVAL"}
_TYPED = re.compile(r"\b(interval|date|time|timestamp|timestamptz|jsonb?|uuid|inet)\s+(\$\d+)", re.IGNORECASE)
"""The normalised form of ``date '2024-02-29'``, which cannot be prepared."""
_NAME = r'(?:[^\W\d][\w$]*|"(?:[^"]|"")+")'
_COMPARED = (
    rf"(?:(?P<table>{_NAME}) \. )?(?P<column>{_NAME})(?: \))*(?: :: \w+)?(?: \))* "
    r"(?:[-+*/<>=~!@#%^&|?]+|(?:NOT )?(?:I?LIKE|IN|BETWEEN(?: \$\d+(?: :: \w+)? AND)?)|IS (?:NOT )?DISTINCT FROM)"
    r"(?: ANY| ALL| SOME)?(?: \(| ARRAY \[)*(?: \$\d+(?: :: \w+)? ,)* "
)
"""The column compared with the parameter that follows; tokens are separated by one space."""
_INSERTED = rf"INSERT INTO (?:{_NAME} \. )?{_NAME} (?:AS {_NAME} )?\((?P<columns>[^()]*)\) VALUES"
_CONSTANTS = {r"LIMIT|FIRST|NEXT": "{rows_per_call}", "OFFSET": "0", r"SELECT|DISTINCT|THEN|ELSE": "1"}
"""Values of parameters without a column, by the keyword before them."""
_ABSENT = "pg_stat_statements is not in that database: it needs shared_preload_libraries and CREATE EXTENSION"


class _LeftOutError(Exception):
    """The reason why a statement has no script."""


def workload_of(server: Server, name: str, top: int, *, writes: bool) -> tuple[dict[str, Any], list[str]]:
    """Return a workload of the ``top`` most called statements, and its coverage.

    Raises:
        PreflightError: pg_stat_statements is not installed there.
        InputError: no statement can be run.
        ServerError: the server refuses, or is gone.

    """
    outcomes, scripts = dict[str, list[Row]](), list[dict[str, Any]]()
    with asking(), server.connect() as connection:
        reader = _Reader(connection)
        if not (opened := reader.rows("opened")):
            raise PreflightError(_ABSENT)
        scales = opened[0]["scales"]
        for called in reader.rows("called"):
            try:
                if len(scripts) == top:
                    raise _LeftOutError(f"they are not among the {top} most called")
                sql = reader.script(called, scales, writes=writes)
                scripts.append({"weight": called["weight"], "sql": sql})
                outcomes.setdefault("taken", []).append(called)
            except _LeftOutError as reason:
                outcomes.setdefault(f"left out, since {reason}", []).append(called)
        lines = [_share(outcome, outcomes[outcome]) for outcome in sorted(outcomes, reverse=True)]
        if not scripts:
            raise InputError("; ".join(["no statement of pg_stat_statements can be run", *lines]))
        definitions = [row["made"] for row in reader.rows("made", oids=[*reader.tables])]
    tables = [[*columns.values()] for columns in reader.tables.values()]
    rows = [filled(columns, scales) for columns in tables if columns[0]["rows"] > 0]
    keys = {
        "name": name,
        "title": f"The {len(scripts)} most called statements of a server, on tables like its own",
        "prose": f"{'; '.join(lines)}. Scale {scales} has the size of the original database.",
        "pgbench_tables": False,
        "load_sql": "\n".join([*definitions, *rows]),
        "mib_per_scale": _MIB_PER_SCALE,
        "vacuum": [columns[0]["table"] for columns in tables],
        "scripts": scripts,
    }
    return keys, [*lines, f"scale {scales} has the size of that database"]


class _Reader:
    """A reader of statements; ``tables``: used columns by table oid and column name."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.tables: dict[int, dict[str, Row]] = {}

    def rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        return fetch(self.connection, (Path(__file__).parent / f"{query}.sql").read_text(), parameters)

    def script(self, called: Row, scales: int, *, writes: bool) -> str:
        """Return a statement as a script that draws its parameters.

        Raises:
            _LeftOutError: it cannot be one.

        """
        sql = _TYPED.sub(r"\2::\1", called["query"]).rstrip("; \n")
        texts = [text if kind != "text" else "''" for kind, text in spoken(sql)]
        words = [text.upper() for kind, text in spoken(sql) if kind == "word"]
        if sql == "<insufficient privilege>":
            raise _LeftOutError("this role may not read their text (GRANT pg_read_all_stats)")
        if not words or words[0] not in _READ_COMMANDS | _WRITE_COMMANDS:
            raise _LeftOutError("they neither read nor write rows")
        if not writes and _WRITE_WORDS.intersection(words):
            raise _LeftOutError("they write (--writes includes them)")
        try:
            for_pgbench(sql)
            # a prepared query cannot hold a second statement
            self.connection.execute(f"PREPARE benchlib AS {sql}", prepare=True)
            parameters = self.rows("prepared")
            self.connection.execute("DEALLOCATE benchlib")
        except psycopg.errors.InsufficientPrivilege as reason:
            raise _LeftOutError(f"{reason.diag.message_primary} (needs a GRANT)") from None
        except (InputError, psycopg.Error) as reason:
            message = reason_of(reason) if isinstance(reason, psycopg.Error) else str(reason)
            raise _LeftOutError(f"they cannot be prepared: {message}") from None
        names, tables = self._tables(texts)
        if not tables or len(parameters) > _MAX_PARAMETERS:
            raise _LeftOutError(
                "they use no table" if not tables else "they have too many parameters for pgbench"
            )
        lines, values = list[str](), dict[str, str]()
        for number, parameter in enumerate(parameters, 1):
            source = _source(" ".join(texts), number, parameter, names, tables)
            draw, value = (source, "{}") if isinstance(source, str) else drawn(source, scales)
            if not isinstance(source, str) and source["type"].startswith("character"):
                # cut to the column's length
                value = value_of("{}", value, source["type"])
            listed = f"${number} /*, ... */" in sql  # a list of two or more in version 18
            limit = min(called["rows_per_call"], _MAX_ELEMENTS)
            count = limit if parameter["is_array"] else max(2, limit) if listed else 1
            variables = [f"p{number}_{index}" for index in range(count)]
            lines += [f"\\set {variable} {draw.format(**called)}" for variable in variables]
            parts = [value_of(f":{variable}", value, parameter["element"]) for variable in variables]
            values[f"${number}"] = f"ARRAY[{', '.join(parts)}]" if parameter["is_array"] else ", ".join(parts)
        for low, high in re.findall(
            r"BETWEEN (\$\d+)(?: :: \w+)? AND (\$\d+)", " ".join(texts), re.IGNORECASE
        ):
            ends = f"({values[low]}, {values[high]})"
            values[low], values[high] = f"LEAST{ends}", f"GREATEST{ends}"
        self.tables |= tables
        comment = f"-- {called['calls']:,.0f} calls of {called['ms']:.3g} ms"
        return "\n".join([comment, *lines, f"{for_pgbench(sql, values)};\n"])

    def _tables(self, texts: Sequence[str]) -> tuple[dict[str, int], dict[int, dict[str, Row]]]:
        """Return a statement's table oids by name and alias, and their columns."""
        qualified = ("".join(texts[index : index + 3]) for index in range(len(texts)))
        candidates = [name for name in {*texts, *qualified} if re.fullmatch(rf"{_NAME}(\.{_NAME})?", name)]
        functions = [_plain(name) for name, after in pairwise(texts) if after == "("]
        if self.rows("functions", names=functions):
            raise _LeftOutError("they call a function that is not built in")
        names, tables = dict[str, int](), dict[int, dict[str, Row]]()
        for column in self.rows("columns", names=candidates):
            if not column["is_table"]:
                raise _LeftOutError("they use a view, or the server's own catalogs")
            if not column["is_builtin"]:
                raise _LeftOutError("a column has a type that is not built in")
            if column["is_uncounted"]:
                raise _LeftOutError("the size of a table is unknown (ANALYZE it)")
            oid, name = column["oid"], column["given"].split(".")[-1]
            names[_plain(name)] = oid
            for index in (index for index, text in enumerate(texts) if text == name):
                for alias in [text for text in texts[index + 1 : index + 3] if text.upper() != "AS"][:1]:
                    names.setdefault(_plain(alias), oid)
            tables.setdefault(oid, {})[column["plain"]] = column
        return names, tables


def _source(
    text: str, number: int, parameter: Row, names: Mapping[str, int], tables: Mapping[int, Mapping[str, Row]]
) -> Row | str:
    """Return the column or the number that a parameter's values come from."""
    here = rf"\${number}(?!\d)"
    compared = re.search(_COMPARED + here, text, re.IGNORECASE)
    table, name = (compared["table"] or "", compared["column"]) if compared else ("", _inserted(text, here))
    is_written = not compared or re.search(r" SET (?!.* WHERE )", text[: compared.start()], re.IGNORECASE)
    named_oid = names.get(_plain(table))
    for oid in [named_oid] if named_oid else tables:
        column = tables[oid].get(_plain(name))
        if column and column["category"] == parameter["category"]:
            if column["is_key"] and is_written:
                raise _LeftOutError("they write values of a unique column")
            if not can_draw(column):
                raise _LeftOutError("pg_stats has no values of a column (ANALYZE it, or GRANT SELECT on it)")
            return column
    for before, value in _CONSTANTS.items():
        if parameter["category"] in "BNS" and re.search(rf"\b(?:{before}) {here}", text, re.IGNORECASE):
            return value
    raise _LeftOutError(f"the values of a parameter of type {parameter['element']} are unknown")


def _inserted(text: str, parameter: str) -> str:
    """Return the column that an INSERT writes a parameter to; empty if none."""
    match, here = re.search(_INSERTED, text, re.IGNORECASE), re.search(parameter, text)
    depth = position = 0
    for token in text[match.end() : here.start()].split() if match and here else ():
        if not depth and token not in ("(", ","):
            return ""  # after the VALUES
        depth += (token == "(") - (token == ")")
        position = position + (token == "," and depth == 1) if depth else 0
    return match["columns"].split(",")[position].strip() if match and depth == 1 else ""


def _plain(name: str) -> str:
    """Return a name as the catalogs have it."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def _share(outcome: str, rows: Sequence[Row]) -> str:
    """Return an outcome's number of statements and its share of calls and time."""
    calls, time = (sum(row[key] for row in rows) for key in ("share_of_calls", "share_of_time"))
    first = " ".join(rows[0]["query"].split())[:60]
    return f"{outcome}: {len(rows)} ({first} …), {calls:.3g} % of the calls, {time:.3g} % of the time"
