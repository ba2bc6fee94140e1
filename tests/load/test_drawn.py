"""Values drawn by what pg_stats says: pgbench's expressions, evaluated here, and rows."""

import random
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.load.workloads.drawn import can_draw, drawn, filled, value_of
from benchlib.load.workloads.sql import literal


def column(**given: Any) -> dict[str, Any]:
    return {
        "table": "t", "name": "c", "type": "integer", "rows": 10_000, "is_unique": False, "count": 50, "nulls": 0.0, "width": 4,
        "common": [], "frequencies": [], "bounds": [], **given,
    }  # fmt: skip


def array(*values: str) -> str:
    """SQL of one of two values, each as often as the other."""
    return f"(ARRAY[{', '.join(repr(value) for value in values for _ in range(50))}])[{{}}]"


def draws(expression: str, scale: int = 1, times: int = 2000) -> list[int]:
    """The values of an expression of pgbench's; CASE becomes Python's own."""
    text = re.sub(r"WHEN (.*?) THEN (.*?)(?= WHEN| ELSE)", r"(\2) if (\1) else", expression)
    for old, new in ((":scale", str(scale)), (" / ", " // "), ("CASE ", "("), (" END", ")"), (" ELSE ", " ")):
        text = text.replace(old, new)
    chance = random.Random(7)
    return [eval(text, {"random": chance.randint, "greatest": max}) for _ in range(times)]


def test_common_values_come_by_their_frequencies_and_others_between_the_bounds() -> None:
    bounds = [str(1000 + 10 * n) for n in range(101)]
    expression, value = drawn(column(common=["7", "-3"], frequencies=[0.5, 0.2], bounds=bounds), 1)
    counts = Counter(draws(expression))
    rest = [number for number in counts.elements() if number not in (7, -3)]
    assert value == "{}"
    assert (counts[7], counts[-3]) == (pytest.approx(1000, abs=120), pytest.approx(400, abs=90))
    assert 1000 <= min(rest) < 1060 < 1940 < max(rest) <= 2000
    assert sum(number < 1500 for number in rest) == pytest.approx(len(rest) / 2, abs=60)


@given(
    numbers=st.lists(st.integers(-(10**9), 10**9), unique=True, max_size=101).map(sorted),
    common=st.dictionaries(st.integers(-100, 100), st.floats(0.001, 1), max_size=20),
    count=st.integers(0, 10**6),
    rows=st.integers(0, 10**7),
    scales=st.integers(1, 1000),
    unique=st.booleans(),
)
def test_whole_numbers_stay_within_what_is_known(numbers, common, count, rows, scales, unique) -> None:
    frequencies = [frequency / max(sum(common.values()), 1) for frequency in common.values()]
    known = {"bounds": [*map(str, numbers)], "common": [*map(str, common)], "frequencies": frequencies}
    one = column(rows=rows, is_unique=unique, count=count, **known)
    if not can_draw(one):
        return
    expression, value = drawn(one, scales)
    if "ARRAY" in value:
        assert set(draws(expression, scales, 50)) <= {*range(1, value.count("'") // 2 + 1)}
        return
    ends = (numbers or [1, rows or 1]) if unique else [*numbers, *common]
    # a key has as many values as there are rows, one after the other where that is more than lies between the bounds
    slack = rows if unique else 0
    assert all(min(ends) <= number <= max(ends) + slack for number in draws(expression, scales, 50))


BOUNDS = ["101", "600", "2100"]
HALVES = "CASE WHEN random(1, 100) <= 50 THEN random({0}, {1}) ELSE random({1}, {2}) END"
TIMES = ["2024-01-01 00:00", "2024-01-02 00:00"]
FIRST, LAST = (f"CAST({literal(time)} AS timestamptz)" for time in TIMES)


@pytest.mark.parametrize(
    ("given", "place", "number", "value"),
    [
        ({"rows": 2000, "is_unique": True, "bounds": BOUNDS}, "", "101 + 1 * (random(0, greatest(1, 2000 * :scale / 10) - 1))", "{}"),
        ({"rows": 2000, "is_unique": True, "bounds": BOUNDS}, "n - 1", "101 + 1 * (n - 1)", "{}"),
        ({"rows": 99, "is_unique": True, "bounds": BOUNDS, "type": "numeric(12,0)"}, "", "101 + 20 * (random(0, 99 - 1))", "{}"),
        ({"count": 1900, "bounds": BOUNDS}, "", HALVES.format("101 + 0 * :scale / 10", "101 + 499 * :scale / 10", "101 + 1999 * :scale / 10"), "{}"),
        ({"count": 40, "bounds": BOUNDS}, "", HALVES.format(*BOUNDS), "{}"),
        ({"count": 4000, "type": "uuid"}, "", "random(0, greatest(1, 4000 * :scale / 10) - 1)", "md5(CAST({} AS text))"),
        ({"rows": 99, "is_unique": True, "bounds": TIMES, "type": "timestamp with time zone"}, "", "random(0, 99 - 1)", f"{FIRST} + ({LAST} - {FIRST}) * ({{}} / 99.0)"),
        ({"count": 4000, "bounds": TIMES, "type": "date"}, "", "random(0, 1000000)", f"{FIRST} + ({LAST} - {FIRST}) * ({{}} / 1000000.0)"),
        ({"count": 4000, "bounds": ["-infinity", *TIMES, "infinity"], "type": "date"}, "", "random(0, 1000000)", f"{FIRST} + ({LAST} - {FIRST}) * ({{}} / 1000000.0)"),
        ({"is_unique": True, "bounds": ["x", "infinity"], "type": "timestamp"}, "", "random(1, 100)", array("x", "infinity")),
        ({"is_unique": True, "bounds": ["1.5", "2.5"], "type": "numeric(5,2)"}, "", "random(1, 100)", array("1.5", "2.5")),
        ({"bounds": ["it", "y"], "type": "date"}, "", "random(1, 100)", array("it", "y")),
    ],
)  # fmt: skip
def test_what_has_many_values_grows(given: dict[str, Any], place: str, number: str, value: str) -> None:
    assert drawn(column(**given), 10, place) == (number, value)


def test_other_types_take_the_values_that_pg_stats_has() -> None:
    mood = column(type="mood", common=["so {}", "it's"], frequencies=[0.75, 0.25])
    _, value = drawn(mood, 1)
    assert (value[:16], value.count("'so {}'")) == ("(ARRAY['so {}', ", 75)
    assert value_of(":p1", value, "mood").endswith("'it''s'])[:p1] AS mood)")


def test_a_table_is_filled_column_by_column() -> None:
    columns = [
        column(name="id", is_unique=True, bounds=["1", "10000"]),
        column(name='"Note"', type="text", nulls=0.25, width=9),
        column(name="place", type="point"),
        column(name="kind", type="smallint", common=["1"], frequencies=[1.0]),
    ]
    ones = ", ".join(["'1'"] * 100)
    assert filled(columns, 4) == (
        'INSERT INTO t (id, "Note", place, kind) SELECT CAST(1 + 1 * (n - 1) AS integer), '
        "CASE WHEN random() >= 0.25 THEN CAST(repeat('x', 9) AS text) END, CAST(NULL AS point), "
        f"CAST((ARRAY[{ones}])[benchlib_random(1, 100)] AS smallint) "
        "FROM generate_series(1, CAST(greatest(1, 10000 * CAST(:scale AS bigint) / 4) AS bigint)) AS n ON CONFLICT DO NOTHING;"
    )


def test_ends_of_64_bits_do_not_overflow_at_any_scale() -> None:
    bounds = [str(n * 2**56) for n in range(100)]
    for last in (99, 10):
        expression, _ = drawn(column(count=10**6, rows=10**7, bounds=bounds[:last]), 40)
        for scale in (1, 40, 100):
            numbers = re.findall(r"-?\d+ \* :scale|-?\d+", expression)
            products = [int(n.split()[0]) * (scale if "scale" in n else 1) for n in numbers]
            assert max(map(abs, products)) < 2**63
