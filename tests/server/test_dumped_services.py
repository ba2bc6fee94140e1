"""Real data of a running service: dumped once, in one snapshot."""

import shutil
from collections import namedtuple

import pytest

from benchlib.errors import InputError, PreflightError
from benchlib.plan.workload import Data
from benchlib.server import datasets, installations
from benchlib.server.datasets import pinned, restore

pytestmark = pytest.mark.pg


@pytest.fixture
def served(foreign, services, tmp_path, monkeypatch):
    """A table on an external server, and a cache of the test's own."""
    monkeypatch.setenv(installations.CACHE_VARIABLE, str(tmp_path / "cache"))
    with foreign.given(
        "CREATE TABLE stock AS SELECT i FROM generate_series(1, 999) AS i", "CREATE TABLE other (i int)"
    ):
        yield foreign
        foreign.wait_until_alone()


def cached(tmp_path) -> list[str]:
    return [path.name for path in (tmp_path / "cache" / "dumps").iterdir()]


def test_a_service_is_dumped_once_in_one_snapshot_that_writes_nothing(served, started, scratch, tmp_path):
    xid = "SELECT txid_snapshot_xmax(txid_current_snapshot())"
    lines, data = list[str](), Data(service="boss", tables=("stock",))
    with served.given("ALTER ROLE boss SET log_statement = 'all'"):
        offset, before = served.cluster.log_size(), served.rows(xid)
        found = pinned(data, None, lines.append)
        assert served.rows(xid) == before
        log = served.cluster.log_text(offset)
        assert "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY" in log
        assert pinned(data, found, lines.append) == found
        assert log == served.cluster.log_text(offset), "the second time there is nothing to dump"
    assert cached(tmp_path) == [f"{found.sha256}.dump"]
    with pytest.raises(InputError, match=r"dump is not in .*dumps: choose another study name"):
        pinned(data, found.changed(sha256="0" * 64), print)
    assert "dumping 1 tables of service boss" in lines[0]
    cluster = started(cut_off=True)
    restore(found, cluster, cluster.shell, scratch, print)
    assert cluster.value("SELECT sum(i) FROM public.stock") == 999 * 500
    assert cluster.value("SELECT to_regclass('public.other')") is None


def test_a_service_that_cannot_be_dumped_leaves_no_file(served, tmp_path, monkeypatch):
    for role, tables, message in (
        ("guest", ("stock",), "service guest cannot be dumped: .*permission denied"),
        ("boss", ("missing",), 'service boss: .*relation "missing" does not exist'),
        ("nobody", (), "definition of service"),
    ):
        with pytest.raises(PreflightError, match=message):
            pinned(Data(service=role, tables=tables), None, print)
    monkeypatch.setattr(datasets, "_LOCK_LIMIT_MS", 100)
    with served.cluster.connect("postgres") as connection, connection.transaction():
        connection.execute("LOCK TABLE stock IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(PreflightError, match=r"service boss: .*lock timeout"):
            pinned(Data(service="boss", tables=("stock",)), None, print)
    disk = namedtuple("disk", "total used free")(1 << 20, 1 << 20, 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    with pytest.raises(PreflightError, match=r"dump of boss may need .* 10\sbytes are free"):
        pinned(Data(service="boss"), None, print)
    assert cached(tmp_path) == []
