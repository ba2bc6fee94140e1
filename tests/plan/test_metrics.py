import pytest

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS, format_percent, metric, metric_or_guess, words


def test_registry():
    assert metric("tps").higher_is_better
    assert not metric("latency_p999_ms").higher_is_better
    assert all(name == known.name for name, known in METRICS.items())
    with pytest.raises(InputError, match="unknown metric 'tsp'; known: tps"):
        metric("tsp")


@pytest.mark.parametrize(
    ("name", "higher"),
    [
        ("tps", True),
        ("qps", True),
        ("rows_per_s", True),
        ("throughput", True),
        ("p99_ms", False),
        ("query_latency", False),
        ("elapsed_s", False),
        ("wait_us_total", False),
        ("jobs/s", True),
        ("score", True),
    ],
)
def test_direction_of_foreign_metrics(name, higher):
    assert metric_or_guess(name).higher_is_better is higher


def test_words_name_the_direction():
    assert words(metric("tps")) == ("faster", "slower")
    assert words(metric("latency_p95_ms")) == ("slower", "faster")


def test_percentages_carry_signs():
    assert format_percent(38.24) == "+38.2"
    assert format_percent(-1234.5, 0) == "−1,234"
    assert format_percent(float("nan")) == "–"
