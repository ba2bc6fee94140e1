"""Running a notebook: papermill executes it in a kernel of its own; here are the parameters, the progress and the way to stop it."""

import contextlib
import json
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchlib import errors
from benchlib.errors import InputError, Interrupted, StudyError
from benchlib.host import files
from benchlib.host.shell import allow_open_files
from benchlib.plan.parameters import Parameter, checked, declared
from benchlib.report.notebooks import Node, read_notebook
from benchlib.study.store import notebooks, project_root

PROGRESS_VARIABLE = "BENCHLIB_PROGRESS"
"""Names the pipe to which a kernel writes a line for each step."""
_STOPPED = "stopped; run the same command again to continue from the saved trials"
Listen = Callable[[str], None]


def find_notebook(name: str) -> Path:
    """Return the notebook of that name in ``notebooks/``, or at that path.

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
    """Return the parameters that a notebook declares.

    Raises:
        InputError: it is no notebook, or has no cell tagged ``parameters``.

    """
    try:  # as plain JSON: nbformat takes two seconds to import, and a wrong parameter is reported at once
        for cell in json.loads(files.read_plain(path))["cells"]:
            if "parameters" in cell["metadata"].get("tags", ()):
                return declared("".join(cell["source"]))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as reason:
        raise InputError(f"{path.name} is not a notebook: {reason}") from None
    raise InputError(f"{path.name} has no cell tagged 'parameters'")


def execute(path: Path, given: Mapping[str, Any], listen: Listen = lambda line: None) -> Node:
    """Execute a notebook with papermill; return the executed notebook. Ctrl-C and SIGTERM stop its kernel in order.

    Raises:
        InputError: a parameter is unknown, or of the wrong type; nothing was started.
        BenchlibError: the one that the notebook raised.
        Interrupted: Ctrl-C, or SIGTERM.
        NotebookError: the notebook failed with an error of its own.

    """
    values = checked(notebook_parameters(path), given)
    allow_open_files()
    os.environ.setdefault(
        "JUPYTER_PREFER_ENV_PATH", "1"
    )  # the kernel of this environment, not one of the account
    with tempfile.TemporaryDirectory() as folder:
        pipe, output = Path(folder) / "progress", Path(folder) / path.name
        os.mkfifo(pipe)
        job = _Papermill(path, {name: values[name] for name in given}, output, pipe)
        with _stopping(job, aloud=bool(values.get("run"))), job.hearing(listen):
            job.start()
            while job.is_alive():
                job.join(0.2)
        reason = job.reason and _as_ours(job.reason, read_notebook(output) if output.is_file() else None)
        if job.stopped:  # the library says what is saved, where it had begun
            raise reason if isinstance(reason, Interrupted) else Interrupted(_STOPPED)
        if reason:
            raise reason
        return read_notebook(output)


class NotebookError(StudyError):
    """A notebook failed with an error that is not the library's; ``notebook`` has the traceback in its outputs."""

    def __init__(self, message: str, notebook: Node | None) -> None:
        super().__init__(message)
        self.notebook = notebook


class _Papermill(threading.Thread):
    """papermill in a thread: signals reach the main thread, which interrupts the kernel instead of killing it."""

    def __init__(self, path: Path, given: Mapping[str, Any], output: Path, pipe: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.given, self.output, self.pipe = path, given, output, pipe
        self.reason: Exception | None = None
        self.stopped = False
        self.manager: Any = None

    def run(self) -> None:
        import papermill
        from jupyter_client.manager import AsyncKernelManager
        from jupyter_core.utils import ensure_event_loop

        job = self

        own = {PROGRESS_VARIABLE: str(self.pipe), "PYTHONSAFEPATH": "1"}
        sockets = str(self.pipe.with_name("kernel"))  # in a private folder, of this kernel alone

        class Manager(AsyncKernelManager):
            """A kernel that is reached by sockets in a folder, not by ports, and imports nothing of the working folder first."""

            transport = "ipc"

            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                job.manager = self

            def _ip_default(self) -> str:
                return sockets

            async def start_kernel(self, **how: Any) -> None:  # type: ignore[override]
                await super().start_kernel(**{**how, "env": {**(how.get("env") or os.environ), **own}})

        try:
            papermill.execute_notebook(
                *(re.sub("([{}])", r"\1\1", str(path)) for path in (self.path, self.output)), dict(self.given), kernel_name="python3", cwd=str(project_root()),
                progress_bar=False, request_save_on_cell_execute=False,
                kernel_manager_class=Manager, extra_arguments=_arguments(), start_timeout=120,
                on_cell_start=self._go_on,
            )  # fmt: skip
        except Exception as reason:
            self.reason = reason
        finally:
            ensure_event_loop().close()  # that of this thread

    def _go_on(self, **_: object) -> None:
        """Begin no cell any more once it is to stop: between two cells a kernel hears no signal."""
        if self.stopped:
            raise Interrupted(_STOPPED)

    def stop(self) -> None:
        """Interrupt the cell that runs, and begin no other."""
        self.stopped = True
        if process := getattr(getattr(self.manager, "provisioner", None), "pid", None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)

    @contextlib.contextmanager
    def hearing(self, listen: Listen) -> Iterator[None]:
        """Hand on each line that the kernel writes."""
        # open for reading and writing: it never waits, and never ends before the notebook does
        with open(self.pipe, "r+b", buffering=0) as file:  # noqa: PTH123 - unbuffered
            reader = threading.Thread(target=self._read, args=(file, listen), daemon=True)
            reader.start()
            try:
                yield
            finally:
                file.write(b"\0\n")
                reader.join()

    def _read(self, file: Any, listen: Listen) -> None:
        rest = b""
        while True:
            *lines, rest = (rest + file.read(65536)).split(b"\n")
            for line in lines:
                if line == b"\0":
                    return
                listen(line.decode(errors="replace"))


def _arguments() -> list[str]:
    """Return the arguments of a kernel: modules beside ``notebooks/`` come after all others, so that they stand in for none."""
    root, words = project_root(), ["--log-level=50", "--InteractiveShellApp.ignore_cwd=True"]
    words.append("--HistoryManager.hist_file=:memory:")  # kernels at the same time would wait for one file
    if files.trusted(root):
        # the library first: one that is installed to be edited is found after all paths
        line = f"__import__('benchlib'); __import__('sys').path.append({str(root)!r})"
        words.append(f"--InteractiveShellApp.exec_lines={line}")
    return words


@contextlib.contextmanager
def _stopping(job: _Papermill, *, aloud: bool) -> Iterator[None]:
    """Interrupt the kernel at Ctrl-C or SIGTERM; the library in it then stops the servers and keeps what is saved."""

    def stop(*_: object) -> None:
        if aloud and not job.stopped:
            os.write(2, "\nstopping: the current trial is dropped, the servers stop …\n".encode())
        job.stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_ours(reason: Exception, notebook: Node | None) -> Exception:
    """Return the library's own error for what papermill raised."""
    name, message = getattr(reason, "ename", type(reason).__name__), str(getattr(reason, "evalue", reason))
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.BenchlibError):
        return kind(message)
    if name == "KeyboardInterrupt":
        return Interrupted(_STOPPED)
    return NotebookError(f"the notebook failed: {name}: {message}", notebook)
