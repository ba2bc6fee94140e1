"""What a plan needs of this machine, checked before anything is started."""

import re

from benchlib.errors import PreflightError
from benchlib.host import facts
from benchlib.host.guardian import scratch_root
from benchlib.host.shell import server_user
from benchlib.levers import LEVERS, server_settings
from benchlib.levers.lever import Needs, Wish
from benchlib.load import tools
from benchlib.plan.fleet import Role
from benchlib.plan.model import Plan
from benchlib.server.cluster import refusal
from benchlib.server.installations import (
    Installation,
    builders_differ,
    find_installation,
    find_pgbench,
    find_program_for,
)

_HOST = re.compile(r"""server at "[^"]*"( \([^)]*\))?(, port \d+)?|host '[^']*'""")
_WAL_MIB = 1200
Pairs = list[tuple[str, str]]


def preflight(plan: Plan) -> Pairs:
    """What the plan needs of this machine and what there is, as pairs of words.

    Raises:
        PreflightError: something is missing; nothing has been started.

    """
    answers, refused = _ask_levers(plan)
    if refused:
        reasons: dict[str, str] = {}
        for name, error in refused.items():
            reasons.setdefault(error.reason, f"level “{name}”: {error.reason}")
        grants = (grant for error in refused.values() for grant in error.grants)
        raise PreflightError("; ".join(reasons.values()), grants)
    difference = builds_differ(plan)
    ours = installations(plan)
    memory = f"{facts.memory_bytes() // facts.MEBIBYTE:,} MiB, {facts.available_memory_mib():,} MiB available"
    return [
        *([("servers", ", ".join(sorted({one.label for one in ours.values()})))] if ours else []),
        ("load tool", f"pgbench of {find_pgbench(abroad=plan.abroad).label}"),
        *([("run as", server_user() or "the user who started the notebook")] if ours else []),
        *([("disk", _disk(plan, ours))] if ours else []),
        ("memory", memory),
        ("processors", f"{facts.processors()} for servers and load tool together"),
        *dict.fromkeys(answers),
        *([("builders", difference)] if difference else []),
    ]


def check_helper(plan: Plan, role: Role) -> None:
    """See that this host can drive the load, or follow the servers, of the levels that have one from elsewhere.

    Raises:
        PreflightError: it cannot.

    """
    for name in plan.factor.levels:
        level, load = plan.level(name), plan.level_load(name)
        if role == "load" and load.generators:
            find_pgbench()
            tools.check(plan.level_workload(name), load)
        if role == "follower" and level.part("replication").get("on"):
            find_program_for(find_installation(level.postgres), "pg_basebackup")


def cannot_run(plan: Plan) -> dict[str, str]:
    """The levels of a plan that this machine cannot run, each with the reason, in which no host is named: it is published."""
    return {name: _HOST.sub("the server", str(error)) for name, error in _ask_levers(plan)[1].items()}


def builds_differ(plan: Plan) -> str | None:
    """A warning, where servers of levels that are compared with each other were built differently; None where not.

    Raises:
        PreflightError: a server is not there.

    """
    ours = installations(plan)
    apart = set()
    for pair in plan.factor.pairs().items():
        both = {ours[name] for name in pair if name in ours}
        apart |= both if builders_differ(both) else set()
    return builders_differ(apart)


def _ask_levers(plan: Plan) -> tuple[Pairs, dict[str, PreflightError]]:
    """What the levers have to say of this machine, and why levels cannot run."""
    scratch, answers = scratch_root(), Pairs()
    refused: dict[str, PreflightError] = {}
    for name in plan.factor.levels:
        wish = Wish(plan, name, scratch)
        try:
            for lever in LEVERS:
                if lever.elsewhere or not wish.level.target:
                    answers += lever.check(wish)
            if not (level := wish.level).target and (
                reason := refusal(find_installation(level.postgres), server_settings(level))
            ):
                raise PreflightError(f"the server refuses its settings: {reason}")
        except PreflightError as error:
            refused[name] = error
    return answers, refused


def installations(plan: Plan) -> dict[str, Installation]:
    """What the levels' own servers run from, by level.

    Raises:
        PreflightError: a server is not there.

    """
    levels = {name: plan.level(name) for name in plan.factor.levels}
    return {name: find_installation(level.postgres) for name, level in levels.items() if not level.target}


def _disk(plan: Plan, ours: dict[str, Installation]) -> str:
    """How much of the scratch folder's disk the clusters take, in words.

    Raises:
        PreflightError: more than is free; or more memory is wanted than there is.

    """
    scratch, templates, needs = scratch_root(), {}, []
    for name, installation in ours.items():
        wish = Wish(plan, name, scratch)
        templates[installation.bindir, wish.level.initdb, plan.level_workload(name).contents] = wish.data_mib
        standing = Needs(wish.data_mib)
        for lever in LEVERS:
            standing = lever.needs(wish, standing)
        needs.append(standing)
    at_once = sum if plan.stands_side_by_side else max
    memory, available = at_once([need.memory for need in needs]), facts.available_memory_mib()
    if memory > available:
        raise PreflightError(
            f"the levels' file systems in memory (tmpfs) take {memory:,} MiB together, {available:,} are available: "
            "a smaller 'size', fewer levels, or the arrangement 'fresh'"
        )
    disk = sum(templates.values()) + at_once([need.scratch for need in needs]) + _WAL_MIB
    free = facts.free_mib(scratch)
    if disk > free:
        raise PreflightError(
            f"the study needs about {disk:,} MiB under {scratch}, {free:,} are free: "
            "a smaller scale, the arrangement 'fresh', or another BENCHLIB_SCRATCH"
        )
    return f"about {disk:,} MiB of {free:,} MiB free"
