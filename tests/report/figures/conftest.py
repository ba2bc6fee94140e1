"""One ordinary study, shared by the tests of figures."""

import pytest
from cases import judged, make_trials


@pytest.fixture(scope="session")
def trials():
    return make_trials({"defaults": 0, "control": 0, "tuned": 118, "tuned, synchronous_commit on": 38})


@pytest.fixture(scope="session")
def analysis(trials):
    return judged(trials, controls=("control",))
