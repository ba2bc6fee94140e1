"""A workload from ``pg_stat_statements``, with values from ``pg_stats`` or from rows of the tables.

The server only runs read-only queries, and prepares each statement to learn its parameter types.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchlib.errors import InputError, PreflightError
from benchlib.load.workloads.drawn import can_draw, drawn, filled, value_of
from benchlib.load.workloads.sql import for_pgbench, literal, one_of, spoken
from benchlib.plan.metrics import number_words
from benchlib.server.server import Server, asking, fetch, reason_of, refuse_pooler
from benchlib.server.statements.coverage import SAMPLES, Row, check_use, chosen

Tables = dict[int, dict[str, Row]]
"""Columns by their names, by the oid of their table."""
_MIB_PER_SCALE = 32  # data and indexes
_MAX_ELEMENTS, _MAX_PARAMETERS = 20, 250
_READ_ROWS = 20_000
"""About how many rows of a table the samples come from."""
_BEGIN = ["SET default_transaction_read_only = on", "SET statement_timeout = '60s'"]
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


def workload_of(
    server: Server, name: str, top: int, *, writes: bool, real: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return a workload of the ``top`` most called statements, and its coverage.

    With ``real`` the values are from rows, and ``data`` names the tables. Otherwise tables are made from ``pg_stats``.

    Raises:
        PreflightError: pg_stat_statements is not installed there.
        InputError: no statement can be run.
        ServerError: the server refuses, or is gone.

    """
    with asking(), server.connect() as connection:
        reader = _Reader(connection, writes=writes, real=real)
        scripts, lines = chosen(reader.rows("called"), top, "most called", reader.script)
        found = reader.rows("needed" if real else "made", oids=[*reader.tables])
    where = "its data" if real else "tables like its own"
    tables = [[*columns.values()] for columns in reader.tables.values()]
    keys: dict[str, Any] = {
        "name": name,
        "title": f"The {len(scripts)} most called statements of a server, on {where}",
        "prose": "; ".join(lines),
        "private": True,
        "pgbench_tables": False,
        "vacuum": [columns[0]["table"] for columns in tables],
        "scripts": scripts,
    }
    if real:
        (needed,) = found
        keys["data"] = {"tables": [] if needed["lacking"] else needed["tables"]}
        if needed["lacking"]:
            lines.append(f"data: the whole database, since the tables need {needed['lacking']}")
        return keys, lines
    scales = reader.scales
    rows = [filled(columns, scales) for columns in tables if columns[0]["rows"] > 0]
    keys["prose"] += f". Scale {scales} has the size of the original database."
    keys |= {"load_sql": "\n".join([*(row["made"] for row in found), *rows]), "mib_per_scale": _MIB_PER_SCALE}
    return keys, [*lines, f"scale {scales} has the size of that database"]


class _Reader:
    def __init__(self, connection: psycopg.Connection[Any], *, writes: bool, real: bool) -> None:
        self.connection, self.writes, self.real = connection, writes, real
        self.tables = Tables()
        refuse_pooler(connection)
        for statement in _BEGIN:
            connection.execute(statement)
        if not (opened := self.rows("opened")):
            raise PreflightError(_ABSENT)
        self.scales: int = opened[0]["scales"]

    def rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        return fetch(self.connection, (Path(__file__).parent / f"{query}.sql").read_text(), parameters)

    def script(self, called: Row) -> str:
        """Return a script, or raise an InputError with the reason why there is none."""
        sql = _TYPED.sub(r"\2::\1", called["query"]).rstrip("; \n")
        texts = [text if kind != "text" else "''" for kind, text in spoken(sql)]
        if sql == "<insufficient privilege>":
            raise InputError("this role may not read their text (GRANT pg_read_all_stats)")
        check_use(spoken(sql), writes=self.writes)
        try:
            for_pgbench(sql)
            # a prepared query cannot hold a second statement
            self.connection.execute(f"PREPARE benchlib AS {sql}", prepare=True)
            parameters = self.rows("prepared")
            self.connection.execute("DEALLOCATE benchlib")
        except psycopg.errors.InsufficientPrivilege as reason:
            raise InputError(f"{reason.diag.message_primary} (needs a GRANT)") from None
        except (InputError, psycopg.Error) as reason:
            message = reason_of(reason) if isinstance(reason, psycopg.Error) else str(reason)
            raise InputError(f"they cannot be prepared: {message}") from None
        names, tables = self._tables(texts)
        if not tables or len(parameters) > _MAX_PARAMETERS:
            raise InputError(
                "they use no table" if not tables else "they have too many parameters for pgbench"
            )
        text, comment = " ".join(texts), f"-- {called['calls']:,.0f} calls of {number_words(called['ms'])} ms"
        limit = min(called["rows_per_call"], _MAX_ELEMENTS)
        uses = list[_Use]()
        for number, parameter in enumerate(parameters, 1):
            source = self._source(text, number, parameter, names, tables)
            listed = f"${number} /*, ... */" in sql  # a list of two or more in version 18
            count = limit if parameter["is_array"] else max(2, limit) if listed else 1
            uses.append(_Use(source, count, parameter["element"], parameter["is_array"]))
        between = re.findall(r"BETWEEN \$(\d+)(?: :: \w+)? AND \$(\d+)", text, re.IGNORECASE)

        def with_values(parts: Sequence[Sequence[str]]) -> str:
            values = [
                f"ARRAY[{', '.join(part)}]" if use.is_array else ", ".join(part)
                for use, part in zip(uses, parts, strict=True)
            ]
            for low, high in ((int(low) - 1, int(high) - 1) for low, high in between):
                ends = f"({values[low]}, {values[high]})"
                values[low], values[high] = f"LEAST{ends}", f"GREATEST{ends}"
            by_parameter = {f"${number}": value for number, value in enumerate(values, 1)}
            return f"{for_pgbench(sql, by_parameter)};\n"

        if self.real:
            script = one_of(with_values(parts) for parts in self._from_rows(uses, called))
        else:
            lines, parts = _draws(uses, called, self.scales)
            script = "\n".join([*lines, with_values(parts)])
        self.tables |= tables
        return f"{comment}\n{script}"

    def _from_rows(self, uses: Sequence["_Use"], called: Row) -> list[list[list[str]]]:
        """Return the values of 16 executions."""
        columns = Tables()
        for column in (use.source for use in uses if not isinstance(use.source, str)):
            columns.setdefault(column["oid"], {})[column["plain"]] = column
        samples = {oid: self._sample([*named.values()]) for oid, named in columns.items()}
        executions = []
        for execution in range(SAMPLES):
            drawn_from, parts = Counter[tuple[int, str]](), list[list[str]]()
            for source, count, element, _ in uses:
                if isinstance(source, str):
                    value, texts = "{}", [source.format(**called)] * count
                else:
                    rows, place = samples[source["oid"]], (source["oid"], source["plain"])
                    # a second value, the end of a range or of a list, is from another row
                    first = execution + drawn_from[place]
                    drawn_from[place] += count
                    value = "{}" if source["type"] == element else f"CAST({{}} AS {source['type']})"
                    chosen_rows = (rows[index % len(rows)] for index in range(first, first + count))
                    texts = [literal(row[source["plain"]]) for row in chosen_rows]
                parts.append([value_of(text, value, element) for text in texts])
            executions.append(parts)
        return executions

    def _sample(self, columns: Sequence[Row]) -> list[dict[str, str]]:
        table, names = columns[0]["table"], [column["name"] for column in columns]
        listed = ", ".join(f"{name}::text" for name in names)
        known = " AND ".join(f"{name} IS NOT NULL" for name in names)
        percent = min(100, 100 * _READ_ROWS / max(1, columns[0]["rows"]))
        for source in (
            f"{table} TABLESAMPLE SYSTEM ({percent:.6f}) WHERE {known}",
            f"(SELECT {', '.join(names)} FROM {table} WHERE {known} LIMIT {_READ_ROWS}) AS rows",
        ):
            with asking(f"rows of {table} cannot be read", InputError):
                sample = f"SELECT {listed} FROM {source} ORDER BY random() LIMIT {SAMPLES}"
                rows = self.connection.execute(sample.encode()).fetchall()
            if rows:
                return [dict(zip((column["plain"] for column in columns), row, strict=True)) for row in rows]
        raise InputError(f"{table} has no row with values of their parameters")

    def _tables(self, texts: Sequence[str]) -> tuple[dict[str, int], Tables]:
        """Return oids by name, and columns."""
        qualified = ("".join(texts[index : index + 3]) for index in range(len(texts)))
        candidates = [name for name in {*texts, *qualified} if re.fullmatch(rf"{_NAME}(\.{_NAME})?", name)]
        functions = [_plain(name) for name, after in pairwise(texts) if after == "("]
        if self.rows("functions", names=functions):
            raise InputError("they call a function that is not built in")
        names, tables = dict[str, int](), Tables()
        for column in self.rows("columns", names=candidates):
            if not column["is_table"]:
                raise InputError("they use a view, or the server's own catalogs")
            if not column["is_builtin"]:
                raise InputError("a column has a type that is not built in")
            if column["is_uncounted"]:
                raise InputError("the size of a table is unknown (ANALYZE it)")
            oid, name = column["oid"], column["given"].split(".")[-1]
            names[_plain(name)] = oid
            for index in (index for index, text in enumerate(texts) if text == name):
                for alias in [text for text in texts[index + 1 : index + 3] if text.upper() != "AS"][:1]:
                    names.setdefault(_plain(alias), oid)
            tables.setdefault(oid, {})[column["plain"]] = column
        return names, tables

    def _source(
        self, text: str, number: int, parameter: Row, names: Mapping[str, int], tables: Tables
    ) -> Row | str:
        """Return a parameter's column or constant."""
        here = rf"\${number}(?!\d)"
        compared = re.search(_COMPARED + here, text, re.IGNORECASE)
        table, name = (
            (compared["table"] or "", compared["column"]) if compared else ("", _inserted(text, here))
        )
        is_written = not compared or re.search(r" SET (?!.* WHERE )", text[: compared.start()], re.IGNORECASE)
        named_oid = names.get(_plain(table))
        for oid in [named_oid] if named_oid else tables:
            column = tables[oid].get(_plain(name))
            if column and column["category"] == parameter["category"]:
                if column["is_key"] and is_written:
                    raise InputError("they write values of a unique column")
                if not self.real and not can_draw(column):
                    raise InputError("pg_stats has no values of a column (ANALYZE it, or GRANT SELECT on it)")
                return column
        for before, value in _CONSTANTS.items():
            if parameter["category"] in "BNS" and re.search(rf"\b(?:{before}) {here}", text, re.IGNORECASE):
                return value
        raise InputError(f"the values of a parameter of type {parameter['element']} are unknown")


class _Use(NamedTuple):
    """A parameter; ``source``: column or constant."""

    source: Row | str
    times: int
    element: str
    is_array: bool


def _draws(uses: Sequence[_Use], called: Row, scales: int) -> tuple[list[str], list[list[str]]]:
    lines, parts = list[str](), list[list[str]]()
    for number, (source, count, element, _) in enumerate(uses, 1):
        draw, value = (source, "{}") if isinstance(source, str) else drawn(source, scales)
        if not isinstance(source, str) and source["type"].startswith("character"):
            value = value_of("{}", value, source["type"])  # cut to the column's length
        variables = [f"p{number}_{index}" for index in range(count)]
        lines += [f"\\set {variable} {draw.format(**called)}" for variable in variables]
        parts.append([value_of(f":{variable}", value, element) for variable in variables])
    return lines, parts


def _inserted(text: str, parameter: str) -> str:
    """Return an inserted parameter's column."""
    match, here = re.search(_INSERTED, text, re.IGNORECASE), re.search(parameter, text)
    depth = position = 0
    for token in text[match.end() : here.start()].split() if match and here else ():
        if not depth and token not in ("(", ","):
            return ""  # after the VALUES
        depth += (token == "(") - (token == ")")
        position = position + (token == "," and depth == 1) if depth else 0
    return match["columns"].split(",")[position].strip() if match and depth == 1 else ""


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def plan_settings(server: Server) -> tuple[int, dict[str, str]]:
    """Return major version and planner settings that are no defaults."""
    rows = server.query((Path(__file__).parent / "kept.sql").read_text())
    return int(server.value("SHOW server_version_num")) // 10_000, {row["name"]: row["value"] for row in rows}
