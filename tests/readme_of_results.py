"""The README's headline results, one line for each factor, from the pages in reports/. ``make readme`` writes them."""

import re
import sys
from pathlib import Path

from benchlib.report.model import PageData

ROOT = Path(__file__).parent.parent
README, REPORTS = ROOT / "README.md", ROOT / "reports"
HEADLINES = {
    "version-matrix-recorded": ("micro-insert, 18", "PostgreSQL 18 instead of 11, one-row inserts"),
    "configuration-recorded": ("tuned", "seven tuned settings"),
    "replication-recorded": ("on", "a synchronous replica"),
    "operating_system-recorded": (
        "with a reader: 8 read-ahead",
        "read-ahead of 256 kB instead of 4 MB, during a scan",
    ),
    "storage-recorded": ("faster disk, 4 clients", "a disk without its limit of 600 requests/s"),
    "durability-recorded": ("WAL on its own disk", "the WAL on its own disk"),
    "memory-recorded": ("shared_buffers 400MB", "shared_buffers of 400 MB instead of 128 MB"),
    "planner-recorded": ("without a full join", "GROUP BY instead of a UNION of outer joins"),
    "mixed_load-recorded": ("16 clients", "16 clients instead of 1"),
    "managed-recorded": ("run, stand-in B", "a provider's kind of settings instead of the defaults"),
    "combined-recorded": (
        "18, tuned, faster disk, sysctl set",
        "version, settings, disk and kernel together",
    ),
}
"""The recorded studies, each with the level whose comparison is shown, and words for it."""
_PART = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->\n)", re.DOTALL)


def table() -> str:
    """Return the rows of the README's table of results."""
    lines = ["| factor | change | effect | verdict |", "|---|---|---|---|"]
    for name, (level, words) in HEADLINES.items():
        page = PageData.model_validate_json((REPORTS / f"{name}.json").read_text())
        answer = next(each for each in page.comparisons if each.level == level)
        change, interval = answer.change
        words += " †" * any(each.code == "durability" and f"“{level}”" in each.text for each in page.limits)
        effect = f"{change} {page.metric_title} [{interval.replace(' to ', ', ')}]"
        lines.append(f"| [{page.title}](reports/{name}.html) | {words} | {effect} | {answer.verdict} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the README."""
    README.write_text(_PART.sub(lambda found: found[1] + table() + found[2], README.read_text()))


if __name__ == "__main__":
    sys.exit(main())
