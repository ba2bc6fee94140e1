import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.plan.design import Trial, randomised_blocks, screening

NAMES = st.lists(st.text(min_size=1, max_size=8).filter(str.strip), min_size=2, max_size=7, unique=True)


@given(NAMES, st.integers(1, 12), st.integers())
def test_blocks_are_complete_balanced_and_the_start_of_a_longer_design(levels, blocks, seed):
    trials = randomised_blocks(levels, blocks, seed)
    assert randomised_blocks(levels, blocks + 3, seed)[: len(trials)] == trials
    places = [(block, place) for block in range(1, blocks + 1) for place in range(1, len(levels) + 1)]
    assert [(trial.block, trial.position) for trial in trials] == places
    assert len({(trial.block, trial.level) for trial in trials}) == len(trials)
    visits = Counter((trial.level, trial.position) for trial in trials)
    counts = [visits[level, position] for level in levels for position in range(1, len(levels) + 1)]
    assert max(counts) - min(counts) <= 1
    # seeds fit pgbench and ids name files
    assert all(1 <= trial.seed < 2**31 for trial in trials)
    assert len({trial.seed for trial in trials}) == len({trial.id.lower() for trial in trials}) == len(trials)
    assert all(re.fullmatch(r"[\x20-\x7e]{1,63}", trial.id) for trial in trials)
    assert not {*"".join(trial.id for trial in trials)} & set('/\\ :*?"<>|')


def test_orders_are_random_and_neighbours_balanced():
    orders = Counter(
        "".join(trial.level for trial in randomised_blocks("abc", 1, seed)) for seed in range(600)
    )
    assert len(orders) == 6
    assert min(orders.values()) > 60
    pairs = pairwise(randomised_blocks("abcd", 4, 3))
    followers = Counter((one.level, other.level) for one, other in pairs if one.block == other.block)
    assert (len(followers), set(followers.values())) == (12, {1})


def test_id_reads_well():
    assert Trial(3, 1, "shared buffers = 8 GB", 1).id == "b03-p1-shared-buffers-8-GB"
    assert Trial(1, 2, "…", 1).id == "b01-p2-level"


@pytest.mark.parametrize("count", range(6, 12))
def test_a_screening_is_orthogonal_and_folded(count):
    runs = screening({f"f{number}": ("low", "high") for number in range(count)})
    assert len(set(runs)) == 24
    assert runs == sorted(runs, reverse=True)  # as itertools.product gives them, low first
    assert runs[0] == ("low",) * count
    signs = np.array([[1 if end == "high" else -1 for end in run] for run in runs])
    assert (signs.T @ signs == 24 * np.eye(count)).all()
    # folding over frees the effects of single dimensions from those of pairs
    assert (signs.T @ (signs[:, 0] * signs[:, 1]) == 0).all()


@pytest.mark.parametrize("shape", [(), (2,) * 5, (2,) * 12, (2, 2, 2, 2, 2, 3)])
def test_what_cannot_be_screened_is_refused(shape):
    grid = {f"f{number}": tuple(map(str, range(values))) for number, values in enumerate(shape)}
    with pytest.raises(InputError, match="6 to 11 dimensions of two values"):
        screening(grid)
