"""The output of ``pg_test_fsync``.

Source: ``pg_test_fsync.c`` (9.2 to 18).
"""

import re
from collections.abc import Sequence
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse.text import Line, Text, missing_line

_SECTION = re.compile(
    r"(Compare file sync methods using .+|Compare open_sync with different write sizes"
    r"|Test if fsync on non-write file descriptor is honored|Non-sync'ed \S+ writes):",
    re.IGNORECASE,
)
_OTHERS = re.compile(r"\D.*[:：]$|\d+ \S{1,3} \D.*:$")
_COMMAS = re.compile(r"(\d+),(\d+)(?= +\D)")
_METHOD = r"(?:open_datasync|fdatasync|fsync|fsync_writethrough|open_sync)"
_LIKE_A_ROW = re.compile(rf".*\b(?:ops/sec|usecs/op)\b|{_METHOD} +[\d-]")
_ENGLISH = r"(?P<method>\S.*?[^\s\d]) (?:{ops_per_s:f} ops/sec(?: {usecs_per_op:f} usecs/op)?|n/a\*?)"
_ROW = Line(_ENGLISH)
_FOREIGN = Line(  # translated units; each row has the same value twice
    _ENGLISH,
    r"(?P<method>\S.*?[^\s\d]) {ops_per_s:f3} [^\d\s]\D*? {usecs_per_op:d} [^\d\s]\D*",
    rf"(?P<method>{_METHOD}) [^\d\s][^\d:]{{0,11}}",
)
LIKE_A_ROW = rf"{_METHOD} +(?:\d+[.,]\d{{3}} \D|n/a)"
"""Beginnings of rows in any language."""
_SECONDS = re.compile(r"(\d{1,9}) seconds? per test")


def parse(text: Text, argv: list[str] | None) -> dict[str, Any]:
    """Parse the tables; refuse contradictions."""
    methods: list[dict[str, Any]] = []
    section = seconds = None
    foreign = not any(map(_SECTION.fullmatch, text.lines))
    headings, of_rows = (_with_rows(text.lines), _FOREIGN) if foreign else (set(), _ROW)
    for index, line in enumerate(text.lines):
        if index in headings:
            section = line.rstrip(" :：")
        elif heading := _SECTION.fullmatch(line):
            section = heading[1].replace("Non-Sync'ed", "Non-sync'ed")  # as 9.4 spells it
        elif length := _SECONDS.fullmatch(line):
            seconds = int(length[1])
        elif section and (row := _row(line, of_rows)):
            ops, usecs = row["ops_per_s"], row["usecs_per_op"]
            if ops and usecs is not None and abs(usecs - 1e6 / ops) > 0.51 + 0.01 * usecs:
                raise ParseError(f'"{line}" contradicts itself: {ops} ops/sec are {1e6 / ops:.0f} usecs/op')
            methods.append({"section": section, **row})
        elif _LIKE_A_ROW.match(line) and not text.torn(index):
            raise ParseError(f'"{line[:120]}" looks like a method\'s row, and cannot be read')
    if not methods:
        raise missing_line("METHOD  … ops/sec  … usecs/op", text)
    if len({(row["section"], row["method"]) for row in methods}) < len(methods):
        raise ParseError("the same method twice in a section: two runs in one text")
    return {
        # The last section is always printed, with one row.
        "complete": methods[-1]["section"].startswith("Non-sync'ed")
        or (foreign and methods[-1]["method"] == "write"),
        "seconds_per_test": seconds,
        "methods": methods,
    }


def _row(line: str, kinds: Line) -> dict[str, Any] | None:
    row = kinds.read(_COMMAS.sub(r"\1.\2", " ".join(line.split())))
    return row and {"ops_per_s": None, "usecs_per_op": None, **row}


def _with_rows(lines: Sequence[str]) -> set[int]:
    """Return the headings in any language."""
    found, last = set(), None
    for index, line in enumerate(lines):
        if _OTHERS.fullmatch(line):
            last = index
        elif last is not None and _row(line, _FOREIGN):
            found.add(last)
            last = None
    return found
