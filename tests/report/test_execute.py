"""Notebooks run by papermill in a kernel of their own: what they leave, whose errors come out, and how Ctrl-C ends them."""

import json
import os
import signal
import threading
from pathlib import Path
from types import MappingProxyType
from unittest.mock import Mock

import psutil
import pytest
from clusters import eventually

from benchlib.errors import InputError, Interrupted, PreflightError, StudyError
from benchlib.report import execute as module

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


@pytest.fixture
def execute(notebook_of, data_root, tmp_path):
    """Executes a notebook of these cells."""

    def run(*sources, given=MappingProxyType({}), listen=print):
        path = notebook_of(*sources, name="x", parameters=OVERVIEW)
        return module.execute(path, given, tmp_path / "failed.ipynb", listen)

    return run


def test_a_notebook_runs_with_what_is_given_and_tells_how_far_it_is(execute):
    heard = []
    before = Path.cwd()
    made = execute(FIRST, TELLS, LOOKS, given={"size": 5, "words": {"a": [None, "'\n"]}}, listen=heard.append)
    assert heard == ["trial 1 of 2 →", "trial 2 of 2, provisional effects"]
    assert Path.cwd() == before
    (printed,) = made["cells"][-1]["outputs"]
    assert printed["text"] == "5 {'a': [None, \"'\\n\"]} 0\nTrue\n"
    assert "trial 1 of 2 →" in made["cells"][-2]["outputs"][0]["data"]["text/plain"], "replaced in its place"


@pytest.mark.parametrize(
    ("given", "message"),
    [({"sizes": 5}, "unknown parameter sizes: did you mean size"), ({"size": "much"}, "size")],
)
def test_a_wrong_parameter_is_refused_before_anything_starts(given, message, execute, monkeypatch):
    monkeypatch.setattr(module, "_Papermill", Mock(side_effect=AssertionError))
    with pytest.raises(InputError, match=message):
        execute(FIRST, given=given)


@pytest.mark.parametrize("text", ["[1]", "{", '{"cells": 3}', '{"cells": []}', "\xff"])
def test_what_is_no_notebook_with_parameters_is_refused(text, tmp_path):
    (tmp_path / "none.ipynb").write_text(text, "latin-1")
    with pytest.raises(InputError, match=r"none\.ipynb"):
        module.notebook_parameters(tmp_path / "none.ipynb")


def test_an_error_of_ours_is_raised_as_it_is(execute):
    with pytest.raises(PreflightError, match=r"^no {room}$"):
        execute("from benchlib.errors import PreflightError\nraise PreflightError('no {room}')")


def test_an_error_of_the_notebook_s_own_keeps_the_notebook_with_its_traceback(execute, tmp_path):
    with pytest.raises(StudyError, match=r"the notebook failed: ZeroDivisionError: division by zero \(see "):
        execute("1 / 0", "print('never')")
    failed, never = json.loads((tmp_path / "failed.ipynb").read_text())["cells"][-2:]
    assert "ZeroDivisionError" in str(failed["outputs"])
    assert never["outputs"] == []


@pytest.mark.long
def test_a_listener_that_fails_blocks_no_kernel(execute):
    many = TELLS + "\nfor number in range(200): tell('x' * 1000)"
    made = execute(FIRST, many, "print('end')", listen=Mock(side_effect=BrokenPipeError))
    assert made["cells"][-1]["outputs"][0]["text"] == "end\n"


def test_a_kernel_whose_start_failed_does_not_stay(execute, monkeypatch):
    fails = Mock(side_effect=OSError("no socket"))
    monkeypatch.setattr("jupyter_client.manager.KernelManager._connect_control_socket", fails)
    with pytest.raises(StudyError, match="no socket"):
        execute(FIRST)
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
def test_ctrl_c_stops_the_cell_and_begins_no_other(caught, number, message, execute, tmp_path):
    handler = signal.getsignal(number)

    def press():
        eventually((tmp_path / "begun").exists)
        os.kill(os.getpid(), number)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(Interrupted, match=message):
        execute(WAITS + caught, "open('next', 'w')")
    pressing.join()
    assert signal.getsignal(number) == handler
    assert not (tmp_path / "next").exists()


def test_a_notebook_is_found_by_its_name_or_its_path(notebook_of, tmp_path):
    path = notebook_of(name="mine")
    assert module.find_notebook("mine") == module.find_notebook(str(path)) == path.resolve()
    with pytest.raises(InputError, match=r"no notebook 'nope' \(there is: mine\)"):
        module.find_notebook("nope")
