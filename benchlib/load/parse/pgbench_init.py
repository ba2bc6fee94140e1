"""pgbench's report of loading its tables.

Source: ``initGenerateDataClientSide``, ``runInitSteps`` in pgbench.c.
"""

import re
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse.text import Line, Text, faults, missing_line, options

ROWS_PER_SCALE = 100_000

# from 17 on, large scales also report the small tables by name
_TUPLES = Line(
    r"{rows:d} of {planned:d} tuples \(\d+%\)(?: of pgbench_accounts)? done \(elapsed {load_elapsed_s:f} s, remaining -?[\d.]+ s\)\.?"
)
_COMMA = re.compile(r"(?<=\d),(?=\d\d s\b)")
"""The decimal comma of a locale."""
_DONE = re.compile(r"(?:done in|total time:) (\d{1,9}\.\d\d) s \((.*)\)\.?")
_FIRST_STEPS = ("dropping old tables...", "creating tables...")
_PHASE = re.compile(r"([a-z][a-z -]*) (\d{1,9}\.\d\d) s")


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Parse a load's report; refuse failed ones."""
    lines = [_COMMA.sub(".", line) for line in text.lines]
    readings = [reading for line in lines if (reading := _TUPLES.read(line))]
    timed = [done for line in lines if (done := _DONE.fullmatch(line))]
    planned = {reading["planned"] for reading in readings}
    loaded = [reading for reading in readings if reading["rows"] == reading["planned"]]
    untimed = text.lines.count("done.")
    if not timed and not untimed:
        raise missing_line("done in … s (…).", text)
    if planned and not loaded:
        raise missing_line(f"{max(planned)} of {max(planned)} tuples (100%) done (…)", text)
    if max(len(timed), untimed, len(planned)) > 1 or any(text.lines.count(step) > 1 for step in _FIRST_STEPS):
        raise ParseError("two loads in one text; parse each on its own")
    last: dict[str, Any] = loaded[0] if loaded else {}
    rows, given = last.get("rows"), options(argv).get("scale", "")
    scale = rows // ROWS_PER_SCALE if rows else int(given) if given.isdecimal() and len(given) < 10 else None
    errors = faults(text.lines)
    return {
        "complete": not errors,
        "rows": rows,
        "scale": scale,
        "load_elapsed_s": last.get("load_elapsed_s"),
        "phases_s": _phases(timed[0]) if timed else {"total": None},
        "errors": errors,
    }


def _phases(done: re.Match[str]) -> dict[str, float | None]:
    phases: dict[str, float | None] = {"total": float(done[1])}
    for part in filter(None, done[2].split(", ")):
        phase = _PHASE.fullmatch(part)
        if phase is None:
            raise ParseError(f'cannot read "{part}" in "{done[0]}"')
        phases[re.sub(r"\W", "_", phase[1])] = float(phase[2])
    parts = [seconds or 0.0 for name, seconds in phases.items() if name != "total"]
    # The total is the sum of the phases; each is rounded to a hundredth.
    if parts and abs(sum(parts) - float(done[1])) > 0.0051 * (len(parts) + 1) + 0.01 * float(done[1]):
        raise ParseError(f'the phases in "{done[0]}" do not add up to the total')
    return phases
