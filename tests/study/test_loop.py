"""The loop: missing trials run, saved trials stay."""

import errno
import re
import shutil
from collections.abc import Callable

import pytest
from fakes import FakeBench
from hosts import ending, ids, spoilt
from kept import contents

from benchlib.errors import InputError, Interrupted, StudyError
from benchlib.plan.level import Level
from benchlib.plan.model import Load, Measurement
from benchlib.report.gate import gate_study, status
from benchlib.stats.gate import UNKNOWN
from benchlib.study.experiment import shown
from benchlib.study.loop import check_levels, keep_study, missing, run_study, set_failed_aside
from benchlib.study.store import StudyFolder

Run = Callable[..., FakeBench]


@pytest.fixture
def run(tmp_path):
    """Runs a study and gives its bench, which is closed and has nothing left."""

    def make(folder, *heard, ends=None, **options):
        bench = FakeBench(folder.read().plan, tmp_path / "workspace", **options)
        bench.workspace.mkdir(exist_ok=True)
        with ending(ends):
            run_study(folder, bench.open, *heard)
        assert bench.opened == bench.closed
        assert list(bench.workspace.iterdir()) == []
        return bench

    return make


def test_only_missing_trials_run_block_by_block(folder_of, run):
    folder = folder_of(3)
    bench = run(folder)
    assert (bench.measured, bench.blocks, list(folder.kept())) == (ids(folder), [1, 2, 3], ids(folder))
    lost = [ids(folder)[1], ids(folder)[8]]
    for trial_id in lost:
        folder.set_aside(trial_id)
    before = contents(folder.path / "trials")
    bench = run(folder)
    assert (bench.measured, bench.blocks) == (lost, [1, 3])
    assert contents(folder.path / "trials").items() >= before.items()


@pytest.mark.parametrize(
    ("kept", "ends", "options"),
    [
        (0, (Interrupted, "stopped: 0 of 9 trials are saved in data/small;"), {"raising": {1: KeyboardInterrupt()}}),
        (3, (Interrupted, "stopped: 3 of 9 trials are saved in data/small;"), {"raising": {4: KeyboardInterrupt()}}),
        (2, (StudyError, "trial .* cannot be measured .*No space"), {"raising": {3: OSError(errno.ENOSPC, "No space")}}),
        (6, (StudyError, "every trial of block 2 failed, .*: first"), {"failing": {4: "first", 5: "2nd", 6: "3rd"}}),
    ],
)  # fmt: skip
def test_an_interrupted_run_loses_the_current_trial_only(folder_of, run, kept, ends, options):
    folder = folder_of(3)
    run(folder, ends=ends, **options)
    assert list(folder.kept()) == ids(folder)[:kept]
    assert run(folder).measured == ids(folder)[kept:]
    assert list(folder.kept()) == ids(folder)


def test_a_failed_trial_stays_until_its_block_is_repeated(folder_of, run):
    folder, failed = folder_of(3), 4
    run(folder, failing={failed + 1: "server went away"})
    errors = {trial_id: m.error for trial_id, m in folder.kept().items()}
    assert errors == dict.fromkeys(ids(folder)) | {ids(folder)[failed]: "server went away"}
    assert b"server went away" in (folder.raw(ids(folder)[failed], "stderr") or b"")
    assert run(folder).opened == 0, "it is kept, not missing"
    set_failed_aside(folder)
    assert len(spoilt(folder)) == 3
    assert run(folder).measured == ids(folder)[3:6]
    assert not any(m.error for m in folder.kept().values())


def test_a_level_that_always_fails_ends_the_study_or_is_left_out_until_that_is_corrected(folder_of, run):
    folder, reason = folder_of(4), "server did not start: could not access file “nothing”"
    ends = (StudyError, f"level “tuned” failed in each of its 2 trials: {reason}: .*retry_failed")
    assert run(folder, ends=ends, unready={"tuned": reason}).blocks == [1, 2]
    assert run(folder, ends=ends).blocks == [], "it is not tried again unasked"
    folder.write(folder.read().changed(parameters={"leave_out": True}))
    assert run(folder).blocks == [3, 4]
    errors = [m.error for m in folder.kept().values() if m.trial.level == "tuned"]
    assert errors == [reason] * 2 + [f"left out, since each of its trials failed: {reason}"] * 2
    assert not any(m.error for m in folder.kept().values() if m.trial.level != "tuned")
    changes = shown(folder).analysis.table.set_index("level")["percent_change"]
    assert changes.isna().to_dict() == {"defaults": True, "control": False, "tuned": True}
    set_failed_aside(folder)
    run(
        folder,
        unready={"defaults": reason},
        ends=(StudyError, "level “defaults” failed in each of its 2 trials"),
    )


def test_a_cell_of_a_matrix_that_always_fails_is_left_out_even_the_baseline(folder_of, plan_of, run):
    cells = {
        f"{work}, {version}": {"workload": work, "version": version}
        for work in "ab"
        for version in ("16", "18")
    }
    levels = {name: Level(workload=cell["workload"]) for name, cell in cells.items()}
    factor = plan_of().factor.changed(
        baseline="a, 16", levels={"a, 16": levels["a, 16"], "control": levels["a, 16"], **levels}, cells=cells,
        against={"a, 18": "a, 16", "b, 18": "b, 16"},
    )  # fmt: skip
    works = {name: plan_of().workload.changed(name=name) for name in "ab"}
    folder = folder_of(5, plan=plan_of(factor=factor, workload=works["a"], workloads=works))
    folder.write(folder.read().changed(parameters={"workloads": ["a", "b"], "versions": ["16", "18"]}))
    bench = run(folder, unready={"a, 16": "no such library", "control": "no such library"})
    assert bench.blocks == [1, 2, 3, 4, 5]
    experiment = shown(folder)
    assert (experiment.comparison["baseline"], experiment.comparison["controls"]) == ("b, 16", ())
    compared = experiment.analysis.table.set_index("level")["percent_change"].dropna()
    assert [*compared.index] == ["b, 18"]
    codes = {(concern.code, concern.level) for concern in experiment.analysis.warnings}
    assert ("no_reference", "a, 18") in codes
    gated = gate_study(folder.name, None)
    assert [what for outcome, _, what, *_, why in gated if outcome == UNKNOWN and "no good trial" in why] == [
        "a, 18"
    ]
    assert status(gated) == 4


@pytest.mark.parametrize("lost", ["defaults", "control"])
def test_without_a_trial_of_the_baseline_or_a_control_the_failure_is_told(lost, folder_of, run):
    folder = folder_of(3, levels={"a": Level(), "b": Level()})
    run(folder, failing={lost: "its rows are gone"}, error_kind="InvariantError")
    with pytest.raises(StudyError, match=f"“{lost}” has no successful trial: its rows are gone"):
        shown(folder).check_comparable()


@pytest.mark.parametrize(
    ("failures", "kind", "stops"),
    [
        (1, "ServerError", False),
        (2, "ServerError", True),
        (2, "LoadError", True),
        (2, "InvariantError", False),
    ],
)
def test_only_failures_of_the_server_or_the_load_end_a_study(study_of, failures, kind, stops):
    times = {"started_s": 0, "finished_s": 1}
    trials = {level: [t for t in study_of(2).trials if t.level == level] for level in ("defaults", "tuned")}
    failed = [
        Measurement(trial=t, **times, error="gone", error_kind=kind) for t in trials["tuned"][:failures]
    ]
    with ending((StudyError, "level “tuned”") if stops else None):
        check_levels(study_of(2), [Measurement(trial=trials["defaults"][0], **times), *failed])


# --- the same name again ----------------------------------------------------------------------


def test_the_same_study_is_the_saved_one(data_root, study_of):
    folder = StudyFolder("small")
    first = study_of().model_copy(update={"provenance": {"created": "first"}})
    assert keep_study(folder, first) == first
    assert keep_study(folder, study_of()) == first
    assert folder.read() == first


def test_a_key_that_is_new_since_then_makes_no_other_plan(folder_of, study_of):
    def levels(**replication):
        return {"tuned": Level(replication={"replicas": 1, **replication})}

    folder = folder_of(levels=levels())
    assert keep_study(folder, study_of(levels=levels(delay_ms=None))) == folder.read()
    with pytest.raises(InputError, match=r"factor\.levels\.tuned\.replication\.delay_ms"):
        keep_study(folder, study_of(levels=levels(delay_ms=2.0)))


@pytest.mark.parametrize("turned", [False, True], ids=["in order", "levels in another order"])
def test_more_blocks_extend_a_study(folder_of, plan_of, study_of, run, turned):
    folder, plan = folder_of(2), plan_of()
    run(folder)
    before = contents(folder.path / "trials")
    levels = dict(reversed(plan.factor.levels.items())) if turned else plan.factor.levels
    factor = plan.factor.model_copy(update={"levels": levels})
    longer = keep_study(folder, study_of(4, plan=plan.model_copy(update={"factor": factor})))
    assert folder.read() == longer
    assert longer.trials == study_of(4).trials
    assert run(folder).blocks == [3, 4]
    assert contents(folder.path / "trials").items() >= before.items()


def test_fewer_blocks_leave_a_study_as_it_is(folder_of, study_of):
    folder, lines = folder_of(4), list[str]()
    before = contents(folder.path)
    asked = study_of(2).model_copy(update={"parameters": {"blocks": 2}})
    assert keep_study(folder, asked, lines.append) == study_of(4)
    assert contents(folder.path) == before
    assert len(lines) == 1


def test_the_answers_of_a_study_are_those_that_were_declared_before_its_first_trial(folder_of, study_of, run):
    def asking(**answers):
        return study_of().model_copy(update={"parameters": {"answers": answers}})

    folder, lines = folder_of(), list[str]()
    assert keep_study(folder, asking(tuned="the set")).parameters["answers"] == {"tuned": "the set"}
    run(folder)
    for answers, kept in (
        ({"control": "it"}, "the set"),
        ({}, "the set"),
        ({"tuned": "other words"}, "other words"),
    ):
        now = keep_study(folder, asking(**answers), lines.append)
        assert now.parameters["answers"] == folder.read().parameters["answers"] == {"tuned": kept}
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"levels": {"tuned": Level(settings={"work_mem": "16MB"})}}, "factor.levels.tuned.settings.work_mem"),
        ({"load": Load(duration_s=4, clients=5, threads=5), "scale": 2, "seed": 1}, "load.clients, load.threads, load.duration_s and 2 more"),
    ],
)  # fmt: skip
def test_another_plan_under_the_same_name_is_refused_with_the_differences(folder_of, study_of, changes, what):
    folder = folder_of()
    before = contents(folder.path)
    with ending((InputError, re.escape(f"study 'small' exists with another plan ({what})"))):
        keep_study(folder, study_of(5, **changes))
    assert contents(folder.path) == before


# --- telling, and enough ---------------------------------------------------------------------


def test_progress_reports_done_failed_and_remaining_trials(folder_of, run):
    folder, lines = folder_of(), list[str]()
    run(folder, lines.append, failing={2: "server went away"})
    levels = [trial.level for trial in folder.read().trials]
    assert [line.rpartition(" · ")[2] for line in lines] == [
        "starting", "building clusters", f"“{levels[0]}”", f"“{levels[1]}”", f"“{levels[1]}” failed: server went away",
        f"“{levels[2]}”", *(f"“{level}”" for level in levels[3:]), "done",
    ]  # fmt: skip
    assert lines[2].startswith("small: block 1 of 2 · trial 1 of 6 · “"), "nobody knows how long one takes"
    assert re.match(r"small: block 1 of 2 · trial 2 of 6 · \d+ s left · “", lines[3])
    assert re.match(r"small: block 2 of 2 · trial 5 of 6 · 1 failed · \d+ s left · “", lines[-3])
    assert lines[-1] == "small: 6 trials · 1 failed · done"


def test_a_settled_study_stops_between_blocks(folder_of, run):
    folder, lines = folder_of(4), list[str]()

    def enough():
        return "all verdicts are in" if len(folder.kept()) >= 6 else None

    assert run(folder, lines.append, enough).blocks == [1, 2]
    assert lines[-1].endswith(" · done early: all verdicts are in")
    assert run(folder, lines.append, enough).opened == 0
    assert len(missing(folder.read(), folder.kept())) == 6


def test_a_study_removed_meanwhile_ends_the_run_and_saves_no_trial(folder_of, run):
    folder = folder_of(2)

    def remove(line):
        if "trial 2 of" in line:
            shutil.rmtree(folder.path)

    with pytest.raises(StudyError, match="has been removed or renamed meanwhile"):
        run(folder, remove)
    assert not folder.path.exists()


@pytest.mark.parametrize("looks", [(), (3, 5)])
def test_a_baseline_that_never_succeeds_has_no_verdict_so_far(folder_of, plan_of, run, looks):
    folder, ends = folder_of(5, plan=plan_of(looks=looks)), (Interrupted, "stopped: 9 of 15")
    failing = {"failing": {"defaults": "rows are missing"}, "error_kind": "InvariantError"}
    run(folder, ends=ends, raising={10: KeyboardInterrupt()}, **failing)
    assert (shown(folder).so_far(), shown(folder).settled()) == (None, None)
