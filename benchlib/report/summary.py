"""All kept studies side by side: what answers each one's question, and what others published beside it."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

import pandas as pd
from markupsafe import Markup

from benchlib.plan.planning import PANELS
from benchlib.report.entries import Entry, entries
from benchlib.report.figures.changes import index_panels
from benchlib.report.figures.figure import Figure
from benchlib.report.figures.frames import DAGGER, percent_words
from benchlib.report.figures.style import mark_of
from benchlib.report.figures.tables import Table, html_table
from benchlib.report.sections.beside_published import ALONE
from benchlib.report.view import Statement


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
        machines = dict(zip(self._machines(), (entry.facts["Machine"] for entry in self.entries), strict=True))
        where = "; ".join(f"{letter}: {of}" if letter else of for letter, of in sorted(machines.items()))
        count = f"{len(self.entries)} {'study' if len(self.entries) == 1 else 'studies'}"
        return Statement(f"{count}{when}. {where}.")

    def panels(self) -> Figure | None:
        """What answers each study's question, in three panels."""
        return index_panels(self.entries) if self.entries else None

    def answers(self) -> Table | None:
        """The same in numbers, with what is given up and what was compared."""
        rows = [
            _row(entry, letter, answer)
            for letter, entry in zip(self._machines(), self.entries, strict=True)
            for answer in entry.answers
        ]
        if not rows:
            return None
        table = pd.DataFrame(rows, dtype=object)
        table = table.drop(columns=[name for name in ("machine", "gives up") if not table[name].any()])
        formats = dict.fromkeys(("change", "interval"), str)
        return html_table(table, "What answers each study's question", formats=formats, foldable=False)

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

    def _machines(self) -> list[str]:
        """A letter for each study's machine, where there are several."""
        codes, hosts = pd.factorize(pd.Series([entry.host for entry in self.entries], dtype=object))
        return [ascii_uppercase[code % 26] if len(hosts) > 1 else "" for code in codes]


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
