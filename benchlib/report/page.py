"""The published pages: one HTML file per study and an index, which load nothing and need no network."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from bs4 import BeautifulSoup, Tag
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from traitlets.config import Config

from benchlib.plots import FIGURE_CSS, Figure
from benchlib.plots.frames import signed
from benchlib.plots.style import DARK, LIGHT, MARKS, mark_of, verdict_word
from benchlib.plots.tables import TABLE_CSS

SITE = "PostgreSQL benchmarks"

_HERE = Path(__file__).parent
# What a reader of the page has no use for; the notebook keeps it.
_HIDDEN = ("hide", "remove-cell", "papermill-error-cell-tag")
_SILENT = ("remove-output", "hide-output", "progress")

# Elements that load something or run: a published page does neither.
_LOADING = [
    "script",
    "link",
    "iframe",
    "object",
    "embed",
    "base",
    "meta",
    "form",
    "video",
    "audio",
    "picture",
]
_REMOTE = re.compile(r"url\(\s*['\"]?(?!#|data:|['\"])|@import", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """A link: its words, and where it leads (relative to the page)."""

    label: str
    href: str


@dataclass(frozen=True)
class Page:
    """What a study's page says around its notebook.

    `verdict` is one of the five words, or "" where none was reached; `facts` are (label, value) pairs;
    `durability` holds one sentence per level that gives it up; `index` leads to the list of studies.
    """

    title: str
    headline: str
    question: str = ""
    verdict: str = ""
    facts: Sequence[tuple[str, str]] = ()
    durability: Sequence[str] = ()
    downloads: Sequence[Link] = ()
    index: str = "index.html"
    site: str = SITE
    footer: str = ""
    language: str = "en"


@dataclass(frozen=True)
class IndexEntry:
    """One study in the index; `percent_change` in percent, None where there is none; `href` its page."""

    title: str
    href: str
    headline: str
    question: str = ""
    verdict: str = ""
    percent_change: float | None = None
    date: str = ""
    host: str = ""
    durability: str = ""


def render_page(notebook: nbformat.NotebookNode, page: Page) -> str:
    """The executed notebook as a page: no code, and the same text each time for the same input.

    Cells tagged `hide` or `remove-cell` are left out, and the outputs of those tagged `remove-output`,
    `hide-output` or `progress`. Scripts, frames and pictures from elsewhere are dropped.
    """
    html, _ = _exporter().from_notebook_node(nbformat.from_dict(notebook))  # type: ignore[no-untyped-call]
    body, contents = _tidy(html, page.title)
    return _render("page.html.j2", **_shallow(page), body=Markup(body), contents=contents)


def render_index(
    entries: Sequence[IndexEntry],
    *,
    title: str = SITE,
    intro: str = "",
    figures: Sequence[Figure] = (),
    links: Sequence[Link] = (),
    footer: str = "",
    language: str = "en",
) -> str:
    """The list of studies, in the order given; `figures` come before it, `links` lead to further pages."""
    drawn, _ = _tidy("".join(figure._repr_html_() for figure in figures), title)
    return _render(
        "listing.html.j2",
        title=title,
        headline=intro,
        entries=entries,
        figures=Markup(drawn),
        links=links,
        footer=footer,
        language=language,
    )


def _shallow(page: Page) -> dict[str, Any]:
    return {name: getattr(page, name) for name in asdict(page)}


def _render(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "template"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals.update(
        light=LIGHT,
        dark=DARK,
        marks=MARKS,
        mark_of=mark_of,
        verdict_word=verdict_word,
        signed=signed,
        shared_css=Markup(FIGURE_CSS + TABLE_CSS),
    )
    return made


@cache
def _exporter() -> HTMLExporter:
    """Nbconvert with our template, which extends its `lab/base`: the cells alone, no page around."""
    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_cell_tags = set(_HIDDEN)
    config.TagRemovePreprocessor.remove_all_outputs_tags = set(_SILENT)
    # Ours first, and nothing that runs.
    config.NbConvertBase.display_data_priority = [
        "text/html",
        "text/markdown",
        "image/svg+xml",
        "image/png",
        "image/jpeg",
        "text/plain",
    ]
    return HTMLExporter(  # type: ignore[no-untyped-call]
        config=config,
        extra_template_basedirs=[str(_HERE)],
        template_name="template",
        exclude_input=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )


@dataclass(frozen=True)
class _Heading:
    """An entry of the contents list: 2 for a section, 3 for a part of one."""

    level: int
    anchor: str
    text: str


def _tidy(html: str, title: str) -> tuple[str, list[_Heading]]:
    """The body for a page whose only `h1` is `title`, and its contents list."""
    soup = BeautifulSoup(html, "html.parser")
    _still(soup)
    headings = _ordered(soup, title)
    _unique(soup)
    for pre in soup.find_all("pre"):
        pre["tabindex"] = "0"
    for number, table in enumerate(soup.find_all("table"), 1):
        if table.find_parent(class_="bl-scroll") is None:
            caption = table.find("caption")
            label = caption.get_text(" ", strip=True) if caption else f"Table {number}"
            region = {"class": "bl-scroll", "role": "region", "tabindex": "0", "aria-label": label}
            table.wrap(soup.new_tag("div", attrs=region))
            table["class"] = " ".join(filter(None, [*table.get_attribute_list("class"), "bl-table"]))
            del table["border"]
            for head in table.find_all("th"):
                head["scope"] = "col" if head.find_parent("thead") else "row"
                if not head.get_text(strip=True):
                    head.name = "td"
                    del head["scope"]
    contents = [_Heading(int(h.name[1]), str(h["id"]), h.get_text(" ", strip=True)) for h in headings]
    return str(soup), [heading for heading in contents if heading.level <= 3]


def _still(soup: BeautifulSoup) -> None:
    """Drop what would load or run, and the styles that the page has once for all of its figures."""
    for tag in soup.find_all(_LOADING):
        tag.decompose()
    for style in soup.find_all("style"):
        ours = style.find_parent(class_=["bl-figure", "bl-scroll"])  # pandas' own is "scoped"
        if ours or style.has_attr("scoped") or _REMOTE.search(style.get_text()):
            style.decompose()
    for image in soup.find_all("img"):
        if not str(image.get("src", "")).startswith("data:"):
            link = soup.new_tag("a", attrs={"href": str(image.get("src", ""))})
            link.string = str(image.get("alt") or "picture")
            image.replace_with(link)
    for tag in soup.find_all(style=_REMOTE):
        del tag["style"]


def _ordered(soup: BeautifulSoup, title: str) -> list[Tag]:
    """Bring headings below the page's `h1`, without gaps; the notebook's own title goes."""
    headings = soup.find_all(re.compile("^h[1-6]$"))
    tops = [heading for heading in headings if heading.name == "h1"]
    if tops and tops[0] is headings[0] and (len(tops) == 1 or tops[0].get_text(strip=True) == title):
        headings.pop(0).decompose()
        tops.pop(0)
    above = 1
    for heading in headings:
        above = min(int(heading.name[1]) + bool(tops), above + 1, 6)
        heading.name = f"h{above}"
        if not heading.get("id"):
            heading["id"] = re.sub(r"\W+", "-", heading.get_text()).strip("-") or "section"
    return headings


def _unique(soup: BeautifulSoup) -> None:
    """Number ids that occur again, together with what refers to them inside the same drawing."""
    seen: set[str] = set()
    for tag in soup.find_all(id=True):
        old = new = str(tag["id"])
        number = 1
        while new in seen:
            number += 1
            new = f"{old}-{number}"
        seen.add(new)
        drawing = tag.find_parent("svg")
        if new != old:
            tag["id"] = new
            for user in drawing.find_all(True) if drawing else ():
                for name, value in user.attrs.items():
                    if value in (f"#{old}", f"url(#{old})"):
                        user[name] = str(value).replace(old, new)
