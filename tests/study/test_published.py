"""Published figures: the studies' own, each with its source; what was measured agrees with them or does not."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from kept import refused

from benchlib.plan.metrics import METRICS
from benchlib.study.published import COLUMNS, agreement, matching, published_for
from benchlib.study.results import TRIAL_COLUMNS

FOLDER = Path(__file__).parents[2] / "data" / "published"

# What the studies published, read from them and not from the files, in the order of the files: each figure's numbers,
# those of its words included, and which way it goes.
FIGURES = {
    "version": "400000 +; 2000 +",
    "configuration": "100 +; +; +",  # almost twice
    "replication": "-; -; -; -; -",
    "operating_system": "+; 65.09 +; 65.09 +; +; +; +; +",
    "mixed_load": "65.09; ",
    "storage": "127 167 +; 167 +; 127 167 +; 127 +; 127 167 +; 127 167 +; 193 325 +; 193 325 +; 193 +; 193 325 +; "
    "325 +; 193 325 +; 270; ; -; 8 +",
    "durability": "48817; 79.7; ; 80.3; 80.2; 40.0; 39.4; 77.3 40.0; 10 12 +; 256; 1024; ; ; ; ; -; ",
    "memory": "8; 24; 64; 400; ; ; 1 2 2 3",  # 1/2 to 2/3
    "planner": "1000; 10000; ; 1; 0.1; 0.4; 0.00025; -; +; +",
    "managed": "5978.44; 1878.90; 0.04; 2484.96; 1614.54; 160; 2157735; 278.149; 503.396; 3573.33; 3591.76; "
    "4553.6 3646.5 3130.4 3998.3 3305.3 3547.9 3770.5 3050.5 3591.7 3350.9; 900895; 1500.68; 666.19; 1397.02; "
    "600; 1005; -; -; =; +; +; ; ",  # loading: less time
}


def test_there_is_a_file_for_every_factor_that_comes_from_a_study_and_none_for_others():
    assert {path.stem for path in FOLDER.glob("*.csv")} == FIGURES.keys()
    assert published_for("combined", FOLDER).empty
    assert list(published_for("combined", FOLDER)) == list(COLUMNS)
    assert len(published_for("configuration")), "found where the project is"


@pytest.mark.parametrize("notebook", FIGURES)
def test_each_figure_is_the_study_s_own_with_a_source_and_a_metric_that_trials_have(notebook):
    frame = published_for(notebook, FOLDER)
    assert frame[["source", "conditions"]].ne("").all(axis=None)
    assert set(frame["metric"]) <= {"", *TRIAL_COLUMNS}
    units = frame["metric"].map({name: metric.unit for name, metric in METRICS.items()})
    assert (units.isna() | frame["unit"].isin(["", "%"]) | (frame["unit"] == units)).all()
    cells = pd.read_csv(FOLDER / f"{notebook}.csv", dtype=str, keep_default_na=False)
    told = cells[["value", "low", "high", "words"]].agg(" ".join, axis=1).str.replace(",", "")
    numbers = [{*map(float, re.findall(r"(?<![\w.,])\d+(?:\.\d+)?", text))} for text in told]
    said = [re.fullmatch(r"([\d. ]*)([-+=]?)", figure.strip()) for figure in FIGURES[notebook].split(";")]
    assert list(frame["direction"].replace("0", "=")) == [figure[2] for figure in said]
    assert numbers == [{*map(float, figure[1].split())} for figure in said]


@pytest.mark.parametrize(("row", "why"), [("tps,fast", "fast"), ("caf\xe9", "utf-8")])
def test_a_damaged_file_is_refused(tmp_path, row, why):
    (tmp_path / "version.csv").write_bytes(f"{','.join(COLUMNS)}\nspeed,b,a,{row}\n".encode("latin-1"))
    assert why in refused(published_for, "version", tmp_path)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("run", ["run, crm", "run, erp"]),
        ("load", ["load"]),
        ("crm, run", ["run, crm"]),
        ("sysbench", []),
        ("", []),
        ("again, erp", ["run, erp"]),  # a value that all levels share is in no level's name
    ],
)
def test_a_name_stands_for_the_level_or_for_the_crossed_levels_that_hold_its_parts(name, found):
    levels = ("run, crm", "run, erp", "load", "load, crm", "rerun, crm")
    assert matching(name, levels, {level: {"step": "again"} for level in levels}) == found


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
        ({"direction": "-"}, "more", "contradicts"),
        ({"direction": "+"}, "none", SEEN),
        ({"direction": "+"}, "no noise", "cannot tell"),
        ({"direction": "+"}, "twins differ", "cannot tell: the comparison is invalid"),
        # a size: held, missed, or not there
        ({"low": 10, "high": 12}, "more", "agrees in direction, larger"),
        ({"low": 35, "high": 50}, "more", "agrees"),
        ({"value": 65.09}, "more", "agrees in direction, smaller"),
        ({"low": -15, "high": -10}, "less", "agrees in direction, larger"),
        ({"value": 65.09}, "hardly any", "contradicts"),
        ({"value": 1}, "a little more", "agrees"),
        ({"value": 65.09}, "open", "contradicts"),
        ({"value": 25}, "open", SEEN),
        # a difference in tps of another machine has a sign here, and no size
        ({"value": 2000, "unit": "tps"}, "a little more", "contradicts"),
        ({"value": 2000, "unit": "tps"}, "open", SEEN),
        # published as no difference
        ({"direction": "0"}, "hardly any", "agrees"),
        ({"direction": "0"}, "a little more", "agrees"),
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
    unmet = "could not be shown here: no disk" if said else ""
    shown = said.startswith("agrees") and figure.direction != "0" and not said.endswith("matters")
    assert agreement(figure, of, 0.03, "no disk") == (said if shown or "invalid" in said else unmet)
    assert agreement(figure, None, 0.03, "no disk") == unmet
    assert agreement(figure, None, 0.03) == ""
