"""Bars share one axis: places keep their order, no change is where zero is, and labels stay few and readable."""

import math

import pytest
from report_parts import answer

from benchlib.report.bars import Axis


@pytest.mark.parametrize("ends", [[], [(1, 0.2, 2)], [(-50, -60, -40), (800, 700, 900)], [(0, -math.inf, math.inf)]])  # fmt: skip
def test_places_lie_within_the_drawing_in_their_order(ends):
    axis = Axis.of([answer("faster", percent_change=x, ci_low=low, ci_high=high) for x, low, high in ends])
    places = [axis.at(percent) for percent in (-200, -99, -20, 0, 20, 500, 1e9)]
    assert places == sorted(places)
    assert min(places) >= 0
    assert max(places) <= 240
    assert axis.at(-1) < axis.at(0) < axis.at(1)
    assert 1 <= len(axis.ticks) <= 5
    assert [place for place, _ in axis.ticks] == sorted(place for place, _ in axis.ticks)


def test_small_changes_are_labelled_in_percent_and_large_ones_as_factors():
    assert (Axis.of([]).at(0.0), "0") in Axis.of([]).ticks
    wide = Axis.of([answer("faster", percent_change=800, ci_low=700, ci_high=900)])
    assert (wide.at(0.0), "1 ×") in wide.ticks


def test_an_end_without_a_practical_value_leaves_the_axis_readable():
    wide = Axis.of([answer("inconclusive", percent_change=12, ci_low=-100, ci_high=6.9e147)])
    assert wide.at(12) - wide.at(0) > 2
    assert wide.at(6.9e147) == 238
    assert answer("inconclusive", ci_high=math.inf).has_bar


def test_what_is_invalid_or_has_no_interval_has_no_bar_and_moves_no_axis():
    invalid = answer("invalid", percent_change=900.0, ci_low=800.0, ci_high=999.0)
    assert not invalid.has_bar
    assert not answer("inconclusive", ci_low=math.nan).has_bar
    assert answer("faster").has_bar
    assert Axis.of([answer("faster"), invalid]) == Axis.of([answer("faster")])
