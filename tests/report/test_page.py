"""A page is the executed notebook: its cells in their order with the code folded, answers above; and nobody's text is obeyed on it."""

import re

import pytest
from bs4 import BeautifulSoup
from report_parts import answer, code, displayed, notebook, printed, prose

from benchlib.report.display import ABOUT
from benchlib.report.model import Limit
from benchlib.report.page import cleaned, notebook_parts, render, shown_frames

EVIL = """</pre></style></title><script>zapped(1)</script>"' onmouseover=zapped(2) <svg onload=zapped(3)><style>@import '//evil.example'</style></svg>
<img src=https://evil.example/a.png onerror=zapped(4)><a href="javascript:zapped(5)">a</a><iframe src=//evil.example></iframe>
<object data=//evil.example></object><form action=//evil.example><input autofocus onfocus=zapped(6)></form><base href=//evil.example>
{{ 7777 * 7777 }}{% raw %}\x1b]0;zapped\x07\u202e\x00<meta http-equiv=refresh content="0;//evil.example">"""
MARKDOWN = f"{EVIL}\n\n[b](javascript:zapped(7)) ![c](https://evil.example/b.png) ![d](data:text/html,<script>)\n\n```\n{EVIL}\n```\n"


@pytest.fixture
def page(page_of):
    """Renders cells as the page of a small study."""

    def make(*cells, about=None, downloads=(), **more):
        told = {
            "data": page_of(tuned=10.0, about=about),
            "downloads": dict(downloads),
            "repeat": "benchlib analyze",
        }
        return render("page.html.j2", **told, **notebook_parts(notebook(*cells), titled=True), **more)

    return make


def parsed(html):
    return BeautifulSoup(html, "html.parser")


def test_the_answers_come_first_and_then_the_notebook_in_its_own_order(page):
    about = {ABOUT: {"caption": "How to read it.", "alt": "It rises.", "csv": "a,b"}}
    cells = [
        prose("# Title\n\nThe question, which the page has.\n\n## About\n\nFirst words."),
        code("x = 1", printed("second words\n"), tags=("parameters",)),
        prose("## Why\n\nThird words."),
        code("df", displayed(html="<table><tr><th>fourth</th></tr></table>", text="PLAIN TWIN")),
        code("secret()", printed("fifth"), tags=("injected-parameters",)),
        code("plot()", displayed(svg="<svg>drawn</svg>", metadata=about)),
    ]
    html = page(*cells)
    text = parsed(html).find("main").get_text(" ")
    places = [text.index(words) for words in ("Tuned was faster", "Answers", "What limits them", "First words", "second words", "Third words", "fourth", "How to read it", "Repeat it")]  # fmt: skip
    assert places == sorted(places)
    assert "PLAIN TWIN" not in text
    assert "which the page has" not in text
    assert "secret()" not in text, "what papermill adds is not shown"
    folded = parsed(html).select("details.code")
    assert [fold.find("summary").get_text() for fold in folded] == ["Parameters", "Code", "Code"]
    assert not any(fold.has_attr("open") for fold in folded)
    image = parsed(html).find("figure").find("img")
    assert (image["alt"], image["src"].partition(",")[0]) == ("It rises.", "data:image/svg+xml;base64")
    assert html == page(*cells), "the same each time"


def test_a_figure_that_gives_the_answers_stands_above_their_table_and_comes_first(page):
    drawn = [
        code(name, displayed(svg=f"<svg>{name}</svg>"), tags=tags)
        for name, tags in (("trials()", ()), ("heat()", ("answers",)))
    ]
    main = parsed(page(*drawn, code("nothing()", tags=("answers",)))).find("main")
    assert [place["id"] for place in main.select("#answers, #figure-1, #limits, #figure-2")] == [
        "answers",
        "figure-1",
        "limits",
        "figure-2",
    ]
    assert [fold.get_text() for fold in main.select("details.code code")] == [
        "heat()",
        "trials()",
        "nothing()",
    ]


def test_whatever_somebody_adds_is_shown_but_not_what_matplotlib_says_of_itself(page):
    outputs = [
        displayed(text="<Axes: xlabel='x'>"),
        displayed(text="42 things"),
        displayed(png="iVBORw0KGgo="),
        printed("a warning for the log", "stderr"),
        printed("\x1b[32mgreen\x1b[0m words"),
        displayed(html="<p>theirs</p>"),
    ]
    main = parsed(page(code("theirs", *outputs))).find("main")
    text = main.get_text(" ")
    assert all(words in text for words in ("42 things", "green words", "theirs"))
    assert "Axes" not in text
    assert "for the log" not in text
    assert "\x1b" not in text
    assert main.find("figure").find("img")["src"].startswith("data:image/png;base64,iVBOR")


ABOUT_FIGURE = {ABOUT: dict.fromkeys(("title", "caption", "alt", "csv"), EVIL)}
HOSTILE_CELLS = [
    prose(MARKDOWN),
    prose(f"## {EVIL}"),
    code(EVIL, printed(EVIL), displayed(html=EVIL), displayed(text=EVIL)),
    code("x", displayed(svg=f"<svg xmlns='http://www.w3.org/2000/svg'>{EVIL}</svg>", metadata=ABOUT_FIGURE)),
    code("x", displayed(png=f'" onerror=zapped(8) "{EVIL}')),
]
ABOUT_EVIL = {
    "title": EVIL, "question": EVIL, "notebook": EVIL, "baseline": EVIL, "metric_title": EVIL, "unit": EVIL, "complete": EVIL,
    "setup": {EVIL: EVIL}, "left_out": {EVIL: EVIL}, "limits": (Limit(code=EVIL, level=EVIL, value=EVIL, text=EVIL),),
    "comparisons": (answer("faster", level=EVIL, against=EVIL, limit=EVIL), answer(EVIL, answer=EVIL)),
}  # fmt: skip


def test_what_was_not_declared_is_called_exploratory_in_one_sentence(page_of):
    def shown(**levels):
        data = page_of(levels, tuned=10.0, other=0.0)
        parts = notebook_parts(notebook(), titled=True)
        return render("page.html.j2", data=data, downloads={}, repeat="", **parts)

    said = "Exploratory: these comparisons were not declared as answers before the run"
    assert (shown(other="the other").count(said), shown().count(said)) == (1, 0)


def test_an_interval_without_a_practical_end_is_said_to_be_beyond_what_can_be_stated(page):
    html = page(about={"comparisons": (answer("inconclusive", ci_low=-100.0, ci_high=6.9e147),)})
    assert "[−100, &gt; 1,000]" in html
    assert not re.search(r"[\d,]{20}", parsed(html).find("main").get_text())


def test_nobody_s_text_is_obeyed_wherever_it_stands(page):
    html = page(*HOSTILE_CELLS, about=ABOUT_EVIL, downloads={f"x{EVIL}": EVIL})
    tree = parsed(html)
    assert len(tree.find_all("script")) == 1
    assert "zapped" not in tree.find("script").get_text()
    assert not tree.find_all(["iframe", "object", "form", "input", "base", "embed"])
    assert [meta.get("http-equiv") for meta in tree.find_all("meta") if meta.get("http-equiv")] == ["Content-Security-Policy"]  # fmt: skip
    for tag in tree.find_all(True):
        assert not [name for name in tag.attrs if name.startswith("on")], tag
        for name in ("src", "href", "action", "style", "srcset"):
            address = str(tag.get(name, ""))
            assert not re.match(r"(?i)\s*(javascript|vbscript|data:text)", address), tag
            assert name not in ("src", "srcset") or not address or address.startswith("data:image/"), tag
    assert "59481729" not in html.replace(",", "")
    assert not re.search("[\x00\x07\x1b\u202e]", html)
    assert len(tree.find_all("main")) == len(tree.find_all("title")) == 1


def test_a_page_may_run_its_own_script_alone_and_load_nothing(page):
    policy = parsed(page()).find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", rules["script-src"])
    assert {rules[name] for name in ("base-uri", "form-action")} == {"'none'"}


@pytest.mark.parametrize(
    ("html", "left"),
    [
        ("<b>bold</b><script>x</script>", "<b>bold</b>"),
        ("<p style='position:fixed' class=a id=main onclick=x>t</p>", "<p>t</p>"),
        ("<table><tr><th>a</th><td colspan=2>b</td></tr></table>", '<td colspan="2">b</td>'),
        ("<style>body{display:none}</style>x", "x"),
        ("<svg><script>x</script></svg>", ""),
    ],
)
def test_html_of_an_output_keeps_its_tables_and_loses_what_acts(html, left):
    assert left in cleaned(html)
    assert not re.search("script|style|onclick|class=a|id=", cleaned(html))


def test_headings_are_the_contents_and_each_anchor_is_there_once(page):
    tree = parsed(page(prose("# Title\n\n## The effect\n\n### Below"), prose("## The effect")))
    anchors = [tag["id"] for tag in tree.find_all(id=True)]
    assert len(anchors) == len({*anchors})
    links = [a["href"].removeprefix("#") for a in tree.select("nav.toc a")]
    assert {*links} <= {*anchors}
    assert [link for link in links if "effect" in link] == ["The-effect", "The-effect-2"]
    assert len(tree.find_all("h1")) == 1


def test_where_the_site_is_published_links_lead_there(page):
    html = page(downloads={"mine.trials.csv": "trials"}, address="https://example.org/bench/mine.html")
    tree = parsed(html)
    (link,) = [a["href"] for a in tree.find_all("a") if a.get_text() == "trials"]
    assert link == "https://example.org/bench/mine.trials.csv"


def test_the_data_of_a_page_are_those_of_the_whole_frame_though_a_part_is_shown_later():
    def frame(kind, *rows):
        data = {"kind": kind, "rows": [{"level": row} for row in rows], "attrs": {}}
        return code("x", displayed(data=data))

    whole = notebook(frame("effects", "a", "b"), frame("limits", "x"), frame("effects", "b"))
    frames = shown_frames(whole)
    assert [row["level"] for row in frames["effects"]["rows"]] == ["a", "b"]
    assert len(frames["limits"]["rows"]) == 1


def test_only_the_notebook_s_own_title_is_left_out():
    cells = prose("# Template\n\nFirst.\n\n## About\n\nIts prose."), prose("# My own check\n\nIts text.")
    for titled in (True, False):
        first, own = (cell["prose"] for cell in notebook_parts(notebook(*cells), titled=titled)["cells"])
        assert "Template" not in first
        assert '<h2 id="My-own-check">My own check</h2>' in own
        assert "Its text." in own
