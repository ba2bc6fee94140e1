"""The published pages: one HTML file per study and an index, which load nothing and need no network."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mistune
import nbformat
import nbformat.v4 as v4
from markupsafe import Markup

from benchlib.report.figures import FIGURE_CSS, Figure
from benchlib.report.figures.frames import signed
from benchlib.report.figures.style import DARK, LIGHT, MARKS, mark_of, verdict_word
from benchlib.report.figures.tables import TABLE_CSS
from benchlib.report.templates import TEMPLATES
from benchlib.report.tidy import tidy
from benchlib.report.view import Statement

SITE = "PostgreSQL benchmarks"

_markdown = mistune.create_markdown(escape=False, plugins=["table"])

# What a reader of the page has no use for; the notebook keeps it.
_HIDDEN = {"hide", "remove-cell", "papermill-error-cell-tag"}
_SILENT = {"remove-output", "hide-output", "progress"}

TEMPLATES.filters.update(
    html=Markup,
    markdown=lambda text: Markup(_markdown(text)),
    plain=lambda text: re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text),
    # in Markdown a blank line ends what is HTML
    shown=lambda thing: Markup(re.sub(r"\n\s*\n", "\n", thing._repr_html_())),
)
TEMPLATES.globals.update(
    light=LIGHT,
    dark=DARK,
    marks=MARKS,
    mark_of=mark_of,
    verdict_word=verdict_word,
    signed=signed,
    shared_css=Markup(FIGURE_CSS + TABLE_CSS),
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
    `hide-output` or `progress`. Scripts, frames and pictures from elsewhere are dropped.
    """
    cells = []
    for cell in notebook.cells:
        tags = set(cell.metadata.get("tags", ()))
        if not tags & _HIDDEN:
            cells.append({**cell, "outputs": []} if tags & _SILENT else cell)
    body, contents = tidy(_render("cells.html.j2", cells=cells), page.title)
    return _render("page.html.j2", **vars(page), body=Markup(body), contents=contents)


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
    drawn, _ = tidy("".join(figure._repr_html_() for figure in figures), SITE)
    return _render(
        "listing.html.j2",
        title=SITE,
        question=intro,
        entries=entries,
        figures=Markup(drawn),
        links=links,
        left_out=left_out,
    )


def render_prose(page: Page, template: str, **values: Any) -> str:
    """A page of prose: a template of Markdown, filled with `values`; figures and tables by the filter `shown`."""
    text = v4.new_markdown_cell(_render(template, **values))  # type: ignore[no-untyped-call]
    return render_page(v4.new_notebook(cells=[text]), page)  # type: ignore[no-untyped-call]


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
    return TEMPLATES.get_template(template).render(**values)
