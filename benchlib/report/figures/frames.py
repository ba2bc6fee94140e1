"""An analysis's rows, and its numbers put into words."""

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from benchlib.plan.metrics import Metric
from benchlib.stats import Analysis

MINUS = "−"
DAGGER = "†"


def known(*values: Any) -> bool:
    """Whether all of the values are finite numbers."""
    return all(isinstance(v, int | float | np.number) and math.isfinite(v) for v in values)


def signed(percent: float, *, unit: str = "\u00a0%") -> str:
    """`+38.2 %`, `−0.4 %`, `0.0 %`: one decimal, none from 1000 on."""
    digits = 0 if abs(percent) >= 1000 else 1
    rounded = round(percent, digits)
    if rounded == 0:
        return f"0.0{unit}"
    return f"{rounded:+,.{digits}f}{unit}".replace("-", MINUS)


def interval(low: float, high: float) -> str:
    """`[30.1, 46.8]`, with true minus signs."""
    return f"[{signed(low, unit='').lstrip('+')}, {signed(high, unit='').lstrip('+')}]"


def amount(value: float) -> str:
    """A plain measured number with four significant digits or whole: `1,234`, `12.34`, `0.05`."""
    if not known(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def axis_words(metric: Metric) -> str:
    """The axis title of a metric: `throughput, tps`."""
    return f"{metric.title}, {metric.unit}" if metric.unit else metric.title


Row = Mapping[Hashable, Any]
"""One row of an analysis's table."""


def rows_of(analysis: Analysis) -> dict[str, Row]:
    """The table's rows by level, in its order."""
    return {str(row["level"]): row for row in analysis.table.to_dict("records")}


def reference_words(analysis: Analysis) -> str:
    """What levels are compared with: the baseline's name, or words where they have references of their own."""
    return analysis.baseline if analysis.one_reference else "the level named with each"


def against_words(analysis: Analysis, level: str) -> str:
    """What a level is compared with, where it is not the one of all: the parts of its name that differ."""
    other = analysis.against.get(level)
    if analysis.one_reference or other is None:
        return ""
    here, there = (name.split(", ") for name in (level, other))
    if len(here) == len(there) > 1:
        other = ", ".join(name for name, own in zip(there, here, strict=True) if name != own)
    return f"against {other}"


def spoken(level: str, row: Row) -> str:
    """One level's result for the alt text: `tuned +38.2 % (interval 30.1 to 46.8), faster`."""
    if not known(row["percent_change"]):
        return f"{level}: not measured"
    text = f"{level} {signed(row['percent_change'], unit=' %')}"
    if known(row["ci_low"], row["ci_high"]):
        low, high = (signed(row[end], unit="").lstrip("+") for end in ("ci_low", "ci_high"))
        text += f" (interval {low} to {high})"
    return f"{text}, {row['verdict'] if isinstance(row['verdict'], str) else 'no verdict'}"


def given_up(lost: Mapping[str, str]) -> list[str]:
    """What a crash may cost, each loss once, after the levels that risk it: `a, b – the last commits`."""
    levels: dict[str, list[str]] = {}
    for level, loss in lost.items():
        levels.setdefault(loss, []).append(level)
    return [f"{', '.join(names)} – {loss}" for loss, names in levels.items()]


def wrapped(text: str, chars: int, lines: int = 3) -> list[str]:
    """`text` on at most `lines` lines of `chars` characters; the rest becomes an ellipsis.

    A word too long for a line is broken after an underscore, where names of settings may be.
    """
    done = [""]
    for word in text.split():
        parts = [word] if len(word) <= chars else re.findall(rf"[^_]{{1,{chars - 1}}}_?|_", word)
        for number, part in enumerate(parts):
            longer = f"{done[-1]} {part}" if done[-1] and not number else done[-1] + part
            if len(longer) <= chars:
                done[-1] = longer
            else:
                done.append(part)
    done = [line for line in done if line] or [""]
    if len(done) > lines:
        done = [*done[: lines - 1], done[lines - 1][: chars - 1].rstrip() + "…"]
    return done


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions moved until they lie `gap` apart, in their order, inside `low` to `high` if there is room."""
    groups: list[list[int]] = []

    def start(group: list[int]) -> float:
        """A group lies around the mean of what it stands for, unless the ends are in its way."""
        middle = sum(positions[i] for i in group) / len(group)
        half = gap * (len(group) - 1) / 2
        return max(min(middle, high - half), low + half) - half

    for i in sorted(range(len(positions)), key=lambda i: positions[i]):
        groups.append([i])
        while len(groups) > 1 and start(groups[-1]) < start(groups[-2]) + gap * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    placed = [0.0] * len(positions)
    for group in groups:
        for number, i in enumerate(group):
            placed[i] = start(group) + number * gap
    return placed


def good(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The trials that ended well and have a finite `metric`."""
    fine = trials[metric].map(known)
    if "error" in trials:
        fine &= trials["error"].isna() | (trials["error"] == "")
    return trials[fine].astype({metric: float})


def percent_of_mean(frame: pd.DataFrame, column: str) -> "pd.Series[float]":
    """A column in percent of each level's own mean. ``frame``: columns ``level`` and that one."""
    return 100 * frame[column] / frame.groupby("level")[column].transform("mean")


def plain(value: float, _: object = None) -> str:
    """An axis's tick: `2,000`, `0.5`."""
    return f"{value:,.6g}"


def opening(text: str) -> str:
    """`text` as a sentence begins, abbreviations and names of settings left alone."""
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def in_common(names: list[str]) -> str:
    """What names of levels begin with alike, in whole words: "fast disk" of "fast disk, 8 clients" and 16 of them."""
    words = zip(*(name.split() for name in names), strict=False)
    alike = " ".join(word for word, *_ in takewhile(lambda each: len(set(each)) == 1, words))
    return alike.rstrip(",:;") or names[0]
