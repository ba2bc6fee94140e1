"""The site: a row a factor, all comparisons, and data beside the pages that are judged anew when the study or the code has changed."""

import pytest
from bs4 import BeautifulSoup

from benchlib.errors import InputError, StudyError
from benchlib.report import site


def parsed(path):
    return BeautifulSoup(path.read_text(), "html.parser")


def rows(path):
    return [[cell.get_text(" ") for cell in row.find_all("td")] for row in parsed(path).select("tbody tr")]


@pytest.fixture
def root(data_root, tmp_path):
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


def test_the_index_has_a_row_a_factor_and_the_comparisons_have_one_each(root, page_of):
    pages = [
        page_of(about={"name": name, "notebook": factor, "title": name.title()}, tuned=10.0, other=-10.0)
        for factor, name in (("memory", "memory"), ("memory", "memory-areas"), ("storage", "storage"), ("storage", "no-page"))
    ]  # fmt: skip
    pages = [page.model_copy(update={"alpha": 0.005}) for page in pages]
    for page in pages[:3]:
        (root / f"{page.name}.html").touch()
    index = site.write_site(pages, {"hurt": "/home/me/data/study.json is <damaged>"})
    first, second = rows(index)
    assert "Memory" in first[0]
    assert "Storage" in second[0]
    assert "3 more" in first[5], "of its own study and of the other one"
    text = parsed(index).get_text(" ")
    assert "…/study.json is <damaged>" in text
    assert "99.5 % interval" in text
    assert "no-page" in text
    table = rows(root / "comparisons.html")
    assert len(table) == 6, "no controls"
    assert {row[4].split()[-1] for row in table} == {"faster", "slower"}
    assert (root / "methodology.html").is_file()
    hrefs = [a["href"] for a in parsed(index).select("tbody a")]
    assert hrefs[:2] == ["memory.html", "comparisons.html#factor=memory"]


def test_nobody_s_name_is_obeyed_on_the_site(root, page_of):
    evil = "</title><script>zapped()</script>\" onmouseover='zapped()' {{ 7777 * 7777 }}"
    page = page_of(
        about={"title": evil, "question": evil, "notebook": evil, "name": "mine", "created": evil}, tuned=1.0
    )
    (root / "mine.html").touch()
    site.write_site([page], {evil: evil})
    for name in ("index.html", "comparisons.html"):
        tree = parsed(root / name)
        assert len(tree.find_all("script")) == 1
        assert not [tag for tag in tree.find_all(True) for each in tag.attrs if each.startswith("on")]
        assert "59481729" not in tree.get_text()


def test_a_site_of_nothing_says_how_to_begin(root):
    assert "No study is saved yet" in parsed(site.write_site([], {})).get_text()


def test_what_lies_beside_the_page_is_used_until_study_or_code_changes(kept, root, monkeypatch):
    folder = kept("one", 20)
    first = site.data_of("one")
    assert [answer.verdict for answer in first.answers] == ["faster"]
    assert (root / "one.json").is_file()
    judged = []
    monkeypatch.setattr(site, "judged", lambda name: judged.append(name) or first)
    assert site.data_of("one") == first
    assert judged == []
    folder.write(folder.read().model_copy(update={"title": "Another"}))
    site.data_of("one")
    assert judged == ["one"], "the study has changed"
    site.data_of("one")
    monkeypatch.setattr(site, "code_fingerprint", lambda: "another")
    site.data_of("one")
    assert judged == ["one"] * 2, "the code has changed"
    (root / "one.json").write_text("{")
    site.data_of("one")
    assert judged == ["one"] * 3, "the file is damaged"


def test_what_cannot_be_judged_is_left_out_with_its_reason(kept, folder_of, root):
    kept("one", 20)
    kept("alone", levels={})
    folder_of(name="bare")
    (folder_of(name="hurt").path / "study.json").write_text("{")
    pages, others = site.pages_and_others()
    assert [page.name for page in pages] == ["one"]
    assert {*others} >= {"alone", "bare", "hurt"}
    assert "bare" in others["bare"]
    assert "baseline alone" in others["alone"]
    for name, kind in (("nope", InputError), ("hurt", InputError), ("bare", StudyError)):
        with pytest.raises(kind, match=name):
            site.data_of(name)
