"""Run ``make test`` ten times under adverse conditions: steady.py [--out CSV] [--only CONDITION].

Each condition is one on which no test may depend: the user, other load, one processor, a busy disk, strange paths, another
language, a coarse clock, little memory, the order of the tests. As an ordinary user the runs that need root are left out.
"""

import argparse
import contextlib
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent.parent
USER = "benchlib-steady"
MEMORY = 2 << 30
LANGUAGE = "tr_TR.UTF-8"


class Run:
    """How one run of ``make test`` is started."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.folder = HERE
        self.prefix: list[str] = []
        self.environment: dict[str, str] = {}

    def beside(self, *argv: str) -> None:
        """Keep a process running beside the tests."""
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def temporary(self, prefix: str = "steady") -> Path:
        """Make a folder that everybody may enter, and remove it afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/var/tmp"))
        folder.chmod(0o755)
        self.stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder


def as_root(run: Run) -> None:
    """Nothing else: the user is root."""


def ordinary_user(run: Run) -> None:
    """A fresh clone that belongs to an ordinary user, made for this."""
    if os.geteuid() != 0:
        return
    folder = run.temporary()
    subprocess.run(["useradd", "--user-group", "--home-dir", folder, "--shell", "/bin/sh", USER], check=True)
    run.stack.callback(subprocess.run, ["userdel", "--force", USER], check=False, capture_output=True)
    run.stack.callback(subprocess.run, ["pkill", "-KILL", "-u", USER], check=False)
    run.folder = folder / "suite"
    subprocess.run(["git", "clone", "--quiet", HERE, run.folder], check=True)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", folder], check=True)
    python = shutil.which("python3") or sys.executable
    if subprocess.run(
        ["setpriv", f"--reuid={USER}", "--clear-groups", f"--regid={USER}", python, "-V"], check=False
    ).returncode:
        python = "/usr/bin/python3"
    run.environment |= {"HOME": str(folder), "PYTHON": python, "USER": USER, "LOGNAME": USER}
    run.prefix = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]


def four_busy_loops(run: Run) -> None:
    """Four processes that take all the processor time they get."""
    for _ in range(4):
        run.beside("sh", "-c", "while :; do :; done")


def one_processor(run: Run) -> None:
    """Only processor 0."""
    run.prefix = ["taskset", "-c", "0"]


def busy_disk(run: Run) -> None:
    """A process that writes half a gigabyte, flushes, and begins again."""
    file = run.temporary() / "written"
    run.beside("sh", "-c", f"while :; do dd if=/dev/zero of={file} bs=1M count=512 conv=fsync; done")


def strange_folder(run: Run) -> None:
    """A long TMPDIR with blanks and umlauts, and the C locale."""
    folder = (
        run.temporary("steady a b ö ") / ("ein langer Pfad, länger als ein Socket ihn fasst " * 2).strip()
    )
    folder.mkdir()
    run.environment |= {"TMPDIR": str(folder), "LC_ALL": "C"}


def turkish(run: Run) -> None:
    """A language in which the small letter of I is another than i."""
    subprocess.run(["localedef", "-i", "tr_TR", "-f", "UTF-8", LANGUAGE], check=False, capture_output=True)
    run.environment |= {"LANG": LANGUAGE, "LC_ALL": LANGUAGE}


def coarse_clock(run: Run) -> None:
    """Clocks that advance in steps of 1/64 s."""
    run.environment |= {"PYTEST_PLUGINS": "coarse_clock", "PYTHONPATH": str(HERE / "benchmarks")}


def little_memory(run: Run) -> None:
    """A control group of 2 GiB, page cache included."""
    root = Path("/sys/fs/cgroup")
    one = (root / "cgroup.controllers").exists()
    group = (root if one else root / "memory") / USER
    group.mkdir()
    run.stack.callback(group.rmdir)
    (group / ("memory.max" if one else "memory.limit_in_bytes")).write_text(str(MEMORY))
    run.prefix = ["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"]


def another_order(run: Run) -> None:
    """Nothing else: the third random order."""


CONDITIONS: tuple[Callable[[Run], None], ...] = (
    as_root, ordinary_user, four_busy_loops, one_processor, busy_disk,
    strange_folder, turkish, coarse_clock, little_memory, another_order,
)  # fmt: skip
NEEDS_ROOT = (as_root, little_memory)


def results(log: Path) -> dict[str, int | None]:
    """Return how many tests passed, failed and were skipped, from pytest's last line; None where there is no such line."""
    lines = log.read_text(errors="replace").splitlines()
    line = next(
        (line for line in reversed(lines) if re.search(r"\d+ (?:passed|failed|skipped)\b.* in \d", line)), ""
    )
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)", line)}
    return {word: counts.get(word, 0 if counts else None) for word in ("passed", "failed", "skipped")}


@contextlib.contextmanager
def prepared(condition: Callable[[Run], None]) -> Iterator[Run]:
    """Set the condition up for one run, and take it back."""
    with ExitStack() as stack:
        run = Run(stack)
        condition(run)
        yield run


def main() -> int:
    """Run them one after the other; a row each, at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE / "data" / "benchmarks" / "steady.csv")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.mkdtemp(prefix="steady-logs")))
    parser.add_argument("--only", choices=[c.__name__ for c in CONDITIONS], action="append")
    options = parser.parse_args()
    chosen = [c for c in CONDITIONS if not options.only or c.__name__ in options.only]
    options.logs.mkdir(exist_ok=True)
    bad = 0
    with options.out.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["condition", "user", "order", "passed", "failed", "skipped", "wall_s", "exit"])
        for number, condition in enumerate(chosen):
            name, order = condition.__name__.replace("_", " "), number % 3 + 1
            if condition in NEEDS_ROOT and os.geteuid() != 0:
                print(f"{name}: left out, needs root", flush=True)
                continue
            log = options.logs / f"{condition.__name__}.log"
            with prepared(condition) as run, log.open("w") as output:
                environment = os.environ | {"PYTEST_ADDOPTS": f"--randomly-seed={order}"} | run.environment
                argv = [*run.prefix, "make", "test"]
                if run.folder != HERE:  # to set up is not the tests' time
                    subprocess.run(
                        [*run.prefix, "make", "setup"],
                        cwd=run.folder,
                        env=environment,
                        check=True,
                        stdout=output,
                    )
                start = time.monotonic()
                status = subprocess.run(
                    argv, cwd=run.folder, env=environment, stdout=output, stderr=output, check=False
                ).returncode
                wall_s = time.monotonic() - start
            counts = results(log)
            user = "ordinary" if os.geteuid() != 0 or run.folder != HERE else "root"
            table.writerow([name, user, order, *counts.values(), round(wall_s), status])
            file.flush()
            bad += status != 0 or not counts["passed"]
            print(
                f"{name}: {counts}, {wall_s:.0f} s, exit {status}" + (f", see {log}" if status else ""),
                flush=True,
            )
    print(f"{len(chosen) - bad} of {len(chosen)} passed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
