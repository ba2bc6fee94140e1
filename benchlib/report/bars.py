"""The bars of a table of answers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from benchlib.plan.metrics import ends_on_axis
from benchlib.report.model import Answer

_WIDTH, _EDGE = 240, 10
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_FINE = (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100)
_APART = 42
"""The least distance of two labels of the axis."""


@dataclass(frozen=True)
class Axis:
    """An axis of factors on a log scale: 1 is no change."""

    low: float
    high: float

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> "Axis":
        """Return the axis of all valid answers."""
        ends = [
            math.log1p(each / 100)
            for answer in answers
            if answer.verdict != "invalid"
            for each in (
                answer.percent_change,
                *ends_on_axis(answer.percent_change, answer.ci_low, answer.ci_high),
            )
            if math.isfinite(each) and each > -100
        ]
        low, high = min([*ends, -0.02]), max([*ends, 0.02])
        room = 0.04 * (high - low)
        return cls(low - room, high + room)

    def at(self, percent: float) -> float:
        """Return the x coordinate of a change in percent."""
        log = math.log1p(max(percent, -99.9) / 100)
        place = _EDGE + (_WIDTH - 2 * _EDGE) * (log - self.low) / (self.high - self.low)
        return round(min(max(place, 2.0), _WIDTH - 2.0), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Return the coordinates and texts of the labels."""
        named = {100 * (factor - 1): f"{factor:g} ×" for factor in _TICKS}
        if self.high - self.low <= math.log(4):
            named = {float(percent): f"{percent:+d} %".replace("-", "−") for percent in _FINE} | {0.0: "0"}
        inside = [percent for percent in named if self.low <= math.log1p(percent / 100) <= self.high]
        shown = {self.at(0): named[0.0]}
        for percent in sorted(inside, key=lambda percent: -abs(math.log1p(percent / 100))):
            place = self.at(percent)
            if all(abs(place - other) >= _APART for other in shown):
                shown[place] = named[percent]
        return sorted(shown.items())
