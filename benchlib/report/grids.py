"""The changes of a grid: a heat map, or a panel for each value."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchlib.plan.metrics import most_stated, percent_words
from benchlib.report.display import two_families
from benchlib.report.drawing import ENDS, PERCENT, WIDTH, NoRowsError, styled, titled
from benchlib.report.style import BAND, BLUE, INK, MUTED, mark_of

_CELL, _CELLS = 0.85, 8.4
"""Inches: the least width of a cell, and the width of all cells."""
CHANGES = sns.blend_palette(["#f0a27a", "#f3f3f3", "#7db8e0"], as_cmap=True)
"""From worse to better. Fills and text are the same on light and dark pages."""
ON_CELL = "#101010"
_PALE = 0.12
"""The strength of the colour of a surveyed cell that does not stand out."""
_SURVEYED = "A survey: bold cells stand out and are not confirmed; pale cells do not stand out."
_MEAN = "geometric\nmean"


@styled
def heat(effects: pd.DataFrame, design: pd.DataFrame) -> Figure:
    """Draw the changes of a grid as a matrix; further dimensions give small multiples.

    ``design`` is ``study.design``. Columns are the compared dimension, or the last.
    """
    compared = _of_grid(effects, design).set_index("level")
    design = design.loc[:, design.nunique() > 1].astype(str)
    if design.shape[1] < 2:
        raise NoRowsError
    names, values = {*compared["against"], *compared.index}, design.to_dict("index")
    varied = [*map(str, design)]
    changed = {
        dimension
        for level, other in compared["against"].items()
        for dimension in varied
        if values[level][dimension] != values[other][dimension]
    }
    across = changed.pop() if len(changed) == 1 else varied[-1]
    down, *others = (name for name in varied if name != across)
    cells = design[design.index.isin(names)].copy()
    percents = compared["percent_change"].where(compared["verdict"].ne("invalid"))
    cells["log"] = pd.Series(np.log1p(percents.to_numpy(float) / 100), percents.index)
    cells["verdict"] = compared["verdict"]
    cells["text"] = percents.map(lambda change: percent_words(change)[0])
    cells["text"] = cells["text"].mask(cells["verdict"].eq("invalid"), "invalid").fillna("reference")
    # a common reference is a cell without a change
    shared = compared["against"].nunique() == 1
    cells["mean"] = cells["log"].mask(cells["verdict"].isna(), 0.0) if shared else cells["log"]
    most, height = _CELLS / (_CELL * (cells[across].nunique() + 1)), 1.2 + 0.5 * (cells[down].nunique() + 1)
    figure, panels = _panels(cells, others, max(int(most), 1), lambda tall: tall * height, sharey=True)
    order = {name: [of for of in _values(design, name) if of in {*cells[name]}] for name in (down, across)}
    biggest = max([0.01, *cells["log"].dropna().abs()])
    survey = _is_survey(effects)
    better = 1 if effects.attrs.get("higher_is_better", True) else -1
    look = {"vmin": -biggest, "vmax": biggest, "cmap": CHANGES, "cbar": False, "linewidths": 2}
    for ax, panel, of_panel in panels:
        logs, text, sure = _matrix(of_panel, down, across, order)
        sns.heatmap(better * (logs.where(sure, _PALE * logs) if survey else logs), ax=ax, **look)
        for (y, x), words in np.ndenumerate(text.to_numpy()):
            colour = ON_CELL if np.isfinite(logs.to_numpy()[y, x]) else MUTED
            weight = "bold" if sure.iat[y, x] else "normal"
            ax.text(x + 0.5, y + 0.5, words, ha="center", va="center", color=colour, fontweight=weight)
        ax.set(xlabel=across, ylabel=down if ax.get_subplotspec().is_first_col() else "")  # type: ignore[union-attr]
        named = [f"{name}: {value}" for name, value in zip(others, panel, strict=True)]
        ax.set_title(", ".join(named), loc="left", fontweight="normal")
        ax.tick_params(rotation=0)
        ax.grid(visible=False)
        if _MEAN in logs.index:
            ax.axhline(len(logs) - 1, color=INK, linewidth=1)
        if _MEAN in logs:
            ax.axvline(len(logs.columns) - 1, color=INK, linewidth=1)
    caption = "Blue is better, orange is worse. "
    together = two_families(compared) or "All cells are judged together."
    if "study" in compared:  # of several studies
        together = "Each study judges its own cells."
    caption += _SURVEYED if survey else f"Bold: shown to differ. {together}"
    caption += " In the means, the reference counts as no change." if shared else ""
    table = design.join(compared[["against", *ENDS, "verdict"]], how="inner").reset_index()
    title = f"Change of {effects.attrs.get('title', 'the metric')} in each cell of the grid"
    return titled(figure, title, caption, table)


@styled
def multiples(effects: pd.DataFrame, design: pd.DataFrame) -> Figure:
    """Draw the changes along a grid's last dimension, such as versions, a panel for each value of the others."""
    compared, (*others, along) = _of_grid(effects, design), design
    if not others:
        raise NoRowsError
    design = design.astype(str)
    order = _values(design, str(along))
    margin = 100 * effects.attrs.get("margin", 0.0)
    cells = compared.join(design, on="level")
    shared = {"sharex": True, "sharey": True}
    figure, panels = _panels(cells, others, 4, lambda tall: 0.6 + 1.9 * tall, **shared)
    for ax, names, panel in panels:
        rows = panel.set_index(along)
        points = rows[ENDS].where(rows["verdict"].ne("invalid")).reindex(order)
        points.loc[design[along][rows["against"].iloc[0]]] = 0.0
        points["ci_high"] = points["ci_high"].clip(upper=points["percent_change"].map(most_stated))
        at = range(len(order))
        ax.axhspan(-margin, margin, color=BAND, linewidth=0)
        ax.axhline(0, color=INK, linewidth=0.8)
        ax.fill_between(at, points["ci_low"], points["ci_high"], color=BLUE, alpha=0.25, linewidth=0)
        ax.plot(at, points["percent_change"], color=BLUE, linewidth=1)
        for x, (name, change) in enumerate(points["percent_change"].items()):
            verdict = rows["verdict"].get(name)
            look = mark_of(verdict)
            face = look.face if verdict else look.colour
            ax.plot(x, change, look.marker, color=look.colour, markerfacecolor=face, markersize=5)
        ax.set_xticks(at, order)
        ax.set_title(", ".join(map(str, names)), loc="left", fontweight="normal")
        ax.yaxis.set_major_formatter(PERCENT)
    together = two_families(compared) or "The intervals hold for all panels together."
    caption = "Blue bands: intervals; the grey band is the margin. Grey point: the reference. "
    caption += "The intervals are of single cells." if _is_survey(effects) else together
    title = f"Change of {effects.attrs.get('title', 'the metric')} by {along}"
    return titled(figure, title, caption, cells[[*others, along, "against", *ENDS, "verdict"]])


def _of_grid(effects: pd.DataFrame, design: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that compare two cells of the grid."""
    rows = effects[effects["level"].isin(design.index) & effects["against"].isin(design.index)]
    if rows.empty:
        raise NoRowsError
    return rows


def _values(design: pd.DataFrame, dimension: str) -> list[str]:
    """Return a dimension's values, in the order of the parameters if it is known."""
    there = [*dict.fromkeys(design[dimension])]
    known = design.attrs.get("order", {}).get(dimension, ())
    return sorted(there, key=known.index) if {*there} <= {*known} else there


def _is_survey(effects: pd.DataFrame) -> bool:
    return any(warning["code"] == "survey" for warning in effects.attrs.get("warnings", ()))


def _panels(
    cells: pd.DataFrame, others: list[Any], most: int, height: Callable[[int], float], **shared: Any
) -> tuple[Figure, list[tuple[Axes, Any, pd.DataFrame]]]:
    """Return a figure, and axes, values and rows for each combination of values of the other dimensions."""
    groups: list[Any] = [*cells.groupby(others, sort=False)] if others else [((), cells)]
    wide = min(len(groups), most)
    tall = -(-len(groups) // wide)
    size = (WIDTH, height(tall))
    figure, axes = plt.subplots(tall, wide, figsize=size, squeeze=False, layout="constrained", **shared)
    for ax in axes.flat[len(groups) :]:
        ax.set_visible(False)
    return figure, [(ax, values, rows) for ax, (values, rows) in zip(axes.flat, groups, strict=False)]


def _matrix(
    cells: pd.DataFrame, down: str, across: str, order: dict[str, list[str]]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return logs of ratios, their words, and whether a difference is shown.

    The last row and column have geometric means of several comparisons.
    """
    rows, columns = order[down], [value for value in order[across] if value in {*cells[across]}]

    def of(name: str) -> pd.DataFrame:
        return cells.pivot(index=down, columns=across, values=name).reindex(index=rows, columns=columns)

    logs, text, means = of("log"), of("text").fillna(""), of("mean").astype(float)
    sure = of("verdict").isin(["faster", "slower", "stands out"])
    if means.notna().sum(axis=1).gt(1).any():
        logs[_MEAN] = means.mean(axis=1).where(means.notna().any(axis=1))
    if means.notna().sum().gt(1).any():
        logs.loc[_MEAN] = means.mean()
        if _MEAN in logs:
            logs.loc[_MEAN, _MEAN] = float(np.nanmean(means.to_numpy()))
    changes = logs.apply(np.expm1).mul(100)
    words = changes.map(lambda change: percent_words(change)[0] if np.isfinite(change) else "")
    words.loc[text.index, text.columns] = text
    return logs, words, sure.reindex(index=logs.index, columns=logs.columns, fill_value=False)
