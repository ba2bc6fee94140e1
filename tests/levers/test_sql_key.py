"""The level key ``sql``: statements, a list of them, or a file; and its words."""

import pytest

from benchlib.levers.sql import SqlLever
from benchlib.plan.level import Level

INDEX = "CREATE INDEX ON t (i);"


@pytest.mark.parametrize(
    "value",
    [
        "CREATE INDEX ON t (i)",
        " CREATE INDEX ON t (i) ; ;\n",
        ["CREATE INDEX ON t (i);"],
        "index.sql",
    ],
)
def test_statements_a_list_or_a_file_give_the_same_text(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "index.sql").write_bytes(b"\xef\xbb\xbfCREATE INDEX ON t (i);\n")
    assert SqlLever().read(value, {}) == INDEX
    assert SqlLever().read(INDEX, {}) == INDEX, "reading it again changes nothing"


def test_statements_stand_in_their_order_and_may_contain_anything():
    several = ["CREATE TABLE a (t text)", "INSERT INTO a VALUES (';\\!');  ", "-- last\nVACUUM a"]
    assert SqlLever().read(several, {}) == (
        "CREATE TABLE a (t text);\nINSERT INTO a VALUES (';\\!');\n-- last\nVACUUM a;"
    )
    commented = "SELECT 1 -- why\n;"
    assert SqlLever().read("SELECT 1 -- why", {}) == commented, "a comment does not hide the end"
    assert SqlLever().read(["SELECT 1 -- why", "VACUUM"], {}) == f"{commented}\nVACUUM;"


REFUSED = {
    "": "there is no statement",
    " ;; ": "there is no statement",
    "-- nothing": "there is no statement",
    "missing.sql": r"missing\.sql: it cannot be read: No such file",
    "latin.sql": "UTF-8",
    "SELECT 1 \\gexec": r"\\gexec is a command of psql",
    "\\i other.sql": r"\\i is a command of psql",
}


@pytest.mark.parametrize("value", REFUSED)
def test_what_is_no_sql_is_refused_in_one_line(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.sql").write_bytes("SELECT 'ü';".encode("latin-1"))
    with pytest.raises(ValueError, match=REFUSED[value]) as reason:
        SqlLever().read(value, {})
    assert "\n" not in str(reason.value)


def test_the_setup_shows_the_statements_in_one_line(plan_of):
    plan = plan_of(levels={"tuned": Level(sql="CREATE INDEX\n  ON t (i);"), "long": Level(sql="x" * 900)})
    assert SqlLever().words(plan, "tuned") == {"schema change": INDEX}
    assert len(SqlLever().words(plan, "long")["schema change"]) == 200
    assert SqlLever().words(plan, "defaults") == {}
