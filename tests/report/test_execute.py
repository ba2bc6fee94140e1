"""Notebooks run by papermill in a kernel of their own: what they leave, whose errors come out, and how Ctrl-C ends them."""

import os
import signal
import threading
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from clusters import eventually

from benchlib.errors import InputError, Interrupted, PreflightError
from benchlib.report import execute as module
from benchlib.report.execute import NotebookError, execute

OVERVIEW = """
factor: str = "x"  # its name
studies: str = ""  # which
size: int = 3  # how much
words: dict = {}  # any
run: bool = False  # nothing runs
"""
FIRST = "from benchlib.notebook import open_summary, progress_line\npages = open_summary()"
TELLS = "tell = progress_line()\ntell('trial 1 of 2 →')\ntell('trial 2 of 2, provisional\\neffects')"
LOOKS = """import psutil
print(size, words, len(pages))
print({each.laddr.ip for each in psutil.Process().net_connections('inet')} <= {'127.0.0.1'})"""


def notebook_with(notebook_of, *sources):
    return notebook_of(*sources, name="x", parameters=OVERVIEW)


def test_a_notebook_runs_with_what_is_given_and_tells_how_far_it_is(notebook_of, data_root):
    path = notebook_with(notebook_of, FIRST, TELLS, LOOKS)
    heard = []
    before = Path.cwd()
    made = execute(path, {"size": 5, "words": {"a": [None, "'\n"]}}, heard.append)
    assert heard == ["trial 1 of 2 →", "trial 2 of 2, provisional effects"]
    assert Path.cwd() == before
    (printed,) = made["cells"][-1]["outputs"]
    assert printed["text"] == "5 {'a': [None, \"'\\n\"]} 0\nTrue\n"
    assert "trial 1 of 2 →" in made["cells"][-2]["outputs"][0]["data"]["text/plain"], "replaced in its place"


@pytest.mark.parametrize(
    ("given", "message"),
    [({"sizes": 5}, "unknown parameter sizes: did you mean size"), ({"size": "much"}, "size")],
)
def test_a_wrong_parameter_is_refused_before_anything_starts(given, message, notebook_of, monkeypatch):
    path = notebook_with(notebook_of, FIRST)
    monkeypatch.setattr(module, "_Papermill", Mock(side_effect=AssertionError))
    with pytest.raises(InputError, match=message):
        execute(path, given)


@pytest.mark.parametrize("text", ["[1]", "{", '{"cells": 3}', '{"cells": []}', "\xff"])
def test_what_is_no_notebook_with_parameters_is_refused(text, tmp_path):
    (tmp_path / "none.ipynb").write_text(text, "latin-1")
    with pytest.raises(InputError, match=r"none\.ipynb"):
        execute(tmp_path / "none.ipynb", {})


def test_an_error_of_ours_is_raised_as_it_is(notebook_of, data_root):
    path = notebook_with(
        notebook_of, "from benchlib.errors import PreflightError\nraise PreflightError('no {room}')"
    )
    with pytest.raises(PreflightError, match=r"^no {room}$") as raised:
        execute(path, {})
    assert raised.value.exit_code == PreflightError.exit_code


def test_an_error_of_the_notebook_s_own_keeps_the_notebook_with_its_traceback(notebook_of, data_root):
    path = notebook_with(notebook_of, "1 / 0", "print('never')")
    with pytest.raises(
        NotebookError, match="the notebook failed: ZeroDivisionError: division by zero"
    ) as raised:
        execute(path, {})
    failed, never = raised.value.notebook["cells"][-2:]
    assert "ZeroDivisionError" in str(failed["outputs"])
    assert never["outputs"] == []


def test_a_listener_that_fails_blocks_no_kernel(notebook_of, data_root):
    many = TELLS + "\nfor number in range(200): tell('x' * 1000)"
    path = notebook_with(notebook_of, FIRST, many, "print('end')")
    made = execute(path, {}, Mock(side_effect=BrokenPipeError))
    assert made["cells"][-1]["outputs"][0]["text"] == "end\n"


def test_a_kernel_whose_start_failed_does_not_stay(notebook_of, data_root, monkeypatch):
    fails = Mock(side_effect=OSError("no socket"))
    monkeypatch.setattr("jupyter_client.manager.KernelManager._connect_control_socket", fails)
    with pytest.raises(NotebookError, match="no socket"):
        execute(notebook_with(notebook_of, FIRST), {})
    assert not [each for each in psutil.Process().children() if "ipykernel_launcher" in each.cmdline()]


SAVES = "from benchlib.errors import Interrupted\nraise Interrupted('3 of 9 trials are saved') from None"
WAITS = "import time, pathlib\ntry:\n    pathlib.Path('begun').touch()\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    "


@pytest.mark.parametrize(
    ("caught", "number", "message"),
    [
        (SAVES.replace("\n", "\n    "), signal.SIGINT, "3 of 9 trials are saved"),
        pytest.param("pass", signal.SIGTERM, "run the same command again", marks=pytest.mark.long),
    ],
)
def test_ctrl_c_stops_the_cell_and_begins_no_other(caught, number, message, notebook_of, data_root, tmp_path):
    path = notebook_with(notebook_of, WAITS + caught, "open('next', 'w')")
    handler = signal.getsignal(number)

    def press():
        eventually((tmp_path / "begun").exists)
        os.kill(os.getpid(), number)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(Interrupted, match=message):
        execute(path, {})
    pressing.join()
    assert signal.getsignal(number) == handler
    assert not (tmp_path / "next").exists()


def test_a_notebook_is_found_by_its_name_or_its_path(notebook_of, tmp_path):
    path = notebook_of(name="mine")
    assert module.find_notebook("mine") == module.find_notebook(str(path)) == path.resolve()
    with pytest.raises(InputError, match=r"no notebook 'nope' \(there is: mine\)"):
        module.find_notebook("nope")
