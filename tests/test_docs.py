"""Documents: links lead somewhere, pages are short, examples are valid, and the command line's page is click's own help."""

import re
from pathlib import Path

import command_line
import pytest
import yaml
from pages import planned

from benchlib.levers import BY_KEY
from benchlib.load.workloads import load_workload
from benchlib.plan.level import Level
from benchlib.plan.parameters import from_yaml
from benchlib.report.execute import notebook_parameters

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "data" / "README.md", ROOT / "reports" / "README.md"])  # fmt: skip
LONGEST = 100
"""Lines of a page: two screens."""
CODE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def blocks(path, language):
    """Return the code of a page in one language."""
    return [text for kind, text in CODE.findall(path.read_text()) if kind == language]


def anchors(path):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        file, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_of_docs_is_linked():
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    }
    assert {*ROOT.glob("docs/**/*.*")} <= linked


def test_the_readme_and_pages_are_short():
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") <= 150
    assert len(readme.split()) <= 1200
    assert (ROOT / "docs" / "page.png").stat().st_size < 150_000
    pages = {*ROOT.glob("docs/**/*.md")} - {command_line.PAGE}
    assert {name_of(page): count for page in pages if (count := page.read_text().count("\n")) > LONGEST} == {}


def test_the_page_of_the_command_line_is_its_help():
    assert command_line.page() == command_line.PAGE.read_text(), "run 'make docs'"


def study_of(given):
    """Return the study that the template, or a notebook with conditions, makes of a file."""
    return planned("configuration" if "conditions" in given else "template", **given)


FILES = [
    *((name_of(page), text) for page in PAGES for text in blocks(page, "yaml") if re.search(r"^(levels|grid):", text, re.MULTILINE)),
    *(("README.md", text) for text in re.findall(r"^echo '(.*)' > \w+\.yaml$", (ROOT / "README.md").read_text(), re.MULTILINE)),
]  # fmt: skip


@pytest.mark.parametrize(("page", "text"), FILES, ids=[f"{page}-{n}" for n, (page, _) in enumerate(FILES)])
def test_examples_of_levels_make_studies(page, text):
    given = from_yaml(text, page)
    if "pgtune.conf" not in str(given):
        assert study_of(given).trials


def test_the_reference_of_levels_names_every_key():
    page = ROOT / "docs" / "reference" / "levels.md"
    (text,) = blocks(page, "yaml")
    context, patches = {"levers": BY_KEY, "data_mib": lambda: 100}, yaml.safe_load(text)["levels"].values()
    levels = [Level.model_validate(patch, context=context) for patch in patches]
    assert {key for level in levels for key in level.model_fields_set} == set(Level.model_fields)
    assert {key for key in Level.model_fields if f"| `{key}`" not in page.read_text()} <= {"initdb"}


def test_the_grid_has_twelve_levels():
    page = ROOT / "docs" / "how-to" / "compare-settings.md"
    (text,) = (text for text in blocks(page, "yaml") if "grid:" in text)
    factor = study_of(from_yaml(text, "grid")).plan.factor
    assert len(factor.levels) == 13, "twelve, and the control"
    assert len(factor.against) == 6


def test_the_workload_by_hand_is_one(tmp_path):
    (text,) = blocks(ROOT / "docs" / "how-to" / "own-queries.md", "toml")
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "read.sql").write_text("SELECT 1;")
    assert [script.weight for script in load_workload(str(tmp_path / "mine.toml")).scripts] == [9, 1]


def test_references_name_what_there_is():
    from benchlib.load.workloads import LIBRARY
    from benchlib.plan.metrics import METRICS
    from benchlib.plan.workload import Workload

    texts = {path.stem: path.read_text() for path in ROOT.glob("docs/reference/*.md")}
    named = {page: {*re.findall(r"`([\w-]+)`", text)} for page, text in texts.items()}
    assert {name for name in METRICS if "buffers_by_b" not in name} <= named["metrics"]
    assert {path.stem for path in LIBRARY.glob("*.toml")} <= named["workloads"]
    assert [key for key in Workload.model_fields if key not in texts["workloads"]] == []
    known = named["parameters"] | {"factor", "lead", "pilot"}
    assert {*notebook_parameters(ROOT / "notebooks" / "template.ipynb")} <= known
