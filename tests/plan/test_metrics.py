import pytest

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS, format_percent, metric, metric_or_guess


def test_registry():
    assert all(name == known.name for name, known in METRICS.items())
    with pytest.raises(InputError, match="unknown metric 'tsp'; known: tps"):
        metric("tsp")


@pytest.mark.parametrize(
    ("name", "higher"),
    [("tps", True), ("qps", True), ("rows_per_s", True), ("jobs/s", True), ("score", True), ("p99_ms", False),
     ("query_latency", False), ("elapsed_s", False), ("wait_us_total", False), ("latency_p999_ms", False)],
)  # fmt: skip
def test_direction_of_known_and_foreign_metrics(name, higher):
    assert metric_or_guess(name).higher_is_better is higher
    assert metric_or_guess(name).directions == (("faster", "slower") if higher else ("slower", "faster"))


def test_percentages_carry_signs():
    assert [format_percent(38.24), format_percent(-1234.5, 0), format_percent(float("nan"))] == [
        "+38.2",
        "−1,234",
        "–",
    ]
