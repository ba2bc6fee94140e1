"""Designs as frames of -1 and +1, a row for each level, as the statistics of factorials take them."""

from itertools import product

import pandas as pd

from benchlib.plan.design import screening


def full_factorial(factors):
    """All combinations; rows are named by what is high, the first one ``none``."""
    rows = [tuple(reversed(signs)) for signs in product((-1, 1), repeat=len(factors))]
    high = [" + ".join(name for name, sign in zip(factors, row, strict=True) if sign > 0) for row in rows]
    return pd.DataFrame(rows, index=pd.Index([name or "none" for name in high]), columns=factors)


def screened(factors):
    """The combinations of a screening; rows are named by their place."""
    rows = [tuple(int(sign) for sign in row) for row in screening(dict.fromkeys(factors, ("-1", "1")))]
    return pd.DataFrame(
        rows, index=[f"run {place:02d}" for place in range(1, len(rows) + 1)], columns=factors
    )
