"""Studies in parts, such as workloads, with separate noise."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.design import references
from benchlib.stats.analysis import Analysis
from benchlib.stats.limits import Concern
from benchlib.stats.trials import usable
from benchlib.stats.verdicts import analyze


def analyze_strata(
    trials: pd.DataFrame,
    strata: Mapping[str, str],
    *,
    baseline: str,
    controls: Sequence[str] = (),
    against: Mapping[str, str],
    concerns: Sequence[Concern] = (),
    answers: Collection[str] = (),
    families: Sequence[int] = (1, 1),
    **arguments: Any,
) -> Analysis:
    """Return the verdicts of all parts as one analysis.

    ``strata`` maps levels to parts, which share the error rate of each family (Sidak). A control that
    differs invalidates all.

    Raises:
        InputError: as ``analyze``, or no comparison is possible yet.
    """
    good = {*usable(trials, arguments.get("metric", "tps"))["level"]}
    measured = set(trials["level"]) - ({*controls} - good)
    controls = [name for name in controls if name in measured]
    wanted = references([name for name in strata if name in measured], (baseline, *controls), against)
    pairs = {name: other for name, other in wanted.items() if other in good}
    lost = wanted.keys() - pairs.keys()  # a level without its reference is not compared
    concerns = [*concerns, *(Concern("no_reference", level=name) for name in wanted if name in lost)]
    used = {baseline, *controls, *pairs, *pairs.values()}
    parts = list(dict.fromkeys([strata[baseline], *(strata[name] for name in strata if name in used)]))
    compared_levels = pairs.keys() - {*controls}
    answering = compared_levels & {*answers} if answers else compared_levels
    both = answering, compared_levels - answering
    sharing = [len({strata[name] for name in of}) if both[1] else len(parts) for of in both]
    analyses: list[Analysis] = []
    for part in parts:
        inside = {name for name in used if strata.get(name) == part}
        compared = {name: other for name, other in pairs.items() if name in inside and name not in controls}
        first = part == strata[baseline]
        reference = baseline if first else next((n for n in compared.values() if n not in compared), None)
        if reference is None or len(measured & inside) < 2:  # no level of the part has run
            continue
        about = [c for c in concerns if c.level in (None, *inside) or (not analyses and c.level in lost)]
        if analyses:  # a control that differs invalidates every part
            about += [replace(c, level=None) for c in analyses[0].warnings if c.code == "control_differs"]
        analyses.append(
            analyze(
                trials[trials["level"].isin(inside)],
                baseline=reference,
                controls=controls if first else [],
                against=compared,
                concerns=about,
                answers=answers,
                families=[families[0] * sharing[0], families[1] * sharing[1]],
                **arguments,
            )
        )
    if not analyses:
        raise InputError("nothing can be compared yet: no level has trials together with its reference")
    return _joined(analyses) if len(analyses) > 1 else analyses[0]


def _joined(analyses: Sequence[Analysis]) -> Analysis:
    # each part repeats the concern about a control; keep it once
    warnings = [
        c for analysis in analyses for c in analysis.warnings if c.code != "control_differs" or c.level
    ]
    if analyses[0].controls:  # only the baseline's part has controls
        warnings = [c for c in warnings if c.code != "no_control"]
        warnings.append(Concern("control_elsewhere", ", ".join(analyses[0].controls)))
    return replace(
        analyses[0],
        against={name: other for analysis in analyses for name, other in analysis.against.items()},
        blocks=max(analysis.blocks for analysis in analyses),
        warnings=tuple(dict.fromkeys(warnings)),
        table=pd.concat([analysis.table for analysis in analyses], ignore_index=True),
        errors=pd.concat([analysis.errors for analysis in analyses], ignore_index=True),
    )
