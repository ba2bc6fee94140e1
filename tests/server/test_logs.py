"""A workload from a server's log: formats, values, proportions, coverage, and logs that cannot be read."""

import gzip
import json
import re

import psycopg
import pytest
import tomli_w
from click.testing import CliRunner

from benchlib.cli import cli
from benchlib.errors import InputError
from benchlib.load.workloads import load_workload
from benchlib.server.statements import logs
from benchlib.server.statements.coverage import normalised
from benchlib.server.statements.logs import LogStatements, read_log, workload_of_log

BY_KEY = "SELECT name FROM t WHERE id = $1"
TWO_VALUES = "SELECT * FROM t WHERE name = $1 AND note IS DISTINCT FROM $2"
READ = "duration: 1.000 ms  execute <unnamed>: " + BY_KEY
ROWS = [
    ("LOG", "connection received: host=[local]", ""),
    ("LOG", "duration: 0.100 ms  parse <unnamed>: " + BY_KEY, ""),
    ("LOG", "duration: 0.100 ms  bind <unnamed>: " + BY_KEY, "parameters: $1 = '1'"),
    (
        "LOG",
        "duration: 2.000 ms  execute <unnamed>: SELECT * FROM t\nWHERE name = $1 AND note IS DISTINCT FROM $2",
        "Parameters: $1 = 'it''s :x $2 = ''ü''\\', $2 = NULL",
    ),
    ("LOG", "duration: 1.000 ms  execute S_1/C_2: " + BY_KEY, "parameters: $1 = '7'"),
    ("LOG", "duration: 3.000 ms  execute fetch from S_1/C_2: " + BY_KEY, "parameters: $1 = '7'"),
    ("LOG", "duration: 0.500 ms  statement: SELECT count(*) FROM t WHERE id IN (1, 2, 3) -- five: 5", ""),
    ("LOG", "duration: 0.500 ms  statement: SELECT count(*) FROM t WHERE id IN (4, -5.5e3);", ""),
    ("ERROR", "duration: 9.000 ms  statement: SELECT 1", ""),
    ("LOG", "duration: 1.000 ms  statement: UPDATE t SET name = 'a' WHERE id = 1", ""),
    ("LOG", "duration: 1.000 ms  statement: BEGIN", ""),
]
"""Messages as PostgreSQL 18 writes them: severity, message, detail."""


def csvlog(rows, columns=26):
    start = (
        '2026-11-27 23:53:23.513 UTC,"u","shop",7263,"[local]",6b.1c,1,"SELECT",2026-11-27 23:53:23 UTC,3/0,0'
    )
    quoted = [(severity, *(text.replace('"', '""') for text in texts)) for severity, *texts in rows]
    end = "," * (columns - 15)
    return "".join(
        f'{start},{severity},00000,"{text}","{detail}"{end}\n' for severity, text, detail in quoted
    )


def jsonlog(rows):
    keys = ("error_severity", "message", "detail")
    lines = [{"timestamp": "x", "pid": 7263, **dict(zip(keys, row, strict=True))} for row in rows]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def stderr(rows, prefix="2026-11-27 23:53:23.513 UTC [7263] "):
    lines = list[str]()
    for severity, message, detail in rows:
        lines += (f"{prefix}{severity}:  {message}").split("\n")
        lines += f"{prefix}DETAIL:  {detail}".split("\n") if detail else []
        lines += [f"{prefix}STATEMENT:  SELECT 'DETAIL:  x'"] if severity == "ERROR" else []
    head = re.escape(prefix)
    return "".join(f"{line if re.match(head, line) else chr(9) + line}\n" for line in lines)


@pytest.fixture
def log(tmp_path):
    """Write a log."""

    def write(text, name="p.log"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def scripts(path, *, writes=True, top=30):
    keys, lines = workload_of_log(path, "own", top, writes=writes)
    return {script["title"]: script for script in keys["scripts"]}, lines


FORMS = {
    "csv of 26 columns": csvlog(ROWS),
    "csv of 23 columns": csvlog(ROWS, 23),
    "json": jsonlog(ROWS),
    "json, byte order mark": "\ufeff" + jsonlog(ROWS),
    "json, empty lines": jsonlog(ROWS).replace("\n", "\n\n"),
    "Windows": stderr(ROWS).replace("\n", "\r\n"),
    "gzip": gzip.compress(csvlog(ROWS).encode()),
    "start of the server": "pg_ctl: waiting\n\n" + stderr(ROWS),
} | {
    f"prefix {prefix}": stderr(ROWS, prefix)
    for prefix in (
        "", "2026-11-27 23:53:23.513 UTC [7263] ", "2026-11-27 23:53:23 UTC:127.0.0.1(5432):u@shop:[7263]:",
        "2026-11-27 23:53:23 UTC [7263-1] u@shop ", "user=u,db=shop,app=[unknown],client=::1 ", "6b0a17f3.1c5f ",
        "2026-11-27 23:53:23.513 UTC,u,shop,12,", "Nov 27 23:53:23 host postgres[7263]: [5-1] ",
    )
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_all_formats_give_the_same_statements_with_their_values(form, log):
    found, lines = scripts(log(FORMS[form], "p.gz" if form == "gzip" else "p.log"))
    assert {title: script["weight"] for title, script in found.items()} == {
        BY_KEY: 1,
        TWO_VALUES: 1,
        "SELECT count(*) FROM t WHERE id IN (?)": 2,
        "UPDATE t SET name = ? WHERE id = ?": 1,
    }
    assert found[BY_KEY]["sql"] == "SELECT name FROM t WHERE id =  '7';\n"
    both = "SELECT * FROM t\nWHERE name =  E'it''s \\x3ax $2 = ''ü''\\\\' AND note IS DISTINCT FROM NULL;\n"
    assert found[TWO_VALUES]["sql"] == both
    assert lines == [
        f"taken: 4 ({BY_KEY} …), 83.3 % of the calls, 88.9 % of the time",
        "left out, since they neither read nor write rows: 1 (BEGIN …), 16.7 % of the calls, 11.1 % of the time",
    ]


def test_statements_that_write_are_left_out_unless_requested(log):
    rows = [*ROWS, ("LOG", "duration: 1 ms  statement: SELECT id FROM t FOR UPDATE", "")]
    found, lines = scripts(log(csvlog(rows)), writes=False)
    assert not any("UPDATE" in title for title in found)
    assert any("they write (--writes includes them): 2 (" in line for line in lines)


def test_a_log_whose_times_are_all_zero_has_no_shares_of_time(log):
    _, lines = scripts(log(csvlog([("LOG", "duration: 0.000 ms  statement: SELECT 2 AS b", "")])))
    assert lines == ["taken: 1 (SELECT ? AS b …), 100 % of the calls, the time is not known"]


def test_executions_keep_their_proportions(log):
    """A rare statement is not run more often than it was, and a value as often as it was."""
    sql = "duration: 1.0 ms  statement: SELECT "
    rows = [("LOG", f"{sql}1 FROM t WHERE i = {int(i < 4)}", "") for i in range(16)]
    rows += [("LOG", f"{sql}2 AS b", "")] * 40_000
    found, _ = scripts(log(csvlog(rows)))
    rare = found["SELECT ? FROM t WHERE i = ?"]
    assert (rare["weight"], found["SELECT ? AS b"]["weight"]) == (16, 40_000)
    assert rare["sql"] == (
        "\\set execution random(1, 16)\n\\if :execution <= 4\nSELECT 1 FROM t WHERE i = 1;\n"
        "\\elif :execution <= 16\nSELECT 1 FROM t WHERE i = 0;\n\\endif\n"
    )


REFUSED = {
    "several statements at once": ("statement: SELECT 1; SELECT 2", ""),
    "values are cut in the log": ("execute a: SELECT $1", "parameters: $1 = 'ab...'"),
    "the log does not have their values": ("execute a: SELECT $1, $2", "parameters: $1 = '1'"),
    "not in UTF-8": ("statement: SELECT 'caf\ufffd'", ""),
    "longer than 16,384 characters": (f"statement: SELECT '{'x' * 20_000}'", ""),
    "a spelling that pgbench reads differently": ("statement: SELECT $$a :b$$", ""),
    "they neither read nor write rows": ("statement: CALL p()", ""),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_left_out_is_reported_with_its_reason(reason, log):
    message, detail = REFUSED[reason]
    rows = [*ROWS[:5], ("LOG", f"duration: 1.0 ms  {message}", detail)]
    _, lines = scripts(log(stderr(rows)))
    assert re.search(rf"left out, .*{re.escape(reason)}.*: 1 \(.*\), 33.3 %", "\n".join(lines))
    with pytest.raises(InputError, match=re.escape(reason)):
        workload_of_log(log(stderr(rows[-1:])), "own", 30, writes=True)


def test_durations_without_text_belong_to_the_session_s_last_statement(log):
    """``log_duration`` with ``log_statement``: sessions interleave, and a failed statement has no duration."""

    def line(pid, text):
        return f"x {pid} u@shop {text}\n"

    text = "".join([
        line(11, "LOG:  statement: SELECT 1 AS a"),
        line(12, "LOG:  execute <unnamed>: SELECT $1 AS b"), line(12, "DETAIL:  parameters: $1 = '5'"),
        line(11, "LOG:  duration: 1.0 ms"), line(12, "LOG:  duration: 2.0 ms"),
        line(13, "LOG:  statement: INSERT INTO t VALUES (1)"), line(13, "ERROR:  no such table"),
        line(13, "LOG:  duration: 64.0 ms"),
    ])  # fmt: skip
    found = read_log(log(text)).statements
    assert {normal: one.ms for normal, one in found.items()} == {"SELECT ? AS a": 1, "SELECT $1 AS b": 2}
    with pytest.raises(InputError, match="no statement with its duration"):
        read_log(log(re.sub(r"x \d+ u@shop ", "", text)))


EXPLAINED = {
    "text": "duration: 1.5 ms  plan:\nQuery Text: SELECT 1\nFROM t WHERE id = $1\nQuery Parameters: $1 = '7'\n"
    "Index Scan using i on t  (cost=0.1..2 rows=1 width=4)\n  Index Cond: (id = 7)",
    "JSON": "duration: 1.5 ms  plan:\n"
    + json.dumps(
        {"Query Text": "SELECT 1\nFROM t WHERE id = $1", "Query Parameters": "$1 = '7'", "Plan": {}}
    ),
    "XML": 'duration: 1.5 ms  plan:\n<explain xmlns="http://www.postgresql.org/2009/explain">\n'
    "  <Query-Text>SELECT 1\nFROM t WHERE id = $1</Query-Text>\n  <Query-Parameters>$1 = '7'</Query-Parameters>\n</explain>",
    "YAML": 'duration: 1.5 ms  plan:\nQuery Text: "SELECT 1\\nFROM t WHERE id = $1"\n'
    'Query Parameters: "$1 = \'7\'"\nPlan: \n  Node Type: "Index Scan"',
}


@pytest.mark.parametrize("form", EXPLAINED)
@pytest.mark.parametrize("write", [csvlog, jsonlog, stderr])
def test_auto_explain_has_the_statements_where_nothing_else_has(form, write, log):
    rows = [("LOG", EXPLAINED[form], "")]
    (script,) = scripts(log(write(rows)))[0].values()
    assert script["sql"] == "SELECT 1\nFROM t WHERE id =  '7';\n"
    assert read_log(log(write([*rows, ("LOG", READ, "")]))).total_calls == 1, "not counted twice"


@pytest.mark.parametrize("write", [csvlog, jsonlog, stderr])
def test_a_log_in_use_ends_within_a_row(write, log):
    text = write([*ROWS, ("LOG", READ, "parameters: $1 = '8'")])
    assert read_log(log(text[:-40])).total_calls >= 6


BROKEN = {
    "csv, columns": (
        csvlog(ROWS[:1]) + "a,b\n" + csvlog(ROWS),
        r"p.log, before line 3: a row of csvlog has 2",
    ),
    "csv, quote": (csvlog(ROWS)[:-40] + '"x\n' + csvlog(ROWS), r"p.log, line 12: no row of csvlog"),
    "json": (jsonlog(ROWS[:1]) + "{\n" + jsonlog(ROWS), r"p.log, line 2: no row of jsonlog"),
    "empty": ("", "p.log is empty"),
    "blank": ("\n \n", "p.log is empty"),
    "other": ("127.0.0.1 - - GET /index.html\n", "no log of PostgreSQL"),
    "binary": (bytes(range(256)) * 9, "no log of PostgreSQL"),
    "no durations": (csvlog(ROWS[:1]), "no statement with its duration: .*log_min_duration_statement = 0"),
    "German": (stderr([("LOG", "Dauer: 1.0 ms  Anweisung: SELECT 1", "")]), "lc_messages is 'C'"),
    "Russian": ("[1] СООБЩЕНИЕ:  продолжительность: 1 мс\n", "lc_messages = 'C'"),
    "strange types": ('{"error_severity": "LOG", "message": 5, "detail": null}\n', "no statement"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_one_error_with_its_line(case, log):
    text, message = BROKEN[case]
    with pytest.raises(InputError, match=message) as reason:
        read_log(log(text))
    assert "\n" not in str(reason.value)


def test_a_cut_or_broken_gzip_is_one_error(log):
    whole = gzip.compress(csvlog(ROWS * 50).encode())
    for text in (whole[:-200], whole[:40] + b"\xff" * 40 + whole[80:], b"no gzip"):
        with pytest.raises(InputError, match=r"p.csv.gz cannot be read"):
            read_log(log(text, "p.csv.gz"))


@pytest.mark.parametrize(
    ("sql", "normal"),
    [
        (r"SELECT E'it\'s 5', 'a''b', col1, -2.5e-3, x-1 /* 7 */", "SELECT ?, col1, ?, x-?"),
        ("INSERT INTO t VALUES (1, 'a'), (2, $$b$$),\n(3, B'1');", "INSERT INTO t VALUES (?)"),
        ("SELECT $1, $tag$ 'x' $tag$ -- 'y", "SELECT $1, ?"),
        ("""WITH "a--b" AS (DELETE FROM "it's 5")""", """WITH "a--b" AS (DELETE FROM "it's 5")"""),
        ("SELECT /* /* */ ' */ a /* /* /* */ */ */", "SELECT a /* */"),
        (r"SELECT 1 AS somee'\' FROM a$b$, c$b$", "SELECT ? AS somee? FROM a$b$, c$b$"),
    ],
)  # fmt: skip
def test_constants_are_not_in_normalised_statements(sql, normal):
    assert normalised(sql) == normal


def test_memory_is_bounded_by_dropping_the_half_with_the_least_time(monkeypatch):
    monkeypatch.setattr(logs, "_STORED", 100_000)
    log = LogStatements()
    for number in range(5_000):
        log.add(f"SELECT c{number} FROM t", "", 1.0, 1)
        log.add("SELECT often FROM t", "$1 = 'x'", 1.0, 1)
        assert log._stored <= 100_000
    assert (log.total_calls, log.total_ms) == (10_000, 10_000)
    assert log.statements["SELECT often FROM t"].calls == 5_000
    assert len(log.statements) < 300


def test_a_message_without_end_is_not_kept(monkeypatch, log):
    monkeypatch.setattr(logs, "_FIELD", 1_000)
    text = "LOG:  duration: 1 ms  statement: SELECT\n" + "b" * 5_000 + "\n" + "c\n" * 5_000
    (statement,) = read_log(log(text)).statements
    assert len(statement) < 1_100


# --- a real server -------------------------------------------------------------------------

LOGGING = {
    "log_destination": "stderr,csvlog,jsonlog",
    "logging_collector": "on",
    "log_filename": "p.log",
    "log_min_duration_statement": "0",
}
TABLE = "CREATE TABLE t AS SELECT i AS id, 'n ü ''' || i AS name, i %% 2 = 0 AS even FROM generate_series(1, 500) AS i"


@pytest.mark.pg
def test_the_logs_of_a_real_server_make_workloads_that_run(started, tmp_path, monkeypatch):
    cluster = started("18", **LOGGING)
    cluster.execute(TABLE.replace("%%", "%"))
    with cluster.connect() as connection:
        for i in range(30):
            connection.execute("SELECT name FROM t WHERE id = %s", [i])
            connection.execute("SELECT id FROM t WHERE name = %s AND even = %s", [f"n ü '{i}", i % 2 == 0])
            connection.execute(
                f"SELECT count(*) FROM t WHERE id BETWEEN {i} AND {i + 5} AND name <> 'a:b\\{i}'"
            )
        connection.execute("UPDATE t SET name = %s WHERE id = %s", [":x\n", 3])
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1 / 0")
    cluster.stop()
    found = {}
    for kind in ("log", "csv", "json"):
        keys, _ = workload_of_log(cluster.data / "log" / f"p.{kind}", kind, 30, writes=True)
        found[kind] = keys["scripts"]
        weights = {script["title"]: script["weight"] for script in found[kind]}
        assert weights["SELECT name FROM t WHERE id = $1"] == 30
        assert weights["SELECT id FROM t WHERE name = $1 AND even = $2"] == 30
        assert weights["SELECT count(*) FROM t WHERE id BETWEEN ? AND ? AND name <> ?"] == 30
        assert weights["UPDATE t SET name = $1 WHERE id = $2"] == 1
    assert found["log"] == found["csv"] == found["json"]
    keys["load_sql"] = TABLE.replace("%%", "%")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(tomli_w.dumps(keys))
    assert load_workload("own.toml").name == "json"
    result = CliRunner().invoke(cli, ["workload", "check", "own.toml"])
    assert (result.exit_code, result.output.count(": runs")) == (0, len(found["json"])), result.output


def test_a_zone_is_no_session_a_fetch_no_call_and_a_code_no_part_of_a_message(log):
    at = "2026-01-02 12:00:00.123 +08"
    text = (
        f"{at} [4711] LOG:  00000: statement: SELECT a FROM t WHERE id = 1\n"
        f"{at} [4712] LOG:  00000: execute fetch from S_1/C_2: SELECT b FROM t\n"
        f"{at} [4711] LOG:  00000: duration: 1.000 ms\n"
        f"{at} [4712] LOG:  00000: duration: 2.000 ms\n"
    )
    found = {normal: (one.calls, one.ms) for normal, one in read_log(log(text)).statements.items()}
    assert found == {"SELECT a FROM t WHERE id = ?": (1, 1.0), "SELECT b FROM t": (0, 2.0)}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'a', 'jane.doe",
        "SELECT E'jane.doe\\",
        "SELECT $$jane.doe",
        "SELECT 1 /* jane.doe",
        "SELECT 1 /* a /* jane",
    ],
)
def test_what_a_cut_leaves_open_is_no_part_of_a_normalised_statement(sql):
    assert "jane" not in normalised(sql)


def test_of_several_databases_the_one_with_the_most_calls_is_taken(log):
    rows = [
        (name, "LOG", f"duration: {ms} ms  statement: SELECT {column} FROM t", "")
        for name, ms, column in (("a", 1, "x"), ("b", 5, "y"), ("b", 5, "y"))
    ]
    text = "".join(csvlog([row]).replace('"shop"', f'"{name}"') for name, *row in rows)
    found = read_log(log(text))
    assert ([*found.statements], found.total_calls, found.calls_elsewhere) == (["SELECT y FROM t"], 2, 1)
    _, lines = workload_of_log(log(text), "own", 5, writes=False)
    assert "left out, since they ran in other databases: 1 calls" in lines
