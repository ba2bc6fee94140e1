"""One ordinary study, shared by the tests of figures."""

import pytest
from plot_cases import make_trials

import benchlib


@pytest.fixture(scope="session")
def trials():
    return make_trials({"defaults": 0, "control": 0, "tuned": 118, "tuned, synchronous_commit on": 38})


@pytest.fixture(scope="session")
def analysis(trials):
    return benchlib.analyze(trials, baseline="defaults", controls=("control",))
