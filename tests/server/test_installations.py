"""Installations: found by version or directory, reported if missing, copied if not accessible."""

from pathlib import Path
from types import SimpleNamespace

import needs
import pytest

from benchlib.errors import PreflightError
from benchlib.host.shell import Shell, server_user
from benchlib.server import installations as module
from benchlib.server.installations import EMBEDDED, FETCHED, Installation, find_installation, find_pgbench


def built(version: str, builder: str = "PGDG", *more: str | None, pgbench: bool = True) -> Installation:
    return Installation(version, Path(f"/opt/{builder}/{version}/bin"), builder, *more, has_pgbench=pgbench)


OLD, NEW, *_ = KNOWN = [
    *(built(version, EMBEDDED) for version in ("16.14", "18.4")),
    *(built(version) for version in ("15.18", "18.6", "9.6.24", "19beta1")),
    *(built(version, FETCHED) for version in ("18.3", "18.4")),
]
SERVER, TEN = built("18.4", EMBEDDED, pgbench=False), built("10.10")
PLAIN, ENCRYPTING = built("18.4", "a", "'--without-icu'"), built("15.18", "b", "'--with-openssl'")


@pytest.fixture
def know(monkeypatch):
    """Says which installations this machine has."""
    return lambda *known: monkeypatch.setattr(module, "installations", lambda: known)


def program(path: Path, output: str, status: str = "0") -> None:
    path.write_text(f"#!/bin/sh\necho '{output}'\nexit {status}\n")
    path.chmod(0o755)


def fake(bindir: Path, version: str = "16.9", *more: str, status: str = "0") -> Path:
    """A folder of programs, of which the server holds its version."""
    bindir.mkdir(parents=True)
    for name in ("postgres", "initdb", *more):
        program(bindir / name, name, status)
    with (bindir / "postgres").open("a") as file:
        file.write(f"PostgreSQL {version} on x86_64, compiled by cc 1.0, 64-bit")
    return bindir


@pytest.mark.parametrize(
    ("name", "version", "builder"),
    [
        ("16", "16.14", EMBEDDED),
        ("18", "18.4", EMBEDDED),
        ("18.6", "18.6", "PGDG"),
        ("9.6", "9.6.24", "PGDG"),
        ("18.4 embedded-postgres", "18.4", FETCHED),
        ("18 embedded-postgres", "18.3", FETCHED),
        (None, "18.4", EMBEDDED),
    ],
)
def test_a_version_finds_the_first_that_has_it(name, version, builder, know):
    know(*KNOWN)
    installation = find_installation(name)
    assert (installation.version, installation.builder) == (version, builder)


@pytest.mark.parametrize("name", ["1", "16.1", "", "16.14 PGDG"])
def test_a_missing_version_is_refused_with_the_available_ones(name, know):
    for known, there in ((KNOWN, r"16\.14 .*19beta1"), ([], "none")):
        know(*known)
        with pytest.raises(PreflightError, match=rf"{name} is not installed here \(available: {there}"):
            find_installation(name)


@pytest.mark.parametrize(
    ("known", "newest", "pgbench", "abroad"),
    [
        (KNOWN, NEW, NEW, NEW),
        ([built("9.6.24"), built("10.2"), TEN], TEN, TEN, TEN),
        ([SERVER, TEN], SERVER, TEN, TEN),
        ([PLAIN, ENCRYPTING], PLAIN, PLAIN, ENCRYPTING),
        ([PLAIN], PLAIN, PLAIN, PLAIN),
    ],
)
def test_the_default_is_the_newest_embedded_one_else_the_newest_and_abroad_one_that_encrypts(
    known, newest, pgbench, abroad, know
):
    know(*known)
    assert (find_installation(), find_pgbench(), find_pgbench(abroad=True)) == (newest, pgbench, abroad)


def test_a_program_comes_from_the_installation_itself_or_from_a_newer_one(tmp_path, know):
    bare = module.describe(fake(tmp_path / "bare", "11.22"))
    own, older, newer = (module.describe(fake(tmp_path / v, v, "psql")) for v in ("13.23", "10.23", "18.4"))
    know(older, own, newer)
    assert module.find_program_for(own, "psql") is own
    assert module.find_program_for(bare, "psql") is newer
    know(older, bare)
    with pytest.raises(PreflightError, match=r"no psql for PostgreSQL 11\.22 found"):
        module.find_program_for(bare, "psql")


def test_different_builds_of_the_compared_versions_are_reported():
    wheel = [built(v, EMBEDDED, None, "gcc 14.2.1 -O2") for v in ("18.4", "16.14")]
    small = [built(v, FETCHED, None, "gcc 7.5.0 -Os") for v in ("11.22", "13.23")]
    for alike in ([], [*wheel, wheel[0]], small):
        assert module.builders_differ(alike) is None
    words = "16.14, 18.4: embedded wheel, gcc 14.2.1 -O2; 11.22, 13.23: embedded-postgres, gcc 7.5.0 -Os"
    assert module.builders_differ([*wheel, *small]) == words
    assert module.builders_differ([built("17.2", "conda"), built("16.1")]) == "17.2: conda; 16.1: PGDG"


@pytest.mark.parametrize("version", ["17.2 (Somebody 17.2-1)", "19beta1"])
def test_a_folder_is_read_by_any_of_its_names(tmp_path, monkeypatch, version):
    bindir = fake(tmp_path / "pg" / "bin", version)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = Installation(version.split()[0], bindir, "given folder", compiler="cc 1.0", has_pgbench=False)
    for name in (str(tmp_path / "pg"), str(bindir), "./pg", "~/pg"):
        assert find_installation(name) == expected


def test_how_a_server_was_built_is_read_from_its_binary(tmp_path):
    build = b"?PostgreSQL 16.9 on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit"
    flags, options = b"-Wall -Wmissing-prototypes -g -O2 -fwrapv", "'--prefix=/usr' 'CFLAGS=-g -O2'"
    server = fake(tmp_path / "bin") / "postgres"
    for strings, expected in (
        ((build, f" {options}".encode(), flags), (options, "gcc 12.2.0 -O2")),
        ((build,), (None, "gcc 12.2.0")),
    ):
        server.write_bytes(b"\0".join((b"", *strings, b"")))
        installation = module.describe(server.parent)
        assert (installation.configure, installation.compiler) == expected


def test_what_holds_no_server_is_none(tmp_path):
    assert module.describe(tmp_path / "nothing") is None
    (fake(tmp_path / "a") / "initdb").unlink()
    assert module.describe(tmp_path / "a") is None, "a server without initdb is of no use"
    program(fake(tmp_path / "b") / "postgres", "postgres (PostgreSQL) 16.9")
    assert module.describe(tmp_path / "b") is None, "nothing is run to be asked"
    with pytest.raises(PreflightError, match=r"holds no PostgreSQL \(expected postgres and initdb"):
        find_installation(str(tmp_path))


def test_each_folder_is_listed_once_and_the_embedded_ones_first(tmp_path, monkeypatch):
    wheel, system = fake(tmp_path / "wheel/pginstall18/bin", "18.4"), fake(tmp_path / "lib/15/bin", "15.18")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "postgres").symlink_to(system / "postgres")
    monkeypatch.setattr(module, "_WHEELS", ((EMBEDDED, "one"),))
    spec = SimpleNamespace(origin=str(tmp_path / "wheel/__init__.py"))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda package: spec)
    monkeypatch.setattr(module, "_LAYOUTS", (("Debian or PGDG", f"{tmp_path}/lib/*/bin"[1:]),))
    monkeypatch.setenv(module.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("CONDA_PREFIX", str(wheel.parent))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    for package in ("9.6.24-beta.1", "11.22.1-beta.9", "11.22.1-beta.11", ".unfinished-1"):
        fake(module.fetched_root() / package / "bin", package.split("-")[0].removesuffix(".1"))
    listed = module.installations.__wrapped__()
    fetched = [("11.22", FETCHED), ("11.22", FETCHED), ("9.6.24", FETCHED)]
    all_of_them = [("18.4", EMBEDDED), *fetched, ("15.18", "Debian or PGDG")]
    assert [(i.version, i.builder) for i in listed] == all_of_them
    assert listed[1].bindir.parent.name == "11.22.1-beta.11", "the newest package of one version first"


@needs.root
def test_a_closed_installation_is_copied_with_its_libraries(tmp_path, shelter):
    shell, closed = Shell(server_user()), tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("one", "other"):  # two builds of one version
        bindir = fake(closed / name / "install" / "bin")
        program(bindir / "initdb", name)
        (closed / f"{name}.libs").mkdir()
        (closed / f"{name}.libs" / "libx.so").touch()
        copy = module.runnable_by(shell, module.describe(bindir), shelter)
        assert copy.bindir.is_relative_to(shelter)
        assert (copy.version, copy.builder) == ("16.9", "given folder")
        assert (copy.bindir.parents[2] / f"{name}.libs" / "libx.so").exists()
        assert shell.run([copy.program("initdb"), "--version"]).stdout == f"{name}\n"
        assert module.runnable_by(shell, copy, shelter) is copy
