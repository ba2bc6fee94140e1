"""Where a study's metric bends: values as servers show them, groups of levels, the rule, and what is missing."""

import json
import re

import pytest
from benchlib.report.figures.figure import Figure
from benchlib.report.sections.setting_curves import curve
from benchlib.report.view import View
from fakes import seal

from benchlib.plan.level import Level

RISING = {"64kB": 1000.0, "1MB": 1200.0, "4MB": 1500.0, "16MB": 1510.0, "64MB": 1400.0}


@pytest.fixture
def study(view_of):
    """The view of a study of levels with these settings and speeds, its settings shown as a server does."""

    def make(levels, tps, spelled, *, loads=None, **changes):
        patches = {
            name: Level.model_validate({"settings": settings, "load": (loads or {}).get(name, {})})
            for name, settings in levels.items()
        }
        speed = {"defaults": 1000.0, "control": 1000.0, **tps}

        def drifting(trial):
            """The host drifts between blocks, and no two trials are alike."""
            return speed[trial.level] * (1 + 0.1 * trial.block) * (1 + trial.seed % 7 / 2000)

        view = view_of(drifting, levels=patches, **changes)
        folder = view.experiment.folder
        for trial_id, m in folder.kept().items():
            path = folder.path / "trials" / trial_id
            kept = json.loads((path / "measurement.json").read_text())
            settings = levels.get(m.trial.level, {})
            kept["settings"] = {name: spelled(value) for name, value in settings.items()}
            (path / "measurement.json").write_text(json.dumps(kept))
        seal(folder)
        return view

    return make


def in_kb(value):
    return f"{value.removesuffix('kB') if value.endswith('kB') else 1024 * int(value.removesuffix('MB'))} kB"


def work_mem(*values):
    return {value: {"work_mem": value} for value in values}


def test_a_curve_bends_at_the_smallest_value_that_no_larger_one_beats(study):
    view = study(work_mem(*RISING), RISING, in_kb)
    figure = curve(view, "work_mem")
    assert isinstance(figure, Figure)
    assert re.search(
        r"work_mem: bends at 4\s?MB, worse means on the way at 64\s?MB; 4\s?MB instead of 1\s?MB: \+2[45]\.",
        figure.caption,
    )
    assert re.search(r"means above 4\s?MB, compared with it: −[67]\.\d\s% to \+0\.\d\s%", figure.caption)
    assert figure.title.replace("\u00a0", " ") == "work_mem: bends at 4 MB, worse means on the way at 64 MB"
    assert "log scale" in figure.svg
    assert figure == curve(View(view.experiment), "work_mem")


@pytest.mark.parametrize(
    ("tps", "words"),
    [
        ({"64kB": 1000.0, "4MB": 1200.0, "64MB": 1500.0}, "the means still improve at 64\u00a0MB; 64\u00a0MB instead of 4\u00a0MB: +2"),
        ({"64kB": 1000.0, "4MB": 1010.0, "64MB": 1020.0}, "the means gain nothing above 64\u00a0kB; means above 64\u00a0kB, compared with it: +1"),
    ],
)  # fmt: skip
def test_a_curve_that_does_not_bend_says_so(study, tps, words):
    figure = curve(study(work_mem(*tps), tps, in_kb), "work_mem")
    assert words in figure.caption


def test_levels_that_differ_in_more_are_another_curve_and_the_number_of_clients_is_a_value_too(study):
    levels = {f"jit, {n}": {"work_mem": n, "jit": "on"} for n in ("1MB", "4MB")} | work_mem("1MB", "4MB")
    tps = dict.fromkeys(levels, 1000.0)
    figure = curve(study(levels, tps, lambda value: in_kb(value) if "B" in value else value), "work_mem")
    assert "work_mem, jit: the means gain nothing above 1" in figure.caption
    loads = {f"{n} clients": {"clients": n} for n in (1, 2, 8)}
    tps = {"1 clients": 500.0, "2 clients": 990.0, "8 clients": 1005.0}
    figure = curve(study({name: {} for name in loads}, tps, str, loads=loads, name="clients"), "clients")
    assert "clients: bends at 2;" in figure.caption


def test_pages_times_and_plain_numbers_are_read_and_0_stands_apart(study):
    def drawn(setting, *values):
        tps = dict(zip(values, (1000.0, 1100.0, 1200.0), strict=True))
        view = study({value: {setting: value} for value in values}, tps, str, name=setting)
        return curve(view, setting)

    pages = drawn("shared_buffers", "1024 x 8kB", "16384 x 8kB", "131072 x 8kB")
    assert "1\u00a0GB instead of 128\u00a0MB" in pages.caption
    assert "60 s instead of 1 s" in drawn("bgwriter_delay", "10 ms", "1 s", "1 min").caption
    assert "(log scale, 0 apart)" in drawn("effective_io_concurrency", "0", "16", "200").svg


def test_without_values_there_is_no_curve(study):
    words = {"a": {"wal_compression": "pglz"}, "b": {"wal_compression": "lz4"}}
    view = study(words, dict.fromkeys(words, 1000.0), str)
    assert "differ in wal_compression alone" in str(curve(view, "wal_compression"))
    assert "differ in work_mem alone" in str(curve(view, "work_mem"))


def test_a_curve_of_latencies_tells_what_they_do(study):
    slower = {"64kB": 30.0, "1MB": 20.0, "4MB": 10.0, "16MB": 11.0}
    view = study(
        work_mem(*slower),
        {name: 1000 / ms for name, ms in slower.items()},
        in_kb,
        metric="latency_average_ms",
    )
    figure = curve(view, "work_mem")
    assert re.search(r"work_mem: bends at 4\s?MB, worse means beyond, most at 16\s?MB;", figure.caption)
    assert re.search(r"means above 4\s?MB, compared with it: \+(9|10)\.\d\s%", figure.caption)
