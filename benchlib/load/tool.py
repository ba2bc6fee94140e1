"""What every load tool is: it fills a server, drives it by one job, and reports in the same words as the others."""

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
"""After how long filling a server is taken to hang."""
_FIGURES = (
    "transactions", "failed_transactions", "retried_transactions", "tps", "latency_average_ms", "latency_stddev_ms",
    "clients", "threads", "init_s",
)  # fmt: skip
_IDLE = re.compile(r"^(?:number of transactions actually processed: 0(?:/\d+)?$| *transactions: +0 )", re.M)
_SEED = re.compile(
    r"^(?:pgbench: setting random seed to |Initializing random number generator from seed \()(\d+)", re.M
)
_UNTELLING = ("progress:", "pgbench: setting random seed")


@dataclass(frozen=True)
class Connection:
    """Where a load tool connects to; libpq finds in the environment what is None. ``host`` may be a Unix socket's folder."""

    host: str | None = None
    port: int | None = None
    user: str | None = None
    dbname: str = "bench"


@dataclass(frozen=True)
class Job:
    """One run of a load tool. ``scripts`` are the workload's, each with the file it was written to unless it is built in."""

    connection: Connection
    workload: Workload
    load: Load
    scale: int
    seed: int
    scripts: Sequence[tuple[Script, Path | None]] = ()
    log_prefix: Path | None = None


@dataclass(frozen=True)
class LoadTool(ABC):
    """A program that fills and drives a server.

    ``name`` is what messages call it, ``kind`` that of its output in :mod:`benchlib.load.parse`; ``warms`` tells whether
    a shorter run goes before as a warm-up.
    """

    program: Path
    name: ClassVar[str]
    kind: ClassVar[str]
    warms: ClassVar[bool] = True

    def refusal(self, load: Load) -> str | None:
        """What a load asks for that the tool cannot do; None where it can do all of it."""
        return None

    def fill_argv(self, connection: Connection, workload: Workload, scale: int) -> list[str]:
        """The command line that makes the tables which the tool itself brings; empty where there are none."""
        return []

    @abstractmethod
    def argv(self, job: Job) -> list[str]:
        """The command line of a job."""

    def conditions(self, load: Load, workload: Workload, scale: int) -> dict[str, Any]:
        """What a report of a load tells of the conditions, as far as it does."""
        return {"clients": load.clients}

    def limit_s(self, load: Load) -> float:
        """After how long a run is taken to hang: generous, since clients may prepare statements before they begin."""
        return load.duration_s + 120 + 2 * load.clients

    def fill(self, shell: Shell, connection: Connection, workload: Workload, scale: int) -> None:
        """Load the tables that the tool itself brings.

        Raises:
            LoadError: it failed; the tool's own words are in the message.

        """
        if argv := self.fill_argv(connection, workload, scale):
            done = shell.run(argv, timeout_s=FILL_LIMIT_S)
            if done.returncode != 0:
                raise LoadError(f"loading the data failed: {_reason(done.stdout, done.stderr)}")

    def report(self, stdout: str, stderr: str, returncode: int, argv: Sequence[str]) -> dict[str, Any]:
        """What a finished run reported, as :meth:`read` gives it, once it is certain that it can be trusted.

        Raises:
            LoadError: it failed, lost a client, or did nothing.
            ParseError: the report is none, or contradicts itself.

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
        """What the tool printed, in pgbench's words, whichever it was; what it does not tell is None.

        Beside the tool's own keys (see :mod:`benchlib.load.parse`) there are always ``complete``, ``errors`` (lines),
        ``transactions``, ``failed_transactions``, ``retried_transactions``, ``tps``, ``speed``, ``latency_average_ms``,
        ``latency_stddev_ms``, ``clients``, ``threads``, ``init_s``, ``seed`` (printed), and the lists ``progress``, ``scripts`` and
        ``statements``.

        Raises:
            ParseError: the output cannot be trusted.

        """
        parsed = parse_text(output, kind=self.kind, argv=list(argv) if argv else None)
        common: dict[str, Any] = {
            **dict.fromkeys(_FIGURES),
            **{name: [] for name in ("progress", "scripts", "statements")},
            "speed": parsed.get("tps"),
            "seed": int(seed[1]) if (seed := _SEED.search(output)) else None,
        }
        return {**common, **parsed, **self.translated(parsed)}

    def translated(self, parsed: dict[str, Any]) -> dict[str, Any]:
        """The common keys that the tool's own output has by other names."""
        return {}


def ending(name: str, returncode: int, stdout: str, stderr: str = "") -> str:
    """How a tool ended that should not have, and why, in its own words."""
    how = f"ended with status {returncode}" if returncode >= 0 else f"was ended by signal {-returncode}"
    return f"{name} {how}: {_reason(stdout, stderr)}"


def _reason(stdout: str, stderr: str) -> str:
    """The line that says why a tool failed, which sysbench prints among its output; pgbench's progress does not."""
    lines = [line for line in Text(f"{stdout}\n{stderr}").lines if line and not line.startswith(_UNTELLING)]
    return (faults(lines) or lines[-1:] or ["it said nothing"])[0]
