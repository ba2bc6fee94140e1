"""The plans that servers made for the workload's statements: what they are, and what differs between levels."""

from __future__ import annotations

import html
from collections.abc import Iterable
from string import ascii_uppercase

import pandas as pd

from benchlib.plan.words import size_words
from benchlib.report.figures.tables import Quiet, Table, html_table
from benchlib.report.plan_text import differences, outline, plan_text, worst_estimate
from benchlib.report.sections import NothingToShowError, records, section
from benchlib.study.experiment import Experiment
from benchlib.study.records import Counters, Plans


@section
def plans(experiment: Experiment) -> Table:
    """Each level's plan for each explained statement, from its median trial, and what differs from that of the level it is compared with.

    Raises:
        InputError: a file of plans is damaged.

    """
    explained = _explained(experiment)
    if explained.empty:
        raise NothingToShowError("No plans were kept: the workload has no statements to explain.")
    rows, folded = [], []
    for number, of_all in explained.groupby("statement"):
        typical = of_all[of_all["typical"]].set_index("level")
        after, before = (typical[typical["when"] == when] for when in ("after", "before"))
        letters = _letters([*after["outline"], *of_all["outline"]])
        for level, plan in after.iterrows():
            outlines = of_all.loc[of_all["level"] == level, "outline"].map(letters)
            letter = letters[plan["outline"]]
            others = outlines[outlines != letter].value_counts().sort_index()
            vary = f" ({', '.join(f'{x} in {n}' for x, n in others.items())} of {len(outlines)})"
            rows.append(
                {
                    "level": level,
                    "statement": str(number),
                    "plan": letter + (vary if len(others) else ""),
                    "what differs": _difference(
                        after, str(level), experiment.plan.factor.pairs().get(str(level))
                    ),
                    "before, ms": before["plan"][str(level)]["Execution Time"],
                    "after, ms": plan["plan"]["Execution Time"],
                    "planning, ms": plan["plan"]["Planning Time"],
                    "temporary_files": plan["plan"]["Plan"]["Temp Written Blocks"] * plan["page_bytes"],
                    "worst estimate": worst_estimate(plan["plan"]["Plan"]),
                }
            )
        for same_outline, letter in letters.items():
            levels = list(after.index[after["outline"] == same_outline]) or ["in some trials alone"]
            alike = of_all[of_all["outline"] == same_outline]
            shown = alike.sort_values("typical", ascending=False, kind="stable").iloc[0]
            folded.append(
                f"<details><summary>Statement {number}, plan {letter}: {html.escape(', '.join(levels))}</summary>"
                f"<p><code>{html.escape(shown['text'])}</code></p>"
                f'<pre tabindex="0">{html.escape(plan_text(shown["plan"]["Plan"]))}</pre></details>'
            )
    frame = pd.DataFrame(rows)
    if frame["statement"].nunique() == 1:
        frame = frame.drop(columns="statement")
    note = (
        "Each level by its median trial: one run of the statement before the load and one after it, which is where all "
        "other columns are from; times are those of the server, under EXPLAIN. A letter stands for a plan with the same nodes, in "
        "memory or on disk alike; where the plans of a level's trials vary, it says how many are another. What differs: − the other "
        "level's nodes, + its own. The estimate is that of the node whose "
        "rows came most unlike those expected. Each plan is folded below."
    )
    factor = experiment.plan.factor
    if absent := [name for name in factor.levels if name not in {*frame["level"], *factor.controls}]:
        note += f" No plans were kept of {', '.join(absent)}."
    caption = "Plans of the workload's statements"
    table = html_table(frame, caption, formats={"temporary_files": size_words}, note=note)
    return Table(caption, "".join([table.html, *folded]))


def _explained(experiment: Experiment) -> pd.DataFrame:
    """What the good trials explained: ``level, statement`` (its number), ``text, when, plan, outline, page_bytes, typical``.

    ``typical`` are those of a level's median trial by the study's metric. Controls are left out: their plans are the
    baseline's once more. Pages are as large as PostgreSQL has them where a trial lacks the counters to tell it.
    """
    pages = {
        (level, block): int(dict(counters.after).get("block_size", 8192))
        for level, block, counters in records(experiment, Counters)
    }
    kept = [
        (level, block, record)
        for level, block, record in records(experiment, Plans)
        if record.after and level not in experiment.plan.factor.controls
    ]
    metric = experiment.trials.set_index(["level", "block"])[experiment.plan.metric]
    medians = {}
    for level in dict.fromkeys(level for level, *_ in kept):
        blocks = sorted((metric[level, block], block) for of, block, _ in kept if of == level)
        medians[level] = blocks[(len(blocks) - 1) // 2][1]
    return pd.DataFrame(
        [
            {
                "level": level,
                "statement": number,
                "text": row["statement"],
                "when": when,
                "plan": row["plan"],
                "outline": outline(row["plan"]["Plan"]),
                "page_bytes": pages.get((level, block), 8192),
                "typical": medians[level] == block,
            }
            for level, block, record in kept
            for when, explained in (("after", record.after), ("before", record.before))
            for number, row in enumerate(explained, 1)
        ]
    )


def _letters(outlines: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A name for each distinct plan, in their order: A to Z, then A1."""
    names = (f"{letter}{turn or ''}" for turn in range(100) for letter in ascii_uppercase)
    return dict(zip(dict.fromkeys(outlines), names, strict=False))


def _difference(after: pd.DataFrame, level: str, reference: str | None) -> str:
    """What differs between a level's plan and that of the level it is compared with."""
    if reference not in after.index:
        return Quiet("")
    own, other = after.loc[level], after.loc[reference]
    text = differences(own["plan"]["Plan"], other["plan"]["Plan"])
    if own["text"] != other["text"]:
        text = "; ".join(["another statement", *filter(None, [text])])
    return f"against {reference}: {text}" if text else Quiet(f"as at {reference}")
