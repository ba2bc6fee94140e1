"""Comparisons of studies."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import t

ENDS = ["percent_change", "ci_low", "ci_high"]
WITHOUT = "change points are not computed: apache-otava is missing; 'pip install --no-deps apache-otava' installs it"
"""Message if apache-otava is missing. It pins numpy and scipy only for its command line."""


def between(one: pd.DataFrame, other: pd.DataFrame, *, alpha: float, margin: float) -> pd.DataFrame:
    """Return how effects differ between two studies, a row per common comparison.

    Both are frames of :func:`benchlib.compare` without controls. Columns: theirs with ``_first`` and
    ``_second``, and the ratio's ``percent_change, ci_low, ci_high, p_value, verdict``.

    Method: Welch and Satterthwaite, adjusted by Sidak.
    """
    first, second = (
        effects.assign(estimate=np.log1p(effects["percent_change"] / 100)) for effects in (one, other)
    )
    rows = first.merge(second, on=["level", "against"], suffixes=("_first", "_second"))
    squares = rows[["error_first", "error_second"]].to_numpy() ** 2
    variance = squares.sum(axis=1)
    df = variance**2 / (squares**2 / rows[["df_first", "df_second"]].to_numpy()).sum(axis=1)
    estimate, error = (rows["estimate_second"] - rows["estimate_first"]).to_numpy(), np.sqrt(variance)
    alpha = -np.expm1(np.log1p(-alpha) / max(len(rows), 1))
    low, high = estimate + np.array([[-1], [1]]) * t.isf(alpha / 2, df) * error
    inside = np.minimum(np.log1p(margin) - estimate, estimate - np.log1p(-margin))
    invalid = (rows[["verdict_first", "verdict_second"]] == "invalid").any(axis=1)
    words = ["cannot tell", "differs", f"same within ±{100 * margin:g} %"]
    verdict = np.select([invalid, (low > 0) | (high < 0), t.sf(inside / error, df) <= alpha], words, words[0])
    changes = dict(zip(ENDS, 100 * np.expm1([estimate, low, high]), strict=True))
    return rows.assign(**changes, p_value=2 * t.sf(abs(estimate / error), df), verdict=verdict)


def change_points(factors: Sequence[float], margin: float) -> list[int] | None:
    """Return the indices at which a series of effects changes; None without apache-otava.

    Method: e-divisive means (Matteson and James, 2014), p = 0.001.
    """
    try:
        from otava.analysis import compute_change_points
    except ImportError:
        return None
    return [int(point.index) for point in compute_change_points(list(factors), min_magnitude=margin)[0]]
