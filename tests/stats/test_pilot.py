import numpy as np
import pytest

from benchlib.errors import InputError
from benchlib.stats.pilot import size_study
from benchlib.stats.sequential import judge


def pilot(trials, seconds, *, between=0.025, inside=0.08, seed=1):
    rng = np.random.default_rng(seed)
    return [
        1000 * np.exp(rng.normal(0, between)) * (1 + rng.normal(0, inside, seconds)) for _ in range(trials)
    ]


def test_length_blocks_and_minutes():
    size = size_study(pilot(40, 60), levels=4, controls=1, overhead_s=30)
    # T* = sqrt(C LRV) / sigma_b, the latter an upper bound
    assert 0.6 <= size.trial_s / (np.sqrt(30) * 0.08 / 0.025) <= 1.3
    assert size.trial_sd == pytest.approx(np.hypot(0.025, 0.08 / np.sqrt(size.trial_s)), rel=0.4)
    least, most = size.blocks
    assert 15 <= least < most <= 45
    assert size.minutes[1] == pytest.approx(most * 4 * (size.trial_s + 30) / 60)
    assert f"{least} to {most} blocks settle ±3 %" in size.sentence(0.03)


def test_a_host_that_drifts_between_blocks_is_no_noise():
    rough = [np.array(trial) * (1 + n // 2) for n, trial in enumerate(pilot(6, 60))]
    blocks = [n // 2 for n in range(6)]
    apart = size_study(rough, levels=4, controls=1, overhead_s=10, blocks=blocks)
    together = size_study(rough, levels=4, controls=1, overhead_s=10)
    assert 3 * apart.trial_sd < together.trial_sd


def test_four_of_five_promises_to_settle_hold():
    held, rng = [], np.random.default_rng(1)
    for seed in range(120):
        host = np.repeat(rng.normal(0, 0.05, 3), 2)
        trials = [np.array(t) * np.exp(h) for t, h in zip(pilot(6, 12, seed=seed), host, strict=True)]
        size = size_study(trials, levels=4, controls=1, overhead_s=10, blocks=[0, 0, 1, 1, 2, 2])
        truth = np.hypot(0.025, 0.08 / np.sqrt(size.trial_s))
        logs = rng.normal(0, truth, (400, size.blocks[1], 4))
        fit, _ = judge(logs, 1)
        found = fit.moved(np.log1p(0.03)).different[:, 0].mean()
        held.append(min(found, fit.equivalent()[:, 0].mean()) >= 0.78)
    assert np.mean(held) >= 0.8


def test_a_noisier_host_takes_more_blocks_and_a_hopeless_one_says_so():
    calm, noisy = (size_study(pilot(10, 60, between=sd), levels=3, overhead_s=5) for sd in (0.02, 0.06))
    assert calm.blocks[1] < noisy.blocks[1]
    hopeless = size_study(pilot(5, 30, between=2.0), levels=3, overhead_s=5, margin=0.01)
    assert hopeless.blocks == (None, None)
    assert "no practical number" in hopeless.sentence(0.01)


def test_pairs_with_references_of_their_own_take_more_blocks():
    """A trial against a trial strays more than one against the mean of the baseline and its twin."""
    trials = pilot(10, 60, between=0.03)
    one, own = (
        size_study(trials, levels=8, controls=1, pairs=count, overhead_s=5).blocks for count in (0, 6)
    )
    assert own[0] > one[0]
    assert own[1] > one[1]


def test_no_deviation_between_runs_means_long_trials():
    size = size_study(pilot(30, 60, between=0.0, inside=0.3, seed=3), levels=2, overhead_s=20)
    assert size.trial_s > 60
    still = size_study([[100.0] * 20] * 3, levels=2, overhead_s=5)
    assert still.blocks == (3, 3)


@pytest.mark.parametrize("series", [pilot(2, 60), pilot(3, 5), [[0.0] * 20] * 3, [[float("nan")] * 20] * 3])
def test_refusals(series):
    with pytest.raises(InputError):
        size_study(series, levels=3, overhead_s=10)
