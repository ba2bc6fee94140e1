"""A survey borrows its noise from the whole matrix, claims nothing, and selects what fresh blocks must confirm."""

import numpy as np
import pandas as pd
import pytest

from benchlib.errors import InputError
from benchlib.stats.effects import compare
from benchlib.stats.limits import STANDS_OUT
from benchlib.stats.survey import blocks_to_confirm, moderated


def matrix(changed=(), *, workloads=12, versions=8, blocks=2, sd=0.02, seed=0):
    """Trials of a survey; cells whose name is in ``changed`` are 10 % faster. Returns the arguments of compare."""
    rng = np.random.default_rng(seed)
    against = {f"w{w}/{v}": f"w{w}/0" for w in range(workloads) for v in range(1, versions)}
    references = dict.fromkeys(against.values())
    repeats = {f"{name} again {n}": name for name in references for n in range(3)}
    rows = [
        (
            block,
            name,
            name.split("/")[0],
            1000 * np.exp(block / 10 + 0.1 * (name in changed) + rng.normal(0, sd)),
        )
        for block in range(1, blocks + 1)
        for name in [*references, *against, *repeats]
    ]
    trials = pd.DataFrame(rows, columns=["block", "level", "part", "tps"])
    return {"trials": trials, "baseline": "w0/0", "against": {**against, **repeats}, "repeats": repeats}


def test_variances_move_toward_their_common_prior_by_its_degrees_of_freedom():
    """The figures are the closed form of a scaled F distribution with a known prior."""
    rng = np.random.default_rng(1)
    true = 4.0 / rng.chisquare(10, 20_000) * 10  # an inverse chi-square prior: 10 degrees of freedom around 4
    seen = true * rng.chisquare(3, 20_000) / 3
    posterior, df = moderated(seen, np.full(20_000, 3))
    assert df[0] == pytest.approx(13, rel=0.06)
    assert posterior[0] == pytest.approx((10 * 4.0 + 3 * seen[0]) / 13, rel=0.06)


def test_equal_variances_are_pooled_and_a_group_without_any_borrows_them():
    posterior, df = moderated([2.0, 2.0, 2.0, 0.0], [4, 4, 4, 0])
    assert posterior == pytest.approx(posterior[0])
    assert (df == 12).all()
    with pytest.raises(InputError, match="two trials"):
        moderated([0.0], [0])


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_survey_never_says_faster_and_a_large_change_stands_out(blocks):
    effects = compare(**matrix({"w3/5", "w7/2"}, blocks=blocks)).set_index("level")
    assert {*effects["verdict"]} == {STANDS_OUT, "inconclusive"}
    assert (effects.loc[["w3/5", "w7/2"], "verdict"] == STANDS_OUT).all()
    assert (effects["against"] == [f"{name.split('/')[0]}/0" for name in effects.index]).all()
    assert len(effects) == 12 * 7
    assert effects.loc["w3/5", "n"] == blocks
    assert "survey" in {warning["code"] for warning in effects.attrs["warnings"]}


def test_a_cell_without_a_trial_or_with_a_grave_doubt_is_not_selected():
    given = matrix({"w3/5", "w7/2"})
    trials = given["trials"]
    trials.loc[trials["level"].eq("w3/5"), "tps"] = np.nan
    trials["doubt"] = trials["level"].map({"w7/2": "the cache was cold"})
    effects = compare(**given).set_index("level")
    assert "w3/5" not in effects.index
    assert effects.loc["w7/2", "verdict"] == "invalid"


def test_a_level_may_have_the_name_of_a_column(make_trials):
    names = {"base": "level", "again": "block", "other": "value"}
    trials = make_trials([*names], blocks=2)
    plain, named = (
        compare(frame, baseline=to["base"], repeats={to["again"]: to["base"]}, against={})
        for frame, to in ((trials, {n: n for n in names}), (trials.replace(names), names))
    )
    assert named["level"].to_list() == ["value"]
    assert named["error"].to_list() == pytest.approx(plain["error"].to_list())


def test_more_cells_or_more_noise_take_more_blocks_to_confirm():
    assert 3 < blocks_to_confirm(5, 0.02) < blocks_to_confirm(200, 0.02) < blocks_to_confirm(200, 0.04)
