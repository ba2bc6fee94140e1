"""Surveys on trial: matrices in which the truth is known, surveyed and then confirmed by fresh blocks.

A matrix has 35 workloads and 20 versions (700 cells). A trial has 2 % noise around its cell and a deviation of its block.
Some cells differ from their reference by 5 %, up or down. Prints and writes: the share of matrices with a false claim, the
share of true changes that are found, and the trials that it takes. ``python benchmarks/survey.py [MATRICES]``
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from benchlib.stats.effects import compare
from benchlib.stats.limits import STANDS_OUT
from benchlib.stats.survey import blocks_to_confirm

WORKLOADS, VERSIONS, AGAIN, CHANGE = 35, 20, 3, 0.05
OUT = Path(__file__).parent.parent / "data" / "benchmarks" / "survey.csv"


def trials_of(cells: dict[str, float], blocks: int, noise: float, rng: np.random.Generator) -> pd.DataFrame:
    """Return trials of cells (name → true log-ratio), whose part is the text before the slash."""
    rows = [
        (block, name, name.split("/")[0], 1000 * np.exp(mood + true + rng.normal(0, noise)))
        for block, mood in enumerate(rng.normal(0, 0.05, blocks), 1)
        for name, true in cells.items()
    ]
    return pd.DataFrame(rows, columns=["block", "level", "part", "tps"])


def matrix(seed: int, trials: int, changed: float, noise: float) -> dict[str, float]:
    """Survey and confirm one matrix; return counts."""
    rng = np.random.default_rng(seed)
    cells = {f"w{w}/{v}": 0.0 for w, v in product(range(WORKLOADS), range(VERSIONS))}
    against = {name: f"{name.split('/')[0]}/0" for name in cells if not name.endswith("/0")}
    for name in rng.permutation([*against])[: round(changed * len(against))]:
        cells[name] = np.log1p(CHANGE) * rng.choice([-1, 1])
    repeats = {
        f"{other}, again {n}": other for other in dict.fromkeys(against.values()) for n in range(AGAIN)
    }
    surveyed = trials_of({**cells, **dict.fromkeys(repeats, 0.0)}, trials, noise, rng)
    first = compare(surveyed, baseline="w0/0", against={**against, **repeats}, repeats=repeats)
    out = list(first.loc[first["verdict"].eq(STANDS_OUT), "level"])
    true = {name for name, ratio in cells.items() if ratio}
    counts = {"true": len(true), "out": len(out), "true_out": len({*out} & true)}
    names = [*dict.fromkeys(against[name] for name in out)]
    chosen = {name: cells[name] for name in [*names, *out]}
    # from the survey's own estimate of the noise
    sd = float(first["error"].median() * np.sqrt(trials / (1 + 1 / (1 + AGAIN))))
    blocks = blocks_to_confirm(len(out), sd)
    fresh = trials_of({names[0]: 0.0, "control": 0.0, **chosen}, blocks, noise, rng)
    fresh.loc[fresh["level"].eq("control"), "part"] = names[0].split("/")[0]
    pairs = {name: against[name] for name in out if against[name] != names[0]}
    claims = compare(fresh, baseline=names[0], controls=["control"], against=pairs).set_index("level")
    claims = claims.drop("control")
    signs = claims["verdict"].map({"faster": 1, "slower": -1}).fillna(0)
    right = [name for name in claims.index if signs[name] and np.sign(cells[name]) == signs[name]]
    return {**counts, "found": len(right), "false": int(signs.abs().sum()) - len(right),
            "blocks": blocks, "trials": len(surveyed) + len(fresh), "invalid": int(claims["verdict"].eq("invalid").all())}  # fmt: skip


def main(count: int) -> None:
    """Simulate all situations, and write them."""
    rows = []
    for changed, trials in product((0.05, 0.0, 0.2), (1, 2)):
        with ProcessPoolExecutor(2) as pool:
            work = partial(matrix, trials=trials, changed=changed, noise=0.02)
            found = pd.DataFrame(pool.map(work, range(count)))
        true = max(found["true"].sum(), 1) if changed else np.nan
        means = found[["out", "blocks", "trials", "invalid"]].mean()
        rows.append(
            {"trials_a_cell": trials, "changed": changed, "matrices": count, "false_claims": found["false"].gt(0).mean()}
            | {"stood_out": found["true_out"].sum() / true, "found": found["found"].sum() / true, **means}
        )  # fmt: skip
        print(rows[-1], flush=True)
        pd.DataFrame(rows).to_csv(OUT, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
