"""Published figures: the studies' own, each with its source; what was measured agrees with them or does not."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS
from benchlib.study.published import COLUMNS, agreement, matching, published_for
from benchlib.study.results import TRIAL_COLUMNS

NOTEBOOKS = (
    "version", "configuration", "replication", "operating_system", "storage", "durability", "memory", "planner",
    "mixed_load", "managed",
)  # fmt: skip
FOLDER = Path(__file__).parents[2] / "data" / "published"
HEADER = ",".join(COLUMNS)

INSERTS, LADDER = "What affects write speed (2021)", "pg_expecto, operating-system tuning"
AZURE = "Storage strategy for managed PostgreSQL (Instaclustr on Azure, 2023)"
GUIDE = "Tuning PostgreSQL for 1C:Enterprise (2015/16)"
CLOUD = "Managed cloud PostgreSQL, part three (after the AWS Aurora procedure)"

# What the studies published, read from them and not from the files: each figure's numbers, those of its words
# included, and which way it goes. A name is that of a row.
FIGURES = {
    "version": {"rows written in 300 s": ("400000", "+"), "throughput": ("2000", "+")},
    "configuration": {
        "rows written and throughput": ("100", "+"),  # almost twice
        "what synchronous_commit = off adds to the set": ("", "+"),
        "synchronous_commit = off alone": ("", "+"),
    },
    "replication": {
        "asynchronous replica": ("", "-"),
        "synchronous replica": ("", "-"),
        "synchronous and asynchronous replica": ("", "-"),
        "quorum larger than needed": ("", "-"),
        "slow disk of a synchronous replica": ("", "-"),
    },
    "operating_system": {
        "the whole sysctl set": ("", "+"),
        "the ladder, first to last": ("65.09", "+"),
        "the ladder, first to last, beside a client that scans": ("65.09", "+"),
        "read-ahead’s share": ("", "+"),
        "read-ahead’s share, beside a client that scans": ("", "+"),
        "noatime’s share": ("", "+"),
        "noatime’s share, beside a client that scans": ("", "+"),
    },
    "mixed_load": {
        "operational speed, first to last of eight experiments": ("65.09", ""),
        "charts of each experiment": ("", ""),
    },
    "storage": {
        "read/write, 4 clients": ("127 167", "+"),
        "read/write, 8 clients": ("167", "+"),
        "read/write, 16 clients": ("127 167", "+"),
        "read/write, 32 clients": ("127", "+"),
        "read/write, 64 clients": ("127 167", "+"),
        "read/write, 96 clients": ("127 167", "+"),
        "read-only, 4 clients": ("193 325", "+"),
        "read-only, 8 clients": ("193 325", "+"),
        "read-only, 16 clients": ("193", "+"),
        "read-only, 32 clients": ("193 325", "+"),
        "read-only, 64 clients": ("325", "+"),
        "read-only, 96 clients": ("193 325", "+"),
        "overall": ("270", ""),
        "deviation between repeats": ("", ""),
        "more clients than cores": ("", "-"),
        "the cure of the collapse": ("8", "+"),
    },
    "durability": {
        "flushes by open_datasync, Windows 7": ("48817", ""),
        "flushes by fsync, Windows 7": ("79.7", ""),
        "wal_sync_method, Windows 7": ("", ""),
        "flushes by fdatasync, Debian 8": ("80.3", ""),
        "flushes by open_datasync, Debian 8": ("80.2", ""),
        "flushes by open_sync, Debian 8": ("40.0", ""),
        "flushes by fsync, Debian 8": ("39.4", ""),
        "two writes in a row, Debian 8": ("77.3 40.0", ""),
        "WAL on its own disk": ("10 12", "+"),
        "wal_buffers, least": ("256", ""),
        "wal_buffers, most": ("1024", ""),
        "checkpoint_segments, today max_wal_size": ("", ""),
        "synchronous_commit": ("", ""),
        "full_page_writes": ("", ""),
        "fsync": ("", ""),
        "wal_compression": ("", "-"),
        "bgwriter_delay": ("", ""),
    },
    "memory": {
        "shared_buffers, small machine": ("8", ""),
        "shared_buffers, middle, least": ("24", ""),
        "shared_buffers, middle, most": ("64", ""),
        "shared_buffers, large machine": ("400", ""),
        "work_mem": ("", ""),
        "maintenance_work_mem": ("", ""),
        "effective_cache_size": ("1 2 2 3", ""),  # 1/2 to 2/3
    },
    "planner": {
        "default_statistics_target, least": ("1000", ""),
        "default_statistics_target, most": ("10000", ""),
        "enable_nestloop": ("", ""),
        "join_collapse_limit": ("1", ""),
        "seq_page_cost": ("0.1", ""),
        "random_page_cost": ("0.4", ""),
        "cpu_operator_cost": ("0.00025", ""),
        "FULL OUTER JOIN, transformed": ("", "-"),
        "FULL OUTER JOIN, rewritten": ("", "+"),
        "latest row per key": ("", "+"),
    },
    "managed": {
        "load, in all": ("5978.44", ""),
        "load, insert": ("1878.90", ""),
        "load, commit": ("0.04", ""),
        "load, vacuum": ("2484.96", ""),
        "load, index": ("1614.54", ""),
        "size of the data": ("160", ""),
        "transactions in 600 s": ("2157735", ""),
        "latency, average": ("278.149", ""),
        "latency, standard deviation": ("503.396", ""),
        "throughput, connections included": ("3573.33", ""),
        "throughput, connections excluded": ("3591.76", ""),
        "throughput, each 60 s": (
            "4553.6 3646.5 3130.4 3998.3 3305.3 3547.9 3770.5 3050.5 3591.7 3350.9",
            "",
        ),
        "sysbench, transactions in 600 s": ("900895", ""),
        "sysbench, throughput": ("1500.68", ""),
        "sysbench, average latency": ("666.19", ""),
        "sysbench, p95 latency": ("1397.02", ""),
        "max_connections at first": ("600", ""),
        "max_connections then": ("1005", ""),
        "loading: first": ("", "-"),  # less time
        "loading: second": ("", "-"),
        "pgbench": ("", "0"),
        "sysbench: Aurora and Google": ("", "+"),
        "sysbench: Aurora and RDS": ("", "+"),
        "charts over time": ("", ""),
        "chart of the three providers": ("", ""),
    },
}

# The numbers of the conditions that each study states, and what it does not state.
CONDITIONS = {
    f"{INSERTS}, scenario 1, version": ("7.6 8 16 100 100 11.11 13.2 4 300", ""),
    f"{INSERTS}, scenario 2, configuration": ("600 4 8 15 0.9 1.1 200", "version, machine and clients"),
    f"{INSERTS}, scenario 3, replication": ("13", "machine, clients and seconds"),
    f"{INSERTS}, scenario 4, operating system": (
        "13 0 0 0 67108864 536870912 0 50000000 10000000 30000000 0 2",
        "machine, clients and seconds",
    ),
    LADDER: ("0.7 0.2 1000 0.1 30 10 100 4096 10 5 50 256 4 6", "scale, clients, seconds and memory"),
    AZURE: ("8 56 64 2 10000 1.5 4 96", "version, threads and seconds"),
    GUIDE: ("7 8", ""),  # of Windows and Debian
    CLOUD: (
        "32 208 8 52 144 9000 9.6.10 90 10000 60 600 1000 2048 0.5 250 450000 1000 600 1000 10.6 11.1",
        "",
    ),
}


def test_there_is_a_file_for_every_factor_that_comes_from_a_study():
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_every_row_has_a_source_and_conditions_and_a_metric_that_trials_have(notebook):
    frame = published_for(notebook, FOLDER)
    assert frame[["source", "conditions"]].ne("").all(axis=None)
    assert set(frame["metric"]) <= {"", *TRIAL_COLUMNS}
    assert {str(kind) for kind in frame[["value", "low", "high"]].dtypes} == {"float64"}
    for row in frame[frame["metric"].isin(list(METRICS))].itertuples():
        assert row.unit in ("", "%", METRICS[row.metric].unit)
    assert set(frame["direction"]) <= {"", "+", "-", "0"}
    assert (frame["words"].ne("") | frame[["value", "low", "high"]].notna().any(axis=1)).all()
    assert not (frame["low"] > frame["high"]).any(), "a range ends before it begins"
    compares = frame["against"].ne("")
    assert (frame["level"].ne("") & frame["level"].ne(frame["against"]))[compares].all()
    assert frame["direction"][~compares].eq("").all()


def numbers(text):
    """The numbers in words, parts of names aside: ``1,024`` and ``0.1``, also the ``4`` of ``4GB``."""
    return {number.replace(",", "") for number in re.findall(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)*", text)}


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_each_figure_is_the_study_s_own_and_none_is_missing(notebook):
    cells = pd.read_csv(FOLDER / f"{notebook}.csv", dtype=str, keep_default_na=False)
    assert cells["figure"].is_unique
    directions = published_for(notebook, FOLDER)["direction"]
    assert all(written in ("", of) for written, of in zip(cells["direction"], directions, strict=True))
    kept = {
        row.figure: ({float(n) for n in numbers(f"{row.value} {row.low} {row.high} {row.words}")}, direction)
        for row, direction in zip(cells.itertuples(), directions, strict=True)
    }
    assert kept == {
        name: ({float(n) for n in of.split()}, sign) for name, (of, sign) in FIGURES[notebook].items()
    }


def test_conditions_claim_what_the_study_states():
    rows = pd.concat([published_for(notebook, FOLDER) for notebook in NOTEBOOKS])
    conditions = rows.groupby("source")["conditions"].agg(lambda texts: "; ".join(texts.unique()))
    assert {source: numbers(text) for source, text in conditions.items()} == {
        source: set(stated.split()) for source, (stated, _) in CONDITIONS.items()
    }
    for row in rows.itertuples():
        assert row.conditions.partition("not stated, so ours here: ")[2] == CONDITIONS[row.source][1]


def test_a_notebook_without_published_figures_has_no_rows(tmp_path):
    frame = published_for("combined", tmp_path)
    assert frame.empty
    assert list(frame) == list(COLUMNS)
    assert published_for("configuration")["figure"].size  # found where the project is


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("speed,b,a,tps,fast,,,tps,,,S,C,", "cannot be read: .*fast"),
        ("speed,b,a,tps,1,,,tps,,,S,C,,more", "cannot be read: .*line 3"),
        ('speed,b,a,tps,1,,,tps,"torn', "cannot be read: .*"),
        ("speed,b,a,tps,caf\xe9,,,,,,S,C,", "cannot be read: .*utf-8"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, row, why):
    text = f"{HEADER}\nspeed,b,a,tps,1,,,tps,,,S,C,\n{row}\n"
    (tmp_path / "version.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=why):
        published_for("version", tmp_path)


def test_a_name_stands_for_the_level_or_for_the_crossed_levels_that_hold_its_parts():
    levels = ["run, crm", "run, erp", "load, crm", "rerun, crm"]
    assert matching("run", levels) == ["run, crm", "run, erp"]
    assert matching("run", ["run", *levels]) == ["run"]
    assert matching("crm, run", levels) == ["run, crm"]
    assert matching("sysbench", levels) == []
    assert matching("", levels) == []
    # a value that all levels share is in no level's name
    cells = {name: {"step": "run", "server": name} for name in ("crm", "erp")}
    assert matching("run", ["crm", "erp"], cells) == ["crm", "erp"]
    assert matching("run, erp", ["crm", "erp"], cells) == ["erp"]


CHANGES = {  # the interval and the verdict of a measured change, at a margin of 3 %
    "more": (20, 40, "faster"),
    "a little more": (0.5, 2, "faster"),
    "less": (-40, -20, "slower"),
    "none": (-1, 1, "equivalent"),
    "hardly any": (-4, 1, "equivalent"),
    "open": (-10, 30, "inconclusive"),
    "two blocks": (20, 40, "inconclusive"),
    "twins differ": (20, 40, "invalid"),
}
SEEN = "cannot tell: changes under 25.0\u00a0% are easily missed"


@pytest.mark.parametrize(
    ("published", "change", "said"),
    [
        # a direction alone
        ({"direction": "+"}, "more", "agrees"),
        ({"direction": "+"}, "a little more", "agrees in direction, by less than matters"),
        ({"direction": "+"}, "less", "contradicts"),
        ({"direction": "-"}, "less", "agrees"),
        ({"direction": "-"}, "more", "contradicts"),
        ({"direction": "+"}, "none", SEEN),
        ({"direction": "-"}, "open", SEEN),
        ({"direction": "+"}, "two blocks", SEEN),
        ({"direction": "+"}, "twins differ", "cannot tell: the comparison is invalid"),
        # a size: held, missed, or not there
        ({"value": 25}, "more", "agrees"),
        ({"low": 10, "high": 12}, "more", "agrees in direction, larger"),
        ({"low": 35, "high": 50}, "more", "agrees"),
        ({"high": 10}, "more", "agrees in direction, larger"),
        ({"high": 50}, "more", "agrees"),
        ({"value": 65.09}, "more", "agrees in direction, smaller"),
        ({"value": -65.09}, "less", "agrees in direction, smaller"),
        ({"low": -15, "high": -10}, "less", "agrees in direction, larger"),
        ({"value": 65.09}, "a little more", "contradicts"),
        ({"value": 65.09}, "none", "contradicts"),
        ({"value": 65.09}, "hardly any", "contradicts"),
        ({"value": 1}, "a little more", "agrees"),
        ({"value": 65.09}, "open", "contradicts"),
        ({"value": 25}, "open", SEEN),
        # a difference in tps of another machine has a sign here, and no size
        ({"value": 2000, "unit": "tps"}, "more", "agrees"),
        ({"value": 2000, "unit": "tps"}, "none", "contradicts"),
        ({"value": 2000, "unit": "tps"}, "open", SEEN),
        ({"direction": "+"}, "open", SEEN),
        # published as no difference
        ({"direction": "0"}, "none", "agrees"),
        ({"direction": "0"}, "hardly any", "agrees"),
        ({"direction": "0"}, "a little more", "agrees"),
        ({"direction": "0"}, "less", "contradicts"),
        ({"direction": "0"}, "open", SEEN),
        # nothing claimed
        ({"words": "recommended"}, "more", ""),
    ],
)
def test_sign_and_interval_say_whether_a_published_change_is_there(tmp_path, published, change, said):
    cells = {"figure": "speed", "level": "b", "against": "a", "unit": "%", "source": "S", "conditions": "C"}
    row = pd.DataFrame([{**dict.fromkeys(COLUMNS, ""), "words": "so", **cells, **published}])
    row.to_csv(tmp_path / "version.csv", index=False)
    (figure,) = published_for("version", tmp_path).itertuples()
    low, high, verdict = CHANGES[change]
    of = {"ci_low": low, "ci_high": high, "verdict": verdict, "mde_percent": 25.0}
    assert agreement(figure, of, 0.03) == said
    unmet = "could not be shown here: no disk" if said else ""
    shown = said.startswith("agrees") and figure.direction != "0" and not said.endswith("matters")
    assert agreement(figure, of, 0.03, "no disk") == (said if shown or "invalid" in said else unmet)
    assert agreement(figure, None, 0.03, "no disk") == unmet
    assert agreement(figure, None, 0.03) == ""


def test_without_noise_nothing_is_said_of_what_could_have_been_seen():
    figure = SimpleNamespace(
        level="b", against="a", direction="+", unit="%", value=65, low=math.nan, high=math.nan
    )
    of = {"ci_low": math.nan, "ci_high": math.nan, "verdict": "inconclusive", "mde_percent": math.nan}
    assert agreement(figure, of, 0.03) == "cannot tell"
