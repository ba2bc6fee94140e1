"""The site in reports/: complete, small, without traces of a machine, and made from the data and notebooks as they are."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
import readme_of_results
import recorded_site as site

ROOT = Path(__file__).parent.parent
GOLDEN = json.loads((ROOT / "tests" / "golden" / "verdicts.json").read_text())
NUMBERS = ("percent_change", "ci_low", "ci_high", "p_value", "p_adjusted")
MOST_BYTES = 6_000_000


def test_the_site_matches_the_data():
    assert [*site.problems()] == [], "run 'make reports'"


def test_a_missing_page_and_a_changed_study_are_problems(tmp_path):
    data, reports = tmp_path / "data", tmp_path / "reports"
    for name in (*site.STUDIES, "published", "calibration"):
        shutil.copytree(ROOT / "data" / name, data / name)
    shutil.copytree(site.REPORTS, reports)
    assert [*site.problems(data, reports)] == []
    with (data / "memory-recorded" / "study.json").open("a") as file:
        file.write(" ")
    (reports / "storage-recorded.html").unlink()
    assert [*site.problems(data, reports)] == [
        "reports/storage-recorded.html is missing",
        "data/memory-recorded has changed since reports/ was made",
    ]


def test_every_notebook_has_a_page():
    studies = [json.loads((ROOT / "data" / name / "study.json").read_text()) for name in site.STUDIES]
    notebooks = {path.stem for path in ROOT.glob("notebooks/*.ipynb")}
    assert {study["notebook"] for study in studies} | {"summary"} == notebooks


def test_the_readme_s_results_are_those_of_the_pages():
    readme = (ROOT / "README.md").read_text()
    assert readme_of_results.table() in readme, "run 'make reports' and 'make readme'"


@pytest.mark.parametrize("name", site.STUDIES)
def test_a_page_has_the_numbers_and_verdicts_of_its_study(name):
    wanted = {row["level"]: row for row in GOLDEN[name]}
    page = json.loads((site.REPORTS / f"{name}.json").read_text())
    assert page["name"] == name
    assert page["comparisons"]
    for row in page["comparisons"]:
        golden = wanted[row["level"]]
        assert row["verdict"] == golden["verdict"]
        assert [row[key] for key in NUMBERS] == pytest.approx([golden[key] for key in NUMBERS], rel=1e-9)


@pytest.mark.parametrize("name", [*site.STUDIES, "summary"])
def test_an_executed_notebook_has_the_cells_of_the_notebook_as_it_is(name):
    executed = nbformat.read(site.REPORTS / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in executed.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    factor = re.search(r'^factor: str = "(\w+)"', "\n".join(cell.source for cell in cells), re.MULTILINE)[1]
    notebook = nbformat.read(ROOT / "notebooks" / f"{factor}.ipynb", as_version=4)
    assert [cell.source for cell in cells] == [cell.source for cell in notebook.cells], "run 'make reports'"
    assert all(cell.get("execution_count") for cell in cells if cell.cell_type == "code")
    assert not any(output.output_type == "error" for cell in cells for output in cell.get("outputs", ()))


def test_the_site_is_small_and_names_no_machine():
    files = [site.REPORTS / name for name in site.FILES]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    traces = re.compile(r"(?<![\w.])/(work|root|home/\w|Users/\w|tmp/\w)")
    found = {path.name: match[0] for path in files if (match := traces.search(path.read_text()))}
    assert found == {}


def test_links_between_pages_lead_somewhere():
    for page in (site.REPORTS / name for name in site.FILES if name.endswith(".html")):
        for link in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', page.read_text()):
            assert (site.REPORTS / unquote(link)).is_file(), f"{page.name}: {link}"


def test_git_takes_these_files_and_no_page_of_a_user():
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    names = [*site.FILES, "mine-quick.html", "configuration-shares-recorded.html", "configuration-quick.json"]
    paths = "".join(f"reports/{name}\n" for name in names)
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"], cwd=ROOT, input=paths, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert ignored.stdout.split() == [f"reports/{name}" for name in names[len(site.FILES) :]]
