"""A factor's notebook, executed with papermill in a kernel of its own.

Progress reaches the caller as the notebook's own display messages, so nothing is written
on the side and JupyterLab shows the same line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.util import run_sync
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from benchlib import errors
from benchlib.errors import BenchlibError, InputError, StudyError
from benchlib.notebook import PROGRESS
from benchlib.parameters import Parameter, checked, declared
from benchlib.store import project_root

_ENGINE = "benchlib"
Listen = Callable[[str], None]


def find_notebook(name: str) -> Path:
    """The notebook of that name in ``notebooks/``, or at that path.

    Raises:
        InputError: there is none; the message lists those that exist.

    """
    folder = project_root() / "notebooks"
    path = Path(name) if name.endswith(".ipynb") else folder / f"{name}.ipynb"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.ipynb"))) or "none"
        raise InputError(
            f"no notebook '{name}' (there is: {known}); give a name or the path of an .ipynb file"
        )
    return path


def notebook_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares.

    Raises:
        InputError: it is no notebook, or has no cell tagged ``parameters``.

    """
    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, nbformat.reader.NotJSONError) as reason:
        raise InputError(f"{path.name} is not a notebook: {str(reason).splitlines()[0]}") from None
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            return declared(cell.source)
    raise InputError(f"{path.name} has no cell tagged 'parameters'")


def execute(path: Path, given: Mapping[str, Any], output: Path, listen: Listen = lambda line: None) -> None:
    """Execute a notebook with parameters; the executed one is written to ``output`` as it goes.

    ``listen`` gets each line of progress. A Ctrl-C is handed to the notebook, which stops in
    order and keeps what it has.

    Raises:
        BenchlibError: the one that the notebook raised, of the same kind and words.
        StudyError: the notebook failed with an error that is not ours; the executed notebook
            has its traceback.

    """
    parameters = notebook_parameters(path)
    values = checked(parameters, given)
    papermill_engines.register(_ENGINE, _Engine)
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            papermill.execute_notebook(
                str(path),
                str(output),
                parameters={name: values[name] for name in given},
                engine_name=_ENGINE,
                kernel_name="python3",
                progress_bar=False,
                cwd=str(project_root()),
                listen=listen,
            )
    except PapermillExecutionError as reason:
        raise _ours(reason, output) from None


def _ours(reason: PapermillExecutionError, output: Path) -> BenchlibError:
    """The error of ours that a notebook ended with, by its class's name; else a general one."""
    kind = getattr(errors, reason.ename, None)
    if isinstance(kind, type) and issubclass(kind, BenchlibError):
        return kind(reason.evalue)
    if reason.ename == "KeyboardInterrupt":
        return errors.Interrupted("stopped; run the same again to go on from what is kept")
    return StudyError(f"the notebook failed: {reason.ename}: {reason.evalue} (see {output})")


class _Client(PapermillNotebookClient):  # type: ignore[misc]
    """Hands on progress, and a Ctrl-C."""

    def __init__(self, *args: Any, listen: Listen, **more: Any) -> None:
        super().__init__(*args, **more)
        self._listen = listen

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """As the base class does, and the text of a progress display goes to the listener."""
        content = msg.get("content", {})
        if PROGRESS.items() <= content.get("metadata", {}).items():
            self._listen(content["data"].get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)


class _Engine(NBClientEngine):  # type: ignore[misc]
    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, *, listen: Listen, **_: Any) -> Any:
        """Execute in this very Python, whatever kernels the user has, over Unix sockets instead of ports."""
        manager = AsyncKernelManager(
            kernel_name=kernel_name,
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True),
            transport="ipc",
        )
        client = _Client(nb_man, km=manager, listen=listen, timeout=None)
        try:
            with _interrupts_handed_on(manager):
                return client.execute()
        finally:
            run_sync(manager.shutdown_kernel)(now=True)


@contextmanager
def _interrupts_handed_on(manager: AsyncKernelManager) -> Iterator[None]:
    """Pass Ctrl-C on to the kernel; the notebook then ends by itself, in order."""

    def hand_on(*_: object) -> None:
        print("\nstopping: the current trial is dropped, the servers stop …", file=sys.stderr, flush=True)
        pid = getattr(manager.provisioner, "pid", None)
        if pid:
            os.kill(pid, signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, hand_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
