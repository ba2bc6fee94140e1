"""The same question by methods with other assumptions, shown beside the verdict, never instead of it.

Which of them can say anything depends on the number of blocks: with fewer than 6 neither ranks nor sign
flips can reach 0.05 and a bootstrap covers far too little, so nothing is shown.
"""

import numpy as np
import pandas as pd

from benchlib.stats.analysis import Analysis

RANKS_FROM, RESAMPLING_FROM = 6, 10
_RESAMPLES = 9999
_ENDS = ["percent_change", "ci_low", "ci_high"]


def sensitivity(analysis: Analysis) -> pd.DataFrame:
    """Return rows ``level, method, percent_change, ci_low, ci_high, p_value`` (single, not adjusted).

    The input is ``analysis.differences``. From 6 blocks: F. Wilcoxon's signed ranks (1945), zeros ranked as J. W. Pratt (1959) does,
    and sign flips; from 10 also Hodges-Lehmann and the BCa bootstrap. All are of differences inside blocks, so that a host that
    drifts does not blur them. None of them knows of hosts, or
    of clusters that stay: where several hosts ran the blocks, or periods are judged, nothing is shown.
    """
    from scipy.stats import wilcoxon  # takes long to import, and few studies have so many blocks

    rows: list[tuple[str, str, float, float, float, float]] = []
    hosts, none = any(warning.code == "hosts" for warning in analysis.warnings), float("nan")
    together = hosts or analysis.of_periods
    for level, part in analysis.differences.groupby("level", sort=False):
        logs, name = np.log1p(part["percent"].to_numpy() / 100), str(level)
        if together or len(logs) < RANKS_FROM:
            continue
        ranks = float(wilcoxon(logs, zero_method="pratt").pvalue) if logs.any() else 1.0
        rows.append((name, "signed ranks", none, none, none, ranks))
        rows.append((name, "sign flips", logs.mean(), none, none, sign_flip_p(logs)))
        if len(logs) >= RESAMPLING_FROM:
            rows.append((name, "Hodges–Lehmann", *hodges_lehmann(logs, analysis.alpha), none))
            rows.append((name, "BCa bootstrap", logs.mean(), *bca(logs, analysis.alpha), none))
    frame = pd.DataFrame(rows, columns=["level", "method", *_ENDS, "p_value"])
    frame[_ENDS] = 100 * np.expm1(frame[_ENDS].astype(float))
    return frame


def sign_flip_p(differences: np.ndarray) -> float:
    """Return the two-sided p of the mean under random signs of the differences (R. A. Fisher, 1935).

    scipy's permutation test: all 2^n signs up to n = 13, else 9,999 random ones with
    (extreme + 1) / (N + 1). Never 0.
    """
    from scipy.stats import permutation_test

    result = permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=_RESAMPLES, rng=1
    )
    return float(result.pvalue)


def hodges_lehmann(differences: np.ndarray, alpha: float = 0.05) -> tuple[float, float, float]:
    """Return the median of the Walsh averages and its distribution-free interval at 1 - alpha.

    Hodges and Lehmann (1963); the interval inverts the exact signed-rank distribution (Hollander
    and Wolfe, section 3.3). With n too small for alpha the interval is the range of the averages.
    """
    count = len(differences)
    walsh = np.sort(np.add.outer(differences, differences)[np.triu_indices(count)] / 2)
    ways = np.ones(1)
    for rank in range(1, count + 1):
        ways = np.convolve(ways, np.r_[1.0, np.zeros(rank - 1), 1.0]) / 2
    # the largest number of averages that can be cut off at each end
    cut = max(int(np.searchsorted(np.cumsum(ways), alpha / 2, side="right")), 1)
    return float(np.median(walsh)), float(walsh[cut - 1]), float(walsh[-cut])


def bca(differences: np.ndarray, alpha: float = 0.05) -> tuple[float, float]:
    """Return scipy's BCa bootstrap interval of the mean (B. Efron, 1987); NaN when nothing varies."""
    from scipy.stats import bootstrap

    if np.ptp(differences) < 1e-12:
        return float("nan"), float("nan")
    sure = 1 - alpha
    result = bootstrap((differences,), np.mean, confidence_level=sure, n_resamples=_RESAMPLES, rng=1)
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
