"""Real data: every form of dump restores the same rows, and no dump gets further than that."""

import gzip
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from clusters import hurried

from benchlib.errors import BenchlibError, InputError, LoadError, PreflightError, ServerError
from benchlib.host.shell import Shell, which
from benchlib.plan.level import Level
from benchlib.plan.workload import Data, Script, Workload
from benchlib.server import datasets, statistics
from benchlib.server.cluster import Cluster
from benchlib.server.datasets import OWNER, kind_of, pinned, restore
from benchlib.server.installations import find_installation
from benchlib.server.templates import workshop
from benchlib.study.workload_check import try_scripts

pytestmark = pytest.mark.pg

LIKE_STATEMENTS = (
    "a\nGRANT ALL ON t TO nobody;\n\\connect other\nALTER DATABASE x SET a = 1;\n$$ it's -- \" /*\n\\."
)
SHOP = f"""
CREATE SCHEMA app;
CREATE TABLE app.customers (id int PRIMARY KEY, name text, "Odd ""name" text DEFAULT 'it''s', raw bytea, about jsonb);
INSERT INTO app.customers SELECT i, nullif(E'tab\\t\\\\ü ' || i, E'tab\\t\\\\ü 3'), 'x' || i, '\\xff00', '{{"a": [1]}}'
    FROM generate_series(1, 200) AS i;
INSERT INTO app.customers VALUES (0, $text${LIKE_STATEMENTS}$text$), (-1, '');
CREATE TABLE public.orders (id bigserial, customer int REFERENCES app.customers, total numeric, at timestamptz)
    PARTITION BY RANGE (id);
CREATE TABLE public.orders_1 PARTITION OF public.orders FOR VALUES FROM (0) TO (500);
CREATE TABLE public.orders_2 PARTITION OF public.orders DEFAULT;
INSERT INTO orders (customer, total, at) SELECT i % 200, i / 7.0, '2026-01-01 00:00+00' FROM generate_series(1, 900) AS i;
CREATE INDEX ON public.orders (customer);
CREATE VIEW app.big AS SELECT * FROM public.orders WHERE total > 50;
CREATE FUNCTION app.text() RETURNS text LANGUAGE sql AS $body$SELECT $text${LIKE_STATEMENTS}$text$$body$;
CREATE ROLE clerk; CREATE ROLE "Head, clerk";
GRANT SELECT ON app.customers TO clerk;
ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO clerk;
ALTER TABLE app.customers OWNER TO clerk;
ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON public.orders FOR SELECT TO clerk, "Head, clerk" USING (customer = 1);
COMMENT ON SCHEMA public IS 'mine';
ALTER DATABASE "the shop" SET work_mem = '9MB';
ALTER DATABASE "the shop" SET search_path = app, public;
ALTER ROLE clerk IN DATABASE "the shop" SET jit = 'off';
"""
TABLES = ("app.customers", "public.orders_1", "public.orders_2")
ROWS = "SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM {} AS t"
FORMS = {
    "plain": (".sql", ["--format=plain", "--create"]),
    "inserts": (".sql", ["--format=plain", "--inserts", "--clean"]),
    "custom": (".dump", ["--format=custom"]),
    "tar": (".tar", ["--format=tar"]),
    "directory": ("", ["--format=directory", "--jobs=2"]),
}
PACKED = ("gzip", "zstd", "lz4")


def contents(cluster) -> dict[str, str]:
    return {name: cluster.value(ROWS.format(name)) for name in TABLES} | {
        "function": cluster.value("SELECT app.text()"),
        "view": cluster.value("SELECT count(*) FROM app.big"),
        "next": cluster.value("SELECT last_value FROM public.orders_id_seq"),
        "indexes": cluster.value("SELECT count(*) FROM pg_indexes WHERE schemaname IN ('app', 'public')"),
    }


@pytest.fixture(scope="module")
def shop(created, shelter):
    """Somebody's database, and a folder of its dumps in each form."""
    cluster = hurried(created("18").clone(shelter / "shop"))
    cluster.configure({})
    cluster.start()
    cluster.execute('CREATE DATABASE "the shop"', dbname="postgres")
    cluster.database = "the shop"
    with cluster.connect() as connection:
        connection.execute(SHOP)
    program = find_installation("18").program("pg_dump")
    folder = shelter / "dumps"
    folder.mkdir()
    for form, (suffix, options) in FORMS.items():
        where = ["--host", cluster.sockets, "--username=postgres", "--dbname=the shop"]
        subprocess.run([program, *where, *options, f"--file={folder / (form + suffix)}"], check=True)
    cluster.dumps = folder
    yield cluster
    cluster.stop(immediately=True)


@pytest.fixture
def plain(shop) -> str:
    return (shop.dumps / "plain.sql").read_text()


def data_of(path, tell=print) -> Data:
    return pinned(Data(file=str(path)), None, tell)


@pytest.fixture
def restored(started, scratch, tmp_path):
    """Restore a dump, a path or a text, into a new cluster that has no network."""

    def restore_it(dump, version="18", tell=print, **settings) -> Cluster:
        cluster = started(version, cut_off=True, **settings)
        if not isinstance(dump, Path):
            (tmp_path / "own.sql").write_text(dump)
            dump = tmp_path / "own.sql"
        try:
            restore(data_of(dump), cluster, cluster.shell, scratch, tell)
        finally:
            assert not list(scratch.glob("restore*")), "no copy of the data is left"
        return cluster

    return restore_it


@pytest.mark.parametrize("form", [*FORMS, *PACKED])
def test_every_form_restores_the_same_rows_by_a_role_that_is_no_superuser(form, shop, restored, tmp_path):
    if form in FORMS:
        path = shop.dumps / (form + FORMS[form][0])
    else:
        if which(form) is None:
            pytest.skip(f"{form} is missing")
        path = tmp_path / f"packed.{form}"
        done = subprocess.run([form, "-c", shop.dumps / "plain.sql"], capture_output=True, check=True)
        path.write_bytes(done.stdout)
    assert kind_of(path) == ("plain" if form == "inserts" else form)
    lines = list[str]()
    cluster = restored(path, tell=lines.append)
    assert contents(cluster) == contents(shop)
    owners = "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname IN ('app', 'public')"
    assert [row["tableowner"] for row in cluster.query(owners)] == [OWNER]
    assert not cluster.value(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{OWNER}'")
    assert cluster.value(
        "SELECT string_agg(r::regrole::text, ' ' ORDER BY r) FROM pg_policy, unnest(polroles) AS r"
    )
    if form != "inserts":  # without --create the dump has no settings
        told = [line for line in lines if "which is not applied" in line]
        settings = [re.search("sets (.*), which", line)[1] for line in told]
        assert settings == ["work_mem TO '9MB'", "jit TO 'off'"]
        assert cluster.value("SHOW work_mem") == "4MB"
        assert cluster.value("SHOW search_path", as_load=True) == "app, public"


PWNED = "/var/tmp/benchlib-test-pwned"
REFUSED = {
    "a command of psql": (f"\\! touch {PWNED}\n", LoadError, "backslash commands are restricted"),
    "its end of restriction": (f"\\unrestrict x\n\\! touch {PWNED}\n", LoadError, "restricted"),
    "a command within a line": (f"SELECT 1 \\g |touch {PWNED}\n", LoadError, "restricted"),
    "a program": (
        f"CREATE TABLE z (a text);\nCOPY z FROM PROGRAM 'touch {PWNED}';\n", LoadError, "COPY .* external program",
    ),
    "a server's file": ("CREATE TABLE z (a text);\nCOPY z FROM '/etc/passwd';\n", LoadError, "COPY from a file"),
    "an untrusted function": (
        "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '/lib/x86_64-linux-gnu/libc.so.6', 'getpid';\n",
        LoadError, "language c",
    ),
    "a superuser's role": ("SET ROLE postgres;\n", LoadError, "permission denied to set role"),
    "statements in a role's name": (
        "CREATE TABLE z (a int);\nCREATE POLICY p ON z TO x;ALTER/**/ROLE/**/benchlib_owner/**/SUPERUSER;\n",
        LoadError, "(?i)superuser|permission denied",
    ),
    "a whole cluster": ("CREATE ROLE somebody;\n", InputError, r"whole cluster \(pg_dumpall\)"),
    "missing extensions": (
        "CREATE EXTENSION IF NOT EXISTS no_such WITH SCHEMA public;\nCREATE EXTENSION IF NOT EXISTS other;\n",
        PreflightError, 'cannot create: no_such, other: install them.*extension "no_such" is not available',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_code_of_a_dump_is_refused(case, plain, restored):
    begin = "SET statement_timeout = 0;\n"
    more, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as reason:
        restored(plain.replace(begin, begin + more, 1))
    assert "\n" not in str(reason.value)
    assert not Path(PWNED).exists()


def test_a_cut_dump_is_one_error(shop, plain, restored, tmp_path):
    inside = plain.index("COPY public.orders_1")
    for cut in (plain[: inside + 400], plain[:inside], plain[: plain.index("CREATE VIEW") + 20]):
        with pytest.raises(BenchlibError, match=r"the dump is cut, .*: its end is missing"):
            restored(cut)
    packed = tmp_path / "cut.sql.gz"
    packed.write_bytes(gzip.compress(plain.encode())[:-300])
    with pytest.raises(LoadError, match="cannot be read: Compressed file ended"):
        restored(packed)
    packed.write_bytes(gzip.compress((shop.dumps / "custom.dump").read_bytes()))
    with pytest.raises(InputError, match="dump in custom form, which is packed itself: unpack it first"):
        restored(packed)
    archive = tmp_path / "cut.dump"
    archive.write_bytes((shop.dumps / "custom.dump").read_bytes()[:-2_000])
    with pytest.raises(LoadError, match=r"cut.dump cannot be read: .*"):
        restored(archive)


@pytest.mark.parametrize(
    ("statement", "kept"),
    [
        ("COMMENT ON EXTENSION x IS 'a\nb';\n", ""),
        ("COMMENT ON DATABASE postgres IS 'a';\n", ""),
        ("GRANT ALL ON t TO x;\r\n", ""),
        ('ALTER TABLE "it\'s" OWNER TO x;\n', ""),
        ("ALTER TABLE t ALTER c SET DEFAULT ' OWNER TO ';\n", None),
        ("-- Dumped from database version \n", None),
        ("ALTER DATABASE x SET a = '\n';\n", ""),
        ("DROP TABLE\n a;\n", ""),
        ("CREATE TABLE a (i int);\nDROP TABLE a;\n", None),
        ("CREATE EVENT TRIGGER e ON ddl_command_end\n   EXECUTE FUNCTION f();\n", ""),
        ("SELECT * FROM pg_catalog.pg_restore_relation_stats(\n\t'most_common_vals', '{\"a\n;\n'\n);\n", ""),
    ],
)
def test_which_statements_reach_the_server(statement, kept):
    end = "-- PostgreSQL database dump complete\n"
    dump = datasets._Dump(iter(f"{statement}{end}".encode().splitlines(keepends=True)), Cluster)
    assert b"".join(dump.lines()).decode() == (statement if kept is None else kept) + end


NO_DUMPS = {"nothing": b"", "zeros": b"\0" * 900, "SQLite": b"SQLite format 3\0" + b"\0" * 90}


@pytest.mark.parametrize("contents", NO_DUMPS)
def test_what_is_no_dump_is_named(contents, tmp_path):
    (tmp_path / "x").write_bytes(NO_DUMPS[contents])
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("x", "x is no dump of pg_dump"),
        ("missing", r"cannot be read \(No such file"),
        ("", "no dump"),
        ("pipe", "no file"),
    ):
        with pytest.raises(InputError, match=reason):
            data_of(tmp_path / name)


EXTENDED = """
CREATE EXTENSION IF NOT EXISTS places WITH SCHEMA public;
CREATE FUNCTION public.watch() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
END $$;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER places_fdw;
CREATE USER MAPPING FOR clerk SERVER elsewhere OPTIONS (
    password 'secret'
);
CREATE FOREIGN TABLE public.far (a integer) SERVER elsewhere;
COPY places.known (a) FROM stdin;
5
\\.
SELECT pg_catalog.setval('places.numbers', 7, true);
SELECT pg_catalog.lo_create('16403');
ALTER LARGE OBJECT 16403 OWNER TO clerk;
CREATE EVENT TRIGGER seen ON ddl_command_end
         WHEN TAG IN ('CREATE TABLE')
   EXECUTE FUNCTION public.watch();
ALTER EVENT TRIGGER seen DISABLE;
CREATE TABLE public.last (a integer);
"""


def test_rows_and_wrappers_of_an_extension_are_restored_and_event_triggers_left_out(plain, restored, shelter):
    """A dump has rows of an extension's tables (PostGIS' spatial_ref_sys), which belong to the superuser."""
    folder, lines = shelter / "extensions" / "extension", list[str]()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "places.control").write_text("default_version = '1'\n")
    (folder / "places--1.sql").write_text(
        "CREATE SCHEMA places; CREATE TABLE places.known (a int); CREATE FOREIGN DATA WRAPPER places_fdw;\n"
        "CREATE SEQUENCE places.numbers;\n"
        "SELECT pg_catalog.pg_extension_config_dump('places.known', '');\n"
        "SELECT pg_catalog.pg_extension_config_dump('places.numbers', '');\n"
    )
    begin, found_in = "SET statement_timeout = 0;\n", f"$system:{folder.parent}"
    own = plain.replace(begin, begin + EXTENDED, 1)
    cluster = restored(own, tell=lines.append, extension_control_path=found_in)
    assert cluster.value("SELECT a + nextval('places.numbers') FROM places.known") == 5 + 8
    assert cluster.value("SELECT count(*) FROM pg_largeobject_metadata") == 1
    assert cluster.value("SELECT count(*) FROM pg_event_trigger") == 0
    assert cluster.value("SELECT count(*) FROM pg_class WHERE relname IN ('far', 'last')") == 2
    assert "the dump's event triggers are left out (1): they act on schema changes only" in lines


def test_a_superuser_restores_what_needs_one_if_requested(plain, started, scratch, tmp_path):
    begin, cluster, lines = "SET statement_timeout = 0;\n", started(cut_off=True), list[str]()
    dump = tmp_path / "own.sql"
    dump.write_text(plain.replace(begin, f"{begin}CREATE CAST (text AS point) WITH INOUT;\n", 1))
    with pytest.raises(
        LoadError, match=r"must be owner of type .*: if you trust the dump, .*superuser = true"
    ):
        restore(data_of(dump), started(cut_off=True), cluster.shell, scratch, print)
    restore(data_of(dump).changed(superuser=True), cluster, cluster.shell, scratch, lines.append)
    assert "a superuser restores the dump: its code can run programs as the servers' user" in lines
    assert cluster.value("SELECT '(1,2)'::text::point::text") == "(1,2)"
    assert not cluster.value(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{OWNER}'")


def test_a_newer_dump_is_restored_or_names_both_versions(shop, plain, restored):
    assert contents(restored(plain, "15")) == contents(shop)
    own = plain.replace(
        "CREATE VIEW", "CREATE TABLE v (a int, b int GENERATED ALWAYS AS (a) VIRTUAL);\nCREATE VIEW", 1
    )
    with pytest.raises(LoadError, match=r"syntax error .*\(dumped from 18\.\d+, restored into 15\.\d+"):
        restored(own, "15")


def test_a_server_that_restores_reaches_no_network(started):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        reach = f"COPY (SELECT) TO PROGRAM 'bash -c \"echo > /dev/tcp/127.0.0.1/{port}\"'"
        started().execute(reach)
        cluster = started(cut_off=True)
        if not cluster.can_be_cut_off():
            pytest.skip("the servers' user can make no namespaces")
        with pytest.raises(ServerError, match=r"program .* failed"):
            cluster.execute(reach, dbname="postgres")


def test_a_changed_dump_does_not_go_on(shop, new_cluster, scratch, tmp_path):
    path = tmp_path / "shop.sql"
    shutil.copy(shop.dumps / "plain.sql", path)
    saved = data_of(path)
    asked = Data(file=str(path))
    assert pinned(asked, saved, print) == saved
    path.write_text(path.read_text().replace("it's", "its"))
    for again in (
        lambda: pinned(asked, saved, print),
        lambda: restore(saved, new_cluster(), Shell(), scratch, print),
    ):
        with pytest.raises(InputError, match=r"shop.sql has changed since the study began"):
            again()


def test_the_size_of_the_data_is_part_of_the_check_of_the_disk(shop):
    data = data_of(shop.dumps / "plain.sql").changed(mib=5_000)
    workload = Workload(name="own", title="Own", data=data, scripts=(Script(sql="SELECT 1;"),))
    assert workload.data_mib(3) - workload.changed(data=data.changed(mib=0)).data_mib(3) == 5_000


def test_on_an_external_server_a_dump_has_a_database_of_its_own(shop, place, plain, scratch, tmp_path):
    path = tmp_path / "own.sql"
    path.write_text(re.sub("(?m)^CREATE POLICY .*\n", "", plain))
    data, lines = data_of(path), list[str]()
    remote = place("maker")
    with pytest.raises(InputError, match="'superuser' of the data is for benchlib's own servers"):
        restore(data.changed(superuser=True), remote, remote.shell(), scratch, print)
    restore(data, remote, remote.shell(), scratch, lines.append)
    assert contents(remote) == contents(shop)
    assert "by the role of the service, with all its rights" in lines[0]
    remote = place("boss", own_schema="own")
    with pytest.raises(PreflightError, match="a dump needs a database of its own"):
        restore(data, remote, remote.shell(), scratch, print)


GREEDY = f"""
BEGIN
    BEGIN
        COPY public.stolen FROM PROGRAM 'touch {PWNED}';
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
    RETURN {{}};
END"""
HOSTILE = f"""
SET statement_timeout = 0;
CREATE TABLE public.stolen (a text);
CREATE TABLE public.orders (a int);
CREATE FUNCTION public.fired() RETURNS trigger LANGUAGE plpgsql AS $f${GREEDY.format("NEW")}$f$;
CREATE TRIGGER fires BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.fired();
CREATE TRIGGER empties BEFORE TRUNCATE ON public.orders FOR EACH STATEMENT EXECUTE FUNCTION public.fired();
CREATE FUNCTION public.taken() RETURNS int LANGUAGE plpgsql AS $f${GREEDY.format("1")}$f$;
CREATE VIEW public.counted AS SELECT public.taken() + count(*) AS n FROM public.orders;
-- named as functions that this library calls, with arguments that fit better
CREATE FUNCTION public.pg_wal_lsn_diff(pg_lsn, text) RETURNS numeric LANGUAGE plpgsql AS $f${GREEDY.format("1")}$f$;
-- PostgreSQL database dump complete
"""


def test_code_that_a_dump_leaves_in_the_database_never_runs_as_superuser(tmp_path):
    (tmp_path / "hostile.sql").write_text(HOSTILE)
    work = Workload(
        name="w",
        title="w",
        data=data_of(tmp_path / "hostile.sql"),
        load_sql="INSERT INTO orders VALUES (1)",
        unanalyzed_sql="INSERT INTO orders VALUES (2)",
        scripts=(Script(sql="INSERT INTO orders VALUES (3);\nSELECT n FROM counted;\n"),),
        truncate=("orders",),
        explain=("SELECT n FROM counted",),
        invariant={"count": "SELECT n FROM counted", "per_transaction": 1},
    )
    ((error, plans),) = try_scripts(work, "18", print)
    assert (error, len(plans)) == ("", 2)
    with workshop("a test", 1) as templates:
        cluster = templates.loaded(Level(postgres="18", sql="CREATE INDEX ON orders (a);"), work)
        cluster.start()
        assert statistics.explained(cluster, work, 1)
        assert cluster.value("SELECT current_user", as_load=True) == OWNER
        with statistics.waits(cluster) as count, cluster.connect(as_load=True) as load:
            load.execute("SET application_name = 'load'")
            assert sum(sessions for *_, sessions in count()["sessions"]) == 1
            assert statistics.end_load(cluster, "load")
            assert count()["sessions"] == []
        cluster.stop()
    assert not Path(PWNED).exists()
