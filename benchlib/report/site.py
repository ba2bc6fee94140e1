"""What stands around the pages of studies: the index, how verdicts are made, and the links between all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchlib.errors import InputError
from benchlib.report import calibration_page
from benchlib.report.entries import Entry
from benchlib.report.figures.frames import known, rows_of
from benchlib.report.figures.tables import Table, html_table, p_words
from benchlib.report.page import Link, Page, linked, render_index, render_prose
from benchlib.report.summary import Summary
from benchlib.stats.analysis import leading
from benchlib.stats.assumptions import assumptions_seen
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import StudyFolder

_INTRO = "Does this change make PostgreSQL faster, by how much, and how sure is that?"
_PAGES = {
    "index.html": ("Studies", ""),
    "summary.html": ("Summary", "every factor's effect, ranked, with what it gives up"),
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

    ``entries`` are of the studies that have a verdict, ``left_out`` the others with the reasons; a study without a page is
    named on the index, with what would make it one.
    """
    kept = Summary([shown(StudyFolder(entry.name)) for entry in entries], left_out)
    root.mkdir(parents=True, exist_ok=True)
    calibration_page.publish(root)
    ranks = {name: place for place, name in enumerate(kept.rows["study"])}
    ranked = sorted(kept.experiments, key=lambda e: ranks[e.folder.name])
    rendered = [e for e in ranked if (root / f"{e.folder.name}.html").is_file()]
    pending = [e.folder.name for e in kept.experiments if e not in rendered]
    titles = Counter(e.study.title for e in rendered)
    studies = [Link(_label(e, titles), f"{e.folder.name}.html") for e in rendered]
    links = [
        Link(label, href)
        for href, (label, _) in _PAGES.items()
        if (root / href).is_file() or href in ("index.html", "methodology.html")
    ]
    index = render_index(
        [_entry(e, link) for e, link in zip(rendered, studies, strict=True)],
        intro=_INTRO,
        figures=[kept.forest()] if len(rendered) > 1 else [],
        links=[Link(f"{link.label}: {_PAGES[link.href][1]}", link.href) for link in links[1:]],
        left_out=[
            *kept.unused,
            *((name, f"it has no page yet: benchlib report {name} makes one") for name in pending),
        ],
    )
    (root / "index.html").write_text(index)
    about = Page(
        "How a verdict is made",
        question="For those who do not believe benchmarks: what is measured, how it is judged, and what can bias it.",
    )
    calibrated = (root / "calibration.html").is_file()
    seen = assumptions_table(ranked)
    methodology = render_prose(about, "methodology.md.j2", calibrated=calibrated, assumptions=seen)
    (root / "methodology.html").write_text(methodology)
    _link_pages(root, links, studies)
    return root / "index.html"


def assumptions_table(experiments: Sequence[Experiment]) -> Table | None:
    """How far the studies' own trials are what the model takes them for; None without a study."""
    rows = []
    for experiment in experiments:
        trials, plan = experiment.trials, experiment.plan
        seen = assumptions_seen(trials[trials["error"].isna()], plan.metric, plan.strata())
        if not np.isfinite(seen["noise"]):
            continue
        row = {"study": experiment.folder.name, "blocks": experiment.analysis.blocks}
        row["a trial strays by"] = f"{100 * seen['noise']:.1f} %"
        row["noisiest level"] = f"{seen['noisiest']:.1f} × ({p_words(seen['noisiest_p'])})"
        stays = np.isfinite(seen["luck"])
        row["luck of a cluster"] = (
            f"{seen['luck']:.1f} × ({p_words(seen['luck_p'])})" if stays else "not known"
        )
        row["position"] = p_words(seen["position_p"])
        row["a trial and the next"] = f"{seen['lag']:+.2f} ({p_words(seen['lag_p'])})".replace("-", "−")
        rows.append(row)
    note = (
        "From what the block model leaves over. The noisiest level's deviation is in units of the quietest one's, a cluster's luck in units of a "
        "trial's; luck cannot be told apart where clusters are built once or for each block. Position: whether the place in the block matters. Last: the correlation "
        "of neighbours in time. In brackets and under position: p, not adjusted for so many questions."
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


def _label(experiment: Experiment, titles: Counter[str]) -> str:
    """What a study is called among the others: its title, with its own name where another has the same title."""
    title, name = experiment.study.title, experiment.folder.name
    return title if titles[title] == 1 else f"{title} ({name})"


def _entry(experiment: Experiment, link: Link) -> dict[str, Any]:
    level = leading(experiment.analysis)
    lead, facts = rows_of(experiment.analysis)[level], dict(experiment.facts())
    return {
        "title": link.label,
        "href": link.href,
        "headline": experiment.analysis.headline(),
        "question": experiment.plan.factor.question,
        "verdict": lead["verdict"],
        "percent_change": lead["percent_change"] if known(lead["percent_change"]) else None,
        "facts": [facts["Measured"], facts["Machine"]],
        "durability": experiment.durability().get(level, ""),
    }
