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
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from nbclient.exceptions import DeadKernelError
from nbclient.util import run_sync
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from benchlib import errors
from benchlib.errors import BenchlibError, InputError, Interrupted, StudyError
from benchlib.plan.parameters import Parameter, checked, declared
from benchlib.report.progress import PROGRESS
from benchlib.study.store import project_root

_ENGINE = "benchlib"
_EMPTIED = "get_ipython().reset(new_session=True)"
_STOPPED = "stopped; run the same again to go on from what is kept"
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


def execute(
    path: Path,
    given: Mapping[str, Any],
    output: Path,
    listen: Listen = lambda line: None,
    lent: AsyncKernelManager | None = None,
) -> None:
    """Execute a notebook with parameters; the executed one is written to ``output`` as it goes.

    ``listen`` gets each line of progress. A Ctrl-C is handed to the notebook, which stops in
    order and keeps what it has. Without a kernel that is ``lent`` it has one of its own.

    Raises:
        BenchlibError: the one that the notebook raised, of the same kind and words.
        Interrupted: Ctrl-C.
        StudyError: the notebook failed with an error that is not ours (the executed notebook
            has its traceback), or its kernel ended.

    """
    parameters = notebook_parameters(path)
    values = checked(parameters, given)
    papermill_engines.register(_ENGINE, _Engine)
    output.parent.mkdir(parents=True, exist_ok=True)
    request = _StopRequest()
    try:
        with quiet(), nullcontext(lent) if lent else kernel() as manager:
            papermill.execute_notebook(
                str(path),
                str(output),
                parameters={name: values[name] for name in given},
                engine_name=_ENGINE,
                kernel_name="python3",
                progress_bar=False,
                # a page's notebook takes seconds, of which writing it after each cell would be one
                request_save_on_cell_execute=lent is None,
                cwd=str(project_root()),
                listen=listen,
                request=request,
                manager=manager,
            )
    except PapermillExecutionError as reason:
        raise _ours(reason, output, stopped=request.made) from None
    except (DeadKernelError, RuntimeError) as reason:  # the latter if it dies while it starts
        if request.made:
            raise Interrupted(_STOPPED) from None
        raise StudyError(
            f"the notebook's kernel ended ({reason}); run the same again to go on from what is kept"
        ) from None


def _ours(reason: PapermillExecutionError, output: Path, *, stopped: bool) -> BenchlibError:
    """The error of ours that a notebook ended with, by its class's name; else a general one."""
    kind = getattr(errors, reason.ename, None)
    if isinstance(kind, type) and issubclass(kind, BenchlibError):
        return kind(reason.evalue)
    if stopped or reason.ename == "KeyboardInterrupt":
        return Interrupted(_STOPPED)
    return StudyError(f"the notebook failed: {reason.ename}: {reason.evalue} (see {output})")


@dataclass
class _StopRequest:
    """A Ctrl-C on its way to the kernel, which hears it only while it executes a cell."""

    made: bool = False
    kernel: int | None = None
    busy: bool = False

    def make(self) -> None:
        """Stop what is being executed, or what is next."""
        print("\nstopping: the current trial is dropped, the servers stop …", file=sys.stderr, flush=True)
        self.made = True
        if self.busy:
            self._deliver()

    def state(self, state: str) -> None:
        """Hear that the kernel is now busy or idle."""
        begins = state == "busy" and not self.busy
        self.busy = state == "busy"
        if begins and self.made:
            self._deliver()

    def _deliver(self) -> None:
        if self.kernel:
            with suppress(ProcessLookupError):
                os.kill(self.kernel, signal.SIGINT)


class _Client(PapermillNotebookClient):  # type: ignore[misc]
    """Hands on progress, and a Ctrl-C."""

    def __init__(self, *args: Any, listen: Listen, request: _StopRequest, **more: Any) -> None:
        super().__init__(*args, **more)
        self._listen = listen
        self._request = request

    def execute_cell(self, cell: Any, cell_index: int, **more: Any) -> Any:
        """As the base class does, unless somebody asked to stop."""
        if self._request.made:
            raise Interrupted(_STOPPED)
        self._request.kernel = getattr(self.km.provisioner, "pid", None)
        return super().execute_cell(cell, cell_index, **more)

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """As the base class does, and the text of a progress display goes to the listener."""
        content = msg.get("content", {})
        if msg.get("msg_type") == "status":
            self._request.state(content["execution_state"])
        if PROGRESS.items() <= content.get("metadata", {}).items():
            self._listen(content["data"].get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)


class _Engine(NBClientEngine):  # type: ignore[misc]
    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, *, listen: Listen, request: _StopRequest, manager: Any, **_: Any
    ) -> Any:
        """Execute in the manager's kernel, emptied if it has been used."""
        client = _Client(nb_man, km=manager, listen=listen, request=request, timeout=None)
        used = manager.has_kernel
        try:
            with _interrupts_handed_on(request), client.setup_kernel():
                if used:
                    client.wait_for_reply(client.kc.execute(_EMPTIED, silent=True))
                return client.execute()
        finally:
            if client.kc:
                client.kc.stop_channels()


@contextmanager
def kernel() -> Iterator[AsyncKernelManager]:
    """A kernel in this very Python, whatever kernels the user has, over Unix sockets instead of ports.

    It starts with the first notebook that it is lent to, and ends here.
    """
    runtime = Path(jupyter_runtime_dir())
    runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True),
        transport="ipc",
        # sockets of its own, beside its connection file: the default is one name for all kernels of a folder
        ip=str(runtime / f"benchlib-{uuid4().hex[:12]}"),
    )
    try:
        yield manager
    finally:
        run_sync(manager.shutdown_kernel)(now=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings of papermill and what is below it to itself; threads leave the process's filter alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _interrupts_handed_on(request: _StopRequest) -> Iterator[None]:
    """Pass Ctrl-C on to the kernel; the notebook then ends by itself, in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: request.make())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
