"""Published figures beside measured ones: the same pair, the same metric, or said not to be measured."""

import json
from dataclasses import replace

import page_parts
import pytest
from benchlib.report.sections.beside_published import published

from benchlib.plan.level import Level
from benchlib.stats import Concern
from benchlib.study.published import COLUMNS

TPS = {"defaults": 1000.0, "control": 1001.0, "tuned": 2000.0, "tuned, durable": 1500.0}
ROW = {"figure": "throughput", "level": "tuned", "against": "defaults", "metric": "tps", "source": "S", "conditions": "C"}  # fmt: skip


def measured(trial):
    """A speed near that of the level, as each trial has its own."""
    return TPS[trial.level] * (1 + trial.seed % 7 / 1000)


LEVELS = {"tuned": Level(settings={"jit": "off"}), "tuned, durable": Level(settings={"jit": "on"})}


@pytest.fixture
def experiment(view_of):
    """The view of a study of the notebook ``version``, run at the speeds above."""

    def make(tps=measured, notebook="version", **options):
        return view_of(tps, levels=LEVELS, about={"notebook": notebook}, **options)

    return make


@pytest.fixture
def beside(experiment, tmp_path, monkeypatch):
    """What the section shows of published rows: the cells of each, by heading; and its note."""

    def show(*rows, of=None):
        files = tmp_path / "data" / "published"
        files.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        cells = [[str(row.get(name, "")) for name in COLUMNS] for row in rows]
        lines = [",".join(COLUMNS), *(",".join(map(json.dumps, row)) for row in cells)]
        (files / "version.csv").write_text("\n".join(lines) + "\n")
        monkeypatch.chdir(tmp_path)
        table = published(of or experiment())
        return page_parts.rows(table), page_parts.note(table)

    return show


def test_a_comparison_of_the_study_has_its_interval_and_verdict(beside, experiment):
    of = experiment()
    ((row,), note) = beside({**ROW, "value": 65.09, "unit": "%"}, of=of)
    assert row["figure"] == "throughput"
    assert row["published"] == "+65.09\u00a0%"
    assert row["levels"] == "tuned against defaults"
    assert row["source"] == "[1]"
    assert "[1] S: C." in note
    change = of.experiment.analysis.table.set_index("level").loc["tuned"]
    assert row["measured here"].startswith(f"+{change['percent_change']:.1f}\u00a0% (")
    assert row["measured here"].endswith(f", {change['verdict']}")
    assert row["agreement"] == "agrees in direction, larger"


def test_another_pair_or_another_metric_is_compared_by_itself_and_is_none_of_the_study_s_own(beside):
    words = {
        **ROW,
        "level": "tuned",
        "against": "tuned, durable",
        "words": "a little above",
        "direction": "+",
        "note": "so it was",
    }
    latency = {**ROW, "figure": "latency", "metric": "latency_average_ms", "value": 3, "unit": "%"}
    (row, other), note = beside(words, latency)
    assert other["measured here"].startswith(("−49.", "−50."))
    assert other["measured here"].endswith("‡")
    assert row["published"] == "a little above"
    assert row["measured here"].startswith(("+33.", "+32.", "+34."))
    assert row["measured here"].endswith("‡")
    assert [row["agreement"], other["agreement"]] == ["agrees", "contradicts"]
    assert "‡ Not one of the study's own comparisons" in note
    assert "Throughput: so it was." in note


def test_a_difference_stands_beside_a_difference_and_its_percentage(beside):
    ((row,), _) = beside({**ROW, "value": 2000, "unit": "tps"})
    assert row["published"] == "+2,000\u00a0tps"
    difference, percentage = row["measured here"].split("tps, ")
    assert 980 < float(difference.replace(",", "")) < 1020
    assert percentage.startswith(("+99.", "+100."))


def test_a_figure_by_itself_stands_beside_the_mean_of_its_level_or_of_those_it_stands_for(beside, experiment):
    alone = {**ROW, "against": "", "value": 3591.76, "unit": "tps"}
    rows, _ = beside(alone, {**alone, "level": "durable"}, of=experiment(TPS))
    assert [row["published"] for row in rows] == ["3,591.76\u00a0tps"] * 2
    assert not any("agreement" in row for row in rows)
    assert [row["measured here"] for row in rows] == [
        "2,000\u00a0tps",
        "tuned: 1,500\u00a0tps",
    ]


def test_what_the_study_has_not_is_folded_and_compared_with_nothing(beside):
    changes = ({"level": "13"}, {"against": "11"}, {"metric": "rows_per_s"}, {"level": "", "against": ""})
    rows, note = beside(*({**ROW, "value": 1, "unit": "%", **change} for change in changes))
    assert [row["measured here"] for row in rows] == ["not measured here"] * 4
    assert note.startswith("Measured here: ")
    assert not any("agreement" in row for row in rows)
    assert "[1] S: C." in note


def test_what_can_agree_stands_before_what_cannot(beside):
    (claimed, other), _ = beside({**ROW, "value": 1, "level": "13"}, {**ROW, "value": 1, "unit": "%"})
    assert claimed["agreement"].startswith("agrees")
    assert "agreement" not in other


def test_a_condition_that_is_not_met_is_why_an_effect_could_not_be_shown(beside, experiment):
    of = experiment()
    found = of.experiment.analysis
    unmet = [Concern("condition", why, level="tuned") for why in ("no checkpoint", "no disk")]
    of.experiment.__dict__["analysis"] = replace(found, warnings=(*found.warnings, *unmet))
    rows, _ = beside(
        {**ROW, "value": -5, "unit": "%"},
        {**ROW, "value": 5, "unit": "%"},
        of=of,
    )
    assert [row["agreement"] for row in rows] == [
        "could not be shown here: no checkpoint; no disk",
        "agrees in direction, larger",
    ]


def test_under_a_rate_no_published_speed_can_be_agreed_with(beside, experiment):
    of = experiment()
    assert of.experiment.analysis, "is judged as it was run"
    load = of.experiment.plan.load.model_copy(update={"rate": 100.0})
    plan = of.experiment.plan.model_copy(update={"load": load})
    of.experiment.study = of.experiment.study.model_copy(update={"plan": plan})
    rows, _ = beside(*({**ROW, "metric": name, "value": -5, "unit": "%"} for name in ("tps", "speed")), of=of)
    why = "could not be shown here: a rate sets how many transactions there are"
    assert [row["agreement"] for row in rows] == [why, why]


def test_twins_that_differ_leave_no_comparison_to_agree_with(beside, experiment):
    of = experiment(lambda trial: measured(trial) * (2 if trial.level == "control" else 1))
    rows, _ = beside(
        {**ROW, "value": 1, "unit": "%"}, {**ROW, "value": 1, "against": "tuned, durable", "unit": "%"}, of=of
    )
    assert [row["agreement"] for row in rows] == ["cannot tell: the comparison is invalid"] * 2


@pytest.mark.parametrize("notebook", ["combined", None])
def test_a_study_without_published_figures_says_so(experiment, notebook):
    assert "No published figures" in str(published(experiment(notebook=notebook)))


def test_levels_that_are_compared_are_named_without_the_parts_that_they_share(beside):
    rows, _ = beside(
        {
            **ROW,
            "value": 1,
            "level": "disk, read-only, 8 clients",
            "against": "capped disk, read-only, 8 clients",
        },
        {**ROW, "value": 1, "level": "tuned, durable"},
        {**ROW, "value": 1, "against": ""},
        {**ROW, "value": 1, "against": "", "level": ""},
    )
    names = ["tuned, durable against defaults", "disk against capped disk", "tuned", "none"]
    assert [row["levels"] for row in rows] == names


def test_a_level_of_a_grid_is_known_by_its_values_even_those_that_its_name_leaves_out(beside, experiment):
    of = experiment()
    study, plan = of.experiment.study, of.experiment.plan
    cells = {"defaults": {"tier": "slow", "mode": "reads"}, "tuned": {"tier": "fast", "mode": "reads"}}
    grid = plan.model_copy(update={"factor": plan.factor.model_copy(update={"cells": cells})})
    of.experiment.study = study.model_copy(update={"plan": grid})
    ((row,), _) = beside(
        {**ROW, "level": "fast, reads", "against": "slow, reads", "value": 100, "unit": "%"}, of=of
    )
    assert row["measured here"].endswith("faster")
    assert row["levels"] == "fast against slow"
