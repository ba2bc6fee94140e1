import math

import numpy as np
import pytest

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS, foreign_metric, metric, number_words, percent_words


def test_registry():
    assert all(name == known.name for name, known in METRICS.items())
    with pytest.raises(InputError, match="unknown metric 'tsp'; known: tps"):
        metric("tsp")


HIGHER = (
    "tps|TPS|qps|tps (without initial connection time)|tps (60 s)|tps_excluding_connection_time|"
    "tps including connections establishing|throughput|Throughput [tx/s]|iops|tpmC"
)
LOWER = "latency|latency_p999_ms|lat|lat_p95|lat (ms,95%)|Latency average|errors|errors/s|lag_ms|failures|retries per s"
NEITHER = (
    "score|p99 (ms)|elapsed_s|time|rows_per_s|ops/s|ms|среднее||7|error|value|tps_loss|tps errors|latency improvement|"
    "throughput penalty|tps per latency|lat_score|latencytps|atps|latest|laterality|tpsx|lattice"
)


@pytest.mark.parametrize(("names", "higher"), [(HIGHER, True), (LOWER, False)])
def test_the_direction_of_a_name_is_what_it_begins_with(names, higher):
    found = {name: foreign_metric(name) for name in names.split("|")}
    assert [name for name, metric in found.items() if metric.higher_is_better is not higher] == []
    directions = ("faster", "slower") if higher else ("slower", "faster")
    assert {metric.directions for metric in found.values()} == {directions}


@pytest.mark.parametrize("name", NEITHER.split("|"))
def test_a_name_that_does_not_tell_is_refused_until_somebody_says(name):
    with pytest.raises(InputError, match="--higher-is-better or --lower-is-better"):
        foreign_metric(name)
    assert foreign_metric(name, higher_is_better=True).higher_is_better
    assert not foreign_metric(name, lower_is_better=True).higher_is_better


@pytest.mark.parametrize(
    ("name", "said"),
    [("tps", "lower_is_better"), ("tps (60 s)", "lower_is_better"), ("lat_p95", "higher_is_better")],
)
def test_what_is_known_is_not_turned_round(name, said):
    with pytest.raises(InputError, match="of it is better; give your column another name"):
        foreign_metric(name, **{said: True})
    with pytest.raises(InputError, match="not both"):
        foreign_metric("score", higher_is_better=True, lower_is_better=True)


@pytest.mark.parametrize(
    ("numbers", "change", "interval"),
    [
        ((38.24, 34.1, 42.96), "+38.2 %", "34.1 to 43.0"),
        ((97.1, 90.2, 104.4), "+97 %", "90 to 104"),
        ((-0.02, -1.1, 1.9), "0.0 %", "−1.1 to 1.9"),
        ((-99.97, -99.98, -99.96), "−99.97 %", "−99.98 to −99.96"),
        ((7.2, 0.4, 14.1), "+7.2 %", "0.4 to 14.1"),
        ((0.31, 0.04, 0.58), "+0.31 %", "0.04 to 0.58"),
        ((7.2, -0.4, 14.1), "+7 %", "0 to 14"),
        ((5672.0, 3480.0, 9000.0), "58 ×", "36 to 91"),
        ((450.0, -30.0, 4200.0), "5.5 ×", "0.7 to 43"),
        ((450.0, 448.0, 452.0), "5.50 ×", "5.48 to 5.52"),
        ((30.0, -10.0, math.inf), "+30 %", "−10 to > 1,000"),
        ((30.0, -100.0, 6.9e147), "+30 %", "−100 to > 1,000"),
        ((450.0, -30.0, 1e9), "5.5 ×", "0.7 to > 1,000"),
        ((499_900.0, 90_000.0, 1e9), "5,000 ×", "901 to > 50,000"),
        ((math.nan,), "–", ""),
    ],
)
def test_a_percentage_has_no_more_digits_than_its_interval_carries(numbers, change, interval):
    assert percent_words(*map(np.float64, numbers)) == (change.replace(" ", "\u00a0"), interval)


NUMBERS = {
    6.9123e147: "6.91e+147",
    99.7: "99.7",
    99.96: "100",
    1234.6: "1,235",
    0.000123: "0.000123",
    -4567.8: "-4,568",
    0: "0",
}


@pytest.mark.parametrize("value", NUMBERS)
def test_numbers_are_short_and_have_no_power_of_ten(value):
    assert number_words(value) == NUMBERS[value]
