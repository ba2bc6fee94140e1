"""What a server that is not ours does not allow is said in one line, before anything is changed on it."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from clusters import bench_plan
from foreign import Foreign

from benchlib.errors import HostBusyError, PreflightError
from benchlib.plan.design import Trial
from benchlib.plan.level import SettingValue
from benchlib.server.remote import Remote, sole_run
from benchlib.server.rights import Target
from benchlib.study.bench import open_bench
from benchlib.study.preflight import preflight

pytestmark = [pytest.mark.pg, pytest.mark.usefixtures("services")]

WIDE = {"server": "boss", "server_wide": True}


def check(
    target: object = "boss",
    settings: dict[str, SettingValue] | None = None,
    clients: int = 4,
    needs_mib: int = 50,
) -> dict[str, str]:
    asked = Target.model_validate(target)
    rows = Remote(asked).preflight(clients=clients, settings=settings or {}, needs_mib=needs_mib)
    name = f"service {asked.server}"
    assert all(what.startswith(name) for what, _ in rows)
    return {what.removeprefix(name).removeprefix(", "): offers for what, offers in rows}


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(PreflightError) as caught:
        check(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert "zebra" not in str(caught.value)
    return str(caught.value)


def test_what_the_server_offers_is_told_in_pairs_of_words(foreign: Foreign) -> None:
    foreign.wait_until_alone()
    before = foreign.databases(), foreign.schemas(), foreign.altered(), foreign.set_for()
    offers = check(WIDE, {"work_mem": "8MB", "checkpoint_timeout": "7min"})
    assert offers[""].startswith(f"PostgreSQL {foreign.cluster.version()}, answers in ")
    assert offers["connections"] == "9 needed of 97 (max_connections 100 less 3 reserved less 0 in use)"
    assert (
        offers["rights"]
        == "a database of our own, CHECKPOINT, work_mem for us alone, checkpoint_timeout for everybody there"
    )
    assert offers["disk"].startswith("about 50 MiB needed")
    assert offers["host"] == "sampled by the server"
    check(WIDE, {"fsync": True, "synchronous_commit": False})
    after = foreign.databases(), foreign.schemas(), foreign.altered(), foreign.set_for()
    assert after == before, "nothing was changed"


def test_an_ordinary_role_is_told_what_it_may_not_know_or_do() -> None:
    offers = check("maker")
    assert offers["rights"].startswith(
        "a database of our own, no CHECKPOINT, so a trial starts with what is dirty"
    )
    assert offers["host"].startswith("not sampled: GRANT pg_read_server_files TO ")


def test_a_wrong_password_or_none(services: Path, foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    services.write_text(foreign.service("boss"))
    assert "no password supplied; passwords come from the service file, PGPASSWORD or .pgpass" in refusal()
    monkeypatch.setenv("PGPASSWORD", "zebra-but-wrong")
    assert 'password authentication failed for user "boss"; passwords come from' in refusal()


def test_an_unknown_service_and_a_server_that_is_not_there(foreign: Foreign) -> None:
    message = refusal("no-such-service")
    assert message.startswith("the target “no-such-service” cannot be used: definition of service")
    assert "PGSERVICEFILE" in message
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "Connection refused" in refusal(f"postgresql://boss@127.0.0.1:{port}/postgres")
    assert 'database "nowhere" does not exist' in refusal(
        f"{foreign.uri('boss', 'nowhere')}&passfile=/dev/null".replace("boss@", "postgres@")
    )


def test_too_many_clients(foreign: Foreign) -> None:
    foreign.wait_until_alone()
    assert check(clients=92)["connections"].startswith("97 needed of 97")
    assert refusal(clients=93) == (
        "93 clients and 5 sessions of ours need 98 connections, the target has room for 97 "
        "(max_connections 100 less 3 reserved less 0 in use): at most 92 clients, or raise the limit"
    )
    with foreign.cluster.connect("postgres"):
        assert "room for 96 (max_connections 100 less 3 reserved less 1 in use)" in refusal(clients=92)
        assert "room for 96" in refusal("maker", clients=92), "an ordinary role counts others' sessions too"
    with foreign.given(
        "GRANT CREATE ON DATABASE postgres TO guest",
        back="REVOKE CREATE ON DATABASE postgres FROM guest",
    ):
        guest = {"server": "guest", "own_schema": "bench_own"}
        assert "room for 12 (our role's limit 12 less 0 in use)" in refusal(guest, clients=20)


def test_of_a_server_by_uri_the_host_is_not_told(foreign: Foreign) -> None:
    rows = Remote(Target(server=foreign.uri("postgres"))).preflight(clients=4, settings={}, needs_mib=50)
    assert [what for what, _ in rows][:2] == ["server by URI", "server by URI, connections"]
    assert str(foreign.cluster.sockets) not in str(rows)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"shared_buffers": "1GB"}, "shared_buffers = 1GB: needs a restart of the server"),
        ({"block_size": 8192}, "was decided when the server was built"),
        ({"no_such_thing": 1}, "no_such_thing = 1: the server has no such parameter"),
        ({"fsync": False}, "would endanger every database"),
        ({"full_page_writes": "off"}, "would endanger every database"),
        ({"search_path": "public"}, "a list of names would be taken for one"),
        ({"work_mem": "8 pigs", "jit": "perhaps"}, 'parameter "work_mem": "8 pigs"; jit = perhaps: '),
    ],
)
def test_settings_that_no_role_may_have_there(settings: dict[str, SettingValue], reason: str) -> None:
    message = refusal(WIDE, settings)
    assert message.startswith("the target “boss” will not do: ")
    assert reason in message


def test_what_the_whole_server_has_wants_to_be_asked_for(foreign: Foreign) -> None:
    message = refusal("maker", {"work_mem": "8MB", "checkpoint_timeout": "7min"})
    assert "checkpoint_timeout is the whole server's: say server_wide: true" in message
    assert "work_mem" not in message
    assert "GRANT ALTER SYSTEM ON PARAMETER checkpoint_timeout TO maker" in message, (
        "that it takes too is told at once"
    )


def test_all_that_levels_lack_is_told_at_once_as_sql_to_paste_which_is_enough(
    foreign: Foreign, ready_clusters: None, unguarded: None, tmp_path: Path
) -> None:
    target = {"server": "guest", "own_schema": "bench_own", "server_wide": True}
    statements = {"log_min_duration_statement": "1h", "max_wal_size": "2GB"}
    levels = {
        "work_mem": {"target": target, "settings": {"work_mem": "8MB"}},
        "both": {"target": target, "settings": {"checkpoint_timeout": "7min", **statements}},
        "timeout": {"target": target, "settings": {"checkpoint_timeout": "8min"}},
    }
    plan = bench_plan(levels, arrangement="fresh")
    with pytest.raises(PreflightError) as caught:
        preflight(plan)
    message, _, grants = str(caught.value).partition(
        "; as a superuser of “guest”, in the database postgres: "
    )
    assert all(f"level “{name}”: the target “guest” will not do: " in message for name in levels)
    assert sorted(grants.split(";")) == [
        "",
        " GRANT ALTER SYSTEM ON PARAMETER checkpoint_timeout TO guest",
        " GRANT ALTER SYSTEM ON PARAMETER max_wal_size TO guest",
        " GRANT EXECUTE ON FUNCTION pg_reload_conf() TO guest",
        " GRANT SET ON PARAMETER log_min_duration_statement TO guest",
        " GRANT pg_read_all_settings TO guest",
        "GRANT CREATE ON DATABASE postgres TO guest",
    ]
    before = foreign.schemas(), foreign.altered(), foreign.set_for()
    back = grants.replace("GRANT", "REVOKE").replace(" TO ", " FROM ")
    with foreign.given(*filter(None, grants.split(";")), back=back):
        preflight(plan)
        (kept := tmp_path / "kept").mkdir()
        with open_bench(plan, "test") as bench:
            measurement = bench.measure(Trial(block=1, position=1, level="both", seed=1), kept)
        assert measurement.error is None
        shown = {
            "checkpoint_timeout": "420 s",
            "log_min_duration_statement": "3600000 ms",
            "max_wal_size": "2048 MB",
        }
        assert measurement.settings == shown
    assert (foreign.schemas(), foreign.altered(), foreign.set_for()) == before


def test_the_grants_in_the_readme_are_what_a_server_takes(foreign: Foreign) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    statements = [part for part in re.sub("--.*", "", block).split(";") if part.strip()]
    with foreign.given(
        "CREATE ROLE bench",
        "CREATE DATABASE shop",
        back="DROP DATABASE shop;DROP OWNED BY bench;DROP ROLE bench",
    ):
        foreign.cluster.execute(*statements, dbname="shop")
    assert len(statements) == 11


def test_who_may_not_have_a_database_is_told_how() -> None:
    assert refusal("guest").endswith("in the database postgres: ALTER ROLE guest CREATEDB;")


def test_a_granted_parameter_may_be_set_if_what_it_replaces_is_known(foreign: Foreign) -> None:
    wide = {"server": "tuner", "server_wide": True}
    assert "checkpoint_timeout for everybody" in check(wide, {"checkpoint_timeout": "7min"})["rights"]
    with foreign.given(
        "ALTER SYSTEM SET checkpoint_timeout = '9min'",
        "SELECT pg_reload_conf()",
        back="ALTER SYSTEM RESET checkpoint_timeout;SELECT pg_reload_conf()",
    ):
        foreign.wait_until_it_shows("checkpoint_timeout", "9min")
        assert "may not see what ALTER SYSTEM would replace" in refusal(wide, {"checkpoint_timeout": "7min"})
        with foreign.given(
            "GRANT pg_read_all_settings TO tuner", back="REVOKE pg_read_all_settings FROM tuner"
        ):
            check(wide, {"checkpoint_timeout": "7min"})
    foreign.wait_until_it_shows("checkpoint_timeout", "5min")


def test_a_database_with_tables_of_others_is_refused_unless_it_is_named(foreign: Foreign) -> None:
    own = {"server": "boss", "own_schema": "bench_own"}
    assert check(own)["rights"].startswith("a schema bench_own of our own")
    with foreign.given("CREATE TABLE theirs (n int)", back="DROP TABLE theirs"):
        message = refusal(own)
        assert "will not do: the database postgres holds tables of others (1)" in message
        assert "say beside: postgres" in message
        assert refusal({**own, "beside": "another"}) == message
        check({**own, "beside": "postgres"})
        check("boss")


def test_tables_of_extensions_and_of_our_other_levels_are_not_those_of_others(foreign: Foreign) -> None:
    with foreign.given(
        "CREATE SCHEMA bench_own_0123456789ab",
        "CREATE TABLE bench_own_0123456789ab.pgbench_history (n int)",
        "CREATE TABLE theirs (n int)",
        "ALTER EXTENSION plpgsql ADD TABLE theirs",
        back="ALTER EXTENSION plpgsql DROP TABLE theirs;DROP TABLE theirs;DROP SCHEMA bench_own_0123456789ab CASCADE",
    ):
        check({"server": "boss", "own_schema": "bench_own"})


def test_what_counts_more_than_we_could_set(foreign: Foreign) -> None:
    with foreign.given("ALTER ROLE boss SET work_mem = '5MB'", back="ALTER ROLE boss RESET work_mem"):
        assert "decided elsewhere (user)" in refusal(settings={"work_mem": "8MB"})
        check({"server": "boss", "own_schema": "bench_own"}, {"work_mem": "8MB"})


def test_a_server_that_forbids_alter_system(foreign: Foreign) -> None:
    if foreign.cluster.major < 17:
        pytest.skip("allow_alter_system came with PostgreSQL 17")
    conf = foreign.cluster.data / "benchlib.conf"
    former = conf.read_text()
    try:
        conf.write_text(f"{former}allow_alter_system = off\n")
        foreign.cluster.execute("SELECT pg_reload_conf()", dbname="postgres")
        foreign.wait_until_it_shows("allow_alter_system", "off")
        assert "this server does not allow ALTER SYSTEM" in refusal(WIDE, {"checkpoint_timeout": "7min"})
        check(WIDE, {"work_mem": "8MB"})
    finally:
        conf.write_text(former)
        foreign.cluster.execute("SELECT pg_reload_conf()", dbname="postgres")


def test_two_runs_on_one_server_are_not_at_once() -> None:
    with sole_run("maker", 1):
        with sole_run("guest", 1):
            pass  # the same run, by another service
        busy = pytest.raises(HostBusyError, match="another run is under way on the target “guest”")
        with busy, sole_run("guest", 2):
            pass
    with sole_run("guest", 2):
        pass
