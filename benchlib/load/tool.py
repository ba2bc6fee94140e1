"""The base class of load tools."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchlib.errors import LoadError
from benchlib.host.shell import Shell
from benchlib.load.parse import parse_text
from benchlib.load.parse.text import Text, faults
from benchlib.plan.model import Load
from benchlib.plan.workload import Script, Workload

FILL_LIMIT_S = 24 * 3600.0
"""Time limit for filling a server."""
_FIGURES = (
    *("transactions", "failed_transactions", "retried_transactions", "tps", "speed", "init_s"),
    *("latency_average_ms", "latency_stddev_ms", "clients", "threads"),
)
_LISTS = ("progress", "scripts", "statements")
_IDLE = re.compile(r"^(?:number of transactions actually processed: 0(?:/\d+)?$| *transactions: +0 )", re.M)
_SEED = re.compile(
    r"^(?:pgbench: setting random seed to |Initializing random number generator from seed \()(\d+)", re.M
)
_NO_REASON = ("progress:", "pgbench: setting random seed")


@dataclass(frozen=True)
class Connection:
    """A load tool's server; None leaves the choice to libpq."""

    host: str | None = None
    port: int | None = None
    user: str | None = None
    dbname: str = "bench"


@dataclass(frozen=True)
class Job:
    """One run of a load tool, with the scripts' files."""

    connection: Connection
    workload: Workload
    load: Load
    scale: int
    seed: int
    scripts: Sequence[tuple[Script, Path | None]] = ()
    log_prefix: Path | None = None


@dataclass(frozen=True)
class LoadTool(ABC):
    """A program that fills and loads a server."""

    program: Path
    name: ClassVar[str]
    kind: ClassVar[str]
    warms: ClassVar[bool] = True

    def refusal(self, load: Load) -> str | None:
        """Return the unsupported part of a load."""
        return None

    def fill_argv(self, connection: Connection, workload: Workload, scale: int) -> list[str]:
        """Return the command for the tool's own tables."""
        return []

    @abstractmethod
    def argv(self, job: Job) -> list[str]:
        """Return a job's command."""

    def conditions(self, load: Load, workload: Workload, scale: int) -> dict[str, Any]:
        """Return the conditions that a report shows."""
        return {"clients": load.clients}

    def limit_s(self, load: Load) -> float:
        """Return the time limit, with slow connecting."""
        return load.duration_s + 120 + 2 * load.clients

    def fill(self, shell: Shell, connection: Connection, workload: Workload, scale: int) -> None:
        """Create the tool's own tables."""
        if argv := self.fill_argv(connection, workload, scale):
            done = shell.run(argv, timeout_s=FILL_LIMIT_S)
            if done.returncode != 0:
                raise LoadError(f"loading the data failed: {_reason(done.stdout, done.stderr)}")

    def report(self, stdout: str, stderr: str, returncode: int, argv: Sequence[str]) -> dict[str, Any]:
        """Return the verified report of a run.

        Raises:
            LoadError: it failed, lost a client, or did nothing.
            ParseError: the report is missing or contradictory.
        """
        if returncode != 0:
            raise LoadError(ending(self.name, returncode, stdout, stderr))
        if _IDLE.search(stdout):  # then pgbench prints no speed either
            raise LoadError(f"{self.name} finished without a single transaction")
        report = self.read(f"{stdout}\n{stderr}", argv)
        if not report["complete"]:
            raise LoadError(f"{self.name} did not run to its end: {_reason(stdout, stderr)}")
        return report

    def read(self, output: str, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """Parse output into pgbench's terms; all of ``_FIGURES`` and ``_LISTS`` are present.

        Raises:
            ParseError: the output is not reliable.
        """
        parsed = parse_text(output, kind=self.kind, argv=list(argv) if argv else None)
        seed = _SEED.search(output)
        common: dict[str, Any] = {**dict.fromkeys(_FIGURES), **{name: [] for name in _LISTS}}
        common |= {"speed": parsed.get("tps"), "seed": int(seed[1]) if seed else None}
        return {**common, **parsed, **self.translated(parsed)}

    def translated(self, parsed: dict[str, Any]) -> dict[str, Any]:
        """Return common keys from the tool's."""
        return {}


def ending(name: str, returncode: int, stdout: str, stderr: str = "") -> str:
    """Return how and why a tool failed."""
    how = f"ended with status {returncode}" if returncode >= 0 else f"was ended by signal {-returncode}"
    return f"{name} {how}: {_reason(stdout, stderr)}"


def _reason(stdout: str, stderr: str) -> str:
    """Return the line with the reason."""
    lines = [line for line in Text(f"{stdout}\n{stderr}").lines if line and not line.startswith(_NO_REASON)]
    return (faults(lines) or lines[-1:] or ["no output"])[0]
