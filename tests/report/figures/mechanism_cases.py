"""What the instruments of a small study recorded, as frames."""

import numpy as np
import pandas as pd

from benchlib.load.latency import EDGES_US, Latency
from benchlib.study.instruments import SECONDS

EVENTS = {"IO: WALSync": 5.0, "LWLock: WALWrite": 2.0, "Client: ClientRead": 0.7, "CPU": 0.5}
RARE = {
    "Lock: tuple": 0.1,
    "LWLock: BufferMapping": 0.05,
    "IO: DataFileRead": 0.02,
    "IPC: ProcArrayGroupUpdate": 0.01,
}


def rows_of(levels, blocks, seconds):
    rows = [
        (level, block, s) for level in levels for block in range(1, blocks + 1) for s in range(1, seconds + 1)
    ]
    return pd.DataFrame(rows, columns=["level", "block", "second"]).astype({"second": float})


def make_waits(levels, *, blocks=3, seconds=12, events=None):
    """The later a level, the less of the first event; the others vary."""
    random, frame = np.random.default_rng(2), rows_of(levels, blocks, seconds)
    for number, (event, mean) in enumerate((events or EVENTS | RARE).items()):
        part = frame["level"].map(
            {level: 0.85 ** (place * (number == 0)) for place, level in enumerate(levels)}
        )
        frame[event] = mean * part * random.uniform(0.7, 1.3, len(frame))
    return frame


def make_seconds(levels, *, blocks=3, seconds=12):
    """Every figure at random, but nothing is read."""
    random, frame = np.random.default_rng(3), rows_of(levels, blocks, seconds)
    for name in SECONDS[3:]:
        frame[name] = random.uniform(10, 40, len(frame))
    return frame.assign(r_iops=0.0, r_mib_s=0.0, r_await_ms=np.nan)


def make_latencies(levels, *, blocks=2, seconds=30):
    """Some thousand transactions a second around 5 ms, a slow one now and then."""
    random, made = np.random.default_rng(4), {}
    for level in levels:
        for block in range(1, blocks + 1):
            counts = np.zeros((seconds, len(EDGES_US)), np.int64)
            for second in range(seconds):
                took = 5000 * np.exp(random.normal(0, 0.4, 2000))
                took[0] *= random.choice([1, 60])
                counts[second] = np.histogram(took, [*EDGES_US, 1e12])[0]
            made[level, block] = Latency(2000 * seconds, 0, 0, 0, None, {}, None, pd.DataFrame(), counts)
    return made


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
        (level, block, count, 4000 * (1 + place) * count / (count + 20) * np.exp(random.normal(0, 0.05)))
        for place, level in enumerate(levels)
        for count in clients
        for block in range(blocks)
    ]
    return pd.DataFrame(rows, columns=["level", "block", "clients", "tps"])
