"""The bars of a table of answers: a change with its interval on one axis that all rows share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchlib.report.model import Answer

_WIDTH, _EDGE = 240, 10
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_FINE = (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100)
_APART = 42
"""So far apart labels of the axis are at least."""


@dataclass(frozen=True)
class Axis:
    """A common axis of factors on a log scale: 1 is no change. ``low`` and ``high`` are logarithms."""

    low: float
    high: float

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> "Axis":
        """Return the axis on which all valid answers lie."""
        ends = [
            math.log1p(each / 100)
            for answer in answers
            if answer.verdict != "invalid"
            for each in (answer.percent_change, answer.ci_low, answer.ci_high)
            if math.isfinite(each) and each > -100
        ]
        low, high = min([*ends, -0.02]), max([*ends, 0.02])
        room = 0.04 * (high - low)
        return cls(low - room, high + room)

    def at(self, percent: float) -> float:
        """Return the place of a change in percent, within the drawing."""
        log = math.log1p(max(percent, -99.9) / 100)
        place = _EDGE + (_WIDTH - 2 * _EDGE) * (log - self.low) / (self.high - self.low)
        return round(min(max(place, 2.0), _WIDTH - 2.0), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The places of the axis that have a label, and the label."""
        wide = self.high - self.low > math.log(4)
        if wide:
            named = [(100 * (factor - 1), f"{factor:g} ×") for factor in _TICKS]
        else:
            named = [
                (float(percent), f"{percent:+d} %".replace("-", "−") if percent else "0") for percent in _FINE
            ]
        inside = [
            (percent, label) for percent, label in named if self.low <= math.log1p(percent / 100) <= self.high
        ]
        kept = list[tuple[float, str]]()
        for percent, label in sorted(inside, key=lambda tick: abs(math.log1p(tick[0] / 100)), reverse=True):
            place = self.at(percent)
            if not percent or all(
                abs(place - other) >= _APART for other in (self.at(0), *(x for x, _ in kept))
            ):
                kept.append((place, label))
        return sorted(kept)


def has_bar(answer: Answer) -> bool:
    """Whether a comparison has numbers to draw."""
    return answer.verdict != "invalid" and all(
        map(math.isfinite, (answer.percent_change, answer.ci_low, answer.ci_high))
    )


def shown_first(answers: Sequence[Answer], most: int = 5) -> tuple[Sequence[Answer], Sequence[Answer]]:
    """Return the answers that a page shows open, and those that it folds."""
    return answers[:most], answers[most:]
