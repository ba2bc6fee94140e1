"""Every chart, of ordinary and of odd frames: complete, stable, described in numbers, nothing off the canvas."""

import dataclasses
import io
import re
from functools import cache
from types import SimpleNamespace

import cases
import matplotlib
import numpy as np
import pandas as pd
import pytest
from benchlib.report.figures.changes import forest, half_normal, index_panels, shares, waterfall
from benchlib.report.figures.figure import render
from benchlib.report.figures.frames import amount
from benchlib.report.figures.hosts import who_ran_what
from benchlib.report.figures.layout import canvas, styled
from benchlib.report.figures.over_time import (
    device_panels,
    drift,
    timeline,
    waits_by_level,
)
from benchlib.report.figures.responses import (
    change_by_clients,
    client_sweep,
    quantile_ladder,
    setting_curve,
)
from bs4 import BeautifulSoup
from designs import full_factorial
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from benchlib.stats.crossed import effects, ladder

LEVELS = ["defaults", "control", "tuned", cases.LONG]
MANY = [f"without checkpoint_completion_target {number}" for number in range(17)]
FACTORS = ["shared_buffers", "checkpoint_completion_target"]


@cache
def ordinary():
    trials = cases.make_trials(dict(zip(LEVELS, (0, 0, 118, 38), strict=True)), failed={(2, "tuned")})
    return cases.judged(trials, controls=("control",)), trials


@cache
def odd():
    """Effects that differ by multiples, a level that never ran to its end."""
    trials = cases.make_trials({"defaults": 0, cases.LONG: 0.1, "slow": -92, "huge": 2400, "broken": 3}, blocks=3,
                         failed={(block, "broken") for block in (1, 2, 3)})  # fmt: skip
    analysis = cases.judged(trials)
    lost = {"level": "broken", "n": 0, "verdict": None}
    table = pd.DataFrame([*analysis.table.astype({"verdict": object}).to_dict("records"), lost])
    against = {**analysis.against, "broken": "defaults"}
    return dataclasses.replace(analysis, table=table, against=against), trials


@cache
def taken_apart():
    changes = {
        f"{kind} {name}": 9.0 + place for kind in ("only", "without") for place, name in enumerate(FACTORS)
    }
    return cases.judged(cases.make_trials({"defaults": 0, "tuned": 95} | changes))


@cache
def factorial():
    design = full_factorial(FACTORS)
    trials = cases.crossed(design, {FACTORS[0]: 0.4, " × ".join(FACTORS): 2.0})
    return effects(trials, design)


def curves():
    points = pd.DataFrame({"x": [0.0, 1.0, 16.0, 256.0], "value": [-62.0, 0.0, 24.0, 18.0]})
    points = points.assign(low=points["value"] - 6, high=points["value"] + 6)
    bends = points["x"].eq(16.0)
    return [points.assign(series="sorts", bends=bends), points.assign(series=cases.LONG, bends=False)]


def curve(of):
    points, words = pd.concat(of, ignore_index=True), {"title": "sorts: bends at 16", "note": "Against 1."}
    return setting_curve(points, "work_mem", ordinary()[0], amount, **words)


def by_clients():
    rows = [
        (series, n, 40.0 * n, 30.0 * n, 50.0 * n) for series in ("read-only", cases.LONG) for n in (1, 8, 96)
    ]
    return pd.DataFrame(rows, columns=["series", "x", "value", "low", "high"]).assign(against="slower disk")


def index_entry(title, panel, change):
    answer = SimpleNamespace(words="the tuned set", against=cases.LONG, percent_change=change, ci_low=change - 9,
                             ci_high=change + 9, verdict="faster", gives_up="all")  # fmt: skip
    return SimpleNamespace(title=title, panel=panel, higher_is_better=True, answers=[answer])


def on_hosts(servers):
    """Trials on so many servers, with a load from elsewhere and two replicas on one host."""
    rows = []
    for place, level in enumerate(LEVELS):
        for server in (f"db{number}" for number in range(servers)):
            rows.append((server, server, "server", "server", level, np.nan))
            rows.append(
                (server, "generator-with-a-long-name.example", "load", "load tool", level, 0.2 + place)
            )
            rows += [(server, "db77", "follower", f"replica{number}", level, 2.0) for number in (1, 2)]
    return pd.DataFrame(rows, columns=["server", "host", "role", "runs", "level", "round_trip_ms"])


STEPS = ["base", "2: dirty_ratio 10, dirty_background_ratio 5", "3: scheduler mq-deadline", "4: once more"]
CHARTS = {
    "forest": lambda: forest(ordinary()[0], durability={"tuned": "the last commits"}),
    "forest, odd": lambda: forest(odd()[0]),
    "drift": lambda: drift(ordinary()[1], "tps"),
    "drift, odd": lambda: drift(odd()[1], "tps"),
    "timeline": lambda: timeline(cases.make_progress(ordinary()[1]), levels=LEVELS, title="Steady inside trials"),
    "timeline of a long run": lambda: timeline(cases.make_progress(ordinary()[1], 900), levels=LEVELS, title="Steady inside trials"),
    "shares": lambda: shares(taken_apart(), full="tuned"),
    "no shares": lambda: shares(odd()[0], "huge"),
    "half-normal": lambda: half_normal(factorial()),
    "waterfall": lambda: waterfall(ladder(cases.climb(STEPS, [3, -6, 0.1]), STEPS), start="base"),
    "waterfall, odd": lambda: waterfall(ladder(cases.climb(STEPS, [2400, -98, 0.01]), STEPS)),
    "devices": lambda: device_panels(
        cases.make_progress(ordinary()[1], 12), cases.make_seconds(LEVELS), cases.make_waits(LEVELS), LEVELS, "A note."
    ),
    "waits": lambda: waits_by_level(cases.make_waits(LEVELS), LEVELS),
    "waits of many": lambda: waits_by_level(cases.make_waits(MANY, blocks=1, seconds=3), MANY),
    "latency quantiles": lambda: quantile_ladder(cases.make_quantiles(LEVELS), LEVELS),
    "client sweep": lambda: client_sweep(cases.make_sweep(LEVELS, [2**power for power in range(10)])),
    "curve": lambda: curve(curves()[:1]),
    "curves": lambda: curve(curves()),
    "change by clients": lambda: change_by_clients(by_clients(), ordinary()[0]),
    "hosts": lambda: who_ran_what(on_hosts(1)),
    "many hosts": lambda: who_ran_what(on_hosts(40)),
    "hosts that share nothing": lambda: who_ran_what(on_hosts(3).query("role == 'server'")),
    "index": lambda: index_panels([index_entry("A", "changes", 5600.0), index_entry(cases.LONG, "costs", -45.0)]),
}  # fmt: skip


@pytest.fixture(scope="module", params=CHARTS)
def figure(request):
    return CHARTS[request.param]()


@pytest.fixture(scope="module")
def page(figure):
    """The figure as a page has it."""
    return BeautifulSoup(figure._repr_html_(), "html.parser")


def test_it_is_one_labelled_drawing_below_its_finding_with_its_numbers_beside_it(figure, page):
    (svg,) = page.find_all("svg")
    assert svg["aria-label"] == figure.alt
    assert svg["role"] == ("group" if svg.select(".bl-mark") else "img")
    assert svg.parent["tabindex"] == "0"
    assert page.select_one(".bl-title").get_text() == figure.title
    assert page.figcaption.get_text() == figure.caption
    assert 10 < len(figure.title) <= 90
    assert figure.alt.startswith(figure.title.replace("\u00a0", " "))
    assert len(figure.alt) <= 400
    assert "nan" not in re.split(r"\W+", figure.alt + figure.caption + svg.get_text("|"))
    assert len(figure.svg) < 150_000
    kept = pd.read_csv(io.StringIO(page.figure["data-csv"]))
    assert len(kept) == len(figure.numbers) <= 400
    assert list(kept) == list(figure.numbers)


def test_its_marks_say_something_each_and_can_be_reached(page):
    for mark in page.select(".bl-mark"):
        assert (mark["tabindex"], mark["role"]) == ("0", "img")
        assert mark.find("title").get_text()


def test_it_loads_nothing_and_refers_to_nothing_outside(figure):
    html = figure._repr_html_().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|<\?xml|<!DOCTYPE|<metadata|@import|src=", html)
    ids = set(re.findall(r' id="([^"]+)"', figure.svg))
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', figure.svg)) == ids


def test_a_page_can_change_its_colours_and_its_font(figure):
    bare = re.sub(r"var\(--bl-[a-z]+,#[0-9a-f]{6}\)", "", figure.svg)
    assert not re.search(r"(fill|stroke): ?#", bare)
    assert "DejaVu" not in figure.svg


def test_its_text_stays_on_the_canvas_in_the_widest_common_font(page):
    svg = page.svg
    width, height = (float(n) for n in svg["viewbox"].split()[2:])
    for text in svg.find_all("text"):
        style = dict(
            part.split(":") for part in f"{svg['style']};{text.get('style', '')}".strip(";").split(";")
        )
        size = float(style["font-size"].removesuffix("px"))
        assert size >= 9
        font = FontProperties(size=size, weight=int(style.get("font-weight", 400)))
        long = text_to_path.get_text_width_height_descent(text.get_text(), font, ismath=False)[0]
        moved = re.search(r"translate\(([\d.-]+) ([\d.-]+)\)", text.get("transform", ""))
        x, y = (float(place) for place in (moved.groups() if moved else (text["x"], text["y"])))
        turned = "rotate" in text.get("transform", "")
        at, end = (y, height) if turned else (x, width)
        share = {"middle": 0.5, "end": 1.0}.get(style.get("text-anchor"), 0.0)
        low = at - long * (1 - share if turned else share)
        assert -1 <= low <= low + long <= end + 1, text.get_text()
        assert 0 <= y <= height + 1


def test_a_host_says_how_far_it_was_at_each_level_where_that_differs():
    texts = BeautifulSoup(CHARTS["hosts"]().svg, "html.parser").get_text("|").replace("\u00a0", " ")
    assert "defaults: 0.2 ms|" in texts
    assert "replica1, replica2|2 ms away" in texts
    assert "and 34 more" in CHARTS["many hosts"]().svg


@pytest.mark.parametrize("name", ["forest", "timeline", "waits"])
def test_the_same_frame_gives_the_same_bytes_and_leaves_matplotlib_as_it_was(name):
    before = dict(matplotlib.rcParams)
    assert CHARTS[name]() == CHARTS[name]()
    assert dict(matplotlib.rcParams) == before


def test_markup_in_words_is_escaped():
    @styled
    def drawn():
        drawing = canvas(40)
        drawing.text(0.1, 0.5, "<b> & $x$")
        return render("odd", drawing, 'a "quote" <', "<i>", pd.DataFrame({"name": ["=1+1", "<b>"]}))

    page = BeautifulSoup(drawn()._repr_html_(), "html.parser")
    assert page.find("text").get_text() == "<b> & $x$"
    assert page.find("svg")["aria-label"] == 'A "quote" <. <i>'
    assert page.figure["data-csv"] == "name\n'=1+1\n<b>\n"
    assert page.find("figcaption").get_text() == "<i>"
    assert "<svg" not in repr(drawn())


def test_a_line_is_where_it_was_drawn_to_within_a_tenth_of_a_point():
    places = np.random.default_rng(1).uniform(0, 1, (300, 2))

    @styled
    def drawn():
        drawing = canvas(200)
        axes = drawing.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, 1), ylim=(0, 1))
        with matplotlib.rc_context({"path.simplify": False}):
            axes.plot(*places.T, color="#123456")
            return render("line", drawing, "A line", "", pd.DataFrame({"x": [1]}))

    svg = drawn().svg
    width, height = (float(number) for number in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    (data,) = re.findall(r' d="M([^"M]*)l([^"]*)" [^>]*#123456', svg)
    start, *steps = (
        np.array(pair.split(), float) for pair in re.findall(r"-?[\d.]+ -?[\d.]+", " ".join(data))
    )
    reached = np.cumsum([start, *steps], axis=0)
    assert reached == pytest.approx(
        np.column_stack([places[:, 0] * width, (1 - places[:, 1]) * height]), abs=0.11
    )


def test_figures_of_one_page_share_no_id():
    figures = [CHARTS[name]() for name in ("forest", "drift", "timeline")]
    ids = [name for figure in figures for name in re.findall(r' id="([^"]+)"', figure.svg)]
    assert ids
    assert len(ids) == len(set(ids))


def test_a_missing_interval_is_said():
    analysis, _ = odd()
    table = analysis.table.copy()
    table.loc[table["level"] == "slow", ["ci_low", "ci_high"]] = np.nan
    figure = forest(dataclasses.replace(analysis, table=table))
    assert "broken: –, not measured" in figure.svg
    assert "no interval" in figure.svg
    assert "log scale" in figure.svg
