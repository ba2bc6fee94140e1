"""What a notebook calls: its parameters become an experiment, and a run shows its progress."""

import math
from typing import Any

from IPython.core.getipython import get_ipython

from benchlib.errors import InputError
from benchlib.plan.parameters import from_history
from benchlib.plan.planning import study_name
from benchlib.report.entries import entries
from benchlib.report.progress import HEARERS, progress_line
from benchlib.report.sections.beside_published import published
from benchlib.report.sections.combined_changes import confirm, gains, half_normal, waterfall
from benchlib.report.sections.durability import crashes, flushes
from benchlib.report.sections.query_plans import plans
from benchlib.report.sections.replica_findings import replica_lag, replicas_verified
from benchlib.report.sections.servers import cost_per_million, server_settings
from benchlib.report.sections.setting_curves import curve
from benchlib.report.site import Summary
from benchlib.report.view import View
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import StudyFolder


def open_experiment() -> View:
    """The experiment that this notebook's parameters describe; with ``run = False`` the one that is kept.

    Raises:
        InputError: an unknown parameter, a value of the wrong type, or no such study.

    """
    values = _parameters("open_experiment")
    name = study_name(values)
    if not values.get("run", True):
        return View(shown(StudyFolder(name)))
    from benchlib.study.fleet import hosts_of  # what is kept is shown without levers and servers
    from benchlib.study.runs import Runner, plan_study

    hosts = hosts_of(values)
    experiment = Experiment(StudyFolder(name), plan_study(values, hosts))
    return View(experiment, Runner(experiment, retry_failed=bool(values.get("retry_failed")), hosts=hosts))


def open_summary() -> Summary:
    """The kept studies that this notebook's parameter ``studies`` names, all of them if it is empty; nothing is run.

    Raises:
        InputError: an unknown parameter, a value of the wrong type, or no study of a name.

    """
    names = _parameters("open_summary").get("studies", "").split(",")
    # who makes a page has had judged what is to be on it
    most_judged = 0 if HEARERS else math.inf
    return Summary(entries([name.strip() for name in names if name.strip()], most_judged)[0])


def _parameters(caller: str) -> dict[str, Any]:
    """The checked parameters of the notebook that this is called from."""
    shell = get_ipython()
    if shell is None:
        raise InputError(f"{caller}() reads a notebook's parameters: call it from one")
    return from_history(list(shell.user_ns["In"]), shell.user_ns)


def run_missing(view: View) -> None:
    """Run what is missing, showing how far it is in one line that is updated; nothing with ``run = False``.

    With the parameter ``pilot`` a pilot comes first, and its sentence is shown before the study starts.
    """
    runner = view.runner
    if runner is None:
        return
    if view.experiment.study.declared.pilot:
        progress_line(runner.pilot(progress_line()))
    runner.run(progress_line())


def crash_missing(view: View, rounds: int) -> None:
    """Crash each level so many times in each way, as far as that is not kept, showing how far it is.

    What this machine cannot do is left out, and the line says why.

    Raises:
        InputError: the study has not been begun, or a kept crash is damaged.
        StudyError: a level cannot be crashed, or Ctrl-C; what was kept before is safe.

    """
    if view.runner and view.runner.hosts:
        progress_line()("crashes are made on one machine: with a fleet there are none")
    elif view.runner:
        from benchlib.study import crashes  # what is kept is shown without levers and servers

        crashes.crash_missing(view.experiment.folder, rounds, progress_line(), view.runner.check_host)
