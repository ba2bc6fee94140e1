"""A notebook's parameters cell as typed, documented parameters; and values held against them.

The cell is the one place where a factor is written down, so it is also the schema:
``blocks: int = 5  # how often every level runs`` declares a name, a type, a default and
its help.
"""

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
    """One parameter: its name, its type as written, its default and what the comment says of it."""

    name: str
    type: str
    default: Any = None
    help: str = ""

    def check(self, value: Any) -> Any:
        """The value as the declared type.

        Raises:
            InputError: it is not one, or the type is not one that a parameter may have; the
                message names the parameter, the type and the value.

        """
        if self.type not in _TYPES:
            kinds = f"there are {', '.join(_TYPES)}"
            raise InputError(f"parameter {self.name}: '{self.type}' is not a type of parameters; {kinds}")
        problem = ""
        try:
            checked_value = TypeAdapter(_TYPES[self.type]).validate_python(value)
        except ValidationError as reason:
            problem = f"{first_problem(reason)} "
        # yes and no would become 1 and 0
        if problem or (isinstance(value, bool) and self.type != "bool"):
            raise InputError(f"parameter {self.name}: {problem}(got {reprlib.repr(value)}, want {self.type})")
        return checked_value


def declared(source: str) -> dict[str, Parameter]:
    """The parameters that a cell's source declares, in its order.

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


_MOST_ALIASES, _MOST_VALUES, _DEEPEST = 200, 100_000, 50


class _Loader(yaml.SafeLoader):
    """Reads the keys ``on`` and ``off`` as the words that they are, and refuses one that is there twice.

    An alias stands for a whole value: of values that hold aliases of values a few lines become gigabytes, so their number is limited.
    """

    _aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self._aliases += 1
            if self._aliases > _MOST_ALIASES:
                raise yaml.constructor.ConstructorError(problem=f"it has more than {_MOST_ALIASES} aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[str]()
        for key, _ in node.value:
            key.tag = key.tag.replace(":bool", ":str")
            if str(key.value) in names and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(problem=f"'{key.value}' is there twice")
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _count(value: Any, depth: int = 0, counted: int = 0) -> int:
    """Return how many values there are in a value, each alias counted; a ValueError where that is no file of a person's."""
    if depth > _DEEPEST or counted > _MOST_VALUES:
        raise ValueError("it holds itself, or more than a file of parameters can")
    inner = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        counted = _count(each, depth + 1, counted)
    return counted + 1


def from_yaml(text: str | bytes, where: str) -> Any:
    """The value that a YAML text describes; ``where`` it stands is what an InputError begins with."""
    try:
        value = yaml.load(text, _Loader)
        _count(value)
        return value
    except (yaml.YAMLError, ValueError, RecursionError) as reason:  # a 30 February is a ValueError
        raise InputError(f"{where}: not YAML: {next(iter(str(reason).splitlines()), '')}") from None


def refuse_unknown(names: Iterable[str], parameters: Mapping[str, Parameter]) -> None:
    """Make sure that every name is a parameter.

    Raises:
        InputError: one is not; the message offers the nearest name, or all of them.

    """
    for name in names:
        if name not in parameters:
            near = get_close_matches(name, parameters, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(parameters)}"
            raise InputError(f"unknown parameter {name}: {hint}")


def checked(parameters: Mapping[str, Parameter], given: Values) -> dict[str, Any]:
    """Every parameter's value: what is given, else the default, as the declared types.

    Raises:
        InputError: an unknown name, or a value that is not of its type.

    """
    refuse_unknown(given, parameters)
    values = {
        name: p.check(_text_again(given[name], p.type) if name in given else p.default)
        for name, p in parameters.items()
    }
    return _of_own_levels(values, given)


def _of_own_levels(values: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The values without what names the notebook's levels, or its comparisons, where one's own are given."""
    own = "levels" in given or "grid" in given
    if own and "question" in values and not ("question" in given and values["question"].strip()):
        raise InputError("parameter question: levels of your own want one of their own, in the file or by -p")
    names = ["answers", "lead", "caveat"] if own or {"baseline", "against", "along"} & {*given} else []
    names += ["levels", "grid", "baseline", "against", "along", "only", "conditions"] if own else []
    freed = {name: type(values[name])() for name in names if name in values and name not in given}
    if own and "profiles" in values and "profiles" not in given:
        freed["profiles"] = {
            name: {key: size for key, size in sizes.items() if key not in ("only", "levels")}
            for name, sizes in values["profiles"].items()
        }
    return values | freed


def from_history(cells: list[str], namespace: Values) -> dict[str, Any]:
    """The values in a running notebook, read from what it has executed so far.

    ``cells`` are the executed sources in order, ``namespace`` the notebook's variables. The
    parameters cell is the latest that declares ``factor``; papermill's injected cell begins
    with ``# Parameters``.

    Raises:
        InputError: the parameters cell has not run, or papermill was given an unknown name
            (which papermill itself only warns of).

    """
    at = max((i for i, cell in enumerate(cells) if "\nfactor:" in f"\n{cell}"), default=None)
    if at is None:
        raise InputError("run the parameters cell first: it declares 'factor' and the other parameters")
    parameters, injected = declared(cells[at]), set[str]()
    for cell in cells[at:]:
        if cell.startswith("# Parameters\n"):
            with contextlib.suppress(SyntaxError):  # somebody's own, of another language
                names = (node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Name))
                injected |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    refuse_unknown(sorted(injected), parameters)
    if unset := [name for name in parameters if name not in namespace]:
        raise InputError(f"run the parameters cell again: {unset[0]} has no value")
    values = {name: p.check(_text_again(namespace[name], p.type)) for name, p in parameters.items()}
    return _of_own_levels(values, injected)


def _text_again(value: Any, wanted: str) -> Any:
    """A number where text is wanted, as text: papermill and YAML make numbers of what looks like one."""
    return str(value) if wanted == "str" and type(value) in (int, float) else value
