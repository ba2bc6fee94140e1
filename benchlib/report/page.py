"""The published pages: one HTML file per study and an index, which load nothing and need no network."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import mistune
from jinja2 import Template, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from benchlib.plan.words import printable
from benchlib.report.cells import Node, tags
from benchlib.report.cleaned import cleaned
from benchlib.report.figures.style import TEMPLATES

SITE = "PostgreSQL benchmarks"

# What a reader of the page has no use for; the notebook keeps it.
_HIDDEN = {"hide", "parameters", "injected-parameters"}
_SECTION = re.compile(r"##? .*")


class _Prose(mistune.HTMLRenderer):
    """Markdown of notebooks and templates as a part of a page: HTML in it is text, and its headings have anchors.

    They come below the page's own ``h1``, without gaps. ``contents`` are those of sections.
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
        if self._above == 2:
            self.contents.append({"anchor": anchor, "text": words})
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
        region = f'<div class="bl-scroll" role="region" tabindex="0" aria-label="table {self._tables} of the text">'
        rows = re.sub(r"<th\b", '<th scope="col"', text)
        return f'{region}<table class="bl-table">{rows}</table></div>'


@pass_context
def _markdown(context: Context, text: str) -> Markup:
    """Markdown by the renderer of the page that is being made."""
    return Markup(context["markdown"](str(text)))


@pass_context
def _cleaned(context: Context, html: str) -> Markup:
    return cleaned(html, context["counts"], context["base"])


def _dense(text: str) -> str:
    """A script or a style without what is for us alone: indentation, empty lines, comments of a line."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


_SCRIPT = _dense((Path(__file__).parent / "template" / "page.js").read_text())

TEMPLATES.filters.update(
    cleaned=_cleaned,
    dense=_dense,
    markdown=_markdown,
    plain=lambda text: printable(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)),
    shown=pass_context(lambda context, thing: _cleaned(context, thing._repr_html_())),
)
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
TEMPLATES.globals.update(script=Markup(_SCRIPT), script_hash=_HASH, site=SITE)


@dataclass(frozen=True)
class Page:
    """What a page says around its notebook.

    `verdicts` are among the five words, "" where none was reached; `limits` is what the headline does not show; `facts` are
    values by label, `downloads` labels by files beside the page; `card` is the picture that a link to the page shows, `address`
    the page's own where it is published.
    """

    title: str
    headline: str = ""
    limits: str = ""
    question: str = ""
    verdicts: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    downloads: Mapping[str, str] = field(default_factory=dict)
    card: str = ""
    address: str = ""


def render_page(notebook: Node, page: Page) -> str:
    """The executed notebook as a page: no code, and the same text each time for the same input.

    Cells tagged `hide` are left out, and so is prose whose code shows nothing. A heading tagged `folded` folds what is
    below it. What was shown before is not shown again.
    """
    return render_prose(page, "cells.html.j2", sections=_sections(notebook["cells"]))


def _sections(cells: Sequence[Node]) -> list[dict[str, Any]]:
    """What is shown, by section: `heading` of a folded one ("" of the others) and `parts`, prose and what the code after it shows.

    The folded come last.
    """
    sections, before = list[list[dict[str, Any]]]([[]]), set[str]()
    for cell in cells:
        if tags(cell) & _HIDDEN:
            continue
        prose = cell["source"] if cell["cell_type"] == "markdown" else ""
        if _SECTION.match(prose):
            sections.append([])
        if prose or not sections[-1]:
            folded = "folded" in tags(cell)
            sections[-1].append({"prose": prose, "folded": folded, "has_code": False, "outputs": []})
        part = sections[-1][-1]
        part["has_code"] |= not prose
        part["outputs"] += [output for output in cell.get("outputs", ()) if _shows(output, before)]
    shown = list[dict[str, Any]]()
    for parts in sections:
        kept = [part for part in parts if part["outputs"] or not part["has_code"]]
        if any(part["outputs"] for part in kept) and kept[0] is not parts[0]:
            kept.insert(0, parts[0])  # the heading of what is left
        heading = ""
        if kept and kept[0] is parts[0] and parts[0]["folded"]:
            heading, _, parts[0]["prose"] = parts[0]["prose"].partition("\n")
        shown.append({"heading": heading, "parts": kept})
    return sorted(filter(itemgetter("parts"), shown), key=lambda section: bool(section["heading"]))


def _shows(output: Mapping[str, Any], before: set[str]) -> bool:
    """Whether a page shows the output of a cell; `before` are those that it has, and gets the figures and tables of this one."""
    if output["output_type"] == "stream":
        return bool(output["name"] == "stdout" and output["text"].strip())
    html = output.get("data", {}).get("text/html", "")
    again = html in before or 'class="bl-absent"' in html
    before |= {html} - {""}
    return bool(output.get("data") and not again)


def render_prose(page: Page, template: str | Template, **values: Any) -> str:
    """A page whose body is a template, or that of this name among ours, filled with `values`.

    In it Markdown goes through the filter `markdown`, figures and tables through `shown`.
    """
    prose = _Prose()
    markdown = mistune.create_markdown(renderer=prose, plugins=["table"])
    # a page that was mailed leads to where the others are published
    base = "".join(page.address.rpartition("/")[:2])
    body = Markup(_render(template, **values, base=base, markdown=markdown, counts=Counter()))
    return _render("page.html.j2", **vars(page), base=base, body=body, contents=prose.contents)


def _render(template: str | Template, **values: Any) -> str:
    return printable(TEMPLATES.get_template(template).render(**values))
