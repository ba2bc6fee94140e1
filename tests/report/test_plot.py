"""Charts take a frame and give matplotlib's axes, or a figure: on the axes that are given, of an empty frame too, leaving no trace."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchlib.report import plot
from benchlib.report.display import figure_output
from benchlib.stats.effects import compare

# what seaborn asks of matplotlib in ways that will go
pytestmark = [
    pytest.mark.filterwarnings("ignore:The set_bad function:PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:vert:matplotlib.MatplotlibDeprecationWarning"),
]
LEVELS = ["defaults", "control", "tuned"]
RANDOM = np.random.default_rng(1)
TRIALS = pd.DataFrame(
    [
        (b, level, 1000 * (1 + (level == "tuned")) + 10 * b, *(k * (1 + b / 9) for k in (1, 2, 3, 9)), c)
        for b in range(1, 5)
        for level, c in zip(LEVELS, (1.0, 4.0, 16.0), strict=True)
    ],
    columns=["block", "level", "tps", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p999_ms", "clients"],
)  # fmt: skip
EFFECTS = compare(TRIALS, baseline="defaults", controls=["control"])
SECONDS = TRIALS[["block", "level"]].merge(pd.DataFrame({"second": range(4)}), how="cross")
SECONDS = SECONDS.assign(tps=RANDOM.normal(100, 5, len(SECONDS)), dirty_mib=1.0, absent=np.nan)
WAITS = TRIALS[["block", "level"]].merge(pd.DataFrame({"wait": [f"w{n}" for n in range(10)]}), how="cross")
WAITS = WAITS.assign(sessions=RANDOM.uniform(0, 2, len(WAITS)))
CHECKPOINTS = pd.DataFrame({"level": ["tuned"], "block": [1], "start_s": [-1.0], "end_s": [2.0], "kind": ["time"]})  # fmt: skip
LAG = pd.DataFrame({"level": ["tuned"] * 5, "replay_lag_s": [0.001, 0.002, 0.004, 0.0, np.nan]})
STEPS = pd.DataFrame({
    "level": ["a", "b"], "step_percent": [5.0, -1.0], "step_low": [4.0, -2.0], "step_high": [6.0, 0.5],
    "step_verdict": ["faster", "inconclusive"], "total_percent": [5.0, 4.0],
})  # fmt: skip
BESIDE = pd.DataFrame({
    "figure": ["one", "two"], "percent_change": [5.0, np.nan], "ci_low": [4.0, np.nan], "ci_high": [6.0, np.nan],
    "published_low": [8.0, 9.0], "published_high": [8.0, 9.0],
})  # fmt: skip
DESIGN = pd.DataFrame(
    {"disk": ["slow", "slow", "fast", "fast"], "memory": ["1", "2", "1", "2"]}, index=list("abcd")
)
GRID = pd.DataFrame({
    "level": list("bcd"), "against": "a", "percent_change": [5.0, 10.0, 20.0], "ci_low": [4.0, 8.0, 15.0],
    "ci_high": [6.0, 12.0, 25.0], "verdict": ["faster", "inconclusive", "slower"],
})  # fmt: skip
ON_AXES = [
    (plot.trials, [TRIALS]),
    (plot.effects, [EFFECTS]),
    (plot.timeline, [SECONDS, "tps", CHECKPOINTS]),
    (plot.waits, [WAITS]),
    (plot.latency, [TRIALS]),
    (plot.curve, [TRIALS, "clients", "tps", "level"]),
    (plot.waterfall, [STEPS]),
    (plot.lag, [LAG]),
    (plot.correlation, [TRIALS[["tps", "clients"]]]),
    (plot.beside, [BESIDE]),
]
COLUMNS = {"tps": "a", "dirty_mib": "b", "absent": "c", "x": "d"}
FIGURES = [(plot.panels, [SECONDS, COLUMNS]), (plot.heat, [GRID, DESIGN]), (plot.multiples, [GRID, DESIGN])]


def named(draw):
    return getattr(draw, "__name__", "")


@pytest.fixture(autouse=True)
def closed():
    """Closes what a test has drawn."""
    yield
    plt.close("all")


@pytest.mark.parametrize(("draw", "given"), ON_AXES, ids=named)
def test_a_chart_is_drawn_on_axes_of_its_own_or_those_that_are_given(draw, given):
    before = dict(mpl.rcParams)
    ax = draw(*given)
    assert isinstance(ax, Axes)
    assert ax.get_title("left")
    assert len(figure_output(ax)["metadata"]["benchlib"]["csv"].splitlines()) > 1
    _, own = plt.subplots()
    assert draw(*given, ax=own) is own
    assert own.has_data()
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(("draw", "given"), [*ON_AXES, *FIGURES], ids=named)
def test_of_nothing_an_empty_chart_is_drawn(draw, given):
    frame, *rest = given
    assert isinstance(draw(frame.iloc[:0], *rest), Figure if (draw, given) in FIGURES else Axes)


def test_panels_show_the_columns_that_are_there():
    figure = plot.panels(SECONDS, COLUMNS)
    assert [ax.get_title("left") for ax in figure.axes if ax.get_visible()] == ["a", "b"]


def bold(ax):
    return {text.get_text() for text in ax.texts if text.get_fontweight() == "bold"}


def test_a_grid_is_a_matrix_in_which_what_is_shown_to_differ_is_bold_and_a_survey_is_pale_elsewhere():
    assert bold(plot.heat(GRID, DESIGN).axes[0]) == {"+20.0\u00a0%", "+5.0\u00a0%"}
    surveyed = GRID.assign(verdict=["stands out", "inconclusive", "inconclusive"])
    surveyed.attrs = {"warnings": [{"code": "survey"}]}
    ax = plot.heat(surveyed, DESIGN).axes[0]
    assert bold(ax) == {"+5.0\u00a0%"}
    shades = np.abs(ax.collections[0].get_array()).flatten()
    assert shades.argmax() == 1  # not the cell with +20 %


def test_a_grid_with_gaps_keeps_the_order_of_its_parameters():
    design = pd.DataFrame({"load": list("aabb"), "version": ["16", "18", "16", "17"]}, index=list("wxyz"))
    design.attrs["order"] = {"version": ["16", "17", "18"]}
    rows = GRID[:2].assign(level=["x", "z"], against=["w", "y"])
    ax = plot.heat(rows, design).axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()][:3] == ["16", "17", "18"]
    ax = plot.multiples(rows, design).axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["16", "17", "18"]


def test_small_multiples_have_a_panel_for_each_row_of_the_grid():
    figure = plot.multiples(GRID, DESIGN)
    assert [ax.get_title("left") for ax in figure.axes if ax.get_visible()] == ["slow", "fast"]


def test_the_numbers_of_a_figure_hold_no_formula():
    ax = plot.trials(TRIALS.assign(level="=1+1"))
    assert "'=1+1" in figure_output(ax)["metadata"]["benchlib"]["csv"]


def test_readings_without_a_lag_are_counted_in_the_caption():
    assert "Not shown: 1 of 4 readings" in plot.lag(LAG).get_figure().benchlib["caption"]


def test_large_changes_are_drawn_as_factors_and_invalid_ones_move_no_axis():
    large = EFFECTS.assign(percent_change=900.0, ci_low=800.0, ci_high=999.0)
    assert plot.effects(large).get_xscale() == "log"
    assert plot.effects(large.assign(verdict="invalid")).get_xscale() == "linear"


def test_a_figure_has_words_for_those_who_do_not_see_it_and_follows_a_dark_page():
    ax = plot.effects(EFFECTS)
    ax.set_title("My own title", loc="left")
    shown = figure_output(ax)
    svg, about = shown["data"]["image/svg+xml"], shown["metadata"]["benchlib"]
    assert about["title"] == "My own title"
    assert "level tuned" in about["alt"]
    assert "screen and (prefers-color-scheme:dark)" in svg
    assert svg == figure_output(ax)["data"]["image/svg+xml"], "the same each time"


def test_a_timeline_has_a_panel_for_each_sample_of_the_study():
    seconds = SECONDS.assign(**{"wal.bytes_per_s": 5.0, "locks.n": np.nan})
    figure = plot.timeline(seconds).get_figure()
    assert [ax.get_ylabel() for ax in figure.axes] == ["throughput, tps", "wal.bytes_per_s"]
    assert [ax.get_title("left") for ax in figure.axes] == ["Throughput over time", ""]
