"""Conditions that some tests need; a skipped test names the one that is missing.

Marks of some pieces of ``make test-all`` (``browser``, ``fleet``) imply their condition; these are the others.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from typing import TypeVar

import pytest

from benchlib.levers.lever import refusal

T = TypeVar("T")
LINUX = sys.platform.startswith("linux")
linux = pytest.mark.skipif(not LINUX, reason="needs Linux")
ROOT = (pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0 or not LINUX, reason="needs root, on Linux"))
"""The piece ``root``, and that this user is root."""


def root(test: T) -> T:
    """Mark a test that changes the host, which takes root."""
    for mark in ROOT:
        test = mark(test)
    return test


def possible(attempt: Callable[..., object], *args: object) -> None:
    """Skip the test where this machine refuses an attempt, with the reason."""
    if reason := refusal(attempt, *args):
        pytest.skip(reason)


def missing(piece: str) -> str | None:
    """Return what a piece of the tests needs and this machine lacks."""
    if piece == "browser" and not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return "needs Chromium: apt-get install chromium"
    if piece == "fleet" and importlib.util.find_spec("distributed") is None:
        return "needs Dask: pip install 'benchlib[fleet]'"
    return None
