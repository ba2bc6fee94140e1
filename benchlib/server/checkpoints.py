"""The checkpoints that a server wrote into its log (``log_checkpoints``), of any version from 10 on."""

import re
from datetime import UTC, datetime

import pandas as pd

# "2026-01-31 12:00:00.123 UTC [4711] LOG:  checkpoint starting: time"; a restartpoint is a replica's
_LINE = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) (?:UTC|GMT)\b.*?LOG: +checkpoint (starting|complete): ?(.*)"
)


def shortened(log: str, limit: int) -> str:
    """Return a log's last ``limit`` characters, after what it says of checkpoints before them."""
    early = log[: max(len(log) - limit, 0)].splitlines(keepends=True)
    return "".join(line for line in early if "checkpoint" in line) + log[-limit:]


def checkpoints(log: str, since_epoch_s: float) -> pd.DataFrame:
    """A row per checkpoint in a server's log; ``start_s`` and ``end_s`` are seconds since a moment given.

    ``kind`` is ``timed`` (by checkpoint_timeout), ``wal`` (so much had been written) or ``requested`` (by a
    command, or a shutdown). What the log does not tell, as where it begins or ends in the midst of a checkpoint, is null.

    The lines must begin with a time in UTC, as by default where the server's time zone is UTC; others are
    not recognised.
    """
    rows: list[dict[str, object]] = []
    for line in log.splitlines():
        if not (match := _LINE.match(line)):
            continue
        try:
            moment = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() - since_epoch_s
        except ValueError:  # no time at all
            continue
        if match[2] == "starting":
            rows.append({"start_s": moment, "kind": _kind(match[3].split())})
            continue
        if not rows or "end_s" in rows[-1]:
            rows.append({})  # it began before the log did
        rows[-1]["end_s"] = moment
    return pd.DataFrame(rows, columns=["start_s", "end_s", "kind"]).astype({"start_s": float, "end_s": float})


def _kind(flags: list[str]) -> str:
    # one that was due and asked for at once has several
    return "timed" if "time" in flags else "wal" if "wal" in flags else "requested"
