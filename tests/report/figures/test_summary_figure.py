"""The forest of all studies: ranked, better to the right, honest about what settles nothing."""

import re

import pandas as pd
import pytest
from bs4 import BeautifulSoup

from benchlib.report.figures.summary import summary_forest


def study(name, gain, verdict="faster", *, rank=None, half=4.0, **more):
    """A row as `summary_rows` makes it."""
    row = {"study": name, "title": name.capitalize(), "rank": rank or float("nan"), "further": False}
    row |= {"level": "tuned", "against": "defaults", "metric": "throughput", "verdict": verdict}
    row |= {"gain": gain, "gain_low": gain - half, "gain_high": gain + half, "percent_change": gain}
    return row | {"margin": 0.03, "alpha": 0.05, "loss": "", "host": ""} | more


@pytest.fixture
def rows():
    long = "prepared statements, sixteen clients and a pool of connections"
    return pd.DataFrame(
        [
            study("configuration", 812.4, rank=1, half=150, loss="the latest commits"),
            study("configuration-shares", 790.0, half=200, further=True, loss="the latest commits"),
            study("operating_system", 66.7, rank=2, metric="p99 latency", percent_change=-40.0),
            study("planner", 0.4, "equivalent", rank=3, half=0.9, level=long),
            study("version", -45.0, "slower", rank=4),
            study("memory", 3.1, "inconclusive", half=9),
            study("storage", 150.0, "invalid", half=20),
        ]
    )


def words(svg):
    return BeautifulSoup(svg, "html.parser").get_text("|")


def test_both_drawings_have_every_study_in_order(rows):
    figure = summary_forest(rows)
    for svg in (figure.wide, figure.narrow):
        found = words(svg)
        named = ["1. Configuration†", "configuration-shares†", "2. Operating_system", "3. Planner"]
        places = [found.index(name) for name in [*named, "4. Version", "Memory", "Storage"]]
        assert places == sorted(places)
        assert "better →" in found
        assert "log scale" in found


def test_a_metric_that_is_not_throughput_is_named_with_its_measured_change(rows):
    figure = summary_forest(rows)
    assert "p99 latency −40.0 %" in words(figure.wide).replace("\u00a0", " ").replace("|", " ")
    assert "half as much counts as +100 %" in figure.caption
    plain = summary_forest(rows[rows["metric"] == "throughput"])
    assert "half as much" not in plain.caption
    assert "throughput" not in words(plain.wide)


def test_it_is_told_in_words(rows):
    figure = summary_forest(rows)
    assert (
        "1. Configuration†, tuned against defaults +812.4 % (interval 662.4 to 962.4), faster" in figure.alt
    )
    assert "Memory, tuned against defaults +3.1 % (interval −5.9 to 12.1), inconclusive" in figure.alt
    assert "configuration, configuration-shares – the latest commits" in figure.alt
    assert "95 % intervals" in figure.caption
    assert "±3 %" in figure.caption
    assert "Grey marks" in figure.caption


def test_margins_and_confidences_that_differ_are_not_told_as_one(rows):
    mixed = rows.assign(margin=[0.03, *[0.05] * 6], alpha=[0.05, *[0.01] * 6])
    caption = summary_forest(mixed).caption
    assert "Shaded" not in caption
    assert "95 to 99 % intervals" in caption


def test_verdicts_without_an_interval_and_nothing_at_all(rows):
    figure = summary_forest(rows.assign(gain_low=float("nan")))
    assert "no interval" in words(figure.wide)
    assert "nan" not in figure.alt
    assert "No study has a verdict" in words(summary_forest(rows.head(0)).wide)


@pytest.mark.parametrize("count", [1, 40])
def test_it_grows_with_the_studies(count):
    figure = summary_forest(pd.DataFrame([study(f"s{i}", 50.0 - i, rank=i + 1) for i in range(count)]))
    height = float(re.search(r'viewBox="0 0 504 ([\d.]+)"', figure.wide)[1])
    assert 30 * count < height < 40 * count + 60
