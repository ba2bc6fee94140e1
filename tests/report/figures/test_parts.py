"""Words, positions, colours: the small parts that figures share."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.report.figures.frames import amount, given_up, interval, signed, spread, wrapped
from benchlib.report.figures.scale import scale_for, tick_words
from benchlib.report.figures.style import DARK, LIGHT, MARKS, mark_of, verdict_word


@pytest.mark.parametrize(
    ("value", "words"),
    [(38.24, "+38.2\u00a0%"), (-0.42, "−0.4\u00a0%"), (-0.01, "0.0\u00a0%"), (2420.4, "+2,420\u00a0%")],
)
def test_signed(value, words):
    assert signed(value) == words


def test_interval_has_true_minus_signs():
    assert interval(-3.06, 12) == "[−3.1, 12.0]"


@pytest.mark.parametrize(
    ("value", "words"), [(1234.5, "1,234"), (12.345, "12.35"), (float("nan"), "–"), (None, "–"), (0, "0")]
)
def test_amount(value, words):
    assert amount(value) == words


def test_long_names_break_after_underscores_and_end_in_an_ellipsis():
    assert wrapped("only checkpoint_completion_target", 16) == ["only checkpoint_", "completion_", "target"]
    assert wrapped("without effective_io_concurrency", 26) == ["without", "effective_io_concurrency"]
    assert wrapped("synchronous_commit", 12) == ["synchronous_", "commit"]
    assert wrapped("one two three four", 9, 1) == ["one two…"]
    assert wrapped("", 9) == [""]


@given(st.text(min_size=0, max_size=80), st.integers(6, 40), st.integers(1, 4))
def test_wrapped_lines_fit(text, chars, lines):
    found = wrapped(text, chars, lines)
    assert 1 <= len(found) <= lines
    assert all(len(line) <= chars for line in found)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_spread_keeps_order_distance_and_place(positions):
    placed = spread(positions, 5, 0, 100)
    ordered = [placed[i] for i in sorted(range(len(positions)), key=lambda i: positions[i])]
    assert all(b - a >= 5 - 1e-6 for a, b in itertools.pairwise(ordered))
    assert min(placed) >= -1e-6
    assert max(placed) <= 100 + 1e-6


@given(st.lists(st.floats(-99, 1e5), max_size=6))
def test_scale_holds_all_values_and_zero(values):
    scale = scale_for(values)
    ends = scale(scale.low), scale(scale.high)
    assert all(ends[0] <= scale(v) <= ends[1] for v in [0.0, *values])
    ticks = scale.ticks(150)
    assert 0 in ticks
    assert ticks == sorted(ticks)
    assert len([t for t in ticks if scale.low <= t <= scale.high]) <= 12


def test_scale_is_logarithmic_only_for_multiples():
    assert not scale_for([-10, 120, math.nan]).log
    assert scale_for([2000]).log
    assert scale_for([-100]).low > -100


def test_ticks_read_as_changes():
    assert [tick_words(v) for v in (0, 50, -90, 1900)] == ["0", "+50", "−90", "+1,900"]


def test_verdict_words():
    assert verdict_word("meaningfully faster") == "faster"
    assert verdict_word(None) == ""
    assert mark_of("never heard") == mark_of(float("nan"))
    assert len({mark.marker for mark in MARKS.values()}) == len(MARKS)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(set(LIGHT) - {"grid", "band", "paper"}))
def test_every_colour_of_text_is_readable(palette, name):
    for ground in ("paper", "band"):
        low, high = sorted((luminance(palette[name]), luminance(palette[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_palettes_have_the_same_names_and_no_colour_twice():
    assert set(LIGHT) == set(DARK)
    assert len(set(LIGHT.values())) == len(LIGHT)


def test_levels_that_risk_the_same_are_named_together():
    lost = {"a": "the last commits", "b": "the whole cluster", "c": "the last commits"}
    assert given_up(lost) == ["a, c – the last commits", "b – the whole cluster"]
