"""A kept transaction log without what no figure needs: a tenth of its size, the same figures."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchlib.errors import InputError
from benchlib.load.latency.kept import FORMAT, NOTE, SCHEMA

_MICRO = 1_000_000
_NEEDED = ("time_us", "latency_us", "schedule_lag_us", "status")


def thin_log(path: Path, target: Path) -> bool:
    """Write a log that ``keep_log`` kept anew, with the same :class:`~benchlib.load.latency.figures.Latency`; whether it was not thin already.

    Of a transaction the second in which it ended remains, its latency, lag and status. Inside a second
    latencies and lags are sorted, each for itself, which is what makes them small: a row is no transaction any more.

    Raises:
        InputError: the file is damaged, or of another kind.

    """
    try:
        note = json.loads((pq.read_schema(path).metadata or {})[NOTE])
        if note.get("thin"):
            return False
        table = pq.read_table(path, columns=[*_NEEDED])
    except (pa.ArrowException, OSError, KeyError, ValueError) as reason:
        raise InputError(
            f"cannot read {path.parent.name}/{path.name}: damaged, or not kept by benchlib"
        ) from reason
    second = pc.multiply(pc.divide(table["time_us"], _MICRO), _MICRO)
    table = table.set_column(0, "time_us", second)
    done = table["latency_us"].is_valid()
    by_latency, by_lag = (
        table.filter(done).sort_by([("time_us", "ascending"), (name, "ascending")])
        for name in ("latency_us", "schedule_lag_us")
    )
    by_latency = by_latency.set_column(2, "schedule_lag_us", by_lag["schedule_lag_us"])
    rest = table.filter(pc.invert(done)).sort_by("time_us")
    rows = pa.concat_tables([by_latency, rest])
    absent = pa.nulls(len(rows), pa.int64())
    columns = [rows[name] if name in _NEEDED else absent for name in SCHEMA.names]
    schema = SCHEMA.with_metadata({NOTE: json.dumps({**note, "thin": True})})
    pq.write_table(pa.table(columns, schema=schema), target, **FORMAT, compression_level=19)
    return True
