"""Fails when the pure layers are covered by less than 95 % of their lines: the number, per layer."""

import json
import sys
from pathlib import Path

PURE = (
    *("errors", "plan", "stats", "load/parse", "host/telemetry", "server/counters", "server/checkpoints"),
)
WANTED = 95.0


def main() -> int:
    files = json.loads(Path(sys.argv[1]).read_text())["files"]
    low = False
    for layer in PURE:
        counts = [
            f["summary"]
            for name, f in files.items()
            if name == f"benchlib/{layer}.py" or name.startswith(f"benchlib/{layer}/")
        ]
        covered, lines = (sum(c[key] for c in counts) for key in ("covered_lines", "num_statements"))
        share = 100 * covered / lines if lines else 0.0
        low |= share < WANTED
        print(f"{layer:<12} {share:5.1f} % of {lines} lines")
    if low:
        print(f"a pure layer is covered by less than {WANTED:g} %", file=sys.stderr)
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
