"""A study's page, the index and all comparisons in a real browser, offline: what only a browser can tell of them."""

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from report_parts import code, displayed, notebook, printed, prose

from benchlib.report import plot, site
from benchlib.report.display import figure_output
from benchlib.report.model import Limit
from benchlib.report.page import notebook_parts
from benchlib.stats.effects import compare

# Playwright would download a browser of its own; the system's is the one that readers have.
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]
WIDE, PHONE, PAPER = (1280, 900), (390, 800), (657, 940)
"""The last is A4 within the margins of the print styles, in CSS pixels."""
PAGES = ("mine", "index", "comparisons", "methodology")


@pytest.fixture(scope="module")
def pages(tmp_path_factory, page_of, trials_of) -> dict[str, Path]:
    """A site of one study whose page has each kind of cell."""
    root = tmp_path_factory.mktemp("site")
    limit = Limit(code="no_control", text="There is no A/A control.")
    long = {"a name of a level that goes on and on, with, many, parts, and 4096MB": 30.0, "slow": -20.0}
    about = {
        "limits": (limit, limit), "setup": {"server": "PostgreSQL 18", "machine": "2 cores, 4 GiB"}, "title": "Mine",
        "question": "Does it help?", "notebook": "memory", "created": "2026-01-01",
    }  # fmt: skip
    page = page_of({"tuned": "the tuned set instead of defaults"}, about=about, tuned=10.0, **long)
    wide = pd.DataFrame(np.arange(60).reshape(3, 20), columns=[f"a column {n}" for n in range(20)])
    drawn = plot.effects(compare(trials_of(tuned=10.0), baseline="defaults", controls=["control"]))
    cells = [
        prose("# Mine\n\n## Why\n\nSee [the manual](https://www.postgresql.org/docs/).\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```sh\nmake demo\n```"),
        code("x = 1", printed("first\n" + "wide " * 100), tags=("parameters",)),
        code("wide", displayed(html=wide.to_html(border=0))),
        code("plot.effects(effects)", figure_output(drawn)),
    ]  # fmt: skip
    plt.close("all")
    (root / "mine.trials.csv").write_text("block,level,tps\n")
    told = {"data": page, "downloads": {"mine.trials.csv": "trials"}, "repeat": f"benchlib {'long ' * 90}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(site.REPORTS_VARIABLE, str(root))
        site.write_page("mine", "page.html.j2", **told, **notebook_parts(notebook(*cells), titled=True))
        site.write_site([page], {"hurt": "it is damaged"})
    return {name: root / f"{name}.html" for name in PAGES}


@pytest.fixture(scope="module")
def browser() -> Any:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser) -> Any:
    """A tab of a browser without a network, whose animations are off."""
    context = browser.new_context(offline=True, reduced_motion="reduce")
    yield context.new_page()
    context.close()


def show(tab: Any, path: Path, size: tuple[int, int] = WIDE) -> None:
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.goto(path.as_uri())


OPENED = "document.querySelectorAll('details').forEach(fold => fold.open = true)"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_nothing_of_a_network_and_the_console_stays_empty(name, pages, tab):
    asked, messages = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    show(tab, pages[name])
    assert [url for url in asked if url != pages[name].as_uri() and not url.startswith("data:")] == []
    assert messages == []


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_never_scrolls_sideways_and_its_headings_and_figures_are_seen(name, size, pages, tab):
    show(tab, pages[name], size)
    tab.evaluate(OPENED)
    wide, inside = tab.evaluate("(e => [e.scrollWidth, e.clientWidth])(document.documentElement)")
    assert wide <= inside
    assert tab.locator("main h1").is_visible()
    shown = "[...document.querySelectorAll('figure img')].map(e => e.complete && e.naturalWidth > 50)"
    assert all(tab.evaluate(shown))


@pytest.mark.parametrize("name", PAGES)
def test_an_accessibility_checker_finds_nothing(name, pages, tab):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: make setup"
    )
    found = []
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", PHONE)):
        tab.emulate_media(color_scheme=scheme)
        show(tab, pages[name], size)
        tab.evaluate(OPENED)
        rules = axe.Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
        found += [f"{scheme}, {size[0]} px: {rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in rules]
    assert found == []


def brightness(tab: Any) -> int:
    return int(tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))


def test_a_page_is_dark_for_who_wants_that_and_light_on_paper(pages, tab):
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        show(tab, pages["mine"])
        assert (brightness(tab) < 60) == (scheme == "dark")
    tab.emulate_media(media="print", color_scheme="dark")
    show(tab, pages["mine"], PAPER)
    assert brightness(tab) > 240
    assert not tab.locator("nav").first.is_visible()
    beyond = "[...document.querySelectorAll('main :not(svg *, .wide *)')].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 90))"
    assert tab.evaluate(beyond) == []


def test_the_text_of_a_figure_has_ten_pixels_on_a_phone(pages, tab):
    show(tab, pages["mine"], PHONE)
    natural, shown = tab.evaluate("(e => [e.naturalWidth, e.width])(document.querySelector('figure img'))")
    assert 10 / 0.75 * shown / natural >= 9.9, "a text of 10 points"


def test_every_link_leads_somewhere(pages, tab):
    links, anchors = {}, {}
    for name, path in pages.items():
        show(tab, path)
        links[name] = tab.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)")
        anchors[path] = tab.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    for link in {link for of in links.values() for link in of}:
        address, anchor = urldefrag(link)
        if link.startswith("file:"):
            target = Path(unquote(address.removeprefix("file://")))
            assert target.is_file(), link
            assert not anchor or "=" in anchor or unquote(anchor) in anchors[target], link
        else:
            assert link.startswith("https:")


def test_comparisons_are_sorted_by_a_heading_and_filtered_by_their_address(pages, tab):
    show(tab, pages["comparisons"])
    rows = tab.locator("#comparisons tbody tr:visible")
    assert rows.count() == 3
    tab.goto(f"{pages['comparisons'].as_uri()}#verdict=slower")
    assert rows.count() == 1
    tab.goto(f"{pages['comparisons'].as_uri()}#factor=memory")
    assert rows.count() == 3
    changes = (
        "[...document.querySelectorAll('#comparisons td[data-value]')].map(e => parseFloat(e.dataset.value))"
    )
    tab.locator("#comparisons th", has_text="change").locator("button").click()
    up = tab.evaluate(changes)
    tab.locator("#comparisons th", has_text="change").locator("button").click()
    down = tab.evaluate(changes)
    assert sorted(up) in (up, down)
    assert up == down[::-1]


def test_a_figure_can_be_taken_along_as_a_drawing_a_picture_and_numbers(pages, tab, tmp_path):
    show(tab, pages["mine"])
    for kind, begins in (("svg", b"<"), ("png", b"\x89PNG"), ("csv", b"level,")):
        with tab.expect_download() as download:
            tab.locator(f"figure [data-get={kind}]").click()
        download.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(begins)
