"""What stands around the pages of studies: the index, how verdicts are made, and the links between all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.planning import PANELS
from benchlib.report.entries import Entry
from benchlib.report.figures.changes import index_panels
from benchlib.report.figures.frames import known
from benchlib.report.figures.tables import Table, html_table, p_words
from benchlib.report.page import SITE, Link, Page, linked, render_prose
from benchlib.report.summary import by_panel

_INTRO = "Does this change make PostgreSQL faster, by how much, and how sure is that?"
_PAGES = {
    "index.html": ("Studies", ""),
    "summary.html": ("Summary", "all answers in numbers, and what others published beside them"),
    "methodology.html": ("Methodology", "how a verdict is made, and what can bias it"),
    "calibration.html": ("Calibration", "how far these verdicts can be trusted: the suite on trial"),
}
"""The pages that are no study's, in the order in which every page links to them; the last two words for the index."""


def check_page_is_free(name: str) -> None:
    """Make sure that a study's page would not take the place of one of the site's own.

    Raises:
        InputError: it would.

    """
    if f"{name}.html" in _PAGES:
        raise InputError(f"'{name}' is a page of the site: choose another name for the study (-p study NAME)")


def write_site(root: Path, entries: Sequence[Entry], left_out: Sequence[tuple[str, str]]) -> Path:
    """Write the site's own pages and link all pages with each other; the index's path.

    ``entries`` are the studies that have a verdict, ``left_out`` the others with the reasons; a study without a page is
    named on the index, with what would make it one.
    """
    root.mkdir(parents=True, exist_ok=True)
    ordered = by_panel(entries)
    rendered = [entry for entry in ordered if (root / f"{entry.name}.html").is_file()]
    titles = Counter(entry.title for entry in rendered)
    studies = {
        e.name: Link(e.title if titles[e.title] == 1 else f"{e.title} ({e.name})", f"{e.name}.html")
        for e in rendered
    }
    links = [
        Link(label, href)
        for href, (label, _) in _PAGES.items()
        if (root / href).is_file() or href in ("index.html", "methodology.html")
    ]
    unpaged = [
        (entry.name, f"it has no page yet: benchlib report {entry.name} makes one")
        for entry in ordered
        if entry not in rendered
    ]
    index = render_prose(
        Page(SITE, question=_INTRO),
        "listing.html.j2",
        panels=[
            (heading, [(entry, studies[entry.name]) for entry in rendered if entry.panel == panel])
            for panel, heading in PANELS.items()
        ],
        figures=[index_panels(rendered)] if rendered else [],
        links=[Link(f"{link.label}: {_PAGES[link.href][1]}", link.href) for link in links[1:]],
        left_out=[*left_out, *unpaged],
    )
    (root / "index.html").write_text(index)
    about = Page(
        "How a verdict is made",
        question="For those who do not believe benchmarks: what is measured, how it is judged, and what can bias it.",
    )
    calibrated, assumptions = (root / "calibration.html").is_file(), assumptions_table(ordered)
    methodology = render_prose(about, "methodology.md.j2", calibrated=calibrated, assumptions=assumptions)
    (root / "methodology.html").write_text(methodology)
    _link_pages(root, links, list(studies.values()))
    return root / "index.html"


def assumptions_table(entries: Sequence[Entry]) -> Table | None:
    """How far the studies' own trials are what the model takes them for; None without a study."""
    rows = []
    for entry in entries:
        seen = entry.assumptions
        if not known(seen.get("noise")):
            continue
        row = {"study": entry.name, "blocks": entry.blocks}
        row["a trial strays by"] = f"{100 * seen['noise']:.1f} %"
        row["noisiest level"] = f"{seen['noisiest']:.1f} × ({p_words(seen['noisiest_p'])})"
        row["luck of a cluster"] = (
            f"{seen['luck']:.1f} × ({p_words(seen['luck_p'])})" if known(seen["luck"]) else "not known"
        )
        row["position"] = p_words(seen["position_p"])
        row["a trial and the next"] = f"{seen['lag']:+.2f} ({p_words(seen['lag_p'])})".replace("-", "−")
        rows.append(row)
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
