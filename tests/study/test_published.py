"""Published figures: every file reads, every row has a source, and the numbers are those of the studies."""

from pathlib import Path

import pytest

from benchlib.errors import InputError
from benchlib.plan.metrics import METRICS
from benchlib.study.published import Published, matching, published_for
from benchlib.study.results import TRIAL_COLUMNS

NOTEBOOKS = (
    "version", "configuration", "replication", "operating_system", "storage", "durability", "memory", "planner",
    "mixed_load", "managed",
)  # fmt: skip
FOLDER = Path(__file__).parents[2] / "data" / "published"
HEADER = ",".join(Published.model_fields)

# what the studies published: (figure, value), or (figure, low, high) for a range
NUMBERS = {
    "version": {("rows written in 300 s", 400_000), ("throughput", 2000)},
    "configuration": set(),
    "replication": set(),
    "operating_system": {("the ladder, first to last", 65.09)},
    "storage": {
        ("read/write, 8 clients", 167),
        ("read/write, 32 clients", 127),
        *((f"read/write, {clients} clients", 127, 167) for clients in (4, 16, 64, 96)),
        ("read-only, 64 clients", 325),
        ("read-only, 16 clients", 193),
        *((f"read-only, {clients} clients", 193, 325) for clients in (4, 8, 32, 96)),
        ("overall", None, 270),
    },
    "durability": {
        ("flushes by open_datasync, Windows 7", 48_817),
        ("flushes by fsync, Windows 7", 79.7),
        ("flushes by fdatasync, Debian 8", 80.3),
        ("flushes by open_datasync, Debian 8", 80.2),
        ("flushes by fsync, Debian 8", 39.4),
        ("WAL on its own disk", 10, 12),
    },
    "memory": set(),
    "planner": set(),
    "mixed_load": {("operational speed, first to last of eight experiments", 65.09)},
    "managed": {
        ("load, in all", 5978.44),
        ("load, insert", 1878.90),
        ("load, commit", 0.04),
        ("load, vacuum", 2484.96),
        ("load, index", 1614.54),
        ("size of the data", 160),
        ("transactions in 600 s", 2_157_735),
        ("latency, average", 278.149),
        ("latency, standard deviation", 503.396),
        ("throughput, connections included", 3573.33),
        ("throughput, connections excluded", 3591.76),
        *(
            ("throughput, each 60 s", tps)
            for tps in (4553.6, 3646.5, 3130.4, 3998.3, 3305.3, 3547.9, 3770.5, 3050.5, 3591.7, 3350.9)
        ),
        ("sysbench, transactions in 600 s", 900_895),
        ("sysbench, throughput", 1500.68),
        ("sysbench, average latency", 666.19),
        ("sysbench, p95 latency", 1397.02),
        ("max_connections at first", 600),
        ("max_connections then", 1005),
    },
}


def numbers(notebook):
    frame = published_for(notebook, FOLDER)
    plain = frame.astype(object).where(frame.notna(), None)
    ranges = plain[plain["low"].notna() | plain["high"].notna()]
    return [
        *plain[plain["value"].notna()][["figure", "value"]].itertuples(index=False, name=None),
        *ranges[["figure", "low", "high"]].itertuples(index=False, name=None),
    ]


def test_there_is_a_file_for_every_factor_that_comes_from_a_study():
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_the_numbers_are_those_that_were_published_and_no_others(notebook):
    found = numbers(notebook)
    assert set(found) == NUMBERS[notebook]
    assert len(found) == len(NUMBERS[notebook])


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_every_row_has_a_source_and_conditions_and_a_metric_that_trials_have(notebook):
    frame = published_for(notebook, FOLDER)
    assert frame[["source", "conditions"]].ne("").all(axis=None)
    assert set(frame["metric"]) <= {"", *TRIAL_COLUMNS}
    assert {str(kind) for kind in frame[["value", "low", "high"]].dtypes} == {"float64"}
    for row in frame[frame["metric"].isin(list(METRICS))].itertuples():
        assert row.unit in ("", "%", METRICS[row.metric].unit)


def test_findings_without_a_number_are_kept_in_words():
    (tuned, _) = published_for("configuration", FOLDER)["words"]
    assert tuned == "almost twice"
    rows = published_for("replication", FOLDER).itertuples()
    assert {(row.level, row.against): row.words for row in rows} == {
        ("asynchronous", "standalone"): "standalone a little above asynchronous",
        ("on", "standalone"): "standalone far above synchronous",
        ("on", "asynchronous"): "asynchronous far above synchronous",
    }


def test_recommended_values_stand_beside_the_levels_that_try_them():
    found = {
        (row.level, row.words.removeprefix("recommended: "))
        for notebook in ("durability", "memory", "planner")
        for row in published_for(notebook, FOLDER).itertuples()
        if row.words.startswith("recommended: ")
    }
    assert found == {
        ("wal_buffers 1MB", "256 to 1,024 kB"),
        ("shared_buffers 16MB", "from 8 MB"),
        ("shared_buffers 512MB", "up to 400 MB"),
        ("work_mem 64MB", "memory / active connections"),
        ("maintenance_work_mem 256MB", "the largest index"),
        ("effective_cache_size 16GB", "1/2 to 2/3 of RAM"),
        ("statistics 1000", "1,000 to 10,000"),
        ("statistics 10000", "1,000 to 10,000"),
        ("no nested loops", "off"),
        ("joins as written", "1"),
        ("cheap pages", "0.1 and 0.4"),
        ("cheap operators", "0.00025"),
    }


def test_a_notebook_without_published_figures_has_no_rows(tmp_path):
    frame = published_for("combined", tmp_path)
    assert frame.empty
    assert list(frame) == list(Published.model_fields)
    assert published_for("configuration")["figure"].size  # found where the project is


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("speed,b,a,tps,fast,,,tps,,S,C,", "line 3 is damaged: column 'value': .*valid number"),
        ("speed,b,a,tps,nan,,,tps,,S,C,", "line 3 is damaged: column 'value': .*finite"),
        ("speed,b,a,tps,1,,,tps,,,C,", "line 3 is damaged: column 'source'"),
        ("speed,b,a,tps,1,,,tps,,S,,", "line 3 is damaged: column 'conditions'"),
        ("speed,b,a,tps,,,,tps,,S,C,", "neither a number nor words"),
        ("speed,b,a,tps,,12,10,%,,S,C,", "ends before it begins"),
        ("speed,,a,tps,1,,,tps,,S,C,", "but none to compare"),
        ("speed,b,b,tps,1,,,tps,,S,C,", "with itself"),
        ("speed,b,a,tps,1", "line 3 is damaged: column 'unit'"),
        ("speed,b,a,tps,1,,,tps,,S,C,,more", "line 3 is damaged"),
        ('speed,b,a,tps,1,,,tps,"torn', "cannot be read after line 2: unexpected end of data"),
        ("speed,b,a,tps,1,,,tps,caf\xe9,S,C,", "cannot be read after line .*utf-8"),
    ],
)
def test_a_damaged_row_is_refused_with_its_line(tmp_path, row, why):
    text = f"{HEADER}\nspeed,b,a,tps,1,,,tps,,S,C,\n{row}\n"
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
