"""Eight times the text takes about eight times the calls, of Python and of C: no text is read again and again.

What happens in one call, such as the backtracking of a regular expression, is not seen here: ``benchmarks/long_texts.py`` times it.
"""

import sys
from typing import Any

import pytest
from long_texts import BEGINNINGS, LOGGED, REPEATED, read_all


def calls(text: str) -> int:
    """How many functions are called to read a text, once all expressions that it needs are compiled."""
    counted = 0

    def count(frame: Any, event: str, function: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    read_all(text)
    sys.setprofile(count)
    try:
        read_all(text)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize(
    "beginning", [*BEGINNINGS[:4], *(pytest.param(b, marks=pytest.mark.long) for b in BEGINNINGS[4:])]
)
def test_calls_grow_no_faster_than_the_text(beginning: str) -> None:
    for repeated in REPEATED:
        one, eight = (calls(beginning + repeated * (length // len(repeated))) for length in (250, 2000))
        assert eight <= 9 * one, repeated  # a quadratic reading makes up to 64 times as many


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
