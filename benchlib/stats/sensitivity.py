"""The same question by methods with other assumptions, shown beside the verdict, never instead of it.

Which of them can say anything depends on the number of blocks: with fewer than 6 neither ranks nor sign
flips can reach 0.05 and a bootstrap covers far too little, so nothing is shown.
"""

import numpy as np
import pandas as pd

from benchlib.stats.analysis import Analysis

RANKS_FROM, RESAMPLING_FROM = 6, 10
_RESAMPLES = 9999
_COLUMNS = ["level", "method", "percent_change", "ci_low", "ci_high", "p_value"]


def sensitivity(analysis: Analysis, *, seed: int = 1) -> pd.DataFrame:
    """Return rows ``level, method, percent_change, ci_low, ci_high, p_value`` (single, not adjusted).

    The input is ``analysis.differences``. From 6 blocks: Wilcoxon's signed ranks and sign flips;
    from 10 also Hodges-Lehmann and the BCa bootstrap. All are of differences inside blocks, so that a host that
    drifts does not blur them. ``seed`` feeds the resampling. None of them knows of hosts: where several ran the blocks, nothing is shown.
    """
    if any(warning.code == "hosts" for warning in analysis.warnings):
        return pd.DataFrame(columns=_COLUMNS)
    rows: list[tuple[str, str, float, float, float, float]] = []
    for level, part in analysis.differences.groupby("level", sort=False):
        logs = np.log1p(part["percent"].to_numpy() / 100)
        name, mean = str(level), float(logs.mean())
        if len(logs) < RANKS_FROM:
            continue
        rows.append((name, "signed ranks", np.nan, np.nan, np.nan, signed_rank_p(logs)))
        rows.append((name, "sign flips", mean, np.nan, np.nan, sign_flip_p(logs, seed=seed)))
        if len(logs) >= RESAMPLING_FROM:
            rows.append((name, "Hodges–Lehmann", *hodges_lehmann(logs, analysis.alpha), np.nan))
            rows.append((name, "BCa bootstrap", mean, *bca(logs, analysis.alpha, seed=seed), np.nan))
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    for column in ("percent_change", "ci_low", "ci_high"):
        frame[column] = 100 * np.expm1(frame[column])
    return frame


def signed_rank_p(differences: np.ndarray) -> float:
    """Return the two-sided p of F. Wilcoxon's signed ranks (1945), zeros ranked as J. W. Pratt (1959) does."""
    from scipy.stats import wilcoxon  # takes long to import, and few studies have so many blocks

    x = np.asarray(differences, dtype=float)
    return float(wilcoxon(x, zero_method="pratt").pvalue) if x.any() else 1.0


def sign_flip_p(differences: np.ndarray, *, seed: int = 1) -> float:
    """Return the two-sided p of the mean under random signs of the differences (R. A. Fisher, 1935).

    scipy's permutation test: all 2^n signs up to n = 13, else 9,999 random ones with
    (extreme + 1) / (N + 1). Never 0.
    """
    from scipy.stats import permutation_test

    result = permutation_test(
        (np.asarray(differences, dtype=float),),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def hodges_lehmann(differences: np.ndarray, alpha: float = 0.05) -> tuple[float, float, float]:
    """Return the median of the Walsh averages and its distribution-free interval at 1 - alpha.

    Hodges and Lehmann (1963); the interval inverts the exact signed-rank distribution (Hollander
    and Wolfe, section 3.3). With n too small for alpha the interval is the range of the averages.
    """
    x = np.asarray(differences, dtype=float)
    rows, columns = np.triu_indices(len(x))
    walsh = np.sort((x[rows] + x[columns]) / 2)
    ways = np.ones(1)
    for rank in range(1, len(x) + 1):
        ways = np.convolve(ways, np.r_[1.0, np.zeros(rank - 1), 1.0]) / 2
    # the largest number of averages that can be cut off at each end
    cut = int(np.searchsorted(np.cumsum(ways), alpha / 2, side="right"))
    cut = max(cut, 1)
    return float(np.median(walsh)), float(walsh[cut - 1]), float(walsh[-cut])


def bca(differences: np.ndarray, alpha: float = 0.05, *, seed: int = 1) -> tuple[float, float]:
    """Return scipy's BCa bootstrap interval of the mean (B. Efron, 1987); NaN when nothing varies."""
    from scipy.stats import bootstrap

    x = np.asarray(differences, dtype=float)
    if np.ptp(x) < 1e-12:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    interval = bootstrap(
        (x,), np.mean, method="BCa", confidence_level=1 - alpha, n_resamples=_RESAMPLES, rng=rng
    ).confidence_interval
    return float(interval.low), float(interval.high)
