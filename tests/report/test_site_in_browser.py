"""The whole site in a real browser, offline: what only a browser can tell of it.

Each test visits every page, of a made-up site and of the studies that are kept here, and tells all that it found at once.
"""

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import numpy as np
import pytest
from fakes import FakeBench

from benchlib.host.lock import LOCK_VARIABLE
from benchlib.report.execute import find_notebook, notebook_parameters
from benchlib.report.page import render_page
from benchlib.study import store
from benchlib.study.loop import run_study
from benchlib.study.store import DATA_VARIABLE, StudyFolder

# Playwright would download a browser of its own; the system's is the one that readers have.
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]

ROOT = Path(__file__).parents[2]
WIDE, PHONE = (1280, 900), (360, 740)
PAPER = (657, 940)
"""A4 within the margins of the print styles, in CSS pixels."""

Site = list[Path]


# --- the sites ----------------------------------------------------------------------


def keep_made_up(folder: Path, data: Path, study_of: Callable[..., Any]) -> None:
    """Keep two studies that ran on a fake bench."""
    parameters = {name: p.default for name, p in notebook_parameters(find_notebook("template")).items()}
    random = np.random.default_rng(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(data))
        patch.setenv(LOCK_VARIABLE, str(folder / "lock"))
        for name, gain in (("first", 2.0), ("second", 0.97)):
            about = {"notebook": "template", "title": name.title(), "parameters": parameters}
            study = study_of(5, name=name).model_copy(update=about)
            speed = dict.fromkeys(study.plan.factor.levels, 1000.0) | {"tuned": 1000.0 * gain}
            bench = FakeBench(
                study.plan,
                folder,
                lambda t, speed=speed: speed[t.level] * float(np.exp(random.normal(0, 0.01))),
            )
            kept = StudyFolder(name)
            kept.write(study)
            run_study(kept, bench.open)


@pytest.fixture(scope="module")
def site(tmp_path_factory, study_of, notebook, page) -> Site:
    """All pages of a site: of what is kept here, of two made-up studies, and one with each kind of cell."""
    folder = tmp_path_factory.mktemp("site")
    data = folder / "data"
    data.mkdir()
    for path in store.data_root().iterdir():
        (data / path.name).symlink_to(path)
    keep_made_up(folder, data, study_of)
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    command = [sys.executable, "-c", "from benchlib.cli import main; main(['report'])"]
    environment = {**os.environ, DATA_VARIABLE: str(data)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "left out: the notebook failed" not in done.stdout, done.stdout
    everything = folder / "reports" / "everything.html"  # an error is among its cells
    everything.write_text(render_page(notebook, dataclasses.replace(page, downloads={})))
    return sorted((folder / "reports").glob("*.html"))


# --- the browser --------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser) -> Iterator[Any]:
    """A tab of a browser without a network, whose animations are off."""
    context = browser.new_context(offline=True, reduced_motion="reduce")
    yield context.new_page()
    context.close()


def show(tab: Any, path: Path, size: tuple[int, int] = WIDE) -> None:
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.goto(path.as_uri())


def findings_of(site: Site, look: Callable[[Path], list[Any]]) -> list[str]:
    """What there is to say of each page, with its name."""
    return [f"{path.name}: {finding}" for path in site for finding in look(path)]


VISIBLE = "const seen = e => e.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true});"


# --- what must hold of every page ---------------------------------------------------


def test_pages_ask_nothing_of_any_network_and_the_console_stays_empty(site, tab):
    asked, messages = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))

    def look(path):
        asked.clear()
        messages.clear()
        show(tab, path)
        tab.locator(".bl-theme").click()
        others = [url for url in asked if url != path.as_uri() and not url.startswith("data:")]
        return others + messages

    assert findings_of(site, look) == []


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_nothing_is_cut_off_and_every_figure_is_seen_and_told(site, tab, size):
    def look(path):
        show(tab, path, size)
        return tab.evaluate(f"""() => {{ {VISIBLE}
            const findings = [], root = document.documentElement;
            if (root.scrollWidth > root.clientWidth) findings.push(`scrolls sideways to ${{root.scrollWidth}}`);
            for (const svg of document.querySelectorAll("svg")) {{
                const label = svg.getAttribute("aria-label") || "", box = svg.getBoundingClientRect();
                if (label.length < 20) findings.push(`a drawing without words: ${{label}}`);
                if (!seen(svg)) continue;
                for (const text of svg.querySelectorAll("text")) {{
                    const at = text.getBoundingClientRect();
                    if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
                        findings.push(`cut off in ${{label.slice(0, 40)}}: ${{text.textContent}}`);
                }}
            }}
            for (const figure of document.querySelectorAll("figure:not(details *)")) {{
                const drawn = [...figure.querySelectorAll("svg")].filter(e => seen(e) && e.getBoundingClientRect().height > 20);
                if (!drawn.length) findings.push(`not seen: figure ${{figure.dataset.figure}}`);
            }}
            return findings;
        }}""")

    assert findings_of(site, look) == []


def test_no_column_is_hidden_on_a_wide_screen_and_the_answer_is_seen_on_a_phone(site, tab):
    def look(path):
        show(tab, path, (1200, 900))
        hidden = tab.evaluate("""() => {
            for (const fold of document.querySelectorAll("main details")) fold.open = true;
            return [...document.querySelectorAll(".bl-scroll")].filter(e => e.scrollWidth > e.clientWidth + 1)
                .map(e => `${e.getAttribute("aria-label")}: ${e.scrollWidth} in ${e.clientWidth}`);
        }""")
        tab.set_viewport_size({"width": 390, "height": 800})
        return (
            hidden
            + tab.evaluate("""() => [...document.querySelectorAll(".bl-scroll thead th")]
            .filter(e => e.textContent === "verdict" && e.getBoundingClientRect().right > 391).map(e => "the verdict is beyond the edge")""")
        )

    assert findings_of(site, look) == []


def test_a_press_on_a_heading_sorts_a_table_and_another_turns_it_round(site, tab):
    show(tab, site[0].parent / "first.html")
    table = tab.locator(".bl-table", has=tab.locator("th", has_text="verdict")).first
    head = table.locator("thead th").first
    rows = table.locator("tbody th")
    for order in ("ascending", "descending"):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        names = rows.all_inner_texts()
        assert names == sorted(names, reverse=order == "descending")
    assert len(names) > 2


def test_every_link_anchor_and_download_leads_somewhere(site, tab):
    links, anchors = {}, {}
    for path in site:
        show(tab, path)
        links[path] = tab.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)")
        anchors[path] = tab.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")

    def look(path):
        wrong = []
        for link in links[path]:
            address, anchor = urldefrag(link)
            target = Path(unquote(address.removeprefix("file://")))
            if not link.startswith("file:"):
                wrong += [] if link.startswith("https:") else [link]
            elif not target.is_file() or (anchor and unquote(anchor) not in anchors[target]):
                wrong.append(link)
            elif target.suffix in (".json", ".ipynb"):
                json.loads(target.read_text())
        return wrong

    assert findings_of(site, look) == []
    everywhere = {urldefrag(link)[0] for path in site for link in links[path]}
    assert [path.name for path in site if path.stem != "everything" and path.as_uri() not in everywhere] == []


def test_an_accessibility_checker_has_nothing_serious_to_say(site, tab):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: make setup"
    )

    def look(path):
        violations = []
        show(tab, path)
        # what is drawn and says nothing would take minutes
        tab.evaluate(
            "document.querySelectorAll('svg').forEach(drawing => drawing.replaceChildren(...drawing.querySelectorAll('.bl-mark')))"
        )
        for scheme, (width, height) in itertools.product(("light", "dark"), (WIDE, PHONE)):
            tab.emulate_media(color_scheme=scheme)
            tab.set_viewport_size({"width": width, "height": height})
            rules = {"runOnly": ["color-contrast", "link-in-text-block"]} if scheme == "dark" else {}
            for rule in (
                axe.Axe().run(tab, options={"resultTypes": ["violations"], **rules}).response["violations"]
            ):
                nodes = [node["html"][:150] for node in rule["nodes"]]
                violations.append(f"{scheme}, {width} px: {rule['id']} ({len(nodes)}): {nodes[0]}")
        return violations

    assert findings_of(site, look) == []


def test_pages_are_light(site):
    sizes = {path.name: path.stat().st_size for path in site}
    assert sizes.pop("index.html") < 103_000  # 100 kB with what is recorded; two studies are the test's own
    assert {name: size for name, size in sizes.items() if size >= 500_000} == {}


def test_without_javascript_all_is_there(site, browser):
    context = browser.new_context(offline=True, java_script_enabled=False)
    tab = context.new_page()
    for path in site:
        show(tab, path)
        assert tab.locator("main h1").is_visible()
        assert not tab.locator(".bl-theme").is_visible()
    context.close()


def test_on_paper_nothing_is_missing_hidden_or_cut_off(site, tab):
    tab.emulate_media(media="print", color_scheme="dark")

    def look(path):
        show(tab, path, PAPER)
        return tab.evaluate(f"""() => {{ {VISIBLE}
            const findings = [], right = document.documentElement.clientWidth + 1;
            const name = e => `${{e.tagName}} ${{e.className.baseVal ?? e.className}}: ${{e.textContent.trim().slice(0, 40)}}`;
            for (const e of document.querySelectorAll("nav, header, button:not(.bl-sort), .bl-skip"))
                if (seen(e)) findings.push(`of no use on paper: ${{name(e)}}`);
            for (const e of document.querySelectorAll("main details > :last-child"))
                if (!seen(e) && !e.closest(".bl-fold")) findings.push(`folded: ${{name(e)}}`);
            for (const e of document.querySelectorAll("main :not(svg *)")) {{
                if (!seen(e)) continue;
                if (e.getBoundingClientRect().right > right) findings.push(`beyond the margin: ${{name(e)}}`);
                if (getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1 && e.clientWidth)
                    findings.push(`cut off: ${{name(e)}}`);
            }}
            const [paper] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g);
            if (paper < 240) findings.push("printed dark");
            return findings;
        }}""")

    assert findings_of(site, look) == []


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_keyboard_reaches_everything_in_order_and_its_place_is_seen(site, tab, size):
    def look(path):
        show(tab, path, size)
        names = tab.evaluate(f"""() => {{ {VISIBLE}
            window.stops = [...document.querySelectorAll("a[href], button, summary, [tabindex='0']")].filter(seen);
            return window.stops.map(e => e.outerHTML.slice(0, 90));
        }}""")
        wrong = [] if "bl-skip" in names[0] else [f"first of all comes {names[0]}"]
        for number, name in enumerate(names):
            tab.keyboard.press("Tab")
            at, seen = tab.evaluate("""() => {
                const e = document.activeElement, box = e.getBoundingClientRect(), style = getComputedStyle(e);
                const inside = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
                return [window.stops.indexOf(e), inside && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
            }""")
            if at != number:
                return [*wrong, f"instead of {name} came {names[at] if at >= 0 else 'something else'}"]
            if not seen:
                wrong.append(f"its focus is not seen: {name}")
        return wrong

    assert findings_of(site, look) == []


def test_the_theme_follows_the_reader_until_the_button_is_pressed_and_is_kept(site, tab):
    def dark():
        return tab.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 60")

    show(tab, site[0])
    button = tab.locator(".bl-theme")
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        assert dark() == (scheme == "dark")
        # the page hears of the change when it comes to it
        tab.locator(f".bl-theme:text-is('{'Light' if scheme == 'dark' else 'Dark'}')").wait_for()
    button.click()
    assert dark()
    tab.reload()
    assert dark(), "the choice is kept"


def test_a_mark_says_its_numbers_and_a_figure_can_be_taken_along(site, tab, tmp_path):
    show(tab, next(path for path in site if path.stem == "first"))
    figure = tab.locator("[data-figure=forest]")
    mark = figure.locator(".bl-mark").last
    tip = tab.locator(".bl-tip")
    for reach in (mark.focus, mark.hover):
        reach()
        assert tip.text_content() == mark.get_attribute("aria-label")
        assert tip.is_visible()
        tab.keyboard.press("Escape")
        assert not tip.is_visible()
    taken = {}
    for kind in ("SVG", "PNG", "CSV"):
        with tab.expect_download() as download:
            figure.get_by_text(kind, exact=True).click()
        assert download.value.suggested_filename == f"first.forest.{kind.lower()}"
        download.value.save_as(tmp_path / kind)
        taken[kind] = (tmp_path / kind).read_bytes()
    assert b"var(" not in taken["SVG"]
    assert taken["PNG"].startswith(b"\x89PNG")
    assert int.from_bytes(taken["PNG"][16:20]) == 1344
    assert taken["CSV"].startswith(b"level,percent_change")
