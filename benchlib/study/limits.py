"""The limits of a study's answers: what the analysis found, what the trials show, and what the setup implies."""

from dataclasses import replace

import numpy as np
import pandas as pd

from benchlib.plan.level import Level
from benchlib.plan.model import Study
from benchlib.plan.words import size_words
from benchlib.stats.limits import Concern
from benchlib.study.experiment import Experiment
from benchlib.study.instruments import DISKS_CAP

MOST_LIMITS = 7
_CAPS = ("read_iops", "write_iops", "read_bytes", "write_bytes")
_NAMED = 2
"""Maximum number of levels named in a sentence."""
_BY_VALUE = ("caveat", "condition", "doubt", "durability", "reading", "trial_warning")
"""Codes whose values are sentences of their own: each is shown."""


def limits(experiment: Experiment, signs: pd.DataFrame, effects: pd.DataFrame) -> pd.DataFrame:
    """Return at most seven limits of the answers, the worst first: ``code, level, value, text, grave``.

    ``effects`` comes from :func:`benchlib.compare`, ``signs`` is :attr:`OpenStudy.signs`. ``attrs["by_level"]`` has the worst limit of each
    answer.
    """
    answers = effects[effects["answer"].ne("")] if effects["answer"].ne("").any() else effects
    concerned = {*answers["level"], *answers["against"], *experiment.plan.factor.controls}
    if experiment.study.declared.screen:  # the answers are changes, and each level is a part of every answer
        concerned |= {*experiment.plan.factor.levels}
    concerns = [
        c for c in _concerns(experiment, signs, effects, answers) if c.level is None or c.level in concerned
    ]
    concerns.sort(key=lambda concern: concern.order)
    by_level = {}
    for row in answers.to_dict("records"):
        sides = (row["level"], row["against"])
        worst = next((c for c in concerns if c.level in sides or (c.grave and c.level is None)), None)
        by_level[row["level"]] = worst.text if worst else ""
    records = [concern.record() for concern in _joined(concerns)[:MOST_LIMITS]]
    frame = pd.DataFrame(records, columns=["code", "level", "value", "text", "grave"])
    frame["level"] = frame["level"].str.replace("[“”]", "", regex=True)  # several levels
    frame.attrs = {"kind": "limits", "by_level": by_level, "unmet": _unmet(experiment, answers)}
    return frame


def _unmet(experiment: Experiment, answers: pd.DataFrame) -> dict[str, str]:
    """Return the unmet conditions of each comparison and of its reference, if that is not compared."""
    unmet, compared = (
        [c for c in experiment.concerns if c.code == "condition"],
        {*experiment.plan.factor.pairs()},
    )
    pairs = zip(answers["level"], answers["against"], strict=True)
    named = {level: {level} if other in compared else {level, other} for level, other in pairs}
    texts = {level: "; ".join(c.value for c in unmet if c.level in ends) for level, ends in named.items()}
    return {level: text for level, text in texts.items() if text}


def _concerns(
    experiment: Experiment, signs: pd.DataFrame, effects: pd.DataFrame, answers: pd.DataFrame
) -> list[Concern]:
    warnings = [
        Concern(w["code"], w["value"], w["grave"], w["level"]) for w in effects.attrs.get("warnings", ())
    ]
    concerns = [c for c in warnings if c.code != "doubt"] + experiment.concerns
    plan = experiment.plan
    for row in answers.to_dict("records"):
        if cost := _cost(experiment.study, signs, row["level"], row["against"]):
            concerns.append(Concern("durability", "; ".join(cost), level=row["level"]))
        if row["verdict"] == "inconclusive" and np.isfinite(row["mde_percent"]):
            size = f"{row['mde_percent']:{'.2g' if row['mde_percent'] < 100 else ',.0f'}} %"
            concerns.append(Concern("detectable", size, level=row["level"]))
    if caveat := experiment.study.declared.stated_caveat:
        concerns.append(Concern("caveat", caveat))
    strays = effects[
        effects["level"].isin(experiment.plan.factor.controls)
        & effects["percent_change"].abs().gt(100 * experiment.plan.margin)
    ]
    concerns += [
        Concern("control_strays", f"{row['percent_change']:+.1f} %", level=row["level"])
        for row in strays.to_dict("records")
    ]
    for row in experiment.bottlenecks.to_dict("records"):
        if row["bottleneck"].startswith(DISKS_CAP):
            concerns.append(Concern("disk_cap", disk_limits(plan.level(row["level"])), level=row["level"]))
    names = {*answers["level"], *answers["against"]} & {*plan.factor.levels} or {*plan.factor.levels}
    levels = [plan.level(name) for name in names]
    parts = [level.part("storage") for level in levels]
    places = [part["data"] for part in parts if isinstance(part.get("data"), dict)]
    replicated = [part for level in levels if (part := level.part("replication")).get("replicas")]
    flags = {
        "external_server": any(level.target for level in levels),
        "replica_shares": any(not part.get("on") for part in replicated),
        "shared_machine": not any(level.target or plan.base.load.generators for level in levels)
        and not all(plan.level_load(name).generators for name in plan.factor.levels),
        "loop_device": any(place.get("file_system") not in (None, "tmpfs") for place in places),
    }
    return concerns + [Concern(code) for code, holds in flags.items() if holds]


def _cost(study: Study, signs: pd.DataFrame, level: str, against: str) -> tuple[str, ...]:
    """Return what a crash may cost at a level, or with a screened change, but not otherwise."""
    costs = study.crash_costs
    if level in study.plan.factor.levels:
        return () if (cost := costs.get(level, ())) == costs.get(against, ()) else cost
    change = signs.get(level, pd.Series(dtype=int))
    high, low = ([{*costs.get(str(name), ())} for name in change.index[change == sign]] for sign in (1, -1))
    return tuple(sorted(set[str].intersection(*high).difference(*low))) if high else ()


def disk_limits(level: Level) -> str:
    """Return the study's limits on a level's disk, such as ``1,500 requests/s, 100 MB/s``."""
    storage = level.part("storage")
    limits = [
        f"{storage[cap]:,} requests/s" if cap.endswith("iops") else f"{size_words(storage[cap])}/s"
        for cap in _CAPS
        if storage.get(cap)
    ]
    return ", ".join(dict.fromkeys(limits))


def _joined(concerns: list[Concern]) -> list[Concern]:
    """Return one limit per code and value, with its levels joined.

    Of a code whose values are numbers only the first is kept, with the number of other levels: a number never
    stands beside a level that it does not belong to.
    """
    groups = dict[tuple[str, str], list[Concern]]()
    for concern in dict.fromkeys(concerns):
        groups.setdefault((concern.code, concern.value), []).append(concern)
    joined = dict[tuple[str, str], Concern]()
    for (code, value), group in groups.items():
        levels = list(dict.fromkeys(c.level for c in group if c.level))
        name = "”, “".join([*levels[:_NAMED], *["…"] * (len(levels) > _NAMED)]) or None
        key = (code, value if code in _BY_VALUE or not levels else "")
        if first := joined.get(key):
            grave = first.grave or any(c.grave for c in group)
            joined[key] = replace(first, others=first.others + len(levels), grave=grave)
        else:
            joined[key] = Concern(code, value, any(c.grave for c in group), name)
    return list(joined.values())
