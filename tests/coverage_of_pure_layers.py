"""Fails when the pure layers are covered by less than 95 % of their lines: the number, per layer."""

import json
import re
import sys
from pathlib import Path

PURE = ("errors", "plan", "stats", "load/parse", "host/telemetry", "server/counters", "server/checkpoints")
WANTED = 95.0


def main() -> str | bool:
    files, low = json.loads(Path(sys.argv[1]).read_text())["files"], False
    for layer in PURE:
        counts = [
            each["summary"] for name, each in files.items() if re.match(rf"benchlib/{layer}(\.py|/)", name)
        ]
        covered, lines = (sum(c[key] for c in counts) for key in ("covered_lines", "num_statements"))
        share = 100 * covered / lines if lines else 0.0
        low |= share < WANTED
        print(f"{layer:<18} {share:5.1f} % of {lines} lines")
    return low and f"a pure layer is covered by less than {WANTED:g} %"


if __name__ == "__main__":
    sys.exit(main())
