"""What all charts share: the style, the form of the axes, and the words for a frame without rows."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchlib.report.display import described
from benchlib.report.style import MUTED

WIDTH, ROW = 9.6, 0.42
"""Inches: the width of a figure, and the height of a row."""
ENDS = ["percent_change", "ci_low", "ci_high"]
LOOK = [sns.axes_style("whitegrid"), str(Path(__file__).parent / "template" / "charts.mplstyle")]
"""The styles of all figures, for ``matplotlib.pyplot.style``."""
COUNTS = FuncFormatter(lambda value, _: f"{value:,.10g}".replace("-", "−"))
PERCENT = FuncFormatter(lambda value, _: f"{value:+g} %".replace("-", "−").replace("+0 %", "0"))

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw in benchlib's style; without rows the chart says so."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with plt.style.context(LOOK):
            try:
                return draw(*args, **kwargs)
            except NoRowsError:
                ax = axes_of(kwargs.get("ax"), 0)
                ax.set_axis_off()
                ax.text(0, 0.5, "no data of this kind in this study", color=MUTED, transform=ax.transAxes)
                done(ax, "", "", pd.DataFrame())
                return ax.get_figure() if draw.__annotations__["return"] is Figure else ax  # type: ignore[return-value]

    return drawn


class NoRowsError(Exception):
    """A frame without a row to draw."""


def rows_of(frame: pd.DataFrame, *numbers: str) -> pd.DataFrame:
    """Return the rows that have these numbers, as floats."""
    rows = frame.dropna(subset=[*numbers])
    if rows.empty:
        raise NoRowsError
    return rows.astype(dict.fromkeys(numbers, float))


def axes_of(ax: Any, rows: float = 8) -> Axes:
    """Return the given axes, or new ones for this many rows."""
    return ax or plt.subplots(figsize=(WIDTH, 0.9 + ROW * rows), layout="constrained")[1]


def done(ax: Axes, title: str, caption: str, rows: pd.DataFrame, **settings: Any) -> Axes:
    """Finish a chart: title, legend at the side, caption and numbers."""
    ax.set_title(title, loc="left")
    ax.set(**settings)
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1))
    if isinstance(figure := ax.get_figure(), Figure):
        described(figure, caption, rows)
    return ax


def titled(figure: Figure, title: str, caption: str, rows: pd.DataFrame, **place: Any) -> Figure:
    """Finish a figure of several panels."""
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", **place)
    described(figure, caption, rows)
    return figure
