"""A real server that plays somebody else's: passwords are asked for, and roles may do as much as in life."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchlib.host.journal import Journal
from benchlib.host.shell import ticks
from benchlib.server.cluster import Cluster

ROLES = {
    "boss": "SUPERUSER",
    "maker": "CREATEDB",
    "guest": "CONNECTION LIMIT 12",
    "tuner": "CREATEDB",
}
"""What the roles may do; ``tuner`` may also set ``work_mem`` and ``checkpoint_timeout``, from PostgreSQL 15 on."""


class Foreign:
    """The server, as its owner sees it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def password(self, role: str) -> str:
        return f"zebra-{role}-4711"

    def service(self, role: str, *, dbname: str = "postgres", more: str = "") -> str:
        return f"[{role}]\nhost={self.cluster.sockets}\nuser={role}\ndbname={dbname}\n{more}\n"

    def uri(self, role: str, dbname: str = "postgres") -> str:
        return f"postgresql://{role}@/{dbname}?host={self.cluster.sockets}"

    def altered(self) -> dict[str, str]:
        """What ``ALTER SYSTEM`` has left."""
        rows = self.cluster.query(
            "SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'", "postgres"
        )
        return {row["name"]: row["setting"] for row in rows}

    def set_for(self) -> dict[str, list[str]]:
        """What ``ALTER DATABASE`` and ``ALTER ROLE`` have left, by database and role."""
        rows = self.cluster.query(
            "SELECT concat_ws('/', datname, rolname) AS whose, setconfig FROM pg_db_role_setting "
            "LEFT JOIN pg_database AS d ON d.oid = setdatabase LEFT JOIN pg_roles AS r ON r.oid = setrole",
            "postgres",
        )
        return {row["whose"]: row["setconfig"] for row in rows}

    def shows(self, name: str) -> str:
        return str(self.cluster.value(f"SHOW {name}", "postgres"))

    def wait_until_it_shows(self, name: str, value: str) -> None:
        for _ in ticks(30):
            if self.shows(name) == value:
                return
        raise AssertionError(f"{name} is {self.shows(name)}, not {value}")

    @contextlib.contextmanager
    def given(self, *statements: str, back: str = "") -> Iterator[None]:
        """What the server's owner has done, for the length of a test; ``back`` undoes it, statements between ";"."""
        try:
            self.cluster.execute(*statements, dbname="postgres")
            yield
        finally:
            self.cluster.execute(*filter(None, back.split(";")), dbname="postgres")

    def wait_until_alone(self) -> None:
        """Let sessions of earlier tests end."""
        others = "SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND pid <> pg_backend_pid()"
        assert any(self.cluster.value(others, "postgres") == 0 for _ in ticks(30))

    def databases(self) -> set[str]:
        rows = self.cluster.query("SELECT datname FROM pg_database WHERE NOT datistemplate", "postgres")
        return {row["datname"] for row in rows}

    def schemas(self, dbname: str = "postgres") -> set[str]:
        rows = self.cluster.query(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'", dbname
        )
        return {row["nspname"] for row in rows}


@contextlib.contextmanager
def foreign_server(empty: Cluster) -> Iterator[Foreign]:
    """The server on a copy of an empty cluster."""
    folder = Path(tempfile.mkdtemp(prefix="bl", dir="/var/tmp"))
    folder.chmod(0o755)
    cluster = empty.clone(folder / "c")
    try:
        cluster.configure({})
        how = "scram-sha-256" if cluster.installation.major >= 14 else "md5"
        (cluster.data / "pg_hba.conf").write_text(f"local all postgres trust\nlocal all all {how}\n")
        cluster.start()
        foreign = Foreign(cluster)
        for role, rights in ROLES.items():
            statement = f"CREATE ROLE {role} LOGIN {rights} PASSWORD '{foreign.password(role)}'"
            cluster.execute(statement, dbname="postgres")
        if cluster.installation.major >= 15:
            cluster.execute(
                "GRANT ALTER SYSTEM ON PARAMETER work_mem, checkpoint_timeout TO tuner",
                "GRANT EXECUTE ON FUNCTION pg_reload_conf() TO tuner",
                dbname="postgres",
            )
        yield foreign
    finally:
        cluster.stop(immediately=True)
        shutil.rmtree(folder)


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
    """A journal; whatever the test did, the server is then as it was."""

    def state() -> tuple[object, ...]:
        changes = foreign.altered(), foreign.set_for()
        shown = foreign.shows("work_mem"), foreign.shows("checkpoint_timeout")
        return foreign.databases(), foreign.schemas(), *changes, *shown

    before = state()
    journal = Journal(tmp_path / "journal")
    yield journal
    assert journal.undo() == []
    assert state() == before
