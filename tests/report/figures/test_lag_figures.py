"""Charts of replicas and of flushes: everything on the canvas, honest axes, the same bytes each time."""

import re

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from benchlib.report.figures.flushes import flush_rates
from benchlib.report.figures.lag import STAGES, lag_over_time

LONG = "any 1 of 2, a level whose name goes on, with random_page_cost=1.1 and jit=off"


def make_lags(levels, *, blocks=3, seconds=12):
    """The further down a stage, the later; nothing is known of the first second."""
    random, rows = np.random.default_rng(8), []
    for level in levels:
        for block in range(1, blocks + 1):
            for second in range(seconds + 1):
                behind = np.sort(random.gamma(1, 0.01, 3))
                row = {
                    f"{stage}_lag_s": s if second else None for stage, s in zip(STAGES, behind, strict=True)
                }
                row |= {f"{stage}_lag_bytes": 5e6 * s for stage, s in zip(STAGES, behind, strict=True)}
                rows.append({"level": level, "block": block, "replica": "replica1", "second": second, **row})
    frame = pd.DataFrame(rows)
    return frame.astype({name: float for name in frame if "_lag_" in name})


def make_rates():
    rows = [
        ("flushes a second, where the WAL of defaults and 3 other levels lies", "fdatasync", 80.3, True),
        ("flushes a second, where the WAL of defaults and 3 other levels lies", "open_sync", 39.1, False),
        (f"flushes a second, where the WAL of {LONG} lies", "open_datasync", 48_817.0, True),
    ]
    return pd.DataFrame(rows, columns=["place", "method", "ops_per_s", "used"])


def make_commits():
    rows = [
        (level, tps * factor, 4, flush)
        for level, tps, flush in (("defaults", 170, 80.3), ("no wait", 3000, None), (LONG, 3000, 80.3))
        for factor in (0.9, 1, 1.1)
    ]
    return pd.DataFrame(rows, columns=["level", "tps", "clients", "flushes_per_s"])


FIGURES = {
    "lag": lambda: lag_over_time(make_lags(["asynchronous", LONG]), ["asynchronous", LONG]),
    "lag of one reading": lambda: lag_over_time(make_lags(["a"], blocks=1, seconds=0), ["a"]),
    "flushes": lambda: flush_rates(make_rates(), make_commits()),
    "flushes whose axis ends at a round number": lambda: flush_rates(
        make_rates().assign(ops_per_s=[67_000.0, 20_000.0, 9_000.0]), make_commits().assign(tps=[3001.0] * 9)
    ),
    "flushes alone": lambda: flush_rates(make_rates()[:1], make_commits()[:1]),
}


@pytest.fixture(params=FIGURES, scope="module")
def figure(request):
    return FIGURES[request.param]()


def test_text_stays_on_the_canvas(figure):
    for svg in BeautifulSoup(figure._repr_html_(), "html.parser").find_all("svg"):
        width, height = (float(n) for n in svg["viewbox"].split()[2:])
        for text in svg.find_all("text"):
            style = dict(part.split(": ") for part in text["style"].split("; "))
            size, weight = float(style["font-size"].removesuffix("px")), int(style.get("font-weight", 400))
            font = FontProperties(size=size, weight=weight)
            long = text_to_path.get_text_width_height_descent(text.get_text(), font, ismath=False)[0]
            left = float(text["x"]) - long * {"middle": 0.5, "end": 1.0}.get(style.get("text-anchor"), 0.0)
            assert left >= -1, text.get_text()
            assert left + long <= width + 1, text.get_text()
            assert 0 <= float(text["y"]) <= height + 1


def test_a_page_can_change_the_colours_and_no_nan_is_said(figure):
    for svg in (figure.wide, figure.narrow):
        assert not re.search(r"(fill|stroke): #", re.sub(r"var\(--bl-[a-z]+,#[0-9a-f]{6}\)", "", svg))
        assert len(svg) < 100_000
    assert not re.search(
        r"\bnan\b", figure.alt + figure.caption + BeautifulSoup(figure.wide, "html.parser").text
    )


@pytest.mark.parametrize("name", ["lag of one reading", "flushes"])
def test_the_same_input_gives_the_same_bytes(name):
    assert FIGURES[name]() == FIGURES[name]()


def test_a_level_without_readings_has_its_panels():
    figure = lag_over_time(make_lags(["a"]), ["a", "b"])
    assert "b: not known" in figure.alt
    assert "time, ms: not known" in BeautifulSoup(figure.narrow, "html.parser").text


def test_lags_of_a_long_run_are_in_spans():
    figure = lag_over_time(make_lags(["a"], blocks=1, seconds=600), ["a"])
    assert "in spans of 10 s" in figure.caption


def test_the_scales_are_common_and_have_a_zero():
    lags = make_lags(["a", "b"])
    lags.loc[lags["level"] == "b", "replay_lag_s"] = 500.0
    words = BeautifulSoup(lag_over_time(lags, ["a", "b"]).wide, "html.parser").get_text("|")
    assert words.count("|100,000|") == 2
    assert words.count("|0|") == 8, "of two axes in each of four panels"
