"""Settings as a text mean what a real server takes them for, and what it does not know is named all at once."""

import pytest

from benchlib.levers import BY_KEY
from benchlib.plan.settings import read_conf
from benchlib.server.cluster import refusal

pytestmark = pytest.mark.pg

LINES = [
    "my.a 1",
    "MY.B='it''s'  # as one likes",
    "my.c'8MB'#c",
    "my.d = 0x1F",
    "my.e = +.5e-3",
    "my.f = a/b:c",
    "my.g = a.b.c",
    "my.h = é",
    "my.i = ''",
    r"my.j = '\101\\\n\'x'",
    "\t my.k\t=\r-1kB \r",
    "my.l = a.b",
    "my.m = 1.5GB",
    "my.n = 1e5",
    "my.o = 8 MB",
    "my.p =",
    "my.q = = 1",
    "my.r = 'open",
    "my.s = 'a' 'b'",
    "my.t = 1; my.u = 2",
    "a.b.c = 1",
    "x-y = 1",
    "= 1",
    "my.v",
    "\fmy.w = 1",
]


def test_a_text_is_read_as_the_server_reads_it(new_cluster):
    cluster = new_cluster()
    cluster.configure({})
    cluster.start()
    for line in LINES:  # one at a time, since the view ends with the first that is wrong
        cluster.write(cluster.settings_file, f"{line}\n")
        (row,) = cluster.query(
            "SELECT name, setting, error FROM pg_file_settings WHERE sourcefile ~ 'benchlib.conf$'",
            "postgres",
        )
        settings, faults = read_conf(line)
        assert bool(faults) == (row["error"] == "syntax error"), line
        if settings:
            assert settings == {row["name"].lower(): row["setting"]}, line


def test_parameters_that_the_server_does_not_know_are_named_all_at_once(installed):
    settings = BY_KEY["settings"].read("work_memory 8MB\njit off\nshared_bufers = 1GB", {})
    told = refusal(installed("18"), settings) or ""
    assert "work_memory" in told
    assert "shared_bufers" in told
    assert "jit" not in told
