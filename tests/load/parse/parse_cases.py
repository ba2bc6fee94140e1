"""The recorded runs: what real binaries printed, and what was read from it, checked by review.

``python tests/parse/parse_cases.py`` writes the golden files anew; read the difference before keeping it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib.errors import ParseError
from benchlib.load.parse import parse_text

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"


@dataclass(frozen=True)
class Case:
    """One recorded run of one version."""

    folder: Path

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def argv(self) -> list[str]:
        return json.loads((self.folder / "argv.json").read_text())

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    @property
    def both(self) -> str:
        return self.read("stdout") + self.read("stderr")

    @property
    def log(self) -> str:
        """Return the log files of all threads as one text; empty when the run kept none."""
        return "".join(each.read_text() for each in sorted(self.folder.glob("*.[0-9]*")))


CASES = [Case(each) for each in sorted((HERE / "corpus").glob("*/*"))]


def outcome(text: str, argv: list[str] | None = None) -> dict[str, Any]:
    """Parse, with a refusal as data."""
    try:
        return parse_text(text, argv=argv)
    except ParseError as error:
        return {"refused": str(error)}


def observed(case: Case) -> dict[str, Any]:
    """Return what is read from a case: its report, and its log where there is one."""
    found = {"report": outcome(case.both, case.argv)}
    if case.log:
        found["log"] = outcome(case.log, case.argv)
    return {key: plain(value) for key, value in found.items()}


def plain(value: Any) -> Any:
    """Leave out what is absent, so that a golden file reads as what was printed, and the last digits."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if each is not None and each != []}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


if __name__ == "__main__":
    for version in sorted({case.folder.parent.name for case in CASES}):
        rows = {case.folder.name: observed(case) for case in CASES if case.folder.parent.name == version}
        (GOLDEN / f"{version}.json").write_text(
            json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        )
