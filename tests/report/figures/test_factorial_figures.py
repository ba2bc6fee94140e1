"""Charts of factorial designs and ladders: complete, stable, described in numbers, true to what they are given."""

import re
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from bs4 import BeautifulSoup
from designs import full_factorial, screened
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from benchlib.report.figures import half_normal, interaction, waterfall
from benchlib.report.figures.factorial import _Pair, _round_values, _standard_error
from benchlib.report.figures.frames import signed
from benchlib.stats.crossed import effects, interaction_means
from benchlib.stats.ladder import ladder

FACTORS = ["shared_buffers", "synchronous_commit", "wal_compression"]
LONG = [
    "checkpoint_completion_target",
    "effective_io_concurrency",
    "autovacuum_vacuum_cost_delay",
    "max_parallel_workers_per_gather",
]
STEPS = [
    "base",
    "2: dirty_ratio 10, dirty_background_ratio 5",
    "3: scheduler mq-deadline",
    "4: once more",
    "5: vfs_cache_pressure 50",
    "6: once more",
    "7: noatime, nodiratime",
    "8: read_ahead_kb 256",
]


def study(design, sizes, *, blocks=4, noise=0.02):
    """Trials of a design with known effects (logarithms), interactions as `a × b`."""
    random = np.random.default_rng(11)
    effect = sum(size / 2 * design[term.split(" × ")].prod(axis=1) for term, size in sizes.items())
    rows = []
    for block in range(1, blocks + 1):
        host = random.normal(0, 0.1)
        for level in design.index:
            value = 1400 * np.exp(host + random.normal(0, noise) + (effect[level] if sizes else 0))
            rows.append((block, level, value))
    return pd.DataFrame(rows, columns=["block", "level", "tps"])


def climb(steps, percents, *, blocks=5):
    """Trials of a ladder whose steps change the metric by `percents`."""
    design = pd.DataFrame({"level": steps, "at": np.cumsum([0, *np.log1p(np.array(percents) / 100)])})
    random = np.random.default_rng(5)
    rows = [
        (block, level, 800 * np.exp(at + random.normal(0, 0.015)))
        for block in range(blocks)
        for level, at in design.itertuples(index=False)
    ]
    return pd.DataFrame(rows, columns=["block", "level", "tps"])


@pytest.fixture(scope="module")
def design():
    return full_factorial(FACTORS)


@pytest.fixture(scope="module")
def trials(design):
    sizes = {"shared_buffers": 0.12, "synchronous_commit": -0.6, "shared_buffers × synchronous_commit": 0.08}
    return study(design, sizes)


@pytest.fixture(scope="module")
def found(trials, design):
    return effects(trials, design)


@pytest.fixture(scope="module")
def means(trials, design):
    return interaction_means(trials, design, "shared_buffers", "synchronous_commit")


@pytest.fixture(scope="module")
def steps():
    return ladder(climb(STEPS, [3, -6, 0, 2, 0, 14, 38]), STEPS)


@pytest.fixture(scope="module")
def figures(found, means, steps):
    """Ordinary ones, and many, tiny, huge, long and missing ones."""
    random = np.random.default_rng(2)
    four = full_factorial(LONG)
    terms = [" × ".join(term) for size in range(1, 5) for term in combinations(LONG, size)]
    crowded = study(four, {term: random.normal(0, 0.3) for term in terms})
    sizes = {LONG[0]: 0.001, LONG[1]: -0.0004, LONG[2]: 2.8, LONG[3]: -1.9}
    apart = study(four, sizes, noise=1e-4)
    screen = screened([f"factor {number}" for number in range(11)])
    alone = full_factorial(["fsync"])
    unknown = found.assign(ci_low=np.nan, ci_high=np.nan, p_value=np.nan, p_holm=np.nan)
    ends = ["a start whose name goes on and on, with random_page_cost=1.1 at the end of it", "b", "c", "d"]
    spread = ladder(climb(ends, [2400, -98, 0.01]), ends)
    bare = steps.assign(**{c: np.nan for c in steps if c.endswith(("low", "high", "_p"))})
    return [
        half_normal(found),
        half_normal(effects(crowded, four, order=4)),
        half_normal(effects(apart, four)),
        half_normal(effects(study(four, {}, blocks=1), four, order=4)),
        half_normal(effects(study(screen, {"factor 3": 0.2}, blocks=1), screen, order=1)),
        half_normal(effects(study(alone, {"fsync": 0.4}), alone, order=1)),
        half_normal(unknown),
        interaction(means, effects=found, changes={"shared_buffers": ("128MB", "2GB")}),
        interaction(means.head(3)),
        interaction(
            [interaction_means(crowded, four, a, b) for a, b in combinations(LONG, 2)],
            effects=effects(crowded, four),
        ),
        interaction(interaction_means(apart, four, LONG[2], LONG[3]), effects=effects(apart, four)),
        waterfall(steps, start="base"),
        waterfall(spread, start=ends[0]),
        waterfall(bare),
        waterfall(steps.head(1)),
    ]


def test_complete_and_inside_the_canvas(figures):
    for figure in figures:
        page = BeautifulSoup(figure._repr_html_(), "html.parser")
        assert [svg["class"] for svg in page("svg")] == [["bl-wide"], ["bl-narrow"]]
        assert "nan" not in re.sub(r"--bl-\w+", "", figure.wide + figure.narrow + figure.alt).lower()
        for svg in page("svg"):
            assert svg["aria-label"] == figure.alt
            bare = re.sub(r"var\(--bl-[a-z]+,#[0-9a-f]{6}\)", "", str(svg))
            assert not re.search(r"(fill|stroke): #", bare)
            width, height = (float(n) for n in svg["viewbox"].split()[2:])
            for text in svg.find_all("text"):
                style = dict(part.split(": ") for part in text["style"].split("; "))
                size, weight = (
                    float(style["font-size"].removesuffix("px")),
                    int(style.get("font-weight", 400)),
                )
                font = FontProperties(size=size, weight=weight)
                long = text_to_path.get_text_width_height_descent(text.get_text(), font, ismath=False)[0]
                left = float(text["x"]) - long * {"middle": 0.5, "end": 1}.get(style.get("text-anchor"), 0)
                assert left >= -1, (figure.name, text.get_text())
                assert left + long <= width + 1, (figure.name, text.get_text())
                assert 0 <= float(text["y"]) <= height + 1


def test_texts_do_not_lie_on_each_other(figures):
    """Same line, same column: no two texts of a drawing start at one place."""
    for figure in figures:
        for svg in (figure.wide, figure.narrow):
            places = re.findall(r'<text [^>]*?x="([\d.]+)" y="([\d.]+)"', svg)
            assert len(places) == len(set(places)), figure.name
            assert places


def test_same_input_gives_the_same_bytes(found, means, steps):
    def drawn():
        all_of_them = half_normal(found), interaction(means, effects=found), waterfall(steps)
        return [figure._repr_html_() for figure in all_of_them]

    assert drawn() == drawn()


def test_half_normal_names_the_significant_and_tells_all(found):
    figure = half_normal(found)
    by = found.set_index("effect")
    for effect, row in by.iterrows():
        low, high = (signed(row[c], unit="").lstrip("+") for c in ("ci_low", "ci_high"))
        assert f"{effect} {signed(row['percent'], unit=' %')} (interval {low} to {high})" in figure.alt
    assert "synchronous_commit −45" in figure.alt.replace("\xa0", " ")
    assert figure.alt.count("inconclusive") == (found["p_holm"] >= 0.05).sum() == 3
    words = BeautifulSoup(figure.narrow, "html.parser").get_text("|")
    assert "|synchronous_commit|" in words
    assert "|wal_compression|" not in words
    assert "noise alone" in words
    assert {signed(by["percent"]["shared_buffers"]), "1", "2", "3"} <= set(words.split("|"))


def test_half_normal_knows_which_way_is_better(found):
    assert "shared_buffers +" in half_normal(found).alt
    faster = half_normal(found, metric="latency_average_ms").alt
    assert re.search(r"synchronous_commit −[\d.]+ % \([^)]+\), faster", faster)


@pytest.fixture(scope="module")
def regression(trials, design, found):
    terms = {effect: design[effect.split(" × ")].prod(axis=1) for effect in found["effect"]}
    x = pd.DataFrame(terms).loc[trials["level"]].reset_index(drop=True)
    return sm.OLS(np.log(trials["tps"]), x.join(pd.get_dummies(trials["block"], dtype=float))).fit()


def test_noise_follows_the_standard_error_of_a_regression(trials, design, found, regression):
    expected = 2 * regression.bse["shared_buffers"]
    assert _standard_error(found, 0.05) == pytest.approx(expected, rel=1e-6)
    assert f"standard error is {100 * np.expm1(expected):.2g} %" in half_normal(found).alt
    assert _standard_error(effects(trials, design, alpha=0.1), 0.1) == pytest.approx(expected, rel=1e-6)


def test_noise_of_a_single_block_is_lenths(trials, design):
    one = effects(trials[trials["block"] == 1], design, order=3)
    size = np.abs(np.log1p(one["percent"] / 100))
    first = 1.5 * size.median()
    lenth = 1.5 * size[size < 2.5 * first].median()
    assert _standard_error(one, 0.05) == pytest.approx(lenth, rel=1e-6)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_p_value_that_tells_nothing_leaves_the_normal_distribution(p):
    row = {"percent": 100 * np.expm1(0.5), "ci_low": 100 * np.expm1(0.4), "ci_high": 100 * np.expm1(0.6)}
    assert _standard_error(pd.DataFrame([row | {"p_value": p}]), 0.05) == pytest.approx(0.1 / 1.96, rel=1e-4)


def test_without_an_error_there_is_no_line_and_nothing_named(figures):
    figure = figures[6]
    assert "noise alone" not in figure.wide
    assert "no error" in figure.caption
    assert figure.alt.count("inconclusive") == 6


def test_bars_of_two_means_touch_when_a_regression_just_tells_them_apart(means, found, regression):
    pair = _Pair(means, found, {})
    for b in (-1, 1):
        change = {"shared_buffers": 2, "shared_buffers × synchronous_commit": 2 * b}
        test = regression.t_test([change.get(term, 0) for term in regression.params.index])
        (low, high), (left, right) = test.conf_int()[0], (pair.cells[-1, b], pair.cells[1, b])
        assert right[0] - left[0] == pytest.approx(test.effect[0], rel=1e-9)
        assert (left[2] - left[0]) + (right[0] - right[1]) == pytest.approx((high - low) / 2, rel=1e-9)


def test_interaction_says_its_numbers_and_names_its_ends(means, found):
    changes = {"shared_buffers": ("128MB", "2GB"), "synchronous_commit": ("on", "off")}
    figure = interaction(means, effects=found, changes=changes)
    mean = means.set_index(["shared_buffers", "synchronous_commit"])["mean"]
    assert f"shared_buffers 2GB, synchronous_commit on: {mean[1, -1]:,.0f} tps (" in figure.alt
    assert re.search(r"; interaction \+[\d.]+\s% \[[\d.]+, [\d.]+\]\.$", figure.alt)
    words = BeautifulSoup(figure.wide, "html.parser").get_text("|")
    for text in ("synchronous_commit off", "synchronous_commit on", "128MB", "2GB", "throughput, tps"):
        assert text in words
    assert "do not overlap" in figure.caption
    swapped = interaction(means.iloc[:, [1, 0, 2]], effects=found)
    assert "interaction +" in swapped.alt


def test_interaction_with_intervals_of_its_own_and_with_none(means):
    figure = interaction(means.assign(ci_low=means["mean"] * 0.9, ci_high=means["mean"] * 1.1), alpha=0.1)
    assert "Bars are 90 % intervals" in figure.caption
    assert re.search(r"tps \([\d,.]+ to [\d,.]+\)", figure.alt)
    assert "No intervals are known" in interaction(means).caption
    assert "interaction not known" in interaction(means).alt


def test_lines_of_an_interaction_differ_by_shape_as_well(means):
    bare = re.sub(r"--bl-\w+,#\w+", "", interaction(means).wide)
    assert "stroke-dasharray" in bare
    assert len(set(re.findall(r'<use href="#([^"]+)"', bare))) >= 2


def test_a_cell_without_a_mean_is_said(means):
    gap = means.assign(mean=[np.nan, *means["mean"].tolist()[1:]])
    assert "shared_buffers low, synchronous_commit low: not measured" in interaction(gap).alt


def test_waterfall_says_each_step_and_the_running_total(steps):
    figure = waterfall(steps, start="base")
    so_far = 0.0
    for row in steps.to_dict("records"):
        so_far = (1 + so_far / 100) * (1 + row["step_percent"] / 100) * 100 - 100
        assert so_far == pytest.approx(row["total_percent"])
        step, total = (signed(row[f"{of}_percent"], unit=" %") for of in ("step", "total"))
        start = f"{row['level']} {step} (interval "
        told = figure.alt[figure.alt.index(start) :].split(";")[0]
        assert f", so far {total} (interval " in told
    assert "3: scheduler mq-deadline −" in figure.alt
    words = BeautifulSoup(figure.wide, "html.parser").get_text("|")
    assert "all 7 steps" in words
    assert words.count(signed(steps["total_percent"].iloc[-1])) == 2
    assert "change of throughput against base" in words


def test_boxes_of_a_waterfall_begin_where_the_one_before_ended(steps):
    boxes = re.findall(
        r'<path d="M ([\d.]+) [\d.]+ L ([\d.]+) [\d.]+ L [^"]*z" clip-path', waterfall(steps).wide
    )
    assert len(boxes) == 8
    ends = [(float(left), float(right)) for left, right in boxes]
    for before, box in pairwise(ends[:7]):
        assert min(abs(a - b) for a in before for b in box) < 0.05
    assert ends[7][0] == pytest.approx(ends[0][0], abs=0.05)
    assert ends[7][1] == pytest.approx(ends[6][1], abs=0.05)


def test_a_ladder_of_one_step_has_no_sum(steps, figures):
    assert "all 1" not in figures[-1].wide
    assert "last row" not in figures[-1].caption
    assert "no interval" in figures[-2].wide
    assert "log scale" in figures[-3].wide


@pytest.mark.parametrize(("low", "high"), [(990, 1010), (90, 2000), (1, 5e5), (0.0021, 0.0022)])
def test_values_have_a_few_round_ticks(low, high):
    assert 2 <= len(_round_values(low, high)) <= 8
