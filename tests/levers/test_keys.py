"""What each key of a level may hold, how it is spelled, and what cannot stand together."""

from pathlib import Path

import pytest
from clusters import bench_plan
from pydantic import ValidationError

from benchlib.errors import PreflightError
from benchlib.levers import BY_KEY, volumes
from benchlib.levers.lever import Wish
from benchlib.levers.replication import replication_of
from benchlib.levers.storage import Storage
from benchlib.plan.level import Level
from benchlib.server.installations import Installation


def read(patch):
    return Level.model_validate(patch, context={"levers": BY_KEY, "data_mib": lambda: 1000})


@pytest.mark.parametrize(
    ("key", "text", "whole"),
    [
        ("replication", "standalone", {"replicas": 0}),
        ("replication", "asynchronous", {"replicas": 1}),
        ("replication", "synchronous", {"replicas": 1, "quorum": "FIRST 1"}),
        ("replication", {"delay_ms": 2}, {"replicas": 1, "delay_ms": 2.0}),
        ("replication", {"on": ["db2", "db3"]}, {"replicas": 2, "on": ["db2", "db3"]}),
        ("target", "reporting", {"server": "reporting"}),
        ("storage", {"data": "/x"}, {"data": {"path": "/x", "file_system": None, "size": None, "mount_options": ""}}),
        ("storage", {"memory": "1.5GB"}, {"memory": 3 << 29}),
        ("storage", {"memory": "10 % of data"}, {"memory": 100 << 20}),
        ("cpu", {"server": "1,0, 3", "load": 2, "turbo": "off"}, {"server": "0-1,3", "load": "2", "turbo": False}),
        ("pooler", "session", {"mode": "session", "pool_size": 20}),
    ],
)  # fmt: skip
def test_a_word_stands_for_the_usual_case(key, text, whole):
    level = read({key: text})
    assert {name: value for name, value in level.part(key).items() if value is not None} == whole
    assert read(level.model_dump()) == level


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ({"replication": "sync"}, "'sync' is not one of"),
        ({"replication": {"replicas": 1, "quorum": "ANY 2"}}, "ANY 2 can never be met"),
        ({"replication": {"replicas": 3, "storage": [{}, {}]}}, "need a storage each"),
        ({"replication": {"replicas": 1, "on": ["db2", "db3"]}}, "need a host each"),
        ({"replication": {"on": ["db2", "db2"]}}, "need a host each"),
        ({"storage": {"data": "ext4"}}, "needs a 'size'"),
        ({"storage": {"data": {"path": "relative"}}}, "pattern"),
        ({"storage": {"data": {"path": "/x", "mount_options": "noatime"}}}, "belong to a 'file_system'"),
        ({"storage": {"data": {"file_system": "ext4", "size": 9, "mount_options": "x' /; rm"}}}, "pattern"),
        ({"storage": {"wal": {"file_system": "tmpfs", "size": "1GB", "path": "/x"}}}, "lies in memory"),
        ({"storage": {"wal": {}}}, "a 'path', a 'file_system', or both"),
        ({"storage": {"memory": "1 potato"}}, "not a size such as 512MB"),
        ({"host": {"vm.swappiness; rm": 1}}, "pattern"),
        ({"target": "postgresql://me:secret@db/bench"}, "no password in a level"),
        ({"target": "host=db user=me"}, "connection service, or a postgresql:// URI"),
        ({"target": {"server": "s", "beside": "shop"}}, "'own_schema'"),
        ({"settings": {"work_mem": 1, "WORK_MEM": 2}}, "work_mem is set twice"),
        ({"settings": {"fsync = off\nwork_mem": 1}}, r"fsync = off\\nwork_mem' is not the name"),
        ({"settings": {"seed": float("nan")}}, "finite"),
        ({"settings": {"work_mem": "8\0MB"}}, "zero byte"),
        ({"pooler": "sessions"}, "mode"),
        ({"cpu": {"load": "3-1"}}, "'3-1' is not a list of cores such as 0-1"),
        ({"postgres": 16.10}, r'write the version as text, "16\.1"'),
        ({"sql": ""}, "there is no statement"),
        ({"sql": " ;; "}, "there is no statement"),
        ({"sql": "-- nothing"}, "there is no statement"),
        ({"sql": "missing.sql"}, r"missing\.sql: it cannot be read: No such file"),
        ({"sql": "latin.sql"}, "it is not UTF-8"),
        ({"sql": "SELECT 1 \\gexec"}, r"\\gexec is a command of psql"),
        ({"sql": "\\i other.sql"}, r"\\i is a command of psql"),
    ],
)
def test_what_nothing_could_give_is_refused(patch, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.sql").write_bytes("SELECT 'ü';".encode("latin-1"))
    with pytest.raises(ValidationError, match=why):
        read(patch)


INDEX = "CREATE INDEX ON t (i);"
SEVERAL = ["CREATE TABLE a (t text)", "INSERT INTO a VALUES (';\\!');  ", "-- last\nVACUUM a"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("CREATE INDEX ON t (i)", INDEX),
        (" CREATE INDEX ON t (i) ; ;\n", INDEX),
        ([INDEX], INDEX),
        ("index.sql", INDEX),
        (SEVERAL, "CREATE TABLE a (t text);\nINSERT INTO a VALUES (';\\!');\n-- last\nVACUUM a;"),
        ("SELECT 1 -- why", "SELECT 1 -- why\n;"),  # a comment does not hide the end
        (["SELECT 1 -- why", "VACUUM"], "SELECT 1 -- why\n;\nVACUUM;"),
    ],
)
def test_statements_a_list_or_a_file_are_one_text(value, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "index.sql").write_bytes(b"\xef\xbb\xbfCREATE INDEX ON t (i);\n")
    assert read({"sql": value}).sql == read({"sql": text}).sql == text


LIBRARIES = "shared_preload_libraries"
MISSING = {"settings": {LIBRARIES: "'no_such_library', auto_explain"}}
MACOS = ("sys.platform", "darwin")
TWELVE = Installation("12.22", Path("/usr"), "PGDG")
OLD = ("benchlib.levers.replication.find_installation", lambda name: TWELVE)


@pytest.mark.parametrize(
    ("level", "workload", "here", "why"),
    [
        ({"cache": "cold"}, "mixed-scan", None, "'cache' restarts the server"),
        (MISSING, "insert", None, "has no library 'no_such_library'"),
        ({"cpu": {"background": "0"}}, "insert", None, "'background' names cores"),
        ({"cpu": {"server": "0"}}, "insert", MACOS, "'cpu' needs Linux"),
        (
            {"replication": {"replicas": 1}},
            "insert",
            OLD,
            r"^PostgreSQL 12\.22 \(PGDG\): replicas need PostgreSQL 13",
        ),
    ],
)
def test_what_cannot_run_is_refused_in_its_own_level_alone(level, workload, here, why, monkeypatch):
    if here:
        monkeypatch.setattr(*here)
    plan = bench_plan({"one": level, "other": {"settings": {LIBRARIES: "plpgsql"}}}, workload)
    (lever,) = (BY_KEY[key] for key in level)
    with pytest.raises(PreflightError, match=why):
        lever.check(Wish(plan, "one", Path("/")))
    lever.check(Wish(plan, "other", Path("/")))


@pytest.mark.parametrize(("data", "wal", "fits"), [(None, None, 500), (None, 300, 800), (400, 300, 700)])
def test_files_on_one_file_system_need_their_space_together(data, wal, fits, tmp_path, monkeypatch):
    def place(mib):
        return {"path": str(tmp_path), **({"file_system": "ext4", "size": mib << 20} if mib else {})}

    monkeypatch.setattr(volumes, "check", lambda place, scratch: None)
    monkeypatch.setattr(Wish, "data_mib", 100 if data else 500)
    wish = Wish(bench_plan({"one": {}, "other": {}}), "one", tmp_path)
    storage = Storage.model_validate({"data": place(data), "wal": wal and place(wal)})
    monkeypatch.setattr("benchlib.host.facts.free_mib", lambda path: fits)
    storage.check(wish)
    monkeypatch.setattr("benchlib.host.facts.free_mib", lambda path: fits - 1)
    with pytest.raises(PreflightError, match=rf"needs {fits} MiB of .*, {fits - 1} MiB are free"):
        storage.check(wish)


def test_one_storage_of_replicas_stands_for_all():
    level = read({"replication": {"replicas": 2, "storage": {"write_bytes": "10 % of data"}}})
    assert [storage.write_bytes for storage in replication_of(level).storages] == [100 << 20] * 2


def test_names_of_parameters_are_one_in_any_case_and_a_version_may_be_a_whole_number():
    level = read({"settings": {"Work_Mem": "8MB", "pg_stat_statements.max": 100}, "postgres": 16})
    assert level.settings == {"work_mem": "8MB", "pg_stat_statements.max": 100}
    assert level.postgres == "16"


NAMES = {"synchronous_standby_names": "a"}


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ({"replication": "synchronous", "settings": NAMES}, ["'replication' decides"]),
        ({"settings": {"port": 1, **NAMES}}, ["leave out port", "synchronous_standby_names needs"]),
        ({"settings": {"data_directory": "/var/lib/x", "work_mem": 1}}, ["leave out data_directory"]),
        ({"storage": {"data": "/x"}, "initdb": ["--waldir=/y"]}, ["the WAL in 'storage'"]),
        ({"storage": {"data": "/x"}, "initdb": ["-kX/y"]}, ["the WAL in 'storage'"]),
        ({"storage": {"data": "/x"}, "initdb": ["--wal=/y"]}, ["the WAL in 'storage'"]),
        ({"storage": {"data": "/x"}, "initdb": ["--wal-segsize=64", "-E", "UTF8"]}, []),
        ({"initdb": ["-D", "/y"]}, ["the data directory is"]),
        ({"initdb": ["--pgd=/y"]}, ["the data directory is"]),
        ({"target": "s", "postgres": "16"}, ["'postgres' works on embedded servers only"]),
        ({"cache": "cold", "replication": "asynchronous"}, ["disconnects its replicas"]),
        ({"cache": "warm", "storage": {"memory": 1 << 30}}, ["cap on memory does not count"]),
        ({"cache": "cold", "storage": {"memory": 1 << 30}}, []),
        ({"target": "s", "settings": {"data_directory": "/x", **NAMES}}, []),
    ],
)
def test_keys_that_cannot_stand_together_are_refused(patch, named):
    level = read(patch)
    told = [reason for lever in BY_KEY.values() if (reason := lever.conflict(level))]
    assert len(told) == bool(named)
    assert all(part in told[0] for part in named)
