"""A factor's notebook, executed in this process with the parameters that are given, as papermill does it in a kernel.

Outputs become those of the executed notebook, byte for byte the same each time. Progress reaches the caller as the
notebook's own display messages, so nothing is written on the side and JupyterLab shows the same line.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import gc
import io
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import Type
from traitlets.config import Config

from benchlib.errors import BenchlibError, InputError, Interrupted, StudyError
from benchlib.host.shell import allow_open_files
from benchlib.plan.parameters import Parameter, checked, declared
from benchlib.report.cells import Node, read_notebook, tags, write_notebook
from benchlib.report.progress import PROGRESS
from benchlib.study.store import notebooks, project_root

_STOPPED = "stopped; run the same again to go on from what is kept"
_INJECTED = "injected-parameters"
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
                failed.parent.mkdir(parents=True, exist_ok=True)
                write_notebook(notebook, failed)
                raise StudyError(
                    f"the notebook failed: {type(reason).__name__}: {reason} (see {failed})"
                ) from None
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
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

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
    """Adds the value of a cell's last line to its outputs."""

    shell: _Shell

    def write_output_prompt(self) -> None:
        """Without a prompt."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        """The value in all its forms."""
        count = self.prompt_count
        self.shell.add("execute_result", data=format_dict, metadata=md_dict, execution_count=count)

    def finish_displayhook(self) -> None:
        """Without a line between this value and the next."""
        self._is_active = False


class _Displays(DisplayPublisher):
    """Adds what a cell displays to its outputs, and hands progress on."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: object = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: object,
    ) -> None:
        """Add a display, or put another in the place of the one that has its id."""
        metadata, name = metadata or {}, (transient or {}).get("display_id")
        if PROGRESS.items() <= metadata.items():
            self.shell.listen(data.get("text/plain", ""))
        if not update:
            self.shell.displayed[name] = self.shell.add("display_data", data=data, metadata=metadata)
        elif name in self.shell.displayed:
            self.shell.displayed[name].update(data=data, metadata=metadata)

    def clear_output(self, wait: bool = False) -> None:
        """Forget what the cell has shown so far."""
        self.shell.outputs.clear()


class _Stream(io.TextIOBase):
    """Adds what a cell prints to its outputs."""

    def __init__(self, shell: _Shell, name: str) -> None:
        self._shell, self._name = shell, name

    def write(self, text: str) -> int:
        """Add to the stream's last output, unless there was another since."""
        outputs = self._shell.outputs
        if outputs and outputs[-1].get("name") == self._name:
            outputs[-1]["text"] += text
        elif text:
            self._shell.add("stream", name=self._name, text=text)
        return len(text)


class _Shell(InteractiveShell):
    """Executes cells as a kernel would; what the user has set up for IPython is neither read nor written."""

    displayhook_class = Type(_Value)
    display_pub_class = Type(_Displays)
    listen: Listen
    outputs: list[Node]
    displayed: dict[str | None, Node]

    def init_virtualenv(self) -> None:
        """Without another environment's packages on this process's path."""

    def enable_gui(self, gui: str | None = None) -> None:
        """Without windows."""

    def execute(self, cell: Node) -> BaseException | None:
        """Execute a cell, whose outputs are then its own; the error that ended it."""
        cell["outputs"] = self.outputs = []
        result: ExecutionResult = self.run_cell(cell["source"], store_history=True)  # type: ignore[no-untyped-call]
        cell["execution_count"] = result.execution_count
        return result.error_before_exec or result.error_in_exec

    def add(self, kind: str, **fields: Any) -> Node:
        """Add an output to the cell that is being executed."""
        for name, part in fields.get("data", {}).items():
            if isinstance(part, bytes):
                fields["data"][name] = base64.b64encode(part).decode()
        output = {"output_type": kind, **fields}
        self.outputs.append(output)
        return output

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.add("error", ename=etype.__name__, evalue=str(evalue), traceback=stb)


@cache
def _shell() -> _Shell:
    """The one shell of this process."""
    with tempfile.TemporaryDirectory() as nowhere:  # IPython makes folders there, and keeps nothing in them
        config = Config({"HistoryManager": {"enabled": False}})
        shell = _Shell.instance(ipython_dir=nowhere, profile_dir=ProfileDir(), config=config)
    atexit.unregister(shell.atexit_operations)  # it has opened nothing
    shell.enable_matplotlib("inline")  # type: ignore[no-untyped-call]  # as in a kernel
    gc.freeze()  # what is imported stays, and is not searched for garbage
    return shell


@contextlib.contextmanager
def _cells_of_one_notebook(listen: Listen) -> Iterator[_Shell]:
    """The shell without anything of the notebook before, in the project's folder, its output caught.

    Of what the cells change in this process, Matplotlib's settings, filters of warnings and the folder are as before in the end.
    """
    main, out, err = sys.modules["__main__"], sys.stdout, sys.stderr
    shell, root = _shell(), project_root()

    def heard(line: str) -> None:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            listen(line)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(root))
        stack.enter_context(matplotlib.rc_context())
        stack.enter_context(warnings.catch_warnings())
        shell.reset(new_session=True)  # type: ignore[no-untyped-call]
        shell.listen, shell.outputs, shell.displayed = heard, [], {}
        stack.callback(sys.modules.__setitem__, "__main__", main)
        sys.modules["__main__"] = shell.user_module
        sys.path.insert(0, str(root))  # modules beside notebooks/ can be imported
        stack.callback(sys.path.remove, str(root))
        stack.enter_context(contextlib.redirect_stdout(_Stream(shell, "stdout")))
        stack.enter_context(contextlib.redirect_stderr(_Stream(shell, "stderr")))
        yield shell
