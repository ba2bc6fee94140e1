"""A finished figure: its finding, an SVG whose colours a page can change, alt text, caption, and the numbers that it shows."""

import html
import io
import re
import textwrap
from dataclasses import dataclass, field

import matplotlib
import pandas as pd
from matplotlib.figure import Figure as Drawing

from benchlib.report.figures.frames import TITLE, guarded, opening
from benchlib.report.figures.style import FONT, INK, LIGHT, TEMPLATES

_FAMILY = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
# A black that matplotlib leaves as SVG's default would stay black on a dark page.
_OF_ALL = [f"font-size:{FONT}px", f"fill:var(--bl-ink,{INK})", "text-anchor:start", "stroke-linejoin:round"]
_ROOT = ";".join([*_OF_ALL, f"font-family:{_FAMILY}"])
_MARK = re.compile(r'<g id="bl-mark-([0-9a-f]+)">')
# what others refer to keeps its own style
_ALIKE = re.compile(r'<(use|path) (?![^>]* id=)[^>]*style="([^"]*)"/>(?:<\1 (?![^>]* id=)[^>]*style="\2"/>)+')
_ALT = 400


@dataclass(frozen=True)
class Figure:
    """A finished figure: `title` is what it shows in words, `alt` begins with that, `numbers` are what is drawn."""

    name: str
    title: str
    alt: str
    caption: str
    svg: str = field(repr=False)
    numbers: pd.DataFrame = field(repr=False, compare=False)

    def _repr_html_(self) -> str:
        csv = self.numbers.map(guarded).to_csv(index=False, float_format="%.6g")
        return TEMPLATES.get_template("figure.html.j2").render(vars(self), csv=csv)


def render(name: str, drawing: Drawing, title: str, caption: str, numbers: pd.DataFrame) -> Figure:
    """The drawing as a figure, in the look of the `styled` function that drew it; `title` is the finding.

    The alt text is the title and what the marks say, or where there are none the caption. `name` goes into the ids
    inside the SVG, which differ between the figures of a page.
    """
    name, title = re.sub(r"\W+", "-", name), textwrap.shorten(opening(title), TITLE, placeholder="…")
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    texts = [_told(mark) for mark in _MARK.finditer(out.getvalue())]
    alt = textwrap.shorten(f"{title}. {'; '.join(texts) or caption}", _ALT, placeholder=" …")
    alt = alt.replace("\u00a0", " ")
    return Figure(name, title, alt, caption, _inline(out.getvalue(), alt), numbers)


def _inline(svg: str, alt: str) -> str:
    """Matplotlib's SVG file as an inline element: smaller, without ids that nothing refers to, its colours changeable by CSS."""
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None, "matplotlib always writes a viewBox"
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r' transform="rotate\(-?0 [^"]*"', "", body)
    body = re.sub(r'(?<= [xy]=")[\d.-]+', lambda m: f"{float(m[0]):.1f}", body)
    numeric = r' (points|transform|width|height)="([^"]*)"'
    body = re.sub(numeric, lambda m: f' {m[1]}="{_shorter(m[2])}"', body)
    body = re.sub(r'(?<= d=")[^"]*', lambda m: _path(m[0]), body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r'(?<=style=")[^"]*', lambda m: _changeable(m[0]), body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r">\s+<", "><", body)
    body, marks = _MARK.subn(_mark, body)
    body = re.sub(r'(<(?:g|image)\b[^>]*?) id="[^"]*"', r"\1", body)
    body = body.replace("<g></g>", "").replace("<defs></defs>", "")
    body = re.sub(r"<g>(<text[^>]*>[^<]*</text>)</g>", r"\1", body)
    body = _ALIKE.sub(_together, body).replace(' style=""', "")
    role = "group" if marks else "img"  # what is one picture has no parts that can be reached
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="{role}" aria-label="{html.escape(alt)}" '
        f'viewBox="{view[1]}" style="{_ROOT}">{body}'
    ).rstrip()


def _together(alike: re.Match[str]) -> str:
    style, marks = f' style="{alike[2]}"', re.findall("<[a-z]+", alike[0])
    clips = re.findall(' clip-path="[^"]*"', alike[0])
    clip = clips[0] if len(clips) == len(marks) and len({*clips}) == 1 else ""
    return f"<g{clip}{style}>{alike[0].replace(style, '').replace(clip, '')}</g>"


def _told(mark: re.Match[str]) -> str:
    """What a mark says (see `layout.tell`)."""
    return bytes.fromhex(mark[1]).decode()


def _mark(mark: re.Match[str]) -> str:
    text = html.escape(_told(mark))
    return f'<g tabindex="0" class="bl-mark" role="img"><title>{text}</title>'


def _shorter(numbers: str) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", " ".join(numbers.split()))


def _path(data: str) -> str:
    """A path's data: of straight lines in tenths of a point, each relative to the one before; of any other with two decimals."""
    steps = re.findall(r"([MLz])([^A-Za-z]*)", data)
    if "".join(map("".join, steps)) != data:  # it has curves
        return _shorter(data)
    drawn, before, here = "", "", (0, 0)
    for command, numbers in steps:
        x, y = (round(10 * float(number)) for number in numbers.split()) if command != "z" else here
        if command == "L":
            between = " " if before == "L" else "l"
            drawn += f"{between}{(x - here[0]) / 10:g} {(y - here[1]) / 10:g}"
        else:
            drawn += f"M{x / 10:g} {y / 10:g}" if command == "M" else "z"
        before, here = command, (x, y)
    return drawn


def _changeable(style: str) -> str:
    """A style whose colours a page can change, without what the whole drawing has."""
    for key, colour in LIGHT.items():
        style = style.replace(colour, f"var(--bl-{key},{colour})")
    parts = re.sub(r"\s*([:;])\s*", r"\1", style).split(";")
    return ";".join(part for part in parts if part not in _OF_ALL)
