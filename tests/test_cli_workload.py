"""``benchlib workload`` and ``benchlib init``, as their callers meet them."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchlib.cli import cli, ready
from benchlib.load.workloads import load_workload, workload_paths


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, words)])


@pytest.mark.parametrize("name", sorted(workload_paths()))
def test_what_is_shown_is_the_workload_as_a_file(name: str, here: Path) -> None:
    (here / "shown.toml").write_text(run("workload", "show", name).output)
    assert load_workload("shown.toml") == load_workload(name)


def test_one_s_own_are_listed_with_where_they_are_and_broken_ones_with_why(here: Path) -> None:
    (here / "workloads").mkdir()
    (here / "workloads" / "mine.toml").write_text('like = "insert"\ntitle = "Mine"\n')
    (here / "workloads" / "hurt.toml").write_text("name = ")
    lines = {line.split()[0]: line for line in run("workload", "list").output.splitlines()}
    assert lines["mine"].endswith(f"Mine ({here / 'workloads' / 'mine.toml'})")
    assert "cannot be used: workload hurt.toml cannot be read" in lines["hurt"]
    assert lines["tpcb-like"].split(maxsplit=1)[1] == "TPC-B-like transactions"


def test_sql_files_become_a_workload(here: Path) -> None:
    folder = here / "queries"
    folder.mkdir()
    (folder / "b read.sql").write_text("\ufeff-- weight: 9\nSELECT 'it''s :here', \"x\" FROM t;")
    (folder / "a write.sql").write_text("INSERT INTO t VALUES ('''');\nDELETE FROM t")
    (here / "schema.sql").write_text("\\restrict aB3\nCREATE TABLE t (x text);\n\\unrestrict aB3\n")
    result = run("workload", "new", "mine", "--from", "queries", "--schema", "schema.sql")
    assert result.exit_code == 0, result.output
    assert "workloads/mine.toml: 2 scripts" in result.output
    workload = load_workload("mine")
    assert workload.load_sql == "CREATE TABLE t (x text);\n"
    assert not workload.pgbench_tables
    assert [(script.weight, script.sql) for script in workload.scripts] == [
        (1, "INSERT INTO t VALUES ('''');\nDELETE FROM t\n"),
        (9, "-- weight: 9\nSELECT  E'it''s \\x3ahere', \"x\" FROM t;\n"),
    ]
    assert "is there already" in str(run("workload", "new", "mine", "--from", "queries").exception)


@pytest.mark.parametrize(
    ("sql", "schema", "message"),
    [
        ("-- nothing", "", "q.sql: there is no statement in it"),
        ("\\copy t FROM x", "", "q.sql: \\copy is no command"),
        ("SELECT 1", "COPY t (x) FROM stdin;\n1\n\\.\n", "pg_dump --inserts"),
        (b"\xff", "", "q.sql: 'utf-8' codec"),
    ],
)
def test_what_makes_no_workload_leaves_no_file(
    sql: str | bytes, schema: str, message: str, here: Path
) -> None:
    (here / "q").mkdir()
    (here / "q" / "q.sql").write_bytes(sql if isinstance(sql, bytes) else sql.encode())
    (here / "schema.sql").write_text(schema)
    result = run("workload", "new", "mine", "--from", "q", "--schema", "schema.sql")
    assert message in str(result.exception)
    assert not (here / "workloads").exists()


def test_a_folder_without_queries_leaves_no_file(here: Path) -> None:
    (here / "q").mkdir()
    assert "there are no *.sql files in" in str(run("workload", "new", "mine", "--from", "q").exception)
    assert not (here / "workloads").exists()


@pytest.mark.parametrize("name", ["../x", "", "a/b", "a b"])
def test_a_name_is_one_of_a_file(name: str, here: Path) -> None:
    (here / "q").mkdir()
    assert "no name for a file" in str(run("workload", "new", name, "--from", "q").exception)


def test_of_files_and_statements_one_is_wanted_and_no_password() -> None:
    assert "take either" in run("workload", "new", "x").output
    assert "no password" in str(
        run("workload", "new", "x", "--from-statements", "postgresql://u:p@h/d").exception
    )


# --- init -------------------------------------------------------------------------------


def laid_out(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_folder_is_laid_out_from_the_library(here: Path) -> None:
    result = run("init", "mine")
    assert result.exit_code == 0
    assert "cd mine" in result.output
    files = laid_out(here / "mine")
    source = Path(__file__).parent.parent / "notebooks"
    for path in source.glob("*.ipynb"):
        assert files[f"notebooks/{path.name}"] == path.read_bytes()
    assert "data/published/storage.csv" in files
    assert {path.name for path in (here / "mine").iterdir() if path.is_dir()} == {
        "notebooks",
        "workloads",
        "data",
        "reports",
    }
    assert run("init", "mine").output == result.output
    assert laid_out(here / "mine") == files


def test_a_later_version_touches_no_notebook_that_has_been_changed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", "mine")
    own, other, gone = (
        here / "mine" / "notebooks" / f"{name}.ipynb" for name in ("memory", "storage", "version")
    )
    own.write_text("my own")
    gone.unlink()
    later = here / "later"
    shutil.copytree(ready._LAYOUT, later)
    for name in ("memory", "storage", "new"):
        (later / "notebooks" / f"{name}.ipynb").write_text(f"a later {name}")
    monkeypatch.setattr(ready, "_LAYOUT", later)
    result = run("init", "mine")
    assert "notebooks/memory.ipynb has been changed and stays as it is" in result.output
    assert result.output.count("changed") == 1
    assert own.read_text() == "my own"
    assert other.read_text() == "a later storage"
    assert (here / "mine" / "notebooks" / "new.ipynb").read_text() == "a later new"
    assert gone.exists()


def test_where_nothing_can_be_laid_out_that_is_said(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "notebooks").write_text("a file")
    assert "mine/notebooks is a link or no folder" in str(run("init", "mine").exception)


def test_an_installed_library_says_how_to_get_its_notebooks(
    monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.setattr("benchlib.host.files.trusted", lambda folder: False)
    message = str(run("run", "configuration").exception)
    assert message.startswith(
        "no notebook 'configuration' ('benchlib init FOLDER' makes a folder that has them)"
    )
