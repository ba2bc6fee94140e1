"""Work on what strangers made is done apart: what hangs, swallows memory or ends its process costs itself alone."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchlib.errors import InputError
from benchlib.host.apart import apart

NAMES = ["good", "raises", "refuses", "swallows", "hangs", "dies", "its child swallows", "good too"]


def work(name):
    if name == "raises":
        raise LookupError("no such thing")
    if name == "refuses":
        raise InputError("it is damaged")
    if name == "swallows":
        return str(len(bytes(2 << 30)))
    if name == "hangs":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # of the one that hangs"])
        time.sleep(600)
    if name == "sleeps":
        time.sleep(600)
    if name == "dies":
        os._exit(7)
    if name == "its child swallows":
        done = subprocess.run([sys.executable, "-c", "bytes(2 << 30)"], capture_output=True, text=True)
        return done.stderr.splitlines()[-1]
    return name


def test_each_gets_what_came_of_it_in_order_and_what_breaks_costs_itself_alone():
    told = [(name, str(came)) for name, came in apart(work, NAMES, most_s=4, most_memory=1 << 30)]
    assert told == [
        ("good", "good"),
        ("raises", "raises: unexpected LookupError: no such thing"),
        ("refuses", "it is damaged"),
        ("swallows", "swallows: unexpected MemoryError: "),
        ("hangs", "hangs: takes longer than 4 s"),
        ("dies", "dies: its process ended with status 7"),
        ("its child swallows", "MemoryError"),
        ("good too", "good too"),
    ]
    left = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "of the one that hangs" in line]


def test_workers_end_when_nobody_waits_for_them_any_more():
    came = apart(work, ["good", "hangs"])
    assert next(came) == ("good", "good")
    came.close()
    assert not psutil.Process().children()


def test_workers_end_with_who_started_them():
    source = (
        "from test_apart import *\nfor name, came in apart(work, ['good', 'sleeps']): print(came, flush=True)"
    )
    here = Path(__file__).parent
    started = subprocess.Popen([sys.executable, "-c", source], cwd=here, stdout=subprocess.PIPE, text=True)
    with started:
        assert started.stdout is not None
        assert started.stdout.readline() == "good\n"
        workers = psutil.Process(started.pid).children()
        started.kill()
    assert workers
    assert not psutil.wait_procs(workers, timeout=20)[1]
