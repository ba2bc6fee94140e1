"""What stands around the pages of studies: the index, the summary, and how verdicts are made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from benchlib.host import files
from benchlib.plan.planning import PANELS
from benchlib.plan.words import scrubbed
from benchlib.report.answers import Answer, sentence
from benchlib.report.entries import Entry, address_of, reports_root
from benchlib.report.figures.changes import index_panels
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import DAGGER, MINUS, SAYS_BOTH, known
from benchlib.report.figures.style import mark_of
from benchlib.report.figures.tables import Format, Table, html_table, p_words
from benchlib.report.page import SITE, Page, render_prose
from benchlib.report.view import Statement

_INTRO = "Does this change make PostgreSQL faster, by how much, and how sure is that?"
_ABOUT = "For those who do not believe benchmarks: what is measured, how it is judged, and what can bias it."


def write_site(root: Path, kept: Sequence[Entry], left_out: Mapping[str, str]) -> Path:
    """Write the index and the page of methods; the index's path.

    ``kept`` are the studies that have a verdict, in their order, ``left_out`` the others with the reasons; a study without
    a page is named on the index, with what would make it one.
    """
    files.make(root)
    pages = {path.stem for path in root.glob("*.html")}
    about = Page("How a verdict is made", question=_ABOUT, address=address_of("methodology.html"))
    calibrated, assumptions = "calibration" in pages, assumptions_table(kept)
    methodology = render_prose(about, "methodology.md.j2", calibrated=calibrated, assumptions=assumptions)
    files.write(root / "methodology.html", methodology)
    rendered = [entry for entry in kept if entry.name in pages]
    why = "it has no page yet: benchlib report {} makes one".format
    index = render_prose(
        Page(SITE, question=_INTRO, address=address_of("index.html")),
        "listing.html.j2",
        entries=rendered,
        panels=PANELS,
        titles=Counter(entry.title for entry in rendered),
        figure=index_panels(rendered) if rendered else None,
        pages=pages,
        left_out={
            **{name: scrubbed(reason) for name, reason in left_out.items()},
            **{e.name: why(e.name) for e in kept if e not in rendered},
        },
    )
    files.write(root / "index.html", index)
    return root / "index.html"


def assumptions_table(entries: Sequence[Entry]) -> Table | None:
    """How far the studies' own trials are what the model takes them for; None without a study."""
    rows = [
        {"study": entry.name, "blocks": entry.facts["Blocks"], **entry.assumptions}
        for entry in entries
        if known(entry.assumptions.get("noise"))
    ]
    labels = {"noise": "a trial strays by", "noisiest": "noisiest level", "luck": "luck of a cluster"}
    formats: dict[str, Format] = {
        "noise": lambda share: f"{100 * share:.1f} %",
        "lag": lambda rho: f"{rho:+.2f}".replace("-", MINUS),
    }
    formats |= dict.fromkeys(("noisiest", "luck"), "{:.1f} ×".format)
    formats |= dict.fromkeys(("noisiest_p", "luck_p", "position_p", "lag_p"), p_words)
    caption = "The assumptions in the kept studies"
    return html_table(pd.DataFrame(rows), caption, formats=formats, labels=labels) if rows else None


# --- all studies side by side -----------------------------------------------------------


class Summary:
    """The kept studies on one page; every method returns something that shows itself, or None where there is nothing."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries

    def studies(self) -> Statement:
        """How many studies there are, when and on which machines they were measured."""
        return Statement(sentence("studies", entries=self.entries))

    def panels(self) -> Figure | None:
        """What answers each study's question, in three panels."""
        return index_panels(self.entries) if self.entries else None

    def answers(self) -> Table | None:
        """The same in numbers, with what is given up and what was compared."""
        rows = [
            _row(entry, answer) | {"its main limit": "" if number else entry.limits.partition(" · ")[0]}
            for entry in self.entries
            for number, answer in enumerate(entry.answers)
        ]
        if not rows:
            return None
        table = pd.DataFrame(rows, dtype=object)
        formats = dict.fromkeys(("effect", "interval"), str)
        return html_table(table, "What answers each study's question", formats=formats, folded=False)


def _row(entry: Entry, answer: Answer) -> dict[str, str]:
    """An answer in words."""
    change, interval = answer.cells()
    metric = "" if entry.metric_title == "throughput" else f" {entry.metric_title}"
    has_page = (reports_root() / f"{entry.name}.html").is_file()
    link = Markup('<a href="{}.html">{}</a>').format(entry.name, entry.title)
    return {
        "study": link if has_page else entry.title,
        "effect": change and f"{change}{metric}",
        "verdict": f"{mark_of(answer.verdict).sign}\u00a0{answer.said}",
        "change": f"{answer.words}{DAGGER if answer.gives_up else ''}",
        "interval": interval,
        "against": "" if SAYS_BOTH in answer.words else answer.against,
        "gives up": answer.gives_up,
    }
