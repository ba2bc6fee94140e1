"""``benchlib trim``: a study made small enough for a repository."""

from __future__ import annotations

import click

from benchlib.cli.terminal import echo


@click.command()
@click.argument("studies", nargs=-1, required=True, metavar="STUDY...")
def trim(studies: tuple[str, ...]) -> None:
    """Make finished studies small enough to be kept in git; their pages stay the same.

    Rewrites data/STUDY in place and leaves out what no page shows, so trim a copy where single samples
    of wait events, or transactions client by client, are still wanted.

    \b
    Example:
      benchlib trim configuration-quick
    """
    from benchlib.study.store import StudyFolder
    from benchlib.study.trim import trim as trim_study

    for name in studies:
        folder = StudyFolder(name)
        before, after = trim_study(folder)
        trials = len(folder.kept())
        each = f", {after / trials / 1000:.1f} kB a trial" if trials else ""
        echo(f"{name}: {before / 1000:,.0f} kB before, {after / 1000:,.0f} kB now{each}")
