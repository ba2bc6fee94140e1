"""Checkpoints in a server's log (``log_checkpoints``), PostgreSQL 10 and later."""

import re
from datetime import UTC, datetime

import pandas as pd

# "2026-01-31 12:00:00.123 UTC [4711] LOG:  checkpoint starting: time"; a restartpoint is a replica's
_LINE = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) (?:UTC|GMT)\b.*?LOG: +checkpoint (starting|complete): ?(.*)",
    re.MULTILINE,
)


def checkpoints(log: str, since_epoch_s: float) -> pd.DataFrame:
    """Return a row per checkpoint in a log, with seconds since ``since_epoch_s``.

    ``kind``: ``timed``, ``wal`` (max_wal_size) or ``requested``. Lines without a UTC time are ignored.
    """
    rows: list[dict[str, object]] = []
    for match in _LINE.finditer(log):
        try:
            moment = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() - since_epoch_s
        except ValueError:  # not a date, such as month 13
            continue
        if match[2] == "starting":
            flags = match[3].split()  # several for one that is both due and requested
            kind = "timed" if "time" in flags else "wal" if "wal" in flags else "requested"
            rows.append({"start_s": moment, "kind": kind})
            continue
        if not rows or "end_s" in rows[-1]:
            rows.append({})  # started before the log
        rows[-1]["end_s"] = moment
    return pd.DataFrame(rows, columns=["start_s", "end_s", "kind"]).astype({"start_s": float, "end_s": float})
