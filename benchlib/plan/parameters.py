"""A notebook's parameters: lines such as ``blocks: int = 5  # number of blocks``."""

import ast
import contextlib
import io
import reprlib
import tokenize
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from benchlib.errors import InputError
from benchlib.plan.level import Values, first_problem

_TYPES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}


@dataclass(frozen=True)
class Parameter:
    """A parameter with its type as written."""

    name: str
    type: str
    default: Any = None
    help: str = ""

    def check(self, value: Any) -> Any:
        """Return the value as the declared type.

        Raises:
            InputError: the value or the type does not fit.
        """
        if self.type not in _TYPES:
            kinds = f"there are {', '.join(_TYPES)}"
            raise InputError(f"parameter {self.name}: '{self.type}' is not a type of parameters; {kinds}")
        if self.type == "str" and type(value) in (int, float):  # papermill and YAML convert such text
            return str(value)
        if self.type == "list" and isinstance(value, str | int) and not isinstance(value, bool):
            return [part.strip() for part in str(value).split(",") if part.strip()]  # -p versions 16,17,18
        wrong = f"(got {reprlib.repr(value)}, expected {self.type})"
        if isinstance(value, bool) and self.type != "bool":  # it would become 1 or 0
            raise InputError(f"parameter {self.name}: {wrong}")
        try:
            return TypeAdapter(_TYPES[self.type]).validate_python(value)
        except ValidationError as reason:
            raise InputError(f"parameter {self.name}: {first_problem(reason)} {wrong}") from None


def declared(source: str) -> dict[str, Parameter]:
    """Return the parameters that a cell declares.

    Raises:
        InputError: the cell is not Python, or a default is not a plain value.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as reason:
        raise InputError(f"the parameters cell is not Python: line {reason.lineno}: {reason.msg}") from None
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ").strip() for t in tokens if t.type == tokenize.COMMENT}
    parameters = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name = node.target.id
            try:
                default = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                raise InputError(f"parameter {name}: the default must be a plain value") from None
            help_ = comments.get(node.lineno) or comments.get(node.end_lineno or 0, "")
            parameters[name] = Parameter(name, ast.unparse(node.annotation), default, help_)
    return parameters


_MOST_ALIASES, _MOST_KEYS, _MOST_VALUES, _DEEPEST = 200, 10_000, 100_000, 50


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads ``on`` as text in keys and refuses duplicate keys.

    It limits aliases and merged keys: nested ones expand a few lines to gigabytes.
    """

    _aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self._aliases += 1
            if self._aliases > _MOST_ALIASES:
                raise yaml.constructor.ConstructorError(problem=f"it has more than {_MOST_ALIASES} aliases")
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_KEYS:
            raise yaml.constructor.ConstructorError(problem=f"more than {_MOST_KEYS:,} keys")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[str]()
        for key, _ in node.value:
            key.tag = key.tag.replace(":bool", ":str")
            if str(key.value) in names and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(problem=f"'{key.value}' is there twice")
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _count(value: Any, depth: int = 0, counted: int = 0) -> int:
    if depth > _DEEPEST or counted > _MOST_VALUES:
        raise ValueError(f"more than {_DEEPEST} levels or {_MOST_VALUES:,} values")
    inner = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        counted = _count(part, depth + 1, counted)
    return counted + 1


def from_yaml(text: str | bytes, where: str) -> Any:
    """Return the value of a text; ``where`` names it in errors.

    Raises:
        InputError: the text is not valid YAML.
    """
    try:
        value = yaml.load(text, _Loader)
        _count(value)
        return value
    except (yaml.YAMLError, ValueError, RecursionError) as reason:  # 30 February is a ValueError
        raise InputError(f"{where}: not YAML: {next(iter(str(reason).splitlines()), '')}") from None


def refuse_unknown(names: Iterable[str], parameters: Mapping[str, Parameter]) -> None:
    """Check that every name is a parameter.

    Raises:
        InputError: one is not.
    """
    for name in names:
        if name not in parameters:
            near = get_close_matches(name, parameters, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(parameters)}"
            raise InputError(f"unknown parameter {name}: {hint}")


def checked(parameters: Mapping[str, Parameter], given: Values) -> dict[str, Any]:
    """Return every parameter's value, given or default.

    Raises:
        InputError: a name or a value is wrong.
    """
    refuse_unknown(given, parameters)
    return _of_own_levels(
        {name: p.check(given.get(name, p.default)) for name, p in parameters.items()}, given
    )


_MATRIX = ("workloads", "versions")
_ABOUT_LEVELS = ("answers", "caveat")
_NAMING_LEVELS = ("levels", "grid", "baseline", "against", "along", "only", "conditions")


def _of_own_levels(values: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Empty parameters that name the notebook's levels if the user gives others, or workloads and versions."""
    profiles = values.get("profiles", {})
    if wrong := next((name for name in profiles if not isinstance(profiles[name], Mapping)), None):
        raise InputError(
            f"parameter profiles: '{wrong}' needs sizes by name (got {reprlib.repr(profiles[wrong])})"
        )
    matrix = {name: values[name] for name in _MATRIX if values.get(name)}
    # whoever names a version wants it
    freed: dict[str, Any] = {"leave_out": False} if "versions" in matrix and "leave_out" not in given else {}
    if matrix or not {"levels", "only", "against", "answers", "workload"} & {*given}:
        sizes = profiles.get(values.get("profile"), {})
        # one workload that is named replaces the profile's
        names = [name for name in _MATRIX if name == "versions" or "workload" not in given]
        matrix = {name: sizes[name] for name in names if name in sizes and name in values} | matrix
    for name, wanted in matrix.items():
        if not isinstance(wanted, list):
            raise InputError(f"parameter profiles: {name} needs a list (got {reprlib.repr(wanted)})")
    crossed, listed = any(matrix.values()), {"levels", "grid"} & {*given}
    if crossed and (both := next(filter(values.get, listed), None)):
        raise InputError(
            f"parameter {both}: 'workloads' and 'versions' make the levels; give only one of them"
        )
    asked = values["question"].strip() if "question" in given else ""
    if listed and not crossed and "question" in values and not asked:
        raise InputError("parameter question: your own levels need their own question, in the file or by -p")
    names = [*_ABOUT_LEVELS] if crossed or listed or {"baseline", "against", "along"} & {*given} else []
    names += _NAMING_LEVELS if crossed or listed else ()
    freed |= {name: type(values[name])() for name in names if name in values and name not in given}
    if profiles and (crossed or (listed and "profiles" not in given)):
        freed["profiles"] = {
            name: {key: size for key, size in sizes.items() if key not in ("only", "levels")}
            for name, sizes in profiles.items()
        }
    return values | matrix | freed


def from_history(cells: list[str], namespace: Values) -> dict[str, Any]:
    """Return the values in a running notebook, from its executed cells.

    Raises:
        InputError: the parameters cell has not run, or papermill injected an unknown name.
    """
    start = max((i for i, cell in enumerate(cells) if "\nfactor:" in f"\n{cell}"), default=None)
    if start is None:
        raise InputError("run the parameters cell first: it declares 'factor' and the other parameters")
    parameters, injected = declared(cells[start]), set[str]()
    for cell in cells[start:]:
        if cell.startswith("# Parameters\n"):
            with contextlib.suppress(SyntaxError):  # a user's cell in another language
                names = (node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Name))
                injected |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    refuse_unknown(sorted(injected), parameters)
    if unset := [name for name in parameters if name not in namespace]:
        raise InputError(f"run the parameters cell again: {unset[0]} has no value")
    return _of_own_levels({name: p.check(namespace[name]) for name, p in parameters.items()}, injected)
