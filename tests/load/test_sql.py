"""SQL of others as pgbench reads it: nothing in it is a variable or a command that is none."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.load.workloads import sql as scripts

PIECES = [
    "SELECT", " ", "\n", "'a:b'", "'it''s'", "'x", '"C:d"', '"e"', "$$f:g$$", "$t$h$t$", "$1", "$12", "::", ":", ":scale", ":i",
    "[1:n]", "/* :j */", "/* a /* b */ */", "/*", "-- :k\n", "E'\\:l'", "E'm'", "\\", "\\set", "'12:30'", "é", ":é", "->>", ";", "1.5",
]  # fmt: skip
SQL = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=40)


def variables(script: str) -> set[str]:
    """What pgbench would replace: ``assignVariables`` of pgbench.c skips colons that stand together."""
    return set(re.findall(r"(?<!:):((?:[A-Za-z_]|[^\x00-\x7f])(?:\w|[^\x00-\x7f])*)", script))


def value(text: str) -> str:
    """What a server reads of a literal."""
    if not text.startswith("E"):
        return text[1:-1].replace("''", "'")
    escapes = {"\\\\": "\\", "\\x3a": ":", "\\n": "\n", "\\r": "\r", "''": "'"}
    return re.sub(r"\\x3a|\\.|''", lambda each: escapes[each[0]], text[2:-1])


@given(SQL)
def test_pgbench_finds_no_variable_but_its_own_in_anybody_s_sql_or_it_is_refused(sql: str) -> None:
    assert "".join(text for _, text in scripts.tokens(sql)) == sql
    try:
        script = scripts.for_pgbench(sql)
    except InputError:
        return
    assert variables(script) <= {"scale", "client_id", "random_seed", "default_seed"}
    said, meant = ([text for _, text in scripts.spoken(each) if "'" not in text] for each in (script, sql))
    assert said == meant


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")))
def test_a_literal_is_its_value_to_the_server_and_nothing_else_to_pgbench(text: str) -> None:
    written = scripts.literal(text)
    assert value(written) == text
    assert variables(written) == set()
    assert "\n" not in written
    if not written.startswith("E"):
        assert scripts.tokens(written) == [("text", written)]


def test_only_parameters_take_values() -> None:
    sql = "SELECT $1, '$1', $10, $$ $1 $$ -- $1\n FROM t WHERE a::text = $2 AND b[1:n] = ':x'"
    written = "SELECT :p, '$1', $10, $$ $1 $$ -- $1\n FROM t WHERE a::text = 2 AND b[1: n] =  E'\\x3ax'"
    assert scripts.for_pgbench(sql, {"$1": ":p", "$2": "2"}) == written


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("\\copy t FROM x", r"\\copy is no command"), ("SELECT 1 \\gx", r"\\gx is no command"), ("\\timing on\nSELECT 1", "timing"),
        ("SELECT 'a", "pgbench reads '"), ("SELECT 1 /* a", "pgbench reads /"), ('"a', "pgbench reads"),
        ("$$ :a $$", "pgbench reads"), ("COPY t FROM STDIN;\n1\n\\.\n", "COPY FROM STDIN"), ("-- nothing", "no statement"),
    ],
)  # fmt: skip
def test_what_pgbench_cannot_run_is_refused_by_name(sql: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        scripts.script_of(sql)


@pytest.mark.parametrize(
    ("sql", "wrapped"),
    [
        ("UPDATE events SET start = now();\nSELECT begin FROM spans;", True),
        ("BEGIN;\nSELECT 1;\nEND;", False),
        ("\\set a 1\nSTART TRANSACTION;\nSELECT :a;\nCOMMIT;", False),
    ],
)
def test_only_a_statement_that_begins_a_transaction_is_one(sql: str, wrapped: bool) -> None:
    assert scripts.script_of(f"-- transaction: one\n{sql}").startswith("BEGIN;\n-- ") is wrapped


ONE = "-- transaction: one\nSELECT 1;"
COMMITS_ITSELF = [
    "SELECT 1", "SELECT 1; SELECT 2;", "SELECT ';'; -- two\nSELECT 2 -- no end", "begin; SELECT 1; commit;", "\\SET a 1\nSELECT :a;",
    "\\set a random(1, :scale)\nSELECT :a, ':b';", "\\set a \\\n  random(1, 9)\nSELECT :a;", "INSERT INTO t VALUES (:length);",
    "SELECT n FROM t LIMIT 1 \\gset\nBEGIN;\nUPDATE t SET n = :n;\nEND;", "\\startpipeline\nSELECT 1;\n\\endpipeline",
    "SELECT 1 AS a \\; SELECT 2 AS b \\aset\nSELECT :a;", "SELECT 1 \\;\nSELECT 2;",
    "\\setshell a date +%s\nSELECT :a;", ONE, f"{ONE}\nBEGIN;\nSELECT 2;\nEND;",
]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "script"),
    [
        *((sql, f"{sql}\n") for sql in COMMITS_ITSELF),
        *((sql, f"BEGIN;\n{sql}\n;\nEND;\n") for sql in (f"{ONE}\nSELECT 2;", f"{ONE[:-1]} AS a \\gset\nSELECT :a;")),
        ("SELECT a[lo:hi], b[1:n], ':x', c::int -- :y", "SELECT a[lo: hi], b[1: n],  E'\\x3ax', c::int -- : y\n"),
    ],
)  # fmt: skip
def test_a_file_is_run_as_pgbench_would_run_it(sql: str, script: str) -> None:
    assert scripts.script_of(sql) == script


def test_variables_that_somebody_must_give_are_named() -> None:
    assert scripts.variables_of("SELECT :a, :b, :scale, c::int, ':d' -- :e") == ["a", "b"]
    assert scripts.variables_of("\\set a 1\nSELECT :a, :B;") == ["B"]
    assert scripts.variables_of("SELECT 1 AS x \\gset\nSELECT :x;") == []


def test_a_script_is_rolled_back_whatever_transactions_it_has():
    script = "\\set i 1\nBEGIN; SELECT CASE WHEN true THEN :i END; -- x; commit\nDO $$ BEGIN END; $$;\nCOMMIT\n\\sleep 1\nEND;"
    text = " SELECT CASE WHEN true THEN :i END; -- x; commit\nDO $$ BEGIN END; $$;"
    assert scripts.rolled_back(script).split() == f"BEGIN; \\set i 1 {text} \\sleep 1 ; ROLLBACK;".split()


ACTING = ("brin_summarize_new_values", "gin_clean_pending_list", "pg_clear_relation_stats", "pg_file_write")


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("\\set i random(1, 9)\nSELECT a, role FROM t WHERE i = :i;", None),
        ("BEGIN; SET LOCAL a = '1'; SELECT \"delete\", 'INSERT INTO' FROM t -- UPDATE\n; END;", None),
        ("(SELECT 1) UNION (TABLE t) \\gset", None),
        ("SELECT * FROM t FOR UPDATE", "UPDATE"),
        ("SELECT * FROM t FOR KEY SHARE", "KEY SHARE"),
        ("WITH x AS (DELETE FROM t RETURNING 1) SELECT * FROM x", "DELETE"),
        ("SELECT 1 \\; Merge INTO t USING u ON true WHEN MATCHED THEN DELETE", "Merge"),
        ("SELECT a INTO b FROM c", "INTO"),
        ("SELECT 1 AS x \\gset\nCOPY t FROM 'file'", "COPY"),
        ("BEGIN READ WRITE; SELECT 1", "WRITE"),
        ('SET "transaction_read_only" = off', '"transaction_read_only"'),
        ("COMMIT PREPARED 'theirs'", "PREPARED"),
        ("SELECT \"nextval\" ('s')", '"nextval"'),
        ("SELECT set_config('work_mem', '1GB', false)", "set_config"),
        ("SELECT pg_advisory_lock(7)", "pg_advisory_lock"),
        ("SELECT pg_terminate_backend(7)", "pg_terminate_backend"),
        ("SELECT 1;\n\\shell psql", "\\shell"),
        ("DO $$ BEGIN END $$", "DO"),
        ("SELECT 1 --x\r; DELETE FROM t", "DELETE"),
        ("SELECT '\n\\'; DELETE FROM t; --'", "DELETE"),
        ("SELECT E'a'\n'\\''; DELETE FROM t; --'", "DELETE"),
        ("SELECT 1 WHERE false \\aset '\n; DELETE FROM t; --'", "DELETE"),
        ("/* ' /* /* */ */ */ DELETE FROM t; --'", "/*"),
        ("SELECT 1; \\ \\\n shell psql", "\\shell"),
        ("SELECT U&\"\\006eextval\"('s')", 'U&"\\006eextval"'),
        ("SET standard_conforming_strings = off", "standard_conforming_strings"),
        ("SELECT '\\gset', U&'\\0061' \\; SELECT 2 AS b \\gset\n\\if true\nSELECT :b;\n\\endif", None),
        *((f"SELECT {name}('x')", name) for name in ACTING),
    ],
)
def test_a_script_that_may_write_is_recognised(script, part):
    assert scripts.unsafe_part(script) == part
