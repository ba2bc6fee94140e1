"""The one loop: plan, run what is missing, keep each trial, go on after an interruption."""

import re
import tempfile
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from benchlib.errors import InputError, Interrupted, StudyError, os_errors_as
from benchlib.plan.design import Trial
from benchlib.plan.model import AS_RUN, Measurement, Study
from benchlib.study.store import StudyFolder


class Bench(Protocol):
    """What the loop needs of a test bench; :mod:`benchlib.study.bench` has the real one."""

    @property
    def workspace(self) -> Path:
        """A folder for raw files, removed with everything else should the run be killed."""

    def measure(self, trial: Trial, folder: Path) -> Measurement:
        """Run one trial and leave its raw files in ``folder``; a failure is in the measurement."""


Tell = Callable[[str], None]
OpenBench = Callable[[Tell], AbstractContextManager[Bench]]


class Progress:
    """How far a study is, for whoever runs it."""

    def __init__(
        self, folder: StudyFolder, study: Study, kept: Mapping[str, Measurement], tell: Tell
    ) -> None:
        self._folder, self._study, self._tell = folder, study, tell
        self._failed = {trial_id: m.error is not None for trial_id, m in kept.items()}
        self._started, self._before = time.monotonic(), self.kept

    @property
    def kept(self) -> int:
        """How many trials are kept."""
        return len(self._failed)

    def add(self, measurement: Measurement) -> None:
        """Count a trial that has been kept."""
        self._failed[measurement.trial.id] = measurement.error is not None

    def drop(self, trial_id: str) -> None:
        """Count a trial no more, which has been set aside."""
        del self._failed[trial_id]

    def report(self, doing: str) -> None:
        """Tell how far it is, in a line, and what is done now."""
        gone_s, trials = time.monotonic() - self._started, len(self._study.trials)
        line = f"{self._folder.name}: trial {self.kept}/{trials}"
        line += f", {failed} failed" if (failed := sum(self._failed.values())) else ""
        line += f", {_clock(gone_s)} gone"
        if (added := self.kept - self._before) > 0:
            line += f", about {_clock((trials - self.kept) * gone_s / added)} left"
        self._tell(f"{line} · {doing}")

    def interrupted(self) -> Interrupted:
        """The error that Ctrl-C ends a run with."""
        path = self._folder.path
        return Interrupted(
            # by what is there: the order may come when a trial is kept and not yet counted
            f"stopped: {len(self._folder.kept())} of {len(self._study.trials)} trials are kept in "
            f"{path.parent.name}/{path.name}; run the same again to go on from there"
        )


def _clock(seconds: float) -> str:
    """A duration in hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def keep_study(folder: StudyFolder, study: Study, tell: Tell = lambda line: None) -> Study:
    """Write a new study, or find that the one kept under this name is the same; what is kept.

    More blocks than before are added to the study; fewer leave it as it is, so that a rerun
    never throws a measurement away. A study that was whole when it got more has been looked at, which is kept. Parameters that are no part of the plan, such as prices, are the last run's.

    Raises:
        InputError: a study of that name exists with another plan; the message says what differs.

    """
    if not folder.exists():
        folder.write(study)
        return study
    kept = same_study(folder, study)
    if study.blocks < kept.blocks:
        tell(
            f"{folder.name} has {kept.blocks} blocks, more than the {study.blocks} asked for: all of them count"
        )
        return kept
    # from what is kept: the plan asked for may name its levels in another order
    more = tuple(trial for trial in kept.plan.design(study.blocks) if trial.block > kept.blocks)
    changes: dict[str, Any] = {"trials": kept.trials + more}
    changes["parameters"] = study.parameters and {**study.parameters, "question": kept.plan.factor.question}
    if more and not kept.plan.looks and not missing(kept, folder.kept()):
        changes["extended"] = (*kept.extended, kept.blocks)
    now = kept.model_copy(update=changes)
    if now != kept:
        folder.write(now)
    return now


def same_study(folder: StudyFolder, study: Study) -> Study:
    """The study that is kept in a folder, once it is certain that it has the same plan.

    The capacity that rates are shares of was measured for the one that is kept: it is no part of what is asked.

    Raises:
        InputError: it has another; the message says what differs.

    """
    kept = folder.read()
    asked, factor = study.plan.changed(capacity_tps=kept.plan.capacity_tps), study.plan.factor
    if factor.question == kept.provenance.get(AS_RUN):  # it has been changed since
        asked = asked.changed(factor=factor.changed(question=kept.plan.factor.question))
    # what a lever did not have in an earlier version is as good as left out
    if paths := list(_differing(kept.plan.model_dump(), asked.model_dump())):
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        edit = ", or change its question: 'benchlib studies edit'" if paths == ["factor.question"] else ""
        raise InputError(
            f"study '{folder.name}' exists with another plan ({', '.join(paths[:3])}{more}): "
            f"choose another name (-p study NAME){edit}"
        )
    return kept


def _differing(kept: Any, asked: Any, path: str = "") -> Iterator[str]:
    """Where two values differ, such as ``factor.levels.tuned.settings.work_mem``."""
    if isinstance(kept, dict) and isinstance(asked, dict):
        for key in kept | asked:
            yield from _differing(kept.get(key), asked.get(key), f"{path}.{key}".lstrip("."))
    elif kept != asked:
        yield path


def missing(study: Study, kept: Container[str]) -> list[Trial]:
    """The trials that have not been kept yet, in the order of the design."""
    return [trial for trial in study.trials if trial.id not in kept]


def set_failed_aside(folder: StudyFolder) -> None:
    """Have every block with a failed trial run again, whole.

    A level is compared inside its block, so a single repeated trial would be compared with
    neighbours from another hour.
    """
    kept = folder.kept()
    spoilt = {m.trial.block for m in kept.values() if m.error is not None}
    for trial_id, measurement in kept.items():
        if measurement.trial.block in spoilt:
            folder.set_aside(trial_id)


_CHANCE = re.compile(
    r"(?i)server closed the connection|terminating connection|connection to server was lost|deadlock detected"
    r"|could not serialize|no space left|out of memory|cannot allocate"
)
_SCRIPT_FAILS = re.compile(r"aborted in .*ERROR: |FATAL: .*(?:PQ\w+\(\)|function) failed")


def _of_its_own(measurement: Measurement) -> bool:
    """Whether a trial failed by what its level is: it did not come to its load, or the load's script is refused."""
    error, began = measurement.error or "", measurement.load_returncode is not None
    if measurement.error_kind not in ("ServerError", "SettingError", "LoadError") or _CHANCE.search(error):
        return False
    return not began or (measurement.error_kind == "LoadError" and bool(_SCRIPT_FAILS.search(error)))


def check_levels(measurements: Collection[Measurement], working: Container[str] = ()) -> None:
    """See that no level fails each time for a reason of its own while others succeed: another block would not mend that.

    ``working`` are levels that are known to have succeeded.

    Raises:
        StudyError: one does; with its reason.

    """
    succeeded = {m.trial.level for m in measurements if m.error is None}
    for m in measurements if succeeded else ():
        level = m.trial.level
        if level not in succeeded and level not in working and _of_its_own(m):
            raise StudyError(
                f"level “{level}” fails for a reason of its own, from its first block on: {m.error}: mend that and run "
                "with retry_failed, or leave the level out of a new study"
            )


Enough = Callable[[], str | None]


def run_study(
    folder: StudyFolder,
    open_bench: OpenBench,
    tell: Tell = lambda line: None,
    enough: Enough = lambda: None,
    working: Container[str] = (),
) -> None:
    """Run the trials that are missing, block by block, and keep each as it ends.

    Nothing is opened when nothing is missing. A failed trial is kept with its error and the
    run goes on; when no trial of a whole block succeeds, or a level never does for a reason of its own, it stops. ``tell`` hears
    how far it is, in a line. ``enough`` is asked before each block whether what is kept settles the question; its answer says why.
    ``working`` are levels that have succeeded here before.

    Raises:
        Interrupted: Ctrl-C; the current trial is dropped, the others are kept.
        StudyError: nothing more can be measured, or kept.

    """
    study = folder.read()
    measurements = folder.kept()
    todo = missing(study, measurements)
    if not todo or enough():
        return
    check_levels(measurements.values(), working)
    progress = Progress(folder, study, measurements, tell)
    progress.report("starting")
    try:
        with open_bench(progress.report) as bench:
            for block, trials in groupby(todo, lambda trial: trial.block):
                if reason := enough():
                    progress.report(f"done early: {reason}")
                    return
                for trial in trials:
                    measurements[trial.id] = run_trial(folder, bench, trial, progress.report)
                    progress.add(measurements[trial.id])
                errors = [measurements[trial.id].error for trial in study.trials if trial.block == block]
                if all(errors):
                    raise StudyError(f"every trial of block {block} failed, so the run stops: {errors[0]}")
                check_levels(measurements.values(), working)
    except KeyboardInterrupt:
        raise progress.interrupted() from None
    progress.report("done")


def run_trial(folder: StudyFolder, bench: Bench, trial: Trial, report: Tell) -> Measurement:
    """Run a trial and keep what it leaves.

    Raises:
        StudyError: nothing more can be measured, or kept.

    """
    report(f"block {trial.block}, “{trial.level}”")
    failure = f"trial {trial.id} cannot be measured here: mend that and run again, what is kept is safe"
    with (
        os_errors_as(StudyError, failure),
        tempfile.TemporaryDirectory(prefix="trial-", dir=bench.workspace) as raw,
    ):
        _check_there(folder)
        measurement = bench.measure(trial, Path(raw))
        _check_there(folder)
        folder.keep(measurement, Path(raw))
    if measurement.error:
        report(f"block {trial.block}, “{trial.level}” failed: {measurement.error}")
    return measurement


def _check_there(folder: StudyFolder) -> None:
    """See that the study is still there: trials alone would be nobody's."""
    if not folder.exists():
        raise StudyError(f"{folder.path}/study.json has been removed or renamed meanwhile: the run stops")
