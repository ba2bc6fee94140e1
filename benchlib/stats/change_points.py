"""Where a series of effects changes for good."""

from collections.abc import Sequence

WITHOUT = "change points are not looked for: 'pip install --no-deps apache-otava' brings what finds them"
"""What is said where that package is missing. It pins numpy and scipy for its command line; what is used here does not mind."""


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
