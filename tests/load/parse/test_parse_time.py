"""No text takes longer than its length tells: eight times the text, eight times the processor's time, not sixty-four."""

import contextlib
import time

import pytest

from benchlib.errors import BenchlibError
from benchlib.load.parse import KINDS, parse_text
from benchlib.load.tools import read
from benchlib.server.checkpoints import checkpoints

LOGGED = "0 1 1523 0 1795178920 475654\n"
BEGINNINGS = (
    "", "x", "pgbench ", "pgbench -", "pgbench (1", "number of transactions actually processed: ", "transaction type: ",
    "tps = ", "progress: 1.0 s, ", "sysbench 1", "transactions:", "[ 1s ] thds: ", "Compare file sync methods using",
    "done in 1.00 s (", "1 of 2 tuples (1%) done (elapsed ", LOGGED, "SQL script 1: ", "client 1 ",
    "2026-01-31 12:00:00.123 UTC [4711] LOG: ", "statement latencies in milliseconds:\n0.001 ", "\x1b[", "\x1b]",
    "connection to database ", "/pgbench", f"{LOGGED}0 2 1523 65535 1795178920 475654\n",
)  # fmt: skip
REPEATED = (
    *" 1.()\n'\"\\\t\r\x1b/", "1 ", "a ", "- ", "-c 1 ", "pgbench -", "pgbench ", "/pgbench", ", ", "a, ", "1.00 s, ", "a 1.00 s, ",
    "LOG: ", "LOG:  checkpoint ", "\x1b[", "\x1b]", "\x1b[1", "nan(", "tps = 1 ", "progress: 1 s, ", "client 1 ", "> ", "SQL script 1: a\n",
    LOGGED, "FATAL: ", "connection to server ", "x@1 ", "--define=a=b ", "creating tables...\n", "\u00a0",
)  # fmt: skip
ALWAYS = (" ", "1", "- ", "'", "connection to server ", "\x1b]", "client 1 ")


def read_all(text: str) -> None:
    """Read a text as everything that it could be."""
    for kind in (None, *KINDS):
        with contextlib.suppress(BenchlibError):
            parse_text(text, kind=kind, argv=["pgbench", *text[:99].split()])
    with contextlib.suppress(BenchlibError):
        read("pgbench", text)
    checkpoints(text, 0.0)


def check(beginning: str, repeated: str) -> None:
    """A second is more than any such text takes, however busy the machine; what takes more is measured again."""

    def seconds(length: int) -> float:
        began = time.process_time()
        read_all(beginning + repeated * (length // len(repeated)))
        return time.process_time() - began

    kept = any((more := seconds(32_000)) < 1 or more < 40 * seconds(4_000) for _ in range(5))
    assert kept, f"{beginning!r} and 32,000 of {repeated!r}"


@pytest.mark.parametrize("beginning", ["", "x", "pgbench ", "pgbench -"])
def test_long_lines_are_read_in_time_that_grows_as_they_do(beginning: str) -> None:
    for repeated in ALWAYS:
        check(beginning, repeated)


@pytest.mark.long
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_so_are_all_of_them(beginning: str) -> None:
    for repeated in REPEATED:
        check(beginning, repeated)


NINES = "9" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f"transactions: {NINES} (1 per sec.)\ntotal time: 1s\navg: 1.00\n",
        f"scaling factor: {NINES}\n",
        f"done in {NINES[:400]}.00 s (vacuum {NINES[:400]}.00 s).\n",
        f"{NINES} seconds per test\n",
        LOGGED + "0 2 99999999999999999999999 0 1795178920 475654",
        LOGGED + "0 2 5 65535 1795178920 475654",
    ],
)
def test_figures_of_too_many_digits_are_none(text: str) -> None:
    read_all(text)
