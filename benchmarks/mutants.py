"""Whether the tests notice a wrong library: small errors are put into it, one at a time.

    python benchmarks/mutants.py stats 40

An error is one that people make: a comparison turned or off by its bound, another operator, a number that
is one more, a name with a letter too many, a call or a result that is forgotten, an exception that is not
caught. They are drawn at random, always the same ones, and made in a copy. Each is tried on the tests that
reach its lines, and killed when one of them fails or hangs. What survives is named; some of it is no error
(a buffer that is one byte longer). A second to a minute for each.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {
    "stats": ("benchlib/stats/*.py", "tests/stats tests/test_recorded_verdicts.py"),
    "parse": ("benchlib/load/parse/*.py", "tests/load"),
    "journal": ("benchlib/host/journal.py", "tests/host tests/levers tests/server/test_copying.py"),
    "store": ("benchlib/study/store.py", "tests/study"),
}
LIMIT = "-o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true"
OPTIONS = f"-n 0 --dist no -xq -p no:randomly -p no:cacheprovider --hypothesis-seed 0 {LIMIT}"
PYTEST = [sys.executable, "-m", "pytest", *OPTIONS.split()]
COVER = ["--cov=benchlib", "--cov-context=test", "--cov-report="]
PAIRS = "FloorDiv Div,Mod Mult,Lt LtE,Gt GtE,Eq NotEq,Is IsNot,In NotIn,Add Sub,Mult Div,And Or,BitOr BitAnd"
OTHER = {a: getattr(ast, b) for pair in PAIRS.split(",") for a, b in (pair.split(), pair.split()[::-1])}


Error = tuple[Path, range, str, bytes]
"""A file, the lines whose tests should find what is wrong with it, what that is, and the file with it."""


def wrong(node: Any) -> Iterator[tuple[Any, str]]:
    """What of a node is replaced, and by what."""
    other = OTHER.get(type(getattr(node, "op", None) or next(iter(getattr(node, "ops", [])), None)).__name__)
    match node:
        case ast.Compare() if other:
            yield node, ast.unparse(ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators))
        case ast.BinOp() if other:
            yield node, ast.unparse(ast.BinOp(node.left, other(), node.right))
        case ast.BoolOp() if other:
            yield node, ast.unparse(ast.BoolOp(other(), node.values))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node, ast.unparse(node.operand)
        case ast.Constant(value=bool() | int() | float() as value):
            yield node, str(not value if isinstance(value, bool) else value + 1)
        case ast.Constant(value=str(name)) if name.isidentifier():
            yield node, repr(name + "X")
        case ast.If() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            yield node.test, f"not {ast.unparse(node.test)}"
        case ast.ExceptHandler(type=ast.expr() as kind):
            yield kind, "GeneratorExit"
        case ast.Call(func=ast.Attribute(attr="suppress"), args=[kind, *_]):
            yield kind, "GeneratorExit"
        case ast.Return(value=ast.expr()):
            yield node, "return 0" if ast.unparse(node) == "return None" else "return None"
        case ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"


def mutants(path: Path, node: Any, reach: range, called: bool = False) -> Iterator[Error]:
    """All errors below a node. Their lines are the statement's, or all if that runs when the file is imported."""
    if isinstance(node, ast.stmt | ast.ExceptHandler) and called:
        reach = range(node.lineno, (node.end_lineno or 0) + 1)
    for old, new in wrong(node):
        lines = path.read_bytes().splitlines(keepends=True)
        before = b"".join(lines[: old.lineno - 1]) + lines[old.lineno - 1][: old.col_offset]
        after = lines[old.end_lineno - 1][old.end_col_offset :] + b"".join(lines[old.end_lineno :])
        change = f"{path.name}:{old.lineno}  {' '.join(ast.unparse(old).split())} -> {new}"
        text = f"({new})" if isinstance(old, ast.expr) else new
        yield path, reach, change, before + text.encode() + after
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            inside = called or (field == "body" and isinstance(node, ast.FunctionDef))
            skipped = isinstance(child, ast.JoinedStr) or field in ("annotation", "returns", "decorator_list")
            if isinstance(child, ast.AST) and not skipped:
                yield from mutants(path, child, reach, inside)


def main() -> None:
    """Try a number of errors in a group of modules."""
    (modules, tests), number, killed = GROUPS[sys.argv[1]], int(sys.argv[2]), 0
    with TemporaryDirectory() as name:
        folder = shutil.copytree(ROOT, Path(name, "copy"), symlinks=True, ignore=shutil.ignore_patterns(".*"))
        os.chdir(folder)
        os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.check_call([*PYTEST, *COVER, *tests.split()])
        data = CoverageData()
        data.read()
        paths = sorted(folder.glob(modules))
        every = [each for path in paths for each in mutants(path, ast.parse(path.read_bytes()), range(9999))]
        for path, reach, change, text in random.Random(1).sample(every, number):
            lines, source = data.contexts_by_lineno(str(path)), path.read_bytes()
            reaching = {each.partition("|")[0] for line in reach for each in lines.get(line, [])} - {""}
            path.write_bytes(text)
            found = reaching and subprocess.run([*PYTEST, *sorted(reaching)], capture_output=True).returncode
            path.write_bytes(source)
            killed += bool(found)
            print("killed  " if found else "survived", change, flush=True)
    print(f"{killed} of {number} killed")


if __name__ == "__main__":
    main()
