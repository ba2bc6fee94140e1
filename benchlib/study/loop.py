"""The loop over a study's missing trials."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchlib.errors import BrakeError, InputError, Interrupted, StudyError, os_errors_as
from benchlib.plan.design import Trial
from benchlib.plan.model import AS_RUN, Measurement, Study
from benchlib.plan.words import time_words
from benchlib.study.store import StudyFolder

if TYPE_CHECKING:
    from benchlib.study.bench import Bench  # a saved study needs no servers

Tell = Callable[[str], None]
Enough = Callable[[], str | None]
OpenBench = Callable[[Tell], AbstractContextManager["Bench"]]
_LEFT_OUT = "left out, since each of its trials failed: "


class Progress:
    """The progress of a run, in lines."""

    def __init__(
        self, folder: StudyFolder, study: Study, kept: Mapping[str, Measurement], tell: Tell
    ) -> None:
        self._folder, self._study, self._tell = folder, study, tell
        self._started_s, self._before, self._saved = time.monotonic(), len(kept), {*kept}
        self._failed = sum(m.error is not None for m in kept.values())

    def add(self, measurement: Measurement) -> None:
        """Count a saved trial."""
        self._saved.add(measurement.trial.id)
        self._failed += measurement.error is not None

    def report(self, doing: str) -> None:
        """Report the next trial, the time left and the current step."""
        study, left = self._study, missing(self._study, self._saved)
        total = len(study.trials)
        parts = [f"block {left[0].block} of {study.blocks}"] if left else []
        parts.append(f"trial {study.trials.index(left[0]) + 1} of {total}" if left else f"{total} trials")
        parts += [f"{self._failed} failed"] if self._failed else []
        if left and (added := len(self._saved) - self._before):
            parts.append(f"{time_words(len(left) * (time.monotonic() - self._started_s) / added)} left")
        self._tell(f"{self._folder.name}: {' · '.join(parts)} · {doing}")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise Interrupted for Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            path = self._folder.path
            raise Interrupted(
                # counted on disk: Ctrl-C may come between saving and counting
                f"stopped: {len(self._folder.kept())} of {len(self._study.trials)} trials are saved in "
                f"{path.parent.name}/{path.name}; repeat the command to continue"
            ) from None


def keep_study(folder: StudyFolder, study: Study, tell: Tell = lambda line: None) -> Study:
    """Write a new study, or extend the saved one of the same plan; return it.

    - Fewer blocks remove nothing; ``extended`` records former sizes of complete studies.
    - Parameters outside the plan, such as prices, are replaced. After the first trial the answers stay those
      that were declared before it; only their words may change.
    """
    if not folder.exists():
        folder.write(study)
        return study
    kept = same_study(folder, study)
    if study.blocks < kept.blocks:
        tell(f"{folder.name} has {kept.blocks} blocks, {study.blocks} were requested: all of them count")
        return kept
    # designed with the saved plan: the order of levels matters
    more = tuple(trial for trial in kept.plan.design(study.blocks) if trial.block > kept.blocks)
    changes: dict[str, Any] = {"trials": kept.trials + more}
    changes["parameters"] = study.parameters and {**study.parameters, "question": kept.plan.factor.question}
    answers, declared = (each.parameters.get("answers", {}) for each in (study, kept))
    if study.parameters and {*answers} != {*declared} and folder.kept():
        tell(f"{folder.name} keeps the answers declared before it ran; other comparisons are exploratory")
        changes["parameters"]["answers"] = declared
    if more and not kept.plan.looks and not missing(kept, folder.kept()):
        changes["extended"] = (*kept.extended, kept.blocks)
    now = kept.model_copy(update=changes)
    if now != kept:
        folder.write(now)
    return now


def same_study(folder: StudyFolder, study: Study) -> Study:
    """Return the saved study of this plan; its measured capacity and edited question stay.

    Raises:
        InputError: it has another plan.

    """
    kept = folder.read()
    measured = {"capacity_tps": kept.plan.capacity_tps, "calls_tps": kept.plan.calls_tps}
    requested, factor = study.plan.changed(**measured), study.plan.factor
    if factor.question == kept.provenance.get(AS_RUN):
        requested = requested.changed(factor=factor.changed(question=kept.plan.factor.question))
    if paths := list(_differing(kept.plan.model_dump(), requested.model_dump())):
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        edit = ", or change its question: 'benchlib studies edit'" if paths == ["factor.question"] else ""
        raise InputError(
            f"study '{folder.name}' exists with another plan ({', '.join(paths[:3])}{more}): "
            f"choose another name (-p study NAME){edit}"
        )
    return kept


def _differing(kept: Any, requested: Any, path: str = "") -> Iterator[str]:
    """Yield differing paths; a missing key equals None."""
    if isinstance(kept, dict) and isinstance(requested, dict):
        for key in kept | requested:
            yield from _differing(kept.get(key), requested.get(key), f"{path}.{key}".lstrip("."))
    elif kept != requested:
        yield path


def missing(study: Study, kept: Container[str]) -> list[Trial]:
    """Return the unsaved trials, in the design's order."""
    return [trial for trial in study.trials if trial.id not in kept]


def set_failed_aside(folder: StudyFolder) -> None:
    """Set aside every block with a failed trial: a block shares one time."""
    kept = folder.kept()
    failed = {m.trial.block for m in kept.values() if m.error is not None}
    for trial_id, measurement in kept.items():
        if measurement.trial.block in failed:
            folder.set_aside(trial_id)


def check_levels(study: Study, measurements: Collection[Measurement]) -> dict[str, str]:
    """Return the levels to leave out: each trial fails, while other levels succeed.

    Raises:
        StudyError: it is the baseline, or the study leaves none out.

    """
    factor, patient, lost = study.plan.factor, study.patient, dict[str, str]()
    trials = Counter(m.trial.level for m in measurements)
    succeeded = {m.trial.level for m in measurements if m.error is None}
    # the other rows of a matrix have references of their own
    others = factor.cells and succeeded & {*factor.against.values()}
    for m in measurements if succeeded else ():
        level, of_the_server = m.trial.level, m.error_kind in ("ServerError", "SettingError", "LoadError")
        if of_the_server and trials[level] > 1 and level not in succeeded:
            needed = (factor.baseline, *(() if len({*study.plan.strata().values()}) > 1 else factor.controls))
            if patient and (others or level not in needed):
                lost.setdefault(level, f"{_LEFT_OUT}{str(m.error).removeprefix(_LEFT_OUT)}")
                continue
            raise StudyError(
                f"level “{level}” failed in each of its {trials[level]} trials: {m.error}: correct that and run "
                "with retry_failed, or leave the level out of a new study"
            )
    return lost


def run_study(
    folder: StudyFolder, open_bench: OpenBench, tell: Tell = lambda line: None, enough: Enough = lambda: None
) -> None:
    """Run the missing trials, block by block, and save each, even failed ones.

    ``enough`` returns why the run may stop, before each block.

    Raises:
        Interrupted: Ctrl-C; the current trial is dropped.
        StudyError: a block or level failed, or a trial cannot be saved.

    """
    study, measurements = folder.read(), folder.kept()
    todo = missing(study, measurements)
    if not todo or enough():
        return
    lost = check_levels(study, measurements.values())
    progress = Progress(folder, study, measurements, tell)
    report = progress.report
    report("starting")
    with progress.interruptible(), open_bench(report) as bench:
        for block, trials in groupby(todo, lambda trial: trial.block):
            if reason := enough():
                report(f"done early: {reason}")
                return
            for trial in trials:
                report(f"“{trial.level}”")
                measurement = measurements[trial.id] = _measured(folder, bench, trial, lost)
                if measurement.error:
                    report(f"“{trial.level}” failed: {measurement.error}")
                progress.add(measurement)
                if measurement.error_kind == BrakeError.__name__:
                    raise StudyError(f"{measurement.error}; later, run again with retry_failed")
            errors = [measurements[trial.id].error for trial in study.trials if trial.block == block]
            if all(errors):
                raise StudyError(f"every trial of block {block} failed, so the run stops: {errors[0]}")
            lost = check_levels(study, measurements.values())
    report("done")


def _measured(folder: StudyFolder, bench: "Bench", trial: Trial, lost: Mapping[str, str]) -> Measurement:
    """Run a trial, or leave it out, and save it."""
    failure = f"trial {trial.id} cannot be measured here: correct that and repeat the command; saved trials are safe"
    with (
        os_errors_as(StudyError, failure),
        tempfile.TemporaryDirectory(prefix="trial-", dir=bench.workspace) as raw,
    ):
        _check_exists(folder)
        if trial.level in lost:
            now, why = time.time(), {"error": lost[trial.level], "error_kind": "ServerError"}
            measurement = Measurement(trial=trial, started_s=now, finished_s=now).changed(**why)
        else:
            measurement = bench.measure(trial, Path(raw))
        _check_exists(folder)
        folder.keep(measurement, Path(raw))
    return measurement


def _check_exists(folder: StudyFolder) -> None:
    if not folder.exists():
        raise StudyError(f"{folder.path}/study.json has been removed or renamed meanwhile: the run stops")
