"""Every figure, at both widths: complete, stable, described in numbers, with nothing outside the canvas."""

import dataclasses
import re

import matplotlib
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from plot_cases import make_progress, make_trials

import benchlib
from benchlib.report.figures import drift, forest, paired_blocks, render, shares, timeline
from benchlib.report.figures.frames import signed

PARAMETERS = [
    "shared_buffers",
    "effective_cache_size",
    "checkpoint_timeout",
    "checkpoint_completion_target",
    "random_page_cost",
    "effective_io_concurrency",
    "synchronous_commit",
    "wal_compression",
]


def usable(trials):
    return trials[trials["error"].isna()]


def all_of(analysis, trials):
    return [
        forest(analysis, durability={"tuned": "the last commits"}),
        paired_blocks(analysis, trials),
        timeline(make_progress(trials), warmup_s=5),
        drift(trials),
        shares(analysis, full="tuned"),
    ]


@pytest.fixture(scope="module")
def many():
    """Eighteen levels, two trials failed."""
    effects = {"defaults": 0, "tuned": 95, **{f"only {p}": 5.0 * i for i, p in enumerate(PARAMETERS)}}
    effects |= {f"without {p}": 90 - 8.0 * i for i, p in enumerate(PARAMETERS)}
    trials = make_trials(effects, failed={(2, "only shared_buffers"), (4, "defaults")})
    return benchlib.analyze(usable(trials), baseline="defaults"), trials


@pytest.fixture(scope="module")
def extreme():
    """Effects that differ by multiples, names that go on, a level that never ran to its end."""
    long = "a level whose name goes on and on, random_page_cost=1.1 and effective_io_concurrency=200"
    effects = {"a baseline with quite a long descriptive name": 0, long: 0.1, "slow": -92, "huge": 2400}
    trials = make_trials({**effects, "broken": 3}, blocks=3, failed={(b, "broken") for b in (1, 2, 3)})
    found = benchlib.analyze(usable(trials), baseline=next(iter(effects)))
    lost = {"level": "broken", "n": 0, "verdict": None}
    table = found.table.astype({"verdict": object})
    table = pd.DataFrame([*table.to_dict("records"), lost])
    against = {**found.against, "broken": found.baseline}
    return dataclasses.replace(found, table=table, against=against), trials.drop(columns="started_s")


@pytest.fixture(scope="module")
def figures(analysis, trials, many, extreme):
    return [figure for study in ((analysis, trials), many, extreme) for figure in all_of(*study)]


def svgs(figure):
    return BeautifulSoup(figure._repr_html_(), "html.parser").find_all("svg")


def test_both_variants_are_labelled_images_that_scale(figures):
    for figure in figures:
        found = svgs(figure)
        assert [svg["class"] for svg in found] == [["bl-wide"], ["bl-narrow"]]
        for svg in found:
            assert svg["role"] == "img"
            assert svg["aria-label"] == figure.alt
            assert svg["viewbox"]
            assert "width" not in svg.attrs
            assert "height" not in svg.attrs
        assert figure.caption


def test_same_input_gives_the_same_bytes(analysis, trials):
    first, second = ([f._repr_html_() for f in all_of(analysis, trials)] for _ in range(2))
    assert first == second


def test_ids_of_different_figures_never_meet(figures):
    ids = [
        tag["id"] for figure in figures for tag in BeautifulSoup(figure._repr_html_(), "html.parser")(id=True)
    ]
    assert len(ids) == len(set(ids))
    assert ids


def test_references_lead_to_ids_of_the_same_drawing(figures):
    for figure in figures:
        for svg in (figure.wide, figure.narrow):
            ids = set(re.findall(r' id="([^"]+)"', svg))
            assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)) == ids


def test_nothing_is_loaded_and_no_prolog_is_left(figures):
    for figure in figures:
        html = figure._repr_html_().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|<\?xml|<!DOCTYPE|<metadata|@import|src=", html)


def test_colours_can_be_changed_by_the_page(figures):
    for figure in figures:
        for svg in (figure.wide, figure.narrow):
            bare = re.sub(r"var\(--bl-[a-z]+,#[0-9a-f]{6}\)", "", svg)
            assert not re.search(r"(fill|stroke): #", bare)
            assert "var(--bl-" in svg


def test_text_is_text_in_the_readers_font(figures):
    for figure in figures:
        for svg in (figure.wide, figure.narrow):
            assert "DejaVu" not in svg
            sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
            assert min(sizes) >= 9.0


def test_text_stays_on_the_canvas(figures):
    """With the widest common font, whose metrics laid it out."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    for figure in figures:
        for svg in svgs(figure):
            width, height = (float(n) for n in svg["viewbox"].split()[2:])
            for text in svg.find_all("text"):
                style = dict(part.split(": ") for part in text["style"].split("; "))
                font = FontProperties(
                    size=float(style["font-size"].removesuffix("px")),
                    weight=int(style.get("font-weight", 400)),
                )
                long = text_to_path.get_text_width_height_descent(text.get_text(), font, ismath=False)[0]
                at = float(text["x"])
                left = at - long * {"middle": 0.5, "end": 1.0}.get(style.get("text-anchor"), 0.0)
                assert left >= -1, (figure.name, text.get_text())
                assert left + long <= width + 1, (figure.name, text.get_text())
                assert 0 <= float(text["y"]) <= height + 1


def test_no_setting_of_matplotlib_is_changed(analysis, trials):
    before = dict(matplotlib.rcParams)
    all_of(analysis, trials)
    assert dict(matplotlib.rcParams) == before


def test_forest_says_its_numbers(analysis):
    figure = forest(analysis, durability={"tuned": "the last commits", "absent": "nothing"})
    row = analysis.table.set_index("level").loc["tuned"]
    assert f"tuned {signed(row['percent_change'], unit=' %')} (interval" in figure.alt
    assert "faster" in figure.alt
    assert "Gives up durability: tuned – the last commits" in figure.alt
    assert "absent" not in figure.alt + figure.caption
    for svg in (figure.wide, figure.narrow):
        assert "tuned†" in svg
        assert "control (A/A control)" in svg
        assert signed(row["percent_change"]) in BeautifulSoup(svg, "html.parser").get_text()
    assert "±3 %" in figure.caption


def test_forest_without_interval_or_value_says_so(extreme):
    found, _ = extreme
    table = found.table.copy()
    table.loc[table["level"] == "slow", ["ci_low", "ci_high"]] = np.nan
    figure = forest(dataclasses.replace(found, table=table))
    assert "broken: not measured" in figure.alt
    assert "not measured" in figure.wide
    assert "no interval" in figure.wide
    assert "log scale" in figure.wide
    assert "nan" not in figure.wide.lower() + figure.alt


def test_forest_of_the_baseline_alone(analysis):
    alone = dataclasses.replace(analysis, table=analysis.table.head(1), controls=())
    assert "Nothing to compare" in forest(alone).wide
    assert "No levels" in shares(alone).wide


def test_verdicts_differ_by_shape_as_well(analysis):
    shapes = set()
    for verdict in ("faster", "slower", "equivalent", "inconclusive", "invalid"):
        table = analysis.table.copy()
        table["verdict"] = [None, None, None, verdict]
        svg = forest(dataclasses.replace(analysis, table=table)).wide
        shapes.add(re.sub(r"--bl-\w+,#\w+|bl-forest-\w+", "", svg).replace(verdict, ""))
    assert len(shapes) == 5


def test_pairs_count_the_blocks_in_favour_and_the_failures(analysis, trials, many):
    alt = paired_blocks(analysis, trials).alt
    assert "above zero in 5 of 5" in alt
    figure = paired_blocks(*many)
    assert "Failed trials: 1 of defaults, 1 of only shared_buffers" in figure.alt
    assert "1 failed" in figure.wide


def test_timeline_keeps_the_order_and_thins_long_runs(trials):
    progress = make_progress(trials, seconds=900)
    figure = timeline(progress, levels=["tuned", "defaults", "unheard of"], warmup_s=60)
    words = BeautifulSoup(figure.wide, "html.parser").get_text("|")
    assert words.index("tuned") < words.index("defaults")
    assert "no readings" in words
    assert "means of 8 s" in figure.caption
    assert len(figure.wide) < 120_000


def test_levels_of_several_workloads_are_each_drawn_in_percent_of_their_own_mean(trials):
    progress = make_progress(trials)
    slow = progress["level"] == "tuned"
    figure = timeline(
        progress.assign(tps=progress["tps"].where(~slow, progress["tps"] / 1000)), relative=True
    )
    words = BeautifulSoup(figure.wide, "html.parser").get_text("|")
    assert "|100|" in words
    assert "|1,000|" not in words
    assert "throughput, % of the level's mean" in words
    assert "Each in percent of its own mean." in figure.alt


def test_timeline_of_nothing(trials):
    readings = make_progress(trials)
    for nothing in (readings.head(0), readings.assign(tps=np.nan)):
        figure = timeline(nothing, levels=["defaults"])
        assert "No readings" in figure.alt
        assert "no readings" in figure.wide


def test_trials_that_all_failed_and_names_that_are_numbers(trials):
    failed = trials.assign(tps=np.nan, error="gone")
    assert "20 failed" in drift(failed).alt
    numbered = trials.assign(level=trials["level"].map(len), block="b" + trials["block"].astype(str))
    found = benchlib.analyze(numbered, baseline="8")
    assert "in 5 blocks" in paired_blocks(found, numbered).alt
    assert "5: median" in timeline(make_progress(numbered)).alt


def test_drift_gives_block_means_and_works_without_a_clock(trials, extreme):
    assert re.search(r"Block means: 1: [+−]\d+\.\d %, 2: ", drift(trials).alt)
    figure = drift(extreme[1])
    assert "in the order they were run" in figure.wide
    assert "3 failed" in figure.alt


def test_drift_of_a_latency_names_its_unit(trials):
    assert drift(trials, "latency_average_ms").alt.startswith("Mean latency in the order")


def test_shares_are_sorted_by_what_each_gives_alone(many):
    figure = shares(many[0], full="tuned")
    words = BeautifulSoup(figure.narrow, "html.parser").get_text("|")
    assert words.index("wal_compression") < words.index("effective_cache_size")
    assert "only wal_compression +" in figure.alt
    assert "where tuned reaches +" in figure.alt
    assert "without wal_compression" in figure.alt


def test_a_figure_is_short_in_a_log(analysis):
    assert "<svg" not in repr(forest(analysis))


def test_markup_in_names_is_escaped():
    figure = render("odd", lambda canvas: canvas.text(5, 9, "<b> & $x$"), alt='a "quote" <', caption="<i>")
    page = BeautifulSoup(figure._repr_html_(), "html.parser")
    assert page.find("text").get_text() == "<b> & $x$"
    assert page.find("svg")["aria-label"] == 'a "quote" <'
    assert page.find("figcaption").get_text() == "<i>"
