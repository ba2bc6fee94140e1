"""The table of what differs between the levels, laid out from the words that a study has of them."""

from benchlib.report.figures.tables import levels_table
from bs4 import BeautifulSoup, Tag

from benchlib.plan.level import Level
from benchlib.plan.model import Factor, Load, Plan, Study
from benchlib.plan.workload import Script, Workload

WORDS = {
    "defaults": {"PostgreSQL": "default", "max_connections": "120", "work_mem": "default"},
    "more": {"PostgreSQL": "default", "max_connections": "120", "work_mem": "8MB"},
    "theirs": {"PostgreSQL": "as it is there", "max_connections": "120", "work_mem": "default"},
}
COSTS = {"defaults": (), "more": ("torn pages", "lost commits"), "theirs": ()}


def study(**kept: object) -> Study:
    levels = {
        "defaults": Level(),
        "more": Level(settings={"work_mem": "8MB"}),
        "theirs": Level(target="postgresql://db.example.org/x"),
    }
    work = Workload(name="w", title="W", scripts=(Script(builtin="tpcb-like"),))
    plan = Plan(factor=Factor(question="?", baseline="defaults", levels=levels), workload=work, load=Load(), scale=1, seed=1)  # fmt: skip
    return Study.model_validate({"name": "s", "title": "S", "plan": plan, "trials": (), **kept})


def table(of: Study) -> tuple[BeautifulSoup, dict[str, list[Tag]]]:
    soup = BeautifulSoup(levels_table(of).html, "html.parser")
    return soup, {tr.th.get_text(): tr.find_all("td") for tr in soup.tbody.find_all("tr")}


def test_only_what_differs_has_a_row_and_the_rest_is_beneath_it() -> None:
    soup, rows = table(study(levels_in_words=WORDS, crash_costs=COSTS))
    assert {heading: [cell.get_text() for cell in cells] for heading, cells in rows.items()} == {
        "PostgreSQL": ["default", "default", "as it is there"],
        "work_mem": ["default", "8MB", "default"],
        "a crash may cost": ["nothing", "torn pages; lost commits", "not known of that server"],
    }
    assert soup.find(class_="bl-note").get_text() == "The same at every level: max_connections = 120."
    assert [cell.get("class") for cell in rows["work_mem"]] == [["bl-quiet"], None, ["bl-quiet"]]


def test_a_study_without_words_names_no_server() -> None:
    soup, rows = table(study())
    assert "example.org" not in str(soup)
    assert {cell.get_text() for cell in rows["a crash may cost"]} == {"not kept"}
