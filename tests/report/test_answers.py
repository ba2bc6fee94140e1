"""What answers a study's question: the comparisons that its notebook names and no others, in words, with what they cannot show."""

import math
import os
import re
from itertools import product

import numpy as np
import pytest
from benchlib.report.answers import UNSHOWN, answers, headline, limits
from fakes import counters

from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load
from benchlib.study.crashed import KILLED, POWER_CUT, Crash, keep_crash
from benchlib.study.experiment import Experiment
from benchlib.study.records import Counters, ReplicaReadings

LEVELS = {name: Level(settings={"work_mem": f"{number}MB"}) for number, name in enumerate("abcdefg", 1)}
LAZY = Level(settings={"synchronous_commit": "off"})


@pytest.fixture
def experiment(view_of, monkeypatch):
    """A study that ran at these speeds, 1,000 tps where none is said; its notebook had these parameters."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # what is kept here need not outlive a power cut

    def make(parameters=None, tps=None, *, blocks=5, noise=0.005, about=None, levels=LEVELS, **more):
        def drawn(trial):
            luck = np.random.default_rng(trial.seed).normal(0, noise)
            return (tps or {}).get(trial.level, 1000.0) * math.exp(luck)

        about = {"parameters": parameters or {}, **(about or {})}
        return view_of(drawn, blocks=blocks, about=about, levels=levels, **more).experiment

    return make


@pytest.fixture
def crossed(experiment, plan_of):
    """A study of a grid, every cell compared with the first; ``against`` are other references."""

    def make(grid, tps, parameters, against=None, run=None, **more):
        cells = {", ".join(ends): dict(zip(grid, ends, strict=True)) for ends in product(*grid.values())}
        cells = {name: cell for name, cell in cells.items() if run is None or name in run}
        baseline, *others = cells
        factor = Factor(
            question="?",
            baseline=baseline,
            controls=("control",),
            levels=dict.fromkeys([baseline, "control", *others], Level()),
            cells=cells,
            against=against or {},
        )
        patches = {name: {end: {} for end in ends} for name, ends in grid.items()}
        plan = plan_of().model_copy(update={"factor": factor})
        return experiment({"grid": patches, **parameters}, tps, plan=plan, **more)

    return make


def asked(parameters, of):
    """The same study, had its notebook had these parameters."""
    return Experiment(of.folder, of.study.model_copy(update={"parameters": parameters}))


def test_what_the_notebook_names_answers_in_its_order_and_nothing_else(experiment):
    names = {"d": "the fourth", "gone": "what this profile leaves out", "control": "noise", "a": "the first"}
    study = experiment({"answers": names, "panel": "costs"}, {"a": 1300.0, "b": 9000.0})
    fourth, first = answers(study)
    assert [(a.level, a.against, a.words) for a in (fourth, first)] == [
        ("d", "defaults", "the fourth"),
        ("a", "defaults", "the first"),
    ]
    assert first.ci_low < first.percent_change < first.ci_high
    assert (first.verdict, fourth.verdict, first.gives_up) == ("faster", "equivalent", "")
    assert study.study.declared.panel == "costs"
    sentence = headline(study)
    assert re.fullmatch(
        r"Against “defaults”: the fourth \S+ % tps \(95 % interval .* to .*\), equivalent within ±3 %; the first \+[^;]*, faster\.",
        sentence,
    )


@pytest.mark.parametrize(
    "parameters",
    [{}, {"answers": {}}, {"answers": {"gone": "it"}}, {"answers": ["a"], "lead": ["x"], "panel": {}, "caveat": 0},
     {"answers": {"a": "it instead of that"}, "against": {"a": "b"}, "lead": "nothing", "panel": "other"}],
)  # fmt: skip
def test_where_nothing_that_was_run_is_named_the_first_five_comparisons_answer(experiment, parameters):
    study = experiment(parameters, {"g": 5000.0}, blocks=3)
    assert [answer.words for answer in answers(study)] == ["“a”", "“b”", "“c”", "“d”", "“e”"]
    assert re.findall("“.”", headline(study)) == [f"“{name}”" for name in "abcde"]
    assert study.study.declared.panel == "changes"
    assert limits(study).startswith("Too short to see a drift inside trials · 3 trials of 3 s a level")


def test_a_kept_study_has_five_answers_at_most(experiment):
    study = experiment({"answers": {name: f"the {name}" for name in LEVELS}}, blocks=3)
    assert [answer.level for answer in answers(study)] == list("abcde")


def test_a_price_is_told_where_it_is_not_the_reference_s_and_once(experiment):
    levels = {"lazy": LAZY, "lazier": LAZY, "full": Level(), "from lazy": LAZY}
    study = experiment({"against": {}}, {"lazy": 2000.0}, levels=levels)
    given = {answer.level: answer.gives_up for answer in answers(study)}
    assert given["full"] == ""
    assert (
        given["lazy"]
        == given["lazier"]
        == "a crash loses the latest acknowledged commits (synchronous_commit = off)"
    )
    assert headline(study).count("but a crash loses the latest acknowledged commits") == 1
    plan = study.plan.model_copy(
        update={"factor": study.plan.factor.model_copy(update={"against": {"from lazy": "lazy"}})}
    )
    compared = Experiment(study.folder, study.study.model_copy(update={"plan": plan}))
    assert {answer.level: answer.gives_up for answer in answers(compared)}["from lazy"] == ""


GRID = {"disk": ("slow", "fast"), "load": ("writes", "reads")}
ALONG = {"fast, writes": "slow, writes", "fast, reads": "slow, reads"}


def test_an_answer_of_a_grid_is_named_by_some_of_its_values_and_says_itself_what_it_is_compared_with(crossed):
    named = {
        "fast, reads": "a fast disk instead of a slow one for reading",
        "fast": "a fast disk instead of a slow one",
    }
    parameters = {"along": "disk", "answers": named}
    study = crossed(GRID, {"fast, reads": 3000.0, "fast, writes": 1500.0}, parameters, ALONG)
    assert [(answer.level, answer.against) for answer in answers(study)] == [
        ("fast, reads", "slow, reads"),
        ("fast, writes", "slow, writes"),
    ]
    assert re.fullmatch(
        r"A fast disk instead of a slow one for reading: \+[^;]*faster; a fast disk instead of a slow one: \+.*faster\.",
        headline(study),
    )
    plain = asked({**study.study.parameters, "answers": {"fast, reads": "the fast disk"}}, study)
    assert headline(plain).startswith("Against “slow, reads”: the fast disk +")


def test_words_that_name_the_reference_are_used_of_that_reference_alone(crossed):
    named = {"fast, reads": "a fast disk instead of a slow one"}
    run = ("fast, writes", "fast, reads")  # without the slow disk the two loads are compared
    study = crossed(GRID, {}, {"along": "disk", "answers": named}, {"fast, reads": "fast, writes"}, run)
    assert headline(study).startswith("Against “fast, writes”: “fast, reads” ")


# --- findings that lead -------------------------------------------------------------

HARMLESS = {
    "after_s": 1.0, "server_version": "18.4", "acknowledged": 500, "lost": 0, "oldest_lost_ms": None, "unacknowledged": 0,
    "recovery_s": 0.5, "damage": (),
}  # fmt: skip
UNREADABLE = {"lost": None, "unacknowledged": None, "recovery_s": None, "damage": ("PANIC",)}


def test_a_headline_begins_with_what_crashes_cost(experiment):
    study = experiment({"lead": "crashes", "answers": {"a": "work_mem = 1MB"}})
    assert headline(study).startswith("Against “defaults”: work_mem")  # nothing was crashed

    def crashed(kind, number, level, **changes):
        about = {"level": level, "kind": kind, "number": number}
        keep_crash(study.folder, Crash.model_validate({**HARMLESS, **about, **changes}))

    crashed(KILLED, 1, "b", lost=9)
    assert headline(study).startswith(
        "In 1 kill each, “b” lost 9 acknowledged commits; no power was cut, which is"
    )
    for number in (1, 2):
        crashed(POWER_CUT, number, "defaults")
        crashed(POWER_CUT, number, "a", lost=1000 * number)
    assert headline(study).startswith(
        "In 2 power cuts each, work_mem = 1MB lost 3,000 acknowledged commits in all; the others that were crashed lost none and were not damaged. Against"
    )
    crashed(POWER_CUT, 1, "b", **UNREADABLE)
    assert "In 1 to 2 power cuts each, " in headline(study)
    assert (
        ", “b” left 1 of 1 clusters damaged; the others that were crashed lost none and were not damaged. Against"
        in headline(study)
    )


def of_clients(*clients):
    return {f"{n} clients": Level.model_validate({"load": {"clients": n}}) for n in clients}


@pytest.mark.parametrize(
    ("most", "finding"),
    [
        (
            3020.0,
            r"Throughput grows up to 16 clients; no larger number's mean is more than 3 % better; 32 instead of 16: .* "
            r"\(.*\); the bottleneck there: waits for the disk\. Against",
        ),
        (2000.0, "Throughput grows up to 16 clients; no larger"),
        (3500.0, "Throughput grows up to 32 clients, the most that were tried. Against"),
    ],
)
def test_a_headline_begins_with_where_the_curve_over_clients_ends(experiment, most, finding):
    tps = {"8 clients": 2000.0, "16 clients": 3000.0, "32 clients": most}
    study = experiment({"lead": "clients"}, tps, levels=of_clients(8, 16, 32), instruments=True)
    assert re.match(finding, headline(study))


def test_a_step_that_is_not_certain_is_no_end_of_a_curve(experiment):
    tps = {"8 clients": 1200.0}
    study = experiment({"lead": "clients"}, tps, levels=of_clients(8, 16), noise=0.5, blocks=3)
    assert headline(study).startswith(
        "Throughput grows up to 16 clients (the step from 8 is not certain), the most that"
    )
    several = experiment({"lead": "clients"}, name="other")  # of one number of clients
    assert headline(several).startswith("Against")


def test_of_one_block_no_step_of_a_curve_is_certain(experiment):
    study = experiment({"lead": "clients"}, {"8 clients": 1500.0}, levels=of_clients(8, 16), blocks=1)
    assert "is not certain" in headline(study)


CHANGES = {"settings": ("defaults", "tuned"), "kernel": ("as it is", "sysctl"), "disk": ("slow", "fast")}


def speeds(tuned, fast, both, sysctl=1.0):
    factors = {"": 1.0, "tuned": tuned, "fast": fast, "tuned fast": both}
    return {
        ", ".join(ends): 1000 * factors[" ".join(end for end in ends if end in ("tuned", "fast"))] * sysctl ** ("sysctl" in ends)
        for ends in product(*CHANGES.values())
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tps", "finding"),
    [
        (speeds(1.5, 2.0, 2.1), r"Settings and disk each bring a gain by themselves; multiplied that would be \+(199|200|201).* %, together they bring \+1\d\d.* %\. They bring less than that product: −(29|30).*\."),
        (speeds(1.5, 2.0, 3.0), r"Settings and disk each bring .*\. They add up: the two differ by .*\."),
        (speeds(1.5, 2.0, 4.0), r"Settings and disk each bring .*\. They bring more than that product: \+3\d.*\."),
        (speeds(1.0, 2.0, 2.0), r"Of settings, kernel and disk only disk is shown to bring a gain by itself, all else as it was, so there are no gains to add up\."),
        (speeds(1.0, 1.0, 1.0, 0.8), r"Of settings, kernel and disk none is shown to bring a gain by itself, all else as it was, so there are no gains to add up\."),
    ],
)  # fmt: skip
def test_a_headline_begins_with_whether_gains_add_up_of_the_changes_that_bring_one(crossed, tps, finding):
    study = crossed(
        CHANGES, tps, {"lead": "gains", "answers": {"tuned, sysctl, fast": "all three instead of none"}}
    )
    sentence = headline(study)
    assert re.match(finding + " All three instead of none: ", sentence), sentence


def test_a_study_that_is_no_grid_says_nothing_of_gains(experiment):
    assert headline(experiment({"lead": "gains"})).startswith("Against")


# --- what it cannot show ------------------------------------------------------------


def left(checkpoints):
    """What each trial of a study on 100 MiB of data leaves."""
    counted = counters(3000, checkpoints=checkpoints)
    counted["before"]["database_bytes"] = 100 << 20
    return lambda trial: {Counters.FILE: counted}


HOST = {"provenance": {"host": {"processors": 2, "memory_mib": 200}}}


def test_limits_say_worst_first_what_the_data_tell(experiment):
    parameters = {
        "answers": {"a": "it"},
        "caveat": "two clusters stand in for servers.",
        "conditions": {"a scan": {"holds": "r_iops >= 100", "levels": ["a"]}, "elsewhere": {"holds": "r_iops >= 100", "levels": ["b"]}},
    }  # fmt: skip
    study = experiment(parameters, instruments=True, leaving=left(0), about=HOST)
    assert limits(study) == (
        "Two clusters stand in for servers · not met: a scan (at “a”) · too short to see a drift inside trials · 5 trials of 3 s a level · "
        "load tool on the server's 2 processors · data 0.5 × the memory · no checkpoint within a trial"
    )
    assert answers(study)[0].verdict != UNSHOWN  # equivalent is an answer all the same


def test_a_size_s_caveat_stands_where_none_is_given(experiment):
    of = {"profile": "short", "profiles": {"short": {"caveat": "times are scaled."}}}
    assert limits(experiment(of)).startswith("Times are scaled · ")
    assert limits(experiment({**of, "caveat": "mine"}, name="other")).startswith("Mine · ")


def test_identical_servers_that_differ_by_more_than_matters_are_a_limit(experiment):
    line = limits(experiment({}, {"control": 1100.0}, noise=0.02))
    assert re.search(r"two identical servers differed by \+\d+(\.\d)?\s% \(", line), line


def test_limits_name_caps_stand_ins_and_replicas(experiment):
    place = {"data": {"file_system": "ext4", "size": 1 << 30}, "read_iops": 100, "memory": 40 << 20}
    levels = {"capped": Level(storage=place), "followed": Level(replication={"replicas": 1})}
    study = experiment({}, levels=levels, leaving=left(2), about=HOST)
    assert limits(study) == (
        "Too short to see a drift inside trials · 5 trials of 3 s a level · load tool and replicas on the server's 2 processors · "
        "data 0.5 to 2.5 × the memory · 2 checkpoints a trial · some disks are files with caps of ours"
    )


def test_limits_tell_how_far_away_replicas_on_other_hosts_are(experiment):
    away = {"elsewhere": {"replica1": {"host": "db2", "round_trip_s": 0.0012, "readings": []}}}
    load = Load(duration_s=3, generators=("gen1",))
    levels = {"followed": Level(replication={"replicas": 1, "on": ["db2"]})}
    study = experiment(
        {}, levels=levels, load=load, leaving=lambda trial: {ReplicaReadings.FILE: away}, about=HOST
    )
    assert limits(study).endswith("· replicas on other hosts, 1.2 ms there and back")


def test_limits_name_grave_doubts_and_end_at_seventy_words(experiment):
    noisy = {"control": 3000.0}
    study = experiment({"caveat": "word " * 45}, noisy, about=HOST)
    line = limits(study)
    assert "grave doubts about “control”" in line
    assert len(line.split()) <= 70
    assert "load tool" not in line
    assert headline(study).count("no verdict on") == 5
    assert headline(study).count("either") == 4
