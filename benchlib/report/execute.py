"""A factor's notebook, executed in this process with the parameters that are given, as papermill does it in a kernel.

Outputs become those of the executed notebook, byte for byte the same each time. Progress, which JupyterLab shows in a
line of the notebook, goes to the caller instead.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import gc
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.utils.capture import capture_output
from traitlets import Type
from traitlets.config import Config

from benchlib.errors import BenchlibError, InputError, Interrupted, StudyError
from benchlib.host import files
from benchlib.host.shell import allow_open_files
from benchlib.plan.parameters import Parameter, checked, declared
from benchlib.report.cells import Node, read_notebook, tags, write_notebook
from benchlib.report.progress import HEARERS
from benchlib.study.store import notebooks, project_root

_INJECTED = "injected-parameters"
_STOPPED = "stopped; run the same again to go on from what is kept"
Listen = Callable[[str], None]


def find_notebook(name: str) -> Path:
    """The notebook of that name in ``notebooks/``, or at that path.

    Raises:
        InputError: there is none; the message lists those that exist.

    """
    known = notebooks()
    path = Path(name) if name.endswith(".ipynb") else known.get(name)
    if path is None or not path.is_file():
        names = ", ".join(known)
        there = f"there is: {names}" if known else "'benchlib init FOLDER' makes a folder that has them"
        raise InputError(f"no notebook '{name}' ({there}); give a name or the path of an .ipynb file")
    return path


def notebook_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares.

    Raises:
        InputError: it is no notebook, or has no cell tagged ``parameters``.

    """
    for cell in read_notebook(path)["cells"]:
        if "parameters" in tags(cell):
            return declared(cell["source"])
    raise InputError(f"{path.name} has no cell tagged 'parameters'")


def execute(
    path: Path,
    given: Mapping[str, Any],
    failed: Path,
    listen: Listen = lambda line: None,
    *,
    shared_alone: bool = False,
) -> tuple[Node, dict[str, Any]]:
    """Execute a notebook with parameters: the executed one, and the names that its cells have left.

    ``shared_alone`` leaves out the cells that are not in all notebooks. ``listen`` gets each line of progress. A Ctrl-C
    is the notebook's to hear, which stops in order and keeps what it has.

    Raises:
        BenchlibError: the one that the notebook raised.
        Interrupted: Ctrl-C.
        StudyError: the notebook failed with an error that is not ours; the executed one, with its traceback, is at ``failed``.

    """
    allow_open_files()
    parameters = notebook_parameters(path)
    values = checked(parameters, given)
    notebook = _with_parameters(path, {name: values[name] for name in given})
    if shared_alone:
        notebook["cells"] = [c for c in notebook["cells"] if tags(c) & {"parameters", _INJECTED, "shared"}]
    if "question" in given and given["question"] != parameters["question"].default:
        # what a notebook says before its cells that all share is of its own question
        code = [c for c in notebook["cells"] if c["cell_type"] == "code" or tags(c) & {"own", "shared"}]
        notebook["cells"] = code
    with _cells_of_one_notebook(listen) as shell, _interruptible(aloud=bool(values.get("run"))) as stopping:
        for cell in notebook["cells"]:
            reason = shell.execute(cell) if cell["cell_type"] == "code" else None
            if isinstance(reason, BenchlibError):
                raise reason
            if stopping or isinstance(reason, KeyboardInterrupt):
                raise Interrupted(_STOPPED)
            if reason is not None:
                files.make(failed.parent)
                write_notebook(notebook, failed)
                raise StudyError(f"the notebook failed: {type(reason).__name__}: {reason} (see {failed})")
        return notebook, dict(shell.user_ns)


def _with_parameters(path: Path, given: Mapping[str, Any]) -> Node:
    """The notebook without outputs, and after its parameters a cell that sets those that are given, as papermill's."""
    notebook = read_notebook(path)
    source = "\n".join(["# Parameters", *(f"{name} = {value!r}" for name, value in given.items()), ""])
    injected = {"cell_type": "code", "id": _INJECTED, "metadata": {"tags": [_INJECTED]}, "source": source}
    cells = []
    for cell in notebook["cells"]:
        cells += [] if _INJECTED in tags(cell) else [cell]
        cells += [injected] if "parameters" in tags(cell) else []
    for cell in cells:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return {**notebook, "cells": cells}


@contextlib.contextmanager
def _interruptible(*, aloud: bool) -> Iterator[list[bool]]:
    """A Ctrl-C, or a SIGTERM, interrupts what is being executed and leaves its mark in a list: IPython swallows some of them.

    ``aloud``: trials may be running, so it is said at once what is being done about them.
    """
    stopping: list[bool] = []

    def stop(*_: object) -> None:
        if aloud:
            lines = "\nstopping: the current trial is dropped, the servers stop …"
            print(lines, file=sys.__stderr__, flush=True)
        stopping.append(True)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    except KeyboardInterrupt:
        raise Interrupted(_STOPPED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the shell ----------------------------------------------------------------------


class _Value(DisplayHook):
    """Displays the value of a cell's last line, as all else is displayed."""

    shell: _Shell

    def __call__(self, result: object = None) -> None:
        if result is not None and not self.quiet():  # type: ignore[no-untyped-call]
            self.shell.display_pub.publish(*self.compute_format_data(result))  # type: ignore[no-untyped-call]


class _Shell(InteractiveShell):
    """Executes cells as a kernel would; what the user has set up for IPython is neither read nor written."""

    displayhook_class = Type(_Value)

    def init_virtualenv(self) -> None:
        """Without another environment's packages on this process's path."""

    def enable_gui(self, gui: str | None = None) -> None:
        """Without windows."""

    def execute(self, cell: Node) -> BaseException | None:
        """Execute a cell, whose outputs are then its own: what it prints, then what it shows; the error that ended it."""
        with capture_output() as captured:
            result: ExecutionResult = self.run_cell(cell["source"], store_history=True)  # type: ignore[no-untyped-call]
        streams = {"stdout": captured.stdout, "stderr": captured.stderr}
        cell["outputs"] = [
            {"output_type": "stream", "name": name, "text": text} for name, text in streams.items() if text
        ]
        # a display that is updated is in the place of the first with its name
        displays = {(d.transient or {}).get("display_id") or n: d for n, d in enumerate(captured.outputs)}
        for each in displays.values():
            data = {
                kind: base64.b64encode(part).decode() if isinstance(part, bytes) else part
                for kind, part in each.data.items()
            }
            output = {"output_type": "display_data", "data": data, "metadata": each.metadata or {}}
            cell["outputs"].append(output)
        cell["execution_count"] = result.execution_count
        return result.error_before_exec or result.error_in_exec


@cache
def _shell() -> _Shell:
    """The one shell of this process."""
    main = sys.modules["__main__"]
    with tempfile.TemporaryDirectory() as nowhere:  # IPython makes folders there, and keeps nothing in them
        config = Config({"HistoryManager": {"enabled": False}})
        shell = _Shell.instance(ipython_dir=nowhere, profile_dir=ProfileDir(), config=config)
    sys.modules["__main__"] = main  # which IPython takes for its own
    atexit.unregister(shell.atexit_operations)  # it has opened nothing
    shell.enable_matplotlib("inline")  # type: ignore[no-untyped-call]  # as in a kernel
    gc.freeze()  # what is imported stays, and is not searched for garbage
    return shell


@contextlib.contextmanager
def _cells_of_one_notebook(listen: Listen) -> Iterator[_Shell]:
    """The shell without anything of the notebook before, in the project's folder, its progress told to ``listen``.

    Of what the cells change in this process, Matplotlib's settings, filters of warnings and the folder are as before in the end.
    """
    out, err, shell, root = sys.stdout, sys.stderr, _shell(), project_root()

    def hear(line: str) -> None:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            listen(line)

    with contextlib.chdir(root), matplotlib.rc_context(), warnings.catch_warnings():
        shell.reset(new_session=True)  # type: ignore[no-untyped-call]
        sys.path.append(str(root))  # modules beside notebooks/ can be imported, and replace none
        HEARERS.append(hear)
        try:
            yield shell
        finally:
            HEARERS.pop()
            sys.path.remove(str(root))
