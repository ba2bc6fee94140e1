"""A figure is drawn twice, for wide and for narrow screens, and kept as two SVG texts and their alt text."""

import hashlib
import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as MplFigure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from benchlib.report.figures.style import DARK, INK, LIGHT, MUTED, RC

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"

_DARK_INK = ";".join(f"--bl-{name}:{value}" for name, value in DARK.items())

FIGURE_CSS = (
    ".bl-figure{margin:1.5em 0;max-width:45rem}.bl-figure svg{display:block;width:100%;height:auto}"
    ".bl-figure svg.bl-narrow{display:none}.bl-figure figcaption{font-size:.9em;margin-top:.4em}"
    "@media screen and (max-width:600px){.bl-figure svg.bl-wide{display:none}"
    ".bl-figure svg.bl-narrow{display:block}}"
)
"""What switches between the two drawings; every figure carries it, and a page may carry it once instead."""

EDITOR_CSS = f":is([data-jp-theme-light=false],.vscode-dark) :is(.bl-figure,.bl-scroll){{{_DARK_INK}}}"
"""The dark colours inside a dark editor; a page defines the colours itself."""


@dataclass(frozen=True)
class Figure:
    """A finished figure: `alt` says in words and numbers what it shows, `wide` and `narrow` draw it (SVG)."""

    name: str
    alt: str
    caption: str
    wide: str = field(repr=False)
    narrow: str = field(repr=False)

    def _repr_html_(self) -> str:
        return (
            f'<figure class="bl-figure" data-figure="{html.escape(self.name)}">'
            f"<style>{FIGURE_CSS}{EDITOR_CSS}</style>"
            f"{self.wide}{self.narrow}<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Canvas:
    """One drawing surface. Lengths are points; one point is 1.3 to 1.4 CSS pixels where it is read."""

    fig: MplFigure
    narrow: bool
    width: float
    font: float

    def height(self, points: float) -> None:
        """Set the height, once it is known how much there is to draw; before any `axes`."""
        self.fig.set_size_inches(self.width / 72, points / 72)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes whose upper left corner is `left`, `top` from the canvas's own."""
        total = self.fig.get_figheight() * 72
        bounds = (left / self.width, 1 - (top + height) / total, width / self.width, height / total)
        axes = self.fig.add_axes(bounds)
        axes.tick_params(labelsize=self.font)
        return axes

    def text(self, x: float, top: float, text: str, **style: Any) -> None:
        """One line of text, its middle `top` points below the upper edge.

        Always one line: matplotlib aligns the lines of a block by its own font's widths, which the
        reader's font does not share.
        """
        total = self.fig.get_figheight() * 72
        style = {"fontsize": self.font, "va": "center_baseline", **style}
        self.fig.text(x / self.width, 1 - top / total, text, **style)

    def note(self, x: float, top: float, text: str, **style: Any) -> None:
        """The same, muted: units, axis titles, asides."""
        self.text(x, top, text, **{"color": MUTED, **style})

    def wide_as(self, text: str, **style: Any) -> float:
        """How many points `text` takes in matplotlib's font, which is wider than most that readers have."""
        font = FontProperties(size=self.font, weight=style.get("fontweight", "normal"))
        return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])

    def chars(self, points: float) -> int:
        """How many characters fit in `points`."""
        return max(int(points / (self.font * 0.6)), 6)


def render(name: str, draw: Callable[[Canvas], None], *, alt: str, caption: str) -> Figure:
    """Draw at both widths. `name` and a digest of the drawing make the ids inside the SVG."""
    variants = []
    for variant, width, font in (("wide", 504.0, 9.5), ("narrow", 274.0, 9.0)):
        with matplotlib.rc_context(dict(RC)):
            fig = MplFigure(figsize=(width / 72, 3))
            FigureCanvasSVG(fig)
            draw(Canvas(fig, variant == "narrow", width, font))
            out = io.StringIO()
            fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        variants.append(_clean(out.getvalue(), name=name, variant=variant, alt=alt))
    return Figure(name, alt, caption, variants[0], variants[1])


def _clean(svg: str, *, name: str, variant: str, alt: str) -> str:
    """Matplotlib's SVG file as an inline element: smaller, its ids unique, its colours changeable by CSS."""
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None, "matplotlib always writes a viewBox"
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r' transform="rotate\(-?0 [^"]*"', "", body)
    body = re.sub(
        r' (d|x|y|points|transform|width|height)="([^"]*)"',
        lambda m: f' {m[1]}="{_shorter(m[2])}"',
        body,
    )
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r'(?<=style=")[^"]*', lambda m: _changeable(m[0]), body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r">\s+<", "><", body)
    digest = hashlib.sha256(f"{variant}{body}".encode()).hexdigest()[:8]
    body = _own_ids(body, f"bl-{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{digest}-")
    body = body.replace("<g></g>", "").replace("<defs></defs>", "")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bl-{variant}" role="img" '
        f'aria-label="{html.escape(alt)}" viewBox="{view[1]}" '
        f'style="max-width:100%;stroke-linejoin:round;font-family:{_FONT}">{body}'
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
