"""The site around the studies: the index, the prose that is true to the code, and what is not published."""

import json
import re
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import pytest
from benchlib.report.entries import entries
from benchlib.report.figures.frames import guarded
from benchlib.stats.sensitivity import RANKS_FROM, RESAMPLING_FROM
from bs4 import BeautifulSoup

from benchlib.errors import InputError
from benchlib.plan.design import LOOKS
from benchlib.plan.level import Level
from benchlib.plan.words import unpublished, without
from benchlib.report.execute import find_notebook
from benchlib.report.runs import write_downloads
from benchlib.report.site import write_site
from benchlib.stats import sequential, validity
from benchlib.stats.verdicts import LEAST_BLOCKS
from benchlib.study.experiment import shown
from benchlib.study.store import StudyFolder

TEMPLATES = Path(find_notebook("template")).parents[1] / "benchlib" / "report" / "template"
URI = "postgresql://me@db.example.org/app"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


def page(root: Path, name: str) -> BeautifulSoup:
    return BeautifulSoup((root / name).read_text(), "html.parser")


def test_the_index_names_every_study(keep, root, monkeypatch):
    for name in ("a", "b", "c", "later"):
        keep(name)
    keep("bare", levels={"tuned": Level(settings={"work_mem": "9MB"})})
    (StudyFolder("bare").path / "study.json").write_text("{")
    monkeypatch.setenv("BENCHLIB_REPORTS", str(root))
    for name in ("a", "b", "c"):
        (root / f"{name}.html").write_text("a page")
    before = write_site(root, *entries()).read_bytes()
    index = page(root, "index.html")
    cards = [a["href"] for a in index.select(".bl-studies h3 a")]
    assert cards == ["a.html", "b.html", "c.html"]
    assert index.select_one(".bl-studies h3").get_text(strip=True) == "Configuration (a)"
    assert "later: it has no page yet: benchlib report later" in index.get_text()
    assert len(index.find_all("figure")) == 1
    assert "bare: bare/study.json is damaged" in index.get_text()
    links = [a["href"] for a in index.select(".bl-more a")]
    assert links == ["methodology.html"], "there is neither summary nor calibration"
    assert [a["href"] for a in page(root, "methodology.html").select("header a")] == [
        "index.html",
        "methodology.html",
    ]
    assert write_site(root, *entries()).read_bytes() == before


@pytest.mark.parametrize("name", ["index", "summary", "methodology", "calibration"])
def test_a_study_cannot_take_the_place_of_a_page(name):
    with pytest.raises(InputError, match=r"no page.s name"):
        StudyFolder(name)
    StudyFolder(f"{name}-2")


def test_no_download_names_a_path_or_a_server(keep, root):
    levels = {"tuned": Level.model_validate({"storage": {"data": {"path": "/mnt/fast"}, "wal": {"path": "/mnt/faster"}}, "postgres": "/opt/pg/bin"}),
              "hosted": Level.model_validate({"target": {"server": URI}})}  # fmt: skip
    folder = keep("mine", levels=levels)
    source = f"# Parameters\nlevels = {{'hosted': {{'target': '{URI}'}}, 'tuned': '/mnt/fast'}}"
    notebook = v4.new_notebook(cells=[v4.new_code_cell(source, id="one")])
    files = write_downloads(root, shown(folder), notebook)
    texts = {name: (root / name).read_text() for name in files}
    for text in texts.values():
        assert not re.search(r"/mnt|/opt|example\.org|/home", text)
    study = json.loads(texts["mine.study.json"])
    assert study["plan"]["factor"]["levels"]["hosted"]["target"]["server"] == "a server by URI"
    assert study["plan"]["factor"]["levels"]["tuned"]["storage"]["data"]["path"] == "given folder 1"
    assert study["parameters"]["workload"] == "mine.toml"
    nbformat.validate(nbformat.reads(texts["mine.ipynb"], as_version=4))
    assert "'target': 'a server by URI'" in texts["mine.ipynb"]


def test_only_whole_paths_are_replaced():
    words = {"/mnt/fast": "folder 1", "/mnt/fast/wal": "folder 2"}
    text = "/mnt/fast /mnt/faster /mnt/fast/base '/mnt/fast/wal' x/mnt/fast"
    assert without(text, words) == "folder 1 /mnt/faster folder 1/base 'folder 2' x/mnt/fast"
    assert without({"a": ["/mnt/fast", 1, None]}, words) == {"a": ["folder 1", 1, None]}


@pytest.mark.parametrize(
    ("cell", "kept"),
    [("=1+1", "'=1+1"), ("+x", "'+x"), ("-x", "'-x"), ("@x", "'@x"), ("\t=x", "'\t=x"), ("\rx", "'\rx"), (" =x", "' =x"),
     ("-1.5e-05", "-1.5e-05"), ("-3", "-3"), (-3.5, -3.5), ("-1+cmd", "'-1+cmd"), ("a=b", "a=b"), ("", ""), (None, None)],
)  # fmt: skip
def test_a_formula_in_a_download_is_text_and_a_number_a_number(cell, kept):
    assert guarded(cell) == kept


def test_the_methodology_says_what_the_code_does():
    text = " ".join((TEMPLATES / "methodology.md.j2").read_text().split())
    looks = [str(look) for look in LOOKS]
    for words in (
        f"after {', '.join(looks[:-1])} and {looks[-1]} blocks",
        f"by the power {sequential._EXPONENT} of",
        f"fewer than {LEAST_BLOCKS} usable blocks",
        f"more than {100 * validity._TOLERATED_FAILURES:g} % of a level's transactions failed",
        f"{100 * validity.BUSY_CLIENT:g} % or more of its threads'",
        f"kept {100 * validity.FULL:g} % or more of the machine's processors busy",
        f"false discovery rate of {100 * validity._UNSTEADY_ALPHA:g} % over all levels and both ends",
        f"fewer than {validity._PROFILES} trials of a level with {validity._READINGS} readings each",
        f"(p ≤ {validity._DRIFT_ALPHA:g}, adjusted)",
        f"(p ≤ {validity._OUTLIER_ALPHA:g} over all of them)",
        f"From {RANKS_FROM} blocks Wilcoxon's signed ranks and sign flips, from {RESAMPLING_FROM} also",
    ):
        assert words in text, words


def test_what_levels_name_that_did_not_run_is_hidden_too(plan_of) -> None:
    parameters = {
        "levels": {
            "hosted": {"target": "postgresql://me@db.example.org/app"},
            "built": {"postgres": "/home/me/pg/bin"},
        },
        "profiles": {"quick": {"base": {"storage": {"data": "/mnt/fast"}}}},
        "question": "Is /mnt faster than https://example.org?",
    }
    words = unpublished(plan_of(), parameters)
    assert words == {
        "postgresql://me@db.example.org/app": "a server by URI",
        "/home/me/pg/bin": "a given installation",
        "/mnt/fast": "a given folder",
    }
