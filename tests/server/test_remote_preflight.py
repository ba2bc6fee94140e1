"""Missing rights on an external server are reported in one line before any change."""

import re
from pathlib import Path
from typing import Any

import pytest
from clusters import bench_plan

from benchlib.errors import HostBusyError, PreflightError
from benchlib.server.remote import Remote, sole_run
from benchlib.server.rights import Target
from benchlib.study.preflight import preflight

pytestmark = pytest.mark.usefixtures("journal")  # which sees that the server is afterwards as it was

WIDE = {"server": "boss", "server_wide": True}
TUNER = {**WIDE, "server": "tuner"}
OWN = {"server": "boss", "own_schema": "bench_own"}
BESIDE = {**OWN, "beside": "postgres"}
TIMEOUT = {"checkpoint_timeout": "7min"}
NINE = "ALTER SYSTEM SET checkpoint_timeout = '9min'"
THEIRS = "CREATE TABLE theirs (n int)"


def check(target: Any = "boss", settings: Any = (), clients: int = 4) -> dict[str, str]:
    """Return the text of each subject of the check."""
    asked = Target.model_validate(target)
    rows = Remote(asked).preflight(clients=clients, settings=dict(settings), needs_mib=50)
    name = "server by URI" if "://" in asked.server else f"service {asked.server}"
    assert all(what.startswith(name) for what, _ in rows)
    return {what.removeprefix(name).removeprefix(", "): offers for what, offers in rows}


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(PreflightError, match=r"^((?!zebra).)*$") as caught:
        check(*args, **kwargs)
    return str(caught.value)


def test_the_check_reports_connections_rights_disk_and_host(foreign):
    foreign.wait_until_alone()
    offers, of_maker = check(WIDE, {"work_mem": "8MB", **TIMEOUT}), check("maker")
    assert offers[""] == f"PostgreSQL {foreign.cluster.version()}, not encrypted"
    assert offers["connections"].startswith("9 needed of 97")
    assert offers["rights"] == "a new database, CHECKPOINT, checkpoint_timeout for the whole server"
    assert "50 MiB" in offers["disk"]
    assert offers["host"] == "sampled by the server"
    assert "no CHECKPOINT" in of_maker["rights"]
    assert of_maker["host"].startswith("not sampled: GRANT pg_read_server_files TO ")
    assert str(foreign.cluster.sockets) not in str(check(foreign.uri("postgres")))


@pytest.mark.parametrize(
    ("given", "target", "settings", "expected"),
    [
        ([], WIDE, {"shared_buffers": "1GB"}, "shared_buffers = 1GB: needs a restart of the server"),
        ([], WIDE, {"block_size": 8192}, "is fixed when the server is built"),
        ([], WIDE, {"no_such_thing": 1}, "no_such_thing = 1: the server has no such parameter"),
        ([], WIDE, {"FSYNC": False}, "would endanger every database"),
        ([], WIDE, {"full_page_writes": "off"}, "would endanger every database"),
        ([], WIDE, {"fsync": True, "synchronous_commit": False}, None),
        ([], WIDE, {"search_path": "public"}, None),
        ([], OWN, {"Search_Path": "public"}, "the tables are in a schema of benchlib"),
        ([], WIDE, {"work_mem": "8 pigs", "jit": "perhaps"}, 'parameter "work_mem": "8 pigs"; jit = perhaps: '),
        ([], "maker", {"work_mem": "8MB", **TIMEOUT}, "“maker”: checkpoint_timeout applies to the whole server: set server_wide: true"),
        ([], "maker", TIMEOUT, "GRANT ALTER SYSTEM ON PARAMETER checkpoint_timeout TO maker"),
        ([], "guest", {}, "in the database postgres: ALTER ROLE guest CREATEDB;"),
        ([], TUNER, TIMEOUT, None),
        ([NINE], TUNER, TIMEOUT, "may not see the values that ALTER SYSTEM would replace"),
        ([NINE, "GRANT pg_read_all_settings TO tuner"], TUNER, TIMEOUT, None),
        ([THEIRS], OWN, {}, "the database postgres holds 1 other tables: .*, or set beside: postgres"),
        ([THEIRS], {**OWN, "beside": "another"}, {}, "the database postgres holds 1 other tables"),
        ([THEIRS], BESIDE, {}, None),
        ([THEIRS], "boss", {}, None),
        ([THEIRS, "ALTER EXTENSION plpgsql ADD TABLE theirs"], OWN, {}, None),
        (["CREATE SCHEMA o_0123456789ab", "CREATE TABLE o_0123456789ab.t (n int)"], OWN, {}, None),
    ],
)  # fmt: skip
def test_levels_that_a_server_accepts_or_refuses(foreign, given, target, settings, expected):
    with foreign.given(*given):
        if expected is None:
            check(target, settings)
            return
        message = refusal(target, settings)
    assert message.startswith(f"cannot use external server “{Target.model_validate(target).server}”: ")
    assert re.search(re.escape(expected).replace(r"\.\*", ".*"), message)


def test_a_server_that_cannot_be_reached(services, foreign, monkeypatch):
    unknown = "^cannot use external server “no-such-service”: definition of service.*PGSERVICEFILE"
    assert re.search(unknown, refusal("no-such-service"))
    assert 'database "nowhere" does not exist' in refusal(foreign.uri("postgres", "nowhere"))
    assert "Connection refused" in refusal("postgresql://boss@127.0.0.1:1/postgres")
    services.write_text(foreign.service("boss"))
    assert "no password supplied; passwords come from the service file, PGPASSWORD or .pgpass" in refusal()
    with monkeypatch.context() as patch:
        patch.setenv("PGPASSWORD", "zebra-but-wrong")
        assert 'password authentication failed for user "boss"; passwords come from' in refusal()


def test_too_many_clients(foreign):
    foreign.wait_until_alone()
    assert check(clients=92)["connections"].startswith("97 needed of 97")
    assert "98 connections needed, 97 free: use at most 92 clients" in refusal(clients=93)
    with foreign.cluster.connect("postgres"):
        assert "96 free" in refusal("maker", clients=92), "an ordinary role counts others' sessions too"
    with foreign.given("GRANT pg_read_all_stats TO guest"):
        assert "12 free" in refusal({"server": "guest", "in_place": True}, clients=8)


def test_all_missing_rights_are_reported_as_sql_that_suffices(foreign, trials, unguarded):
    target = {"server": "guest", "own_schema": "bench_own", "server_wide": True}
    settings = {
        "work_mem": {"work_mem": "8MB"},
        "both": {**TIMEOUT, "log_min_duration_statement": "1h", "max_wal_size": "2GB"},
        "timeout": {"checkpoint_timeout": "8min"},
    }
    levels = {name: {"target": target, "settings": values} for name, values in settings.items()}
    plan = bench_plan(levels, arrangement="fresh")
    with pytest.raises(PreflightError) as caught:
        preflight(plan)
    message, pasted = str(caught.value).split("; as a superuser of “guest”, in the database postgres: ")
    assert all(f"level “{name}”: cannot use external server “guest”: " in message for name in levels)
    grants = [statement.strip() for statement in pasted.removesuffix(";").split(";")]
    assert len(grants) == len({*grants}) == 6
    with foreign.given(*grants):
        preflight(plan)
        measurement, _ = trials.run(trials.bench(plan), "both")
        trials.close()
    assert measurement.error is None
    assert {*measurement.settings.values()} == {"420 s", "3600000 ms", "2048 MB"}


def test_a_server_accepts_the_grants_in_the_documentation(foreign):
    text = (Path(__file__).parents[2] / "docs/how-to/external-server.md").read_text()
    (block,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    first, *grants = [part.strip() for part in re.sub("--.*", "", block).split(";") if part.strip()]
    assert len(grants) == 10
    with foreign.given("CREATE ROLE bench", "CREATE DATABASE shop", first, *grants):
        pass


def test_two_runs_on_one_server_are_not_at_once():
    with sole_run("maker", 1):
        with sole_run("guest", 1):
            pass  # the same run, by another service
        with (
            pytest.raises(HostBusyError, match="in progress on external server “guest”"),
            sole_run("guest", 2),
        ):
            pass
    with sole_run("guest", 2):
        pass
