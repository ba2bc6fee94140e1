"""From a notebook's parameters to a study: the profile, the levels, the load. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from benchlib.errors import InputError
from benchlib.plan.design import LOOKS, leave_one_out, one_at_a_time, randomised_blocks, screening
from benchlib.plan.level import Level, SettingValue, resolve_memory_shares
from benchlib.plan.metrics import metric as known_metric
from benchlib.plan.model import Factor, Load, Plan, Study, Workload

CONTROL = "control"
AUTO = "auto"
_SPARE_CONNECTIONS = 20
_MOST_BLOCKS = 1000
_NEEDED = ("factor", "question", "profile", "profiles", "workload")
_LOAD_KEYS = frozenset(Load.model_fields)
_Read = Callable[[str, Mapping[str, Any]], Level]
_PROFILE_KEYS = _LOAD_KEYS | {"blocks", "scale", "rebuild_every", "only"}


def first_problem(reason: ValidationError) -> str:
    """The first thing that a validation found, in one line: where, and what."""
    problem = reason.errors()[0]
    where = ".".join(str(part) for part in problem["loc"] if part != "[key]") or "it"
    more = f" (and {reason.error_count() - 1} more)" if reason.error_count() > 1 else ""
    words = f"{where}: {problem['msg'].removeprefix('Value error, ')}{more}"
    return " ".join(words.split())


def study_name(values: Mapping[str, Any]) -> str:
    """The study's name: the one asked for, or factor, profile and what was taken apart.

    Raises:
        InputError: a parameter that every factor needs is not declared.

    """
    if absent := [name for name in _NEEDED if name not in values]:
        raise InputError(f"parameter {absent[0]}: the parameters cell does not declare it")
    parts = [values["factor"], values["profile"], "shares" if values.get("shares_of") else ""]
    return values.get("study") or "-".join(part for part in parts if part)


def make_study(
    values: Mapping[str, Any],
    memory_bytes: int,
    workload: Callable[[str], Workload],
    provenance: Mapping[str, Any],
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Study:
    """The study that a notebook's parameters describe.

    ``values`` are checked parameters; a size that is not 0 wins over the profile's. ``workload`` finds a workload by name.
    ``left_out`` are levels that are not to be run, each with the reason; those that were to be compared with
    them are left out too, or in a grid compared with the next in line, by another dimension where one value is left.

    Raises:
        InputError: the parameters do not make a study; the message names the one.

    """
    name, sizes = study_name(values), _sizes(values)
    blocks, looks = _blocks(sizes.get("blocks", AUTO))
    try:
        load = Load.model_validate({k: v for k, v in sizes.items() if k in _LOAD_KEYS})
        scale = sizes.get("scale", 1)
        read = partial(
            _level,
            memory_bytes,
            lambda patch: workload(patch.get("workload") or values["workload"]).data_mib(int(scale)),
        )
        base = read("base", values.get("base", {}))
        factor, reasons = _factor(values, read, sizes.get("only"), left_out)
        factor, base = _with_room(factor, base, load)
        metric = _metric(values, load, base, *factor.levels.values())
        if needs_transaction_log(metric):
            load = load.model_copy(update={"transaction_log": True})
        plan = Plan(
            factor=factor,
            base=base,
            workload=workload(values["workload"]),
            workloads={name: workload(name) for name in _named_workloads(base, *factor.levels.values())},
            load=load,
            scale=scale,
            arrangement=values.get("arrangement", "standing"),
            rebuild_every=sizes.get("rebuild_every", 2),
            seed=values.get("seed", 1),
            margin=values.get("margin", 0.03),
            metric=metric,
            looks=looks,
        )
        if looks and (plan.factor.against or len(set(plan.strata().values())) > 1):
            raise InputError(
                f"parameter blocks: '{AUTO}' judges all levels against one baseline; where some are compared with others "
                "give their number"
            )
    except ValidationError as reason:
        raise InputError(f"the parameters do not make a study: {first_problem(reason)}") from None
    return Study(
        name=name,
        title=values["factor"].replace("_", " ").capitalize(),
        notebook=values["factor"],
        parameters=dict(values),
        plan=plan,
        trials=randomised_blocks(list(plan.factor.levels), blocks, plan.seed),
        provenance=dict(provenance),
        left_out=reasons,
    )


def _named_workloads(*levels: Level) -> list[str]:
    return sorted({level.workload for level in levels if level.workload is not None})


def _metric(values: Mapping[str, Any], load: Load, *levels: Level) -> str:
    """The metric asked for; else tps, or where a rate gives the tps the latency."""
    asked = values.get("metric")
    if load.rate is None and all(level.load.rate is None for level in levels):
        return known_metric(asked or "tps").name
    if values.get("pilot"):
        raise InputError(
            "parameter pilot: it plans by the tps, which a fixed rate gives; leave one of them out"
        )
    if asked in ("tps", "speed"):
        raise InputError(
            "parameter metric: a fixed rate gives the tps, so it cannot be judged by; "
            "take latency_average_ms, or a quantile such as latency_p99_ms"
        )
    return known_metric(asked or ("latency_p99_ms" if load.transaction_log else "latency_average_ms")).name


def needs_transaction_log(metric: str) -> bool:
    """Whether a metric is a latency quantile, which only the log of all transactions gives."""
    return metric.startswith("latency_p")


def _blocks(asked: object) -> tuple[int, tuple[int, ...]]:
    """How many blocks are planned, and after which of them the study may stop early."""
    if str(asked) == AUTO:
        return LOOKS[-1], LOOKS
    if str(asked).isdecimal() and 1 <= int(str(asked)) <= _MOST_BLOCKS:
        return int(str(asked)), ()
    raise InputError(f"parameter blocks: want 1 to {_MOST_BLOCKS}, or '{AUTO}', got {asked!r}")


def _sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the profile says, and above it what the parameters say."""
    profiles, name = values["profiles"], values["profile"]
    if not isinstance(profiles, Mapping):
        raise InputError(f"parameter profiles: want names with their sizes, got {profiles!r}")
    if name not in profiles:
        raise InputError(f"parameter profile: '{name}' is not one of {', '.join(map(str, profiles))}")
    chosen = profiles[name]
    if not isinstance(chosen, Mapping):
        raise InputError(f"profile {name}: want sizes such as {{'blocks': 5}}, got {chosen!r}")
    if unknown := [key for key in chosen if key not in _PROFILE_KEYS]:
        raise InputError(
            f"profile {name}: unknown key {unknown[0]!r}; there are {', '.join(sorted(_PROFILE_KEYS))}"
        )
    own = {key: values[key] for key in _PROFILE_KEYS if values.get(key)}
    return {**chosen, **own}


def _factor(
    values: Mapping[str, Any], read: _Read, only: Any, left_out: Mapping[str, str]
) -> tuple[Factor, dict[str, str]]:
    """The factor, and the levels that it leaves out with the reasons."""
    grid, along = _grid(values, only), values.get("along", "")
    if grid and along not in ("", *grid):
        raise InputError(f"parameter along: '{along}' is not a dimension of the grid: {', '.join(grid)}")
    if values.get("screen") and not grid:
        raise InputError("parameter screen: it chooses among the combinations of a grid; give one")
    if grid:
        levels = _crossed(grid, read, screen=bool(values.get("screen")))
    else:
        levels = _levels("levels", values.get("levels", {}), read)
        if only is not None and not (isinstance(only, list) and set(only) <= set(levels)):
            raise InputError(
                f"profile {values['profile']}: 'only' wants a list of levels: {', '.join(levels)}"
            )
        levels = {name: level for name, level in levels.items() if only is None or name in only}
        asked = values.get("against") or {}
        if unknown := {*asked, *asked.values()} - set(values["levels"]):
            raise InputError(
                f"parameter against: '{min(unknown)}' is not among the levels: {', '.join(levels)}"
            )
        against = {name: other for name, other in asked.items() if name in levels}
        lost = {name: f"it is to be compared with “{other}”, which is left out" for name, other in against.items() if other not in levels or other in left_out}  # fmt: skip
        left_out = {**lost, **left_out}
        against = {name: other for name, other in against.items() if name not in left_out}
    reasons = {name: left_out[name] for name in levels if name in left_out}
    levels = {name: level for name, level in levels.items() if name not in left_out}
    if grid:
        # with one value left there is nothing along it: then by the last dimension that still has several
        ways = [along, *reversed([name for name in grid if name != along])] if along else []
        against = next(filter(None, (_along(grid, way, levels) for way in ways)), {})
    if not levels:
        why = next(iter(reasons.values()), "give levels, or a grid of dimensions")
        raise InputError(f"parameter levels: there are none; {why}")
    baseline = values.get("baseline") or next(iter(levels))
    if baseline in reasons:
        raise InputError(f"parameter baseline: '{baseline}' cannot be run here: {reasons[baseline]}")
    if baseline not in levels:
        raise InputError(f"parameter baseline: '{baseline}' is not among the levels: {', '.join(levels)}")
    if target := values.get("shares_of"):
        if target not in levels or target == baseline:
            others = ", ".join(name for name in levels if name != baseline)
            raise InputError(f"parameter shares_of: '{target}' is not one of the levels {others}")
        levels = {name: levels[name] for name in (baseline, target)} | _shares(
            levels[baseline], levels[target]
        )
    count = values.get("controls", 1)
    if not 0 <= count <= 5:
        raise InputError(f"parameter controls: want 0 to 5 further arms of the baseline, got {count}")
    controls = tuple(CONTROL if count == 1 else f"{CONTROL} {i + 1}" for i in range(count))
    if clash := [name for name in controls if name in levels]:
        raise InputError(f"level “{clash[0]}”: that name is the A/A control's; choose another")
    arms = {baseline: levels[baseline], **dict.fromkeys(controls, levels[baseline]), **levels}
    factor = Factor(
        question=values["question"],
        baseline=baseline,
        controls=controls,
        levels=arms,
        against=against,
        grid={name: tuple(ends) for name, ends in grid.items()},
    )
    return factor, reasons


def _levels(where: str, patches: Any, read: _Read) -> dict[str, Level]:
    if not isinstance(patches, Mapping):
        raise InputError(f"parameter {where}: want names with what each changes, got {patches!r}")
    levels = {}
    for name, patch in patches.items():
        if not isinstance(name, str):  # YAML reads 16 as a number, and on as true
            raise InputError(f"level {name!r}: put its name in quotes, it is read as a {type(name).__name__}")
        if not name.isprintable():
            raise InputError(f"level {name!r}: its name cannot be printed; choose another")
        if not isinstance(patch, Mapping):
            raise InputError(f"level “{name}”: want a mapping such as {{'settings': {{…}}}}, got {patch!r}")
        levels[name] = read(name, patch)
    return levels


def _grid(values: Mapping[str, Any], only: Any) -> dict[str, dict[str, Any]]:
    """The dimensions to be crossed, each with its values and what they change; those that ``only`` leaves."""
    grid = values.get("grid") or {}
    if not grid:
        return {}
    if values.get("levels"):
        raise InputError("parameters levels and grid: give one of them; a grid makes the levels itself")
    if not isinstance(grid, Mapping) or not all(isinstance(ends, Mapping) and ends for ends in grid.values()):
        raise InputError("parameter grid: want dimensions, each with names and what each changes")
    only = only or {}
    for name, chosen in only.items() if isinstance(only, Mapping) else [("it", only)]:
        if name not in grid or not isinstance(chosen, list) or not set(chosen) <= set(grid[name]):
            raise InputError(
                f"profile {values['profile']}: 'only' wants dimensions of the grid with some of their values"
            )
    return {
        name: {end: patch for end, patch in ends.items() if end in only.get(name, ends)}
        for name, ends in grid.items()
    }


def _crossed(grid: Mapping[str, Mapping[str, Any]], read: _Read, *, screen: bool) -> dict[str, Level]:
    """Combinations of the dimensions' values as levels, all or a screening's; what a later dimension changes wins."""
    parts = {name: _levels(f"grid, {name}", ends, read) for name, ends in grid.items()}
    ends_of = {name: tuple(part) for name, part in parts.items()}
    levels = {}
    for ends in screening(ends_of) if screen else product(*ends_of.values()):
        level = Level()
        for values, end in zip(parts.values(), ends, strict=True):
            level = values[end].over(level)
        levels[", ".join(ends)] = level
    return levels


def _along(grid: Mapping[str, Any], along: str, levels: Iterable[str]) -> dict[str, str]:
    """What each level is compared with: the first that is there of those that differ from it in ``along`` alone."""
    first: dict[tuple[str, ...], str] = {}
    against = {}
    for ends in product(*grid.values()):
        name = ", ".join(ends)
        rest = tuple(end for at, end in zip(grid, ends, strict=True) if at != along)
        if along and name in levels and first.setdefault(rest, name) != name:
            against[name] = first[rest]
    return against


def _level(
    memory_bytes: int, data_mib: Callable[[Mapping[str, Any]], int], name: str, patch: Mapping[str, Any]
) -> Level:
    """A level from its patch, shares of memory and of its workload's data resolved."""
    try:
        level = Level.model_validate(patch, context={"data_mib": partial(data_mib, patch)})
    except ValidationError as reason:
        raise InputError(
            f"level “{name}”: {first_problem(reason)}; keys are {', '.join(Level.model_fields)}"
        ) from None
    if level.storage and level.storage.memory:
        memory_bytes = min(memory_bytes, level.storage.memory)
    settings = resolve_memory_shares(level.settings, memory_bytes)
    if level.target and settings != level.settings:
        raise InputError(f"level “{name}”: nobody here knows the memory of its target; give it in MB or GB")
    return level.model_copy(update={"settings": settings})


def _shares(baseline: Level, target: Level) -> dict[str, Level]:
    """The baseline with one of the target's settings, for each; and the target without it, for each."""
    if left_out := [name for name in baseline.settings if name not in target.settings]:
        raise InputError(
            f"parameter shares_of: the baseline sets {left_out[0]} and the level does not; set it in both"
        )
    alone = one_at_a_time(baseline.settings, target.settings)
    without = leave_one_out(baseline.settings, target.settings)
    if len(alone) < 2:
        raise InputError("parameter shares_of: the level needs two settings that differ from the baseline's")
    return {
        **{name: baseline.model_copy(update={"settings": settings}) for name, settings in alone.items()},
        **{name: target.model_copy(update={"settings": settings}) for name, settings in without.items()},
    }


def _with_room(factor: Factor, base: Level, load: Load) -> tuple[Factor, Level]:
    """Room for the clients on every server of our own, where nobody has said how many it takes."""
    room = max(load.clients, *(level.load.clients or 0 for level in factor.levels.values()))
    if "max_connections" in base.settings or room + _SPARE_CONNECTIONS <= 100:
        return factor, base
    wide: dict[str, SettingValue] = {"max_connections": room + _SPARE_CONNECTIONS}
    if not any(level.target for level in factor.levels.values()):
        return factor, base.model_copy(update={"settings": {**base.settings, **wide}})
    levels = {
        name: level if level.target else level.model_copy(update={"settings": {**wide, **level.settings}})
        for name, level in factor.levels.items()
    }
    return factor.model_copy(update={"levels": levels}), base
