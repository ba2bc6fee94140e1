"""The calibration's page: each promise with its result, whole without the other half, asking nothing of a network."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from calibration_page import publish, real_promises, render_calibration, sentence, simulated_promises

KEPT = Path(__file__).parents[2] / "data" / "calibration"


@pytest.fixture(scope="module")
def simulated():
    return pd.read_csv(KEPT / "simulated.csv"), json.loads((KEPT / "simulated.json").read_text())


def measured(sessions=20, flagged=2, changes=19, seen=4.0):
    """What a real calibration keeps: the first sessions' twins are flagged, their changes found; all could have seen so many percent."""
    verdicts = [
        {"load": load, "session": n, "level": level, "percent_change": centre + n % 3 / 10, "p_value": p}
        | {"verdict": word, "residual_sd": 0.02, "mde_percent": seen}
        for n in range(1, sessions + 1)
        for load in ("processor", "disk")
        for level, centre, p, word in (
            ("control", -0.4, 0.04 if n <= flagged else 0.6, "equivalent"),
            ("injected", 4.9, 1e-4, "faster" if n <= changes else "inconclusive"),
            ("same", 0.2, 0.5, "inconclusive"),
        )
    ]
    return {
        "options": {"sessions": sessions, "blocks": 5, "duration_s": 2, "effect": 0.05, "seed": 1},
        "work": {"processor": {"baseline": 250_000, "injected": 238_095}, "disk": {"baseline": 42, "injected": 40}},
        **{"server": "PostgreSQL 18.4", "created": "2026-11-20T14:41:12+00:00"},
        **{"host": {"processors": 2, "processor": "Some processor"}, "verdicts": verdicts},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value", "broken"),
    [("alarms", None, 0), ("alarms", 0.057, 2), ("family", 0.061, 1), ("coverage", 0.93, 1)],
)
def test_the_kept_simulation_keeps_every_promise_and_a_bad_situation_breaks_its_own(
    simulated, column, value, broken
):
    frame, facts = simulated[0].copy(), simulated[1]
    if value:  # alarms: the drift moves them, too
        frame.loc[frame.index[(frame["contamination"] == 0) & (frame["drift"] > 0)][5], column] = value
    promises = simulated_promises(frame, facts)
    assert (len(promises), sum(not p.kept for p in promises)) == (18, broken)
    assert frame["error"].max() < 0.0025


@pytest.mark.parametrize(
    ("sessions", "flagged", "changes", "seen", "kept"),
    [
        (20, 5, 18, 4.0, [True, True]),
        (20, 6, 15, 4.0, [False, False]),
        (20, 0, 11, 5.0, [True, False]),  # of which 80 % of the sessions find it
        (20, 0, 12, 5.0, [True, True]),
        (20, 0, 0, 40.0, [True, True]),  # so much noise lets nobody find it
        (4, 0, 4, 4.0, [None, None]),
    ],
)
def test_the_real_bars(sessions, flagged, changes, seen, kept):
    kept_data = measured(sessions, flagged, changes, seen)
    assert [p.kept for p in real_promises(kept_data)] == 2 * kept
    assert ("too few to judge" in sentence(kept_data)) == (sessions == 4)


def test_the_sentence_has_counts_intervals_and_the_true_effect():
    text = sentence(measured())
    assert "2 of 40 (5 %, interval 1 to 17 %)" in text
    assert "19 of 20 (95 %, interval 75 to 100 %) injected changes of +5 % were found" in text
    assert re.search(r"\+5\.00 % \[4\.\d\d, 5\.\d\d\]", text)


def test_a_page_of_both_halves(simulated):
    html = render_calibration(simulated, measured())
    page = BeautifulSoup(html, "html.parser")
    rows = page.find("table").find("tbody").find_all("tr")
    assert [row.find_all(["th", "td"])[-1].get_text() for row in rows] == ["kept"] * 22
    assert len(page.find_all("figure")) == 4
    assert not page.find_all(src=re.compile("^(?!data:)"))
    assert html == render_calibration(simulated, measured())


def test_publishing_writes_page_and_downloads_or_nothing(data_root, tmp_path):
    publish(tmp_path)
    assert not list(tmp_path.glob("*.html"))
    folder = data_root / "calibration"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(measured()))
    (folder / "trials.csv").write_text("session,block\n")
    publish(tmp_path)
    page = BeautifulSoup((tmp_path / "calibration.html").read_text(), "html.parser")
    links = [link["href"] for link in page.select('main a[href^="calibration."]')]
    assert links == ["calibration.trials.csv", "calibration.summary.json"]
    assert all((tmp_path / link).is_file() for link in links)
