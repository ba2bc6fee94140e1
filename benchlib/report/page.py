"""The page of a study: one HTML file that loads nothing."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import mistune
import nh3
from markupsafe import Markup

from benchlib.plan.metrics import number_words
from benchlib.plan.words import printable
from benchlib.report.bars import Axis
from benchlib.report.model import ABOUT, DATA, Node
from benchlib.report.style import mark_of

SITE = "PostgreSQL benchmarks"
_TEMPLATES = Path(__file__).parent / "template"
_NAMES = (
    "a abbr b br caption code col colgroup dd del details div dl dt em h2 h3 h4 hr i li ol p pre small span strong sub "
    "summary sup table tbody td tfoot th thead tr ul wbr"
)
_ELEMENTS = {*_NAMES.split()}
_ATTRIBUTES = {"a": {"href"}, "th": {"scope", "colspan", "rowspan"}, "td": {"colspan", "rowspan"}}
_HIDDEN = {"injected-parameters", "remove_input"}
_REPRS = re.compile(r"<?(Axes|Figure|AxesSubplot|Text|matplotlib\.)[^\n]*>?|\[?<matplotlib[^\n]*")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(t[dh])[^>]*>(.*?)</t[dh]>", re.DOTALL)
_TEXT = re.compile(r"(<t[hd]\b[^>]*>)([^<]*)")
_NUMERIC = re.compile(r"\s*(?:(?:&gt; )?[+−-]?[\d,]*\.?\d+(?:e[+-]?\d+)?(?: [%×])?)?\s*")
_TITLE = re.compile(r"\A# .*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_POINTS = re.compile(r'<svg\b[^>]*\swidth="(\d+\.?\d*)pt"')
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def cleaned(html: str) -> Markup:
    """Return HTML without scripts, styles and anything that loads."""
    text = nh3.clean(
        html, tags=_ELEMENTS, attributes=_ATTRIBUTES, clean_content_tags={"script", "style"}, url_schemes={"https", "http"},
        link_rel="noopener nofollow",
    )  # fmt: skip
    text = text.replace("<th>", '<th scope="col">').replace('<th scope="col"></th>', "<td></td>")
    return Markup(_TABLE.sub(lambda table: _aligned(table[0]), text))


def _aligned(table: str) -> str:
    """Mark the columns of numbers, from the right since headings may span rows."""
    rows = [list(_CELL.finditer(table, *row.span())) for row in _ROW.finditer(table)]
    wide = max((len(row) for row in rows), default=0)
    columns = [
        [row[-place][2] for row in rows if place <= len(row) and row[-place][1] == "td"]
        for place in range(1, wide + 1)
    ]
    numeric = [any(of) and all(_NUMERIC.fullmatch(text) for text in of) for of in columns]
    marked = table
    for row in reversed(rows):  # from the end, so that places before it stay
        for place, found in enumerate(reversed(row)):
            if numeric[place]:
                at = found.start() + 3
                marked = marked[:at] + ' class="n"' + marked[at:]
    named = _TEXT.sub(lambda cell: cell[1] + cell[2].replace("_", "_<wbr>"), marked)
    return named.replace("<table>", '<table class="data">')


class _Prose(mistune.HTMLRenderer):
    """Markdown as a part of a page: HTML in it is text, headings start at level 2."""

    def __init__(self, *, titled: bool = False) -> None:
        super().__init__(escape=True)
        self._titled = titled
        self.contents: list[tuple[str, str]] = []
        self._anchors = Counter[str]()
        self._markdown = mistune.create_markdown(renderer=self, plugins=["table", "strikethrough"])

    def html(self, source: str) -> Markup:
        """Return Markdown as HTML; its headings are added to the contents."""
        return Markup(self._markdown(source))

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        words = Markup(text).striptags()
        if level == 1 and not self._titled:  # the notebook's own title, which the page has
            self._titled = True
            return ""
        level = max(level, 2)
        anchor = re.sub(r"\W+", "-", words).strip("-") or "section"
        self._anchors[anchor] += 1
        if self._anchors[anchor] > 1:
            anchor = f"{anchor}-{self._anchors[anchor]}"
        if level == 2:
            self.contents.append((anchor, words))
        return f'<h{min(level, 4)} id="{anchor}">{text}</h{min(level, 4)}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        return super().block_code(code, info).replace("<pre>", '<pre tabindex="0">', 1)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return (
            super().image(text, url, title) if url.startswith("data:image/") else self.link(text, url, title)
        )

    def table(self, text: str) -> str:
        return f'<div class="wide" role="group" tabindex="0" aria-label="table"><table class="data">{text}</table></div>\n'


def _script(name: str) -> tuple[Markup, str]:
    text = (_TEMPLATES / name).read_text("utf-8")
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)  # fmt: skip
_ENVIRONMENT.globals.update(mark_of=mark_of, site=SITE, Axis=Axis, script=_script("page.js"))
_ENVIRONMENT.filters["quantity"] = number_words


def render(template: str, *, address: str = "", **values: Any) -> str:
    """Return a page; ``address`` is where it is published."""
    base = "".join(address.rpartition("/")[:2])
    text = _ENVIRONMENT.get_template(template).render(address=address, base=base, **values)
    return printable(text)


def prose_parts(markdown: str) -> dict[str, Any]:
    """Return the ``contents`` and the ``body`` of a text in Markdown."""
    prose = _Prose()
    return {"body": prose.html(markdown), "contents": prose.contents}


def notebook_parts(notebook: Node, *, titled: bool = False) -> dict[str, Any]:
    """Return the ``contents``, and the ``cells``: each as ``prose``, or as ``code`` with ``outputs``.

    Cells with the tag ``answers`` are ``first``. A ``titled`` page shows only the sections of the first cell.
    """
    prose, cells, first = _Prose(titled=titled), list[dict[str, Any]](), list[dict[str, Any]]()
    for cell in notebook["cells"]:
        tags = {*cell["metadata"].get("tags", ())}
        if tags & _HIDDEN:
            continue
        if cell["cell_type"] == "markdown":
            source = (
                _TITLE.sub("", cell["source"])
                if titled and not any("prose" in each for each in cells)
                else cell["source"]
            )
            cells.append({"prose": prose.html(source)})
            continue
        outputs = [part for output in cell.get("outputs", ()) if (part := output_part(output))]
        shown = {"code": cell["source"], "outputs": outputs, "parameters": "parameters" in tags}
        (first if "answers" in tags and outputs else cells).append(shown)
    figures = (
        part for cell in (*first, *cells) for part in cell.get("outputs", ()) if part["kind"] == "figure"
    )
    for number, part in enumerate(figures, 1):
        part["number"] = number
    return {"first": first, "cells": cells, "contents": prose.contents}


def output_part(output: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the shown part of an output; None if only a notebook needs it."""
    kind = output["output_type"]
    if kind == "stream":
        text = _ANSI.sub("", output["text"]).strip()
        return {"kind": "text", "text": text} if text and output["name"] == "stdout" else None
    if kind == "error":
        return {"kind": "text", "text": _ANSI.sub("", "\n".join(output["traceback"]))}
    data, metadata = output.get("data", {}), output.get("metadata", {})
    figure = {"kind": "figure", "caption": "", "alt": "figure", "csv": "", "points": 0.0}
    if svg := data.get("image/svg+xml"):
        about = metadata.get("image/svg+xml", {}).get(ABOUT) or metadata.get(ABOUT, {})
        source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
        points = float(found[1]) if (found := _POINTS.search(svg)) else 0.0
        words = {name: str(about.get(name) or figure[name]) for name in ("caption", "alt", "csv")}
        return {**figure, **words, "source": source, "points": points}
    if png := data.get("image/png"):
        return {**figure, "source": f"data:image/png;base64,{png.strip()}"}
    if html := data.get("text/html"):
        return {"kind": "html", "html": cleaned(html)}
    text = data.get("text/markdown") or data.get("text/plain", "")
    return None if not text or _REPRS.fullmatch(text.strip()) else {"kind": "text", "text": text}


def shown_frames(notebook: Node) -> dict[str, dict[str, Any]]:
    """Return the frames in a notebook, the longest of each kind."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    found = [data for output in outputs if (data := output.get("data", {}).get(DATA))]
    return {data["kind"]: data for data in sorted(found, key=lambda data: len(data["rows"]))}
