"""Real data sets: dumps of a service, and their restoration.

A dump is untrusted code. A role that is no superuser restores it; psql refuses its own commands (``\\restrict``), and
the server has no network. Extensions are created before, as superuser.
"""

import contextlib
import gzip
import hashlib
import os
import re
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psycopg

from benchlib.errors import InputError, LoadError, PreflightError, os_errors_as
from benchlib.host import files
from benchlib.host.shell import Completed, Shell, which
from benchlib.load.tool import FILL_LIMIT_S
from benchlib.plan.words import size_words, time_words
from benchlib.plan.workload import Data
from benchlib.server.cluster import Cluster
from benchlib.server.installations import Installation, fetched_root, installations
from benchlib.server.remote import Remote
from benchlib.server.rights import Target
from benchlib.server.server import DATABASE, asking, fetch, reason_of

OWNER = "benchlib_owner"
"""The role that restores dumps and runs the statements of levels."""
_DUMP_RATE = 30 << 20
_LOCK_LIMIT_MS = 10_000
"""The longest time that pg_dump waits for a table of a server in use, and others wait behind it."""
_GROWTH, _COMPRESSION = 2, 6
"""Restored size per byte of SQL (indexes), and SQL per byte of a compressed dump, for the check of the disk."""
_RESTRICTED_MINORS = {13: 22, 14: 19, 15: 14, 16: 10, 17: 6}
"""The first minor versions whose psql has ``\\restrict``; from 18 on all."""
_EXTENSION = re.compile(
    rb'CREATE EXTENSION (?:IF NOT EXISTS )?("[^"]+"|[\w-]+)(?: WITH SCHEMA ("[^"]+"|\w+))?;'
)
_DROPPED = re.compile(
    rb"\\(?:(?:un)?restrict|encoding) |COMMENT ON (?:EXTENSION|DATABASE) |ALTER (?:[^'\"]|\"[^\"]*\")* OWNER TO "
    rb"|(?:GRANT|REVOKE) .*;\s*$|SET SESSION AUTHORIZATION "
    rb"|SET (?:transaction_timeout|default_table_access_method|default_with_oids|idle_session_timeout"
    rb"|default_tablespace) = |ALTER DEFAULT PRIVILEGES |SECURITY LABEL "
    rb"|(?:CREATE|ALTER|COMMENT ON) (?:PUBLICATION|SUBSCRIPTION) "
)
"""Statements of pg_dump that only a superuser, a role or another version can run."""
_NAME = rb'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_SETTING = re.compile(rb"(?:ALTER DATABASE %b|ALTER ROLE %b IN DATABASE %b) SET (.*);" % ((_NAME,) * 3))
_POLICY = re.compile(rb"CREATE POLICY .*? TO (%b(?:, %b)*)(?: USING| WITH CHECK|;)" % ((_NAME,) * 2))
_OPENS = re.compile(rb"--|'|\"|/\*|(?<![\w$])\$(?:[^\W\d]\w*)?\$")
_TABLES_SIZE = "SELECT sum(pg_total_relation_size(name::regclass))::bigint AS bytes FROM unnest(%(tables)s::text[]) AS name"
_DATABASE_SIZE = "SELECT pg_database_size(current_database()) AS bytes"
_VERSION = b"-- Dumped from database version "
_COPY = re.compile(rb"COPY .* FROM stdin;\s*$", re.IGNORECASE)
_END = b"PostgreSQL database dump complete"


def pinned(data: Data, saved: Data | None, tell: Callable[[str], None]) -> Data:
    """Return data with the hash and size of their dump; a service is dumped first.

    ``saved``: the same study's data, whose dump is used again.

    Raises:
        InputError: the dump cannot be read, or is not the saved study's.
        PreflightError: the service cannot be dumped, or the disk is too small.

    """
    if data.template:
        return data
    if data.service:
        if saved and saved.model_copy(update={"sha256": "", "mib": 0}) == data:
            if _kept(saved).is_file():
                return saved
            raise InputError(f"the study's dump is not in {_kept(saved).parent}: choose another study name")
        return _dumped(data, tell)
    path = Path(data.file or "")
    kind = kind_of(path)
    size = sum(one.stat().st_size for one in ([path] if path.is_file() else path.iterdir()))
    tell(f"reading the dump {path.name}, {size_words(size)}")
    found = data.changed(
        sha256=_hash(path), mib=size * _GROWTH * (1 if kind in ("plain", "tar") else _COMPRESSION) >> 20
    )
    if saved and saved.file == data.file and saved.sha256 != found.sha256:
        raise InputError(f"the dump {path.name} has changed since the study began: choose another study name")
    return found


def kind_of(path: Path) -> str:
    """Return the form of a dump: plain, gzip, zstd, lz4, custom, tar or directory.

    Raises:
        InputError: there is none.

    """
    if path.is_dir():
        if (path / "toc.dat").is_file():
            return "directory"
        raise InputError(f"{path} is no dump: a directory of pg_dump has a file toc.dat")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no file")
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as reason:
        raise InputError(f"the dump {path} cannot be read: {reason.strerror}") from reason
    magic = {b"PGDMP": "custom", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
    for start, kind in magic.items():
        if head.startswith(start):
            return kind
    if head[257:262] == b"ustar" or head.startswith(b"toc.dat\0"):
        return "tar"
    if b"\0" in head or not head.strip():
        raise InputError(
            f"{path.name} is no dump of pg_dump: {'it is empty' if not head else 'unknown contents'}"
        )
    return "plain"


def restore(
    data: Data, server: Cluster | Remote, shell: Shell, folder: Path, tell: Callable[[str], None]
) -> None:
    """Restore the data into a new database of a cluster, or into an external server's.

    Raises:
        LoadError: a statement failed, or the dump is cut.
        PreflightError: an extension or a program is missing.
        InputError: it is not the study's dump.

    """
    path = Path(data.file) if data.file else _kept(data)
    name = path.name if data.file else f"of service {data.service}"
    if _hash(path) != data.sha256:
        raise InputError(f"the dump {name} has changed since the study began")
    if isinstance(server, Remote):
        if server.target.own_schema:
            raise PreflightError(
                "a dump needs a database of its own, not a schema: leave out 'own_schema' of the target"
            )
        tell("the dump is restored by the role of the service, with all its rights")
    else:
        # samples and plans need what pg_monitor may read
        server.execute(f"CREATE ROLE {OWNER} LOGIN IN ROLE pg_monitor", dbname=server.maintenance)
        server.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}", dbname=server.maintenance)
        server.execute(f"ALTER SCHEMA public OWNER TO {OWNER}")
        server.role = OWNER  # of this cluster's load, too, and of its copies'
    with contextlib.ExitStack() as stack:
        text = stack.enter_context(_text(path, shell, folder))
        read_end, write_end = os.pipe()
        source = stack.enter_context(os.fdopen(read_end, "rb"))
        feed = _Feed(text, server, os.fdopen(write_end, "wb"))
        feed.start()
        done = psql(server, shell, source)
        source.close()  # so that the feed ends where psql ended early
        feed.join()
    if feed.error:
        raise feed.error
    if done.returncode:
        versions = f"dumped from {feed.version}, restored into {server.version()}"
        raise LoadError(f"the dump {name} cannot be restored: {done.complaint} ({versions})")
    for setting in feed.settings:
        tell(f"the dump sets {setting}, which is not applied: give it as a level's setting")


def psql(server: Cluster | Remote, shell: Shell, script: IO[bytes]) -> Completed:
    """Run a script in the server's database.

    ``script`` begins with ``\\restrict``, or has no commands of psql.
    """
    connection = server.connection
    address = [f"--host={connection.host}", f"--port={connection.port}"] if connection.host else []
    argv: list[str | Path] = [
        _program("psql", restricted=True).program("psql"), "--no-psqlrc", "--quiet", "--output=/dev/null",
        "--set=ON_ERROR_STOP=1", "--echo-errors", f"--dbname={server.database}", *address, *([f"--username={connection.user}"] if connection.user else []),
    ]  # fmt: skip
    return shell.run(argv, stdin=script, timeout_s=FILL_LIMIT_S)


class _Feed(threading.Thread):
    def __init__(self, text: Iterator[bytes], server: Cluster | Remote, out: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.text, self.server, self.out = text, server, out
        self.settings = list[str]()
        self.version = "an unknown version"
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with contextlib.suppress(BrokenPipeError), self.out:  # psql says why it ended
                self.out.write(f"\\restrict {secrets.token_hex(16)}\n".encode())
                self.out.writelines(self._lines())
        except (OSError, EOFError, zlib.error) as error:
            self.error = LoadError(f"the dump cannot be read: {error}")
        except Exception as error:  # raised by the caller
            self.error = error

    def _lines(self) -> Iterator[bytes]:
        in_copy, ended, dropped, waits_for = False, False, False, b""
        for line in self.text:
            if in_copy:
                in_copy = line.rstrip() != b"\\."
                yield line
                continue
            begun, waits_for = bool(waits_for), _unclosed(line, waits_for)
            if begun:  # within a text of several lines
                if not dropped:
                    yield line
                continue
            dropped = bool(_DROPPED.match(line))
            if line.startswith(_VERSION):
                words = line.removeprefix(_VERSION).decode(errors="replace").split()
                self.version = words[0] if words else self.version
            elif line.startswith(b"CREATE ROLE "):
                raise InputError(
                    "the dump is of a whole cluster (pg_dumpall): dump one database with pg_dump"
                )
            elif line.startswith((b"\\connect ", b"CREATE DATABASE ", b"DROP DATABASE ")):
                continue
            elif found := _SETTING.match(line):
                self.settings.append(found[1].decode(errors="replace"))
                continue
            elif found := _EXTENSION.match(line):
                self._extend(found[1].decode(), (found[2] or b"public").decode())
                continue
            elif dropped or line.startswith(b"ALTER DATABASE "):
                continue
            elif found := _POLICY.match(line):
                self._make_roles(found[1].decode())
            elif line.startswith(b"CREATE SCHEMA ") and not line.startswith(b"CREATE SCHEMA IF "):
                line = line.replace(b"SCHEMA ", b"SCHEMA IF NOT EXISTS ", 1)
            else:
                in_copy, ended = bool(_COPY.match(line)), ended or _END in line
            yield line
        if in_copy or not ended:
            raise LoadError("the dump is cut: its end is missing")

    def _make_roles(self, names: str) -> None:
        if isinstance(self.server, Cluster):
            with self.server.connect() as connection:
                for name in re.findall(_NAME.decode(), names):
                    with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.ReservedName):
                        connection.execute(f"CREATE ROLE {name}")

    def _extend(self, name: str, schema: str) -> None:
        owner = f" AUTHORIZATION {OWNER}" if isinstance(self.server, Cluster) else ""
        try:
            with self.server.connect() as connection:
                if schema != "pg_catalog":
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}{owner}")
                connection.execute(f"CREATE EXTENSION IF NOT EXISTS {name} WITH SCHEMA {schema}")
        except psycopg.Error as error:
            reason = reason_of(error)
            raise PreflightError(
                f"the dump needs the extension {name}, which this PostgreSQL cannot create: {reason}; "
                "install it, or choose another installation (level key 'postgres')"
            ) from error


def _unclosed(line: bytes, waits_for: bytes) -> bytes:
    """Return the delimiter still waited for."""
    at = 0
    while True:
        if waits_for:
            if (at := line.find(waits_for, at)) < 0:
                return waits_for
            at += len(waits_for)
        found = _OPENS.search(line, at)
        if not found or found[0] == b"--":
            return b""
        at, waits_for = found.end(), b"*/" if found[0] == b"/*" else found[0]


@contextlib.contextmanager
def _text(path: Path, shell: Shell, folder: Path) -> Iterator[Iterator[bytes]]:
    kind = kind_of(path)
    with contextlib.ExitStack() as stack:
        if kind in ("custom", "tar", "directory"):
            sql = folder / "restore.sql"
            stack.callback(files.remove, sql)
            argv: list[str | Path] = [
                _program("pg_restore").program("pg_restore"), "--create", "--no-owner", "--no-privileges",
                "--no-comments", "--no-tablespaces", "--no-security-labels", "--file=-",
            ]  # fmt: skip
            source = None
            if kind == "directory":
                copy = files.make(folder / "restore")
                stack.callback(files.remove, copy)
                for one in path.iterdir():
                    with one.open("rb") as part:
                        files.copy(part, copy / one.name)
                    shell.own(copy / one.name)
                argv.append(copy)
            else:
                source = stack.enter_context(path.open("rb"))
            done = shell.run(argv, stdin=source, stdout=sql, timeout_s=FILL_LIMIT_S)
            done.insist(LoadError, f"the dump {path.name} cannot be read")
            yield stack.enter_context(sql.open("rb"))
        elif kind in ("zstd", "lz4"):
            program = which(kind)
            if program is None:
                raise PreflightError(f"the program {kind} is missing, which unpacks {path.name}: install it")
            unpacked = folder / "restore.sql"
            stack.callback(files.remove, unpacked)
            source = stack.enter_context(path.open("rb"))
            done = shell.run([program, "-dc"], stdin=source, stdout=unpacked, timeout_s=FILL_LIMIT_S)
            done.insist(LoadError, f"the dump {path.name} cannot be unpacked")
            yield stack.enter_context(unpacked.open("rb"))
        else:
            with os_errors_as(LoadError, f"the dump {path.name} cannot be read"):
                opened: Any = gzip.open if kind == "gzip" else open
                yield stack.enter_context(opened(path, "rb"))


def _program(name: str, *, restricted: bool = False) -> Installation:
    found = [one for one in installations() if one.program(name).exists()]
    if restricted:
        found = [
            one
            for one in found
            if one.major >= 18
            or int(f"{one.version}.0".split(".")[1]) >= _RESTRICTED_MINORS.get(one.major, 99)
        ]
    if not found:
        needs = (
            " with the command \\restrict, as the minor versions from August 2025 on have"
            if restricted
            else ""
        )
        raise PreflightError(f"no PostgreSQL here has {name}{needs}")
    return max(found, key=lambda one: one.major)


def _dumped(data: Data, tell: Callable[[str], None]) -> Data:
    remote = Remote(Target(server=data.service or ""))
    with asking(f"service {data.service}", PreflightError), remote.connect() as connection:
        connection.execute(f"SET lock_timeout = {_LOCK_LIMIT_MS}")
        sizes = fetch(connection, _TABLES_SIZE if data.tables else _DATABASE_SIZE, {"tables": [*data.tables]})
    size = int(sizes[0]["bytes"])
    cache = fetched_root().parent / "dumps"
    files.make(cache, mode=0o700)
    for part in cache.glob("*.part"):
        if part.lstat().st_mtime < time.time() - FILL_LIMIT_S:
            files.remove(part)  # left by a killed process
    free = shutil.disk_usage(cache).free
    if free < size:
        raise PreflightError(
            f"the dump of {data.service} may need {size_words(size)} in {cache}; {size_words(free)} are free"
        )
    tables = f"{len(data.tables)} tables of " if data.tables else ""
    tell(f"dumping {tables}service {data.service}: {size_words(size)}, about {time_words(size / _DUMP_RATE)}")
    path = cache / f"{secrets.token_hex(8)}.part"
    try:
        argv: list[str | Path] = [
            _program("pg_dump").program("pg_dump"),
            "--format=custom",
            "--no-owner",
            "--no-privileges",
            "--no-publications",
            "--no-subscriptions",
            f"--lock-wait-timeout={_LOCK_LIMIT_MS}",
            *(f"--table={table}" for table in data.tables),
        ]
        done = remote.shell().run(argv, stdout=path, timeout_s=FILL_LIMIT_S)
        done.insist(PreflightError, f"service {data.service} cannot be dumped")
        found = data.changed(sha256=_hash(path), mib=size >> 20)
        files.rename(path, _kept(found))
    finally:
        files.remove(path)
    return found


def _kept(data: Data) -> Path:
    return fetched_root().parent / "dumps" / f"{data.sha256}.dump"


def _hash(path: Path) -> str:
    total = hashlib.sha256()
    try:
        for one in [path] if path.is_file() else sorted(path.iterdir()):
            with one.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as reason:
        raise InputError(f"the dump {path.name} cannot be read: {reason.strerror}") from reason
    return total.hexdigest()
