"""The published pages: one HTML file per study and an index, which load nothing and need no network."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mistune
import nbformat
from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from benchlib.plan.words import printable
from benchlib.report.cleaned import cleaned
from benchlib.report.figures import FIGURE_CSS, Figure
from benchlib.report.figures.frames import signed
from benchlib.report.figures.style import DARK, LIGHT, MARKS, mark_of, verdict_word
from benchlib.report.figures.tables import TABLE_CSS
from benchlib.report.templates import TEMPLATES
from benchlib.report.view import Statement

SITE = "PostgreSQL benchmarks"

# What a reader of the page has no use for; the notebook keeps it.
_HIDDEN = {"hide", "remove-cell", "papermill-error-cell-tag"}
_SILENT = {"remove-output", "hide-output", "progress"}


class _Prose(mistune.HTMLRenderer):
    """Markdown of notebooks and templates as a part of a page: HTML in it is text, and its headings have anchors.

    They come below the page's own ``h1``, without gaps. ``contents`` are those of sections and their parts.
    """

    def __init__(self) -> None:
        super().__init__(escape=True)
        self.contents: list[dict[str, Any]] = []
        self._above = 0
        self._anchors = Counter[str]()
        self._tables = 0

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        """A heading; nothing for the first where it is the notebook's own title, which the page has."""
        if level == 1 and not self._above:
            self._above = 1
            return ""
        self._above = min(max(level, 2), max(self._above, 1) + 1)
        words = Markup(text).striptags()
        anchor = re.sub(r"\W+", "-", words).strip("-") or "section"
        self._anchors[anchor] += 1
        if self._anchors[anchor] > 1:
            anchor = f"{anchor}-{self._anchors[anchor]}"
        if self._above <= 3:
            self.contents.append({"level": self._above, "anchor": anchor, "text": words})
        return super().heading(text, self._above, id=anchor)

    def block_code(self, code: str, info: str | None = None) -> str:
        """Code that can be scrolled with the keyboard, as all that may be too wide."""
        return super().block_code(code, info).replace("<pre>", '<pre tabindex="0">', 1)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """A picture that is in the page; of one elsewhere the link to it."""
        return super().image(text, url, title) if url.startswith("data:") else self.link(text, url, title)

    def table(self, text: str) -> str:
        """A table in a region that scrolls."""
        self._tables += 1
        region = f'<div class="bl-scroll" role="region" tabindex="0" aria-label="Table {self._tables}">'
        rows = re.sub(r"<th\b", '<th scope="col"', text)
        return f'{region}<table class="bl-table">{rows}</table></div>'


@pass_context
def _markdown(context: Context, text: str) -> Markup:
    """Markdown by the renderer of the page that is being made."""
    render = mistune.create_markdown(renderer=context["prose"], plugins=["table"])
    return Markup(f'<div class="bl-prose">{render(str(text))}</div>')


_SCRIPT = (Path(__file__).parent / "template" / "page.js").read_text()

TEMPLATES.filters.update(
    cleaned=cleaned,
    markdown=_markdown,
    plain=lambda text: printable(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)),
    shown=lambda thing: cleaned(thing._repr_html_()),
)
TEMPLATES.globals.update(
    light=LIGHT,
    dark=DARK,
    marks=MARKS,
    mark_of=mark_of,
    verdict_word=verdict_word,
    signed=signed,
    shared_css=Markup(FIGURE_CSS + TABLE_CSS),
    script=Markup(_SCRIPT),
    script_hash=base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
    site=SITE,
)


@dataclass(frozen=True)
class Link:
    """A link: its words, and where it leads (relative to the page)."""

    label: str
    href: str


@dataclass(frozen=True)
class Page:
    """What a page says around its notebook.

    `verdict` is one of the five words, "" where none was reached, None on a page that is no study's; `facts`
    are (label, value) pairs; `durability` holds one sentence per level that gives it up.
    """

    title: str
    headline: str = ""
    question: str = ""
    verdict: str | None = None
    facts: Sequence[tuple[str, str]] = ()
    durability: Sequence[str] = ()
    downloads: Sequence[Link] = ()


def render_page(notebook: nbformat.NotebookNode, page: Page) -> str:
    """The executed notebook as a page: no code, and the same text each time for the same input.

    Cells tagged `hide` or `remove-cell` are left out, and the outputs of those tagged `remove-output`,
    `hide-output` or `progress`.
    """
    cells = []
    for cell in notebook.cells:
        tags = set(cell.metadata.get("tags", ()))
        if not tags & _HIDDEN:
            cells.append({**cell, "outputs": []} if tags & _SILENT else cell)
    return render_prose(page, "cells.html.j2", cells=cells)


def render_index(
    entries: Sequence[Mapping[str, Any]],
    *,
    intro: str = "",
    figures: Sequence[Figure | Statement] = (),
    links: Sequence[Link] = (),
    left_out: Sequence[tuple[str, str]] = (),
) -> str:
    """The list of studies, in the order given; `figures` come before it, `links` lead to further pages.

    Of a study are shown `title, href` (its page), `headline, question, verdict, percent_change` (None where there is
    none), `facts` (where and when it was measured) and `durability`. `left_out` are the studies that are kept and not shown, each with the reason.
    """
    return _render(
        "listing.html.j2",
        title=SITE,
        question=intro,
        entries=entries,
        figures=figures,
        links=links,
        left_out=left_out,
    )


def render_prose(page: Page, template: str, **values: Any) -> str:
    """A page whose body is a template, filled with `values`.

    In it Markdown goes through the filter `markdown`, figures and tables through `shown`.
    """
    prose = _Prose()
    body = Markup(_render(template, **values, prose=prose))
    return _render("page.html.j2", **vars(page), body=body, contents=prose.contents)


def linked(html: str, here: str, links: Sequence[Link], neighbours: Sequence[Link | None]) -> str:
    """A page of the site with what leads from it to others, in place of what did before.

    `here` is its own address; `neighbours` are the studies before and after it, or none.
    """

    def fill(mark: re.Match[str]) -> str:
        part = mark[1]
        inside = _render("links.html.j2", part=part, here=here, links=links, neighbours=neighbours)
        return f"<!--{part}-->{inside.strip()}<!--/{part}-->"

    return re.sub(r"<!--(site|neighbours)-->.*?<!--/\1-->", fill, html, flags=re.DOTALL)


def _render(template: str, **values: Any) -> str:
    return printable(TEMPLATES.get_template(template).render(**values))
