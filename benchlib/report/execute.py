"""A factor's notebook, executed in a kernel of its own with the parameters that papermill writes into it.

Progress reaches the caller as the notebook's own display messages, so nothing is written
on the side and JupyterLab shows the same line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from nbclient.client import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbclient.util import run_sync
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from benchlib import errors
from benchlib.errors import BenchlibError, InputError, Interrupted, StudyError
from benchlib.host.shell import allow_open_files
from benchlib.plan.parameters import Parameter, checked, declared
from benchlib.report.progress import PROGRESS
from benchlib.study.store import notebooks, project_root

_EMPTIED = "get_ipython().reset(new_session=True)"
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
        raise InputError(
            f"no notebook '{name}' (there is: {', '.join(known) or 'none'}); give a name or the path of an .ipynb file"
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


def execute(
    path: Path,
    given: Mapping[str, Any],
    output: Path,
    manager: AsyncKernelManager,
    listen: Listen = lambda line: None,
    *,
    shared_alone: bool = False,
) -> None:
    """Execute a notebook with parameters in the manager's kernel; the executed one is written to ``output``.

    ``shared_alone`` leaves out the cells that are not in all notebooks.

    ``listen`` gets each line of progress. In the main thread a Ctrl-C is handed to the notebook, which
    stops in order and keeps what it has.

    Raises:
        BenchlibError: the one that the notebook raised, of the same class and with its message; ``output`` stays as it was.
        Interrupted: Ctrl-C.
        StudyError: the notebook failed with an error that is not ours (the executed notebook
            has its traceback), or its kernel ended.

    """
    allow_open_files()
    values = checked(notebook_parameters(path), given)
    notebook = parameterize_notebook(
        load_notebook_node(str(path)),
        {name: values[name] for name in given},
        kernel_name="python3",
        language="python",
    )
    if shared_alone:
        common = {"parameters", "injected-parameters", "shared"}
        notebook.cells = [cell for cell in notebook.cells if common & {*cell.metadata.get("tags", [])}]
    folder = {"metadata": {"path": str(project_root())}}
    client = _Client(notebook, km=manager, listen=listen, resources=folder, record_timing=False)
    try:
        with _interrupts_handed_on(client):
            client.execute_cells()
    except CellExecutionError as reason:
        kind = getattr(errors, reason.ename, None)
        if isinstance(kind, type) and issubclass(kind, BenchlibError):
            raise kind(reason.evalue) from None
        if client.stopping or reason.ename == "KeyboardInterrupt":
            raise Interrupted(_STOPPED) from None
        _write(notebook, output)
        raise StudyError(f"the notebook failed: {reason.ename}: {reason.evalue} (see {output})") from None
    except (DeadKernelError, RuntimeError) as reason:  # the latter if it dies while it starts
        if client.stopping:
            raise Interrupted(_STOPPED) from None
        raise StudyError(
            f"the notebook's kernel ended ({reason}); run the same again to go on from what is kept"
        ) from None
    _write(notebook, output)


def _write(notebook: nbformat.NotebookNode, output: Path) -> None:
    """Write an executed notebook without papermill's marks and dice: the same input gives the same file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell["id"] = "injected-parameters"
    nbformat.write(notebook, output)  # type: ignore[no-untyped-call]


class _Client(NotebookClient):
    """Executes a notebook's cells, hands on its progress, and stops it on request.

    A kernel hears an interrupt only while it executes something, so one that comes earlier waits.
    """

    km: Any
    kc: Any

    def __init__(self, *args: Any, listen: Listen, **more: Any) -> None:
        super().__init__(*args, **more)
        self._listen = listen
        self._busy = False
        self.stopping = False

    def execute_cells(self) -> None:
        """Execute all cells in the manager's kernel, emptied if it has been used.

        Raises:
            CellExecutionError: a cell failed.
            Interrupted: a stop was asked for between two cells.

        """
        used = self.km.has_kernel
        try:
            with self.setup_kernel():
                if used:
                    self.wait_for_reply(self.kc.execute(_EMPTIED, silent=True))
                for index, cell in enumerate(self.nb.cells):
                    if self.stopping:
                        raise Interrupted(_STOPPED)
                    self.execute_cell(cell, index)
        finally:
            if self.kc:
                self.kc.stop_channels()

    def stop(self) -> None:
        """Stop what is being executed, or what is next."""
        print("\nstopping: the current trial is dropped, the servers stop …", file=sys.stderr, flush=True)
        self.stopping = True
        if self._busy:
            self._interrupt()

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """As the base class does, and the text of a progress display goes to the listener."""
        content = msg["content"]
        if msg["msg_type"] == "status":
            begins = content["execution_state"] == "busy" and not self._busy
            self._busy = content["execution_state"] == "busy"
            if begins and self.stopping:
                self._interrupt()
        if PROGRESS.items() <= content.get("metadata", {}).items():
            self._listen(content["data"].get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)

    def _interrupt(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.km.provisioner.pid, signal.SIGINT)


class _OwnKernel(KernelSpecManager):
    """Knows one kernel, of this very Python, whatever kernels the user has."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """``kernel.py`` beside this file."""
        script = Path(__file__).with_name("kernel.py")
        argv = [
            sys.executable,
            "-P",
            str(script),
            "-f",
            "{connection_file}",
        ]  # -P: its folder holds no modules
        return KernelSpec(argv=argv, language="python")


@contextmanager
def kernel() -> Iterator[AsyncKernelManager]:
    """A kernel of our own over Unix sockets: no port is opened.

    It starts with the first notebook that it is lent to, and ends here.
    """
    runtime = Path(jupyter_runtime_dir())
    runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=_OwnKernel(),
        transport="ipc",
        # sockets of its own, beside its connection file: the default is one name for all kernels of a folder
        ip=str(runtime / f"benchlib-{uuid4().hex[:12]}"),
    )
    try:
        yield manager
    finally:
        run_sync(manager.shutdown_kernel)(now=True)


@contextmanager
def _interrupts_handed_on(client: _Client) -> Iterator[None]:
    """Pass Ctrl-C on to the kernel; the notebook then ends by itself, in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: client.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
