"""The pages: self-contained, in order, readable by everybody and every browser, the same each time."""

import base64
import copy
import dataclasses
import hashlib
import re

import nbformat.v4 as v4
import pandas as pd
import pytest
from benchlib.report.figures.changes import forest
from benchlib.report.figures.tables import html_table
from bs4 import BeautifulSoup

from benchlib.plan.planning import PANELS
from benchlib.report.page import SITE, Page, render_page, render_prose

ENTRY = {
    "name": "configuration",
    "title": "Configuration",
    "panel": "changes",
    "headline": "Against “defaults”: the tuned set +118 %, faster.",
    "question": "Does tuning help?",
    "limits": "5 blocks of 30 s",
    "short_limits": "5 blocks of 30 s",
    "facts": {"Measured": "2026-10-21", "Machine": "2 cores", "Server": "PostgreSQL 18.4", "Load": "insert"},
}


def listing(**values):
    """The index."""
    empty = {
        "entries": [],
        "panels": PANELS,
        "titles": {"Configuration": 2},
        "figure": None,
        "pages": set(),
        "left_out": {},
    }
    return render_prose(Page(SITE, question="What helps?"), "listing.html.j2", **{**empty, **values})


@pytest.fixture(scope="module")
def html(notebook, page):
    return render_page(notebook, page)


@pytest.fixture(scope="module")
def index(analysis):
    studies = [*[ENTRY] * 29, {**ENTRY, "panel": "costs"}]
    return listing(entries=studies, figure=forest(analysis), pages={"summary"})


@pytest.fixture(scope="module", params=["study", "index", "empty"])
def each(request, html, index):
    text = {"study": html, "index": index, "empty": listing()}[request.param]
    return BeautifulSoup(text, "html.parser")


@pytest.fixture(scope="module")
def soup(html):
    return BeautifulSoup(html, "html.parser")


def test_nothing_is_requested(each):
    for tag in each.find_all(True):
        for name in ("src", "srcset", "data", "poster", "background", "action"):
            assert str(tag.get(name, "data:")).startswith("data:"), tag
        assert not re.search(r"url\((?!#|data:)|@import", str(tag.get("style", "")))
    assert [link["href"][:5] for link in each.find_all("link")] == ["data:"]
    for text in [*each.find_all("style"), *each.find_all("script")]:
        assert not re.search(r"https?:|//\w|url\(|@import", text.get_text())
    policy = each.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    assert policy.startswith("default-src 'none'")


def test_the_document_is_whole(each):
    assert str(each).lstrip().startswith("<!DOCTYPE html>")
    assert each.html["lang"] == "en"
    assert each.find("meta", attrs={"name": "viewport"})["content"] == "width=device-width, initial-scale=1"
    assert each.title.get_text()
    assert len(each.find_all("main")) == len(each.find_all("h1")) == 1
    assert each.find("a", class_="bl-skip")["href"] == f"#{each.main['id']}"
    assert each.find("header")
    assert each.find("footer")


def test_ids_are_unique_and_anchors_lead_somewhere(each):
    ids = [tag["id"] for tag in each.find_all(id=True)]
    assert len(ids) == len(set(ids))
    refs = re.findall(r'(?:url\(#|href="#)([^)"]+)', str(each))
    assert set(refs) <= set(ids)


def test_same_input_gives_the_same_bytes(notebook, page, html, index, analysis):
    other = copy.deepcopy(notebook)
    for number, cell in enumerate(other.cells):
        cell["id"] = f"other{number}"
    assert render_page(other, page) == html
    assert notebook.cells[0].source.startswith("# Configuration"), "the notebook itself is left alone"


def test_the_header_says_it_all(soup, page):
    main = soup.main
    assert main.h1.get_text() == page.title
    assert [badge.get_text() for badge in main.find_all(class_="bl-badge")] == ["▲ faster", "■ equivalent"]
    assert page.headline in main.find(class_="bl-headline").get_text()
    assert page.limits in main.find(class_="bl-limits").get_text()
    assert [dt.get_text() for dt in main.find_all("dt")] == ["Study", "Measured"]
    assert "(tuned-set), measured 2026-10-21 with" in main.find(class_="bl-cite").get_text()
    about = {tag["property"]: tag["content"] for tag in soup.find_all("meta", property=True)}
    assert about["og:title"] == page.title
    assert about["og:image"] == "configuration.png"
    assert soup.find("meta", attrs={"name": "description"})["content"] == page.headline
    assert [a["href"] for a in main.find(class_="bl-downloads").find_all("a")] == [
        "configuration.ipynb",
        "trials.csv",
    ]


def test_a_published_page_names_its_address(notebook, page):
    address = "https://example.org/configuration.html"
    soup = BeautifulSoup(render_page(notebook, dataclasses.replace(page, address=address)), "html.parser")
    assert soup.find("meta", property="og:url")["content"] == address
    assert soup.footer.a["href"] == address


@pytest.mark.parametrize(("rows", "folded"), [(20, False), (21, True)])
def test_long_tables_are_folded_and_say_how_long_they_are(page, rows, folded):
    table = html_table(pd.DataFrame({"level": range(rows), "tps": range(rows)}), "Every level")
    output = v4.new_output("display_data", {"text/html": table._repr_html_()})
    notebook = v4.new_notebook(cells=[v4.new_code_cell(outputs=[output])])
    fold = BeautifulSoup(render_page(notebook, page), "html.parser").find("details", class_="bl-long")
    assert (fold is not None) == folded
    if fold:
        assert fold.summary.get_text() == "Every level (21 rows)"
        assert fold.find(class_="bl-scroll").table


def test_contents_are_listed_for_wide_and_for_small_screens(soup):
    for place in (soup.find("nav", class_="bl-side"), soup.find("details", class_="bl-fold")):
        words = [a.get_text() for a in place.find_all("a")]
        assert words == ["Levels", "The effect", "The effect"]
        assert len({a["href"] for a in place.find_all("a")}) == 3


def test_only_results_are_shown(html):
    for absent in (
        "source code",
        "a warning for the log",
        "hidden words",
        "PLAIN TWIN",
        "\x1b",
        "mathjax",
        "MathJax",
        "jp-",
        "cell-id",
    ):
        assert absent not in html, absent
    assert "preflight fine &amp; well" in html
    assert "&lt;b&gt;text&lt;/b&gt;" in html, "HTML in prose is text"
    assert "$5 and $6" in html


def test_what_would_load_becomes_a_link_or_goes(soup):
    assert soup.main.find("a", href="https://example.org/a.png").get_text() == "far away"
    for name in ("script", "iframe", "style", "link", "img"):
        assert soup.main.find(name) is None


HOSTILE = [
    "<script>alert(1)</script>",
    "<svg onload=alert(1)><a xlink:href='javascript:alert(1)'><text>x</text></a></svg>",
    "<svg><style><img src=x onerror=alert(1)></style><use href='https://example.org/#a'/></svg>",
    "<svg><image href='https://example.org/a.png'/><image href='data:image/svg+xml,<svg/>'/></svg>",
    "<svg><foreignObject><iframe srcdoc='<script>1</script>'></iframe></foreignObject><animate onbegin=alert(1) /></svg>",
    "<p><noscript><p title='</noscript><img src=x onerror=alert(1)>'></noscript></p>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=x onerror=alert(1)&gt;'>",
    "<div style='background:u\\72l(https://example.org)' ONCLICK=alert(1) class=x>x</div>",
    "<div style='background:image-set(\"https://example.org\" 1x);position:fixed'>x</div>",
    "<a href='java\tscript:alert(1)'>x</a><a href='//example.org'>x</a><a href='\\\\example.org'>x</a>",
    "<a href='data:text/html,<script>alert(1)</script>' target=_blank ping=https://example.org>x</a>",
    "<form action=https://example.org><button formaction='javascript:alert(1)'>x</button></form>",
    "<meta http-equiv=refresh content='0;url=https://example.org'><base href=https://example.org>",
    "<textarea><!--</textarea><img src=x onerror=alert(1)>--></textarea><!--><img src=x onerror=alert(1)>-->",
    "<![CDATA[><img src=x onerror=alert(1)>]]><?xml-stylesheet href='https://example.org'?>",
    "<template><img src=x onerror=alert(1)></template><object data=https://example.org></object>",
    "<video autoplay onplay=alert(1) src=https://example.org></video><audio src=x onerror=alert(1)>",
    "<table background=https://example.org><tr><td>kept</table><xmp><img src=x onerror=alert(1)></xmp>",
]


@pytest.mark.parametrize("html", HOSTILE)
def test_of_an_outputs_html_nothing_runs_loads_or_leads_out(page, html):
    outputs = [v4.new_output("display_data", {kind: html}) for kind in ("text/html", "image/svg+xml")]
    outputs.append(v4.new_output("display_data", {"text/markdown": html, "text/plain": html}))
    cells = [v4.new_code_cell(outputs=outputs), v4.new_markdown_cell(html)]
    main = BeautifulSoup(render_page(v4.new_notebook(cells=cells), page), "html.parser").main
    live = {
        "script",
        "style",
        "iframe",
        "img",
        "form",
        "button",
        "base",
        "meta",
        "object",
        "template",
        "animate",
    }
    assert not live & {tag.name for tag in main.find_all(True)}
    for cell in main.select(".bl-output"):
        for tag in cell.find_all(True):
            assert not re.search(
                r"(?i)\bon\w+|example|alert|script", " ".join(map(str, [*tag.attrs, *tag.attrs.values()]))
            )


def test_the_policy_lets_the_pages_own_script_run_and_no_other(each):
    (script,) = each.find_all("script")
    digest = base64.b64encode(hashlib.sha256(script.get_text().encode()).digest()).decode()
    policy = each.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    assert f"script-src 'sha256-{digest}';" in policy


def test_tables_scroll_by_keyboard_and_have_headers(soup):
    tables = soup.main.find_all("table")
    assert len(tables) == 3
    for table in tables[:2]:  # the last is pandas' own
        region = table.find_parent(class_="bl-scroll")
        assert (region["role"], region["tabindex"]) == ("region", "0")
        assert region["aria-label"]
        assert all(th.get_text(strip=True) for th in table.find_all("th"))
        assert {th["scope"] for th in table.find_all("th")} <= {"col", "row"}
    assert all(pre["tabindex"] == "0" for pre in soup.find_all("pre"))


def test_the_notebooks_own_title_goes_and_others_are_sections(page):
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("# One\n\n## Part\n\n# Two")])
    soup = BeautifulSoup(render_page(notebook, page), "html.parser")
    found = [(tag.name, tag.get_text()) for tag in soup.main.find_all(re.compile("^h[1-6]$"))][1:]
    assert found == [("h2", "Part"), ("h2", "Two")]


def words_of(cells, page):
    main = BeautifulSoup(render_page(v4.new_notebook(cells=cells), page), "html.parser").main
    return [part.get_text(strip=True) for part in main.select(".bl-prose, .bl-text")]


def test_prose_whose_code_shows_nothing_goes_with_it(page):
    shows = v4.new_output("display_data", {"text/plain": "- output"})
    absent = v4.new_output("display_data", {"text/html": '<p class="bl-absent">- never kept</p>'})

    def code(*outputs, **metadata):
        return v4.new_code_cell("-", outputs=[*outputs], metadata=metadata)

    prose = v4.new_markdown_cell
    cells = [
        prose("## -A"), code(), code(absent),
        prose("## -B"), code(), prose("-b"), code(shows),
        prose("## -C"), prose("-c alone"), code(tags=["parameters"]),
        prose("## -D"), code(), prose("-d"),
    ]  # fmt: skip
    assert words_of(cells, page) == ["-B", "-b", "- output", "-C", "-c alone", "-d"]


def test_a_section_is_folded_from_its_heading_to_the_next(page):
    output = v4.new_output("display_data", {"text/plain": "inside"})
    cells = [
        v4.new_markdown_cell("## Details\n\nsome", metadata={"tags": ["folded"]}),
        v4.new_code_cell(outputs=[output]),
        v4.new_markdown_cell("### Part"),
        v4.new_markdown_cell("## Open"),
    ]
    soup = BeautifulSoup(render_page(v4.new_notebook(cells=cells), page), "html.parser")
    fold = soup.main.find("details", class_="bl-part")
    assert fold.summary.h2.get_text() == "Details"
    assert "some" in fold.get_text()
    assert "inside" in fold.get_text()
    assert fold.h3.get_text() == "Part"
    assert "Open" not in fold.get_text()
    assert [a.get_text() for a in soup.find("nav", class_="bl-side").find_all("a")] == ["Open", "Details"]


def test_figures_and_tables_are_numbered_in_their_order_and_each_shown_once(page, analysis):
    def shown(*things):
        return v4.new_code_cell(
            outputs=[v4.new_output("display_data", {"text/html": t._repr_html_()}) for t in things]
        )

    table = html_table(pd.DataFrame({"level": ["a"]}), "Every level")
    second, same = (
        dataclasses.replace(forest(analysis), name="drift"),
        dataclasses.replace(forest(analysis), caption="another"),
    )
    cells = [shown(forest(analysis), table, second, same, forest(analysis))]
    main = BeautifulSoup(render_page(v4.new_notebook(cells=cells), page), "html.parser").main
    numbered = [
        (figure.find(class_="bl-number-of").get_text(), figure["id"]) for figure in main.find_all("figure")
    ]
    assert numbered == [
        ("Figure 1.", "figure-1"),
        ("Figure 2.", "figure-2"),
        ("Figure 3.", "figure-3"),
    ]
    assert main.caption.get_text() == "Table 1. Every level"
    assert main.find(id="table-1").find("table")


def test_index_lists_every_study(index):
    soup = BeautifulSoup(index, "html.parser")
    assert [h2.get_text() for h2 in soup.find_all("h2")] == [
        "Changes you can make",
        "Costs you accept",
        "Read on",
    ]
    lists = soup.find_all(class_="bl-studies")
    assert [len(each.find_all("li", recursive=False)) for each in lists] == [29, 1]
    studies = lists[0].find_all("li")
    words = studies[0].get_text(" ", strip=True)
    for part in (
        "Configuration",
        "Does tuning help?",
        "the tuned set +118\u00a0%",
        "5 blocks of 30 s · 2026-10-21",
    ):
        assert part in words
    assert studies[0].h3.a["href"] == "configuration.html"
    assert studies[0].h3.get_text() == "Configuration (configuration)", "another study has the title too"
    assert [a["href"] for a in soup.select(".bl-more a")] == ["summary.html", "methodology.html"]
    assert len(soup.find_all("figure")) == 1
