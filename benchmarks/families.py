"""The two families of a study on trial: how often studies claim something false among their answers, and among the rest.

Simulated studies without any effect, or with all levels at the margin's edge. Prints and writes one row a situation:
noise alike, one or several levels 3 or 10 times as noisy, stalls, heavy tails, clusters that stay. ``python benchmarks/families.py [STUDIES]``
"""

import sys
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from simulation import Situation, simulate_families

OUT = Path(__file__).parent.parent / "data" / "benchmarks" / "families.csv"
PROMISED = 0.06


def main(sessions: int) -> int:
    """Simulate all situations and write them; return 1 if a rate is above what is promised."""
    rows = list[dict[str, float]]()
    for answers, others, blocks in product((1, 2, 3, 5), (1, 3, 12), (3, 5, 10)):
        design: dict[str, Any] = {"blocks": blocks, "controls": 1, "levels": 2 + answers + others}
        noisy = {1, answers, answers + 1, answers + others}
        odd: list[dict[str, Any]] = [
            {"noisy": count, "ratio": ratio} for count, ratio in product(sorted(noisy), (3.0, 10.0))
        ]
        stay = [{"luck": luck, "period": 2} for luck in (0.5, 1.0) if blocks == 10]
        for what in [{}, *odd, {"stalls": 0.1}, {"tails": 3}, *stay]:
            situation = Situation(**design, **what)
            rows.append(simulate_families(situation, answers, sessions=sessions, seed=len(rows)))
    table = pd.DataFrame(rows).assign(studies=sessions)
    table.to_csv(OUT, index=False, float_format="%.4g")
    rates = table.filter(regex="_(different|equivalent)$")
    print(rates.describe().loc[["mean", "max"]].to_string())
    return int((rates > PROMISED).any(axis=None))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
