"""Published figures: the studies' own, each with its source; what was measured agrees with them or does not."""

import math
from pathlib import Path

import pandas as pd
import pytest
from kept import refused

from benchlib.plan.metrics import METRICS
from benchlib.study.published import COLUMNS, agreement, matching, published_for
from benchlib.study.results import TRIAL_COLUMNS

FOLDER = Path(__file__).parents[2] / "data" / "published"


@pytest.mark.parametrize("notebook", sorted(path.stem for path in FOLDER.glob("*.csv")))
def test_each_figure_has_a_source_and_a_metric_that_trials_have(notebook):
    frame = published_for(notebook, FOLDER)
    assert frame["figure"].is_unique
    assert frame[["source", "conditions"]].ne("").all(axis=None)
    assert set(frame["metric"]) <= {"", *TRIAL_COLUMNS}
    for row in frame[frame["metric"].isin(list(METRICS))].itertuples():
        assert row.unit in ("", "%", METRICS[row.metric].unit)
    assert set(frame["direction"]) <= {"", "+", "-", "0"}
    assert (frame["words"].ne("") | frame[["value", "low", "high"]].notna().any(axis=1)).all()
    assert not (frame["low"] > frame["high"]).any(), "a range ends before it begins"
    assert (frame["direction"].eq("") | frame["against"].ne("")).all()


def test_a_notebook_without_published_figures_has_no_rows():
    assert published_for("combined", FOLDER).empty
    assert len(published_for("configuration")), "found where the project is"


@pytest.mark.parametrize(("row", "why"), [("tps,fast", "fast"), ("caf\xe9", "utf-8")])
def test_a_damaged_file_is_refused(tmp_path, row, why):
    (tmp_path / "version.csv").write_bytes(f"{','.join(COLUMNS)}\nspeed,b,a,{row}\n".encode("latin-1"))
    assert why in refused(published_for, "version", tmp_path)


def test_a_name_stands_for_the_level_or_for_the_crossed_levels_that_hold_its_parts():
    levels = ("run, crm", "run, erp", "load", "load, crm", "rerun, crm")
    cells = {level: {"step": "again"} for level in levels}  # a value of all levels is in no level's name
    names = ("run", "load", "crm, run", "sysbench", "", "again, erp")
    found = [["run, crm", "run, erp"], ["load"], ["run, crm"], [], [], ["run, erp"]]
    assert [matching(name, levels, cells) for name in names] == found


CHANGES = {  # the interval and the verdict of a measured change, at a margin of 3 %
    "more": (20, 40, "faster"),
    "a little more": (0.5, 2, "faster"),
    "less": (-40, -20, "slower"),
    "none": (-1, 1, "equivalent"),
    "hardly any": (-4, 1, "equivalent"),
    "open": (-10, 30, "inconclusive"),
    "no noise": (math.nan, math.nan, "inconclusive"),
    "twins differ": (20, 40, "invalid"),
}
SEEN = "cannot tell: changes under 25.0\u00a0% are easily missed"


@pytest.mark.parametrize(
    ("published", "change", "said"),
    [
        # a direction alone
        ({"direction": "+"}, "more", "agrees"),
        ({"direction": "+"}, "a little more", "agrees in direction, by less than matters"),
        ({"direction": "+"}, "none", SEEN),
        ({"direction": "+"}, "no noise", "cannot tell"),
        ({"direction": "+"}, "twins differ", "cannot tell: the comparison is invalid"),
        # a size: held, missed, or not there
        ({"value": 65.09}, "more", "agrees in direction, smaller"),
        ({"low": -15, "high": -10}, "less", "agrees in direction, larger"),
        ({"value": 65.09}, "hardly any", "contradicts"),
        ({"value": 65.09}, "open", "contradicts"),
        # a difference in tps of another machine has a sign here, and no size
        ({"value": 2000, "unit": "tps"}, "a little more", "contradicts"),
        ({"value": 2000, "unit": "tps"}, "open", SEEN),
        # published as no difference
        ({"direction": "0"}, "hardly any", "agrees"),
        ({"direction": "0"}, "open", SEEN),
        # nothing claimed
        ({"words": "recommended"}, "more", ""),
    ],
)
def test_sign_and_interval_say_whether_a_published_change_is_there(tmp_path, published, change, said):
    cells = {"figure": "speed", "level": "b", "against": "a", "unit": "%", **published}
    pd.DataFrame([cells], columns=list(COLUMNS)).to_csv(tmp_path / "version.csv", index=False)
    (figure,) = published_for("version", tmp_path).itertuples()
    low, high, verdict = CHANGES[change]
    seen = math.nan if change == "no noise" else 25.0
    of = {"ci_low": low, "ci_high": high, "verdict": verdict, "mde_percent": seen}
    assert agreement(figure, of, 0.03) == said
    unmet = "not testable here (condition not met: no disk)" if said else ""
    shown = said.startswith("agrees") and figure.direction != "0" and not said.endswith("matters")
    assert agreement(figure, of, 0.03, "no disk") == (said if shown or "invalid" in said else unmet)
    assert agreement(figure, None, 0.03, "no disk") == unmet
    assert agreement(figure, None, 0.03) == ""


@pytest.mark.parametrize("verdict", ["stands out", "differs by host"])
def test_what_is_not_confirmed_or_differs_between_hosts_cannot_tell(verdict):
    figure = pd.Series({"direction": "+", "unit": "%", "value": 10.0, "low": math.nan, "high": math.nan})
    change = {
        "percent_change": 3.0,
        "ci_low": -1.0,
        "ci_high": 7.0,
        "verdict": verdict,
        "mde_percent": math.nan,
    }
    assert agreement(figure, change, 0.03).startswith("cannot tell")
