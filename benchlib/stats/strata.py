"""Studies in parts that share only blocks: levels of different workloads have separate noise."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.stats.analysis import Analysis
from benchlib.stats.limits import Concern
from benchlib.stats.verdicts import analyze


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

    ``strata`` maps levels to parts; comparisons stay inside one part. Each part has its own block model and
    noise; parts share the error rate (Sidak). A control that differs invalidates all parts. ``residual_sd`` is
    that of the baseline's part. ``arguments`` are for ``analyze``.

    Raises:
        InputError: as ``analyze``, or no comparison is possible yet.
    """
    good = trials[trials[arguments.get("metric", "tps")].notna()]
    usable = set(good["level"] if "error" not in good else good.loc[good["error"].isna(), "level"])
    measured = set(trials["level"]) - ({*controls} - usable)
    # a level without its reference is not compared
    lost = [name for name, other in against.items() if name in measured and other not in usable]
    concerns = [*concerns, *(Concern("no_reference", level=name) for name in lost)]
    parts = _parts(measured, usable, strata, baseline, controls, against)
    analyses: list[Analysis] = []
    for inside, comparisons in parts:
        if not comparisons:  # for example before its first level has run
            continue
        about = [c for c in concerns if c.level in (None, *inside) or (not analyses and c.level in lost)]
        if analyses:  # a control that differs invalidates every part
            about += [replace(c, level=None) for c in analyses[0].warnings if c.code == "control_differs"]
        rows = trials[trials["level"].isin(inside)]
        analyses.append(analyze(rows, **comparisons, concerns=about, families=len(parts), **arguments))
    if not analyses:
        raise InputError("nothing can be compared yet: no level has trials together with its reference")
    return _joined(analyses) if len(analyses) > 1 else analyses[0]


def _parts(
    measured: set[str],
    references: set[str],
    strata: Mapping[str, str],
    baseline: str,
    controls: Sequence[str],
    against: Mapping[str, str],
) -> list[tuple[list[str], dict[str, Any]]]:
    """Return the parts, baseline's first: levels and arguments for ``analyze`` (empty: no comparison)."""
    pairs = {name: other for name, other in against.items() if name in measured and other in references}
    # a level without its reference may still be the reference of another
    used = {*pairs, *pairs.values(), baseline, *(name for name in controls if name in measured)}
    used |= strata.keys() - {*against, *against.values(), *controls}
    parts = []
    for part in dict.fromkeys([strata[baseline], *(strata[name] for name in strata if name in used)]):
        inside = [name for name, stratum in strata.items() if stratum == part and name in used]
        part_pairs = {name: other for name, other in pairs.items() if name in inside}
        reference, present = baseline, [name for name in controls if name in measured]
        if part != strata[baseline]:
            reference, present = (
                next((name for name in part_pairs.values() if name not in part_pairs), ""),
                [],
            )
        comparisons = {"baseline": reference, "controls": present, "against": part_pairs}
        several = len(measured & {*inside}) > 1
        parts.append((inside, comparisons if reference and several else {}))
    return parts


def _joined(analyses: Sequence[Analysis]) -> Analysis:
    """Return one analysis of all parts, the baseline's first."""
    # each part repeats the concern about a control; keep it once
    warnings = [
        c for analysis in analyses for c in analysis.warnings if c.code != "control_differs" or c.level
    ]
    if analyses[0].controls:  # only the baseline's part has controls
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
        **frames,
    )
