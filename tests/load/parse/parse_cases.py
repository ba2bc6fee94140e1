"""The recorded runs: what real binaries printed, and what was read from it, checked by review.

``corpus/`` has a file for each version: by case the command line, what was printed, the status, and the logs by name. Cases whose
text has one shape are there once. ``texts/`` has single reports: what others published (``pg_test_fsync`` by the study of 1C;
9.6 and sysbench 0.5 by that of managed servers; sysbench 1.0), and small ones that tests change. ``python tests/load/parse/parse_cases.py``
writes the golden files anew; read the difference before keeping it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((HERE / "texts").glob("*.txt"))}


class Case(NamedTuple):
    """One recorded run of one version; ``log``: the log files of all threads as one text."""

    version: str
    title: str
    stdout: str
    stderr: str = ""
    argv: tuple[str, ...] = ()
    rc: int = 0
    log: str = ""

    @property
    def name(self) -> str:
        return f"{self.version}/{self.title}"

    @property
    def both(self) -> str:
        return self.stdout + self.stderr


CASES = [
    Case(
        path.stem,
        title,
        run["stdout"],
        run["stderr"],
        (*run["argv"],),
        run["rc"],
        "".join(run.get("logs", {}).values()),
    )
    for path in sorted((HERE / "corpus").glob("*.json"))
    for title, run in json.loads(path.read_text(encoding="utf-8")).items()
]


REVIEWED = [*CASES, *(Case("texts", name, text) for name, text in TEXTS.items())]
"""All whose report is kept."""


def edited(parts: str, edits: dict[str, str]) -> str:
    """The texts of those names, or those words themselves, one after the other, in which some words are others."""
    text = "".join(TEXTS.get(part, part) for part in parts.split(" + "))
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    return text


def found(value: Any, path: str) -> Any:
    """What is in a report under a path of keys and places; ``*`` stands for all rows of a list."""
    key, _, rest = path.partition(".")
    if key == "*":
        return [found(row, rest) for row in value]
    return found(value[int(key) if isinstance(value, list) else key], rest) if key else value


@cache
def outcome(text: str, argv: tuple[str, ...]) -> dict[str, Any]:
    """Parse, with a refusal as data."""
    try:
        return parse_text(text, argv=list(argv))
    except ParseError as error:
        return {"refused": str(error)}


def observed(case: Case) -> dict[str, Any]:
    """What is read from a case: its report, and its log where there is one."""
    reports = {"report": outcome(case.both, case.argv)}
    if case.log:
        reports["log"] = outcome(case.log, case.argv)
    return {key: plain(report) for key, report in reports.items()}


def plain(value: Any) -> Any:
    """Leave out what is absent, so that a golden file reads as what was printed, and the last digits."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if each is not None and each != []}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


if __name__ == "__main__":
    for version in sorted({case.version for case in REVIEWED}):
        rows = {case.title: observed(case) for case in REVIEWED if case.version == version}
        (GOLDEN / f"{version}.json").write_text(
            json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        )
