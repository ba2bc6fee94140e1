"""Checks of this machine before a study starts.

Raises:
    PreflightError: a requirement is not met, or a server is missing.

"""

import re

from benchlib.errors import PreflightError
from benchlib.host import facts
from benchlib.host.guardian import scratch_root
from benchlib.host.shell import server_user
from benchlib.levers import LEVERS, server_settings
from benchlib.levers.lever import Wish
from benchlib.levers.replication import needs_of
from benchlib.plan.model import Plan
from benchlib.server.cluster import refusal
from benchlib.server.installations import (
    Installation,
    builders_differ,
    find_installation,
    find_pgbench,
)

_HOST = re.compile(r"""server at "[^"]*"( \([^)]*\))?(, port \d+)?|host '[^']*'""")
_WAL_MIB = 1200
Pairs = list[tuple[str, str]]


def preflight(plan: Plan) -> Pairs:
    """Return requirements and findings; nothing is started."""
    answers, refused = _ask_levers(plan)
    if refused:
        reasons: dict[str, str] = {}
        for name, error in refused.items():
            reasons.setdefault(error.reason, f"level “{name}”: {error.reason}")
        grants = (grant for error in refused.values() for grant in error.grants)
        raise PreflightError("; ".join(reasons.values()), grants)
    difference = builds_differ(plan)
    installed = installations(plan)
    memory = f"{facts.memory_bytes() // facts.MEBIBYTE:,} MiB, {facts.available_memory_mib():,} MiB available"
    rows = {"load tool": f"pgbench of {find_pgbench(abroad=plan.abroad).label}"}
    if installed:
        rows["servers"] = ", ".join(sorted({one.label for one in installed.values()}))
        rows["run as"] = server_user() or "the user who started the notebook"
        rows["disk"] = _disk(plan)
    rows |= {"memory": memory, "processors": f"{facts.processors()} for servers and load tool together"}
    return [*rows.items(), *dict.fromkeys(answers), *([("builders", difference)] if difference else [])]


def cannot_run(plan: Plan) -> dict[str, str]:
    """Return the levels that cannot run here; the reasons name no host."""
    return {name: _HOST.sub("the server", str(error)) for name, error in _ask_levers(plan)[1].items()}


def builds_differ(plan: Plan) -> str | None:
    """Return a warning if compared servers were built differently."""
    installed = installations(plan)
    pairs = ({installed[name] for name in pair if name in installed} for pair in plan.factor.pairs().items())
    return builders_differ(set[Installation]().union(*filter(builders_differ, pairs)))


def _ask_levers(plan: Plan) -> tuple[Pairs, dict[str, PreflightError]]:
    scratch, answers = scratch_root(), Pairs()
    refused: dict[str, PreflightError] = {}
    for name in plan.factor.levels:
        wish = Wish(plan, name, scratch)
        try:
            for lever in LEVERS:
                if lever.elsewhere or not wish.level.target:
                    lever.check(wish)
            answers += wish.found
            if not (level := wish.level).target and (
                reason := refusal(find_installation(level.postgres), server_settings(level))
            ):
                raise PreflightError(f"the server refuses its settings: {reason}")
        except PreflightError as error:
            refused[name] = error
    return answers, refused


def installations(plan: Plan) -> dict[str, Installation]:
    """Return the installation of each level without external server."""
    levels = {name: plan.level(name) for name in plan.factor.levels}
    return {name: find_installation(level.postgres) for name, level in levels.items() if not level.target}


def disk_mib(plan: Plan) -> tuple[int, int]:
    """Return the MiB of disk, and of memory for tmpfs, that clusters need."""
    scratch, templates, needs = scratch_root(), {}, []
    for name, installation in installations(plan).items():
        wish = Wish(plan, name, scratch)
        contents = plan.level_workload(name).contents
        for sql in (None, wish.level.sql):
            templates[installation.bindir, wish.level.initdb, contents, sql] = wish.data_mib
        needs.append(needs_of(wish))
    at_once = sum if plan.stands_side_by_side else max
    disk = sum(templates.values()) + at_once([need.scratch for need in needs]) if needs else 0
    return disk + _WAL_MIB * bool(needs), at_once([need.memory for need in needs]) if needs else 0


def _disk(plan: Plan) -> str:
    (disk, memory), scratch, available = disk_mib(plan), scratch_root(), facts.available_memory_mib()
    if memory > available:
        raise PreflightError(
            f"the levels' tmpfs need {memory:,} MiB, {available:,} MiB are available: "
            "reduce 'size' or the levels, or set rebuild_every to 1"
        )
    free = facts.free_mib(scratch)
    if disk > free:
        raise PreflightError(
            f"the study needs about {disk:,} MiB under {scratch}, {free:,} MiB are free: "
            "reduce the scale, set rebuild_every to 1, or set BENCHLIB_SCRATCH"
        )
    return f"about {disk:,} MiB of {free:,} MiB free"
