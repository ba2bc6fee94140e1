import numpy as np
import pytest

from benchlib.errors import InputError
from benchlib.stats.pilot import size_study


def pilot(trials, seconds, *, between=0.025, inside=0.08, seed=1):
    rng = np.random.default_rng(seed)
    return [
        1000 * np.exp(rng.normal(0, between)) * (1 + rng.normal(0, inside, seconds)) for _ in range(trials)
    ]


def test_length_blocks_and_minutes():
    size = size_study(pilot(40, 60), levels=4, controls=1, overhead_s=10)
    assert size.between_sd == pytest.approx(0.025, rel=0.25)
    assert size.trial_s == pytest.approx(np.sqrt(10 * size.lrv) / size.between_sd)
    assert 15 <= size.blocks <= 35
    assert size.minutes == pytest.approx(size.blocks * 4 * (size.trial_s + 10) / 60)
    assert f"{size.blocks} blocks settle ±3 %" in size.sentence(0.03)


def test_a_noisier_host_takes_more_blocks_and_a_hopeless_one_says_so():
    calm, noisy = (size_study(pilot(10, 60, between=sd), levels=3, overhead_s=5) for sd in (0.02, 0.06))
    assert calm.blocks < noisy.blocks
    hopeless = size_study(pilot(5, 30, between=2.0), levels=3, overhead_s=5, margin=0.01)
    assert hopeless.blocks is None
    assert "no practical number" in hopeless.sentence(0.01)


def test_no_deviation_between_runs_means_long_trials():
    size = size_study(pilot(30, 60, between=0.0, inside=0.3, seed=3), levels=2, overhead_s=20)
    assert size.trial_s > 60
    still = size_study([[100.0] * 20] * 3, levels=2, overhead_s=5)
    assert still.blocks == 3


@pytest.mark.parametrize(
    ("series", "options"),
    [
        (pilot(2, 60), {}),
        (pilot(3, 5), {}),
        ([[0.0] * 20] * 3, {}),
        ([[float("nan")] * 20] * 3, {}),
        (pilot(3, 60), {"levels": 2, "controls": 1}),
    ],
)
def test_refusals(series, options):
    with pytest.raises(InputError):
        size_study(series, **{"levels": 3, "overhead_s": 10, **options})
