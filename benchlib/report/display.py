"""The output of frames and figures in a notebook.

Some frames also give their rows as data: a page needs only the executed notebook.
"""

import hashlib
import io
import re
from functools import partial
from typing import Any

import matplotlib
import pandas as pd
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchlib.plan.metrics import number_words
from benchlib.report.model import ABOUT, DATA
from benchlib.report.style import DARK, LIGHT
from benchlib.stats import queries
from benchlib.stats.effects import SHOWN, readable
from benchlib.stats.limits import ANSWER, EXPLORATORY
from benchlib.study.frames import as_data, guarded

_KINDS = {
    "effects": {"level", "against", "percent_change", "verdict"},
    "limits": {"code", "text"},
    "setup": {"what", "value"},
    "queries": {"level", "against", "query", "percent_change", "verdict"},
}
"""The frames whose rows a page needs, and the columns that a whole frame has."""
_READ = {"effects": SHOWN, "limits": ["code", "text", "grave"], "queries": queries.SHOWN}
"""The columns that a table shows; the data have all."""
_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d)\d+")
_STYLES = re.compile(r' style="([^"]*)"')
_FONT = re.compile(r"font-size: 10px; |font-family: 'DejaVu Sans'; ")
"""The usual font: a rule of the figure's style sheet."""
_WASTE = re.compile(
    r'\s*<metadata>.*?</metadata>|\n\s*|(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"', re.DOTALL
)
_GROUP = re.compile(r"<g>((?:(?!</?g\b).)*)</g>")
"""What matplotlib writes and no reader sees: a quarter of a page's size."""
_MOST_ALT = 600
_MOST_ROWS = 60


def install(shell: InteractiveShell) -> None:
    """Register the formats of frames and figures in a kernel."""
    from benchlib.report.drawing import LOOK  # which imports this module

    # the backend registers its own formats, and interactive drawing, when it is loaded: before they are replaced here
    plt.switch_backend(matplotlib.get_backend())
    plt.style.use(LOOK)
    pd.set_option("display.float_format", partial(number_words, digits=4))
    pd.set_option("display.max_colwidth", None)
    pd.set_option("display.html.border", 0)
    formatters = shell.display_formatter.formatters  # type: ignore[union-attr]
    formatters["text/html"].for_type(pd.DataFrame, _table)
    # the table is the output
    formatters["text/plain"].for_type(pd.DataFrame, lambda frame, text, _: text.text(f"{len(frame)} rows"))
    formatters["image/png"].pop(Figure, None)
    formatters["image/svg+xml"].for_type(Figure, _svg)
    shell.display_formatter.mimebundle_formatter.for_type(pd.DataFrame, _rows)  # type: ignore[union-attr]


def _table(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "<p>No rows.</p>"
    kind = frame.attrs.get("kind")
    if kind in _READ and _KINDS[kind] <= {*frame.columns}:
        families = ["family"] * bool(two_families(frame))
        frame = frame[[name for name in [*_READ[kind], *families] if name in frame]]
    named = any(frame.index.names)
    frame = readable(frame)
    shown = frame.reset_index(allow_duplicates=True).rename_axis(columns=None) if named else frame
    numbered = named or isinstance(frame.index, pd.RangeIndex) or frame.index.dtype.kind == "i"
    return str(shown.where(shown.notna()).to_html(index=not numbered, na_rep="", max_rows=_MOST_ROWS))


def _rows(frame: pd.DataFrame, **_: Any) -> dict[str, Any] | None:
    kind = frame.attrs.get("kind")
    whole = kind in _KINDS and _KINDS[kind] <= {*frame.columns}
    return {DATA: as_data(frame)} if whole else None


def two_families(effects: pd.DataFrame) -> str:
    """Return the sentence about answers and exploratory comparisons, if there are both."""
    both = {ANSWER, EXPLORATORY} <= {*effects.get("family", ())}
    return "Answers are judged together, and all other comparisons together (exploratory)." if both else ""


def described(figure: Figure, caption: str, rows: pd.DataFrame) -> None:
    """Attach a caption and numbers to a figure."""
    figure.benchlib = {"caption": caption, "rows": rows}  # type: ignore[attr-defined]


def _svg(figure: Figure) -> tuple[str, dict[str, Any]]:
    """Return a reproducible SVG and its metadata."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "benchlib", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    about = getattr(figure, "benchlib", {"caption": "", "rows": pd.DataFrame()})
    titles = [axes.get_title() or axes.get_title("left") for axes in figure.axes]
    title, rows = figure.get_suptitle() or "".join(titles[:1]), about["rows"]
    cells = rows.head(8).map(lambda value: number_words(value, 4) if isinstance(value, float) else value)
    words = [", ".join(f"{name} {value}" for name, value in row.items()) for row in cells.to_dict("records")]
    alt = f"{title}. {'; '.join(words)}"[:_MOST_ALT]
    csv = rows.map(guarded).to_csv(index=False, float_format="%.6g")
    # one decimal is a tenth of a point
    svg = _WASTE.sub("", _COORDINATES.sub(lambda match: _DECIMALS.sub(r"\1", match[0]), out.getvalue()))
    while (shorter := _GROUP.sub(r"\1", svg)) != svg:
        svg = shorter
    return _coloured(_classed(svg)), {
        ABOUT: {"title": title, "caption": about["caption"], "alt": alt, "csv": csv}
    }


def _classed(svg: str) -> str:
    """Return an SVG whose styles are rules, named by content."""
    rules = dict[str, str]()

    def name_of(match: re.Match[str]) -> str:
        style = _FONT.sub("", match[1]).replace(": ", ":").replace("; ", ";")
        name = f"s{hashlib.sha256(style.encode()).hexdigest()[:5]}"
        rules[name] = f".{name}{{{style}}}"
        return f' class="{name}"'

    svg = _STYLES.sub(name_of, svg)
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}<style>{''.join(rules.values())}</style>{svg[end:]}"


def _coloured(svg: str) -> str:
    start = svg.index("<svg")
    for name, colour in LIGHT.items():
        svg = svg.replace(colour, f"var(--{name})")
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in of.items()) for of in (LIGHT, DARK))
    style = f"<style>text{{font:10px 'DejaVu Sans',sans-serif}}:root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    end = svg.index(">", start) + 1
    return svg[start:end] + style + svg[end:]


def figure_output(axes: Any) -> dict[str, Any]:
    """Return a figure as a notebook's output."""
    svg, about = _svg(axes.get_figure())
    return {"output_type": "display_data", "data": {"image/svg+xml": svg}, "metadata": about}
