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
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.conninfo import make_conninfo

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
from benchlib.server.server import DATABASE, asking, fetch, reason_of, refuse_pooler

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
    rb"\\(?:(?:un)?restrict|encoding|connect) |(?:CREATE|DROP|ALTER) DATABASE "
    rb"|COMMENT ON (?:EXTENSION|DATABASE|EVENT TRIGGER) |ALTER EVENT TRIGGER |ALTER (?:[^'\"]|\"[^\"]*\")* OWNER TO "
    rb"|(?:GRANT|REVOKE) .*;\s*$|SET SESSION AUTHORIZATION "
    rb"|SET (?:transaction_timeout|default_table_access_method|default_with_oids|idle_session_timeout"
    rb"|default_tablespace) = |ALTER DEFAULT PRIVILEGES |SECURITY LABEL "
    rb"|(?:CREATE|ALTER|COMMENT ON) (?:PUBLICATION|SUBSCRIPTION) "
)
"""Statements of pg_dump that only a superuser, a role or another version can run, on one line."""
_DROPPED_WHOLE = re.compile(
    rb"(?P<trigger>CREATE EVENT TRIGGER )|SELECT \* FROM pg_catalog\.pg_restore_\w+_stats\("
    rb"|(?P<clean>DROP |ALTER .* DROP |CREATE OR REPLACE VIEW |SELECT .*pg_catalog\.lo_unlink\()"
)
"""The same on several lines, up to a semicolon; ``clean``: of pg_dump --clean, before anything is made."""
_SORTED = re.compile(rb"CREATE DATABASE .* (?:LOCALE|LC_COLLATE|ICU_LOCALE|BUILTIN_LOCALE) = '([^']+)'")
_BY_BYTES = ("C", "POSIX")
_NAME = rb'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_SETTING = re.compile(rb"(?:ALTER DATABASE %b|ALTER ROLE %b IN DATABASE %b) SET (.*);" % ((_NAME,) * 3))
_ROLES = re.compile(
    rb"CREATE (?:POLICY .*? TO|USER MAPPING FOR) (%b(?:, %b)*)(?: USING| WITH CHECK| SERVER|;)"
    % ((_NAME,) * 2)
)
_GRANTS = f"""
SELECT format('GRANT USAGE ON FOREIGN DATA WRAPPER %I TO {OWNER}', fdwname) AS sql FROM pg_foreign_data_wrapper
UNION ALL SELECT format('GRANT USAGE ON SCHEMA %s TO {OWNER}; GRANT SELECT, %s ON %s TO {OWNER}', relnamespace::regnamespace,
    CASE relkind WHEN 'S' THEN 'UPDATE' ELSE 'INSERT' END, c.oid::regclass)
FROM pg_extension JOIN pg_class AS c ON c.oid = ANY (extconfig)"""
"""What a dump uses of an extension: foreign data wrappers, and tables whose rows are dumped."""
_MAKES = re.compile(rb"CREATE (?!SCHEMA |EXTENSION |OR REPLACE VIEW )|COPY |INSERT ")
"""Statements after a dump's extensions."""
_NEEDS_SUPERUSER = re.compile("must be (superuser|owner)|permission denied (for language|to set parameter)")
_REMEDY = ": if you trust the dump, let a superuser restore it: data = {file = …, superuser = true}"
_OPENS = re.compile(rb"--|'|\"|/\*|(?<![\w$])\$(?:[^\W\d]\w*)?\$")
_TABLES_SIZE = "SELECT sum(pg_total_relation_size(name::regclass))::bigint AS bytes FROM unnest(%(tables)s::text[]) AS name"
_DATABASE_SIZE = "SELECT pg_database_size(current_database()) AS bytes"
_VERSION = re.compile(rb"-- Dumped from database version (\S+)")
_KINDS = re.compile(
    rb"(?P<custom>PGDMP)|(?P<gzip>\x1f\x8b)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<lz4>\x04\x22\x4d\x18)"
    rb"|(?P<tar>toc\.dat\0|.{257}ustar)",
    re.DOTALL,
)
"""How the forms of a dump begin, but plain text and a directory."""
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
        if saved and saved.changed(sha256="", mib=0) == data:
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
    with os_errors_as(InputError, f"the dump {path} cannot be read"), path.open("rb") as file:
        head = file.read(512)
    if found := _KINDS.match(head):
        return str(found.lastgroup)
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
        if data.superuser:
            raise InputError(
                "'superuser' of the data is for benchlib's own servers: here the service's role restores"
            )
        tell("the dump is restored by the role of the service, with all its rights")
    else:
        # samples and plans need what pg_monitor may read
        rights = "SUPERUSER" if data.superuser else "NOSUPERUSER"
        if data.superuser:
            tell("a superuser restores the dump: its code can run programs as the servers' user")
        server.execute(f"CREATE ROLE {OWNER} LOGIN {rights} IN ROLE pg_monitor", dbname=server.maintenance)
        server.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}", dbname=server.maintenance)
        server.execute(f"ALTER SCHEMA public OWNER TO {OWNER}")
        server.role = OWNER  # of this cluster's load, too, and of its copies'
    with contextlib.ExitStack() as stack:
        dump = _Dump(stack.enter_context(_text(path, shell, folder)), server)
        feeder = stack.enter_context(ThreadPoolExecutor(1))
        read_end, write_end = os.pipe()
        source = stack.enter_context(os.fdopen(read_end, "rb"))
        fed = feeder.submit(_feed, dump.lines(), os.fdopen(write_end, "wb"))
        done = psql(server, shell, source)
        source.close()  # so that the feed ends where psql ended early
        fed.result()
    if done.returncode:
        versions = f"dumped from {dump.version}, restored into {server.version()}"
        needs = isinstance(server, Cluster) and _NEEDS_SUPERUSER.search(done.complaint)
        remedy = _REMEDY if needs and not data.superuser else ""
        raise LoadError(f"the dump {name} cannot be restored: {done.complaint} ({versions}){remedy}")
    if data.superuser:
        server.execute(f"ALTER ROLE {OWNER} NOSUPERUSER")  # the load has no more rights than ever
    if dump.search_path:  # statements find their tables by it
        server.execute(f"ALTER ROLE {OWNER} IN DATABASE {DATABASE} SET {dump.search_path}", as_load=True)
    for setting in dump.settings:
        tell(f"the dump sets {setting}, which is not applied: give it as a level's setting")
    own = server.value("SELECT datcollate FROM pg_database WHERE datname = current_database()")
    if isinstance(server, Cluster) and own in _BY_BYTES and dump.collation not in ("", *_BY_BYTES):
        tell(f"text is faster here: it sorts by {own}, that of the dump by {dump.collation}; see initdb")
    if dump.triggers:
        tell(f"the dump's event triggers are left out ({dump.triggers}): they act on schema changes only")


def psql(server: Cluster | Remote, shell: Shell, script: IO[bytes]) -> Completed:
    """Run a script in the server's database.

    ``script`` begins with ``\\restrict``, or has no commands of psql.
    """
    argv: list[str | Path] = [
        _program("psql", restricted=True), "--no-psqlrc", "--quiet", "--output=/dev/null",
        "--set=ON_ERROR_STOP=1", "--echo-errors", f"--dbname={make_conninfo(**asdict(server.connection))}",
    ]  # fmt: skip
    return shell.run(argv, stdin=script, timeout_s=FILL_LIMIT_S)


def _feed(lines: Iterator[bytes], out: IO[bytes]) -> None:
    try:
        with contextlib.suppress(BrokenPipeError), out:  # psql says why it ended
            out.write(f"\\restrict {secrets.token_hex(16)}\n".encode())
            out.writelines(lines)
    except (OSError, EOFError, zlib.error) as error:
        raise LoadError(f"the dump cannot be read: {error}") from error


class _Dump:
    """The SQL of a dump; its other attributes are known when its lines have been read."""

    def __init__(self, text: Iterator[bytes], server: Cluster | Remote) -> None:
        self.text, self.server = text, server
        self.settings = list[str]()
        self.version, self.triggers, self.collation, self.search_path = "an unknown version", 0, "", ""
        self._lacking, self._begun = dict[str, str](), False

    def lines(self) -> Iterator[bytes]:
        """Yield what the role can run; create the extensions and the roles that it needs."""
        in_copy, ended, keeps, waits_for, drops = False, False, True, b"", False
        for line in self.text:
            if in_copy:
                in_copy = line.rstrip() != b"\\."
            elif waits_for or drops:  # within a text or a statement of several lines
                waits_for = _unclosed(line, waits_for)
                drops = drops and not _ends(line, waits_for)
                line = line if keeps else b""
            else:
                waits_for = _unclosed(line, b"")
                whole = self._whole(line)
                drops = whole and not _ends(line, waits_for)
                line = b"" if whole else self._kept(line)
                keeps, in_copy, ended = bool(line), bool(_COPY.match(line)), ended or _END in line
            yield line
        self._insist_on_extensions()
        if in_copy or not ended:
            raise LoadError(
                "the dump is cut, or no dump of pg_dump: its end is missing (“PostgreSQL database dump complete”)"
            )

    def _kept(self, line: bytes) -> bytes:
        """Return the first line of a statement, or nothing."""
        if found := _SORTED.match(line):
            self.collation = found[1].decode(errors="replace")
        if line.startswith(b"CREATE ROLE "):
            raise InputError("the dump is of a whole cluster (pg_dumpall): dump one database with pg_dump")
        if _MAKES.match(line):
            self._begun = True
            self._insist_on_extensions()
        if found := _SETTING.match(line):
            setting = found[1].decode(errors="replace")
            of_all = isinstance(self.server, Cluster) and line.startswith(b"ALTER DATABASE ")
            if of_all and setting.startswith("search_path "):
                self.search_path = setting
            else:
                self.settings.append(setting)
            return b""
        if line.startswith(b"PGDMP"):
            raise InputError(
                "the packed file is a dump in custom form, which is packed itself: unpack it first"
            )
        if found := _EXTENSION.match(line):
            self._extend(found[1].decode(), (found[2] or b"public").decode())
            return b""
        if _DROPPED.match(line):
            return b""
        if found := _VERSION.match(line):
            self.version = found[1].decode(errors="replace")
        elif found := _ROLES.match(line):
            self._make_roles(found[1].decode())
        return re.sub(rb"^CREATE SCHEMA (?!IF )", b"CREATE SCHEMA IF NOT EXISTS ", line)

    def _whole(self, line: bytes) -> bool:
        """Return whether a statement that begins here is left out up to its end."""
        found = _DROPPED_WHOLE.match(line)
        if not found or (found["clean"] and self._begun):
            return False
        self.triggers += bool(found["trigger"])
        return True

    def _make_roles(self, names: str) -> None:
        if isinstance(self.server, Cluster):
            with self.server.connect() as connection:
                for name in re.findall(_NAME.decode(), names):
                    with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.ReservedName):
                        connection.execute(f"CREATE ROLE {name}")

    def _extend(self, name: str, schema: str) -> None:
        owner = f" AUTHORIZATION {OWNER}" if isinstance(self.server, Cluster) else ""
        with asking(), self.server.connect() as connection:
            if schema != "pg_catalog":
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}{owner}")
            try:
                connection.execute(f"CREATE EXTENSION IF NOT EXISTS {name} WITH SCHEMA {schema}")
            except psycopg.Error as reason:
                self._lacking[name] = reason_of(reason)
        if isinstance(self.server, Cluster):
            self.server.execute(*(row["sql"] for row in self.server.query(_GRANTS)))

    def _insist_on_extensions(self) -> None:
        """Name all extensions that lack, once all were requested."""
        if self._lacking:
            raise PreflightError(
                f"the dump needs extensions that this PostgreSQL cannot create: {', '.join(self._lacking)}: install them, "
                f"or choose another installation (level key 'postgres'): {next(iter(self._lacking.values()))}"
            )


def _ends(line: bytes, waits_for: bytes) -> bool:
    return not waits_for and line.rstrip().endswith(b";")


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
def _text(path: Path, shell: Shell, folder: Path) -> Iterator[IO[bytes]]:
    """Open a dump as SQL, which other forms than plain and gzip become in ``folder`` first."""
    kind = kind_of(path)
    with contextlib.ExitStack() as stack:
        if kind in ("plain", "gzip"):
            with os_errors_as(LoadError, f"the dump {path.name} cannot be read"):
                opened: Any = gzip.open if kind == "gzip" else open
                yield stack.enter_context(opened(path, "rb"))
            return
        sql, source = folder / "restore.sql", None
        stack.callback(files.remove, sql)
        argv: list[str | Path] = [
            _program("pg_restore"), "--create", "--no-owner", "--no-privileges",
            "--no-comments", "--no-tablespaces", "--no-security-labels", "--file=-",
        ] if kind in ("custom", "tar", "directory") else [_unpacker(kind, path), "-dc"]  # fmt: skip
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


def _unpacker(kind: str, path: Path) -> Path:
    if program := which(kind):
        return program
    raise PreflightError(f"the program {kind} is missing, which unpacks {path.name}: install it")


def _program(name: str, *, restricted: bool = False) -> Path:
    """Return the newest; ``restricted``: with the command ``\\restrict``."""

    def restricts(one: Installation) -> bool:
        minor = int(f"{one.version}.0".split(".")[1])  # a beta has none
        return one.major >= 18 or minor >= _RESTRICTED_MINORS.get(one.major, 99)

    found = [one for one in installations() if one.program(name).exists()]
    found = [one for one in found if restricts(one) or not restricted]
    if not found:
        needs = (
            " with the command \\restrict, as the minor versions from August 2025 on have"
            if restricted
            else ""
        )
        raise PreflightError(f"no PostgreSQL here has {name}{needs}")
    return max(found, key=lambda one: one.major).program(name)


def _dumped(data: Data, tell: Callable[[str], None]) -> Data:
    remote = Remote(Target(server=data.service or ""))
    with asking(f"service {data.service}", PreflightError), remote.connect() as connection:
        refuse_pooler(connection)
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
            _program("pg_dump"), "--format=custom", "--no-owner", "--no-privileges", "--no-publications",
            "--no-subscriptions", f"--lock-wait-timeout={_LOCK_LIMIT_MS}", *(f"--table={table}" for table in data.tables),
        ]  # fmt: skip
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
    with os_errors_as(InputError, f"the dump {path.name} cannot be read"):
        for one in [path] if path.is_file() else sorted(path.iterdir()):
            with one.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
