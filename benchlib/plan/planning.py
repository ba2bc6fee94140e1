"""From a notebook's parameters to a study: the profile, the levels, the load. Pure."""

from collections.abc import Callable, Mapping, Sequence
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
from benchlib.plan.model import Declared, Factor, Load, Plan, Study, among
from benchlib.plan.workload import Workload

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

    ``base`` and ``levels`` are patches over those of the notebook, of a grid by the name of a value: such as times that are scaled down, which its
    ``caveat`` says.
    """

    blocks: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = "auto"
    scale: PositiveInt = 1
    rebuild_every: int = 1
    only: list[str] | dict[str, list[str]] | None = None
    base: dict[str, Any] = {}
    levels: dict[str, dict[str, Any]] = {}
    caveat: str = ""


def study_name(values: Values) -> str:
    """The study's name: the one asked for, or factor, profile and what was taken apart.

    Raises:
        InputError: a parameter that every factor needs is not declared.

    """
    if absent := [name for name in _NEEDED if name not in values]:
        raise InputError(f"parameter {absent[0]}: the parameters cell does not declare it")
    parts = [values["factor"], values["profile"], "shares" if values.get("shares_of") else ""]
    return values.get("study") or "-".join(filter(None, parts))


SAYS_BOTH = " instead of "
"""Words for an answer that name both sides of the comparison."""


def answer_words(study: Study) -> dict[str, str]:
    """Return the levels that the notebook declares as answers, with a reader's words, in its order; all where none was run."""
    factor, words = study.plan.factor, dict[str, str]()
    for name, called in study.declared.answers.items():
        level = factor.named(name)
        if level and (SAYS_BOTH not in called or _as_declared(study, level)):
            words.setdefault(level, called)
    asked = {level: level for level in factor.pairs() if level not in factor.controls}
    return {level: called for level, called in words.items() if level in asked} or asked


def _as_declared(study: Study, level: str) -> bool:
    """Whether a level is compared with the level that the notebook declares; where others are not run, it may be another."""
    declared, factor = study.declared, study.plan.factor
    against = factor.pairs().get(level, "")
    if level not in factor.cells:
        return against == declared.against.get(level, factor.baseline)
    # along a dimension, levels are compared with its first value
    first = {
        name: next(iter(ends), "") for name, ends in declared.grid.items() if declared.along in ("", name)
    }
    return factor.cells.get(against) == factor.cells[level] | first


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
        declared = Declared.model_validate(values)
        sizes = _sizes(declared, values)
        load = Load.model_validate(sizes.model_dump(include=set(Load.model_fields)))

        under = patched(declared.base, sizes.base)

        def read(name: str, patch: Values) -> Level:
            def data_mib() -> int:
                named = patch.get("workload") or under.get("workload") or declared.workload
                return workload(named).data_mib(sizes.scale)

            return _level(name, patch, memory_bytes, {"levers": levers, "data_mib": data_mib})

        base = read("base", under)
        # of the levels, which stand on it
        memory_bytes = min(memory_bytes, base.part("storage").get("memory") or memory_bytes)

        grid = {name: _scaled(ends, sizes.levels) for name, ends in declared.grid.items()}
        declared = declared.model_copy(
            update={"grid": grid, "levels": _scaled(declared.levels, sizes.levels)}
        )
        factor, reasons = make_factor(declared, read, sizes.only, left_out)
        _check_answers(declared, factor)
        if values.get("clients") and all(level.load.clients for level in factor.levels.values()):
            raise InputError(
                "parameter clients: every level says its own; leave it out, or change the levels"
            )
        factor, base = _with_room(factor, base, load)
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
            arrangement=values.get("arrangement", "standing"),
            rebuild_every=sizes.rebuild_every,
            seed=values.get("seed", 1),
            margin=values.get("margin", 0.03),
            metric=metric,
            looks=LOOKS if sizes.blocks == "auto" else (),
        )
        works = dict[str, Workload]()
        for work in map(plan.level_workload, factor.levels):
            if works.setdefault(work.name, work) != work:
                raise InputError(
                    f"two workloads have the name '{work.name}': give each file a 'name' of its own"
                )
        if plan.looks and (factor.against or len(set(plan.strata().values())) > 1):
            raise InputError(
                "parameter blocks: 'auto' judges all levels against one baseline; where some are compared with others "
                "give their number"
            )
        _check_together(plan, levers)
    except ValidationError as reason:
        raise InputError(f"the parameters do not make a study: {first_problem(reason)}") from None
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


def _check_answers(declared: Declared, factor: Factor) -> None:
    """Make sure that what is to answer the question are some of the notebook's comparisons, run here or not.

    Raises:
        InputError: they are not, or too many.

    """
    levels = {*declared.levels, *factor.levels} - {*factor.controls}
    cells = [*product(*declared.grid.values())]
    for name in declared.answers:
        if name not in levels and not any(among(name, ends) for ends in cells):
            raise InputError(f"parameter answers: '{name}' is not among the levels: change or empty it")
    if len(declared.answers) > MOST_ANSWERS:
        raise InputError(f"parameter answers: name at most {MOST_ANSWERS} of the comparisons")


def _metric(declared: Declared, load: Load, levels: Sequence[Level]) -> str:
    """The metric asked for; else tps, or where a rate gives the tps the latency."""
    asked = declared.metric
    if load.rate is None and all(level.load.rate is None for level in levels):
        return known_metric(asked or "tps").name
    if asked in ("tps", "speed"):
        raise InputError("a fixed rate gives the tps: judge by a latency ('metric')")
    return known_metric(asked or ("latency_p99_ms" if load.transaction_log else "latency_average_ms")).name


def _sizes(declared: Declared, values: Values) -> _Sizes:
    """What the profile says, and above it what the parameters say."""
    profiles, name = declared.profiles, declared.profile
    if name not in profiles:
        raise InputError(f"parameter profile: '{name}' is not one of {', '.join(profiles)}")
    sizes = _Sizes.model_fields.keys() - {"base", "levels"}
    return _Sizes.model_validate(profiles[name] | {key: values[key] for key in sizes if values.get(key)})


def _scaled(patches: Mapping[str, Values], by: Mapping[str, Values]) -> dict[str, Values]:
    """The patches of levels, or of a dimension's values, with what a profile changes of those of a name."""
    return {name: patched(patch, by.get(name, {})) for name, patch in patches.items()}


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
    for name, lever in product(plan.factor.levels, levers.values()):
        if reason := lever.conflict(plan.level(name)):
            raise InputError(f"level “{name}”: {reason}")


def _with_room(factor: Factor, base: Level, load: Load) -> tuple[Factor, Level]:
    """Room for the clients on every server of our own, where nobody has said how many it takes."""
    room = max(load.clients, *(level.over(base).load.clients or 0 for level in factor.levels.values()))
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
