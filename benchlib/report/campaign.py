"""Campaigns: the studies of one YAML file, which a repeated run continues."""

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from benchlib.errors import BenchlibError, HostBusyError, InputError, Interrupted, PreflightError, StudyError
from benchlib.host import facts, files
from benchlib.host.guardian import scratch_root
from benchlib.host.shell import Shell
from benchlib.plan.level import Model, first_problem
from benchlib.plan.model import Study
from benchlib.plan.parameters import from_yaml
from benchlib.plan.words import time_words
from benchlib.report import runs, site
from benchlib.report.execute import Listen, find_notebook
from benchlib.study.experiment import Experiment
from benchlib.study.fleet import hosts_of
from benchlib.study.loop import missing, same_study
from benchlib.study.preflight import disk_mib
from benchlib.study.runs import Runner, plan_study
from benchlib.study.store import StudyFolder

_EACH_S = 5
"""Assumed seconds of a trial before and after its load, until trials of the study are saved."""
_REFRESH_S = 60
_NOTIFY_S = 60
_BUSY_S = 30
ReadFile = Callable[[Path], dict[str, Any]]


class Entry(Model):
    """A notebook and its parameters, which override those of ``file``."""

    notebook: str
    name: str = ""
    profile: str = ""
    file: str = ""
    parameters: dict[str, Any] = {}
    priority: float = 0

    def given(self, read_file: ReadFile) -> dict[str, Any]:
        """Return its parameters."""
        named = {"study": self.name, "profile": self.profile}
        of_file = read_file(Path(self.file)) if self.file else {}
        return {**of_file, **self.parameters, **{name: text for name, text in named.items() if text}}


class Campaign(Model):
    """Studies, those of the highest ``priority`` first.

    ``notify`` is a shell command for failures and the end.
    """

    studies: Annotated[tuple[Entry, ...], Field(min_length=1)]
    notify: str = ""


@dataclass
class Part:
    """A study of a campaign and its state."""

    notebook: Path
    given: dict[str, Any]
    runner: Runner
    state: str = "waiting"
    line: str = ""

    @property
    def study(self) -> Study:
        """The planned study."""
        return self.runner.experiment.study

    def counts(self) -> tuple[int, int, float]:
        """Return saved trials, missing trials, and the seconds that these need."""
        experiment = Experiment(self.runner.experiment.folder, self.study)  # with the trials of by now
        kept, load = experiment.kept, self.study.plan.load
        left = 0 if experiment.settled() else len(missing(self.study, kept))
        each_s: float = load.duration_s + load.warmup_s + _EACH_S
        if kept:
            each_s = sum(m.finished_s - m.started_s for m in kept.values()) / len(kept)
        return len(kept), left, left * each_s

    def retries(self) -> bool:
        """Return whether failed trials are to run again."""
        kept = self.runner.experiment.folder.kept() if self.runner.retry_failed else {}
        return any(each.error for each in kept.values())

    def has_page(self, root: Path) -> bool:
        """Return whether its page is there."""
        return (root / f"{self.study.name}.html").is_file()


def read_campaign(file: Path) -> Campaign:
    """Return the campaign in a file: a list of studies, or a mapping.

    Raises:
        InputError: the file is not readable, or not a campaign.
    """
    try:
        value = from_yaml(files.read_plain(file), file.name)
        return Campaign.model_validate({"studies": value} if isinstance(value, list) else value)
    except OSError as reason:
        raise InputError(f"{file.name}: cannot be read: {reason.strerror}") from None
    except ValidationError as reason:
        raise InputError(f"{file.name}: {first_problem(reason)}") from None


def planned(file: Path, campaign: Campaign, read_file: ReadFile) -> list[Part]:
    """Return the studies in the order of their run.

    Raises:
        InputError: some entries make no study.
    """
    parts, wrong = dict[str, Part](), list[str]()
    entries = sorted(enumerate(campaign.studies, 1), key=lambda numbered: -numbered[1].priority)
    for number, entry in entries:
        try:
            part = _part(entry, read_file)
            if part.study.name in parts:
                raise InputError(f"a second study '{part.study.name}': give it a 'name' of its own")
            parts[part.study.name] = part
        except BenchlibError as reason:
            wrong.append(f"entry {number} ({entry.notebook}): {reason}")
    if wrong:
        raise InputError(f"{file.name}: {'; '.join(wrong)}")
    return [*parts.values()]


def _part(entry: Entry, read_file: ReadFile) -> Part:
    notebook = find_notebook(entry.notebook)
    given, values = runs.values_of(notebook, entry.given(read_file))
    if not values.get("run", True) or runs.is_overview(values):
        raise InputError("it runs no trials: leave it out")
    hosts = hosts_of(values)
    study = plan_study(values, hosts)
    folder = StudyFolder(study.name)
    if folder.exists():
        same_study(folder, study)
    runner = Runner(Experiment(folder, study), bool(values.get("retry_failed")), hosts)
    return Part(notebook, given, runner)


def run_campaign(file: Path, read_file: ReadFile, listen: Listen) -> Iterator[str]:
    """Run the studies and yield lines; after a failure the others go on.

    Raises:
        InputError: some entries make no study; nothing was started.
        Interrupted: Ctrl-C; repeat the command to continue.
        StudyError: some studies failed.
    """
    campaign = read_campaign(file)
    parts = planned(file, campaign, read_file)
    page = _Page(parts)
    yield from _estimate(parts, site.writable_root())
    progress = page.write()
    yield f"progress: {progress}"
    failed = list[str]()
    for part in parts:
        if part.state == "done":
            continue
        part.state = "running"
        page.write()

        def hear(line: str, part: Part = part) -> None:
            part.line = line
            listen(line)
            page.refresh()

        try:
            lines = _run_when_free(part, hear)
            part.state, part.line = "done", lines[0]
            yield from lines[:-1]
        except (Interrupted, KeyboardInterrupt):
            part.state = "stopped"
            page.write()
            raise
        except Exception as reason:  # of whatever kind: the other studies go on
            part.state, part.line = "failed", f"{reason}" or type(reason).__name__
            failed.append(part.study.name)
            yield f"failed: {part.study.name}: {part.line}"
            yield from _notify(campaign.notify, "failed", part.study.name)
        page.write()
    yield from _notify(campaign.notify, "incomplete" if failed else "done", ",".join(failed))
    if failed:
        names = ", ".join(failed)
        raise StudyError(f"{len(failed)} of {len(parts)} studies failed: {names}: see {progress}")
    yield f"done: {len(parts)} studies"


def _run_when_free(part: Part, hear: Listen) -> list[str]:
    """Run a study once no other run is under way on this host."""
    while True:
        try:
            return runs.run_notebook(part.notebook, part.given, hear)
        except HostBusyError as reason:
            hear(f"{part.study.name}: waiting: {reason}")
            time.sleep(_BUSY_S)


def _estimate(parts: list[Part], root: Path) -> Iterator[str]:
    """Yield the needed time and disk, and what prevents studies from running."""
    seconds, trials, disk = 0.0, 0, 0
    for part in parts:
        _, left, left_s = part.counts()
        seconds, trials = seconds + left_s, trials + left
        if not left and part.has_page(root) and not part.retries():
            part.state = "done"
            continue
        try:
            part.runner.preflight()
            disk = max(disk, 0 if part.runner.hosts else disk_mib(part.study.plan)[0])
        except PreflightError as reason:
            yield f"cannot run now: {part.study.name}: {reason}"
    free = facts.free_mib(scratch_root())
    yield (
        f"{len(parts)} studies, {trials} missing trials, about {time_words(seconds)}; "
        f"at most {disk:,} MiB at a time of {free:,} MiB free"
    )


def _notify(command: str, outcome: str, study: str) -> Iterator[str]:
    """Run the user's command; yield a line if it fails."""
    if command:
        variables = {**os.environ, "BENCHLIB_OUTCOME": outcome, "BENCHLIB_STUDY": study}
        try:
            done = Shell(environment=variables).run(
                ["/bin/sh", "-c", command], cwd=Path.cwd(), timeout_s=_NOTIFY_S
            )
            done.insist(StudyError, "it")
        except BenchlibError as reason:
            yield f"the command of 'notify' failed: {reason}"


@dataclass
class _Page:
    parts: list[Part]
    _written_s: float = 0.0

    def refresh(self) -> None:
        """Write the page at most once a minute."""
        if time.monotonic() - self._written_s >= _REFRESH_S:
            self.write()

    def write(self) -> Path:
        """Write the page; return its path."""
        self._written_s, root = time.monotonic(), site.reports_root()
        rows = [(part, part.has_page(root), *part.counts()) for part in self.parts]
        todo = [seconds for part, *_, seconds in rows if part.state in ("waiting", "running")]
        words = {"now": f"{dt.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}", "time_words": time_words}
        return site.write_page("campaign", "campaign.html.j2", rows=rows, todo=todo, contents=[], **words)
