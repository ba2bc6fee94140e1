"""Settings are written as the server reads them; what it shows is read as bytes, seconds or a number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.plan.settings import conf_text, quantity, read_conf, shown


@pytest.mark.parametrize(
    ("value", "unit", "text", "read"),
    [
        ("524288", "8kB", "524288 x 8kB", (4 << 30, "B")),
        ("4096", "kB", "4096 kB", (4 << 20, "B")),
        ("300", "s", "300 s", (300, "s")),
        ("1.5", "ms", "1.5 ms", (0.0015, "s")),
        ("10", "min", "10 min", (600, "s")),
        ("1e-07", None, "1e-07", (1e-7, "")),
        ("on", None, "on", None),
        ("127.0.0.1", None, "127.0.0.1", None),
        ("5", "pigs", "5 pigs", None),
        ("", None, "", None),
    ],
)
def test_a_value_is_shown_with_its_unit_and_read_back(value, unit, text, read):
    assert shown(value, unit) == text
    assert quantity(text) == read


def test_values_are_written_as_the_server_wants_them():
    settings = {"fsync": False, "jit": True, "work_mem": "8MB", "max_connections": 120, "x.y": 1.1}
    wanted = "fsync = 'off'\njit = 'on'\nwork_mem = '8MB'\nmax_connections = '120'\nx.y = '1.1'\n"
    assert (conf_text(settings), conf_text({})) == (wanted, "")


NAMES = st.lists(st.text("abcxyz_", min_size=1, max_size=9), min_size=1, max_size=2).map(".".join)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(NAMES, TEXTS))
def test_what_is_written_is_read_as_it_was_whatever_it_holds(settings):
    assert read_conf(conf_text(settings)) == (settings, [])


VALUES = st.sampled_from(["8MB", "off", "0x1F", "-1", "1.5e3", ".5", "a/b:c", "'it''s'"])
SIGNS, ENDS = st.sampled_from([" ", "=", " = ", "\t=\r"]), st.sampled_from(["", "  # why", "#", " \r"])


@given(st.lists(st.tuples(NAMES, VALUES, SIGNS, ENDS)))
def test_equals_signs_blanks_and_comments_are_as_one_likes_and_the_last_of_a_name_counts(lines):
    text = "\n# a comment\n".join(f"{name.upper()}{sign}{value}{rest}" for name, value, sign, rest in lines)
    wanted = {name: value.strip("'").replace("''", "'") for name, value, *_ in lines}
    assert read_conf(text) == (wanted, [])


@given(TEXTS)
def test_each_line_of_any_text_sets_something_or_is_named_or_is_a_comment(text):
    settings, faults = read_conf(text)
    lines = [line for line in text.split("\n") if line.strip(" \t\r") and line.lstrip(" \t\r")[0] != "#"]
    assert len(settings) <= len(lines) - len(faults)
    assert all(re.match(r"line \d+: ", fault) for fault in faults)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x '8MB'", "8MB"),
        ("x'8MB'#c", "8MB"),
        (r"x = '\\ \'\101\n'", "\\ 'A\n"),
        (r"x = 'M\303\274ller\0612'", "Müller12"),
        ("x = ''", ""),
        ("x = on # 'no", "on"),
        ("x = a.b.c", "a.b.c"),
    ],
)
def test_lines_as_the_server_s_own_scanner_reads_them(line, value):
    assert read_conf(f"\n{line}") == ({"x": value}, [])


WRONG = "x = 1.5GB|x = a.b|x = 1e5|x = 8 MB|x|x =|x = = 1|x-y = 1|a.b.c = 1|= 1|x = 'open|x = 'a' 'b'|x = 1; y = 2"


@pytest.mark.parametrize("line", [*WRONG.split("|"), "\fx = 1", "Include_If_Exists 'more.conf'"])
def test_a_line_that_the_server_would_refuse_or_follow_is_named_and_not_read(line):
    assert read_conf(f"jit off\n{line}") == ({"jit": "off"}, [f"line 2: {line.strip()}"])
