"""From a notebook's parameters to a study."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PositiveInt, ValidationError

from benchlib.errors import InputError
from benchlib.plan.design import LOOKS
from benchlib.plan.factors import Only, make_factor, patched
from benchlib.plan.level import Level, LevelKey, LoadPatch, SettingValue, Values, first_problem, share_of
from benchlib.plan.metrics import MOST_ANSWERS
from benchlib.plan.metrics import metric as known_metric
from benchlib.plan.model import Declared, Factor, Load, Plan, Study, among
from benchlib.plan.workload import Workload

_Patch = TypeVar("_Patch", Level, LoadPatch)
_SPARE_CONNECTIONS = 20
_MERGED = {"settings", "host", "load", "variables"}
"""Keys that merge by name: an empty one changes nothing."""
_SURVEY_BLOCKS = 2
"""Blocks of a survey, unless 1 is requested."""
_NEEDED = ("factor", "question", "profile", "profiles", "workload")


class _Sizes(Load):
    """A profile: a load, sizes and patches."""

    blocks: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = "auto"
    scale: PositiveInt = 1
    rebuild_every: int = 1
    only: Only = None
    base: dict[str, Any] = {}
    levels: dict[str, dict[str, Any]] = {}
    caveat: str = ""
    workloads: list[str] = []
    versions: list[str] = []


def study_name(values: Values) -> str:
    """Return the requested name, or one of factor, profile and ``shares``.

    Raises:
        InputError: a required parameter is missing.
    """
    if missing := [name for name in _NEEDED if name not in values]:
        raise InputError(f"parameter {missing[0]}: the parameters cell does not declare it")
    parts = [values["factor"], values["profile"], "shares" if values.get("shares_of") else ""]
    return values.get("study") or "-".join(filter(None, parts))


SAYS_BOTH = " instead of "
"""Separates both sides of a comparison in an answer's words."""


def answer_words(study: Study) -> dict[str, str]:
    """Return the declared answers that ran, or all comparisons: level → words."""
    factor, words = study.plan.factor, dict[str, str]()
    for name, answer in study.declared.answers.items():
        level = factor.named(name)
        if level and (SAYS_BOTH not in answer or _as_declared(study, level)):
            words.setdefault(level, answer)
    apart = {*factor.controls, *factor.repeats}
    compared = {level: level for level in factor.pairs() if level not in apart}
    return {level: answer for level, answer in words.items() if level in compared} or compared


def _as_declared(study: Study, level: str) -> bool:
    """Check the reference: left-out levels can change it."""
    declared, factor = study.declared, study.plan.factor
    against = factor.pairs().get(level, "")
    if level not in factor.cells:
        return against == declared.against.get(level, factor.baseline)
    # along a dimension, levels are compared with the baseline's value, or else the first
    named = declared.baseline.split(", ")
    first = {
        name: next((end for end in ends if end in named), next(iter(ends), ""))
        for name, ends in declared.grid.items()
        if declared.along in ("", name)
    }
    return factor.cells.get(against) == factor.cells[level] | first


def make_study(
    values: Values,
    memory_bytes: int,
    workload: Callable[[str], Workload],
    levers: Mapping[str, LevelKey],
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Study:
    """Return the study that a notebook's parameters describe.

    - ``values``: checked parameters; a size of 0 means the profile's.
    - ``left_out``: levels that cannot run, with reasons.

    Raises:
        InputError: the parameters do not make a study.
    """
    name = study_name(values)
    patches = {key: values[key] for key in ("base", "levels", "grid", "profiles") if key in values}
    values = {**values, **_by_name(patches, levers)}
    try:
        declared = Declared.model_validate(values)
        sizes = _sizes(declared, values)
        if declared.survey and sizes.blocks not in (1, _SURVEY_BLOCKS):
            raise InputError("parameter blocks: a survey has 1 or 2; --confirm runs more, of what stands out")
        load = Load.model_validate(sizes.model_dump(include=set(Load.model_fields)))

        base_patch = patched(declared.base, sizes.base)

        def read(name: str, patch: Values) -> Level:
            used = patch.get("workload", base_patch.get("workload")) or declared.workload
            context = {"levers": levers, "data_mib": lambda: workload(used).data_mib(sizes.scale)}
            return _level(name, patch, memory_bytes, context)

        base = read("base", base_patch)
        # the base's memory cap limits all levels
        memory_bytes = min(memory_bytes, base.part("storage").get("memory") or memory_bytes)

        def sized(patches: Mapping[str, Values]) -> dict[str, Values]:
            return {name: patched(patch, sizes.levels.get(name, {})) for name, patch in patches.items()}

        grid = {name: sized(ends) for name, ends in declared.grid.items()}
        declared = declared.model_copy(update={"grid": grid, "levels": sized(declared.levels)})
        factor, reasons = make_factor(declared, read, sizes.only, left_out)
        _check_answers(declared, factor)
        if values.get("clients") and all(level.load.clients for level in factor.levels.values()):
            raise InputError(
                "parameter clients: every level sets its own number; leave it out, or change the levels"
            )
        factor, base, load = _undone(factor, base, load)
        levels = [base, *factor.levels.values()]
        metric = _metric(declared, load, levels)
        if metric.startswith("latency_p"):  # only the log of all transactions gives quantiles
            load = load.changed(transaction_log=True)
        named = sorted({level.workload for level in levels if level.workload})
        plan = Plan(
            factor=factor,
            base=base,
            workload=workload(declared.workload),
            workloads={name: workload(name) for name in named},
            load=load,
            scale=sizes.scale,
            rebuild_every=sizes.rebuild_every,
            metric=metric,
            looks=LOOKS if sizes.blocks == "auto" else (),
            **{key: values[key] for key in ("arrangement", "margin", "samples") if key in values},
            seed=values.get("seed", 1),
        )
        plan = _with_room(plan)
        works = [plan.level_workload(level) for level in factor.levels]
        if all(work.data and work.by_query and work.scripts[1:] for work in works):
            plan = plan.changed(load=load.changed(transaction_log=True))  # for the p95 of each query
        by_name = dict[str, Workload]()
        for used in works:
            if by_name.setdefault(used.name, used) != used:
                raise InputError(f"two workloads have the name '{used.name}': give each file its own 'name'")
        if plan.looks and (factor.against or len(set(plan.strata().values())) > 1):
            raise InputError(
                "parameter blocks: 'auto' needs one baseline and one workload for all levels; give a number instead"
            )
        for level, lever in product(factor.levels, levers.values()):
            if reason := lever.conflict(plan.level(level)):
                raise InputError(f"level “{level}”: {reason}")
    except ValidationError as error:
        raise InputError(f"the parameters do not make a study: {first_problem(error)}") from None
    return Study(
        name=name,
        title=declared.factor.replace("_", " ").capitalize(),
        notebook=declared.factor,
        parameters=dict(values),
        plan=plan,
        trials=plan.design(LOOKS[-1] if sizes.blocks == "auto" else sizes.blocks),
        left_out=reasons,
    )


def _by_name(value: Any, levers: Mapping[str, LevelKey], *names: str) -> Any:
    """Turn settings from text or files into mappings."""
    if isinstance(value, Mapping):
        return {name: _by_name(inner, levers, *names, name) for name, inner in value.items()}
    if not (isinstance(value, str) and names[-1] == "settings" and "settings" in levers):
        return value
    try:
        return levers["settings"].read(value, {})
    except ValueError as reason:
        raise InputError(f"level “{names[-2]}”: settings: {reason}") from None


def _check_answers(declared: Declared, factor: Factor) -> None:
    levels = {*declared.levels, *factor.levels} - {*factor.controls}
    cells = [*product(*declared.grid.values())]
    for name in declared.answers:
        if name not in levels and not any(among(name, ends) for ends in cells):
            raise InputError(f"parameter answers: '{name}' is not among the levels: change or empty it")
    if len(declared.answers) > MOST_ANSWERS:
        raise InputError(f"parameter answers: name at most {MOST_ANSWERS} of the comparisons")


def _metric(declared: Declared, load: Load, levels: Sequence[Level]) -> str:
    """Return the requested metric; the default is tps, or a latency under a rate."""
    default = "tps"
    if load.rate or any(level.load.rate or level.in_place for level in levels):
        default = "latency_p99_ms" if load.transaction_log else "latency_average_ms"
        if declared.metric in ("tps", "speed"):
            raise InputError(
                f"parameter metric: a fixed rate decides the {declared.metric}; choose a latency"
            )
    return known_metric(declared.metric or default).name


def _sizes(declared: Declared, values: Values) -> _Sizes:
    profiles, name = declared.profiles, declared.profile
    if name not in profiles:
        raise InputError(f"parameter profile: '{name}' is not one of {', '.join(profiles)}")
    sizes = _Sizes.model_fields.keys() - {"base", "levels"}
    given = {key: values[key] for key in sizes if values.get(key)}
    matrix = {"workloads": declared.workloads, "versions": declared.versions}
    own = profiles[name] | ({"blocks": _SURVEY_BLOCKS} if declared.survey else {})
    return _Sizes.model_validate(own | given | {key: names for key, names in matrix.items() if names})


def _level(name: str, patch: Values, memory_bytes: int, context: dict[str, Any]) -> Level:
    """Return a level with shares of memory resolved."""
    try:
        level = Level.model_validate(patch, context=context)
    except ValidationError as reason:
        problem = f"{first_problem(reason)}; keys are {', '.join(Level.model_fields)}"
        raise InputError(f"level “{name}”: {problem}") from None
    memory_bytes = min(memory_bytes, level.part("storage").get("memory") or memory_bytes)
    shares = {setting: share_of("memory", value) for setting, value in level.settings.items()}
    sizes = {
        setting: f"{max(1, int(memory_bytes * share / 100) >> 20)}MB"
        for setting, share in shares.items()
        if share is not None
    }
    if level.target and sizes:
        raise InputError(f"level “{name}”: the memory of an external server is unknown; give MB or GB")
    return level.changed(settings={**level.settings, **sizes})


def _undone(factor: Factor, base: Level, load: Load) -> tuple[Factor, Level, Load]:
    """Move what a level undoes by null from the base to the other levels: a saved null changes nothing."""
    levels = factor.levels
    if any("rate" in level.load.model_fields_set and level.load.rate is None for level in levels.values()):
        base = base.changed(load=base.load.changed(rate=base.load.rate or load.rate))
        load = load.changed(rate=None)
    base_load, loads = _moved(base.load, {name: level.load for name, level in levels.items()})
    base, levels = _moved(base.changed(load=base_load), levels)
    levels = {name: level.changed(load=loads[name]) for name, level in levels.items()}
    return factor.changed(levels=levels), base, load


def _moved(base: _Patch, levels: dict[str, _Patch]) -> tuple[_Patch, dict[str, _Patch]]:
    given = {
        key: getattr(base, key)
        for level in levels.values()
        for key in level.model_fields_set - _MERGED
        if getattr(level, key) in (None, (), {}) and getattr(base, key)
    }
    moved = {
        name: level.changed(**{key: given[key] for key in given.keys() - level.model_fields_set})
        for name, level in levels.items()
    }
    return base.changed(**{key: type(base).model_fields[key].default for key in given}), moved


def _with_room(plan: Plan) -> Plan:
    """Raise ``max_connections`` for all clients, unless set."""
    factor, base = plan.factor, plan.base
    rooms = (
        plan.level_load(name).clients + plan.level_workload(name).clients_beside for name in factor.levels
    )
    room = max(rooms) + _SPARE_CONNECTIONS
    if "max_connections" in base.settings or room <= 100:
        return plan
    raised: dict[str, SettingValue] = {"max_connections": room}
    if not any(level.target for level in factor.levels.values()):
        return plan.changed(base=base.changed(settings={**base.settings, **raised}))
    levels = {
        name: level if level.target else level.changed(settings={**raised, **level.settings})
        for name, level in factor.levels.items()
    }
    return plan.changed(factor=factor.changed(levels=levels))
