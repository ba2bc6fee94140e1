"""Running a notebook by papermill."""

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib import errors
from benchlib.errors import InputError, Interrupted, StudyError
from benchlib.host import files
from benchlib.host.shell import allow_open_files
from benchlib.plan.parameters import Parameter, checked, declared
from benchlib.report.model import Node
from benchlib.report.site import write_file
from benchlib.study.store import notebooks, project_root

PROGRESS_VARIABLE = "BENCHLIB_PROGRESS"
"""The variable with the name of the pipe to which a kernel writes its progress."""
_STOPPED = "stopped; run the same command again to continue from the saved trials"
_END = "\0"
Listen = Callable[[str], None]


def find_notebook(name: str) -> Path:
    """Return the notebook of that name, or at that path.

    Raises:
        InputError: there is none.
    """
    known = notebooks()
    path = Path(name) if name.endswith(".ipynb") else known.get(name)
    if path is None or not path.is_file():
        names = ", ".join(known)
        there = f"there is: {names}" if known else "'benchlib init FOLDER' makes a folder that has them"
        raise InputError(f"no notebook '{name}' ({there}); give a name or the path of an .ipynb file")
    return path


def notebook_parameters(path: Path) -> dict[str, Parameter]:
    """Return the parameters that a notebook declares.

    Raises:
        InputError: the file is no notebook, or has no cell tagged ``parameters``.
    """
    try:  # as plain JSON: nbformat takes two seconds to import, and a wrong parameter is reported at once
        for cell in json.loads(files.read_plain(path))["cells"]:
            if "parameters" in cell["metadata"].get("tags", ()):
                return declared("".join(cell["source"]))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as reason:
        raise InputError(f"{path.name} is not a notebook: {reason}") from None
    raise InputError(f"{path.name} has no cell tagged 'parameters'")


def execute(path: Path, given: Mapping[str, Any], failed: Path, listen: Listen = lambda line: None) -> Node:
    """Return the executed notebook. Ctrl-C and SIGTERM interrupt its kernel.

    Raises:
        InputError: a parameter is wrong; nothing was started.
        BenchlibError: an error of the library in the notebook.
        Interrupted: Ctrl-C, or SIGTERM.
        StudyError: another error; the notebook with its traceback is saved as ``failed``.
    """
    values = checked(notebook_parameters(path), given)
    allow_open_files()
    # the kernel of this environment, not one of the account
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    # a socket's path has at most 107 bytes, with the folder's name and the socket's own
    too_long = len(os.fsencode(tempfile.gettempdir())) > 80
    with tempfile.TemporaryDirectory(dir="/tmp" if too_long else None) as folder:
        pipe, output = Path(folder) / "progress", Path(folder) / path.name
        os.mkfifo(pipe)
        job, shown = _Papermill(), bool(values.get("run"))
        with _stopping(job, shown=shown), _progress(pipe, listen), ThreadPoolExecutor(1) as pool:
            _import_papermill()
            running = pool.submit(job.execute, path, {name: values[name] for name in given}, output, pipe)
            # what a page needs takes seconds to import, and the kernel is a process of its own
            import benchlib.report.page
            import benchlib.study.frames  # noqa: F401

            while not running.done():
                wait([running], 0.2)
        reason = running.exception()
        if not job.stopped and reason is None:
            return running.result()
        name = getattr(reason, "ename", type(reason).__name__)
        message = str(getattr(reason, "evalue", reason))
        kind = getattr(errors, name, None)
        if job.stopped or name == "KeyboardInterrupt":  # the library's message names the saved trials
            raise Interrupted(message if kind is Interrupted else _STOPPED)
        if isinstance(kind, type) and issubclass(kind, errors.BenchlibError):
            raise kind(message)
        if output.is_file():
            write_file(failed, output.read_text("utf-8"))
        raise StudyError(f"the notebook failed: {name}: {message} (see {failed})")


def _import_papermill() -> None:
    """Import papermill without the grammar of international addresses, which takes seconds to compile."""
    grammar = "rfc3987_syntax"  # an optional part of jsonschema, for a format that notebooks do not have
    unused = sys.modules.setdefault(grammar, None) is None  # type: ignore[arg-type]
    import papermill  # noqa: F401

    if unused:
        del sys.modules[grammar]


@dataclass
class _Papermill:
    """papermill for a thread: the main thread gets the signals and interrupts the kernel."""

    stopped: bool = False
    manager: Any = None

    def execute(self, path: Path, given: Mapping[str, Any], output: Path, pipe: Path) -> Node:
        import papermill
        from jupyter_client.manager import AsyncKernelManager
        from jupyter_core.utils import ensure_event_loop

        job = self
        variables = {PROGRESS_VARIABLE: str(pipe), "PYTHONSAFEPATH": "1"}
        sockets = str(pipe.with_name("kernel"))

        class Manager(AsyncKernelManager):
            transport = "ipc"  # sockets in a private folder, no ports

            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                job.manager = self

            def _ip_default(self) -> str:
                return sockets

            async def start_kernel(self, **how: Any) -> None:  # type: ignore[override]
                await super().start_kernel(**{**how, "env": {**(how.get("env") or os.environ), **variables}})

        try:
            return papermill.execute_notebook(
                *(re.sub("([{}])", r"\1\1", str(file)) for file in (path, output)), given, kernel_name="python3", cwd=str(project_root()),
                progress_bar=False, request_save_on_cell_execute=False,
                kernel_manager_class=Manager, extra_arguments=_arguments(), start_timeout=120,
                on_cell_start=self._go_on,
            )  # fmt: skip
        finally:
            # nbclient leaves a kernel whose start failed; of one that has ended there is no process here
            if process := getattr(getattr(self.manager, "provisioner", None), "process", None):
                process.kill()
                process.wait()
            ensure_event_loop().close()  # that of this thread

    def _go_on(self, **_: object) -> None:
        """Stop before the next cell: between two cells a kernel ignores signals."""
        if self.stopped:
            raise Interrupted(_STOPPED)

    def stop(self) -> None:
        """Interrupt the running cell; start no other."""
        self.stopped = True
        if process := getattr(getattr(self.manager, "provisioner", None), "pid", None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)


@contextlib.contextmanager
def _progress(pipe: Path, listen: Listen) -> Iterator[None]:
    """Pass the lines of a pipe on."""
    # for reading and writing: opening never waits, and reading does not end before the notebook
    descriptor = os.open(pipe, os.O_RDWR)
    with os.fdopen(descriptor, newline="\n", encoding="utf-8", errors="replace") as file:

        def read() -> None:
            for line in iter(file.readline, f"{_END}\n"):
                with contextlib.suppress(Exception):  # unread, the full pipe would block the kernel
                    listen(line[:-1])

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield
        finally:
            os.write(descriptor, f"{_END}\n".encode())
            reader.join()


def _arguments() -> list[str]:
    """Return a kernel's arguments; modules beside ``notebooks/`` replace no other."""
    root, words = project_root(), ["--log-level=50", "--InteractiveShellApp.ignore_cwd=True"]
    words.append("--HistoryManager.hist_file=:memory:")  # one file would block parallel kernels
    if files.trusted(root):
        # import the library first: an editable installation comes after all paths
        line = f"__import__('benchlib'); __import__('sys').path.append({str(root)!r})"
        words.append(f"--InteractiveShellApp.exec_lines={line}")
    return words


@contextlib.contextmanager
def _stopping(job: _Papermill, *, shown: bool) -> Iterator[None]:
    """Stop the notebook at Ctrl-C or SIGTERM."""

    def stop(*_: object) -> None:
        if shown and not job.stopped:
            os.write(2, "\nstopping: the current trial is dropped, the servers stop …\n".encode())
        job.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
