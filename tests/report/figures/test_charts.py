"""What each chart draws of which frame, and what it says where data are missing."""

import re
from itertools import pairwise

import cases
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from designs import full_factorial
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Drawing

from benchlib.report import figures as f
from benchlib.report.figures.frames import amount, interval, signed, wrapped
from benchlib.report.figures.layout import panels, percent_axis, round_values, tick_words
from benchlib.report.figures.style import DARK, LIGHT, MARKS, mark_of, verdict_word
from benchlib.stats.crossed import effects, interaction_means
from benchlib.stats.ladder import ladder

LEVELS = ["defaults", "control", "tuned"]


def words(figure):
    return BeautifulSoup(figure.svg, "html.parser").get_text("|").replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (signed(38.24), "+38.2\u00a0%"),
        (signed(-0.42), "−0.4\u00a0%"),
        (signed(-0.01), "0.0\u00a0%"),
        (signed(2420.4), "+2,420\u00a0%"),
        (interval(-3.06, 12), "[−3.1, 12.0]"),
        (amount(1234.5), "1,234"),
        (amount(float("nan")), "–"),
        (tick_words(-90), "−90"),
        (tick_words(0), "0"),
        (wrapped("only checkpoint_completion_target"), ["only", "checkpoint_completion_target"]),
        (verdict_word("meaningfully faster"), "faster"),
    ],
)
def test_numbers_and_names_in_words(written, words):
    assert written == words


@given(st.lists(st.floats(-100, 1e5), max_size=6))
def test_an_axis_of_changes_shows_all_of_them_and_zero(percents):
    axes = Drawing().subplots()
    title = percent_axis(axes, "x", percents)
    low, high = axes.get_xlim()
    assert all(low <= max(percent, -99.9) <= high for percent in [0.0, *percents])
    assert ("log" in title) == (max(percents, default=0) > 250 or min(percents, default=0) < -80)
    assert 0 in axes.get_xticks().round(9)


@pytest.mark.parametrize(("low", "high"), [(0.02, 0.09), (0.9, 1.1), (1, 900), (0.001, 1e6)])
def test_ticks_of_a_log_axis_are_few_and_inside(low, high):
    ticks = round_values(low, high, 8)
    assert 2 <= len(ticks) <= 10
    assert all(a < b for a, b in pairwise([low * 0.999, *ticks, high * 1.001]))


def test_panels_above_a_gap_in_the_last_row_have_tick_labels():
    _, grid = panels([(name, "") for name in "abcde"], 100)
    labelled = [axes.xaxis.get_tick_params()["labelbottom"] for axes in grid]
    assert labelled == [False, False, True, True, True]


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(set(LIGHT) - {"grid", "band", "paper"}))
def test_every_colour_of_text_is_readable(palette, name):
    for ground in ("paper", "band"):
        low, high = sorted((luminance(palette[name]), luminance(palette[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_verdicts_differ_by_shape_as_well():
    assert len({mark.marker for mark in MARKS.values()}) == len(MARKS)
    assert mark_of("never heard") == mark_of(float("nan"))


def test_a_forest_says_its_numbers(analysis):
    figure = f.forest(analysis, durability={"tuned": "the last commits", "absent": "nothing"})
    row = analysis.table.set_index("level").loc["tuned"]
    assert f"tuned†: {signed(row['percent_change'], unit=' %')}, [" in figure.alt
    assert "gives up durability: tuned – the last commits" in figure.caption
    assert "absent" not in figure.alt + figure.caption
    for text in ("tuned†", "control (A/A control)", "|faster", signed(row["percent_change"], unit=" %")):
        assert text in words(figure)
    assert "±3 %" in figure.caption


def test_shares_are_sorted_by_what_each_gives_alone():
    changes = {"defaults": 0, "tuned": 95, "only a": 5, "only b": 30, "without a": 80}
    figure = f.shares(cases.judged(cases.make_trials(changes)), full="tuned")
    assert words(figure).index("|b|") < words(figure).index("|a|")
    assert "where tuned +" in figure.alt
    assert re.search(r"b: \+3.* alone, – all others; a: \+\d.* alone, \+\d.* all others", figure.alt)


def test_pairs_say_the_range_of_the_differences_and_the_failures():
    trials = cases.make_trials({"defaults": 0, "tuned": 118}, failed={(2, "tuned")})
    figure = f.paired_blocks(cases.judged(trials), trials)
    assert re.search(r"inside the blocks: tuned 11\d\.\d to 12\d.*, median 1", figure.alt)
    assert "Failed trials: 1 of tuned." in figure.caption
    assert "1 failed" in words(figure)


def test_the_summary_has_every_study_in_order_and_what_it_is_judged_by():
    rows = [cases.make_study("a", 812.4, rank=1, half=150, loss="the latest commits"), cases.make_study("a-2", 790.0, further=True),
            cases.make_study("b", 66.7, rank=2, metric="p99 latency", percent_change=-40.0), cases.make_study("c", 3.1, "inconclusive", margin=0.05)]  # fmt: skip
    figure = f.summary_forest(pd.DataFrame(rows))
    places = [words(figure).index(name) for name in ("1. A†", "a-2", "2. B", "|C|")]
    assert places == sorted(places)
    assert "1. A† tuned against defaults: +812.4 %, [662.4, 962.4], faster" in figure.alt
    assert "p99 latency −40.0 %" in words(figure).replace("|", " ")
    assert "half as much counts as +100 %" in figure.caption
    assert "Shaded" not in figure.caption  # margins that differ


def test_a_timeline_keeps_the_order_and_marks_checkpoints(trials):
    rows = [("tuned", 1, 2.0, 5.0), ("tuned", 2, np.nan, 1.5), ("control", 1, 11.0, np.nan)]
    checkpoints = pd.DataFrame(rows, columns=["level", "block", "start_s", "end_s"])
    progress = cases.make_progress(trials)
    figure = f.timeline(progress, levels=["tuned", "control", "unheard of"], checkpoints=checkpoints)
    assert words(figure).index("tuned") < words(figure).index("control")
    assert "no readings" in words(figure)
    assert re.search(r"tuned \(median .*: 2 checkpoints\. control .*: 1 checkpoints\.", figure.alt)
    assert (
        "No checkpoint was written"
        in f.timeline(progress, levels=["tuned"], checkpoints=checkpoints.head(0)).caption
    )
    assert "tuned (no readings)" in f.timeline(progress.assign(tps=np.nan), levels=["tuned"]).alt
    assert "% of the level's mean" in f.timeline(progress, levels=["tuned"], relative=True).alt


def test_drift_gives_block_means_and_works_without_a_clock(trials):
    assert re.search(
        r"block means block 1 = −?\d+\.\d+, block 2 = ",
        f.drift(trials, "tps", [*LEVELS, "tuned, synchronous_commit on"]).alt,
    )
    failed = trials.assign(tps=np.nan, error="gone").drop(columns="started_s")
    assert "in the order they were run" in words(f.drift(failed, "tps", LEVELS))
    assert "a failed trial (20)" in f.drift(failed, "tps", LEVELS).caption


def test_waits_gather_the_rare_and_say_what_was_not_sampled():
    figure = f.waits_by_level(cases.make_waits(LEVELS[:2]), LEVELS)
    assert re.search(
        r"defaults on the CPU = 0\.\d+, IO: WALSync = [45]\.?\d*, .*other = 0\.0[123]", figure.alt
    )
    assert "IPC: ProcArrayGroupUpdate" not in words(figure)
    assert "tuned not measured" in figure.alt
    assert "not sampled" in words(figure)
    assert "not sampled" in words(f.waits_over_time(cases.make_waits(LEVELS[:2]), LEVELS))
    long = f.waits_over_time(cases.make_waits(LEVELS[:1], blocks=1, seconds=600), LEVELS[:1])
    assert "in spans of 10 s" in long.caption


def test_each_trial_weighs_the_same_however_long_it_was():
    short = pd.DataFrame({"level": "a", "block": 1, "second": [1.0], "CPU": [4.0]})
    long = pd.DataFrame({"level": "a", "block": 2, "second": np.arange(1.0, 10), "CPU": 1.0})
    assert "on the CPU = 2.5" in f.waits_by_level(pd.concat([short, long]), ["a"]).alt


def test_devices_say_their_numbers_and_what_is_empty(trials):
    waits = cases.make_waits(LEVELS, events=cases.EVENTS | {"IO: WALSync": 0.0, "LWLock: WALWrite": 0.0})
    figure = f.device_panels(
        cases.make_progress(trials, 12), cases.make_seconds(LEVELS), waits, LEVELS, "A note.", relative=True
    )
    assert "% of the level's mean" in words(figure)
    assert "r_await, ms: nothing was read" in words(figure)
    assert re.search(r"Queue length \(aqu_sz, requests\): defaults 1\d\.\d+ to \d", figure.alt)
    assert "DBMS waits (sessions that wait): defaults 0;" in figure.alt  # nobody idle or on the CPU waits
    assert figure.caption.endswith("A note.")
    unknown = cases.make_seconds(LEVELS)
    unknown[unknown.columns[3:]] = np.nan
    figure = f.device_panels(cases.make_progress(trials, 12), unknown, waits, LEVELS)
    assert "Queue length (aqu_sz, requests: not recorded)" in figure.alt


def test_a_lag_that_is_not_known_is_a_gap_and_said():
    lags = cases.make_lags(["a", "b"])
    figure = f.lag_over_time(lags, ["a", "b", "c"])
    assert re.search(
        r"a \(time, ms: [\d.]+, at most [\d.]+; 3 of 39 not known\): written [\d.]+ to [\d.]+", figure.alt
    )
    assert "c (time, ms: not known): written not measured" in figure.alt


def test_latencies_over_time_of_trials_of_other_lengths():
    found = cases.make_latencies(["a"], blocks=1) | {
        ("a", 2): cases.make_latencies(["x"], blocks=1, seconds=7)["x", 1]
    }
    found["a", 1].counts[:, 0] = 20
    figure = f.latency_over_time(found, ["a", "b"])
    assert re.search(r"over 30 seconds.*a \(2 trials\): 50% below [3456](\.\d+)?, 99% below", figure.alt)
    assert "no log was kept" in words(figure)
    assert "Not shown: 0.8 % that pgbench logged" in figure.caption
    assert "data:image/png" in figure.svg  # dense marks are a raster
    long = f.latency_over_time(cases.make_latencies(["a"], blocks=1, seconds=600), ["a"])
    assert "in those 13 seconds" in long.caption


def test_quantiles_and_sweeps_say_their_numbers_and_levels_without_any():
    figure = f.quantile_ladder(cases.make_quantiles(["defaults"]), ["defaults", "tuned"])
    assert re.search(
        r"defaults p50 = [34]\.\d+ \(.*\), p95 = .* p99\.9 = \d+\.\d+ .*; tuned not measured", figure.alt
    )
    trials = cases.make_sweep(["slow", "fast"], [8, 16, 32])
    trials.loc[trials["level"] == "fast", ["tps", "error"]] = [np.nan, "gone"]
    figure = f.client_sweep(trials)
    assert re.search(
        r"tps by number of clients.* slow 8 = 1,\d{3} \(.*, 16 = .*fast not measured", figure.alt
    )


def test_commits_beyond_what_can_be_flushed_are_implausible():
    figure = f.flush_rates(cases.make_rates(), cases.make_commits())
    assert "defaults one client: at most 80.3: 169.4, [132, 217.4]" in figure.alt
    assert "no wait no flush limits it: 2,990, [" in figure.alt
    assert figure.alt.count("implausible") == 1
    assert "✕ 2,990" in words(figure)
    assert "fdatasync (in use): 80.3; open_sync: 39.1" in figure.alt


def test_effects_are_beside_what_noise_would_give_and_meet_in_pairs():
    design = full_factorial(["a", "b", "c"])
    trials = cases.crossed(design, {"a": 0.4, "b": -0.6, "a × b": 0.2})
    table = effects(trials, design)
    figure = f.half_normal(table)
    assert re.search(
        r"6 effects on throughput, the largest first.* b: −4\d\.\d %.*slower; a: \+4\d", figure.alt
    )
    assert "the largest would reach +" in figure.caption
    assert "no error" in f.half_normal(table.assign(noise=np.nan)).caption
    means = interaction_means(trials, design, "a", "b", effects=table)
    figure = f.interaction([means], effects=table, changes={"a": ("128MB", "2GB")})
    assert re.search(
        r"a × b \(interaction \+2\d\.\d.*\): b low a 128MB = 1,\d{3} \([\d,]+ to [\d,]+\), a 2GB = ",
        figure.alt,
    )
    other = interaction_means(trials, design, "b", "c", effects=table)
    drawn = words(f.interaction([means, other], effects=table, changes={"a": ("128MB", "2GB")}))
    assert all(f"|{end}|" in drawn for end in ("128MB", "2GB", "low", "high"))  # each panel its own factor's


def test_a_ladder_adds_up_to_its_last_row():
    steps = ["base", "one", "two"]
    figure = f.waterfall(ladder(cases.climb(steps, [20, -50]), steps), start="base")
    assert re.search(
        r"one: \+(19|20)\.\d % step.*faster, \+(19|20)\.\d % so far.*; two: −(49|50)\.\d %.*−(39|40)\.\d % so far",
        figure.alt,
    )
    assert "all 2 steps" in words(figure)
    assert "all" not in words(f.waterfall(ladder(cases.climb(steps[:2], [20]), steps[:2])))
