"""The factor of a study: its levels and the reference of each."""

from collections.abc import Callable, Mapping
from functools import reduce
from itertools import product

from benchlib.errors import InputError
from benchlib.plan.design import screening
from benchlib.plan.level import Level, Values
from benchlib.plan.model import Declared, Factor, among

CONTROL = "control"
_LONGEST = 80  # characters of a level's name
_AGAIN = 3
"""Further trials of each reference in a block of a survey."""
Only = list[str] | dict[str, list[str]] | None
ReadLevel = Callable[[str, Values], Level]
"""Makes a level from its name and its patch."""


def make_factor(
    declared: Declared, read: ReadLevel, only: Only, left_out: Mapping[str, str]
) -> tuple[Factor, dict[str, str]]:
    """Return the factor, and the levels that cannot run, with reasons.

    ``only`` limits a profile to levels, or to values of dimensions.

    Raises:
        InputError: the parameters do not make a factor.
    """
    for other in ("levels", "against"):
        if declared.grid and getattr(declared, other):
            raise InputError(
                f"parameters {other} and grid: give only one of them; a grid compares with the baseline, or along a dimension"
            )
    if declared.along not in ("", *declared.grid):
        known = ", ".join(declared.grid) or "listed levels have none"
        raise InputError(f"parameter along: '{declared.along}' is not a dimension of the grid: {known}")
    whole, cells = _combined(declared, read, only if isinstance(only, dict) else {})
    if unknown := {*declared.against, *declared.against.values()} - whole.keys():
        raise InputError(f"parameter against: '{min(unknown)}' is not among the levels: {', '.join(whole)}")
    chosen = only if isinstance(only, list) else [*whole]
    if unknown := {*chosen} - whole.keys():
        raise InputError(
            f"parameter only: '{min(unknown)}' is not among the levels: {', '.join([*whole][:9])}"
        )
    wanted = {name: level for name, level in whole.items() if name in chosen}
    against = {name: _nearest(declared.against, name, wanted) for name in declared.against if name in wanted}
    for _ in against:  # a level without its reference is left out too, and so on
        lost = {name: f"its reference “{other}” is left out" for name, other in against.items() if other not in wanted or other in left_out}  # fmt: skip
        left_out = {**lost, **left_out}
    reasons = {name: left_out[name] for name in wanted if name in left_out}
    levels = {name: level for name, level in wanted.items() if name not in reasons}
    if not levels:
        why = next(iter(reasons.values()), "give levels, or a grid of dimensions")
        raise InputError(f"parameter levels: no level can run; {why}")
    baseline = declared.baseline or next(iter(levels))
    if baseline not in wanted:  # some values of a grid, such as a version
        baseline = next((name for name in levels if among(baseline, cells.get(name, {}).values())), baseline)
    if baseline in reasons:
        raise InputError(f"parameter baseline: '{baseline}' cannot be run here: {reasons[baseline]}")
    if baseline not in levels:
        raise InputError(f"parameter baseline: '{baseline}' is not among the levels: {', '.join(levels)}")
    if declared.along:
        # if only one value of it is left: the last dimension that has several
        dimensions = [declared.along, *reversed([name for name in declared.grid if name != declared.along])]
        against = next(filter(None, (_along(cells, name, levels, baseline) for name in dimensions)), {})
    if declared.survey:
        if not (declared.along and against):
            raise InputError(
                "parameter survey: needs a grid that is compared along a dimension, as workloads and versions"
            )
        again = {f"{name}, again {n}": name for name in against.values() for n in range(1, _AGAIN + 1)}
        levels |= {repeat: levels[name] for repeat, name in again.items()}
        cells |= {repeat: cells[name] for repeat, name in again.items()}
        against |= again
    if declared.shares_of:
        levels = _shares(declared.shares_of, levels, baseline)
    count = 0 if declared.survey else declared.controls  # each reference of a survey is repeated
    controls = tuple(CONTROL if count == 1 else f"{CONTROL} {i + 1}" for i in range(count))
    if clash := [name for name in controls if name in levels]:
        raise InputError(f"level “{clash[0]}”: this name is reserved for the A/A control; choose another")
    arms = dict.fromkeys((baseline, *controls), levels[baseline])
    factor = Factor(
        question=declared.question,
        baseline=baseline,
        controls=controls,
        levels={**arms, **levels},
        against={name: other for name, other in against.items() if name in levels},
        cells={name: cell for name, cell in cells.items() if name in levels},
    )
    return factor, reasons


def _nearest(against: Mapping[str, str], name: str, levels: Mapping[str, Level]) -> str:
    """Return the first reference of a level's chain that runs."""
    other = against[name]
    for _ in against:  # ends even in a circle
        other = other if other in levels else against.get(other, other)
    return other if other in levels else against[name]


def _whole(patches: Mapping[str, Values]) -> dict[str, Values]:
    """Merge each patch over its ``over``."""
    whole: dict[str, Values] = {}
    for name, patch in patches.items():
        below = patch.get("over")
        if below is not None and below not in list(whole):
            raise InputError(f"level “{name}”: over: {below!r} is not the name of an earlier level")
        changes = {key: value for key, value in patch.items() if key != "over"}
        whole[name] = changes if below is None else patched(whole[below], changes)
    return whole


def patched(patch: Values, over: Values) -> Values:
    """Merge a patch; settings, tunables and load by name."""
    merged = {**patch, **over}
    for key in ("settings", "host", "load"):
        if isinstance(patch.get(key), Mapping) and isinstance(over.get(key), Mapping):
            merged[key] = {**patch[key], **over[key]}
    return merged


def _shares(name: str, levels: Mapping[str, Level], baseline: str) -> dict[str, Level]:
    """Return variants with or without each differing setting."""
    if name not in levels or name == baseline:
        others = ", ".join(other for other in levels if other != baseline)
        raise InputError(f"parameter shares_of: '{name}' is not one of the levels {others}")
    base, whole = levels[baseline], levels[name]
    differing = [
        key
        for key in {**base.settings, **whole.settings}
        if base.settings.get(key) != whole.settings.get(key)
    ]
    if len(differing) < 2:
        raise InputError(f"parameter shares_of: '{name}' needs two settings that differ from the baseline's")

    def with_one(level: Level, key: str, other: Level) -> Level:
        settings = {**level.settings, key: other.settings.get(key)}
        return level.changed(settings={name: value for name, value in settings.items() if value is not None})

    only = {f"only {key}": with_one(base, key, whole) for key in differing}
    without = {f"without {key}": with_one(whole, key, base) for key in differing}
    return {baseline: base, name: whole, **only, **without}


def _combined(
    declared: Declared, read: ReadLevel, chosen: Mapping[str, list[str]]
) -> tuple[dict[str, Level], dict[str, dict[str, str]]]:
    """Return the levels, and the cells of a grid, limited to the chosen values; later dimensions win."""
    if any(not {*ends} <= declared.grid.get(name, {}).keys() for name, ends in chosen.items()):
        raise InputError(
            f"profile {declared.profile}: 'only' needs dimensions of the grid with some of their values"
        )
    # listed levels are a single dimension
    parts = {name: _whole(ends) for name, ends in (declared.grid or {"": declared.levels}).items()}
    ends_of = {
        name: tuple(end for end in part if end in chosen.get(name, part)) for name, part in parts.items()
    }
    levels: dict[str, Level] = {}
    cells = {}
    for ends in screening(ends_of) if declared.screen else product(*ends_of.values()):
        apart = [end for end, several in zip(ends, ends_of.values(), strict=True) if len(several) > 1]
        name = ", ".join(apart or ends)
        if declared.screen:
            name = _by_dimension(ends_of, ends, len(levels) + 1)
        if name in levels:
            raise InputError(f"parameter grid: two combinations are named “{name}”; rename their values")
        cells[name] = dict(zip(parts, ends, strict=True))
        # merge before reading: shares of memory depend on the whole level
        levels[name] = read(name, reduce(patched, (parts[d][end] for d, end in cells[name].items()), {}))
    return levels, cells if declared.grid else {}


def _by_dimension(ends_of: Mapping[str, tuple[str, ...]], ends: tuple[str, ...], number: int) -> str:
    """Return ``jit, work_mem``, ``all but jit``, ``none`` or ``all``."""
    first = [name for (name, two), end in zip(ends_of.items(), ends, strict=True) if end == two[0]]
    second = [name for name in ends_of if name not in first]
    if not first or not second:
        return "none" if first else "all"
    name = ", ".join(second) if len(second) <= len(first) else f"all but {', '.join(first)}"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 5]}… {number}"


def _along(
    cells: Mapping[str, Mapping[str, str]], along: str, levels: Mapping[str, Level], baseline: str
) -> dict[str, str]:
    """Return each level's reference, which differs from it in ``along`` alone."""
    rests = {
        name: tuple(end for dimension, end in cells[name].items() if dimension != along) for name in levels
    }
    first: dict[tuple[str, ...], str] = {}
    for name in sorted(levels, key=lambda name: cells[name][along] != cells[baseline][along]):
        first.setdefault(rests[name], name)
    return {name: first[rest] for name, rest in rests.items() if first[rest] != name}
