"""A page as data: which comparisons answer, one sentence for each verdict, null for what is not known, the command that repeats it."""

import json
import math
import shlex

import pandas as pd
import pytest
from report_parts import answer

from benchlib.notebook import joined_matrix
from benchlib.plan.level import Level
from benchlib.report import plot
from benchlib.report.model import VERDICTS, Limit, PageData, ordered, page_data, repeat_command
from benchlib.stats.effects import compare
from benchlib.stats.limits import SENTENCES
from benchlib.study.frames import as_data


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("faster", "Tuned was faster than defaults: "),
        ("slower", "Tuned was slower than defaults: "),
        ("equivalent", "Tuned and defaults were equivalent within ±3 %: "),
        ("inconclusive", "Tuned against defaults is inconclusive: "),
        ("invalid", "Tuned against defaults has no valid result."),
        ("differs by host", "The effect of tuned against defaults differs by host."),
        (None, "Tuned against defaults: "),
    ],
)
def test_each_verdict_has_its_sentence_with_the_change_where_there_is_one(verdict, words):
    told = answer(verdict).sentence("throughput", 0.03).replace("\u00a0", " ")
    assert told.startswith(words)
    assert ("+8.0 % throughput [7.1, 9.2]" in told) == (verdict not in ("invalid", "differs by host"))
    assert {*VERDICTS} >= {verdict} - {None}


def test_a_reader_s_words_may_say_both_sides_and_a_parameter_keeps_its_case():
    both = answer("slower", answer="one disk instead of two")
    assert (both.words, both.reference) == ("one disk instead of two", "")
    assert both.sentence("throughput", 0.03).startswith("One disk was slower than two: ")
    setting = answer("faster", answer="work_mem of 8 MB").sentence("tps", 0.03)
    assert setting.startswith("work_mem of 8 MB was faster than defaults")
    assert answer("invalid").change == ("", "")
    named = answer("faster", level="hash instead of btree", answer="hash instead of btree")
    assert named.reference == "defaults"
    assert named.sentence("tps", 0.03).startswith("Hash instead of btree was faster than defaults")


def test_what_answers_is_what_is_declared_or_all_but_the_controls(page_of):
    page = page_of(tuned=10.0, other=0.0)
    assert [each.level for each in page.answers] == ["tuned", "other"]
    assert [each.level for each in page.others] == ["control"]
    declared = page_of({"other": "the other"}, tuned=10.0, other=0.0)
    assert [each.level for each in declared.answers] == ["other"]
    assert [each.level for each in declared.others] == ["tuned", "control"]
    assert [each.family for each in declared.others] == ["exploratory", "control"]
    assert (page.exploratory, declared.exploratory) == (False, True)
    ((verdict, told),) = declared.sentences()
    assert told.startswith("The other ")
    assert verdict in VERDICTS


def test_a_page_is_the_same_after_its_file_and_what_is_not_known_is_null(page_of):
    page = page_of(tuned=10.0).model_copy(update={"comparisons": (answer("invalid"),)})
    text = page.model_dump_json()
    row = json.loads(text)["comparisons"][0]
    assert (row["p_value"], row["percent_change"], row["verdict"]) == (None, 8.0, "invalid")
    again = PageData.model_validate_json(text)
    assert again.model_dump_json() == text
    assert math.isnan(again.comparisons[0].p_value)


def test_limits_come_with_their_comparison_and_with_advice(page_of, trials_of, study_of):
    effects = compare(trials_of(tuned=10.0), baseline="defaults", controls=["control"])
    limits = pd.DataFrame({"code": ["no_control"], "text": ["There is no A/A control."]})
    limits.attrs = {"kind": "limits", "by_level": {"tuned": "worst"}, "unmet": {"tuned": "it slept"}}
    setup = pd.DataFrame({"what": ["server"], "value": ["PostgreSQL 18"]})
    setup.attrs = {"kind": "setup"}
    frames = {frame.attrs["kind"]: as_data(frame) for frame in (effects, limits, setup)}
    page = page_data(study_of(), frames, name="x", missing=3)
    assert [(each.limit, each.unmet) for each in page.comparisons] == [("worst", "it slept"), ("", "")]
    assert page.limits[0].advice == (SENTENCES["no_control"].why, SENTENCES["no_control"].do)
    assert Limit(code="of the future", text="x").advice == ("", "")
    assert page.setup == {"server": "PostgreSQL 18"}
    assert page.complete.startswith("3 trials")


def test_level_marks_tell_whether_levels_are_the_same_as_in_another_study(study_of, page_of, trials_of):
    effects = as_data(compare(trials_of(tuned=1.0), baseline="defaults", controls=["control"]))

    def mark(memory):
        study = study_of(levels={"tuned": Level(settings={"work_mem": memory})})
        return page_data(study, {"effects": effects}, name="x").level_marks["tuned"]

    assert mark("8MB") == mark("8MB") != mark("9MB")


def test_the_command_names_whatever_is_not_usual_and_survives_a_shell():
    usual = {
        "baseline": "it's $HOME", "controls": ("control",), "against": {}, "answers": {}, "metric": "tps", "margin": 0.03,
        "alpha": 0.05, "looks": (),
    }  # fmt: skip
    words = shlex.split(repeat_command("x", usual))
    assert words[:5] == ["benchlib", "analyze", "x.trials.csv", "--baseline", "it's $HOME"]
    assert words[5:] == ["--control", "control", "--margin", "0.03"]
    rare = {"against": {"b": "a"}, "answers": {"b": "B"}, "metric": "p99_ms", "alpha": 0.005, "looks": (3, 5), "fixed_hosts": True}  # fmt: skip
    told = repeat_command("x", usual | rare)
    assert told.endswith(
        "--against b=a --answer b --metric p99_ms --margin 0.03 --alpha 0.005 --looks 3,5 --hosts-fixed"
    )


def test_pages_are_ordered_by_factor_the_shortest_name_first(page_of):
    about = [("storage", "storage-recorded"), ("memory", "memory-areas"), ("memory", "memory")]
    pages = [page_of(about={"notebook": notebook, "name": name}, tuned=1.0) for notebook, name in about]
    assert [page.name for page in ordered(pages)] == ["memory", "memory-areas", "storage-recorded"]


def test_matrices_of_several_studies_are_one_picture_in_which_the_newest_row_counts(page_of):
    def page(name, workload, change, measured_at, **about):
        cells = {level: {"workload": workload, "version": version} for level, version in (("defaults", "11"), ("tuned", "18"))}  # fmt: skip
        return page_of(
            about={"name": name, "cells": cells, "measured_at": measured_at, **about}, tuned=float(change)
        )

    survey = (Limit(code="survey", text="A survey."),)
    effects, matrix = joined_matrix([
        page("writes", "writes", 10, "2026-01-01"),
        page("new", "reads", 20, "2026-01-03"),
        page("old", "reads", 30, "2026-01-02"),
        page("surveyed", "scans", 40, "2026-01-04", limits=survey),
        page("latency", "joins", 50, "2026-01-04", metric="latency_average_ms"),
        page_of(about={"cells": {"tuned": {"memory": "1GB", "version": "18"}}}, tuned=5.0),
        page_of(tuned=5.0),
    ])  # fmt: skip
    assert [*effects["level"]] == ["writes: tuned", "new: tuned"]
    assert [*effects["reference"]] == ["11", "11"]
    assert matrix.reset_index().to_numpy().tolist() == [
        ["writes: defaults", "writes", "11"], ["writes: tuned", "writes", "18"],
        ["new: defaults", "reads", "11"], ["new: tuned", "reads", "18"],
    ]  # fmt: skip
    assert (effects.attrs["title"], matrix.attrs["order"]) == ("throughput", {"version": ["11", "18"]})
    texts = {text.get_text() for text in plot.heat(effects, matrix).axes[0].texts}
    assert {text[:3] for text in texts} >= {"+10", "+20"}
    assert [len(frame) for frame in joined_matrix([page_of(tuned=5.0)])] == [0, 0]
