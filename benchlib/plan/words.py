"""What pages call the parts of a plan: its rates, and what they must not repeat.

Pages are published: a folder that a level names is "a given folder" there, and a server that is
not ours is its connection service, or "a server by URI".
"""

from collections.abc import Iterable

from benchlib.plan.level import Level, Target
from benchlib.plan.model import Plan


def given_folders(plan: Plan) -> dict[str, str]:
    """The folders that a plan's levels have servers live in, with what stands for each on a page."""
    storages = [level.storage for level in _levels(plan) if level.storage]
    places = [place for storage in storages for place in (storage.data, storage.wal) if place]
    return _aliases("given folder", [place.path for place in places if place.path])


def unpublished(plan: Plan) -> dict[str, str]:
    """What a plan's levels name and no page repeats, with what stands for each: folders, installations' too, and URIs."""
    installations = [level.postgres for level in _levels(plan) if level.postgres]
    servers = [level.target.server for level in _levels(plan) if level.target]
    return {
        **given_folders(plan),
        **_aliases("given installation", [one for one in installations if "/" in one]),
        **_aliases("server by URI", [server for server in servers if "://" in server]),
    }


def target_words(plan: Plan, target: Target) -> str:
    """A server that is not ours: its connection service; of a URI nothing but that it is one."""
    named = unpublished(plan).get(target.server, f"service {target.server}")
    return f"{named}, schema {target.own_schema}" if target.own_schema else named


def rates_words(plan: Plan) -> str:
    """At which rate all levels run, as the end of a sentence; nothing where there is no limit."""
    rates = {rate_words(plan, name) for name in plan.factor.levels}
    if len(rates) > 1:
        return ", each level at its own rate"
    return f" at {rates.pop()}" if any(plan.asked_rate(name) for name in plan.factor.levels) else ""


def rate_words(plan: Plan, name: str) -> str:
    """A level's rate: ``741 tps (60 % of capacity)``, or the share alone until the capacity is known."""
    asked, rate = plan.asked_rate(name), plan.level_load(name).rate
    if rate is None:
        return "no limit"
    if isinstance(rate, str):
        return rate
    return f"{rate:,.6g} tps ({asked})" if isinstance(asked, str) else f"{rate:,.6g} tps"


def _levels(plan: Plan) -> list[Level]:
    return [plan.level(name) for name in plan.factor.levels]


def _aliases(words: str, values: Iterable[str]) -> dict[str, str]:
    """What stands for each value: the words, numbered where there are several."""
    unique = list(dict.fromkeys(values))
    if len(unique) == 1:
        return {unique[0]: f"a {words}"}
    return {value: f"{words} {number}" for number, value in enumerate(unique, 1)}
