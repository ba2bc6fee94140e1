"""The calibration's page: what the suite promises and how it did, from ``data/calibration/`` alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat.v4 as v4
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import binomtest

from benchlib.report.figures.figure import Figure, render
from benchlib.report.figures.forms import Label, rows
from benchlib.report.figures.layout import styled
from benchlib.report.figures.style import INK, Look
from benchlib.report.figures.tables import Table, html_table
from benchlib.report.page import Link, Page, render_page
from benchlib.stats.means import geometric_mean
from benchlib.stats.simulation import ALPHA, SIGMA_D
from benchlib.study.store import data_root

BASELINE = "baseline"
TWINS = ("control", "same")
"""The arms of a real session that do the baseline's work."""
ENOUGH_SESSIONS = 20
"""With fewer real sessions the counts are shown and not judged."""
_FILES = {"simulated.csv": "simulated situations (CSV)", "trials.csv": "real trials (CSV)", "summary.json": "real sessions (JSON)"}  # fmt: skip


def calibration_folder() -> Path:
    """The folder with the figures of both calibrations."""
    return data_root() / "calibration"


def publish(reports: Path) -> None:
    """Write ``calibration.html`` and its downloads into ``reports``; nothing without data."""
    kept = calibration_folder()
    cells, totals, real = (kept / name for name in ("simulated.csv", "simulated.json", "summary.json"))
    simulated = (pd.read_csv(cells), json.loads(totals.read_text())) if totals.is_file() else None
    measured = json.loads(real.read_text()) if real.is_file() else None
    if simulated is None and measured is None:
        return
    downloads = []
    for name, label in _FILES.items():
        if (kept / name).is_file():
            shutil.copyfile(kept / name, reports / f"calibration.{name}")
            downloads.append(Link(label, f"calibration.{name}"))
    (reports / "calibration.html").write_text(render_calibration(simulated, measured, downloads))


def render_calibration(
    simulated: tuple[pd.DataFrame, Mapping[str, Any]] | None,
    real: Mapping[str, Any] | None,
    downloads: Sequence[Link] = (),
) -> str:
    """The page, of the simulated situations with the totals of that run, of the real sessions, or of both."""
    promises: list[Promise] = []
    body: list[Any] = []
    facts: list[tuple[str, str]] = []
    if simulated:
        cells, totals = simulated
        promises += simulated_promises(cells, totals)
        body += _simulated(cells, totals)
        facts += [("Simulated", f"{len(cells)} situations × {totals['sessions']:,} studies"), ("Seed", str(totals["seed"]))]  # fmt: skip
    if real:
        promises += real_promises(real)
        body += _real(real)
        machine = f"{real['host']['processors']} × {real['host']['processor']}"
        facts += [("Real sessions", str(real["options"]["sessions"])), ("Server", real["server"]), ("Machine", machine), ("Measured", real["created"][:10])]  # fmt: skip
    judged = [promise.kept for promise in promises if promise.kept is not None]
    count = f"{sum(judged)} of {len(judged)} promises kept"
    page = Page(
        title="The suite on trial",
        question="How often does it see a difference where there is none, and how often does it find one that is there?",
        headline=f"{count}." + (f" {sentence(real)}" if real else ""),
        verdict=count if judged else "too few sessions",
        facts=facts,
        downloads=downloads,
    )
    parts = ["## What is promised, and what came out", _promise_table(promises), *body]
    return render_page(v4.new_notebook(cells=[_cell(part, n) for n, part in enumerate(parts)]), page)  # type: ignore[no-untyped-call]


def _cell(part: Any, number: int) -> Any:
    """Prose as a Markdown cell, a figure or table as an output; ids count, so that a page repeats."""
    if isinstance(part, str):
        return v4.new_markdown_cell(part, id=f"part-{number}")  # type: ignore[no-untyped-call]
    output = v4.new_output("display_data", {"text/html": part._repr_html_()})  # type: ignore[no-untyped-call]
    return v4.new_code_cell(outputs=[output], id=f"part-{number}")  # type: ignore[no-untyped-call]


# --- promises -----------------------------------------------------------------------


@dataclass(frozen=True)
class Promise:
    """One promise: its bar and the result, in words; ``kept`` is None where there is too little to judge."""

    what: str
    bar: str
    result: str
    kept: bool | None


def simulated_promises(cells: pd.DataFrame, totals: Mapping[str, Any]) -> list[Promise]:
    """The protocol's promises that simulation can show (``statistics.md``, Calibration)."""
    keys = ["rho", "run_sd", "contamination", "blocks", "levels", "controls"]
    hit = cells["contamination"] > 0
    calm = cells[(cells["drift"] == 0) & (cells["ramp"] == 0)]
    moved = cells.merge(calm, on=keys, suffixes=("", "_calm"))
    shift = 100 * (moved["alarms"] - moved["alarms_calm"]).abs()
    power, early = pd.DataFrame(totals["power"]), pd.DataFrame(totals["sequential"])
    four = power[(power["levels"] == 4) & (power["controls"] == 0)]

    def judged(
        what: str, bar: str, values: pd.Series[float], low: float, high: float, unit: str = " %"
    ) -> Promise:
        result = " to ".join(dict.fromkeys(f"{v:.2f}" for v in (values.min(), values.max())))
        return Promise(what, bar, f"{result}{unit}", bool(values.between(low, high).all()))

    return [
        judged("false alarms between identical systems", "4.4 to 5.6 % unless contaminated", 100 * cells["alarms"][~hit], 4.4, 5.6),
        judged("any false alarm among all levels of a study", "at most 5.6 %", 100 * cells["family"], 0, 5.6),
        judged("95 % intervals that hold the truth", "94 to 96 % unless contaminated", 100 * cells["coverage"][~hit], 94, 96),
        judged("the same when something else hits a tenth of the trials", "at least 92 %", 100 * cells["coverage"][hit], 92, 100),
        judged("what a drifting host changes in the false alarms", "less than 0.6 points", shift, 0, 0.6, " points"),
        judged(f"power for +5 % at σ_d {100 * SIGMA_D:.2f} %, 4 levels, 5 blocks", "at least 77 %", 100 * four["power"][four["blocks"] == 5], 77, 100),
        judged("blocks to 80 % power, against one who knows the noise", "at most 1.3 times", four["over_oracle"], 0, 1.3, " times"),
        judged("false alarms when stopping early", "at most 5.3 %", 100 * early["alarms"], 0, 5.3),
        judged("power for +5 % when stopping early", "at least 90 %", 100 * early["power"], 90, 100),
        judged("blocks used when stopping early, mean", "at most 7", early["blocks"], 0, 7, ""),
    ]  # fmt: skip


def real_promises(real: Mapping[str, Any]) -> list[Promise]:
    """The promises on real servers: at most 5 of 40 twins flagged, at least 16 of 20 changes found."""
    verdicts = _verdicts(real)
    enough = verdicts["session"].nunique() >= ENOUGH_SESSIONS
    twins, changes = (rows["different"] for _, rows in verdicts.groupby(~verdicts["level"].isin(TWINS)))
    most, least = len(twins) * 5 // 40, -(-len(changes) * 16 // 20)
    return [
        Promise("A/A comparisons flagged, real servers", f"at most {most} of {len(twins)}",
                _share(twins), bool(twins.sum() <= most) if enough else None),
        Promise(f"injected changes of {_effect(real)} found, real servers", f"at least {least} of {len(changes)}",
                _share(changes), bool(changes.sum() >= least) if enough else None),
    ]  # fmt: skip


def sentence(real: Mapping[str, Any]) -> str:
    """What a real calibration found, in one sentence."""
    flagged, seen = real_promises(real)
    change = _changes(_verdicts(real)).set_index("arm").loc[_effect(real)]
    few = f" (too few to judge: that takes {ENOUGH_SESSIONS} sessions)" if seen.kept is None else ""
    return (
        f"On real servers {flagged.result} A/A comparisons were flagged and {seen.result} injected changes "
        f"of {_effect(real)} were found{few}; over all sessions the injected change was {change['change']} %"
        f"{f' [{interval}]' if (interval := change['interval']) else ''}."
    )


def _verdicts(real: Mapping[str, Any]) -> pd.DataFrame:
    """The sessions' verdicts that have a p, and whether the arm was called ``different``.

    A twin is by its own p, an injected change where the verdict, with all its adjustments, is "faster".
    """
    rows = pd.DataFrame(real["verdicts"]).dropna(subset=["p_value"])
    twin = rows["level"].isin(TWINS)
    return rows.assign(different=(rows["p_value"] < ALPHA).where(twin, rows["verdict"] == "faster"))


def _share(different: pd.Series[bool]) -> str:
    """How many, with Clopper and Pearson's interval."""
    count, total = int(different.sum()), len(different)
    ends = binomtest(count, total).proportion_ci()
    return f"{count} of {total} ({100 * count / total:.0f} %, interval {100 * ends.low:.0f} to {100 * ends.high:.0f} %)"


def _changes(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Each arm's change over all sessions with Student's interval, which holds what clusters add; in words."""
    rows = []
    for level, values in verdicts.groupby("level", sort=False)["percent_change"]:
        mean, *ends = (100 * value - 100 for value in geometric_mean((1 + values / 100).to_list()))
        interval = ", ".join(f"{end:.2f}" for end in ends) if len(values) > 1 else ""
        rows.append((str(level), f"{mean:+.2f}", interval))
    return pd.DataFrame(rows, columns=["arm", "change", "interval"]).replace("-", "−", regex=True)


def _effect(real: Mapping[str, Any]) -> str:
    return f"+{100 * real['options']['effect']:g} %"


def _promise_table(promises: Sequence[Promise]) -> Table:
    words = {True: "kept", False: "not kept", None: "too few to judge"}
    rows = [(p.what, words[p.kept], p.result, p.bar) for p in promises]
    return html_table(pd.DataFrame(rows, columns=["promise", "kept?", "result", "bar"]), "Promises")


# --- sections -----------------------------------------------------------------------


def _simulated(cells: pd.DataFrame, totals: Mapping[str, Any]) -> list[Any]:
    cells = cells[cells["controls"] == 0]
    marks = pd.DataFrame({
        "row": [f"{n} blocks, {k} levels" for n, k in zip(cells["blocks"], cells["levels"], strict=True)],
        "hollow": cells["contamination"] > 0, "alarms": 100 * cells["alarms"], "family": 100 * cells["family"],
    }).sort_values("row", kind="stable")  # fmt: skip
    about = (
        f"Each mark is one situation of {totals['sessions']:,} simulated studies (standard error "
        f"{100 * cells['error'].max():.2f} points); hollow: a tenth of the trials is hit by something else. "
    )
    power, early = pd.DataFrame(totals["power"]), pd.DataFrame(totals["sequential"])
    power["arms"] = [
        f"{k} levels" + " with A/A arm" * c for k, c in zip(power["levels"], power["controls"], strict=True)
    ]
    wide = (100 * power.pivot(index="blocks", columns="arms", values="power")).round(1)
    early[["alarms", "power"]] *= 100
    return [
        "## By simulation\n\nSimulated studies in which the truth is known: seconds that depend on each other, runs that "
        "differ, hosts that drift, neighbours that take throughput away. They are judged by a faster form of what judges a real "
        "study; a test holds the two together. The verdict's other doubts (drift, steady state, failures) take no part.",
        marks_by_row("alarms", marks, "alarms", axis="false alarms of one comparison, %", band=(4.4, 5.6), lines=(5,),
                     caption=about + "Shaded: the promise for situations without hits, 4.4 to 5.6 %."),
        marks_by_row("family", marks, "family", axis="studies with any false alarm, %", band=(0, 5.6), lines=(5,),
                     caption=about + "Shaded: the promise, at most 5.6 %."),
        html_table(wide.reset_index(), f"Power for +5 % at σ_d {100 * SIGMA_D:.2f} %, by blocks",
                   note="Percent of simulated studies that found it, one comparison."),
        html_table(early, "Stopping early: looks after 3, 5, 7 and 9 blocks",
                   labels={"alarms": "false alarms, %", "power": "power for +5 %, %", "blocks": "blocks used, mean", "controls": "A/A arms"}),
    ]  # fmt: skip


def _real(real: Mapping[str, Any]) -> list[Any]:
    verdicts, options, work = _verdicts(real), real["options"], real["work"]
    marks = pd.DataFrame(
        {"row": verdicts["level"], "hollow": ~verdicts["different"], "change": verdicts["percent_change"]}
    )
    noise = 100 * float(np.sqrt(2 * (verdicts["residual_sd"] ** 2).mean()))
    return [
        f"## On real servers\n\nStudies of {options['blocks']} blocks, trials of {options['duration_s']} s, one client, each study with clusters "
        f"and a seed of its own. A transaction counts to {work['baseline']:,} ({work['fixed_us']:.0f} µs and {work['step_us']:.3f} µs a step); in the injected arm to "
        f"{work['injected']:,}, which makes it {_effect(real)} faster. The control against the baseline, and “same” against the mean of both, are "
        f"two orthogonal A/A comparisons in each study. The trials' noise was σ_d {noise:.1f} %.",
        marks_by_row(
            "sessions", marks, "change", axis=f"change of throughput against {BASELINE}, %", lines=(0, 100 * options["effect"]),
            caption=f"Each mark is one session's estimate; hollow: not called different. Lines: no change, and the injected {_effect(real)}. A twin is "
            f"flagged when its own p is below {ALPHA:g}; an injected change counts as found when the session's verdict is “faster”."),
        html_table(_changes(verdicts), "Over all sessions: what the arms really differ by",
                   labels={"change": "change, %", "interval": "95 % interval"}, formats={"change": str, "interval": str},
                   note="Student's interval on the sessions' estimates."),
    ]  # fmt: skip


@styled
def marks_by_row(
    name: str,
    marks: pd.DataFrame,
    value: str,
    *,
    axis: str,
    caption: str,
    lines: Sequence[float],
    band: tuple[float, float] | None = None,
) -> Figure:
    """Each value as a mark on its ``row``, ``hollow`` or filled, with ``lines`` and a shaded ``band``."""
    parts = {str(label): part for label, part in marks.groupby("row", sort=False)}
    frame = pd.concat(
        [
            # spread by their order, so that marks of one value can be told apart
            part.assign(row=number, lift=np.resize([0.0, -1.0, 1.0, -0.5, 0.5], len(part)))
            for number, part in enumerate(parts.values())
        ]
    )
    looks = frame["hollow"].map({True: Look("blue", filled=False, size=3.6), False: Look("blue", size=3.6)})
    ends = [*frame[value], *lines, *(band or ())]
    pad = 0.04 * (np.nanmax(ends) - np.nanmin(ends))

    def scale(axes: Axes) -> str:
        axes.set_xlim(np.nanmin(ends) - pad, np.nanmax(ends) + pad)
        return ""

    labels = [Label(label) for label in parts]
    drawing, axes, _ = rows(labels, frame.assign(value=frame[value], look=looks), scale, axis, band=band)
    for line in lines:
        axes.axvline(line, color=INK, linewidth=1)
    ranges = "; ".join(
        f"{label}: {part[value].min():.2f} to {part[value].max():.2f}" for label, part in parts.items()
    )
    alt = f"{axis[:1].upper()}{axis[1:]}, a row of marks for each. {ranges}.".replace("-", "−")
    return render(name, drawing, alt=alt, caption=caption)
