"""``pooler``: the system's pgbouncer between the load and a level's server, on the server's host.

Source of its settings: man page pgbouncer(5).
"""

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import psycopg
from pydantic import BeforeValidator, Field

from benchlib.errors import PreflightError, ServerError, SettingError
from benchlib.host.shell import Shell, server_user, ticks, which
from benchlib.levers.lever import Finding, Lever, Site, Wish, no_server, refusal
from benchlib.plan.level import Level, Model
from benchlib.plan.model import Plan
from benchlib.server.cluster import START_LIMIT_S, Cluster, log_text, superuser_session

_PREPARING = (1, 21)
"""The first version that keeps prepared statements where a session has no connection of its own."""
_PORT = 6432
_INI = Path(__file__).with_name("pgbouncer.ini")


class Pooler(Model):
    """When a client gives its connection back, and how many connections to the server there are."""

    mode: Literal["session", "transaction", "statement"] = "transaction"
    pool_size: Annotated[int, Field(ge=1, le=10_000)] = 20


def pooler_of(level: Level) -> Pooler | None:
    """What a level asks for; None where the load goes straight to the server."""
    return Pooler.model_validate(level.pooler) if level.pooler else None


class PoolerLever(Lever):
    """pgbouncer, started with the level's server, whose load alone goes through it; a word stands for its mode."""

    key = "pooler"
    model = Annotated[
        Pooler | None, BeforeValidator(lambda value: {"mode": value} if isinstance(value, str) else value)
    ]
    unchanged = "none"

    def survey(self, scratch: Path) -> list[Finding]:
        """Whether it is installed."""
        return [Finding(self.key, no_server() or refusal(_pgbouncer))]

    def check(self, wish: Wish) -> list[tuple[str, str]]:
        """See whether it is installed, and does what the load needs."""
        if not (pooler := pooler_of(wish.level)):
            return []
        load, (_, version) = wish.plan.level_load(wish.name), _pgbouncer()
        name = f"pgbouncer {'.'.join(map(str, version))}"
        if load.generators:
            raise PreflightError("'pooler' is reached on the server's own host: leave 'from' out of the load")
        if load.protocol == "prepared" and pooler.mode != "session" and version < _PREPARING:
            why = f"{name} keeps no prepared statements in mode {pooler.mode}, 1.21 does"
            raise PreflightError(f"{why}: take mode session, or the protocol simple or extended")
        return [("pooler", name)]

    def after_start(self, site: Site) -> None:
        """Start it, and see that it runs as it should."""
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
                *_, last = ["it said nothing", *log_text(site.shell, log).splitlines()]
                raise ServerError(f"pgbouncer has ended: {last.strip()}")

        in_force: dict[str, str] = {}
        asked = {"pool_mode": pooler.mode, "default_pool_size": str(pooler.pool_size)}
        for _ in ticks(START_LIMIT_S):
            check()
            with contextlib.suppress(psycopg.OperationalError):
                in_force = _settings(server)
                break
        if not asked.items() <= in_force.items():
            raise SettingError(f"pooler: asked for {asked}, its console tells {in_force or 'nothing'}")
        site.checks.append(check)

    def words(self, plan: Plan, name: str) -> dict[str, str]:
        """The mode and the connections."""
        pooler = pooler_of(plan.level(name))
        return {"pooler": f"mode {pooler.mode}, up to {pooler.pool_size} connections"} if pooler else {}


def _pgbouncer() -> tuple[Path, tuple[int, ...]]:
    """The program, and the two numbers of its version.

    Raises:
        PreflightError: it is not installed.

    """
    if not (program := which("pgbouncer")):
        raise PreflightError("no pgbouncer found: install the package (Debian: apt install pgbouncer)")
    line = Shell(server_user()).run([program, "--version"], timeout_s=60).stdout
    return program, tuple(map(int, re.findall(r"\d+", line)[:2]))


def _settings(server: Cluster) -> dict[str, str]:
    """What the pgbouncer before a server runs with, by its own console."""
    with superuser_session(str(server.sockets), _PORT, "pgbouncer") as console:
        return {str(row[0]): str(row[1]) for row in console.execute("SHOW CONFIG")}
