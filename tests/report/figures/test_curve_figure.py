"""The curve over a setting: its marks, its ring, its words, and room for all of them."""

import math

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from plot_cases import make_trials

import benchlib
from benchlib.plan.words import size_words
from benchlib.report.figures.curve import Curve, setting_curve
from benchlib.report.figures.frames import plain

MIB = 1 << 20
VALUES = [MIB // 16, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
CHANGES = [-62.0, -31.0, 0.0, 24.0, 25.0, 18.0]
TEMP = "temp_bytes_per_transaction"
READ = "blocks_read_per_transaction"


def points_of(values=VALUES, changes=CHANGES, *, scale=1.0):
    """A point per value with an interval of ±6 %, but none at the reference, and what it read and wrote."""
    rows = [
        (
            v,
            c * scale,
            *((c * scale - 6, c * scale + 6, c * scale - 9, c * scale + 8) if c else [math.nan] * 4),
        )
        for v, c in zip(values, changes, strict=False)
    ]
    frame = pd.DataFrame(rows, columns=["value", "change", "low", "high", "least", "most"])
    written = [45.0 * MIB, 30.0 * MIB, 8.0 * MIB, 0.0, 0.0, 0.0]
    return frame.assign(**{TEMP: written[: len(frame)], READ: [40.0 - n for n in range(len(frame))]})


@pytest.fixture(scope="module")
def analysis():
    return benchlib.analyze(
        make_trials({"defaults": 0, "control": 0, "more": 9}), baseline="defaults", controls=("control",)
    )


@pytest.fixture(scope="module")
def draw(analysis):
    def make(curves, setting="work_mem", mechanisms=(TEMP, READ), value_words=lambda v: size_words(int(v))):
        return setting_curve(
            curves, setting, analysis=analysis, reference="4MB", mechanisms=mechanisms, value_words=value_words, rule="The rule."
        )  # fmt: skip

    return make


@pytest.fixture(scope="module")
def one(draw):
    return draw([Curve("", points_of(), 16.0 * MIB, "work_mem: bends at 16 MB.")])


@pytest.fixture(scope="module")
def several(draw):
    names = ["sorts of a whole table", "joins", "a workload whose name goes on and on, as some do"]
    curves = [
        Curve(name, points_of(scale=1 + 2 * n), None, f"{name}: no bend.") for n, name in enumerate(names)
    ]
    return draw(curves)


def texts(svg):
    return [text.get_text() for text in BeautifulSoup(svg, "html.parser").find_all("text")]


def test_values_changes_and_mechanisms_are_labelled(one):
    words = texts(one.wide)
    assert {"64 kB", "1 MB", "256 MB"} <= {word.replace("\u00a0", " ") for word in words}
    assert {"+24.0", "−62.0"} <= set(words)
    assert {"Temporary files per transaction, MB", "Pages read into the buffers per transaction"} <= set(
        words
    )
    assert "work_mem (log scale)" in words


def test_alt_and_caption_say_what_is_shown(one):
    assert one.alt.startswith(
        "Change of throughput by work_mem against 4MB. 64\u00a0kB −62.0 % [−68.0, −56.0], temporary"
    )
    assert "4\u00a0MB 0.0 %, temporary files per transaction, MB 8," in one.alt
    assert "Shaded: ±3 %. The rule. work_mem: bends at 16 MB." in one.caption


def test_the_bend_is_ringed_in_all_panels_and_only_where_there_is_one(draw, one):
    straight = draw([Curve("", points_of(), None, "")])
    assert one.wide.count("stroke-dasharray") == 3
    assert "stroke-dasharray" not in straight.wide


def test_several_curves_have_a_key_and_no_numbers(several):
    words = " ".join(texts(several.wide))
    assert "■ joins" in words
    assert "+24.0" not in words
    assert "joins: 64\u00a0kB" in several.alt
    assert "log scale" in words.split("change of throughput, %")[1][:20]


@pytest.mark.parametrize(
    ("values", "title"),
    [
        ([1.0, 2.0, 3.0, 4.0], "x"),
        ([0.0, 1.0, 16.0, 256.0], "x (log scale, 0 apart)"),
        ([-1.0, 1.0, 100.0], "x"),
        ([4.0, 32.0, 96.0], "x (log scale)"),
    ],
)
def test_values_that_are_spread_by_multiples_are_on_a_log_scale(draw, values, title):
    figure = draw([Curve("", points_of(values), None, "")], setting="x", mechanisms=(), value_words=plain)
    assert title in texts(figure.wide)
    assert texts(figure.wide)[0].count("log") == 0


@pytest.mark.parametrize("figure", ["one", "several"])
def test_text_stays_on_the_canvas_in_the_widest_common_font(figure, request):
    drawn = request.getfixturevalue(figure)
    for svg in BeautifulSoup(drawn._repr_html_(), "html.parser").find_all("svg"):
        width = float(svg["viewbox"].split()[2])
        for text in svg.find_all("text"):
            style = dict(part.split(": ") for part in text["style"].split("; "))
            font = FontProperties(size=float(style["font-size"].removesuffix("px")))
            long = text_to_path.get_text_width_height_descent(text.get_text(), font, ismath=False)[0]
            left = float(text["x"]) - long * {"middle": 0.5, "end": 1.0}.get(style.get("text-anchor"), 0.0)
            assert left >= -1, text.get_text()
            assert left + long <= width + 1, text.get_text()
