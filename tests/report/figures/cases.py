"""Trials, readings and what instruments recorded, as small studies leave them."""

import numpy as np
import pandas as pd

import benchlib
from benchlib.study.instruments import SECONDS

LONG = "a level whose name goes on, random_page_cost=1.1 and effective_io_concurrency=200"
EVENTS = {"IO: WALSync": 5.0, "LWLock: WALWrite": 2.0, "Client: ClientRead": 0.7, "CPU": 0.5}
RARE = {"Lock: tuple": 0.1, "LWLock: BufferMapping": 0.05, "IO: DataFileRead": 0.02, "IPC: ProcArrayGroupUpdate": 0.01}  # fmt: skip


def make_trials(effects, *, blocks=5, drift=0.15, noise=0.02, failed=()):
    """Trials of levels with known effects in percent, on a host whose mood changes between blocks."""
    random = np.random.default_rng(7)
    rows, clock = [], 0.0
    for block in range(1, blocks + 1):
        host = np.exp(random.normal(0, drift))
        for level in random.permutation(list(effects)):
            tps = 1400 * host * (1 + effects[level] / 100) * np.exp(random.normal(0, noise))
            error = "3 clients aborted" if (block, level) in failed else None
            tps = np.nan if error else tps
            rows.append((block, str(level), tps, 8000 / tps, clock, error))
            clock += 19.0
    return pd.DataFrame(rows, columns=["block", "level", "tps", "latency_average_ms", "started_s", "error"])


def judged(trials, **options):
    """The analysis of the trials that ended well."""
    return benchlib.analyze(trials[trials["error"].isna()], **{"baseline": "defaults", **options})


def make_progress(trials, seconds=20):
    """Readings each second of the trials that ended well."""
    rows = [
        (level, block, float(second), tps * (1 - 0.5 / second))
        for level, block, tps in trials.dropna(subset=["tps"])[["level", "block", "tps"]].to_numpy()
        for second in range(1, seconds + 1)
    ]
    return pd.DataFrame(rows, columns=["level", "block", "elapsed_s", "tps"])


def seconds_of(levels, blocks, seconds):
    rows = [
        (level, block, s) for level in levels for block in range(1, blocks + 1) for s in range(1, seconds + 1)
    ]
    return pd.DataFrame(rows, columns=["level", "block", "second"]).astype({"second": float})


def make_waits(levels, *, blocks=3, seconds=12, events=None):
    """The later a level, the less of the first event; the others vary."""
    random, frame = np.random.default_rng(2), seconds_of(levels, blocks, seconds)
    for number, (event, mean) in enumerate((events or EVENTS | RARE).items()):
        part = frame["level"].map(
            {level: 0.85 ** (place * (number == 0)) for place, level in enumerate(levels)}
        )
        frame[event] = mean * part * random.uniform(0.7, 1.3, len(frame))
    return frame


def make_seconds(levels, *, blocks=3, seconds=12):
    """Every figure at random, but nothing is read."""
    random, frame = np.random.default_rng(3), seconds_of(levels, blocks, seconds)
    for name in SECONDS[3:]:
        frame[name] = random.uniform(10, 40, len(frame))
    return frame.assign(r_iops=0.0, r_mib_s=0.0, r_await_ms=np.nan)


def make_quantiles(levels, *, blocks=4):
    random = np.random.default_rng(5)
    rows = [
        (level, block, *(np.array([4, 9, 20, 70]) * (1 + place / 3) * np.exp(random.normal(0, 0.1))))
        for place, level in enumerate(levels)
        for block in range(blocks)
    ]
    names = [f"latency_{name}_ms" for name in ("p50", "p95", "p99", "p999")]
    return pd.DataFrame(rows, columns=["level", "block", *names])


def make_sweep(levels, clients, *, blocks=3):
    random = np.random.default_rng(6)
    rows = [
        (
            level,
            block,
            count,
            4000 * (1 + place) * count / (count + 20) * np.exp(random.normal(0, 0.05)),
            None,
        )
        for place, level in enumerate(levels)
        for count in clients
        for block in range(blocks)
    ]
    return pd.DataFrame(rows, columns=["level", "block", "clients", "tps", "error"])


def crossed(design, sizes, *, blocks=4, noise=0.02):
    """Trials of a design with known effects (logarithms), interactions as `a × b`."""
    random = np.random.default_rng(11)
    effect = sum(size / 2 * design[term.split(" × ")].prod(axis=1) for term, size in sizes.items())
    rows = [
        (block, level, 1400 * np.exp(random.normal(0, noise) + effect[level]))
        for block in range(1, blocks + 1)
        for level in design.index
    ]
    return pd.DataFrame(rows, columns=["block", "level", "tps"])


def climb(steps, percents, *, blocks=5):
    """Trials of a ladder whose steps change the metric by `percents`."""
    random, at = np.random.default_rng(5), np.cumsum([0, *np.log1p(np.array(percents) / 100)])
    rows = [
        (block, level, 800 * np.exp(place + random.normal(0, 0.015)))
        for block in range(blocks)
        for level, place in zip(steps, at, strict=True)
    ]
    return pd.DataFrame(rows, columns=["block", "level", "tps"])
