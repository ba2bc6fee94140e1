"""The one loop: what is missing runs, what is kept stays, whatever happens in between."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeBench

from benchlib.errors import InputError, Interrupted, StudyError
from benchlib.plan.level import Level
from benchlib.plan.model import Load, Study
from benchlib.study.loop import keep_study, missing, run_study, set_failed_aside
from benchlib.study.store import CHECKSUMS, StudyFolder

Bench = Callable[..., FakeBench]


@pytest.fixture
def bench_for(tmp_path: Path) -> Bench:
    """Makes a fake bench for a study's folder."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return lambda folder, **options: FakeBench(folder.read().plan, workspace, **options)


def ids(folder: StudyFolder) -> list[str]:
    return [trial.id for trial in folder.read().trials]


def contents(folder: StudyFolder) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder.path)): p.read_bytes()
        for p in folder.path.rglob("*")
        if p.is_file() and p.name != CHECKSUMS
    }


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_trials_run_in_the_order_of_the_design_block_by_block(folder_of, bench_for: Bench) -> None:
    folder = folder_of(3)
    bench = bench_for(folder)
    run_study(folder, bench.open)
    assert bench.measured == ids(folder)
    assert bench.blocks == [1, 2, 3]
    assert list(folder.kept()) == ids(folder)
    assert (bench.opened, bench.closed) == (1, 1)
    assert list(bench.workspace.iterdir()) == [], "raw files are the store's now"


def test_only_what_is_missing_runs_and_nothing_else_is_touched(folder_of, bench_for: Bench) -> None:
    folder = folder_of(3)
    run_study(folder, bench_for(folder).open)
    lost = [ids(folder)[1], ids(folder)[8]]
    for trial_id in lost:
        folder.set_aside(trial_id)
    before = contents(folder)
    bench = bench_for(folder)
    run_study(folder, bench.open)
    assert bench.measured == lost
    assert bench.blocks == [1, 3]
    assert contents(folder).items() >= before.items()


@pytest.mark.parametrize("call", [1, 4])
def test_an_interruption_loses_the_current_trial_and_nothing_else(
    folder_of, bench_for: Bench, call: int
) -> None:
    folder = folder_of()
    bench = bench_for(folder, raising={call: KeyboardInterrupt()})
    with pytest.raises(Interrupted) as caught:
        run_study(folder, bench.open)
    assert one_line(caught) == (
        f"stopped: {call - 1} of 6 trials are kept in data/small; run the same again to go on from there"
    )
    assert list(folder.kept()) == ids(folder)[: call - 1]
    assert bench.closed == 1, "the servers stop"
    assert list(bench.workspace.iterdir()) == []
    again = bench_for(folder)
    run_study(folder, again.open)
    assert again.measured == ids(folder)[call - 1 :]
    assert list(folder.kept()) == ids(folder)


def test_a_full_disk_ends_the_run_in_one_line_and_keeps_the_rest(folder_of, bench_for: Bench) -> None:
    folder = folder_of()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    bench = bench_for(folder, raising={3: full})
    with pytest.raises(StudyError) as caught:
        run_study(folder, bench.open)
    assert one_line(caught) == (
        f"trial {ids(folder)[2]} cannot be measured here: "
        "mend that and run again, what is kept is safe (No space left on device)"
    )
    assert list(folder.kept()) == ids(folder)[:2]
    assert bench.closed == 1


# --- failed trials -----------------------------------------------------------------------


def test_a_failed_trial_is_kept_with_its_error_and_the_study_goes_on(folder_of, bench_for: Bench) -> None:
    folder = folder_of()
    bench = bench_for(folder, failing={2: "server went away"})
    run_study(folder, bench.open)
    kept = folder.kept()
    assert list(kept) == ids(folder)
    assert [m.error for m in kept.values()] == [None, "server went away", None, None, None, None]
    assert b"server went away" in (folder.raw(ids(folder)[1], "stderr") or b"")
    again = bench_for(folder)
    run_study(folder, again.open)
    assert again.opened == 0, "a failed trial is kept, not missing"


def test_a_block_in_which_all_fail_stops_the_run(folder_of, bench_for: Bench) -> None:
    folder = folder_of(3)
    bench = bench_for(folder, failing={4: "first", 5: "second", 6: "third"})
    with pytest.raises(StudyError) as caught:
        run_study(folder, bench.open)
    assert one_line(caught) == "every trial of block 2 failed, so the run stops: first"
    assert list(folder.kept()) == ids(folder)[:6]
    assert bench.closed == 1


def test_a_whole_block_is_repeated_for_one_failed_trial(folder_of, bench_for: Bench) -> None:
    folder = folder_of(3)
    run_study(folder, bench_for(folder, failing={5: "lost"}).open)
    set_failed_aside(folder)
    assert [t.block for t in missing(folder.read(), folder.kept())] == [2, 2, 2]
    assert len(list((folder.path / "spoilt").iterdir())) == 3
    bench = bench_for(folder)
    run_study(folder, bench.open)
    assert bench.measured == ids(folder)[3:6]
    assert not any(m.error for m in folder.kept().values())


# --- the same name again ----------------------------------------------------------------------


def test_the_same_study_again_is_the_one_that_is_kept(data_root: Path, study_of) -> None:
    folder = StudyFolder("small")
    first = study_of().model_copy(update={"provenance": {"created": "first"}})
    assert keep_study(folder, first) == first
    again = keep_study(folder, study_of().model_copy(update={"provenance": {"created": "second"}}))
    assert again == first
    assert folder.read() == first


def test_what_a_lever_did_not_have_in_an_earlier_version_makes_no_other_study(
    data_root: Path, study_of
) -> None:
    def study(**replication: object) -> Study:
        return study_of(levels={"tuned": Level(replication={"replicas": 1, **replication})})

    kept = keep_study(StudyFolder("small"), study())
    assert keep_study(StudyFolder("small"), study(delay_ms=None)) == kept
    with pytest.raises(InputError, match=r"factor\.levels\.tuned\.replication\.delay_ms"):
        keep_study(StudyFolder("small"), study(delay_ms=2.0))


def test_more_blocks_extend_a_study_and_keep_what_it_has(folder_of, study_of, bench_for: Bench) -> None:
    folder = folder_of(2)
    run_study(folder, bench_for(folder).open)
    before = contents(folder)
    longer = keep_study(folder, study_of(4))
    assert folder.read() == longer
    assert longer.trials == study_of(4).trials
    bench = bench_for(folder)
    run_study(folder, bench.open)
    assert bench.blocks == [3, 4]
    trials = {name: data for name, data in before.items() if name != "study.json"}
    assert contents(folder).items() >= trials.items()


def test_fewer_blocks_leave_a_study_as_it_is(folder_of, study_of) -> None:
    folder = folder_of(4)
    before = contents(folder)
    asked = study_of(2).model_copy(update={"parameters": {"blocks": 2}})
    lines: list[str] = []
    assert keep_study(folder, asked, lines.append) == study_of(4)
    assert contents(folder) == before
    assert lines == ["small has 4 blocks, more than the 2 asked for: all of them count"]


def test_levels_named_in_another_order_extend_the_same_design(
    data_root: Path, plan_of, study_of, bench_for: Bench
) -> None:
    folder = StudyFolder("small")
    keep_study(folder, study_of(2))
    run_study(folder, bench_for(folder).open)
    plan = plan_of()
    levels = dict(reversed(plan.factor.levels.items()))
    other = plan.model_copy(update={"factor": plan.factor.model_copy(update={"levels": levels})})
    longer = keep_study(folder, study_of(4, plan=other))
    assert longer.trials == study_of(4).trials
    assert len(missing(longer, folder.kept())) == 6, "no measurement is orphaned"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"levels": {"tuned": Level(settings={"work_mem": "16MB"})}}, "factor.levels.tuned.settings.work_mem"),
        ({"load": Load(duration_s=4, clients=5, threads=5), "scale": 2, "seed": 1}, "load.clients, load.threads, load.duration_s and 2 more"),
    ],
)  # fmt: skip
def test_another_plan_under_the_same_name_is_refused_saying_what_differs(
    folder_of, study_of, changes: dict[str, object], what: str
) -> None:
    folder = folder_of()
    before = contents(folder)
    with pytest.raises(InputError) as caught:
        keep_study(folder, study_of(5, **changes))
    assert one_line(caught) == (
        f"study 'small' exists with another plan ({what}): choose another name (-p study NAME)"
    )
    assert contents(folder) == before


# --- telling ---------------------------------------------------------------------------------


def test_progress_tells_what_is_done_what_failed_and_what_is_left(folder_of, bench_for: Bench) -> None:
    folder = folder_of()
    lines: list[str] = []
    run_study(folder, bench_for(folder, failing={2: "server went away"}).open, lines.append)
    levels = [trial.level for trial in folder.read().trials]
    assert [line.partition(" · ")[2] for line in lines] == [
        "starting", "building clusters",
        f"block 1, “{levels[0]}”", f"block 1, “{levels[1]}”", f"block 1, “{levels[1]}” failed: server went away",
        f"block 1, “{levels[2]}”", *(f"block 2, “{level}”" for level in levels[3:]), "done",
    ]  # fmt: skip
    assert re.fullmatch("small: trial 0/6, 0:00:0. gone · .*", lines[2]), (
        "nobody knows how long a trial takes"
    )
    assert re.fullmatch("small: trial 1/6, 0:00:0. gone, about 0:0.:.. left · .*", lines[3])
    assert re.fullmatch("small: trial 6/6, 1 failed, 0:00:0. gone, about 0:00:00 left · done", lines[-1])


# --- enough is enough ----------------------------------------------------------------------------


def test_a_settled_question_ends_the_run_between_blocks(folder_of, bench_for: Bench) -> None:
    folder = folder_of(4)
    bench = bench_for(folder)
    lines: list[str] = []

    def enough() -> str | None:
        return "all verdicts are in" if len(folder.kept()) >= 6 else None

    run_study(folder, bench.open, lines.append, enough)
    assert bench.blocks == [1, 2]
    assert lines[-1].endswith(" · done early: all verdicts are in")
    assert bench.closed == 1
    again = bench_for(folder)
    run_study(folder, again.open, enough=enough)
    assert again.opened == 0
