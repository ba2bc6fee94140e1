"""What stands around the pages of studies: the index, the summary, how verdicts are made, and the links between all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pandas as pd
from markupsafe import Markup

from benchlib.plan.planning import PANELS
from benchlib.report.entries import Entry, entries
from benchlib.report.figures.changes import index_panels
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import DAGGER, known, percent_words
from benchlib.report.figures.style import mark_of
from benchlib.report.figures.tables import Table, html_table, p_words
from benchlib.report.page import SITE, Link, Page, linked, render_prose
from benchlib.report.sections.beside_published import ALONE
from benchlib.report.view import Statement

_INTRO = "Does this change make PostgreSQL faster, by how much, and how sure is that?"
_ABOUT = "For those who do not believe benchmarks: what is measured, how it is judged, and what can bias it."
_PAGES = {
    "index.html": ("Studies", ""),
    "summary.html": ("Summary", "all answers in numbers, and what others published beside them"),
    "methodology.html": ("Methodology", "how a verdict is made, and what can bias it"),
    "calibration.html": ("Calibration", "how far these verdicts can be trusted: the suite on trial"),
}
"""The pages that are no study's, in the order in which every page links to them; the last two words for the index."""


def write_site(root: Path, kept: Sequence[Entry], left_out: Sequence[tuple[str, str]]) -> Path:
    """Write the site's own pages and link all pages with each other; the index's path.

    ``kept`` are the studies that have a verdict, ``left_out`` the others with the reasons; a study without a page is
    named on the index, with what would make it one.
    """
    root.mkdir(parents=True, exist_ok=True)
    ordered = by_panel(kept)
    rendered = [entry for entry in ordered if (root / f"{entry.name}.html").is_file()]
    titles = Counter(entry.title for entry in rendered)
    studies, panels = list[Link](), dict[str, list[tuple[Entry, Link]]]()
    for entry in rendered:
        title = entry.title if titles[entry.title] == 1 else f"{entry.title} ({entry.name})"
        studies.append(Link(title, f"{entry.name}.html"))
        panels.setdefault(PANELS[entry.panel], []).append((entry, studies[-1]))
    links = [
        Link(label, href)
        for href, (label, _) in _PAGES.items()
        if (root / href).is_file() or href in ("index.html", "methodology.html")
    ]
    why = "it has no page yet: benchlib report {} makes one".format
    index = render_prose(
        Page(SITE, question=_INTRO),
        "listing.html.j2",
        panels=panels,
        figures=[_panels(rendered)] if rendered else [],
        links=[Link(f"{link.label}: {_PAGES[link.href][1]}", link.href) for link in links[1:]],
        left_out=[*left_out, *((e.name, why(e.name)) for e in ordered if e not in rendered)],
    )
    (root / "index.html").write_text(index)
    about = Page("How a verdict is made", question=_ABOUT)
    calibrated, assumptions = (root / "calibration.html").is_file(), assumptions_table(ordered)
    methodology = render_prose(about, "methodology.md.j2", calibrated=calibrated, assumptions=assumptions)
    (root / "methodology.html").write_text(methodology)
    _link_pages(root, links, studies)
    return root / "index.html"


def assumptions_table(entries: Sequence[Entry]) -> Table | None:
    """How far the studies' own trials are what the model takes them for; None without a study."""

    def times(seen: dict[str, float], name: str) -> str:
        return f"{seen[name]:.1f} × ({p_words(seen[f'{name}_p'])})" if known(seen[name]) else "not known"

    rows = [
        {
            "study": entry.name,
            "blocks": entry.blocks,
            "a trial strays by": f"{100 * seen['noise']:.1f} %",
            "noisiest level": times(seen, "noisiest"),
            "luck of a cluster": times(seen, "luck"),
            "position": p_words(seen["position_p"]),
            "a trial and the next": f"{seen['lag']:+.2f} ({p_words(seen['lag_p'])})".replace("-", "−"),
        }
        for entry in entries
        if known((seen := entry.assumptions).get("noise"))
    ]
    note = (
        "From what the block model leaves over. The noisiest level's deviation is in units of the quietest one's, a cluster's luck in units of a "
        "trial's. Last: the correlation of neighbours in time. In brackets and under position: p, not adjusted."
    )
    return html_table(pd.DataFrame(rows), "The assumptions in the kept studies", note=note) if rows else None


def _link_pages(root: Path, links: list[Link], studies: list[Link]) -> None:
    """Write into every page what leads to the others, which its own rendering does not know."""
    around = [None, *studies, None]
    neighbours = {
        link.href: (before, after) for before, link, after in zip(around, studies, around[2:], strict=False)
    }
    for href in dict.fromkeys([*(link.href for link in links), *neighbours]):
        page = root / href
        page.write_text(linked(page.read_text(), href, links, neighbours.get(href, (None, None))))


# --- all studies side by side -----------------------------------------------------------


class Summary:
    """The kept studies on one page; every method returns something that shows itself, or None where there is nothing.

    ``unused`` are the studies that have no verdict, each with the reason.
    """

    def __init__(self, entries: Sequence[Entry], unused: Sequence[tuple[str, str]] = ()) -> None:
        self.entries = by_panel(entries)
        self.unused = unused

    def studies(self) -> Statement:
        """How many studies there are, when and on which machines they were measured."""
        if not self.entries:
            return Statement("No study has a verdict yet. Run one, for example: benchlib run configuration")
        days = sorted({entry.facts["Measured"] for entry in self.entries} - {""})
        when = f", measured {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
        machines = {letter: entry.facts["Machine"] for letter, entry in self._by_machine()}
        where = "; ".join(f"{letter}: {of}" if letter else of for letter, of in sorted(machines.items()))
        count = f"{len(self.entries)} {'study' if len(self.entries) == 1 else 'studies'}"
        return Statement(f"{count}{when}. {where}.")

    def panels(self) -> Figure | None:
        """What answers each study's question, in three panels."""
        return _panels(self.entries) if self.entries else None

    def answers(self) -> Table | None:
        """The same in numbers, with what is given up and what was compared."""
        rows = [_row(entry, letter, of) for letter, entry in self._by_machine() for of in entry.answers]
        if not rows:
            return None
        table = pd.DataFrame(rows, dtype=object)
        table = table.drop(columns=[name for name in ("machine", "gives up") if not table[name].any()])
        formats = dict.fromkeys(("change", "interval"), str)
        return html_table(table, "What answers each study's question", formats=formats, folded=False)

    def beside_published(self) -> Table | None:
        """The comparisons that other studies published of the same factors, beside what was measured here."""
        rows = [{"study": entry.title, **row} for entry in self.entries for row in entry.published]
        if not rows:
            return None
        frame = pd.DataFrame(rows, dtype=object)
        note = f"Each study's page has the conditions. {ALONE} None of a study's own comparisons."
        return html_table(frame, "Published, and measured here", note=note)

    def left_out(self) -> Table | None:
        """The studies that have nothing to show here, and why."""
        if not self.unused:
            return None
        return html_table(pd.DataFrame(self.unused, columns=["study", "why"]), "Studies that are left out")

    def _by_machine(self) -> list[tuple[str, Entry]]:
        """Each study, with a letter for its machine where there are several."""
        hosts = list(dict.fromkeys(entry.host for entry in self.entries))
        letters = ascii_uppercase if len(hosts) > 1 else [""]
        return [(letters[hosts.index(entry.host) % len(letters)], entry) for entry in self.entries]


def read_summary(names: Sequence[str] = ()) -> Summary:
    """The summary of the studies of these names; of all that are kept, if none is given.

    Raises:
        InputError: there is no study of a name.

    """
    return Summary(*entries(names))


def by_panel(entries: Sequence[Entry]) -> list[Entry]:
    """The studies in the order of the index: by panel, then by title."""
    places = {panel: place for place, panel in enumerate(PANELS)}
    return sorted(entries, key=lambda entry: (places.get(entry.panel, 0), entry.title, entry.name))


def _panels(entries: Sequence[Entry]) -> Figure:
    """What answers each study's question, drawn once for index and summary."""
    return _drawn(*(entry.model_dump_json() for entry in entries))


@lru_cache(maxsize=1)
def _drawn(*entries: str) -> Figure:
    return index_panels([Entry.model_validate_json(entry) for entry in entries])


def _row(entry: Entry, machine: str, answer: Any) -> dict[str, Any]:
    """An answer in words."""
    change, between = percent_words(answer.percent_change, answer.ci_low, answer.ci_high)
    metric = "" if entry.metric_title == "throughput" else f" {entry.metric_title}"
    return {
        "study": Markup('<a href="{}.html">{}</a>').format(entry.name, entry.title),
        "change": f"{change}{metric}",
        "verdict": f"{mark_of(answer.verdict).sign}\u00a0{answer.verdict}",
        "answer": f"{answer.words}{DAGGER if answer.gives_up else ''}",
        "interval": between,
        "against": answer.against,
        "gives up": answer.gives_up,
        "machine": machine,
    }
