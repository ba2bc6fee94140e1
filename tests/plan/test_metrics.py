import math

import pytest

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS, confidence_words, metric, metric_or_guess, percent_words


def test_registry():
    assert all(name == known.name for name, known in METRICS.items())
    with pytest.raises(InputError, match="unknown metric 'tsp'; known: tps"):
        metric("tsp")


@pytest.mark.parametrize(
    ("name", "higher"),
    [("tps", True), ("qps", True), ("rows_per_s", True), ("jobs/s", True), ("score", True), ("p99_ms", False),
     ("query_latency", False), ("elapsed_s", False), ("wait_us_total", False), ("latency_p999_ms", False),
     ("p99 (ms)", False), ("P95", False), ("Time [s]", False), ("Rate (tx/s)", True), ("ops / s", True),
     ("requests per s, mean", True), ("time per request, mean (s)", False)],
)  # fmt: skip
def test_direction_of_known_and_foreign_metrics(name, higher):
    assert metric_or_guess(name).higher_is_better is higher
    assert metric_or_guess(name).directions == (("faster", "slower") if higher else ("slower", "faster"))


@pytest.mark.parametrize(
    ("alpha", "words"), [(0.05, "95 %"), (0.0094, "99.1 %"), (0.0005, "99.95 %"), (5e-5, "99.995 %")]
)
def test_an_interval_never_covers_all(alpha, words):
    assert confidence_words(alpha) == words


def test_who_says_that_less_is_better_is_believed_but_of_known_metrics():
    assert not metric_or_guess("score", lower_is_better=True).higher_is_better
    assert not metric_or_guess("latency_p99_ms", lower_is_better=True).higher_is_better
    with pytest.raises(InputError, match="more tps is better"):
        metric_or_guess("tps", lower_is_better=True)


@pytest.mark.parametrize(
    ("numbers", "change", "interval"),
    [
        ((38.24, 34.1, 42.96), "+38.2 %", "34.1 to 43.0"),
        ((97.1, 90.2, 104.4), "+97 %", "90 to 104"),
        ((-0.02, -1.1, 1.9), "0.0 %", "−1.1 to 1.9"),
        ((-99.97, -99.98, -99.96), "−99.97 %", "−99.98 to −99.96"),
        ((-1.26,), "−1.3 %", ""),
        ((7.2, 0.4, 14.1), "+7.2 %", "0.4 to 14.1"),
        ((0.31, 0.04, 0.58), "+0.31 %", "0.04 to 0.58"),
        ((-7.2, -14.1, -0.4), "−7.2 %", "−14.1 to −0.4"),
        ((7.2, -0.4, 14.1), "+7 %", "0 to 14"),
        ((5672.0, 3480.0, 9000.0), "58 ×", "36 to 91"),
        ((450.0, -30.0, 4200.0), "5.5 ×", "0.7 to 43"),
        ((450.0, 448.0, 452.0), "5.50 ×", "5.48 to 5.52"),
        ((450.0,), "5.5 ×", ""),
        ((30.0, -10.0, math.inf), "+30 %", ""),
        ((math.nan,), "–", ""),
    ],
)
def test_a_percentage_has_no_more_digits_than_its_interval_carries(numbers, change, interval):
    assert percent_words(*numbers) == (change.replace(" ", "\u00a0"), interval)


@pytest.mark.parametrize(
    "name",
    ["usecs_per_op", "ms", "ms_per_query", "query_sec", "exec_secs", "response (msec)", "95th percentile"],
)
def test_names_that_speak_of_time_are_better_low(name):
    assert not metric_or_guess(name).higher_is_better


@pytest.mark.parametrize("name", ["requests per sec", "rows_sec", "ops/s", "score", "status"])
def test_rates_and_what_tells_nothing_are_better_high(name):
    assert metric_or_guess(name).higher_is_better
