"""The limits of a study's answers."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from benchlib.plan.level import Level
from benchlib.plan.metrics import MOST_STATED, number_words, percent_words, signed
from benchlib.plan.model import Plan, Study
from benchlib.plan.words import size_words
from benchlib.stats.limits import Concern
from benchlib.study.experiment import Experiment
from benchlib.study.instruments import DISKS_CAP

MOST_LIMITS = 7
_CAPS = ("read_iops", "write_iops", "read_bytes", "write_bytes")
_NAMED = 2
"""Maximum number of levels named in a sentence."""
_BY_VALUE = ("caveat", "condition", "doubt", "durability", "reading", "trial_warning")
"""Codes whose values are sentences: each is shown."""


def limits(
    experiment: Experiment, signs: pd.DataFrame, effects: pd.DataFrame, queries: pd.DataFrame
) -> pd.DataFrame:
    """Return at most seven limits, worst first: ``code, level, value, text, grave``.

    ``attrs`` has each answer's worst limit (``by_level``) and conditions (``unmet``).
    """
    answers = effects[effects["answer"].ne("")] if effects["answer"].ne("").any() else effects
    factor = experiment.plan.factor
    compared = {*answers["level"], *answers["against"]}
    concerned = {None, *compared, *factor.controls}
    if experiment.study.declared.screen:  # the answers are changes, and each level is a part of every answer
        concerned |= {*factor.levels}
    warnings = effects.attrs.get("warnings", ())
    concerned |= {each["level"] for each in warnings if each["code"] == "no_reference"}  # it has no row
    concerns = [
        *(Concern(w["code"], w["value"], w["grave"], w["level"]) for w in warnings if w["code"] != "doubt"),
        *experiment.concerns,
        *_of_answers(experiment.study, signs, answers),
        *_of_setup(experiment, compared & {*factor.levels} or {*factor.levels}),
        *_of_controls(experiment.plan, effects),
        *_of_queries(experiment.plan, effects, queries),
    ]
    concerns = sorted((c for c in concerns if c.level in concerned), key=lambda concern: concern.order)
    everywhere = {None, *factor.controls}
    pairs, by_level, unmet = factor.pairs(), dict[str, str](), dict[str, str]()
    for level, against in zip(answers["level"], answers["against"], strict=True):
        own = (c for c in concerns if c.level in (level, against) or (c.grave and c.level in everywhere))
        by_level[level] = next((c.text for c in own), "")
        # the conditions of a reference that is compared itself are reported there
        sides = {level} if against in pairs else {level, against}
        conditions = [c.value for c in experiment.concerns if c.code == "condition" and c.level in sides]
        if conditions:
            unmet[level] = "; ".join(conditions)
    records = [concern.record() for concern in _joined(concerns)[:MOST_LIMITS]]
    frame = pd.DataFrame(records, columns=["code", "level", "value", "text", "grave"])
    frame["level"] = frame["level"].str.replace("[“”]", "", regex=True)  # several levels
    frame.attrs = {"kind": "limits", "by_level": by_level, "unmet": unmet}
    return frame


def _of_controls(plan: Plan, effects: pd.DataFrame) -> Iterator[Concern]:
    for row in effects[effects["level"].isin(plan.factor.controls)].to_dict("records"):
        if abs(row["percent_change"]) > 100 * plan.margin:
            yield Concern("control_strays", signed(row["percent_change"]), level=row["level"])


def _of_queries(plan: Plan, effects: pd.DataFrame, queries: pd.DataFrame) -> Iterator[Concern]:
    verdicts = dict(zip(effects["level"], effects["verdict"], strict=True))
    for level, rows in queries.groupby("level", sort=False):
        name, against = str(level), str(rows["against"].iloc[0])
        slower = rows[rows["verdict"].eq("slower")].sort_values("percent_change").to_dict("records")
        same_load = plan.level_load(name) == plan.level_load(against)
        if slower and same_load and verdicts.get(name, "slower") != "slower":
            worst = slower[-1]
            change, _ = percent_words(worst["percent_change"])
            value = f"{len(slower)} of {len(rows)}, the worst is “{worst['query']}” ({change})"
            yield Concern("slower_queries", value, level=name)


def _of_answers(study: Study, signs: pd.DataFrame, answers: pd.DataFrame) -> Iterator[Concern]:
    for row in answers.to_dict("records"):
        if cost := _cost(study, signs, row["level"], row["against"]):
            yield Concern("durability", "; ".join(cost), level=row["level"])
        smallest = row["mde_percent"]
        if row["verdict"] == "inconclusive" and not np.isnan(smallest):
            yield Concern("detectable", f"{number_words(min(smallest, MOST_STATED))} %", level=row["level"])


def _of_setup(experiment: Experiment, compared: set[str]) -> Iterator[Concern]:
    plan = experiment.plan
    if caveat := experiment.study.declared.stated_caveat:
        yield Concern("caveat", caveat)
    for row in experiment.bottlenecks.to_dict("records"):
        if row["bottleneck"].startswith(DISKS_CAP):
            yield Concern("disk_cap", disk_limits(plan.level(row["level"])), level=row["level"])
    levels = [plan.level(name) for name in compared]
    data = [level.part("storage").get("data") for level in levels]
    replication = [level.part("replication") for level in levels]
    external = any(level.target for level in levels)
    generated = all(plan.level_load(name).generators for name in plan.factor.levels)
    flags = {
        "external_server": external,
        "in_place": any(level.in_place for level in levels),
        "replica_shares": any(part.get("replicas") and not part.get("on") for part in replication),
        "shared_machine": not (external or generated or plan.base.load.generators),
        "loop_device": any(
            isinstance(of, dict) and of.get("file_system") not in (None, "tmpfs") for of in data
        ),
    }
    yield from (Concern(code) for code, holds in flags.items() if holds)


def _cost(study: Study, signs: pd.DataFrame, level: str, against: str) -> tuple[str, ...]:
    costs = study.crash_costs
    if level in study.plan.factor.levels:
        return () if (cost := costs.get(level, ())) == costs.get(against, ()) else cost
    change = signs.get(level, pd.Series(dtype=int))
    high, low = ([{*costs.get(str(name), ())} for name in change.index[change == sign]] for sign in (1, -1))
    return tuple(sorted(set[str].intersection(*high).difference(*low))) if high else ()


def disk_limits(level: Level) -> str:
    """Return a disk's caps: ``1,500 requests/s, 100 MB/s (write)``."""
    caps = {cap: value for cap in _CAPS if (value := level.part("storage").get(cap))}
    words = {cap: f"{n:,} requests/s" if "iops" in cap else f"{size_words(n)}/s" for cap, n in caps.items()}
    both = Counter(words.values())  # one text for reads and writes that have the same cap
    texts = (text if both[text] == 2 else f"{text} ({cap.split('_')[0]})" for cap, text in words.items())
    return ", ".join(dict.fromkeys(texts))


def _joined(concerns: list[Concern]) -> list[Concern]:
    """Return one limit per code."""
    groups = dict[tuple[str, str], list[Concern]]()
    for c in dict.fromkeys(concerns):
        apart = c.code in _BY_VALUE or c.level is None
        groups.setdefault((c.code, c.value if apart else ""), []).append(c)
    joined = []
    for group in groups.values():
        value = group[0].value
        levels = [c.level for c in group if c.level and c.value == value]
        name = "”, “".join([*levels[:_NAMED], *["…"] * (len(levels) > _NAMED)]) or None
        others = sum(c.value != value for c in group)
        joined.append(Concern(group[0].code, value, any(c.grave for c in group), name, others))
    return joined
