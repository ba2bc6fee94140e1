"""Several studies: side by side, or over time."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib import pyplot as plt

from benchlib.errors import BenchlibError, InputError
from benchlib.plan.metrics import metric as known_metric
from benchlib.report import plot, site
from benchlib.report.display import figure_output
from benchlib.report.model import PageData, change_words
from benchlib.report.page import cleaned, output_part
from benchlib.stats.between import ENDS, WITHOUT, between, change_points
from benchlib.study.frames import guarded
from benchlib.study.store import walk

_WATCHED = ["machine", "server", "benchlib", "levels"]
"""The facts that may change from one study to the next."""
_LONGEST = 180
"""The most letters of a page's name; file systems take 255 bytes."""


def compare(names: Sequence[str]) -> tuple[pd.DataFrame, Path]:
    """Compare the effects of studies with the first's; return rows and the page.

    Raises:
        InputError: a study is not saved, or they share no comparison by one metric.
        StudyError: too few trials.
    """
    studies = {name: site.data_of(name) for name in names}
    if len(studies) < 2:
        raise InputError(f"'{names[0]}' is compared with other studies: name one of them too")
    first, *others = studies.values()
    how: dict[Any, Any] = {"alpha": first.alpha, "margin": first.margin}
    frames = [between(_effects(first), _effects(other), **how).assign(study=other.name) for other in others]
    if any(other.metric != first.metric for other in others) or not any(map(len, frames)):
        raise InputError("these studies have no comparison in common that is judged by one metric")
    frame = pd.concat(frames, ignore_index=True)
    comparison = frame["level"] + " against " + frame["against"]
    words = frame[["study"]].assign(comparison=comparison, verdict=frame["verdict"])
    for heading, ending in {"first": "_first", "second": "_second", "difference": ""}.items():
        words[heading] = _changes(frame, ending)
    setups = pd.DataFrame({name: each.setup for name, each in studies.items()})
    drawn = frame.assign(level=frame["level"] + " (" + frame["study"] + ")")
    drawn.attrs = how | {"title": "effect"}
    title = f"{', '.join(studies)}: the same effects?"
    parts = [plot.effects(drawn), words, setups.rename_axis("what").reset_index()]
    return words, _publish(f"compare~{'~'.join(studies)}", title, parts, frame)


def history(notebook: str, metric: str = "") -> tuple[pd.DataFrame, list[str], Path]:
    """Return the effects of a notebook's studies over time, remarks, and the page.

    Only studies with the workload, load and size of the latest count.

    Raises:
        InputError: there are none, or there is no such metric.
    """
    notebook = Path(notebook).name.removesuffix(".ipynb")
    saved, remarks = list[tuple[PageData, tuple[object, ...]]](), list[str]()
    if metric:
        known_metric(metric)
    for folder in walk():
        try:
            if (study := folder.read()).notebook == notebook:
                data = site.judged(folder.name, metric) if metric else site.data_of(folder.name)
                saved.append((data, _load(study.plan)))
        except BenchlibError as reason:
            remarks.append(f"left out: {reason}")
    if not saved:
        raise InputError("; ".join([f"no study of a notebook '{notebook}' is saved", *remarks]))
    saved.sort(key=lambda pair: pair[0].measured_at)
    latest, load = saved[-1]
    others = "it has another workload, load, size or metric than the latest"
    alike = [data for data, of in saved if of == load and data.metric == latest.metric]
    remarks += [f"left out: {data.name}: {others}" for data, _ in saved if data not in alike]
    rows = [
        {
            **answer.model_dump(include={"level", "against", *ENDS, "verdict"}),
            "comparison": f"{answer.level} against {answer.against}",
            "levels": data.level_marks.get(answer.level, ""),
            **{"study": data.name, "measured": data.created, "benchlib": data.benchlib},
            **{name: data.setup.get(name, "") for name in ("machine", "server")},
        }
        for data in alike
        for answer in data.answers
    ]
    if not rows:
        raise InputError("; ".join(remarks) or f"no study of '{notebook}' compares anything")
    frames, figures, points = list[pd.DataFrame](), list[Any](), None
    for name, series in pd.DataFrame(rows).groupby("comparison", sort=False):
        sound = series.index[series["percent_change"].notna() & series["verdict"].ne("invalid")]
        points = change_points((1 + series.loc[sound, "percent_change"] / 100).to_list(), latest.margin)
        news = series[_WATCHED].ne(series[_WATCHED].shift())
        news.iloc[0] = False
        news["change point"] = series.index.isin(sound[points or []])
        frames.append(series.assign(new=[", ".join(news.columns[row]) for row in news.to_numpy(bool)]))
        drawn = series.assign(level=series["measured"] + " " + series["study"]).drop(columns="against")
        drawn.attrs = {"title": latest.metric_title, "margin": latest.margin, "alpha": latest.alpha}
        figures.append(plot.effects(drawn))
        figures[-1].set_title(f"{name}", loc="left")
    remarks += [WITHOUT] * (points is None)
    frame = pd.concat(frames, ignore_index=True)
    table = frame.assign(change=_changes(frame))[["comparison", "study", "change", "verdict", "new"]]
    return table, remarks, _publish(f"history~{notebook}", f"{notebook} over time", [*figures, table], frame)


def _effects(data: PageData) -> pd.DataFrame:
    return pd.DataFrame([answer.model_dump() for answer in data.effects])


def _changes(frame: pd.DataFrame, ending: str = "") -> list[str]:
    """Return changes in words, from columns that end in ``ending``."""
    return [change_words(*row) for row in frame[[f"{end}{ending}" for end in ENDS]].to_numpy(float)]


def _load(plan: Any) -> tuple[object, ...]:
    """Return what must be equal in all studies of a series."""
    levels = plan.factor.levels
    works = {work.name: work for work in map(plan.level_workload, levels)}
    loads = {(plan.level_load(name).clients, plan.asked_rate(name)) for name in levels}
    return works, loads, plan.load.protocol, plan.scale


def _publish(name: str, title: str, parts: Sequence[Any], frame: pd.DataFrame) -> Path:
    """Write a page and a CSV file of the numbers."""
    root = site.writable_root()
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    site.write_file(root / f"{name}.csv", frame.map(guarded).to_csv(index=False))
    cells = list[dict[str, Any]]()
    for number, part in enumerate(parts, 1):
        if isinstance(part, pd.DataFrame):
            output = {"kind": "html", "html": cleaned(part.to_html(index=False))}
        else:
            output = output_part(figure_output(part)) or {}
            plt.close(part.get_figure())
        cells.append({"code": "", "outputs": [{**output, "number": number}]})
    cells.append({"prose": Markup('<p><a href="{}.csv">numbers (CSV)</a></p>').format(name)})
    if not (root / "methodology.html").is_file():
        site.write_site(*site.pages_and_others())
    return site.write_page(name, "notebook.html.j2", title=title, cells=cells, contents=[])
