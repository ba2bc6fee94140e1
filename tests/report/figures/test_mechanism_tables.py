"""Tables of why: what a transaction cost, with the change, and what moved with the waits."""

import numpy as np
import pandas as pd
import pytest
from benchlib.report.figures.mechanism import correlation_table, costs_table
from benchlib.report.figures.tables import mean_words
from bs4 import BeautifulSoup
from cases import make_seconds, make_waits

from benchlib.stats.strata import exploratory

LEVELS = ["defaults", "control", "tuned"]


def make_costs(blocks=5):
    random = np.random.default_rng(8)
    rows = []
    for block in range(blocks):
        host = np.exp(random.normal(0, 0.3))
        for level in LEVELS:
            cpu = 0.5 * host * (0.5 if level == "tuned" else 1) * np.exp(random.normal(0, 0.01))
            rows.append((level, block, cpu, 100 * np.exp(random.normal(0, 0.2)), 1.0 * (block > 1), np.nan))
    names = [
        "server_cpu_ms_per_transaction",
        "wal_bytes_per_transaction",
        "checkpoints",
        "read_kib_per_transaction",
    ]
    return pd.DataFrame(rows, columns=["level", "block", *names])


def table_of(costs, note=""):
    changes = exploratory(costs, dict.fromkeys(LEVELS, "one"), baseline="defaults", controls=("control",))
    return costs_table(costs, LEVELS, changes, against="defaults", note=note)


def cells(table):
    body = BeautifulSoup(table.html, "html.parser")
    heads = [th.get_text() for th in body.thead.find_all("th")]
    rows = {
        row.th.get_text(): [td.get_text() for td in row.find_all("td")] for row in body.tbody.find_all("tr")
    }
    return heads, rows, body


def test_costs_have_mean_deviation_and_the_change_inside_blocks():
    costs = make_costs()
    heads, rows, body = cells(table_of(costs, note="The end."))
    assert heads == ["figure", *LEVELS]
    values = costs.loc[costs["level"] == "tuned", "server_cpu_ms_per_transaction"]
    said, change = rows["Server CPU, ms"][2].split("\n")
    assert said == mean_words(values.mean(), values.std())
    assert change in (
        "−49.9\u00a0%*",
        "−50.0\u00a0%*",
        "−50.1\u00a0%*",
        "−49.8\u00a0%*",
        "−50.2\u00a0%*",
        "−50.3\u00a0%*",
        "−49.7\u00a0%*",
    )
    assert "*" not in rows["WAL, B"][2]
    assert "\n" not in rows["Server CPU, ms"][0] + rows["Server CPU, ms"][1]
    note = body.find(class_="bl-note").get_text()
    assert "the change, of geometric means inside blocks, against defaults" in note
    assert note.endswith("The end.")


def test_a_figure_that_is_0_in_a_trial_has_no_change():
    rows = cells(table_of(make_costs()))[1]
    assert rows["Checkpoints per trial"] == ["0.60 ± 0.55"] * 3


def test_a_level_without_a_good_trial_is_not_measured_and_the_others_are():
    costs = make_costs().query("level != 'tuned'")
    rows = cells(table_of(costs))[1]
    assert rows["Server CPU, ms"][2] == "–"
    assert "±" in rows["Server CPU, ms"][0]


def test_a_figure_that_some_trials_lack_has_no_change():
    costs = make_costs()
    costs.loc[(costs["level"] == "control") & (costs["block"] == 1), "server_cpu_ms_per_transaction"] = np.nan
    rows = cells(table_of(costs))[1]
    assert "\n" not in rows["Server CPU, ms"][2]


@pytest.mark.parametrize(
    ("mean", "deviation", "wanted"),
    [
        (0.012345, 0.000678, "0.01235 ± 0.00068"),
        (12345.6, 234.0, "12,346 ± 234"),
        (5.0, 0.0, "5"),
        (5.25, float("nan"), "5.25"),
        (1234.5, float("nan"), "1,234"),
        (0.5, 0.25, "0.50 ± 0.25"),
    ],
)
def test_a_deviation_has_two_digits_and_the_mean_as_many_places(mean, deviation, wanted):
    assert mean_words(mean, deviation) == wanted


def progress_of(seconds):
    return seconds.rename(columns={"second": "elapsed_s"})[["level", "block", "elapsed_s"]].assign(tps=5.0)


def test_correlations_have_their_sign_and_the_number_of_seconds():
    seconds, waits = make_seconds(LEVELS, seconds=20), make_waits(LEVELS, seconds=20)
    waits["IO: WALSync"] = 1 + seconds["aqu_sz"]
    waits["LWLock: WALWrite"] = 100 - seconds["aqu_sz"]
    heads, rows, body = cells(correlation_table(seconds, waits, progress_of(seconds)))
    assert set(heads) >= {"figure", "IO: WALSync", "LWLock: WALWrite"}
    assert "Lock: tuple" not in heads  # nobody waits for it to speak of
    queue = dict(zip(heads[1:], rows["queue"], strict=True))
    assert (queue["IO: WALSync"], queue["LWLock: WALWrite"]) == ("+1.00", "−1.00")
    note = body.find(class_="bl-note").get_text()
    assert "171 seconds of 9 trials" in note  # without the first of each
    assert "read IOPS" not in rows, "it stood still"


def test_without_host_or_waits_there_is_no_table():
    seconds, waits = make_seconds(LEVELS), make_waits(LEVELS)
    progress = progress_of(seconds)
    assert correlation_table(seconds.head(0), waits, progress) is None
    assert correlation_table(seconds, waits.head(0), progress) is None
    unknown = seconds.assign(**dict.fromkeys(seconds.columns[3:], np.nan))
    assert correlation_table(unknown, waits, progress) is None


def test_equal_shares_of_the_cpu_are_equal_however_they_are_added():
    seconds, waits = make_seconds(LEVELS, seconds=20), make_waits(LEVELS, seconds=20)
    odd = seconds["second"] % 2 == 1
    seconds["cpu_user_percent"] = np.where(odd, 0.1, 0.3)
    seconds["cpu_system_percent"] = np.where(odd, 0.2, 0.0)
    assert "CPU busy" not in cells(correlation_table(seconds, waits, progress_of(seconds)))[1], (
        "it stood still"
    )
