"""Studies of the same comparisons: does an effect differ between two of them, and where does it change for good?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import t

ENDS = ["percent_change", "ci_low", "ci_high"]
WITHOUT = "change points are not looked for: 'pip install --no-deps apache-otava' brings what finds them"
"""What is said where that package is missing. It pins numpy and scipy for its command line; what is used here does not mind."""


def between(one: pd.DataFrame, other: pd.DataFrame, *, alpha: float, margin: float) -> pd.DataFrame:
    """Return how the effects of the second study differ from those of the first: a row for each comparison of both.

    Both are frames of :func:`benchlib.compare`, without their controls. Columns: ``level, against``; those of both frames with
    ``_first`` and ``_second`` behind them; ``percent_change, ci_low, ci_high``, the ratio of the two effects as a change in percent; ``p_value``;
    ``verdict``: *differs*, *same within ±m %*, or *cannot tell*, which is also said of what is invalid in either study.

    The studies are independent, so the variances of their log-ratios add up, with degrees of freedom by Welch and
    Satterthwaite. Intervals and words are adjusted for the number of comparisons (Sidak), at an error rate ``alpha``.
    """
    first, second = (each.assign(estimate=np.log1p(each["percent_change"] / 100)) for each in (one, other))
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
    """Return the places in a series of effects, as factors, from which on it is another; None without apache-otava.

    By its variant of e-divisive means (Matteson and James, 2014; Fleming and others, 2023), at a p of 0.001; of changes larger than a fraction
    ``margin`` alone, since with one or two points behind it that p means little.
    """
    try:
        from otava.analysis import compute_change_points
    except ImportError:
        return None
    return [int(point.index) for point in compute_change_points(list(factors), min_magnitude=margin)[0]]
