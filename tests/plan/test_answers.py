"""The comparisons that answer a question, and what a plan needs of other hosts."""

import pytest
from asked import levels, planned

from benchlib.plan.fleet import elsewhere_of
from benchlib.plan.planning import answer_words

GRID = {
    "disk": {"slow": {}, "fast": {"settings": {"work_mem": "8MB"}}},
    "load": {"few": {"load": {"clients": 2}}, "many": {"load": {"clients": 8}}},
}
FASTER = "the fast disk instead of the slow one"
OF_GRID = {"levels": {}, "baseline": "", "grid": GRID}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, {"tuned": "tuned"}),
        ({"answers": {"tuned": "the tuned set"}}, {"tuned": "the tuned set"}),
        ({"levels": levels("x", "y"), "answers": {"y": "why"}}, {"y": "why"}),
        ({"answers": {"tuned": "tuned instead of defaults"}}, {"tuned": "tuned instead of defaults"}),
        (
            {"levels": levels("x", "y"), "against": {"y": "x"}, "answers": {"y": "y instead of x"}},
            {"y": "y instead of x"},
        ),
        ({**OF_GRID, "along": "disk", "answers": {"fast, many": FASTER}}, {"fast, many": FASTER}),
    ],
)
def test_declared_answers_have_a_readers_words_and_without_any_all_comparisons_answer(changes, words):
    assert answer_words(planned(**changes)) == words


def test_an_answer_whose_reference_was_left_out_is_no_answer():
    study = planned(
        {"x": "not here"},
        levels=levels("x", "y"), against={"y": "x"}, answers={"y": "y instead of x"},
    )  # fmt: skip
    assert "y instead of x" not in answer_words(study).values()


@pytest.mark.parametrize(
    ("changes", "caveat"),
    [
        ({}, ""),
        ({"caveat": "Small data."}, "Small data"),
        ({"profiles": {"quick": {"blocks": 3, "caveat": "Short"}}}, "Short"),
    ],
)
def test_a_stated_limit_is_the_notebooks_or_its_profiles(changes, caveat):
    assert planned(**changes).declared.stated_caveat == caveat


def test_load_and_replicas_on_other_hosts_are_named_with_their_roles():
    replicas = {"replication": {"replicas": 1, "on": ["db2"]}}
    plan = planned(levels=levels(far=replicas, hard={"load": {"from": ["load1"]}})).plan
    assert elsewhere_of(plan) == [("follower", "db2"), ("load", "load1")]
