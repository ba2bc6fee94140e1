"""The key ``pooler``.

Source: man page pgbouncer(5).
"""

import contextlib
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import psycopg
from pydantic import Field

from benchlib.errors import PreflightError, ServerError, SettingError
from benchlib.host.shell import Shell, server_user, ticks, which
from benchlib.levers.lever import Finding, Lever, Site, Wish, no_server, refusal
from benchlib.load.workloads.sql import spoken
from benchlib.plan.level import Level, Model, text_is
from benchlib.plan.model import Plan
from benchlib.plan.workload import Script
from benchlib.server.cluster import START_LIMIT_S, log_text, open_cluster

_PREPARING = (1, 21)
"""The first version with prepared statements in transaction and statement mode."""
_PORT = 6432
_INI = Path(__file__).with_name("pgbouncer.ini")


class Pooler(Model):
    """Pooling mode, and number of server connections."""

    mode: Literal["session", "transaction", "statement"] = "transaction"
    pool_size: Annotated[int, Field(ge=1, le=10_000)] = 20
    _text = text_is("mode")


def pooler_of(level: Level) -> Pooler | None:
    """Return a level's pooler."""
    return Pooler.model_validate(level.pooler) if level.pooler else None


class PoolerLever(Lever):
    """pgbouncer on the server's host, for the load only."""

    key = "pooler"
    model = Pooler | None
    unchanged = "none"

    def survey(self, scratch: Path) -> list[Finding]:
        """Return whether pgbouncer is installed."""
        return [Finding(self.key, no_server() or refusal(_pgbouncer))]

    def check(self, wish: Wish) -> None:
        """Check that it supports the load."""
        if not (pooler := pooler_of(wish.level)):
            return
        load, (_, version) = wish.plan.level_load(wish.name), _pgbouncer()
        name = f"pgbouncer {'.'.join(map(str, version))}"
        if load.generators:
            raise PreflightError("'pooler' accepts local connections only: leave 'from' out of the load")
        if load.protocol == "prepared" and pooler.mode != "session" and version < _PREPARING:
            why = f"{name} has no prepared statements in mode {pooler.mode}, 1.21 has"
            raise PreflightError(f"{why}: use mode session, or protocol simple or extended")
        if pooler.mode == "statement" and any(map(_begins, wish.plan.level_workload(wish.name).scripts)):
            raise PreflightError("'pooler' in mode statement refuses BEGIN: use mode transaction")
        wish.found.append(("pooler", name))

    def after_start(self, site: Site) -> None:
        """Start pgbouncer; read its settings back."""
        if not (pooler := pooler_of(site.level)):
            return
        server, (program, version) = site.cluster, _pgbouncer()
        file, log = server.folder / "pgbouncer.ini", server.folder / "pgbouncer.log"
        site.entrance = replace(server.connection, port=_PORT)
        text = _INI.read_text().format(server=server, pooler=pooler, user=site.entrance.user, own_port=_PORT)
        text += "max_prepared_statements = 200\n" if version >= _PREPARING else ""
        site.shell.write(file, text)
        process = site.shell.start([program, file], log=log)
        site.processes.append(process)

        def check() -> None:
            if process.poll() is not None:
                *_, last = ["no output", *log_text(site.shell, log).splitlines()]
                raise ServerError(f"pgbouncer has ended: {last.strip()}")

        in_force: dict[str, str] = {}
        requested = {"pool_mode": pooler.mode, "default_pool_size": str(pooler.pool_size)}
        for _ in ticks(START_LIMIT_S):
            check()
            with (
                contextlib.suppress(psycopg.OperationalError),
                open_cluster(str(server.sockets), _PORT, "pgbouncer") as console,
            ):
                in_force = {str(row[0]): str(row[1]) for row in console.execute("SHOW CONFIG")}
                break
        if not requested.items() <= in_force.items():
            raise SettingError(f"pooler: requested {requested}, its console shows {in_force or 'nothing'}")
        site.checks.append(check)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """Return mode and connections."""
        pooler = pooler_of(plan.level(name))
        return {"pooler": f"mode {pooler.mode}, up to {pooler.pool_size} connections"} if pooler else {}


def _begins(script: Script) -> bool:
    """Return whether a script begins transactions."""
    words = [text.upper() for _, text in spoken(script.sql or "")]
    after = {";", "TRANSACTION", "WORK", "ISOLATION", "READ"}  # else it may be a column
    begins = any(word in ("BEGIN", "START") and following in after for word, following in pairwise(words))
    return begins or script.builtin in ("tpcb-like", "simple-update")


def _pgbouncer() -> tuple[Path, tuple[int, ...]]:
    """Return program and version."""
    if not (program := which("pgbouncer")):
        raise PreflightError("no pgbouncer found: install the package (Debian: apt install pgbouncer)")
    line = Shell(server_user()).run([program, "--version"], timeout_s=60).stdout
    return program, tuple(map(int, re.findall(r"\d+", line)[:2]))
