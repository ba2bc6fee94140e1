"""The calibration's page: what the suite promises and what was found, from ``data/calibration/`` alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nbformat.v4 as v4
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from benchlib.report.calibrate import ALPHA, BASELINE, TWINS, calibration_folder
from benchlib.report.figures.figure import Canvas, Figure, render
from benchlib.report.figures.frames import signed
from benchlib.report.figures.style import BAND, GRID, INK, LIGHT, PAPER
from benchlib.report.figures.tables import html_table, p_words
from benchlib.report.page import Link, Page, render_page
from benchlib.stats.calibration import SIGMA_D, Cell

ENOUGH_SESSIONS = 20
"""The protocol's bars are for 20 sessions; with fewer the counts are shown and not judged."""
_FILES = {"simulated.csv": "simulated situations (CSV)", "trials.csv": "real trials (CSV)", "summary.json": "real sessions (JSON)"}  # fmt: skip


@dataclass(frozen=True)
class Promise:
    """One promise: its bar and what was found, in words; ``kept`` is None where there is too little to judge."""

    what: str
    bar: str
    found: str
    kept: bool | None


def publish(reports: Path) -> None:
    """Write ``calibration.html`` and its downloads into ``reports``; nothing without data."""
    kept = calibration_folder()
    cells = pd.read_csv(kept / "simulated.csv") if (kept / "simulated.json").is_file() else None
    rest = json.loads((kept / "simulated.json").read_text()) if cells is not None else {}
    real = json.loads((kept / "summary.json").read_text()) if (kept / "summary.json").is_file() else None
    if cells is None and real is None:
        return
    downloads = []
    for name, label in _FILES.items():
        if (kept / name).is_file():
            shutil.copyfile(kept / name, reports / f"calibration.{name}")
            downloads.append(Link(label, f"calibration.{name}"))
    (reports / "calibration.html").write_text(render_calibration(cells, rest, real, downloads))


def render_calibration(
    cells: pd.DataFrame | None,
    rest: Mapping[str, Any],
    real: Mapping[str, Any] | None,
    downloads: Sequence[Link] = (),
) -> str:
    """The page, of the simulated situations with the ``rest`` of that run, of the real sessions, or of both."""
    promises = simulated_promises(cells, rest) if cells is not None else []
    promises += real_promises(real) if real is not None else []
    judged = [promise.kept for promise in promises if promise.kept is not None]
    body: list[Any] = ["## What is promised, and what was found", _promise_table(promises)]
    facts = []
    if cells is not None:
        body += _simulated(cells, rest)
        facts += [("Simulated", f"{len(cells)} situations × {rest['sessions']:,} studies"), ("Seed", str(rest["seed"])),
                  ("Took", f"{rest['seconds'] / 60:.1f} min")]  # fmt: skip
    if real is not None:
        body += _real(real)
        facts += [("Real sessions", str(real["options"]["sessions"])), ("Server", real["server"]),
                  ("Machine", f"{real['host']['processors']} × {real['host']['processor']}"), ("Measured", real["created"][:10])]  # fmt: skip
    kept = f"{sum(judged)} of {len(judged)} promises kept"
    page = Page(
        title="The suite on trial",
        question="How often does it see a difference where there is none, and how often does it find one that is there?",
        headline=f"{kept}." + (f" {sentence(real)}" if real is not None else ""),
        verdict=kept if judged else "too few sessions",
        facts=facts,
        downloads=downloads,
    )
    return render_page(v4.new_notebook(cells=[_cell(part, n) for n, part in enumerate(body)]), page)  # type: ignore[no-untyped-call]


def _cell(part: Any, number: int) -> Any:
    """Prose as a Markdown cell, what shows itself as an output; ids count, so that a page repeats."""
    if isinstance(part, str):
        return v4.new_markdown_cell(part, id=f"part-{number}")  # type: ignore[no-untyped-call]
    output = v4.new_output("display_data", {"text/html": part._repr_html_()})  # type: ignore[no-untyped-call]
    return v4.new_code_cell(outputs=[output], id=f"part-{number}")  # type: ignore[no-untyped-call]


# --- promises -----------------------------------------------------------------------


def simulated_promises(cells: pd.DataFrame, rest: Mapping[str, Any]) -> list[Promise]:
    """The protocol's promises that simulation can show (``statistics.md``, Calibration)."""
    clean, hit = cells[cells["contamination"] == 0], cells[cells["contamination"] > 0]
    calm = cells[(cells["drift"] == 0) & (cells["ramp"] == 0)]
    keys = [name for name in asdict(Cell()) if name not in ("drift", "ramp")]
    moved = cells.merge(calm, on=keys, suffixes=("", "_calm"))
    shift = 100 * float((moved["alarms"] - moved["alarms_calm"]).abs().max())
    power, early = pd.DataFrame(rest["power"]), 100 * pd.DataFrame(rest["sequential"])
    four = power[(power["levels"] == 4) & (power["controls"] == 0)].set_index("blocks")
    at_five, ratio = 100 * float(four["power"][5]), float(four["over_oracle"].iloc[0])
    alarms, family, coverage, covered = (
        100 * column for column in (clean["alarms"], cells["family"], clean["coverage"], hit["coverage"])
    )

    def judged(what: str, column: pd.Series[float], bar: str, low: float = 0, high: float = 100) -> Promise:
        found = f"{column.min():.2f} to {column.max():.2f} % in {len(column)} situations"
        return Promise(what, bar, found, bool(column.between(low, high).all()))

    return [
        judged("false alarms between identical systems", alarms, "4.4 to 5.6 % unless contaminated", 4.4, 5.6),
        judged("any false alarm among all levels of a study", family, "at most 5.6 %", high=5.6),
        judged("95 % intervals that hold the truth", coverage, "94 to 96 % unless contaminated", 94, 96),
        judged("the same when something else hits a tenth of the trials", covered, "at least 92 %", 92),
        Promise("what a drifting host changes in the false alarms", "less than 0.6 points", f"at most {shift:.2f} points", shift < 0.6),
        Promise(f"power for +5 % at σ_d {100 * SIGMA_D:.2f} %, 4 levels, 5 blocks", "at least 77 %", f"{at_five:.1f} %", at_five >= 77),
        Promise("blocks to 80 % power, against one who knows the noise", "at most 1.3 times", f"{ratio:.2f} times", ratio <= 1.3),
        judged("false alarms when stopping early", early["alarms"], "at most 5.3 %", high=5.3),
        judged("power for +5 % when stopping early", early["power"], "at least 90 %", 90),
        Promise("blocks used when stopping early, mean", "at most 7", f"at most {early['blocks'].max() / 100:.2f}", early["blocks"].max() <= 700),
    ]  # fmt: skip


def real_promises(real: Mapping[str, Any]) -> list[Promise]:
    """The promises on real servers: at most 5 of 40 twins flagged, at least 16 of 20 changes found."""
    enough = real["injected"] >= ENOUGH_SESSIONS
    twins, changes = (real["twins"], real["injected"]) if enough else (2 * ENOUGH_SESSIONS, ENOUGH_SESSIONS)
    most, least = twins * 5 // 40, -(-changes * 16 // 20)
    return [
        Promise("A/A comparisons flagged, real servers", f"at most {most} of {twins}",
                _share(real, "flagged", "twins"), real["flagged"] <= most if enough else None),
        Promise(f"injected changes of {_effect(real)} found, real servers", f"at least {least} of {changes}",
                _share(real, "found", "injected"), real["found"] >= least if enough else None),
    ]  # fmt: skip


def sentence(real: Mapping[str, Any]) -> str:
    """What a real calibration found, in one sentence."""
    value, low, high = real["changes"][_effect(real)]
    ends = f" [{low:.2f}, {high:.2f}]" if low is not None else ""
    few = "" if real["injected"] >= ENOUGH_SESSIONS else f" (too few to judge: that takes {ENOUGH_SESSIONS} sessions)"  # fmt: skip
    return (
        f"On real servers {_share(real, 'flagged', 'twins')} A/A comparisons were flagged and "
        f"{_share(real, 'found', 'injected')} injected changes of {_effect(real)} were found{few}; "
        f"over all sessions the injected change was {value:+.2f} %{ends}."
    )


def _effect(real: Mapping[str, Any]) -> str:
    return f"+{100 * real['options']['effect']:g} %"


def _share(real: Mapping[str, Any], count: str, total: str) -> str:
    low, high = (100 * end for end in real[f"{count}_interval"])
    return f"{real[count]} of {real[total]} ({100 * real[count] / max(real[total], 1):.0f} %, interval {low:.0f} to {high:.0f} %)"


def _promise_table(promises: Sequence[Promise]) -> Any:
    words = {True: "kept", False: "not kept", None: "too few to judge"}
    rows = [(p.what, words[p.kept], p.found, p.bar) for p in promises]
    return html_table(
        pd.DataFrame(rows, columns=["promise", "", "found", "bar"]), "Promises", labels={"": "kept?"}
    )


# --- sections -----------------------------------------------------------------------


def _simulated(cells: pd.DataFrame, rest: Mapping[str, Any]) -> list[Any]:
    error = 100 * float(cells["error"].max())
    groups: list[Any] = list(cells[cells["controls"] == 0].groupby(["blocks", "levels"]))

    def rows(column: str) -> list[Strip]:
        return [Strip(f"{n} blocks, {k} levels", 100 * rows_[column].to_numpy(), rows_["contamination"].to_numpy() > 0)
                for (n, k), rows_ in groups]  # fmt: skip

    key = ("undisturbed", "a tenth of trials hit")
    about = f"Each mark is one situation of {rest['sessions']:,} simulated studies; its standard error is {error:.2f} points at 5 %."
    alarms = strips(
        "alarms", rows("alarms"), band=(4.4, 5.6), lines=(5,), key=key, axis="false alarms of one comparison, %",
        caption=f"{about} Shaded: the promise for undisturbed situations, 4.4 to 5.6 %. Trials hit by something else "
        "make verdicts more careful, not rasher. The 95 % interval holds the truth in 100 % less these figures.",
    )  # fmt: skip
    family = strips(
        "family", rows("family"), band=(0, 5.6), lines=(5,), key=key, axis="studies with any false alarm, %",
        caption=f"{about} Shaded: the promise, at most 5.6 % of studies with any false verdict among their levels.",
    )  # fmt: skip
    power = pd.DataFrame(rest["power"])
    power["arms"] = [
        f"{k} levels" + " with A/A arm" * c for k, c in zip(power["levels"], power["controls"], strict=True)
    ]
    wide = (100 * power.pivot(index="blocks", columns="arms", values="power")).round(1)
    early = pd.DataFrame(rest["sequential"])
    rates = ["alarms", "family", "coverage", "power"]
    percent = 100 * cells[["run_sd", "drift", "ramp", "contamination", *rates]]
    shown = pd.concat([cells[["blocks", "levels", "controls", "rho"]], percent], axis=1)
    return [
        "## By simulation\n\nSimulated studies in which the truth is known: seconds that depend on each other, runs that "
        "differ, hosts that drift, neighbours that take throughput away. They are judged by a faster form of what judges a real "
        "study; a test holds the two together. The verdict's other doubts (drift, steady state, failures) take no part.",
        alarms,
        family,
        html_table(wide.reset_index(), f"Power for +5 % at σ_d {100 * SIGMA_D:.2f} %, by blocks",
                   note=f"Percent of simulated studies that found it, one comparison; standard error at most {50 / rest['sessions'] ** 0.5:.2f} points."),
        html_table(early.assign(alarms=100 * early["alarms"], power=100 * early["power"]), "Stopping early: looks after 3, 5, 7 and 9 blocks",
                   labels={"alarms": "false alarms, %", "power": "power for +5 %, %", "blocks": "blocks used, mean", "controls": "A/A arms"}),
        _Folded(f"All {len(cells)} situations", html_table(
            shown, f"Every simulated situation, {rest['sessions']:,} studies each", formats=dict.fromkeys(rates, "{:.2f}".format),
            labels={"controls": "A/A arms", "rho": "ρ of the seconds", "run_sd": "run effect, %", "drift": "drift, %", "ramp": "ramp, % an hour",
                    "contamination": "trials hit, %", "alarms": "false alarms, %", "family": "any, %", "coverage": "coverage, %", "power": "power for +5 %, %"},
            note=f"Standard error of the false alarms: {error:.2f} points.")),
    ]  # fmt: skip


def _real(real: Mapping[str, Any]) -> list[Any]:
    frame, options, work = pd.DataFrame(real["verdicts"]), real["options"], real["work"]
    drawn = [
        Strip(str(level), rows["percent_change"].to_numpy(dtype=float), ~_seen(rows, str(level)))
        for level, rows in frame.groupby("level", sort=False)
    ]
    points = strips(
        "sessions", drawn, lines=(0, 100 * options["effect"]), key=("called different", "not"),
        axis=f"change of throughput against {BASELINE}, %",
        caption=f"Each mark is one session's estimate. Lines: no change, and the injected {_effect(real)}. A twin is flagged when its own p "
        f"is below {ALPHA:g}; an injected change counts as found when the session's verdict is “faster”.",
    )  # fmt: skip
    pooled = pd.DataFrame(
        [(level, f"{v:+.2f}".replace("-", "−"), f"{low:.2f} to {high:.2f}".replace("-", "−") if low is not None else None) for level, (v, low, high) in real["changes"].items()],
        columns=["arm", "change, %", "95 % interval"],
    )  # fmt: skip
    shown = frame[["session", "level", "percent_change", "ci_low", "ci_high", "p_value", "verdict"]]
    return [
        f"## On real servers\n\nStudies of {options['blocks']} blocks, trials of {options['duration_s']} s, one client, each study with clusters "
        f"and a seed of its own. A transaction counts to {work['baseline']:,} ({work['fixed_us']:.0f} µs and {work['step_us']:.3f} µs a step); in the injected arm to "
        f"{work['injected']:,}, which makes it {_effect(real)} faster. The control against the baseline, and “same” against the mean of both, are "
        f"two orthogonal A/A comparisons in each study. The trials' noise was σ_d {100 * real['sigma_d']:.1f} %.",
        points,
        html_table(pooled, "Over all sessions: what the arms really differ by", formats={"change, %": str, "95 % interval": str},
                   note="Student's interval on the sessions' estimates."),
        _Folded("Every session's verdicts", html_table(shown, "Every session's verdicts", labels={"percent_change": "change, %", "ci_low": "interval from", "ci_high": "to", "p_value": "p"},
                formats={"percent_change": signed, "ci_low": signed, "ci_high": signed, "p_value": lambda p: p_words(p) or "–"})),
    ]  # fmt: skip


def _seen(rows: pd.DataFrame, level: str) -> np.ndarray:
    return np.asarray((rows["p_value"] < ALPHA) if level in TWINS else (rows["verdict"] == "faster"))


@dataclass(frozen=True)
class _Folded:
    """A table that is unfolded on demand."""

    summary: str
    table: Any

    def _repr_html_(self) -> str:
        return f"<details><summary>{self.summary}</summary>{self.table._repr_html_()}</details>"


# --- the chart ----------------------------------------------------------------------


@dataclass(frozen=True)
class Strip:
    """A row of marks: its label, their values, and which of them are drawn hollow."""

    label: str
    values: np.ndarray
    hollow: np.ndarray


def strips(
    name: str,
    rows: Sequence[Strip],
    *,
    axis: str,
    caption: str,
    key: tuple[str, str],
    lines: Sequence[float],
    band: tuple[float, float] | None = None,
) -> Figure:
    """Every value as a mark on its row, with ``lines`` and a shaded ``band``; ``key`` names filled and hollow marks."""
    everything = np.concatenate([row.values for row in rows] + [np.asarray([*lines, *(band or ())])])
    low, high = np.nanmin(everything), np.nanmax(everything)
    pad = 0.04 * (high - low)

    def draw(canvas: Canvas) -> None:
        left = 6 + max(canvas.wide_as(row.label) for row in rows)
        width, top, step = canvas.width - left - 6, 22.0, 22.0
        canvas.height(top + step * len(rows) + 34)
        axes = canvas.axes(left, top, width, step * len(rows))
        axes.set_xlim(low - pad, high + pad)
        axes.set_ylim(len(rows), 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(max(int(width / 45), 3), steps=[1, 2, 5, 10]))
        axes.grid(axis="x", color=GRID)
        if band:
            axes.axvspan(*band, color=BAND, linewidth=0, zorder=0.5)
        for line in lines:
            axes.axvline(line, color=INK, linewidth=1, zorder=1.5)
        for number, row in enumerate(rows):
            canvas.text(0, top + step * (number + 0.5), row.label)
            # spread by their order, so that marks of one value can be told apart
            heights = number + 0.5 + 0.3 * np.resize([0.0, -1.0, 1.0, -0.5, 0.5], len(row.values))
            for hollow, colour in ((True, LIGHT["orange"]), (False, LIGHT["blue"])):
                of = row.hollow == hollow
                face = PAPER if hollow else colour
                axes.plot(
                    row.values[of],
                    heights[of],
                    "o",
                    color=colour,
                    markerfacecolor=face,
                    markersize=3.6,
                    zorder=3,
                )
        for text, x, hue in (
            (f"● {key[0]}", 0.0, "blue"),
            (f"○ {key[1]}", canvas.wide_as(f"● {key[0]}") + 14, "orange"),
        ):
            canvas.text(x, 8, text, color=LIGHT[hue])
        canvas.note(canvas.width - 6, top + step * len(rows) + 26, axis, ha="right")

    said = "; ".join(_said(row, key) for row in rows)
    return render(
        name, draw, alt=f"{axis[:1].upper()}{axis[1:]}, a row of marks for each. {said}.", caption=caption
    )


def _said(row: Strip, key: tuple[str, str]) -> str:
    """A row in words: `5 blocks, 4 levels: undisturbed 18 from 4.91 to 5.05; …`."""
    parts = [
        f"{words} {of.sum()}"
        + (f" from {np.nanmin(row.values[of]):.2f} to {np.nanmax(row.values[of]):.2f}" if of.any() else "")
        for words, of in ((key[0], ~row.hollow), (key[1], row.hollow))
    ]
    return f"{row.label}: {', '.join(parts)}".replace("-", "−")
