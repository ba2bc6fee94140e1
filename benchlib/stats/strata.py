"""A study in parts that share nothing but their blocks: levels of different workloads have no noise in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.stats.analysis import Analysis
from benchlib.stats.limits import Concern
from benchlib.stats.multiple import benjamini_hochberg
from benchlib.stats.verdicts import analyze, leads


def analyze_strata(
    trials: pd.DataFrame,
    strata: Mapping[str, str],
    *,
    baseline: str,
    controls: Sequence[str] = (),
    against: Mapping[str, str],
    concerns: Sequence[Concern] = (),
    **arguments: Any,
) -> Analysis:
    """Return the verdicts of all parts as one analysis.

    ``strata`` names the part of each level; what is compared lies in one part. Each part has a block model
    and a noise of its own: that of a query on the processors says nothing of one that waits for the disk. The
    parts share the error rate (Sidak). A control that differs from its twin invalidates every part.
    ``residual_sd`` is that of the baseline's part; ``arguments`` go on to ``analyze``.

    Raises InputError as ``analyze`` does.
    """
    good = trials[trials[arguments.get("metric", "tps")].notna()]
    usable = set(good["level"] if "error" not in good else good.loc[good["error"].isna(), "level"])
    measured = set(trials["level"]) - ({*controls} - usable)
    # without its reference a level has nothing to be compared with, least of all the baseline
    lost = [name for name, other in against.items() if name in measured and other not in usable]
    concerns = [*concerns, *(Concern("no_reference", level=name) for name in lost)]
    parts = _parts(measured, usable, strata, baseline, controls, against)
    analyses: list[Analysis] = []
    for inside, comparisons in parts:
        if not comparisons:  # at the baseline's, say, before its first level has run
            continue
        about = [c for c in concerns if c.level in (None, *inside) or (not analyses and c.level in lost)]
        if analyses:  # what invalidates the baseline's twins invalidates every part
            about += [replace(c, level=None) for c in analyses[0].warnings if c.code == "control_differs"]
        rows = trials[trials["level"].isin(inside)]
        analyses.append(analyze(rows, **comparisons, concerns=about, families=len(parts), **arguments))
    if not analyses:
        raise InputError(
            "there is nothing to compare yet: no level has its reference's trials beside its own"
        )
    return _joined(analyses) if len(analyses) > 1 else analyses[0]


def exploratory(
    figures: pd.DataFrame,
    strata: Mapping[str, str],
    *,
    baseline: str,
    controls: Sequence[str] = (),
    against: Mapping[str, str] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return every level by every metric with Benjamini-Hochberg adjusted p: leads, not verdicts.

    ``figures``: ``block, level``, perhaps ``period`` and ``host`` (see ``analyze``), and metrics; each is compared among the levels
    that have it, if all of their trials do and none is 0. Columns ``metric, level, percent_change, p_value, p_bh, noteworthy``;
    controls are left out.
    """
    frames = []
    for metric in figures.columns.difference(["block", "level", "period", "host"], sort=False):
        rows = figures[figures.groupby("level")[metric].transform("count") > 0]
        measured = set(rows["level"])
        if not rows[metric].gt(0).all() or baseline not in measured or measured <= {baseline, *controls}:
            continue
        for inside, comparisons in _parts(measured, measured, strata, baseline, controls, against):
            if comparisons:
                part = leads(rows[rows["level"].isin(inside)], metric=metric, **comparisons)
                frames.append(part.assign(metric=metric))
    columns = ["metric", "level", "percent_change", "p_value"]
    frame = pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
    frame["p_bh"] = benjamini_hochberg(frame["p_value"].to_list())
    return frame.assign(noteworthy=frame["p_bh"] <= 0.05)


def _parts(
    measured: set[str],
    references: set[str],
    strata: Mapping[str, str],
    baseline: str,
    controls: Sequence[str],
    against: Mapping[str, str],
) -> list[tuple[list[str], dict[str, Any]]]:
    """Return the parts, the baseline's first: the levels, and how ``analyze`` is to compare them; nothing where there is nothing to compare."""
    pairs = {name: other for name, other in against.items() if name in measured and other in references}
    # a rung that has lost its own reference may still be that of the next; who is neither is compared with the baseline
    kept = {*pairs, *pairs.values(), baseline, *(name for name in controls if name in measured)}
    kept |= strata.keys() - {*against, *against.values(), *controls}
    parts = []
    for part in dict.fromkeys([strata[baseline], *(strata[name] for name in strata if name in kept)]):
        inside = [name for name, stratum in strata.items() if stratum == part and name in kept]
        own = {name: other for name, other in pairs.items() if name in inside}
        reference, twins = baseline, [name for name in controls if name in measured]
        if part != strata[baseline]:
            reference, twins = next((name for name in own.values() if name not in own), ""), []
        comparisons = {"baseline": reference, "controls": twins, "against": own}
        several = len(measured & {*inside}) > 1
        parts.append((inside, comparisons if reference and several else {}))
    return parts


def _joined(analyses: Sequence[Analysis]) -> Analysis:
    """One analysis of all parts, the baseline's first."""
    # a control that differs was told to every part, and is one doubt
    warnings = [
        c for analysis in analyses for c in analysis.warnings if c.code != "control_differs" or c.level
    ]
    if analyses[0].controls:  # the others have none of their own, which needs saying once
        warnings = [c for c in warnings if c.code != "no_control"]
        names = ", ".join(analyses[0].controls)
        warnings.append(Concern("control_elsewhere", names))
    frames = {
        name: pd.concat([getattr(analysis, name) for analysis in analyses], ignore_index=True)
        for name in ("table", "differences", "errors")
    }
    return replace(
        analyses[0],
        against={name: other for analysis in analyses for name, other in analysis.against.items()},
        blocks=max(analysis.blocks for analysis in analyses),
        warnings=tuple(dict.fromkeys(warnings)),
        tiny=frozenset().union(*(analysis.tiny for analysis in analyses)),
        of_periods=any(analysis.of_periods for analysis in analyses),
        **frames,
    )
