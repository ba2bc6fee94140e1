"""The changes of a grid as a heat map or small multiples."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchlib.plan.metrics import most_stated, percent_words
from benchlib.report.display import described, two_families
from benchlib.report.style import BAND, BLUE, INK, MUTED, PAPER, mark_of

_WIDTH, _CELL, _ROOM = 9.6, 0.85, 8.4
"""Inches: the width of a figure, the least width of a cell, and the width of all cells of a figure."""
CHANGES = sns.blend_palette(["#f0a27a", "#f3f3f3", "#7db8e0"], as_cmap=True)
"""From worse to better. Fills and text are the same on light and dark pages."""
ON_CELL = "#101010"
_PALE = 0.12
"""The strength of the colour of a surveyed cell that does not stand out."""
_SURVEYED = "A survey: bold cells stand out and are not confirmed; pale cells do not stand out."
_MEAN = "geometric\nmean"


def draw_grid(compared: pd.DataFrame, design: pd.DataFrame) -> Figure:
    """Draw a matrix, or one for each value of further dimensions.

    ``design`` has a row a level and a column a dimension.
    """
    varied = [*design]
    names = [*dict.fromkeys([*compared["against"], *compared.index])]
    cells = design.loc[[name for name in design.index if name in names]].copy()
    values = cells.to_dict("index")
    changed = {
        name for pair in compared["against"].items() for name in varied
        if values[pair[0]][name] != values[pair[1]][name]
    }  # fmt: skip
    across = min(changed) if len(changed) == 1 else varied[-1]
    down, *others = [name for name in varied if name != across]
    percents = compared["percent_change"].where(compared["verdict"].ne("invalid"))
    cells["log"] = pd.Series(np.log1p(percents.to_numpy(float) / 100), percents.index)
    cells["verdict"] = compared["verdict"]
    cells["text"] = percents.map(lambda change: percent_words(change)[0])
    cells["text"] = cells["text"].mask(cells["verdict"].eq("invalid"), "invalid").fillna("reference")
    # a common reference is a cell without a change
    shared = compared["against"].nunique() == 1
    cells["mean"] = cells["log"].mask(cells["verdict"].isna(), 0.0) if shared else cells["log"]
    panels = list(cells.groupby(others, sort=False)) if others else [((), cells)]
    wide = min(len(panels), max(int(_ROOM / (_CELL * (cells[across].nunique() + 1))), 1))
    tall = -(-len(panels) // wide)
    size = (_WIDTH, tall * (1.2 + 0.5 * (cells[down].nunique() + 1)))
    figure, axes = plt.subplots(tall, wide, figsize=size, squeeze=False, sharey=True, layout="constrained")
    biggest = max([0.01, *cells["log"].dropna().abs()])
    survey = any(warning["code"] == "survey" for warning in compared.attrs.get("warnings", ()))
    better = 1 if compared.attrs.get("higher_is_better", True) else -1
    look = {"vmin": -biggest, "vmax": biggest, "cmap": CHANGES, "cbar": False, "linewidths": 2}
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (panel, of_panel) in zip(axes.flat, panels, strict=False):
        logs, text, sure = _matrix(of_panel, down, across, [*dict.fromkeys(cells[down])])
        sns.heatmap(better * (logs.where(sure, _PALE * logs) if survey else logs), ax=ax, **look)
        for (y, x), words in np.ndenumerate(text.to_numpy()):
            colour = ON_CELL if np.isfinite(logs.to_numpy()[y, x]) else MUTED
            weight = "bold" if sure.iat[y, x] else "normal"
            ax.text(x + 0.5, y + 0.5, words, ha="center", va="center", color=colour, fontweight=weight)
        ax.set(xlabel=across, ylabel=down if ax in axes[:, 0] else "")
        named = [f"{name}: {value}" for name, value in zip(others, panel, strict=True)]
        ax.set_title(", ".join(named), loc="left", fontweight="normal")
        ax.tick_params(rotation=0)
        ax.grid(visible=False)
        if _MEAN in logs.index:
            ax.axhline(len(logs) - 1, color=INK, linewidth=1)
        if _MEAN in logs:
            ax.axvline(len(logs.columns) - 1, color=INK, linewidth=1)
    title = f"Change of {compared.attrs.get('title', 'the metric')} in each cell of the grid"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    caption = "Blue is better, orange is worse. "
    together = two_families(compared) or "All cells are judged together."
    caption += _SURVEYED if survey else f"Bold: shown to differ. {together}"
    caption += " In the means, the reference counts as no change." if shared else ""
    rows = compared[["against", "percent_change", "ci_low", "ci_high", "verdict"]]
    described(figure, caption, design.join(rows, how="inner").reset_index())
    return figure


def draw_multiples(compared: pd.DataFrame, design: pd.DataFrame) -> Figure:
    """Draw the changes along the last dimension, a panel for each value of the others."""
    *others, along = design
    order = [*dict.fromkeys(design[along])]
    margin = 100 * compared.attrs.get("margin", 0.0)
    cells = compared.join(design, on="level")
    panels = list(cells.groupby(others, sort=False))
    wide = min(len(panels), 4)
    tall = -(-len(panels) // wide)
    figure, axes = plt.subplots(
        tall,
        wide,
        figsize=(_WIDTH, 0.6 + 1.9 * tall),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (names, panel) in zip(axes.flat, panels, strict=False):
        reference = design[along][str(panel["against"].iloc[0])]
        points = panel.set_index(along)[["percent_change", "ci_low", "ci_high"]].where(
            panel.set_index(along)["verdict"].ne("invalid")
        )
        points = points.reindex(order)
        points[points.index == reference] = 0.0
        points["ci_high"] = points["ci_high"].clip(upper=points["percent_change"].map(most_stated))
        at = range(len(order))
        ax.axhspan(-margin, margin, color=BAND, linewidth=0)
        ax.axhline(0, color=INK, linewidth=0.8)
        ax.fill_between(at, points["ci_low"], points["ci_high"], color=BLUE, alpha=0.25, linewidth=0)
        ax.plot(at, points["percent_change"], color=BLUE, linewidth=1)
        for x, (name, change) in enumerate(points["percent_change"].items()):
            verdict = panel.set_index(along)["verdict"].get(name)
            look = mark_of(verdict)
            face = look.colour if look.filled or verdict is None else PAPER
            ax.plot(x, change, look.marker, color=look.colour, markerfacecolor=face, markersize=5)
        ax.set_xticks(at, order)
        ax.set_title(", ".join(map(str, names)), loc="left", fontweight="normal")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:+g} %".replace("-", "−"))
    figure.suptitle(
        f"Change of {compared.attrs.get('title', 'the metric')} by {along}",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    single = any(warning["code"] == "survey" for warning in compared.attrs.get("warnings", ()))
    together = two_families(compared) or "The intervals hold for all panels together."
    caption = "Blue bands: intervals; the grey band is the margin. Grey point: the reference. "
    caption += "The intervals are of single cells." if single else together
    described(
        figure, caption, cells[[*others, along, "against", "percent_change", "ci_low", "ci_high", "verdict"]]
    )
    return figure


def _matrix(
    cells: pd.DataFrame, down: str, across: str, rows: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return logs of ratios, their words, and whether a difference is shown.

    The last row and column have geometric means of several comparisons.
    """
    columns = [*dict.fromkeys(cells[across])]

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
