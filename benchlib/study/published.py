"""What the studies that the notebooks come from published: ``data/published/<notebook>.csv``, a row a figure.

A row that names a level ``against`` another is a comparison: its numbers are percentage changes
where the ``unit`` is %, and differences of the two otherwise. Any other row is a figure by itself.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.metrics import percent_words
from benchlib.plan.model import among
from benchlib.stats.effects import compare
from benchlib.study.store import project_root

_INVALID = "cannot tell: the comparison is invalid"
_SHOWN = ["figure", "level", "against", "published", "published_low", "published_high", "percent_change", "ci_low", "ci_high",
          "measured", "agreement", "source", "conditions", "note"]  # fmt: skip
_TOO_LITTLE = " in direction, by less than matters"
Change = Mapping[Hashable, Any]
"""A row of ``Analysis.table``."""
NUMBERS = ("value", "low", "high")
COLUMNS = (
    "figure", "level", "against", "metric", *NUMBERS, "unit", "words", "direction", "source", "conditions", "note",
)  # fmt: skip
"""Of one published figure: a ``value``, a range from ``low`` to ``high``, or ``words`` where there is no number.

``metric`` is a column of a study's trials, or empty where trials have nothing like it; ``words`` are what
is shown in place of the bare number; ``conditions`` are what it was measured under; ``note`` is ours.
``direction`` is the sign of the change that a comparison claims, ``0`` for none; it may be left to the number, and
is empty where nothing is claimed, as by advice without a gain.
"""


def published_for(notebook: str, folder: Path | None = None) -> pd.DataFrame:
    """The published figures of a notebook's factor: :data:`COLUMNS`, ``direction`` filled in; no row where there are none.

    Raises:
        InputError: the file is damaged.

    """
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
    signs = ["" if pd.isna(size) else "-0+"[int(size > 0) - int(size < 0) + 1] for size in changes]
    return frame.assign(direction=[sign or own for sign, own in zip(signs, frame["direction"], strict=True)])


def beside(
    published: pd.DataFrame,
    effects: pd.DataFrame,
    trials: pd.DataFrame,
    unmet: Mapping[str, str] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return the published figures beside what was measured, a row a figure.

    ``published`` is ``study.published()``, ``effects`` what :func:`benchlib.compare` made of ``trials``. A pair of levels that the
    study does not compare is compared alone, by the same model. ``unmet`` are levels whose conditions were not met, with the
    condition: what does not agree there could not show. Columns: ``figure, level, against, published`` (words),
    ``published_low, published_high`` and ``percent_change, ci_low, ci_high`` (percent, of a comparison), ``measured`` (the mean
    of a level's trials, of a figure by itself), ``agreement`` (see :func:`agreement`), ``source, conditions, note``.
    """
    rows = []
    compared = {*effects["level"]}
    figure: Any
    for figure in published.itertuples():
        change, measured = _change(figure, effects, trials), None
        if not figure.against and figure.metric in trials:
            values = trials.loc[trials["level"].eq(figure.level), figure.metric].astype(float)
            measured = values.mean() if len(values) else None
        percent = figure.unit == "%" and bool(figure.against)
        why = unmet.get(figure.level) or ("" if figure.against in compared else unmet.get(figure.against, ""))
        low = figure.value if math.isnan(figure.low) else figure.low
        high = figure.value if math.isnan(figure.high) else figure.high
        rows.append({
            **{name: getattr(figure, name) for name in ("figure", "level", "against", "source", "conditions", "note")},
            "published": figure.words or _number(figure),
            "published_low": low if percent else None, "published_high": high if percent else None,
            **{name: change[name] if change else None for name in ("percent_change", "ci_low", "ci_high")},
            "measured": measured,
            "agreement": agreement(figure, change, effects.attrs.get("margin", 0.03), why)
            or ("not measured here" if figure.direction else "no claim"),
        })  # fmt: skip
    numbers = dict.fromkeys(
        ("published_low", "published_high", "percent_change", "ci_low", "ci_high", "measured"), float
    )
    return pd.DataFrame(rows, columns=_SHOWN).astype(numbers)


def _change(figure: Any, effects: pd.DataFrame, trials: pd.DataFrame) -> Change | None:
    """Return the row of the comparison that a published figure is about: the study's own, or one of the two levels alone."""
    names = set(trials["level"])
    if not figure.against or not {figure.level, figure.against} <= names or figure.level == figure.against:
        return None
    own = effects[effects["level"].eq(figure.level) & effects["against"].eq(figure.against)]
    if figure.metric == effects.attrs.get("metric") and len(own):
        row: Change = own.iloc[0].to_dict()
    else:
        part = trials[trials["level"].isin([figure.level, figure.against])]
        if figure.metric not in part or part[figure.metric].isna().all():
            return None
        try:
            row = compare(part, baseline=figure.against, metric=figure.metric).iloc[0].to_dict()
        except InputError:
            return None
    return row if math.isfinite(row["percent_change"]) else None


def _number(figure: Any) -> str:
    """Return a published number or range with its unit."""
    value, low, high = (
        f"{number:,.12g}".replace("-", "−") if math.isfinite(number) else ""
        for number in (figure.value, figure.low, figure.high)
    )
    text = value or (f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}")
    return f"{text} {figure.unit}".strip()


def agreement(figure: Any, change: Change | None, margin: float, unmet: str = "") -> str:
    """What was measured says of a published comparison, from sign and interval; empty where nothing can be said.

    - *agrees*: the interval excludes zero in the published direction (for ``0``: it lies inside the margin);
      *in direction, smaller* or *larger* where it misses a published percentage, *by less than matters* inside the margin.
    - *contradicts*: it excludes zero in the other direction, lies inside the margin although more was published, or
      is inconclusive or equivalent and ends below the published percentage.
    - *cannot tell*: neither; with the change under which one is easily missed.
    - *not testable here*: where it does not agree, and conditions were ``unmet``.

    ``figure`` is a row of :func:`published_for`, ``change`` one of ``Analysis.table``, None where there is none.
    """
    if not figure.direction:
        return ""
    word = _compared(figure, change, margin) if change is not None else ""
    # what has shown could be shown; that there is nothing, or too little to matter, has not
    shown = word.startswith("agrees") and figure.direction != "0" and not word.endswith(_TOO_LITTLE)
    if unmet and not shown and word != _INVALID:
        return f"not testable here (condition not met: {unmet})"
    return word


def _compared(figure: Any, change: Change, margin: float) -> str:
    low, high, verdict = change["ci_low"], change["ci_high"], change["verdict"]
    inside = -100 * margin <= low and high <= 100 * margin
    sized = not all(map(math.isnan, (figure.value, figure.low, figure.high)))
    smaller = _size(figure, low, high).endswith("smaller")
    if verdict == "invalid":
        return _INVALID
    if figure.direction == "0":
        if inside or verdict == "equivalent":
            return "agrees"
    elif smaller and verdict in ("inconclusive", "equivalent"):
        return "contradicts"  # whichever way it goes, it is less than was published
    elif inside and sized and verdict != "inconclusive" and (smaller or figure.unit != "%"):
        return "contradicts"
    if verdict not in ("inconclusive", "equivalent"):
        same = figure.direction == ("+" if low > 0 else "-")
        size = _TOO_LITTLE if inside and not sized else _size(figure, low, high)
        return f"agrees{size}" if same else "contradicts"
    seen = change["mde_percent"]
    if not math.isfinite(seen):
        return "cannot tell"
    return f"cannot tell: changes under {percent_words(seen)[0].lstrip('+')} are easily missed"


def _size(figure: Any, low: float, high: float) -> str:
    """Whether a change in the published direction is smaller or larger than the published percentage."""
    if figure.unit != "%":
        return ""
    least, most = (figure.low, figure.high) if math.isnan(figure.value) else (figure.value, figure.value)
    if figure.direction == "-":
        least, most, low, high = -most, -least, -high, -low
    return " in direction, smaller" if high < least else " in direction, larger" if low > most else ""


def matching(
    name: str, levels: Iterable[str], cells: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> list[str]:
    """The level of that name; if there is none, those whose parts between commas, or whose ``cells``, hold all of its parts.

    ``"run"`` stands for ``"run, server A"`` and ``"run, server B"``; where nothing else was run, for ``"server A"`` too.
    """
    known = list(levels)
    if name in known or not name:
        return [name] if name else []
    return [level for level in known if among(name, [level, *cells.get(level, {}).values()])]
