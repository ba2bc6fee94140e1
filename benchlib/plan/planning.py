"""From a notebook's parameters to a study: the profile, the levels, the load. Pure."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from benchlib.errors import InputError
from benchlib.plan.design import LOOKS
from benchlib.plan.factors import make_factor, patched
from benchlib.plan.level import Level, LevelKey, SettingValue, Values, first_problem, resolve_memory_shares
from benchlib.plan.metrics import MOST_ANSWERS
from benchlib.plan.metrics import metric as known_metric
from benchlib.plan.model import Factor, Load, Plan, Study, among
from benchlib.plan.parameters import Parameter
from benchlib.plan.workload import Workload

LEADS = ("", "crashes", "clients", "gains")
"""The findings that a headline may begin with."""
PANELS = {
    "changes": "Changes you can make",
    "costs": "Costs you accept",
    "hardware": "What hardware and load do",
}
"""The panels of the index: changes that one can make, costs that one accepts, what hardware and load do."""
_SPARE_CONNECTIONS = 20
_NEEDED = ("factor", "question", "profile", "profiles", "workload")


class _Sizes(Load):
    """What a profile says: a load, and the study's size. ``only`` names the part of the levels that it runs.

    ``base`` and ``levels`` are patches over those of the notebook, of a grid by the name of a value: such as times that are scaled down.
    """

    blocks: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = "auto"
    scale: PositiveInt = 1
    rebuild_every: int = 1
    only: Any = None
    base: dict[str, Any] = {}
    levels: dict[str, dict[str, Any]] = {}


def study_name(values: Values) -> str:
    """The study's name: the one asked for, or factor, profile and what was taken apart.

    Raises:
        InputError: a parameter that every factor needs is not declared.

    """
    if absent := [name for name in _NEEDED if name not in values]:
        raise InputError(f"parameter {absent[0]}: the parameters cell does not declare it")
    parts = [values["factor"], values["profile"], "shares" if values.get("shares_of") else ""]
    return values.get("study") or "-".join(part for part in parts if part)


def make_study(
    values: Values,
    memory_bytes: int,
    workload: Callable[[str], Workload],
    levers: Mapping[str, LevelKey],
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Study:
    """The study that a notebook's parameters describe.

    ``values`` are checked parameters; a size that is not 0 wins over the profile's. ``workload`` finds a workload by name.
    ``levers`` are those of :mod:`benchlib.levers` by key: they check what levels ask for, and bring it into its one spelling.
    ``left_out`` are levels that are not to be run, each with the reason; those that were to be compared with
    them are left out too, or in a grid compared with the next in line, by another dimension where one value is left.

    Raises:
        InputError: the parameters do not make a study; the message names the one.

    """
    name = study_name(values)
    patches = {key: values[key] for key in ("base", "levels", "grid", "profiles") if key in values}
    values = {**values, **_by_name(patches, levers)}
    try:
        sizes = _sizes(values)
        looks = LOOKS if sizes.blocks == "auto" else ()
        load = Load.model_validate(sizes.model_dump(include=set(Load.model_fields)))

        def read(memory: int, name: str, patch: Values) -> Level:
            def data_mib() -> int:
                return workload(patch.get("workload") or values["workload"]).data_mib(sizes.scale)

            return _level(name, patch, memory, {"levers": levers, "data_mib": data_mib})

        given = Parameter("base", "dict").check(values.get("base", {}))
        base = read(memory_bytes, "base", patched(given, sizes.base))
        memory = min(memory_bytes, base.part("storage").get("memory") or memory_bytes)

        scaled = {key: _scaled(values.get(key), sizes.levels) for key in ("levels", "grid")}
        factor, reasons = make_factor({**values, **scaled}, partial(read, memory), sizes.only, left_out)
        _check_answers(values, factor)
        factor, base = _with_room(factor, base, load)
        levels = [base, *factor.levels.values()]
        metric = _metric(values, load, levels)
        if metric.startswith("latency_p"):  # only the log of all transactions gives quantiles
            load = load.changed(transaction_log=True)
        named = sorted({level.workload for level in levels if level.workload})
        plan = Plan(
            factor=factor,
            base=base,
            workload=workload(values["workload"]),
            workloads={name: workload(name) for name in named},
            load=load,
            scale=sizes.scale,
            arrangement=values.get("arrangement", "standing"),
            rebuild_every=sizes.rebuild_every,
            seed=values.get("seed", 1),
            margin=values.get("margin", 0.03),
            metric=metric,
            looks=looks,
        )
        if looks and (plan.factor.against or len(set(plan.strata().values())) > 1):
            raise InputError(
                "parameter blocks: 'auto' judges all levels against one baseline; where some are compared with others "
                "give their number"
            )
        _check_together(plan, levers)
    except ValidationError as reason:
        raise InputError(f"the parameters do not make a study: {first_problem(reason)}") from None
    blocks = LOOKS[-1] if sizes.blocks == "auto" else sizes.blocks
    return Study(
        name=name,
        title=values["factor"].replace("_", " ").capitalize(),
        notebook=values["factor"],
        parameters=dict(values),
        plan=plan,
        trials=plan.design(blocks),
        left_out=reasons,
    )


def _by_name(value: Any, levers: Mapping[str, LevelKey], *names: str) -> Any:
    """Patches of levels with settings that are a text, or in a file, by name instead: so they merge, and are kept.

    Raises:
        InputError: a text is none of settings.

    """
    if isinstance(value, Mapping):
        return {name: _by_name(inner, levers, *names, name) for name, inner in value.items()}
    if not (isinstance(value, str) and names[-1] == "settings" and "settings" in levers):
        return value
    try:
        return levers["settings"].read(value, {})
    except ValueError as reason:
        raise InputError(f"level “{names[-2]}”: settings: {reason}") from None


def _check_answers(values: Values, factor: Factor) -> None:
    """Make sure that what is to answer the question are some of the notebook's comparisons, run here or not.

    Raises:
        InputError: they are not, or a parameter about them is none of its words.

    """
    answers = Parameter("answers", "dict[str, str]").check(values.get("answers", {}))
    levels = {*(values.get("levels") or {}), *factor.levels} - {*factor.controls}
    cells = [*product(*(values.get("grid") or {}).values())]
    for name in answers:
        if name not in levels and not any(among(name, ends) for ends in cells):
            raise InputError(f"parameter answers: '{name}' is not among the levels: change or empty it")
    compared = factor.pairs()
    if sum(factor.named(name) in compared for name in answers) > MOST_ANSWERS:
        raise InputError(f"parameter answers: name at most {MOST_ANSWERS} of the comparisons")
    for name, words in (("lead", LEADS), ("panel", PANELS)):
        if (given := values.get(name, next(iter(words)))) not in words:
            raise InputError(f"parameter {name}: '{given}' is not one of {', '.join(filter(None, words))}")


def _metric(values: Values, load: Load, levels: Sequence[Level]) -> str:
    """The metric asked for; else tps, or where a rate gives the tps the latency."""
    asked = values.get("metric")
    if load.rate is None and all(level.load.rate is None for level in levels):
        return known_metric(asked or "tps").name
    if values.get("pilot"):
        raise InputError("parameter pilot: it plans by the tps, which a fixed rate gives; leave one out")
    if asked in ("tps", "speed"):
        raise InputError(
            "parameter metric: a fixed rate gives the tps, so it cannot be judged by; "
            "take latency_average_ms, or a quantile such as latency_p99_ms"
        )
    return known_metric(asked or ("latency_p99_ms" if load.transaction_log else "latency_average_ms")).name


def _sizes(values: Values) -> _Sizes:
    """What the profile says, and above it what the parameters say."""
    profiles, name = Parameter("profiles", "dict[str, dict]").check(values["profiles"]), values["profile"]
    if name not in profiles:
        raise InputError(f"parameter profile: '{name}' is not one of {', '.join(profiles)}")
    sizes = _Sizes.model_fields.keys() - {"base", "levels"}
    own = {key: values[key] for key in sizes if values.get(key)}
    return _Sizes.model_validate(profiles[name] | own)


def _scaled(patches: Any, by: Mapping[str, Values]) -> Any:
    """The patches of levels, or of a grid's values, with what a profile changes of those of a name."""
    if not isinstance(patches, Mapping):
        return patches
    return {
        name: patched(patch, by[name]) if name in by and isinstance(patch, Mapping) else _scaled(patch, by)
        for name, patch in patches.items()
    }


def _level(name: str, patch: Values, memory_bytes: int, context: dict[str, Any]) -> Level:
    """A level from its patch, shares of memory and of its workload's data resolved."""
    try:
        level = Level.model_validate(patch, context=context)
    except ValidationError as reason:
        problem = f"{first_problem(reason)}; keys are {', '.join(Level.model_fields)}"
        raise InputError(f"level “{name}”: {problem}") from None
    capped = level.part("storage").get("memory") or memory_bytes
    settings = resolve_memory_shares(level.settings, min(memory_bytes, capped))
    if level.target and settings != level.settings:
        raise InputError(f"level “{name}”: nobody here knows the memory of its target; give it in MB or GB")
    return level.changed(settings=settings)


def _check_together(plan: Plan, levers: Mapping[str, LevelKey]) -> None:
    """Let each lever say whether its key can stand beside the others, at each level with its base.

    Raises:
        InputError: it cannot.

    """
    for name in plan.factor.levels:
        for lever in levers.values():
            if reason := lever.conflict(plan.level(name)):
                raise InputError(f"level “{name}”: {reason}")


def _with_room(factor: Factor, base: Level, load: Load) -> tuple[Factor, Level]:
    """Room for the clients on every server of our own, where nobody has said how many it takes."""
    room = max(load.clients, *(level.load.clients or 0 for level in factor.levels.values()))
    if "max_connections" in base.settings or room + _SPARE_CONNECTIONS <= 100:
        return factor, base
    wide: dict[str, SettingValue] = {"max_connections": room + _SPARE_CONNECTIONS}
    if not any(level.target for level in factor.levels.values()):
        return factor, base.changed(settings={**base.settings, **wide})
    levels = {
        name: level if level.target else level.changed(settings={**wide, **level.settings})
        for name, level in factor.levels.items()
    }
    return factor.changed(levels=levels), base
