"""pgbench: its command lines, built by pure functions, and running it with output kept verbatim.

Source of the options: PostgreSQL documentation, "pgbench". The newest pgbench drives
every server, so its spelling of options is the one used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchlib.errors import InputError, LoadError
from benchlib.host.shell import Completed, Shell
from benchlib.load.parse import parse_text
from benchlib.plan.model import Load
from benchlib.plan.workload import Script

INIT_LIMIT_S = 24 * 3600.0
"""After how long loading is taken to hang."""
_NOTHING = re.compile(r"^number of transactions actually processed: 0(/\d+)?$", re.MULTILINE)


@dataclass(frozen=True)
class Connection:
    """Where pgbench connects to. ``host`` may be the folder of a Unix socket."""

    host: str | None = None
    port: int | None = None
    user: str | None = None
    dbname: str = "bench"

    def options(self) -> list[str]:
        """The connection as pgbench options, the database's name aside (it comes last)."""
        return _options({"--host": self.host, "--port": self.port, "--username": self.user})


def run_argv(
    program: Path | str,
    connection: Connection,
    load: Load,
    scripts: Sequence[tuple[Script, Path | None]],
    *,
    seed: int | None = None,
    duration_s: int | None = None,
    transactions: int | None = None,
    scale: int | None = None,
    progress_s: int | None = 1,
    progress_timestamp: bool = False,
    log_prefix: Path | None = None,
    aggregate_interval_s: int | None = None,
    sampling_rate: float | None = None,
    failures_detailed: bool = False,
    exit_on_abort: bool = False,
    vacuum: bool = False,
) -> list[str]:
    """The command line of one load.

    ``scripts`` are pairs of a script and, unless it is a built-in, the file it was
    written to. ``duration_s`` replaces the load's own (a warm-up does); with
    ``transactions`` the load ends after so many of each client instead.
    ``progress_s`` is the interval of the progress report in seconds, None for none.

    Raises:
        InputError: pgbench would refuse these options together; the message says which.

    """
    ends = None if transactions is not None else load.duration_s if duration_s is None else duration_s
    _refuse(
        log_prefix is None and (aggregate_interval_s or sampling_rate), "an interval or a sample needs a log"
    )
    _refuse(aggregate_interval_s and sampling_rate, "a log is sampled or aggregated, not both")
    _refuse(
        aggregate_interval_s and ends and ends % aggregate_interval_s,
        "the log's interval does not divide the duration",
    )
    _refuse(progress_timestamp and progress_s is None, "timestamps of the progress need a progress report")
    argv = [str(program), *connection.options()]
    argv += _options({"--client": load.clients, "--jobs": min(load.threads, load.clients)})
    argv += _options({"--protocol": load.protocol})
    argv += _options(
        {
            "--transactions": transactions,
            "--time": ends,
            "--no-vacuum": not vacuum,
            "--progress": progress_s,
            "--progress-timestamp": progress_timestamp,
            "--rate": load.rate,
            "--latency-limit": load.latency_limit_ms,
            "--max-tries": load.max_tries,
            "--connect": load.connect_per_transaction,
            "--report-per-command": load.report_per_command,
            "--failures-detailed": failures_detailed,
            "--exit-on-abort": exit_on_abort,
            "--random-seed": seed,
            "--scale": scale,
            "--log": log_prefix is not None,
            "--log-prefix": log_prefix,
            "--aggregate-interval": aggregate_interval_s,
            "--sampling-rate": sampling_rate,
        }
    )
    for name, value in load.variables.items():
        argv.append(f"--define={name}={value}")
    for script, path in scripts:
        # pgbench takes what follows the last @ for a weight, also inside a path
        weight = f"@{script.weight}" if len(scripts) > 1 or "@" in str(path) else ""
        argv.append(f"--builtin={script.builtin}{weight}" if script.builtin else f"--file={path}{weight}")
    return [*argv, connection.dbname]


def init_argv(
    program: Path | str,
    connection: Connection,
    scale: int,
    *,
    fillfactor: int | None = None,
    steps: str | None = None,
    partitions: int | None = None,
    partition_method: Literal["range", "hash"] | None = None,
    foreign_keys: bool = False,
    unlogged_tables: bool = False,
    tablespace: str | None = None,
    index_tablespace: str | None = None,
    quiet: bool = True,
) -> list[str]:
    """The command line that loads pgbench's tables: ``scale`` × 100,000 accounts, about 15 MB each.

    Raises:
        InputError: pgbench would refuse these options together; the message says which.

    """
    _refuse(partition_method and not partitions, "a partition method needs a number of partitions")
    argv = [str(program), "--initialize", *connection.options()]
    argv += _options(
        {
            "--scale": scale,
            "--fillfactor": fillfactor,
            "--init-steps": steps,
            "--partitions": partitions,
            "--partition-method": partition_method,
            "--foreign-keys": foreign_keys,
            "--unlogged-tables": unlogged_tables,
            "--tablespace": tablespace,
            "--index-tablespace": index_tablespace,
            "--quiet": quiet,
        }
    )
    return [*argv, connection.dbname]


def _refuse(conflict: object, words: str) -> None:
    """Make sure that there is no conflict.

    Raises:
        InputError: there is one; in those words.

    """
    if conflict:
        raise InputError(f"pgbench: {words}")


def _options(values: Mapping[str, Any]) -> list[str]:
    """Long options: a flag for True, nothing for None and False, ``--name=value`` for the rest."""
    argv = []
    for name, value in values.items():
        if value is True:
            argv.append(name)
        elif value is not None and value is not False:
            argv.append(f"{name}={value:.15g}" if isinstance(value, float) else f"{name}={value}")
    return argv


def initialise(shell: Shell, argv: Sequence[str], *, timeout_s: float = INIT_LIMIT_S) -> Completed:
    """Load the data.

    Raises:
        LoadError: it failed; pgbench's own words are in the message.

    """
    done = shell.run(argv, timeout_s=timeout_s)
    if done.returncode != 0:
        raise LoadError(f"loading the data failed: {reason(done.stderr)}")
    return done


def summary(stdout: str, stderr: str, returncode: int, argv: Sequence[str]) -> dict[str, Any]:
    """What a finished load reported, as data, once it is certain that it can be trusted.

    Raises:
        LoadError: it failed, a client was lost, or the report contradicts itself.
        ParseError: the report is not one.

    """
    if returncode != 0:
        raise LoadError(f"pgbench ended with status {returncode}: {reason(stderr)}")
    if _NOTHING.search(stdout):  # then no speed is printed either
        raise LoadError("pgbench finished without a single transaction")
    report = parse_text(f"{stdout}\n{stderr}", kind="pgbench_summary", argv=list(argv))
    if not report["complete"]:
        raise LoadError(f"pgbench did not run to its end: {reason(stderr)}")
    return report


def reason(stderr: str) -> str:
    """The line that says why; progress and notices say nothing."""
    lines = [
        line.strip()
        for line in stderr.splitlines()
        if line.strip() and not line.startswith(("progress:", "pgbench: setting random seed"))
    ]
    for line in lines:
        if "FATAL" in line or "error:" in line or "aborted" in line or "failed" in line:
            return line
    return lines[-1] if lines else "it said nothing"
