"""The command ``benchlib workload``."""

import os
import re
from pathlib import Path
from typing import Any

import click
import tomli_w
from pydantic import ValidationError

from benchlib.cli.terminal import Group, echo, flag, tell
from benchlib.errors import InputError, os_errors_as
from benchlib.host import files
from benchlib.load.workloads import LIBRARY, load_workload, workload_paths
from benchlib.load.workloads.sql import script_of, variables_of
from benchlib.plan.level import first_problem
from benchlib.plan.workload import Workload

_FOLDER = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
_LOG = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=Group)
def workload() -> None:
    """List, show, check and make workloads; your own are in workloads/ of the working folder.

    \b
    Examples:
      benchlib workload list
      benchlib workload new mine --from queries --schema schema.sql
      benchlib run template -p workload mine -p question "Does compressing the WAL help?"
    """


@workload.command("list")
def workload_list() -> None:
    """List the workloads by name; your own have their paths.

    \b
    Examples:
      benchlib workload list
      benchlib workload list | grep update
    """
    for name, path in sorted(workload_paths().items()):
        try:
            title = load_workload(str(path)).title
        except InputError as reason:
            title = f"cannot be used: {reason}"
        echo(f"{name:<24} {title}{'' if path.parent == LIBRARY else f' ({path})'}")


@workload.command()
@click.argument("name")
def show(name: str) -> None:
    """Show the workload NAME (or a .toml file) as a TOML file.

    \b
    Examples:
      benchlib workload show simple-update
      benchlib workload show simple-update > workloads/mine.toml
    """
    keys = load_workload(name).model_dump(mode="json", exclude_defaults=True)
    echo(tomli_w.dumps(keys, multiline_strings=True))


@workload.command()
@click.argument("name")
@click.option("--postgres", help="The server's version or directory.  [default: the newest]")
def check(name: str, postgres: str | None) -> None:
    """Run one transaction of each script of the workload NAME (or a .toml file) on a new server, with plans and invariant.

    \b
    Examples:
      benchlib workload check tpcb-like
      benchlib workload check workloads/mine.toml --postgres 10
    """
    from benchlib.study.workload_check import try_scripts

    work, failed = load_workload(name), 0
    tried = try_scripts(work, postgres, tell)
    for number, (script, (error, plans)) in enumerate(zip(work.scripts, tried, strict=True), 1):
        failed += bool(error)
        heading = f"script {number}, weight {script.weight}: {error or 'runs'}"
        echo("\n".join([heading, *plans]))
    if not work.scripts:
        echo(f"its data were loaded; it has no scripts for pgbench, so {work.tool} was not run")
    elif work.invariant.count or work.invariant.violations:
        echo("the invariant was checked")
    else:
        echo("no invariant: trials check no result")
    if failed:
        raise InputError(f"{failed} of {len(work.scripts)} scripts fail")


@workload.command()
@click.argument("name")
@click.option("--from", "folder", type=_FOLDER, help="A folder of .sql files, each a transaction.")
@click.option("--schema", type=click.File(encoding="utf-8-sig"), help="The tables (pg_dump --inserts).")
@click.option("--from-statements", "service", help="A service or URI with pg_stat_statements.")
@click.option("--from-log", "log", type=_LOG, help="A server's log: csvlog, jsonlog or stderr, also .gz.")
@click.option("--top", type=click.IntRange(1, 128), help="How many of them.  [default: 20; of a log 30]")
@flag("--writes", help="Include statements that write.")
@click.option(
    "--data",
    is_flag=False,
    flag_value="service=",
    help="Real data: a dump, or service=NAME (--from-statements: its own).",
)
@click.option("--tables", help="The tables of the service, with commas between; all others stay away.")
def new(name: str, data: str | None, tables: str | None, top: int | None, **source: Any) -> None:
    """Make the workload NAME in workloads/ from SQL files, from a server's log, or from the statements that it runs most.

    \b
    Examples:
      benchlib workload new mine --from queries --schema schema.sql
      benchlib workload new shop --from-statements shop --data
      benchlib workload new shop --from-log postgresql.csv --data shop.dump
    """
    path = workload_file(name)
    if path.exists():
        raise InputError(f"{path} is there already: choose another name")
    make_workload(path, data, tables, top, **source)


def workload_file(name: str, folder: Path = Path()) -> Path:
    """Return a path in ``workloads/``; InputError for an unusable name."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"'{name}' is no name for a file: choose another, of letters, digits, '.' and '-'")
    return folder / "workloads" / f"{name}.toml"


def make_workload(
    path: Path,
    data: str | None = None,
    tables: str | None = None,
    top: int | None = None,
    *,
    folder: Path | None = None,
    schema: Any = None,
    service: str | None = None,
    log: Path | None = None,
    writes: bool = False,
) -> None:
    """Write a workload and print what it covers."""
    if sum(map(bool, (folder, service, log))) != 1 or (schema and (data or not folder)):
        raise click.UsageError(
            "take one of --from (with --schema or --data), --from-statements and --from-log"
        )
    from benchlib.server.remote import Remote
    from benchlib.server.rights import Target
    from benchlib.server.statements import workload_of
    from benchlib.server.statements.logs import workload_of_log

    name, lines = path.stem, list[str]()
    from_there = _data(path, data, tables, service)
    try:
        if folder:
            keys = {"name": name, "title": f"The queries of {folder.name}", **_of_files(folder, schema)}
            lacking = dict.fromkeys(v for script in keys["scripts"] for v in variables_of(script["sql"]))
            if lacking:
                lines.append(f"variables that a level's load.variables must give: {', '.join(lacking)}")
        elif log:
            keys, lines = workload_of_log(log, name, top or 30, writes=writes)
            lines += [] if data else ["it has no data: give --data, or write load_sql into the file"]
        else:
            server = Remote(Target(server=service or ""))
            keys, lines = workload_of(server, name, top or 20, writes=writes, real=bool(data))
        if from_there:
            keys |= {"data": keys.get("data", {}) | from_there, "pgbench_tables": False}
            if "file" in from_there:
                keys["data"].pop("tables", None)
        if keys.get("private"):
            lines.append("the file has values of your tables: keep it where these may be")
        count = len(Workload.model_validate(keys).scripts)
    except ValidationError as reason:
        raise InputError(f"no workload: {first_problem(reason)}") from None
    with os_errors_as(InputError, f"cannot write {path}"):
        files.make(path.parent)
        files.write(path, tomli_w.dumps(keys, multiline_strings=True))
    echo("\n".join([*lines, f"{path}: {count} scripts; try 'benchlib workload check {name}'"]))


def _data(path: Path, given: str | None, tables: str | None, service: str | None) -> dict[str, Any]:
    """Return ``data``: a relative dump, or a service with tables."""
    if given is None or not given.startswith("service="):
        if tables:
            raise click.UsageError("--tables belongs to --data service=NAME")
        if given is None:
            return {}
        from benchlib.server.datasets import kind_of

        kind_of(Path(given))
        return {"file": os.path.relpath(Path(given).resolve(), path.parent.resolve())}
    if not (named := given.removeprefix("service=") or service):
        raise click.UsageError("--data needs a dump or service=NAME")
    if re.search(r"://[^/@]*:[^/@]*@|password\s*=", named):
        raise InputError("a workload's file holds no password: put it into the service file or .pgpass")
    listed = [table.strip() for table in (tables or "").split(",") if table.strip()]
    return {"service": named} | ({"tables": listed} if listed else {})


def _of_files(folder: Path, schema: Any) -> dict[str, Any]:
    """Return scripts and schema from SQL files."""
    scripts = []
    for path in sorted(folder.glob("*.sql")):
        try:
            sql = files.read_plain(path).decode("utf-8-sig")
            found = re.search(r"--\s*weight\s*[:=]?\s*(\d+(?:[.,]\d+)?)", sql)
            weight = found[1] if found else "1"
            if not weight.isdecimal():
                raise InputError(f"weight: expected a whole number, not {weight}")
            scripts.append({"weight": int(weight), "sql": script_of(sql)})
        except (InputError, UnicodeDecodeError, OSError) as reason:
            raise InputError(f"{path}: {reason}") from None
    if not scripts:
        raise InputError(f"there are no *.sql files in {folder}: one for each transaction")
    try:
        made = schema.read() if schema else ""
    except UnicodeDecodeError as reason:
        raise InputError(f"{schema.name} is not UTF-8: {reason}") from None
    load = re.sub(r"^\\(un)?restrict .*\n", "", made, flags=re.MULTILINE)
    if "FROM stdin;" in load:
        raise InputError(f"{schema.name} has rows for psql's COPY: make it with pg_dump --inserts")
    return {"pgbench_tables": not schema, "load_sql": load, "scripts": scripts}
