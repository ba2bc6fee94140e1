"""The axis of percentage changes: linear while it can be, logarithmic when effects differ by multiples."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchlib.report.figures.figure import Canvas
from benchlib.report.figures.frames import MINUS
from benchlib.report.figures.style import BAND, GRID, INK

_LOWEST = -99.9  # a change of −100 % has no logarithm
_STEPS = (1, 2, 3, 5)

Strip = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """From percentage changes to positions; `low` and `high` are the axis's ends, in percent."""

    low: float
    high: float
    log: bool

    def __call__(self, percent: float) -> float:
        """Where `percent` lies on the axis."""
        return math.log1p(max(percent, _LOWEST) / 100) if self.log else percent

    def ticks(self, room: float) -> list[float]:
        """Round percentages for about `room` points of axis."""
        wanted = max(int(room / 38), 3)
        if not self.log:
            return [
                float(t)
                for t in MaxNLocator(wanted, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
            ]
        factors = [s * 10.0**e for e in range(-3, 7) for s in _STEPS]
        inside = [f for f in factors if self.low <= (f - 1) * 100 <= self.high and f != 1]
        gap = (self(self.high) - self(self.low)) / wanted
        kept = [0.0]
        # The roundest first: ×10 and ×5 (and their inverses) stay whatever the room.
        for factor in sorted(inside, key=lambda f: (_STEPS.index(_leading(f)) % 3 != 0, abs(math.log(f)))):
            if all(abs(self((factor - 1) * 100) - self(other)) >= gap for other in kept):
                kept.append((factor - 1) * 100)
        return sorted(kept)

    def dress(self, axes: Axes, room: float, strips: Sequence[Strip], band: float = 0) -> None:
        """Give `axes` these limits and ticks; draw grid, the line of no change and ±`band` % on the `strips`.

        Strips are the heights that marks take; between them may be words, which no line should cross.
        """
        axes.set_xlim(self(self.low), self(self.high))
        point = (self(self.high) - self(self.low)) / room
        # Half a label reaches past its tick, and the canvas ends 6 points past the axis.
        reach = {t: max(3 * len(tick_words(t)) - 6, 0) * point for t in self.ticks(room)}
        ends = self(self.low), self(self.high)
        ticks = [t for t, half in reach.items() if ends[0] + half <= self(t) <= ends[1] - half]
        axes.set_xticks([self(t) for t in ticks], [tick_words(t) for t in ticks])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        for top, bottom in strips:
            if band:
                axes.fill_between([self(-band), self(band)], top, bottom, color=BAND, linewidth=0, zorder=0.5)
            axes.vlines([self(t) for t in ticks if t], top, bottom, color=GRID, linewidth=0.8, zorder=1)
            axes.vlines(0, top, bottom, color=INK, linewidth=1, zorder=1.5)

    def title(
        self, canvas: Canvas, text: str, baseline: str, middle: float, top: float, low: float = 0
    ) -> None:
        """`change of throughput against defaults, %` around `middle`; a long `baseline` is left out."""
        unit = ", %" + (" (log scale)" if self.log else "")
        title = f"{text} against {baseline}{unit}"
        if canvas.wide_as(title) > canvas.width - low:
            title = f"{text}{unit}"
        half = canvas.wide_as(title) / 2
        canvas.note(max(min(middle, canvas.width - half), low + half), top, title, ha="center")


def _leading(factor: float) -> int:
    return round(factor / 10.0 ** math.floor(math.log10(factor) + 1e-9))


def tick_words(percent: float) -> str:
    """`+20`, `−50`, `0`."""
    return "0" if percent == 0 else f"{percent:+,.4g}".replace("-", MINUS)


def scale_for(percents: Iterable[float]) -> Scale:
    """An axis that shows all finite `percents` and zero, with a little room at both ends."""
    values = [max(float(p), _LOWEST) for p in percents if np.isfinite(p)] + [0.0]
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = -1.0, 1.0
    if high <= 250 and low >= -80:
        pad = 0.06 * (high - low)
        return Scale(low - pad, high + pad, log=False)
    ends = math.log1p(low / 100), math.log1p(high / 100)
    pad = 0.06 * (ends[1] - ends[0])
    return Scale(100 * math.expm1(ends[0] - pad), 100 * math.expm1(ends[1] + pad), log=True)
