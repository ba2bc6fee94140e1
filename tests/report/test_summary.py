"""All studies on one page: what leads, in which order, what is left out and why."""

import math
import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bs4 import BeautifulSoup

from benchlib import notebook
from benchlib.errors import InputError
from benchlib.plan.design import Trial
from benchlib.plan.level import Level
from benchlib.plan.model import Load
from benchlib.report.summary import Summary, read_summary, summary_rows
from benchlib.study.experiment import shown
from benchlib.study.store import StudyFolder, walk

LAZY = Level(settings={"synchronous_commit": "off"})


@pytest.fixture
def keep(view_of, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Keeps a study of five blocks with these changes in percent; its notebook is the name's first part."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # what is kept here need not outlive a power cut

    def make(
        name: str, tuned: float, *, of: Mapping[str, float] = MappingProxyType({}), noise: float = 0.01,
        host: str = "this", **more: Any,
    ) -> None:  # fmt: skip
        changes = {"tuned": tuned, **of}
        factor = name.split("-")[0]
        provenance = {"host": {"identity": host, "memory_mib": 2048}, "created": "2026-01-02T03:04:05+00:00"}
        about = {"notebook": factor, "title": factor.capitalize(), "provenance": provenance}

        def tps(trial: Trial) -> float:
            luck = np.random.default_rng(trial.seed).normal(0, noise)
            return float(1000 * (1 + changes.get(trial.level, 0) / 100) * math.exp(luck))

        view_of(tps, blocks=5, about=about, name=name, **more)

    return make


def rows() -> Any:
    return summary_rows([shown(folder) for folder in walk()]).set_index("study")


def text(shows_itself: Any) -> str:
    return BeautifulSoup(shows_itself._repr_html_(), "html.parser").get_text(" ", strip=True)


def test_the_largest_gain_is_first_and_what_settles_nothing_has_no_rank(keep) -> None:
    keep("small", 12)
    keep("unclear", 40, noise=0.9)
    keep("large", 800)
    keep("worse", -60)
    table = rows()
    assert table.index.to_list() == ["large", "small", "worse", "unclear"]
    assert table["rank"].to_list()[:3] == [1, 2, 3]
    assert math.isnan(table.loc["unclear", "rank"])
    assert table["verdict"].to_list() == ["faster", "faster", "slower", "inconclusive"]
    assert table.loc["large", "page"] == "large.html"
    assert (table["level"] == "tuned").all()
    assert (table["against"] == "defaults").all()
    # asked together, each p counts more
    alone = summary_rows([shown(StudyFolder("small"))])["p_holm"].item()
    assert table.loc["small", "p_holm"] > alone


def test_the_longest_study_stands_for_its_factor_whatever_came_out(keep) -> None:
    keep("cache-quick", 90)
    keep("cache-full", 20, load=Load(duration_s=30))
    keep("disk-quick", 50)
    table = rows()
    assert table.index.to_list() == ["disk-quick", "cache-full", "cache-quick"]
    assert table["further"].to_list() == [False, False, True]
    assert math.isnan(table.loc["cache-quick", "rank"])
    assert math.isnan(table.loc["cache-quick", "p_holm"])


def test_where_less_is_better_half_as_much_is_a_gain_like_twice_as_much(keep) -> None:
    keep("slow", 100, metric="latency_average_ms", noise=0.001)
    row = rows().loc["slow"]
    assert row["percent_change"] == pytest.approx(-50, abs=1)
    assert row["gain"] == pytest.approx(100, abs=3)
    assert row["gain_low"] < row["gain"] < row["gain_high"]
    assert row["metric"] == "mean latency"


def test_what_is_given_up_is_told_with_the_best_that_gives_up_nothing(keep) -> None:
    levels = {"tuned": LAZY, "careful": Level(settings={"work_mem": "8MB"})}
    keep("commit", 200, of={"careful": 15}, levels=levels)
    keep("other", 30, base=LAZY)  # its baseline gives up the same
    frame = rows()
    assert "latest acknowledged commits" in frame.loc["commit", "loss"]
    assert frame.loc["commit", "durable_level"] == "careful"
    assert frame.loc["commit", "durable_change"] == pytest.approx(15, abs=3)
    assert frame.loc["other", "loss"] == ""
    table = text(read_summary().ranking())
    assert "tuned† against defaults" in table
    assert "careful +1" in table


def test_pilots_and_studies_that_failed_are_left_out_with_a_reason(keep) -> None:
    keep("good", 30)
    keep("good-pilot", 0, levels={})
    keep("failed", 0, failing=dict.fromkeys(("control", "tuned"), "no space"))
    summary = read_summary()
    assert dict(summary.unused).keys() == {"good-pilot", "failed"}
    assert "baseline alone" in dict(summary.unused)["good-pilot"]
    assert "no space" in text(summary.left_out())
    assert (
        "Studies: 1 of 1 factor, measured 2026-01-02 on one machine (2 GiB). Left out, with reasons below: 2 studies"
        in text(summary.studies())
    )


def test_machines_are_told_apart(keep) -> None:
    keep("one", 30)
    assert rows()["host"].to_list() == [""]
    keep("two", 20, host="that")
    summary = read_summary()
    assert summary.rows["host"].to_list() == ["A", "B"]
    assert "on 2 machines: A is 2 GiB; B is 2 GiB" in text(summary.studies())
    assert "machine B" in text(summary.forest())
    assert "several machines" in summary.forest().caption
    assert "machine" in text(summary.ranking())


def test_published_comparisons_stand_beside_the_measured_ones(keep) -> None:
    keep("own", 30)
    assert "No published comparison" in text(read_summary().beside_published())
    keep("configuration-quick", 80)
    summary = text(read_summary().beside_published())
    assert re.search(
        r"agrees, smaller almost twice \+\d\d\.\d\s% \[.*\], faster tuned against defaults", summary
    )
    assert "not measured here" in summary  # the durable twin


def test_the_ranking_links_to_the_pages_and_escapes_names(keep) -> None:
    keep("one", 30, levels={"<b>": Level(settings={"work_mem": "8MB"})}, of={"<b>": 30})
    table = BeautifulSoup(read_summary().ranking()._repr_html_(), "html.parser")
    assert table.find("a")["href"] == "one.html"
    assert "<b>" in table.get_text()
    assert "p" in [head.get_text() for head in table.find_all("th")]


@pytest.mark.usefixtures("data_root")
def test_with_nothing_kept_every_part_says_so() -> None:
    summary = read_summary()
    assert isinstance(summary, Summary)
    for part in (summary.studies(), summary.ranking(), summary.left_out(), summary.forest()):
        assert "No" in str(part)


def test_a_notebook_opens_the_studies_that_it_names(keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("one", 30)
    keep("two", 20)
    cell = 'factor: str = "summary"  # name\nstudies: str = ""  # names'
    names = {"In": [cell], "factor": "summary", "studies": " two, "}
    monkeypatch.setattr(notebook, "get_ipython", lambda: SimpleNamespace(user_ns=names))
    assert notebook.open_summary().rows["study"].to_list() == ["two"]
    monkeypatch.setattr(notebook, "get_ipython", lambda: None)
    with pytest.raises(InputError, match="open_summary"):
        notebook.open_summary()
