"""A finished figure: an SVG whose colours a page can change, with its alt text and its caption."""

import hashlib
import html
import io
import re
from dataclasses import dataclass, field

from matplotlib.figure import Figure as Drawing

from benchlib.report.figures.frames import opening
from benchlib.report.figures.style import DARK, INK, LIGHT

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"

_DARK_INK = ";".join(f"--bl-{name}:{value}" for name, value in DARK.items())

FIGURE_CSS = (
    ".bl-figure{margin:1.5em 0;max-width:45rem}.bl-frame{overflow-x:auto}"
    ".bl-figure svg{display:block;width:100%;min-width:36rem;max-width:none;height:auto}"
    ".bl-figure figcaption{font-size:.9em;margin-top:.4em}"
    "@media print{.bl-figure svg{min-width:0}}"
)
"""A narrow screen scrolls a figure in its frame. Every figure carries this, and a page may carry it once instead."""

EDITOR_CSS = f":is([data-jp-theme-light=false],.vscode-dark) :is(.bl-figure,.bl-scroll){{{_DARK_INK}}}"
"""The dark colours inside a dark editor; a page defines the colours itself."""


@dataclass(frozen=True)
class Figure:
    """A finished figure: `alt` says in words and numbers what `svg` shows."""

    name: str
    alt: str
    caption: str
    svg: str = field(repr=False)

    def _repr_html_(self) -> str:
        name = html.escape(self.name)
        return (
            f'<figure class="bl-figure" data-figure="{name}"><style>{FIGURE_CSS}{EDITOR_CSS}</style>'
            f'<div class="bl-frame" role="group" tabindex="0" aria-label="drawing: {name}">{self.svg}</div>'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


def render(name: str, drawing: Drawing, title: str, caption: str) -> Figure:
    """The drawing as a figure, in the look of the `styled` function that drew it. `name` and a digest of the drawing make the ids inside the SVG.

    The alt text is the title, the names of the axes, and of each panel what the forms noted in its label.
    """
    axes_names = [drawing.get_supxlabel(), drawing.get_supylabel()]
    axes_names += [text for axes in drawing.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
    axes_text = "; ".join(dict.fromkeys(filter(None, axes_names)))
    parts = [opening(title), f"Axes: {axes_text}" if axes_text else ""]
    parts += [str(axes.get_label()) for axes in drawing.axes]
    alt = ". ".join(filter(None, parts)).replace("\u00a0", " ") + "."
    out = io.StringIO()
    drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return Figure(name, alt, caption, _inline(out.getvalue(), name, alt))


def _inline(svg: str, name: str, alt: str) -> str:
    """Matplotlib's SVG file as an inline element: smaller, its ids unique, its colours changeable by CSS."""
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None, "matplotlib always writes a viewBox"
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r' transform="rotate\(-?0 [^"]*"', "", body)
    body = re.sub(
        r' (d|x|y|points|transform|width|height)="([^"]*)"', lambda m: f' {m[1]}="{_shorter(m[2])}"', body
    )
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r'(?<=style=")[^"]*', lambda m: _changeable(m[0]), body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r">\s+<", "><", body)
    digest = hashlib.sha256(body.encode()).hexdigest()[:8]
    body = _own_ids(body, f"bl-{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{digest}-")
    body = body.replace("<g></g>", "").replace("<defs></defs>", "")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(alt)}" '
        f'viewBox="{view[1]}" style="stroke-linejoin:round;font-family:{_FONT}">{body}'
    ).rstrip()


def _shorter(numbers: str) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", " ".join(numbers.split()))


def _changeable(style: str) -> str:
    for key, colour in LIGHT.items():
        style = style.replace(colour, f"var(--bl-{key},{colour})")
    # A black that matplotlib leaves as SVG's default would stay black on a dark page.
    return style if "font-size" not in style or "fill:" in style else f"{style}; fill: var(--bl-ink,{INK})"


def _own_ids(body: str, prefix: str) -> str:
    """Keep only ids that something refers to, numbered in order under `prefix`."""
    wanted = dict.fromkeys(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    short = {old: f"{prefix}{number}" for number, old in enumerate(wanted, 1)}
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{short[m[1]]}"' if m[1] in short else "", body)
    return re.sub(r'(url\(#|href="#)([^)"]+)', lambda m: m[1] + short[m[2]], body)
