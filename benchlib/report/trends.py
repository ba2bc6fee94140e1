"""Studies beside each other: several of the same comparisons, and one notebook's over time; each with page and CSV."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchlib.errors import BenchlibError, InputError
from benchlib.host import files
from benchlib.plan.metrics import metric as known_metric
from benchlib.report.answers import answering
from benchlib.report.entries import address_of, entries, writable_root
from benchlib.report.figures.changes import changes_by_study
from benchlib.report.figures.frames import change_words, guarded
from benchlib.report.figures.tables import html_table
from benchlib.report.page import Page, render_prose
from benchlib.report.site import write_site
from benchlib.stats.between import ENDS, WITHOUT, between, change_points
from benchlib.study.experiment import Experiment, shown
from benchlib.study.store import StudyFolder, walk

_WATCHED = ["Machine", "Server", "Kernel", "benchlib", "levels"]
"""What may be new from one study to the next."""
_LONGEST = 180  # letters of a page's name that its folder's file system takes for certain


def compare(names: Sequence[str]) -> tuple[pd.DataFrame, Path]:
    """Hold the effects of studies against those of the first: a row for each comparison, in words, and the page.

    Raises:
        InputError: a study is not kept, or they have no comparison in common, by one metric.
        StudyError: one has too few trials.

    """
    studies = {name: shown(StudyFolder(name)) for name in names}
    if len(studies) < 2:
        raise InputError(f"'{names[0]}' is compared with other studies: name one of them too")
    first, *others = studies.values()
    frames = [between(first.analysis, other.analysis).assign(study=other.folder.name) for other in others]
    if len({each.analysis.metric for each in studies.values()}) > 1 or not any(map(len, frames)):
        raise InputError("these studies have no comparison in common that is judged by one metric")
    frame = pd.concat(frames, ignore_index=True)
    frame["name"] = frame["level"] + " against " + frame["against"]
    words = frame[["study"]].assign(comparison=frame["name"], verdict=frame["verdict"])
    endings = {"first": "_first", "second": "_second", "difference": ""}
    for heading, ending in endings.items():
        words[heading] = [change_words(row, ending) for row in frame.to_dict("records")]
    facts = pd.DataFrame({name: each.facts() for name, each in studies.items()}).rename_axis("of")
    levels = [*dict.fromkeys(frame["level"])]
    plans = {name: _in_words(each, levels) for name, each in studies.items()}
    differ = frame["verdict"].eq("differs").sum()
    title = f"{differ} of {len(frame)} effects are seen to differ from {first.folder.name}'s"
    figure = changes_by_study("differences", frame.assign(quiet=frame["study"]), title, "difference")
    parts = [
        figure,
        html_table(words, "The effects", formats=dict.fromkeys(endings, str)),
        html_table(facts.reset_index(), "The studies"),
        html_table(pd.DataFrame({"level": levels, **plans}), "The levels"),
    ]
    return words, _publish(f"compare~{'~'.join(studies)}", title, parts, frame)


def _in_words(experiment: Experiment, levels: Sequence[str]) -> list[str]:
    """What each of the levels is in a study."""
    each = (experiment.study.levels_in_words.get(level, {}) for level in levels)
    return ["; ".join(f"{what} {of}" for what, of in words.items()) for words in each]


def history(notebook: str, metric: str = "") -> tuple[pd.DataFrame, list[str], Path]:
    """Show what the kept studies of a notebook found over time, those with workload, load and size of the latest.

    A row for each answer of each study, in words; remarks; and the page.

    Raises:
        InputError: there are none, or there is no such metric.

    """
    notebook = Path(notebook).stem
    kept, remarks = list[Experiment](), list[str]()
    for folder in walk():
        try:
            if (experiment := shown(folder)).study.notebook == notebook:
                kept.append(experiment)
        except InputError as reason:  # nobody knows of which notebook it is
            remarks.append(f"left out: {reason}")
    if not kept:
        raise InputError("; ".join([f"no study of a notebook '{notebook}' is kept", *remarks]))
    kept.sort(key=lambda each: str(each.study.provenance.get("created", "")))
    measured = known_metric(metric or kept[-1].plan.metric)
    effects, frames, figures = list[pd.DataFrame](), [], []
    for each in kept:
        try:
            effects.append(_effects(each, kept[-1], measured.name))
        except BenchlibError as reason:
            why = str(reason).removeprefix(f"{each.folder.name}: ")
            remarks.append(f"left out: {each.folder.name}: {why}")
    if not any(map(len, effects)):
        raise InputError("; ".join(remarks) or f"no study of '{notebook}' compares anything")
    for name, rows in pd.concat(effects, ignore_index=True).groupby("comparison", sort=False):
        sound = rows.index[rows["percent_change"].notna() & rows["verdict"].ne("invalid")]
        places = change_points((1 + rows.loc[sound, "percent_change"] / 100).to_list(), kept[-1].plan.margin)
        news = rows[_WATCHED].ne(rows[_WATCHED].shift())
        news.iloc[0] = False
        news["change point"] = rows.index.isin(sound[places or []])
        frames.append(rows.assign(quiet=[", ".join(row.index[row]) for _, row in news.iterrows()]))
        last = rows.iloc[-1].to_dict()
        found = "invalid" if last["verdict"] == "invalid" else change_words(last) or "not measured"
        title = f"{name}: at last {found}"
        words = f"history-{len(frames)}", frames[-1], title, f"change of {measured.title}"
        figures.append(changes_by_study(*words, news["change point"].to_list()))
    remarks += [WITHOUT] * (places is None)
    frame = pd.concat(frames, ignore_index=True)
    changes = [change_words(row) for row in frame.to_dict("records")]
    table = frame[["comparison"]].assign(
        study=frame["name"], change=changes, verdict=frame["verdict"], new=frame["quiet"]
    )
    parts = [*figures, html_table(table, "The effects", formats={"change": str})]
    return table, remarks, _publish(f"history~{notebook}", f"{notebook} over time", parts, frame)


def _asked(experiment: Experiment) -> tuple[object, ...]:
    """What a study's servers are asked to do: the same in all studies of a series."""
    plan, levels = experiment.plan, experiment.plan.factor.levels
    works = {work.name: work for work in map(plan.level_workload, levels)}
    rates = {plan.asked_rate(name) for name in levels}
    return works, experiment.workloads(), experiment.clients(), plan.load.protocol, rates, plan.scale


def _effects(experiment: Experiment, latest: Experiment, metric: str) -> pd.DataFrame:
    """What a study found, a row for each answer, with what it was run with.

    Raises:
        InputError: it was run with another workload, load or size than the latest, or does not have the metric.
        StudyError: it has too few trials.

    """
    if _asked(experiment) != _asked(latest):
        raise InputError("it has another workload, load or size than the latest")
    plan, analysis, facts = experiment.plan, experiment.analysis, experiment.facts()
    answers = answering(experiment)
    pairs = {level: analysis.against[level] for level in (*answers, *analysis.controls[:1])}
    rows = pd.DataFrame([experiment.compared(*pair, metric)[0] for pair in pairs.items()])
    return rows[["level", *ENDS, "verdict"]][: len(answers)].assign(
        comparison=[f"{level} against {pairs[level]}" for level in answers],
        study=experiment.folder.name,
        name=f"{facts['Measured']} {experiment.folder.name}",
        control=rows["percent_change"][len(answers) :].mean(),
        **{fact: facts.get(fact, "") for fact in _WATCHED[:-1]},
        levels=[f"{plan.level(level)} {plan.level(pairs[level])}" for level in answers],
    )


def _publish(name: str, title: str, parts: Sequence[object], frame: pd.DataFrame) -> Path:
    """Write a page of figures and tables and, beside it, the numbers."""
    root = writable_root()
    files.make(root)
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    files.write(root / f"{name}.csv", frame.map(guarded).to_csv(index=False))
    page, downloads = root / f"{name}.html", {f"{name}.csv": "numbers (CSV)"}
    about = Page(title, downloads=downloads, address=address_of(page.name))
    if not (root / "methodology.html").is_file():
        write_site(root, *entries())
    files.write(page, render_prose(about, "parts.html.j2", parts=parts))
    return page
