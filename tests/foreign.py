"""An external server for tests: it requires passwords, and its roles have realistic rights."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import eventually, short_folder

from benchlib.host.journal import Journal
from benchlib.server.changes import reload
from benchlib.server.cluster import Cluster
from benchlib.server.remote import Remote
from benchlib.server.rights import Target

ROLES = {"boss": "SUPERUSER", "maker": "CREATEDB", "guest": "CONNECTION LIMIT 12", "tuner": "CREATEDB"}
"""The roles' rights; ``tuner`` may also set ``work_mem`` and ``checkpoint_timeout``, from PostgreSQL 15 on."""

_BACK = {
    r"GRANT (.*) TO (\w+)": r"REVOKE \1 FROM \2",
    r"CREATE (\w+) (\S+).*": r"DROP \1 \2",
    r"ALTER ROLE (\w+) CREATEDB": r"ALTER ROLE \1 NOCREATEDB",
    r"(ALTER EXTENSION \w+) ADD": r"\1 DROP",
    r"(ALTER .*) SET ([\w.]+) = .*": r"\1 RESET \2",
}
"""Statements that undo the owner's statements."""


def back(statement: str) -> str:
    """Return the statement that undoes another."""
    return next(re.sub(did, undoes, statement) for did, undoes in _BACK.items() if re.search(did, statement))


class Foreign:
    """The server with its owner's rights."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def password(self, role: str) -> str:
        return f"zebra-{role}-4711"

    def service(self, role: str, *, more: str = "") -> str:
        return f"[{role}]\nhost={self.cluster.sockets}\nuser={role}\ndbname=postgres\n{more}\n"

    def uri(self, role: str, dbname: str = "postgres") -> str:
        return f"postgresql://{role}@/{dbname}?host={self.cluster.sockets}"

    def execute(self, *statements: str) -> None:
        """Run statements as the owner, then reload the settings."""
        self.cluster.execute(*statements, dbname="postgres")
        with self.cluster.connect("postgres") as connection:
            reload(connection)

    @contextlib.contextmanager
    def given(self, *statements: str) -> Iterator[None]:
        """Run statements as the owner and undo them at the end."""
        try:
            self.execute(*statements)
            yield
        finally:
            self.execute(*map(back, reversed(statements)))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.cluster.query(sql, "postgres")]

    def shows(self, name: str) -> str:
        return str(self.cluster.value(f"SHOW {name}", "postgres"))

    def altered(self) -> dict[str, str]:
        """Return the settings of ``ALTER SYSTEM``."""
        return dict(
            self.rows("SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'")
        )

    def set_for(self) -> dict[str, list[str]]:
        """Return the settings of ``ALTER DATABASE`` and ``ALTER ROLE``, by database and role."""
        return dict(
            self.rows(
                "SELECT concat_ws('/', datname, rolname), setconfig FROM pg_db_role_setting "
                "LEFT JOIN pg_database AS d ON d.oid = setdatabase LEFT JOIN pg_roles AS r ON r.oid = setrole"
            )
        )

    def databases(self) -> set[str]:
        return {name for (name,) in self.rows("SELECT datname FROM pg_database WHERE NOT datistemplate")}

    def schemas(self) -> set[str]:
        rows = self.rows("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'")
        return {name for (name,) in rows}

    def state(self) -> tuple[object, ...]:
        """Return all that a run may change and must restore."""
        shown = map(self.shows, ("work_mem", "checkpoint_timeout", "autovacuum"))
        return self.databases(), self.schemas(), self.altered(), self.set_for(), *shown

    def wait_until_alone(self) -> None:
        """Wait until sessions of earlier tests have ended."""
        others = "SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND pid <> pg_backend_pid()"
        assert eventually(lambda: self.cluster.value(others, "postgres") == 0)


@contextlib.contextmanager
def foreign_server(empty: Cluster) -> Iterator[Foreign]:
    """Yield the server on a copy of an empty cluster."""
    with short_folder() as folder, contextlib.ExitStack() as stack:
        cluster = empty.clone(folder / "c")
        stack.callback(cluster.stop, immediately=True)
        cluster.configure({})
        how = "scram-sha-256" if cluster.installation.major >= 14 else "md5"
        cluster.write("pg_hba.conf", f"local all postgres trust\nlocal all all {how}\n")
        cluster.start()
        foreign = Foreign(cluster)
        foreign.execute(
            *(f"CREATE ROLE {r} LOGIN {may} PASSWORD '{foreign.password(r)}'" for r, may in ROLES.items())
        )
        if cluster.installation.major >= 15:
            foreign.execute(
                "GRANT ALTER SYSTEM ON PARAMETER work_mem, checkpoint_timeout TO tuner",
                "GRANT EXECUTE ON FUNCTION pg_reload_conf() TO tuner",
            )
        yield foreign


@pytest.fixture(scope="session", params=["18", pytest.param("16", marks=pytest.mark.long)])
def foreign(request: pytest.FixtureRequest, created: Callable[[str], Cluster]) -> Iterator[Foreign]:
    """One server for all tests, each of which leaves it as it was."""
    with foreign_server(created(request.param)) as server:
        yield server


@pytest.fixture
def services(foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service of each role, with its password, and none of the user's own variables."""
    file = tmp_path / "services"
    file.write_text("".join(foreign.service(r, more=f"password={foreign.password(r)}") for r in ROLES))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGOPTIONS"):
        monkeypatch.delenv(name, raising=False)
    return file


@pytest.fixture
def journal(tmp_path: Path, foreign: Foreign, services: Path) -> Iterator[Journal]:
    """A journal; after the test it checks that the server's state is restored."""
    before = foreign.state()
    journal = Journal(tmp_path / "journal")
    yield journal
    assert journal.undo() == []
    assert foreign.state() == before


@pytest.fixture
def place(journal: Journal) -> Callable[..., Remote]:
    """Create a database or schema there, by the keys of a target, for one test."""
    return lambda server="boss", **more: Remote.open(Target(server=server, **more), journal.scope())
