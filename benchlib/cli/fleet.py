"""``benchlib fleet``: the hosts of a study that runs on many, looked at beforehand."""

from pathlib import Path

import click

from benchlib.cli.terminal import FILE, echo, raise_last


@click.group()
def fleet() -> None:
    """Look at the hosts of a fleet, and make the certificates that it needs.

    \b
    Examples:
      benchlib fleet certificates tls
      benchlib fleet check fleet.yaml
      benchlib run storage --fleet fleet.yaml
    """


@fleet.command()
@click.argument("file", type=FILE)
def check(file: Path) -> None:
    """Ask every host of the fleet that FILE names what it is, what it can do and how far away it is.

    What does not fit is said in a line each, and the exit status is 2.

    \b
    Example:
      benchlib fleet check fleet.yaml
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
    """Make the certificates of a fleet in FOLDER, which must not be there yet; they are good for a year.

    Copy it to every host: whoever has the key can run code on all of them.

    \b
    Example:
      benchlib fleet certificates tls
    """
    from benchlib.study.fleet import make_certificates

    make_certificates(folder)
    names = f"--tls-ca-file {folder}/ca.pem --tls-cert {folder}/cert.pem --tls-key {folder}/key.pem"
    echo(f"the scheduler: dask scheduler --protocol tls --no-dashboard {names}")
    echo(f"each host:     dask worker tls://SCHEDULER:8786 --name HOST --nthreads 1 --no-dashboard {names}")
