"""What the notebook of one factor shows beyond the cells that all share: a function of a view each."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from benchlib.errors import NothingToShowError as NothingToShowError
from benchlib.report.screening import refuse_invalid as refuse_invalid
from benchlib.report.view import Statement, View
from benchlib.study.experiment import Experiment
from benchlib.study.records import Record
from benchlib.study.results import good_ones

P = ParamSpec("P")
R = TypeVar("R", bound=Record)
T = TypeVar("T")


def section(show: Callable[Concatenate[Experiment, P], T]) -> Callable[Concatenate[View, P], T | Statement]:
    """A section as notebooks call it: with a view, and with a sentence where it has nothing to show."""

    @wraps(show)
    def shown(view: View, /, *args: P.args, **kwargs: P.kwargs) -> T | Statement:
        try:
            return show(view.experiment, *args, **kwargs)
        except NothingToShowError as reason:
            return Statement(str(reason), kind="absent")

    return shown


def records(experiment: Experiment, kind: type[R]) -> list[tuple[str, int, R]]:
    """The records of one kind that good trials left, each with its level and block, in the order of the levels.

    Raises:
        InputError: a record is damaged.

    """
    good = good_ones(experiment.by_level())
    kept = ((level, block, kind.read(experiment.folder, name)) for level, block, name in good)
    return [(level, block, record) for level, block, record in kept if record is not None]
