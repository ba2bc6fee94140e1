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


def draws(expression: str, scale: int = 1, times: int = 2000) -> list[int]:
    """The values of an expression of pgbench's; CASE becomes Python's own."""
    text = expression.replace(":scale", str(scale)).replace(" / ", " // ")
    text = text.replace("CASE ", "(").replace(" END", ")")
    text = re.sub(r"WHEN (.*?) THEN (.*?)(?= WHEN| ELSE)", r"(\2) if (\1) else", text).replace(" ELSE ", " ")
    chance = random.Random(7)
    return [eval(text, {"random": chance.randint, "greatest": max}) for _ in range(times)]


def test_common_values_come_by_their_frequencies_and_others_between_the_bounds() -> None:
    bounds = [str(1000 + 10 * n) for n in range(101)]
    expression, value = drawn(column(common=["7", "-3"], frequencies=[0.5, 0.2], bounds=bounds), 1)
    assert value == "{}"
    values = draws(expression)
    counts = Counter(values)
    assert counts[7] == pytest.approx(1000, abs=120)
    assert counts[-3] == pytest.approx(400, abs=90)
    rest = [number for number in values if number not in (7, -3)]
    assert 1000 <= min(rest) < 1060
    assert 1940 < max(rest) <= 2000
    assert sum(number < 1500 for number in rest) == pytest.approx(len(rest) / 2, abs=60)


@given(
    numbers=st.lists(st.integers(-(10**9), 10**9), unique=True, max_size=101).map(sorted),
    common=st.lists(
        st.tuples(st.integers(-100, 100), st.floats(0.001, 1)), max_size=20, unique_by=lambda pair: pair[0]
    ),
    count=st.integers(0, 10**6),
    rows=st.integers(0, 10**7),
    scales=st.integers(1, 1000),
    unique=st.booleans(),
)
def test_whole_numbers_stay_within_what_is_known_at_the_scale_of_the_whole(
    numbers: list[int], common: list[tuple[int, float]], count: int, rows: int, scales: int, unique: bool
) -> None:
    total = sum(frequency for _, frequency in common) or 1
    one = column(
        rows=rows, is_unique=unique, count=count, bounds=[*map(str, numbers)], common=[str(number) for number, _ in common],
        frequencies=[min(frequency / total, frequency) for _, frequency in common],
    )  # fmt: skip
    if not can_draw(one):
        return
    expression, value = drawn(one, scales)
    if "ARRAY" in value:
        size = value.count("'") // 2
        assert set(draws(expression, scales, 50)) <= set(range(1, size + 1))
        return
    known = [*numbers, *(number for number, _ in common)] if not unique else (numbers or [1, rows or 1])
    # a key has as many values as there are rows, one after the other where that is more than lies between the bounds
    slack = rows if unique else 0
    assert all(min(known) <= number <= max(known) + slack for number in draws(expression, scales, 50))


def test_keys_grow_with_the_scale_and_rows_have_each_once() -> None:
    key = column(rows=2000, is_unique=True, bounds=["101", "600", "2100"])
    assert set(draws(drawn(key, 10)[0], scale=10)) <= set(range(101, 2101))
    assert max(draws(drawn(key, 10)[0], scale=1)) <= 300
    assert drawn(key, 10, "n - 1") == ("101 + 1 * (n - 1)", "{}")
    references = column(rows=9000, count=1900, bounds=["101", "600", "2100"])
    assert max(draws(drawn(references, 10)[0], scale=1)) <= 300
    few = column(rows=5000, count=40, bounds=["101", "600", "2100"])
    assert max(draws(drawn(few, 10)[0], scale=1)) > 1900
    uuid = column(type="uuid", count=4000)
    assert drawn(uuid, 10) == ("random(0, greatest(1, 4000 * :scale / 10) - 1)", "md5(CAST({} AS text))")


def test_other_types_take_the_values_that_pg_stats_has() -> None:
    mood = column(type="mood", common=["so {}", "it's"], frequencies=[0.75, 0.25])
    _, value = drawn(mood, 1)
    assert value.startswith("(ARRAY['so {}', ")
    assert value.count("'so {}'") == 75
    assert value_of(":p1", value, "mood").endswith("'it''s'])[:p1] AS mood)")
    day = column(type="date", bounds=["2020-01-01", "2021-01-01"])
    assert drawn(day, 1)[1].count("'2021-01-01'") == 50


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


def test_keys_of_numbers_and_times_have_as_many_values_as_there_are_rows() -> None:
    bounds = [str(1 + 99 * n) for n in range(101)]
    expression, value = drawn(column(type="numeric(12,0)", is_unique=True, rows=9901, bounds=bounds), 1)
    assert value == "{}"
    assert len(set(draws(expression))) > 1000
    times = [f"2024-01-01 00:{minute:02d}:00+00" for minute in range(60)]
    one = column(type="timestamp with time zone", is_unique=True, rows=5000, bounds=times)
    expression, value = drawn(one, 1)
    assert "5000" in expression
    assert value.endswith(" * ({} / 5000.0)")
    assert literal(times[0]) in value
    assert literal(times[-1]) in value
    assert "ARRAY" in drawn({**one, "bounds": [*times, "infinity"]}, 1)[1], "which has no middle"
    assert "ARRAY" in drawn({**one, "type": "numeric(5,2)", "bounds": ["1.5", "2.5"]}, 1)[1]


def test_ends_of_64_bits_do_not_overflow_at_any_scale() -> None:
    bounds = [str(n * 2**56) for n in range(100)]
    for last in (99, 10):
        expression, _ = drawn(column(count=10**6, rows=10**7, bounds=bounds[:last]), 40)
        for scale in (1, 40, 100):
            numbers = re.findall(r"-?\d+ \* :scale|-?\d+", expression)
            products = [int(n.split()[0]) * (scale if "scale" in n else 1) for n in numbers]
            assert max(map(abs, products)) < 2**63
