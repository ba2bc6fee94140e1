"""Conditions that some tests need; a skipped test names the one that is missing.

Marks of some pieces of ``make test-all`` (``browser``, ``fleet``) imply their condition; these are the others.
"""

import importlib.util
import os
import shutil
import sys
from typing import TypeVar

import pytest

T = TypeVar("T")
SBIN = os.pathsep.join(["/usr/sbin", "/sbin"])


def program(name: str, package: str | None = None) -> pytest.MarkDecorator:
    """Need a program on the PATH, which a Debian package of that name brings."""
    found = shutil.which(name) or shutil.which(name, path=SBIN)
    return pytest.mark.skipif(found is None, reason=f"needs {name}: apt-get install {package or name}")


def module(name: str) -> pytest.MarkDecorator:
    """Need a Python module that is not among the dependencies."""
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"needs the Python module {name}"
    )


ROOT = (
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not sys.platform.startswith("linux"), reason="needs root, on Linux"
    ),
)
"""The piece ``root``, and that this user is root."""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
ordinary_user = pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user, not root")


def root(test: T) -> T:
    """Mark a test that changes the host, which takes root."""
    for mark in ROOT:
        test = mark(test)
    return test


def missing(piece: str) -> str | None:
    """Return what a piece of the tests needs and this machine lacks."""
    if piece == "browser" and not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return "needs Chromium: apt-get install chromium"
    if piece == "fleet" and importlib.util.find_spec("distributed") is None:
        return "needs Dask: pip install 'benchlib[fleet]'"
    return None
