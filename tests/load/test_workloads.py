"""Workloads: those that come along are whole, anybody's own are read, broken ones are named."""

import json
from pathlib import Path

import pytest

from benchlib.errors import InputError
from benchlib.load.workloads import load_workload, workload_paths
from benchlib.plan.workload import Invariant, at_scale

OWN = """
name = "own"
title = "One’s own"
pgbench_tables = false
load_sql = "CREATE TABLE t (i integer)"
scripts = [{sql = "INSERT INTO t VALUES (1);", weight = 3}, {builtin = "select-only"}]
invariant = {count = "SELECT count(*) FROM t"}
"""
OF_SYSBENCH = 'name = "s"\ntitle = "S"\ntool = "sysbench"\npgbench_tables = false\n'
READ_ONLY = 'sysbench = {test = "oltp_read_only", tables = 2, rows_per_scale = 10}\n'
EXPLAINED = [" select 1", "-- why\nWITH a AS (SELECT 1) TABLE a", "(SELECT 1)", "UPDATE t SET a = 1"]
UNEXPLAINED = ["CREATE INDEX ON t (i)", "", "-- SELECT", "SELECTED", "EXPLAIN SELECT 1"]
KEEPS_ITS_ROWS = {
    *("micro-count", "micro-hot-points", "micro-join", "micro-jsonb", "micro-point", "micro-random-points"),
    *("micro-range", "micro-range-covered", "micro-range-ordered", "micro-range-sum", "micro-text"),
    *("ycsb-a", "ycsb-b", "ycsb-c", "ycsb-f"),
}
"""Workloads that read, or update in place: their rows are checked, and no count of them grows."""


@pytest.fixture
def own(tmp_path: Path):
    """Writes a workload's file and gives its name."""

    def write(text: str = OWN) -> str:
        path = tmp_path / "own.toml"
        path.write_bytes(text.encode(errors="surrogateescape"))
        return str(path)

    return write


def refused(name: str) -> str:
    with pytest.raises(InputError) as caught:
        load_workload(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(workload_paths()))
def test_each_has_its_file_s_name_prose_and_something_that_must_hold_afterwards(name: str) -> None:
    workload = load_workload(name)
    assert (workload.name, bool(workload.title), bool(workload.prose.strip())) == (name, True, True)
    assert workload.invariant.count or workload.tool == "pgbench-init" or name in KEEPS_ITS_ROWS
    assert workload.invariant.violations
    writes = workload.pgbench_tables or workload.invariant.per_transaction
    goes_back = workload.vacuum or workload.truncate  # to a known state, between trials
    assert goes_back or not writes or name in KEEPS_ITS_ROWS | {"timeseries"}
    assert all(script.sql is None or script.sql.endswith("\n") for script in workload.scripts)


def test_a_workload_of_one_s_own_is_given_by_its_path(own) -> None:
    workload = load_workload(own())
    assert (workload.name, workload.title) == ("own", "One’s own")
    assert [(s.builtin, s.weight) for s in workload.scripts] == [(None, 3), ("select-only", 1)]


@pytest.mark.parametrize("name", ["tpcb", "", "../workloads", "tpcb-like.toml"])
def test_an_unknown_name_is_told_with_those_that_there_are(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(name).startswith(f"no workload '{name}'. Known: {min(workload_paths())}, ")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((OWN, "name = "), " cannot be read: "),
        ((OWN, "# \udcff"), " cannot be read: "),
        ((OWN, ""), ": name: Field required; title: Field required"),
        ((OWN, 'name = "own"\ntitle = "t"\n'), ": no script has a weight above 0"),
        (('title = "One’s own"\n', ""), ": title: Field required"),
        (("weight = 3", "wait = 3"), ": scripts.0.wait: Extra inputs are not permitted; keys are like, name, title, "),
        (('builtin = "select-only"', "weight = 1"), ": scripts.1: a script has either"),
        (("{count", "{per_transaction = [1], count"), ": 'per_transaction' has one number, or"),
        (("pgbench_tables", 'tool = "sysbench"\npgbench_tables'), ": sysbench brings its own tables"),
        (("pgbench_tables", 'like = "tpcb"\npgbench_tables'), ": like: 'tpcb' is not one of calibrated, "),
        (("pgbench_tables", 'like = ["a"]\npgbench_tables'), ": like: ['a'] is not one of"),
        (("pgbench_tables", 'data = {file = "a.dump", tables = ["t"]}\npgbench_tables'), ": data: 'tables' belong to"),
        ((OWN, OF_SYSBENCH), ": the tool 'sysbench' and a section"),
        (("pgbench_tables", f"{READ_ONLY}pgbench_tables"), ": the tool 'sysbench' and a section"),
        ((OWN, OF_SYSBENCH + READ_ONLY.replace("read_only", "point_select")), ": sysbench.test: Input should be"),
        *((("pgbench_tables", f"explain = ['{sql}']\npgbench_tables"), ": explain.0: only ") for sql in UNEXPLAINED),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_what_is_wrong(own, change: tuple[str, str], why: str) -> None:
    assert change[0] in OWN
    assert refused(own(OWN.replace(*change))).startswith(f"workload own.toml{why}")


def test_a_script_may_be_a_file_beside_the_workload_s(own, tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "read.sql").write_text("SELECT 'é';\n")
    text = OWN.replace('sql = "INSERT INTO t VALUES (1);"', 'file = "sql/read.sql"')
    assert load_workload(own(text)).scripts[0].sql == "SELECT 'é';\n"
    assert "No such file" in refused(own(text.replace("read.sql", "reed.sql")))
    for change in (("file = ", 'sql = "SELECT 1", file = '), ('"sql/read.sql"', "3")):
        assert "scripts.0.file: Extra inputs" in refused(own(text.replace(*change)))


def test_one_s_own_are_found_by_name_here_and_above_and_come_first(tmp_path: Path, monkeypatch) -> None:
    near, far = tmp_path / "a" / "workloads", tmp_path / "workloads"
    for folder, title in ((near, "near"), (far, "far")):
        folder.mkdir(parents=True)
        for name in ("mine", "insert"):
            (folder / f"{name}.toml").write_text(OWN.replace("One’s own", title))
    monkeypatch.chdir(tmp_path / "a")
    assert [load_workload(name).title for name in ("mine", "insert")] == ["near", "near"]
    assert load_workload("tpcb-like").title == "TPC-B-like transactions"
    near.chmod(0o777)  # anybody may have put them there
    assert load_workload("mine").title == "far"
    monkeypatch.chdir("/")
    assert "no workload 'mine'. Known: " in refused("mine")


def test_one_that_is_like_another_has_of_it_what_it_does_not_say(own) -> None:
    text = 'like = "joins"\nname = "mine"\ntitle = "Mine"\n[[scripts]]\nsql = "SELECT 1;\\n"\n'
    mine, joins = load_workload(own(text)), load_workload("joins")
    assert (mine.name, mine.scripts[0].sql) == ("mine", "SELECT 1;\n")
    changed = {"name", "title", "scripts"}
    assert mine.model_dump(exclude=changed) == joins.model_dump(exclude=changed)


def test_workloads_of_the_same_data_share_what_was_loaded_and_others_nothing() -> None:
    sharing = [
        ("joins", "joins-full-outer", "joins-union", "joins-grouped", "joins-bad-order", "latest-in-place", "latest-temporary"),
        ("joins-stale", "joins-fresh"), ("mixed", "mixed-scan"), ("sysbench-write-only", "sysbench-read-write"),
        ("tpcb-like", "select-only"), ("tpcb-like-90",), ("sort-hash",), ("index-build",), ("insert",), ("load",),
    ]  # fmt: skip
    contents = [{load_workload(name).contents for name in names} for names in sharing]
    assert [len(each) for each in contents] == [1] * len(sharing)
    assert len(set.union(*contents)) == len(sharing)


def test_loading_is_told_the_scale() -> None:
    assert "generate_series(1, 100000 * 7)" in at_scale(load_workload("sort-hash").load_sql, 7)
    assert at_scale("SELECT :scale::int, x::scale, ':scale'", 3) == "SELECT 3::int, x::scale, '3'"
    assert at_scale("SELECT :scales", 3) == "SELECT :scales"


def test_what_has_a_plan_may_be_explained(own) -> None:
    assert load_workload(own(f"explain = {json.dumps(EXPLAINED)}\n{OWN}")).explain == tuple(EXPLAINED)


@pytest.mark.parametrize(
    ("invariant", "transactions", "by_script", "grown"),
    [
        (load_workload("mixed").invariant, 93, [70, 20, 3], range(3020, 3021)),
        (load_workload("insert").invariant, 93, [], range(93, 94)),
        (Invariant(per_transaction=(5,)), 2, [], range(10, 11)),
        # as pgbench said it once: a transaction that no script has counted may be any script's
        (load_workload("mixed").invariant, 6658, [4667, 1354, 636], range(637354, 638355)),
    ],
)
def test_rows_are_counted_by_script(invariant: Invariant, transactions: int, by_script, grown: range) -> None:
    scripts = [{"transactions": number} for number in by_script]
    assert invariant.growth({"transactions": transactions, "scripts": scripts}) == grown


def test_a_kept_study_holds_its_workload_as_it_was(own, study_of, tmp_path: Path, monkeypatch) -> None:
    kept = tmp_path / "one.study.json"
    kept.write_text(study_of(workload=load_workload(own())).model_dump_json())
    assert load_workload(str(kept)) == load_workload(own())
    monkeypatch.chdir(tmp_path)
    kept.rename("study.json")
    assert load_workload("study.json") == load_workload(own())
    kept.write_text('{"plan": []}')
    assert refused(str(kept)).startswith("workload one.study.json cannot be read: ")
