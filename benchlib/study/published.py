"""Published figures: ``data/published/<notebook>.csv``.

A row with ``against`` is a comparison: percentage changes if ``unit`` is %, else differences.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.metrics import MOST_STATED, percent_words
from benchlib.plan.model import among
from benchlib.stats.effects import compare
from benchlib.stats.limits import BY_HOST, STANDS_OUT
from benchlib.study.store import project_root

_INVALID = "cannot tell: the comparison is invalid"
_TOO_LITTLE = " in direction, by less than matters"
Change = Mapping[Hashable, Any]
"""A row of ``Analysis.table``."""
_CHANGE = ["percent_change", "ci_low", "ci_high"]
_MEASURED = ["published_low", "published_high", *_CHANGE, "measured"]
_SHOWN = [
    "figure", "level", "against", "published", *_MEASURED, "agreement", "source", "conditions", "note",
]  # fmt: skip
NUMBERS = ("value", "low", "high")
COLUMNS = (
    "figure", "level", "against", "metric", *NUMBERS, "unit", "words", "direction", "source", "conditions", "note",
)  # fmt: skip
"""Columns of a published figure.

- ``value``, or a range ``low`` to ``high``, or only ``words``, which are shown instead of a number
- ``metric``: a column of the trials, or empty
- ``conditions`` of the source; ``note`` by benchlib
- ``direction``: sign of the claimed change, ``0`` for none, empty without a claim; derived from numbers
"""


def published_for(notebook: str, folder: Path | None = None) -> pd.DataFrame:
    """Return a notebook's published figures (:data:`COLUMNS`); InputError if damaged."""
    paths = {path.stem: path for path in (folder or project_root() / "data" / "published").glob("*.csv")}
    if notebook not in paths:
        return pd.DataFrame(columns=list(COLUMNS)).astype(dict.fromkeys(NUMBERS, float))
    types = dict.fromkeys(COLUMNS, str) | dict.fromkeys(NUMBERS, float)
    missing = {name: [""] for name in NUMBERS}
    try:
        frame = pd.read_csv(paths[notebook], dtype=types, keep_default_na=False, na_values=missing)
        frame = frame[[*COLUMNS]]
    except (OSError, LookupError, ValueError) as reason:
        raise InputError(f"published/{notebook}.csv cannot be read: {reason}") from None
    changes = frame[[*NUMBERS]].bfill(axis=1)["value"].where(frame["against"].ne(""))
    signs = np.sign(changes).map({-1: "-", 0: "0", 1: "+"})
    return frame.assign(direction=signs.where(signs.notna(), frame["direction"]))


def beside(
    published: pd.DataFrame,
    effects: pd.DataFrame,
    trials: pd.DataFrame,
    unmet: Mapping[str, str] = MappingProxyType({}),
) -> pd.DataFrame:
    """Compare published figures with measurements, one row per figure.

    - ``published`` (words), ``published_low, published_high``
    - ``percent_change, ci_low, ci_high``: computed here if ``effects`` lacks the comparison
    - ``measured``: mean of the trials, for a single figure
    - ``agreement``: see :func:`agreement`, with the ``unmet`` conditions
    """
    rows, compared = [], {*effects["level"]}
    figure: Any
    for figure in published.itertuples():
        change = _change(figure, effects, trials)
        sides = [figure.level] if figure.against in compared else [figure.level, figure.against]
        reason = next((unmet[side] for side in sides if side in unmet), "")
        word = agreement(figure, change, effects.attrs.get("margin", 0.03), reason)
        row = figure._asdict() | {name: (change or {}).get(name) for name in _CHANGE}
        row["published"] = figure.words or _number(figure)
        row["agreement"] = word or ("not measured here" if figure.direction else "no claim")
        if figure.unit == "%" and figure.against:
            row["published_low"], row["published_high"] = _range(figure)
        if not figure.against and figure.metric in trials:
            row["measured"] = trials.loc[trials["level"] == figure.level, figure.metric].astype(float).mean()
        rows.append(row)
    beside = pd.DataFrame(rows, columns=_SHOWN).astype(dict.fromkeys(_MEASURED, float))
    beside.attrs = {"alpha": effects.attrs.get("alpha", 0.05)}
    return beside


def _change(figure: Any, effects: pd.DataFrame, trials: pd.DataFrame) -> Change | None:
    found = effects[effects["level"].eq(figure.level) & effects["against"].eq(figure.against)]
    if figure.metric != effects.attrs.get("metric") or found.empty:
        part = trials[trials["level"].isin([figure.level, figure.against])]
        try:
            alpha = effects.attrs.get("alpha", 0.05)
            given = {"alpha": alpha, "margin": effects.attrs.get("margin", 0.03)}
            found = compare(part, baseline=figure.against, metric=figure.metric, **given)
        except InputError:  # a level or its metric is missing
            return None
        if any(
            each["code"] == "control_differs" and each["grave"] for each in effects.attrs.get("warnings", ())
        ):
            found["verdict"] = "invalid"
    row: Change = found.iloc[0].to_dict()
    return row if math.isfinite(row["percent_change"]) else None


def _range(figure: Any) -> tuple[float, float]:
    return (figure.low, figure.high) if math.isnan(figure.value) else (figure.value, figure.value)


def _number(figure: Any) -> str:
    value, low, high = (
        f"{number:,.12g}".replace("-", "−") if math.isfinite(number) else ""
        for number in (figure.value, figure.low, figure.high)
    )
    text = value or (f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}")
    return f"{text} {figure.unit}".strip()


def agreement(figure: Any, change: Change | None, margin: float, unmet: str = "") -> str:
    """Return how a measurement agrees with a published ``figure``; empty without a claim.

    - *agrees*: the interval excludes zero in the published direction (for ``0``: lies inside the margin)
    - *contradicts*: opposite direction, or smaller than published
    - *cannot tell*: neither, with the minimum detectable effect
    - *not testable here*: no agreement, and ``unmet`` conditions
    """
    if not figure.direction:
        return ""
    word = _compared(figure, change, margin) if change is not None else ""
    # a visible effect proves that the conditions were met; a missing effect does not
    visible = word.startswith("agrees") and figure.direction != "0" and not word.endswith(_TOO_LITTLE)
    if unmet and not visible and word != _INVALID:
        return f"not testable here (condition not met: {unmet})"
    return word


def _compared(figure: Any, change: Change, margin: float) -> str:
    low, high, verdict = change["ci_low"], change["ci_high"], change["verdict"]
    if verdict == "invalid":
        return _INVALID
    if verdict in (BY_HOST, STANDS_OUT):
        return f"cannot tell: the measured comparison {verdict}"
    least, most = _range(figure)
    if figure.direction == "-":
        low, high, least, most = -high, -low, -most, -least
    inside = max(-low, high) <= 100 * margin
    significant = verdict not in ("inconclusive", "equivalent")
    sized, percent = not (math.isnan(least) and math.isnan(most)), figure.unit == "%"
    smaller, larger = percent and high < least, percent and low > most
    if figure.direction == "0":
        word = "agrees" if inside or verdict == "equivalent" else "contradicts" if significant else ""
    elif (
        (significant and low <= 0)
        or (smaller and (inside or not significant))  # in either direction, it is less than published
        or (inside and sized and not percent and verdict != "inconclusive")
    ):
        word = "contradicts"
    elif significant:
        size = " in direction, smaller" * smaller + " in direction, larger" * larger
        word = f"agrees{_TOO_LITTLE if inside and not sized else size}"
    else:
        word = ""
    smallest = change["mde_percent"]
    if word or math.isnan(smallest):
        return word or "cannot tell"
    unseen = percent_words(min(smallest, MOST_STATED))[0].lstrip("+")
    return f"cannot tell: changes under {unseen} are easily missed"


def matching(
    name: str, levels: Iterable[str], cells: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> list[str]:
    """Return the level of that name, else those that contain all its parts."""
    known = list(levels)
    if name in known or not name:
        return [name] if name else []
    return [level for level in known if among(name, [level, *cells.get(level, {}).values()])]
