"""The calibration's page: what the suite promises and how it did, from ``data/calibration/`` alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import mistune
import numpy as np
import pandas as pd
import seaborn as sns
from markupsafe import Markup
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from scipy.special import stdtrit
from scipy.stats import binom, binomtest, nct
from simulation import SIGMA_D

from benchlib.report.display import described, figure_output
from benchlib.report.drawing import styled
from benchlib.report.page import cleaned, output_part, render
from benchlib.report.style import BAND, BLUE, INK
from benchlib.stats.power import Plan, detectable
from benchlib.stats.sequential import ALPHA
from benchlib.study.frames import guarded
from benchlib.study.store import data_root

BASELINE = "baseline"
TWINS = ("control", "same")
"""The arms of a real session that do the baseline's work."""
ENOUGH_SESSIONS = 20
"""With fewer real sessions the counts are shown and not judged."""
_UNTIDY = ["noisy", "ratio", "stalls", "tails", "luck", "period"]
_FILES = {"simulated.csv": "simulated situations (CSV)", "trials.csv": "real trials (CSV)", "summary.json": "real sessions (JSON)"}  # fmt: skip


def calibration_folder() -> Path:
    """The folder with the figures of both calibrations."""
    return data_root() / "calibration"


def publish(reports: Path) -> None:
    """Write ``calibration.html`` and its downloads into ``reports``; nothing without data."""
    kept, simulated, real = calibration_folder(), None, None
    if (totals := kept / "simulated.json").is_file():
        simulated = pd.read_csv(kept / "simulated.csv"), json.loads(totals.read_text())
    if (summary := kept / "summary.json").is_file():
        real = json.loads(summary.read_text())
    if simulated is None and real is None:
        return
    downloads = {}
    for name, label in _FILES.items():
        if (kept / name).is_file():
            copy = reports / f"calibration.{name}"
            if name.endswith(".csv"):
                cells = pd.read_csv(kept / name, dtype=str, keep_default_na=False).map(guarded)
                cells.rename(columns=guarded).to_csv(copy, index=False)
            else:
                copy.write_text(json.dumps(json.loads((kept / name).read_text()), indent=1) + "\n")
            downloads[copy.name] = label
    (reports / "calibration.html").write_text(render_calibration(simulated, real, downloads))


def render_calibration(
    simulated: tuple[pd.DataFrame, Mapping[str, Any]] | None,
    real: Mapping[str, Any] | None,
    downloads: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the page, of the simulated situations with the totals of that run, of the real sessions, or of both."""
    promises = [
        *(simulated_promises(*simulated) if simulated else []),
        *(real_promises(real) if real else []),
    ]
    judged = [promise.kept for promise in promises if promise.kept is not None]
    table = pd.DataFrame(promises, columns=["promise", "wanted", "result", "kept"])
    table["kept"] = table["kept"].map({True: "kept", False: "not kept"}).fillna("too few to judge")
    parts: list[Any] = [f"{sum(judged)} of {len(judged)} promises kept.", table]
    parts += _simulated(*simulated) if simulated else []
    parts += _real(real) if real else []
    parts.append("\n".join(f"- [{label}]({name})" for name, label in downloads.items()))
    cells, figures = list[dict[str, Any]](), 0
    for part in parts:
        if isinstance(part, str):
            cells.append({"prose": Markup(mistune.html(part))})
        elif isinstance(part, pd.DataFrame):
            cells.append(
                {"prose": Markup('<div class="wide">{}</div>').format(cleaned(part.to_html(index=False)))}
            )
        else:
            figures += 1
            shown = {**(output_part(figure_output(part)) or {}), "number": figures}
            cells.append({"code": "", "parameters": False, "outputs": [shown]})
    return render(
        "notebook.html.j2",
        title="Calibration: simulated and real studies with known effects",
        cells=cells,
        contents=[],
    )


def stress_of(cells: pd.DataFrame) -> pd.Series[str]:
    """What is untidy in each simulated situation, in words."""
    kinds = {
        "hits": cells["contamination"].gt(0),
        "some levels noisier": cells["noisy"].gt(0),
        "stalls of trials": cells["stalls"].gt(0),
        "heavy tails": cells["tails"].gt(0),
        "clusters that differ by chance": cells["luck"].gt(0),
    }
    return pd.Series(np.select(list(kinds.values()), list(kinds), default="tidy"), cells.index)


# --- promises -----------------------------------------------------------------------


class Promise(NamedTuple):
    """One promise: its bar and the result, in words; ``kept`` is None where there is too little to judge."""

    what: str
    bar: str
    result: str
    kept: bool | None


def simulated_promises(cells: pd.DataFrame, totals: Mapping[str, Any]) -> list[Promise]:
    """The protocol's promises that simulation can show (``statistics.md``, Calibration)."""
    keys = ["rho", "run_sd", "contamination", "blocks", "levels", "controls", *_UNTIDY]
    stress = stress_of(cells)
    tidy, hit = cells[stress == "tidy"], cells[stress == "hits"]
    calm = cells[(cells["drift"] == 0) & (cells["ramp"] == 0)]
    moved = cells.merge(calm, on=keys, suffixes=("", "_calm"))
    shift = (moved["alarms"] - moved["alarms_calm"]).abs()
    power, looks = pd.DataFrame(totals["power"]), pd.DataFrame(totals["looks"])
    four = power[power["levels"] == 4].set_index("blocks")
    planned = looks[(looks["kind"] == "planned") & (looks["ratio"] == 1)]
    one = planned[planned["levels"] - planned["controls"] == 2]
    effect = f"for +5 % at σ_d {100 * SIGMA_D:.2f} %"
    alarms = "any false alarm among all levels of a study"
    bars: list[tuple[str, str, pd.Series[float], float, float, str]] = [
        ("false alarms of one comparison, tidy noise", "4 to 5.6 %", tidy["alarms"], 4, 5.6, " %"),
        ("95 % intervals that hold the truth, tidy noise", "94 to 96 %", tidy["coverage"], 94, 96, " %"),
        ("the same when something else hits a tenth of the trials", "at least 92 %", hit["coverage"], 92, 100, " %"),
        ("what a drifting host changes in the false alarms", "less than 0.6 points", shift, 0, 0.6, " points"),
        *((f"{alarms}, {kind}", "at most 6 %", cells["family"][stress == kind], 0, 6, " %") for kind in dict.fromkeys(stress)),
        ("any level falsely called equivalent", "at most 5.6 %", cells["equivalent"], 0, 5.6, " %"),
        ("sound studies that the A/A control makes invalid", "at most 1.5 %", cells["invalid"].dropna(), 0, 1.5, " %"),
        (f"power of a verdict {effect}, 4 arms, 5 blocks", "at least 68 %", four["power"].loc[[5]], 68, 100, " %"),
        ("the same, 9 blocks", "at least 94 %", four["power"].loc[[9]], 94, 100, " %"),
        ("any false alarm when stopping early, levels alike or half 10 × as noisy", "at most 6 %", looks["alarms"][looks["kind"] == "planned"], 0, 6, " %"),
        ("any false alarm when extended three times, the same", "at most 6 %", looks["alarms"][looks["kind"] == "extended"], 0, 6, " %"),
        (f"power {effect} when stopping early, one level asked about", "at least 90 %", one["power"], 90, 100, " %"),
        ("blocks used when stopping early, the same", "at most 7", one["blocks"], 0, 7, ""),
    ]  # fmt: skip
    promises = []
    for what, bar, figures, low, high, unit in bars:
        values = figures * (100 if unit in (" %", " points") else 1)
        result = " to ".join(dict.fromkeys(f"{value:.2f}" for value in (values.min(), values.max())))
        promises.append(Promise(what, bar, f"{result}{unit}", bool(values.between(low, high).all())))
    return promises


def real_promises(real: Mapping[str, Any]) -> list[Promise]:
    """The promises on real servers: per limit at most 5 of 40 twins flagged, and as many changes found as the noise allows."""
    promises = []
    for limit, verdicts in _verdicts(real).groupby("load", sort=False):
        enough = verdicts["session"].nunique() >= ENOUGH_SESSIONS
        twins, changes = (rows["different"] for _, rows in verdicts.groupby(~verdicts["level"].isin(TWINS)))
        power = _power(real, str(limit), verdicts)
        most, least = len(twins) * 5 // 40, int(binom.ppf(0.025, len(changes), power))
        promises += [
            Promise(f"A/A comparisons flagged, real servers, the {limit} the limit", f"at most {most} of {len(twins)}",
                    _share(twins), bool(twins.sum() <= most) if enough else None),
            Promise(f"injected changes of {_effect(real, str(limit))} found, the same",
                    f"at least {least} of {len(changes)}: with its noise the power is {100 * power:.0f} %",
                    _share(changes), bool(changes.sum() >= least) if enough else None),
        ]  # fmt: skip
    return promises


def sentence(real: Mapping[str, Any]) -> str:
    """What a real calibration found, in a sentence per limit."""
    texts, promises = [], iter(real_promises(real))
    for limit, verdicts in _verdicts(real).groupby("load", sort=False):
        flagged, seen = next(promises), next(promises)
        change = _changes(verdicts).set_index("arm").loc["injected"]
        few = f" (too few to judge: that takes {ENOUGH_SESSIONS} sessions)" if seen.kept is None else ""
        texts.append(
            f"On real servers whose limit is the {limit}, {flagged.result} A/A comparisons were flagged and "
            f"{seen.result} injected changes of {_effect(real, str(limit))} were found{few}, {seen.bar.split(': ')[1]}; over all sessions the "
            f"injected change was {change['change']} %"
            f"{f' [{interval}]' if (interval := change['interval']) else ''}."
        )
    return " ".join(texts)


def _power(real: Mapping[str, Any], limit: str, verdicts: pd.DataFrame) -> float:
    """With what power the sessions could find the injected change, by what each says that it could have seen."""
    work, plan, blocks = real["work"][limit], Plan(ALPHA, 2, 1 / 3), real["options"]["blocks"]
    cut, df = plan.cut(blocks), plan.df(blocks)
    seen = np.log1p(verdicts.loc[verdicts["level"] == "injected", "mde_percent"] / 100)
    share = np.log(work["baseline"] / work["injected"]) / seen
    return float(nct.sf(cut, df, share * detectable(cut, df)).mean())


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


def geometric_mean(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean with its 95 % interval (t); NaN if unknown."""
    mean, error = pd.Series(np.log(np.asarray(values, float))).agg(["mean", "sem"]).to_numpy()
    reach = stdtrit(len(values) - 1, 0.975) * error
    return float(np.exp(mean)), float(np.exp(mean - reach)), float(np.exp(mean + reach))


def _effect(real: Mapping[str, Any], limit: str) -> str:
    work = real["work"][limit]
    return f"+{100 * (work['baseline'] / work['injected'] - 1):.3g} %"


# --- what the page shows ------------------------------------------------------------


def _simulated(cells: pd.DataFrame, totals: Mapping[str, Any]) -> Iterator[Any]:
    stress = stress_of(cells)
    cells = cells.assign(row=stress, hollow=cells["levels"] > 4).sort_values("blocks", kind="stable")
    tidy = cells[cells["row"] == "tidy"].assign(row=lambda rows: rows["blocks"].map("{} blocks".format))
    error = 100 * cells["error"].max()
    yield (
        "## Simulated studies\n\nIn a simulated study the truth is known. *Tidy*: seconds depend on each other, runs differ, hosts "
        "drift. *Hits*: other load takes 5 to 25 % from a tenth of the trials. *Stalls*: a tenth of the trials loses ten deviations. "
        "*Heavy tails*: Student's t with 3 degrees of freedom. *Some levels noisier*: one, half or all of them have 3 or 10 times "
        "the noise. *Clusters differ*: by half a trial's deviation or a whole one."
    )
    caption = f"A mark is one situation of {totals['sessions']:,} studies (standard error {error:.2f} points); pale: more than four levels."
    yield marks_by_row(
        tidy.assign(value=100 * tidy["alarms"]),
        "False alarms of one comparison",
        "%",
        caption + " Shaded: 4 to 5.6 %.",
        [5],
        (4, 5.6),
    )
    family = cells.sort_index().assign(value=100 * cells["family"])
    yield marks_by_row(
        family, "Studies with any false alarm", "%", "All situations. Shaded: at most 6 %.", [5], (0, 6)
    )
    power, looks = pd.DataFrame(totals["power"]), pd.DataFrame(totals["looks"])
    wide = (100 * power.pivot(index="blocks", columns="levels", values="power")).round(1)
    yield f"### Power for +5 % at σ_d {100 * SIGMA_D:.2f} %, by blocks\n\nPercent of studies that find it; a column is a number of levels."
    yield wide.rename_axis(columns=None).reset_index()
    looks = looks.assign(**(100 * looks[["alarms", "power", "invalid"]])).round(2)
    looks["invalid"] = looks["invalid"].where(looks["controls"] > 0)
    yield "### More than one look\n\nPlanned after 3, 5, 7 and 9 blocks, or extended after 5, 7 and 9. All in percent but the blocks."
    yield looks


def _real(real: Mapping[str, Any]) -> Iterator[Any]:
    options = real["options"]
    yield (
        f"## Real servers\n\nMeasured on {real['host']['processors']} × {real['host']['processor']}, {real['created'][:10]}, with "
        f"{options['blocks']:.0f} blocks a study and trials of {options['duration_s']:.0f} s. The control against the baseline, and "
        f"“same” against the mean of both, are two A/A comparisons in each study. {sentence(real)}"
    )
    for limit, verdicts in _verdicts(real).groupby("load", sort=False):
        work, effect = real["work"][limit], _effect(real, str(limit))
        true = 100 * (work["baseline"] / work["injected"] - 1)
        marks = pd.DataFrame(
            {"row": verdicts["level"], "hollow": ~verdicts["different"], "value": verdicts["percent_change"]}
        )
        caption = (
            f"A mark is one session; pale: not called different. Lines: no change, and the injected {effect}."
        )
        yield marks_by_row(
            marks, f"Change against the baseline; the bottleneck is the {limit}", "%", caption, [0, true]
        )
        yield _changes(verdicts).rename(columns={"change": "change, %", "interval": "95 % interval"})


@styled
def marks_by_row(
    marks: pd.DataFrame,
    title: str,
    unit: str,
    caption: str,
    lines: Sequence[float],
    band: tuple[float, float] = (0, 0),
) -> Axes:
    """Draw each ``value`` as a mark on its ``row``, pale where it is ``hollow``, with ``lines`` and a shaded ``band``."""
    figure, axes = plt.subplots(figsize=(9.6, 1.1 + 0.45 * marks["row"].nunique()), layout="constrained")
    np.random.seed(1)
    for hollow, alpha in ((False, 0.9), (True, 0.3)):
        sns.stripplot(
            marks[marks["hollow"] == hollow], x="value", y="row", color=BLUE, alpha=alpha, size=4, ax=axes
        )
    axes.set(xlabel=unit, ylabel="")
    axes.set_title(title, loc="left")
    axes.axvspan(*band, color=BAND, linewidth=0, zorder=0.5)
    for line in lines:
        axes.axvline(line, color=INK, linewidth=1)
    described(figure, caption, marks[["row", "value", "hollow"]].head(400))
    return axes
