"""``benchlib workload`` and ``benchlib init``, as their callers meet them."""

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from benchlib.cli import ready
from benchlib.errors import PreflightError
from benchlib.load.workloads import load_workload, workload_paths


@pytest.mark.parametrize("name", sorted(workload_paths()))
def test_what_is_shown_is_the_workload_as_a_file(name, run, tmp_path) -> None:
    (tmp_path / "shown.toml").write_text(run("workload", "show", name).out)
    assert load_workload("shown.toml") == load_workload(name)


def test_one_s_own_are_listed_with_where_they_are_and_broken_ones_with_why(run, tmp_path) -> None:
    folder = tmp_path / "workloads"
    folder.mkdir()
    (folder / "mine.toml").write_text('like = "insert"\ntitle = "Mine"\n')
    (folder / "hurt.toml").write_text("name = ")
    lines = dict(line.split(maxsplit=1) for line in run("workload", "list").out.splitlines())
    assert lines["mine"] == f"Mine ({folder}/mine.toml)"
    assert "cannot be used: workload hurt.toml cannot be read" in lines["hurt"]
    assert lines["tpcb-like"] == "TPC-B-like transactions"


def test_sql_files_become_a_workload(run, tmp_path) -> None:
    folder = tmp_path / "queries"
    folder.mkdir()
    (folder / "b read.sql").write_text("\ufeff-- weight: 9\nSELECT 'it''s :here', \"x\" FROM t;")
    (folder / "a write.sql").write_text("INSERT INTO t VALUES ('''');\nDELETE FROM t")
    (tmp_path / "schema.sql").write_text("\\restrict aB3\nCREATE TABLE t (x text);\n\\unrestrict aB3\n")
    new = ("workload", "new", "mine", "--from", "queries")
    (folder / "c.sql").write_text("-- weight: 0.5\nSELECT 1")
    assert "weight: expected a whole number, not 0.5" in run(*new).line
    (folder / "c.sql").unlink()
    assert "workloads/mine.toml: 2 scripts" in run(*new, "--schema", "schema.sql").out
    workload = load_workload("mine")
    assert (workload.load_sql, workload.pgbench_tables) == ("CREATE TABLE t (x text);\n", False)
    assert [(script.weight, script.sql) for script in workload.scripts] == [
        (1, "INSERT INTO t VALUES ('''');\nDELETE FROM t\n"),
        (9, "-- weight: 9\nSELECT  E'it''s \\x3ahere', \"x\" FROM t;\n"),
    ]
    assert "is there already" in run(*new).line


LOGGED = "".join(
    f"2026-01-02 03:04:05.006 UTC [42] LOG:  duration: {ms} ms  statement: {sql}\n"
    for ms, sql in (
        (3.5, "SELECT id FROM orders WHERE email = 'u1@example.org'"),
        (3.5, "SELECT id FROM orders WHERE email = 'u2@example.org'"),
        (1.5, "UPDATE orders SET at = now() WHERE id = 5"),
        (0.5, "SELECT relname FROM pg_class"),
    )
)


def test_a_log_becomes_a_private_workload_with_its_values(run, tmp_path) -> None:
    (tmp_path / "server.log").write_text(LOGGED)
    (tmp_path / "shop.sql").write_text("CREATE TABLE orders (id int);\n")
    outcome = run("workload", "new", "shop", "--from-log", "server.log", "--data", "shop.sql")
    assert (outcome.status, outcome.err) == (0, "")
    for line in (
        "taken: 1 (SELECT id FROM orders WHERE email = ? …), 50 % of the calls, 77.8 % of the time",
        "left out, since they write",
        "left out, since they read the server's own catalogs",
        "workloads/shop.toml: 1 scripts",
    ):
        assert line in outcome.out
    workload = load_workload("shop")
    assert workload.private
    assert Path(workload.data.file or "").samefile("shop.sql")
    (script,) = workload.scripts
    assert script.title == "SELECT id FROM orders WHERE email = ?"
    assert {"u1@example.org", "u2@example.org"} <= {*re.findall(r"u\d@[\w.]+", script.sql or "")}


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("GET / HTTP/1.1 200\n", "", "is no log of PostgreSQL"),
        (LOGGED, "--data nope.dump", "nope.dump cannot be read"),
        (LOGGED, "--tables orders", "--tables belongs to --data service=NAME"),
        (LOGGED, "--data service=postgresql://me:secret@db/shop", "a workload's file holds no password"),
        (LOGGED, "--from-statements shop", "take one of --from"),
    ],
)
def test_what_makes_no_workload_is_refused_in_a_line(text, words, message, run, tmp_path) -> None:
    (tmp_path / "server.log").write_text(text)
    outcome = run("workload", "new", "shop", "--from-log", "server.log", *words.split())
    assert outcome.status == 2
    assert message in outcome.line
    assert not list(tmp_path.glob("workloads/*"))


# --- init -------------------------------------------------------------------------------


@pytest.fixture
def init(run, tmp_path):
    """Lays a folder out: what is said, and its files."""

    def call() -> tuple[str, dict[str, bytes]]:
        outcome = run("init", "mine")
        assert outcome.status == 0, outcome.err
        files = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
        return outcome.out, {str(path.relative_to(tmp_path / "mine")): path.read_bytes() for path in files}

    return call


def test_a_folder_is_laid_out_from_the_library(init, tmp_path) -> None:
    said, files = init()
    assert "cd mine" in said
    notebooks = {f"notebooks/{path.name}": path.read_bytes() for path in tmp_path.glob("notebooks/*.ipynb")}
    assert files.items() >= notebooks.items()
    assert "data/published/storage.csv" in files
    folders = {path.name for path in (tmp_path / "mine").iterdir() if path.is_dir()}
    assert folders == {"notebooks", "studies", "workloads", "data", "reports"}
    assert init() == (said, files)


def test_a_later_version_touches_no_notebook_that_has_been_changed(init, tmp_path, monkeypatch) -> None:
    init()
    (tmp_path / "mine" / "notebooks" / "memory.ipynb").write_text("my own")
    (tmp_path / "mine" / "notebooks" / "version.ipynb").unlink()
    later = Path(shutil.copytree(ready._LAYOUT, tmp_path / "later"))
    for name in ("memory", "storage", "new"):
        (later / "notebooks" / f"{name}.ipynb").write_text(f"a later {name}")
    monkeypatch.setattr(ready, "_LAYOUT", later)
    said, files = init()
    assert "notebooks/memory.ipynb has been changed and stays as it is" in said
    assert said.count("changed") == 1
    found = [files[f"notebooks/{name}.ipynb"] for name in ("memory", "storage", "new")]
    assert found == [b"my own", b"a later storage", b"a later new"]
    assert "notebooks/version.ipynb" in files


def test_an_installed_library_says_how_to_get_its_notebooks(run, monkeypatch) -> None:
    shutil.rmtree("notebooks")
    monkeypatch.setattr("benchlib.host.files.trusted", lambda folder: False)
    message = run("run", "configuration").line
    assert "no notebook 'configuration' ('benchlib init FOLDER' makes a folder that has them)" in message


@pytest.fixture
def make(monkeypatch):
    """Stands for the maker of workloads; the server of a service has one setting."""
    made = Mock()
    monkeypatch.setattr("benchlib.cli.workload.make_workload", made)
    monkeypatch.setattr("benchlib.server.remote.Remote", Mock())
    settings = Mock(return_value=(99, {"work_mem": "8MB"}))
    monkeypatch.setattr("benchlib.server.statements.plan_settings", settings)
    return made


@pytest.mark.parametrize("service", ["on", "2024", "null", "1.5", "shop", "postgresql://db/shop"])
def test_a_workload_of_an_own_server_is_laid_out_with_levels(run, make, service) -> None:
    outcome = run("init", "my own", "--own", service)
    assert outcome.status == 0, outcome.err
    name = "own" if "/" in service else service
    assert "PostgreSQL 99 is not here ('benchlib postgres install 99')" in outcome.out
    assert outcome.out.endswith(f"cd 'my own' && benchlib run own -f levels.yaml -p study {name}\n")
    path = Path("my own/levels.yaml")
    levels = yaml.safe_load(path.read_text())
    assert (levels["workload"], levels["base"]) == (name, {"settings": {"work_mem": "8MB"}})
    make.assert_called_once_with(Path(f"my own/workloads/{name}.toml"), "service=", service=service)
    path.write_text("edited")
    run("init", "my own", "--own", service)
    assert path.read_text() == "edited"


def test_a_service_whose_statements_are_unknown_is_told_the_next_step(run, make) -> None:
    make.side_effect = PreflightError("no pg_stat_statements")
    assert "cd mine && benchlib workload new shop --from-log LOG" in run("init", "mine", "--own", "shop").err
