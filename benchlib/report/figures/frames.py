"""An analysis's rows, and its numbers put into words."""

import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchlib.plan.metrics import described
from benchlib.plan.metrics import percent_words as percent_words
from benchlib.stats import Analysis

MINUS = "−"
DAGGER = "†"
NOTHING: Mapping[str, Any] = MappingProxyType({})
"""What an argument has that names nothing."""
UNSHOWN = "cannot be shown here"
"""Said in place of a verdict that is inconclusive where the effect had no chance."""
SAYS_BOTH = "instead of"
"""Words for a level that have this in them say what it is compared with."""

_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")
TITLE = 90
"""So many characters a figure's title has room for."""


def known(*values: Any) -> bool:
    """Whether all of the values are finite numbers."""
    return all(isinstance(v, int | float | np.number) and math.isfinite(v) for v in values)


def signed(percent: float) -> str:
    """`+38.2 %`, `−0.4 %`, `0.0 %`, and from +400 % on a factor: a change without an interval."""
    return percent_words(percent)[0]


def amount(value: float, _: object = None) -> str:
    """A plain number, measured or an axis's tick, with four significant digits or whole: `1,234`, `12.34`, `0.05`."""
    if not known(value):
        return "–"
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}").replace("-", MINUS)


def span(values: Iterable[Any], words: Callable[[Any], str] = amount) -> str:
    """`0.4 to 12`: the least and the largest of some numbers, once where they look alike; nothing where none is known."""
    numbers = [value for value in values if known(value)]
    return " to ".join(dict.fromkeys(map(words, (min(numbers), max(numbers))))) if numbers else ""


def quoted(names: Iterable[str]) -> str:
    """`“defaults”, “tuned”`."""
    return ", ".join(f"“{name}”" for name in names)


Row = Mapping[Hashable, Any]
"""One row of an analysis's table."""


def rows_of(analysis: Analysis) -> dict[str, Row]:
    """The table's rows by level, in its order."""
    return {str(row["level"]): row for row in analysis.table.to_dict("records")}


def reference_words(analysis: Analysis) -> str:
    """What levels are compared with: the baseline's name, or words where they have references of their own."""
    return analysis.baseline if analysis.one_reference else "the level named with each"


def said(analysis: Analysis, level: str, verdict: object) -> str:
    """A level's verdict as a page says it: an effect that could not show, one too small to matter; of a control that it differs.

    Nothing where none was reached.
    """
    if not isinstance(verdict, str):
        return ""
    if level in analysis.unshown:
        return UNSHOWN
    if level in analysis.controls and verdict in analysis.metric.directions:
        return "differs"
    return verdict + f", under {100 * analysis.margin:g} %" * (level in analysis.tiny)


def change_cells(change: float, low: float, high: float) -> tuple[str, str]:
    """A change and its interval as they stand in columns of their own, each with its unit: ``5.7 ×``, ``5.2 to 6.2 ×``."""
    told, between = percent_words(change, low, high)
    return told, between and between + told[-2:]


def change_words(row: Mapping[Any, Any], of: str = "") -> str:
    """A row's change and its interval, ``+5.0 % (3.1 to 7.0)``, or nothing; ``of`` is what the columns' names end with."""
    ends = (row.get(f"{end}{of}", math.nan) for end in ("percent_change", "ci_low", "ci_high"))
    change, interval = percent_words(*ends)
    return f"{change} ({interval})" if interval else change.replace("–", "")


def against_words(analysis: Analysis, level: str) -> str:
    """What a level is compared with, where it is not the one of all: the parts of its name that differ, if no other level is called so."""
    other = analysis.against.get(level)
    if analysis.one_reference or other is None:
        return ""
    differing = apart(level, other)[1]
    called_so = differing in analysis.table["level"].to_numpy()  # another level
    return f"against {other if called_so else differing}"


def apart(level: str, other: str) -> tuple[str, str]:
    """Two levels' names, without the parts between commas that they share."""
    parts, others = level.split(", "), other.split(", ")
    if len(parts) != len(others):
        return level, other
    pairs = [pair for pair in zip(parts, others, strict=True) if len(set(pair)) > 1]
    return ", ".join(own for own, _ in pairs), ", ".join(name for _, name in pairs)


def by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    """The keys of each value, in their order: `{loss: levels}` of `{level: loss}`."""
    return {value: [key for key in values if values[key] == value] for value in values.values()}


def guarded(cell: Any) -> Any:
    """A CSV file's cell, with an apostrophe before a text that a spreadsheet would take for a formula; numbers stay."""
    formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def finding(first: str, *more: str) -> str:
    """A figure's title: what comes first, and of the rest what there is room for."""
    for part in more:
        first += part if len(first + part) <= TITLE else ""
    return first


def short(name: str) -> str:
    """A level's name as a title has it."""
    return textwrap.shorten(name, 32, placeholder="…")


def extremes(values: "pd.Series[float]", unit: str = "") -> str:
    """`0.4 ms (tuned) to 12 ms (defaults)`: the smallest and the largest, each with what it is of; nothing where none is known."""
    ordered = values.dropna().sort_values(kind="stable")
    ends = ordered.iloc[[0, -1][: len(ordered)]].items()
    return " to ".join(f"{amount(value)}{unit} ({short(str(name))})" for name, value in ends)


def wrapped(text: str, chars: int = 28) -> list[str]:
    """`text` on at most three lines of `chars` characters; the rest becomes an ellipsis."""
    return textwrap.wrap(text, chars, max_lines=3, placeholder="…", break_on_hyphens=False)


def standing(percent: "pd.Series[float]", p: "pd.Series[float]", metric: str, alpha: float) -> Any:
    """The verdict on each change by its p value: faster or slower where it stands out of the noise, else inconclusive."""
    words = np.where(percent > 0, *described(metric).directions)
    return np.where(p < alpha, words, "inconclusive")


def good(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The trials that ended well and have a finite `metric`."""
    return trials[trials[metric].map(known) & trials["error"].isna()].astype({metric: float})


def opening(text: str) -> str:
    """`text` as a sentence begins, abbreviations and names of settings left alone."""
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def in_common(names: list[str]) -> str:
    """What names of levels begin with alike, in whole words, "fast disk" of "fast disk, 8 clients" and 16 of them; or else the parts that all have."""
    words = zip(*(name.split() for name in names), strict=False)
    alike = " ".join(word for word, *_ in takewhile(lambda each: len(set(each)) == 1, words))
    first, *others = (name.split(", ") for name in names)
    shared = ", ".join(part for part in first if all(part in other for other in others))
    return alike.rstrip(",:;") or shared or names[0]
