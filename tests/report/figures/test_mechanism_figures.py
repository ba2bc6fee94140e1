"""Charts of why: complete, described in numbers, with nothing outside the canvas, and nothing missing drawn as 0."""

import re

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from mechanism_cases import make_latencies, make_quantiles, make_seconds, make_sweep, make_waits
from plot_cases import make_progress, make_trials

from benchlib.report.figures import (
    client_sweep,
    device_panels,
    drift,
    latency_over_time,
    quantile_ladder,
    timeline,
    waits_by_level,
    waits_over_time,
)
from benchlib.report.figures.latency import interval_of_mean, log_ticks

LEVELS = ["defaults", "control", "tuned", "a level whose name goes on, random_page_cost=1.1 and jit=off"]
MANY = [f"without checkpoint_completion_target {number}" for number in range(17)]
CLIENTS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


@pytest.fixture(scope="module")
def trials():
    return make_trials(dict.fromkeys(LEVELS, 0), blocks=3)


@pytest.fixture(scope="module")
def progress(trials):
    return make_progress(trials, seconds=12)


@pytest.fixture(scope="module")
def checkpoints():
    rows = [
        ("tuned", 1, 2.0, 5.0, "wal"),
        ("tuned", 2, np.nan, 1.5, "timed"),
        ("control", 1, 11.0, np.nan, "wal"),
    ]
    return pd.DataFrame(rows, columns=["level", "block", "start_s", "end_s", "kind"])


@pytest.fixture(scope="module")
def figures(progress, checkpoints):
    waits, seconds = make_waits(LEVELS), make_seconds(LEVELS)
    return {
        "waits": waits_by_level(waits, LEVELS),
        "waits of many": waits_by_level(make_waits(MANY, blocks=1, seconds=3), MANY),
        "waits over time": waits_over_time(waits, LEVELS),
        "waits of many over time": waits_over_time(make_waits(MANY, blocks=1, seconds=3), MANY),
        "devices": device_panels(progress, seconds, waits, LEVELS, "A note."),
        "quantiles": quantile_ladder(make_quantiles(LEVELS), LEVELS),
        "latencies": latency_over_time(make_latencies(LEVELS), LEVELS),
        "clients": client_sweep(make_sweep(LEVELS, CLIENTS)),
        "timeline": timeline(progress, levels=LEVELS, checkpoints=checkpoints),
    }


NAMES = [
    "waits",
    "waits of many",
    "waits over time",
    "waits of many over time",
    "devices",
    "quantiles",
    "latencies",
]
NAMES += ["clients", "timeline"]


@pytest.fixture(params=NAMES)
def figure(request, figures):
    return figures[request.param]


def words(svg):
    return BeautifulSoup(svg, "html.parser").get_text("|")


def test_colours_can_be_changed_by_the_page(figure):
    for svg in (figure.wide, figure.narrow):
        bare = re.sub(r"var\(--bl-[a-z]+,#[0-9a-f]{6}\)", "", svg)
        assert not re.search(r"(fill|stroke): #", bare)


def test_references_lead_to_ids_of_the_same_drawing(figure):
    for svg in (figure.wide, figure.narrow):
        ids = set(re.findall(r' id="([^"]+)"', svg))
        assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)) == ids


def test_text_stays_on_the_canvas_in_the_widest_common_font(figure):
    for svg in BeautifulSoup(figure._repr_html_(), "html.parser").find_all("svg"):
        width, height = (float(n) for n in svg["viewbox"].split()[2:])
        for text in svg.find_all("text"):
            style = dict(part.split(": ") for part in text["style"].split("; "))
            size = float(style["font-size"].removesuffix("px"))
            assert size >= 9
            font = FontProperties(size=size, weight=int(style.get("font-weight", 400)))
            long = text_to_path.get_text_width_height_descent(text.get_text(), font, ismath=False)[0]
            left = float(text["x"]) - long * {"middle": 0.5, "end": 1.0}.get(style.get("text-anchor"), 0.0)
            assert left >= -1, text.get_text()
            assert left + long <= width + 1, text.get_text()
            assert 0 <= float(text["y"]) <= height + 1


def test_figures_are_light_and_say_no_nan(figure):
    assert len(figure.wide) < 150_000
    assert len(figure.narrow) < 150_000
    assert "nan" not in words(figure.wide).lower().split("|")
    assert not re.search(r"\bnan\b", figure.alt + figure.caption)


def test_the_same_input_gives_the_same_bytes():
    waits = make_waits(LEVELS)
    assert waits_over_time(waits, LEVELS) == waits_over_time(waits, LEVELS)
    assert latency_over_time(make_latencies(LEVELS), LEVELS) == latency_over_time(
        make_latencies(LEVELS), LEVELS
    )


def test_waits_say_their_numbers_and_gather_the_rare_ones(figures):
    figure = figures["waits"]
    assert re.search(r"defaults: on the CPU 0\.\d+, IO: WALSync [45]\.\d+, ", figure.alt)
    shown = words(figure.wide)
    for name in ("■ on the CPU", "■ IO: WALSync", "□ idle: waiting for the load tool", "■ other"):
        assert name in shown
    assert "IPC: ProcArrayGroupUpdate" not in shown
    other = re.search(r"defaults: .*?other (0\.\d+)", figure.alt)
    assert 0.005 < float(other[1]) < 0.03


def test_each_trial_weighs_the_same_however_long_it_was():
    short = pd.DataFrame({"level": "a", "block": 1, "second": [1.0], "CPU": [4.0]})
    long = pd.DataFrame({"level": "a", "block": 2, "second": np.arange(1.0, 10), "CPU": 1.0})
    assert "on the CPU 2.5" in waits_by_level(pd.concat([short, long]), ["a"]).alt


def test_a_level_that_was_not_sampled_is_said_and_not_drawn():
    waits = make_waits(LEVELS[:2])
    for figure in (waits_by_level(waits, LEVELS[:3]), waits_over_time(waits, LEVELS[:3])):
        assert "tuned: not sampled" in figure.alt
        assert "not sampled" in words(figure.narrow)


def test_waits_of_a_long_run_are_in_spans():
    waits = make_waits(LEVELS[:2], blocks=1, seconds=600)
    figure = waits_over_time(waits, LEVELS[:2])
    assert "in spans of 10 s" in figure.caption
    assert len(figure.wide) < 80_000


def test_the_seven_panels_have_their_units_and_numbers(figures):
    figure = figures["devices"]
    shown = words(figure.wide)
    for title in (
        "Operational speed",
        "DBMS waits",
        "I/O operations",
        "Transfer",
        "Queue length",
        "Time of a read",
    ):
        assert title in shown
    assert "r_await, ms: nothing was read" in shown
    assert "Time of a read (r_await, ms): nothing was read" in figure.alt
    assert re.search(r"Queue length \(aqu_sz, requests\): defaults 2\d\.\d", figure.alt)
    assert figure.caption.endswith("A note.")


def test_a_session_that_is_idle_or_on_the_cpu_does_not_wait(progress):
    waits = make_waits(["tuned"], events={"IO: WALSync": 0.0, "CPU": 5.0, "Client: ClientRead": 5.0})
    figure = device_panels(progress, make_seconds(["tuned"]), waits, ["tuned"])
    assert "DBMS waits (sessions that wait): tuned 0;" in figure.alt


def test_speeds_of_several_workloads_are_in_percent_of_their_own_mean(progress):
    figure = device_panels(progress, make_seconds(LEVELS), make_waits(LEVELS), LEVELS, relative=True)
    assert "% of the level's mean" in words(figure.wide)
    assert "transactions/s" not in words(figure.wide)


def test_what_was_not_recorded_is_said_in_its_panel(progress):
    seconds = make_seconds(LEVELS[:2])
    seconds[seconds.columns[3:]] = np.nan  # of the host of a server that is not ours nothing is known
    figure = device_panels(progress, seconds, make_waits(LEVELS[:2]), LEVELS[:2])
    assert "aqu_sz, requests: not recorded" in words(figure.wide)
    assert "Queue length (aqu_sz, requests): not recorded" in figure.alt
    assert "tps" not in re.findall(r"not recorded: (\w+)", figure.alt)


def test_intervals_of_means_are_those_of_students_t():
    middle, low, high = interval_of_mean([1.0, 100.0])
    assert middle == pytest.approx(10)
    assert low == pytest.approx(10 / np.exp(12.706 * np.log(10)), rel=1e-3)
    assert low * high == pytest.approx(100)
    assert np.isnan(interval_of_mean([3.0])[1])
    assert np.isnan(interval_of_mean([])[0])


def test_quantiles_say_their_numbers_and_levels_without_any(figures):
    assert re.search(
        r"defaults: p50 [34]\.\d+ ms, p95 .* p99\.9 \d+\.\d+ ms; control", figures["quantiles"].alt
    )
    figure = quantile_ladder(make_quantiles(["defaults"]), ["defaults", "tuned"])
    assert "tuned: p50 – ms" in figure.alt


@pytest.mark.parametrize(("low", "high"), [(0.02, 0.09), (0.9, 1.1), (1, 900), (0.001, 1e6)])
def test_ticks_of_a_log_axis_are_few_and_inside(low, high):
    ticks = log_ticks(low, high)
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= 10
    assert ticks


def test_latencies_over_time_are_alike_for_trials_of_other_lengths():
    found = make_latencies(["a"], blocks=1, seconds=30) | {
        ("a", 2): make_latencies(["x"], blocks=1, seconds=7)["x", 1]
    }
    figure = latency_over_time(found, ["a", "b"])
    assert "over 30 seconds" in figure.alt
    assert re.search(r"a: most transactions of a second took about [456](\.\d+)? ms", figure.alt)
    assert "no log was kept" in words(figure.wide)


def test_a_long_run_has_wider_spans():
    assert (
        "in those 13 seconds"
        in latency_over_time(make_latencies(["a"], blocks=1, seconds=600), ["a"]).caption
    )


def test_a_sweep_says_its_numbers_and_keeps_the_order():
    figure = client_sweep(make_sweep(["slow", "fast"], [8, 16, 32]).assign(error=None))
    assert re.search(r"tps by number of clients\. slow: 8 clients 1,\d{3}, 16 clients", figure.alt)
    assert [tick in words(figure.narrow) for tick in ("|8|", "|16|", "|32|")] == [True] * 3


def test_a_sweep_with_failures_and_one_count_alone():
    trials = make_sweep(["slow", "fast"], [8]).assign(error=None)
    trials.loc[trials["level"] == "fast", ["tps", "error"]] = [np.nan, "gone"]
    figure = client_sweep(trials)
    assert "fast: not measured" in figure.alt


def test_checkpoints_are_marked_and_counted(progress, figures):
    assert "Checkpoints: control 1, tuned 2." in figures["timeline"].alt
    assert "while a checkpoint was written" in figures["timeline"].caption
    none = pd.DataFrame(columns=["level", "block", "start_s", "end_s", "kind"])
    assert "No checkpoint was written meanwhile" in timeline(progress, checkpoints=none).caption
    assert "heckpoint" not in timeline(progress).caption


def test_what_is_logged_as_no_time_at_all_is_said_and_not_drawn():
    found = make_latencies(["a"], blocks=1)
    assert "Not shown" not in latency_over_time(found, ["a"]).caption
    found["a", 1].counts[:, 0] = 20
    figure = latency_over_time(found, ["a"])
    assert "Not shown: 0.99 % that pgbench logged as less than 10 µs." in figure.caption
    assert "|0.01|" not in words(figure.wide)


def test_a_level_has_one_colour_in_all_charts(trials, progress):
    levels = ["tuned", "defaults"]
    chart = drift(trials[trials["level"].isin(levels)], levels=levels).wide
    panels = device_panels(progress, make_seconds(levels), make_waits(levels), levels).wide

    def colour(svg, text):
        return re.search(r"--bl-\w+", BeautifulSoup(svg, "html.parser").find("text", string=text)["style"])[0]

    assert colour(chart, "● tuned") == colour(panels, "● tuned")
    assert colour(chart, "● defaults") == colour(panels, "■ defaults")
