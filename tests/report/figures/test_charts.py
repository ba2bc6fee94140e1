"""What each chart draws of which frame, and what it says where data are missing."""

import dataclasses
import re
from types import SimpleNamespace

import cases
import numpy as np
import pandas as pd
import pytest
from benchlib.report.figures.changes import card, forest, half_normal, index_panels, shares, waterfall
from benchlib.report.figures.frames import amount, change_words, finding, signed, wrapped
from benchlib.report.figures.layout import change_axis, log_axis, panels, tick_words
from benchlib.report.figures.over_time import (
    device_panels,
    drift,
    timeline,
    waits_by_level,
)
from benchlib.report.figures.responses import change_by_clients, client_sweep, quantile_ladder
from benchlib.report.figures.style import DARK, LIGHT, MARKS, mark_of
from bs4 import BeautifulSoup
from designs import full_factorial
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure as Drawing

from benchlib.stats.crossed import effects, ladder

LEVELS = ["defaults", "control", "tuned"]


def marks(figure):
    """What each mark says."""
    soup = BeautifulSoup(figure.svg, "html.parser")
    return [mark.find("title").get_text().replace("\u00a0", " ") for mark in soup.select(".bl-mark")]


def words(figure):
    return BeautifulSoup(figure.svg, "html.parser").get_text("|").replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (signed(38.24), "+38.2\u00a0%"),
        (signed(-0.42), "−0.4\u00a0%"),
        (signed(-0.01), "0.0\u00a0%"),
        (signed(2420.4), "25.2\u00a0×"),
        (amount(1234.5), "1,234"),
        (amount(float("nan")), "–"),
        (tick_words(-90), "−90"),
        (tick_words(0), "0"),
        (wrapped("only checkpoint_completion_target"), ["only", "checkpoint_completion_target"]),
    ],
)
def test_numbers_and_names_in_words(written, words):
    assert written == words


@settings(max_examples=25)
@given(st.lists(st.floats(0.001, 1e3), max_size=6))
def test_an_axis_of_changes_shows_all_of_them_and_none(factors):
    axes = Drawing().subplots()
    title = change_axis(axes, "x", factors)
    low, high = axes.get_xlim()
    assert all(low <= factor <= high for factor in [1.0, *factors])
    assert ("log" in title) == (max([1, *factors]) > 5 * min([1, *factors]))
    assert "log" in title or 1 in axes.get_xticks().round(9)


@pytest.mark.parametrize(("low", "high"), [(0.02, 0.09), (0.9, 1.1), (2, 41), (1, 900), (0.001, 1e6)])
def test_ticks_of_a_log_axis_are_few(low, high):
    axes = Drawing().subplots()
    log_axis(axes, "y", low, high)
    bottom, top = axes.get_ylim()
    assert bottom <= low < high <= top
    assert 2 <= sum(bottom <= tick <= top for tick in axes.get_yticks()) <= 6


@pytest.mark.parametrize(("low", "high"), [(0.15, 4.7), (0.3, 8), (1.1, 90), (0.02, 900)])
def test_a_narrow_log_axis_has_more_than_one_tick(low, high):
    axes = Drawing().add_axes((0.4, 0.1, 0.1, 0.8))
    log_axis(axes, "x", low, high)
    left, right = axes.get_xlim()
    assert 2 <= sum(left <= tick <= right for tick in axes.get_xticks()) <= 6


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


def test_what_is_shaded_is_seen():
    for palette in (LIGHT, DARK):
        low, high = sorted((luminance(palette["band"]), luminance(palette["paper"])))
        assert (high + 0.05) / (low + 0.05) >= 1.25


def test_a_title_has_what_there_is_room_for():
    assert finding("a" * 80, "; b" * 4, "; c") == "a" * 80 + "; c"
    figure = drift(cases.make_trials({"defaults": 0}).assign(**{"word " * 30: 1.0}), "word " * 30)
    assert len(figure.title) <= 90


def test_a_forest_tells_its_answer_and_says_each_row_where_one_points(analysis):
    figure = forest(
        analysis, durability={"tuned": "the last commits", "absent": "nothing"}, words={"tuned": "the set"}
    )
    row = analysis.table.set_index("level").loc["tuned"]
    title = f"The set: {change_words(row)} throughput, faster (against defaults)"
    assert figure.title == title.replace("\u00a0", " ")
    change = signed(row["percent_change"]).replace("\u00a0", " ")
    assert f"tuned† the set: {change}, 117." in " ".join(marks(figure))
    assert figure.caption.endswith("† gives up durability.")
    assert "absent" not in figure.alt + figure.caption
    for text in ("tuned†", "control (baseline once more)", "|faster", change):
        assert text in words(figure)
    assert figure.numbers.set_index("level").loc["tuned", "percent_change"] == row["percent_change"]
    assert forest(analysis).title.startswith("Tuned, synchronous_commit on: +3")


def test_a_forest_claims_nothing_of_what_is_invalid(analysis):
    table = analysis.table.assign(verdict="invalid")
    title = forest(dataclasses.replace(analysis, table=table)).title
    assert title == "Tuned, synchronous_commit on: invalid (against defaults)"


def test_what_is_invalid_and_far_off_leaves_the_axis_to_what_is_to_be_believed(analysis):
    table = analysis.table.set_index("level")
    table.loc["tuned", ["percent_change", "ci_low", "ci_high", "verdict"]] = [1e5, 9e4, 1.1e5, "invalid"]
    figure = forest(dataclasses.replace(analysis, table=table.reset_index()[[*analysis.table]]))
    assert figure.caption.endswith("Invalid, and too far off to be drawn: “tuned”.")
    assert "1,001 ×" in words(figure), "the row itself says what was found"
    assert "100 ×" not in words(figure).split("|"), "the axis ends where the others do"


def test_shares_are_sorted_by_what_each_gives_alone():
    changes = {"defaults": 0, "tuned": 95, "only a": 5, "only b": 30, "without a": 80}
    figure = shares(cases.judged(cases.make_trials(changes)), full="tuned")
    assert figure.numbers["level"].tolist() == ["tuned", "only b", "only a", "without a"]
    assert figure.title.startswith("What “tuned” is made of; tuned: +9")


def test_shares_of_a_latency_begin_with_what_lowers_it_most():
    changes = {"defaults": 0, "tuned": -35, "only a": -5, "only b": -30, "only c": 8}
    trials = cases.make_trials(changes)
    trials = trials.assign(latency_average_ms=trials["tps"])
    figure = shares(cases.judged(trials, metric="latency_average_ms"), full="tuned")
    assert figure.numbers["level"].tolist() == ["tuned", "only b", "only a", "only c"]


def entry(title, panel, *answers, better=True):
    names = ("words", "against", "percent_change", "ci_low", "ci_high", "verdict", "gives_up")
    made = [SimpleNamespace(**dict(zip(names, answer, strict=True))) for answer in answers]
    return SimpleNamespace(title=title, question="?", panel=panel, higher_is_better=better, answers=made)


ENTRIES = [
    entry("Planner", "changes", ("no nested loops", "defaults", None, None, None, "invalid", "")),
    entry("Version", "changes", ("18", "17", -40.0, -50.0, -20.0, "faster", ""), better=False),
    entry("Durability", "costs", ("fsync off", "on", 90.0, 80.0, 101.0, "faster", "all"), ("sync", "on", 0.2, -2.0, 2.4, "equivalent", "")),
    entry("Storage", "hardware", ("faster disk", "slower disk", 5600, 3500, 9000, "faster", "")),
]  # fmt: skip


def test_the_index_has_three_panels_of_factors_with_better_on_the_right():
    figure = index_panels(ENTRIES)
    order = (
        "Changes you can make",
        "Planner: no nested loops",
        "Version: 18",
        "Costs you accept",
        "fsync off†",
        "What hardware",
    )
    places = [words(figure).index(name) for name in order]
    assert places == sorted(places)
    rows = figure.numbers.set_index("words")
    assert rows.loc["18", ["value", "low", "high"]].tolist() == pytest.approx([1 / 0.6, 1 / 0.8, 2])
    for text in ("|57\u00a0×|", "|−40\u00a0%|", "|no verdict|", "|1\u00a0×|", "|10\u00a0×|"):
        assert text.replace("\u00a0", " ") in words(figure)
    assert rows.loc["no nested loops", ["value", "low", "high"]].isna().all()
    assert figure.title == "Of 5 answers: 3 faster, 1 equivalent, 1 invalid"


@pytest.mark.parametrize("of", [*ENTRIES, entry("Nothing", "changes")], ids=lambda of: of.title)
def test_a_card_is_a_small_picture(of):
    picture = card(of)
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (1200, 630)
    assert len(picture) < 120_000


def test_a_card_is_the_same_each_time():
    assert card(ENTRIES[0]) == card(ENTRIES[0])


def test_a_timeline_keeps_the_order_and_marks_checkpoints(trials):
    rows = [("tuned", 1, 2.0, 5.0), ("tuned", 2, np.nan, 1.5), ("control", 1, 11.0, np.nan)]
    checkpoints = pd.DataFrame(rows, columns=["level", "block", "start_s", "end_s"])
    progress = cases.make_progress(trials)
    figure = timeline(progress, levels=["tuned", "control", "unheard of"], title="?", checkpoints=checkpoints)
    assert words(figure).index("tuned") < words(figure).index("control")
    assert "no readings" in words(figure)
    assert set(figure.numbers["level"]) == {"defaults", "control", "tuned", "tuned, synchronous_commit on"}
    without = timeline(progress, levels=["tuned"], title="too short", checkpoints=checkpoints.head(0))
    assert without.title == "Too short"
    assert "checkpoint" not in without.caption
    assert "no readings" in words(timeline(progress.assign(tps=np.nan), levels=["tuned"], title="?"))


def test_the_drift_says_how_far_the_host_moved():
    trials = cases.make_trials({"defaults": 0, "tuned": 20}, blocks=50, failed={(2, "tuned")})
    figure = drift(trials, "tps")
    assert re.fullmatch(
        r"Throughput of all levels moved by −\d+\.\d % to \+\d+\.\d % between blocks",
        figure.title.replace("\u00a0", " "),
    )
    assert "|49|" in words(figure)
    assert "|50|" not in words(figure)  # only as many numbers as there is room for
    assert len(figure.numbers) == 99
    assert "does not tell" in drift(trials.query("block == 1"), "tps").title


def test_hosts_of_other_speeds_are_no_drift():
    trials = cases.make_trials({"defaults": 0, "tuned": 20}, blocks=6)
    moved = [drift(trials.assign(host=None), "tps"), drift(trials.assign(host="one"), "tps")]
    assert moved[0].title == moved[1].title
    odd = trials["block"] % 2 == 1
    apart = trials.assign(
        host=odd.map({True: "a", False: "b"}), tps=trials["tps"].where(odd, 3 * trials["tps"])
    )
    far = max(map(abs, drift(apart, "tps").numbers["percent"]))
    assert far < 30, "each against its own host's mean"
    assert drift(apart, "tps").numbers["block"].to_list()[:6] == [1, 1, 3, 3, 5, 5]


def test_waits_gather_the_rare_and_say_what_was_not_sampled():
    figure = waits_by_level(cases.make_waits(LEVELS[:2]), LEVELS)
    assert re.fullmatch(r"At “defaults” \d\d % of sessions wait for IO: WALSync", figure.title)
    assert re.search(r"defaults: IO: WALSync [45]\.\d+, .*on the CPU 0\.\d+, .*other 0\.\d", marks(figure)[0])
    assert "IPC: ProcArrayGroupUpdate" not in words(figure)
    assert "not sampled" in words(figure)


def test_sessions_that_all_have_a_processor_are_no_figure():
    busy = cases.make_waits(LEVELS[:2], events={"CPU": 4.0, "IO: WALSync": 0.01})
    assert waits_by_level(busy, LEVELS[:2]) is None


def test_each_trial_weighs_the_same_however_long_it_was():
    short = pd.DataFrame({"level": "a", "block": 1, "second": [1.0], "CPU": [4.0], "IO: WALSync": 4.0})
    long = pd.DataFrame(
        {"level": "a", "block": 2, "second": np.arange(1.0, 10), "CPU": 1.0, "IO: WALSync": 4.0}
    )
    assert "on the CPU 2.5" in waits_by_level(pd.concat([short, long]), ["a"]).alt


def test_devices_tell_what_differs_and_have_no_panel_of_what_was_hardly_read(trials):
    waits = cases.make_waits(LEVELS, events=cases.EVENTS | {"IO: WALSync": 0.0, "LWLock: WALWrite": 0.0})
    seconds = cases.make_seconds(LEVELS)
    seconds.loc[seconds["level"] == "tuned", "aqu_sz"] *= 40
    seconds.loc[0, "r_await_ms"] = 3.0
    figure = device_panels(cases.make_progress(trials, 12), seconds, waits, LEVELS, "A note.")
    assert words(figure).count("log scale") == 1  # of the queue
    assert "r_await" not in words(figure)
    assert "w_await" in words(figure)
    assert re.match(
        r"Differs most, queue length: \d+.* \((defaults|control)\) to \d+.* \(tuned\)", figure.title
    )
    pair = device_panels(
        cases.make_progress(trials, 12), seconds, waits, LEVELS, pair=("defaults", "control")
    )
    assert "tuned" not in pair.title
    assert figure.caption.endswith("A note.")
    assert len(figure.numbers) <= 400
    seconds["network_mib_s"] = np.nan  # as where a server is reached without a network
    progress = cases.make_progress(trials, 12)
    charted = device_panels(progress, seconds, waits, LEVELS, figures=["network_mib_s", "connections"])
    assert "Connections" in words(charted)
    assert "Network" not in words(charted)
    assert device_panels(progress, seconds, waits, LEVELS, figures=["network_mib_s"]) is None
    seconds.loc[seconds["second"] == 5, "aqu_sz"] = 0.0
    assert "log scale" not in words(device_panels(progress, seconds, waits, LEVELS)), "0 would vanish from it"


def test_a_second_that_few_trials_of_a_level_have_is_no_fall_and_a_longer_level_stays_whole(trials):
    seconds, waits = cases.make_seconds(LEVELS), cases.make_waits(LEVELS, events=cases.EVENTS)
    last, first = seconds["second"].max(), seconds["block"].min()
    stray = seconds[
        (seconds["second"] == last) & (seconds["block"] == first) & (seconds["level"] == LEVELS[0])
    ]
    longer = seconds[(seconds["second"] == last) & (seconds["level"] == LEVELS[1])]
    seconds = pd.concat([seconds, stray.assign(second=last + 1), longer.assign(second=last + 1)])
    numbers = device_panels(cases.make_progress(trials, 1), seconds, waits, LEVELS).numbers
    ends = numbers.groupby("level")["second"].max()
    assert ends[LEVELS[1]] == ends[LEVELS[0]] + 1 == last + 1


def test_quantiles_and_sweeps_say_their_numbers_and_which_levels_have_none():
    figure = quantile_ladder(cases.make_quantiles(["defaults", "slow"]), ["defaults", "slow", "tuned"])
    assert re.fullmatch(r"Latency, p99: \d+(\.\d+)? ms \(defaults\) to \d+(\.\d+)? ms \(slow\)", figure.title)
    assert re.match(r"defaults quantile p50: [34]\.\d+ \(.* to .*\)", marks(figure)[0])
    trials = cases.make_sweep(["slow", "fast"], [8, 16, 32])
    figure = client_sweep(trials)
    assert re.fullmatch(
        r"Throughput, 8 to 32 clients: [\d,.]+ to [\d,.]+ tps \(slow\), [\d,.]+ to [\d,.]+ tps \(fast\)",
        figure.title,
    )
    assert re.match(r"slow clients 8: 1,\d{3} \(", marks(figure)[0])
    trials.loc[trials["level"] == "slow", "tps"] /= 10
    assert "log scale" in words(client_sweep(trials, name="reads"))
    trials.loc[trials["level"] == "fast", ["tps", "error"]] = [np.nan, "gone"]
    assert re.fullmatch(
        r"Throughput of reads, 8 to 32 clients: [\d,.]+ to [\d,.]+ tps \(slow\)",
        client_sweep(trials, name="reads").title,
    )


def test_what_a_change_brings_is_told_by_clients(analysis):
    rows = [("read/write", 8, 167.0, 150.0, 190.0, "slow disk"), ("read/write", 32, 127.0, 110.0, 140.0, "slow disk"),
            ("read-only", 8, 193.0, 170.0, 220.0, "slow disk"), ("read-only", 32, 325.0, 300.0, 350.0, "slow disk")]  # fmt: skip
    changes = pd.DataFrame(rows, columns=["series", "x", "value", "low", "high", "against"])
    figure = change_by_clients(changes, analysis)
    assert figure.title.replace("\u00a0", " ") == "Read/write: +127 % to +167 %; read-only: +193 % to +325 %"
    assert "Against slow disk with as many clients" in figure.caption
    assert marks(figure)[0].replace("\u00a0", " ") == "read/write clients 8: +167.0 % (+150.0 % to +190.0 %)"


def test_effects_are_beside_what_noise_would_give():
    design = full_factorial(["a", "b", "c"])
    trials = cases.crossed(design, {"a": 0.4, "b": -0.6, "a × b": 0.2})
    table = effects(trials, design)
    figure = half_normal(table)
    assert re.match(r"3 of 6 effects stand out of the noise, most b: −4\d", figure.title)
    assert re.search(r" b: −4\d\.\d %.*slower; a: \+4\d", figure.alt)
    assert "no error" in half_normal(table.assign(noise=np.nan)).caption


def test_a_ladder_adds_up_to_its_last_row():
    steps = ["base", "one", "two"]
    figure = waterfall(ladder(cases.climb(steps, [20, -50]), steps), start="base")
    assert re.match(
        r"All 2 steps: −(39|40)\.\d\s% \(.* to .*\) throughput, slower; 2 of 2 steps significant",
        figure.title,
    )
    assert re.search(
        r"one so far \+(19|20)\.\d %: \+(19|20)\.\d %.*faster; two so far −(39|40)\.\d %: −(49|50)\.\d %",
        figure.alt,
    )
    assert "all" not in words(waterfall(ladder(cases.climb(steps[:2], [20]), steps[:2])))
