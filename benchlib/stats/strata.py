"""A study in parts that share nothing but their blocks: levels of different workloads have no noise in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from benchlib.stats.analysis import Analysis
from benchlib.stats.concerns import Concern
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

    ``strata`` names the part of each level; what is compared lies in one part. Each part has a block model
    and a noise of its own: that of a query on the processors says nothing of one that waits for the disk. The
    parts share the error rate (Sidak). A control that differs from its twin invalidates every part.
    ``residual_sd`` is that of the baseline's part; ``arguments`` go on to ``analyze``.

    Raises InputError as ``analyze`` does.
    """
    measured = set(trials["level"])
    # without its reference a level has nothing to be compared with, least of all the baseline
    lost = [name for name, other in against.items() if name in measured and other not in measured]
    message = "has no verdict: what it is to be compared with has no trial"
    concerns = [*concerns, *(Concern("no_reference", f"{name!r} {message}", level=name) for name in lost)]
    kept = {
        name: part
        for name, part in strata.items()
        if name not in against or {name, against[name]} <= measured
    }
    against = {name: other for name, other in against.items() if name in kept}
    first = strata[baseline]
    parts = [first, *(part for part in dict.fromkeys(kept.values()) if part != first)]
    analyses: list[Analysis] = []
    for part in parts:
        inside = [name for name, stratum in kept.items() if stratum == part]
        pairs = {name: other for name, other in against.items() if name in inside}
        if part != first and (not pairs or measured.isdisjoint(inside)):
            continue
        reference = baseline if part == first else next(name for name in pairs.values() if name not in pairs)
        about = [c for c in concerns if c.level in (None, *inside) or (part == first and c.level in lost)]
        if analyses:  # what invalidates the baseline's twins invalidates every part
            about += [replace(c, level=None) for c in analyses[0].warnings if c.code == "control_differs"]
        analyses.append(
            analyze(
                trials[trials["level"].isin(inside)],
                baseline=reference,
                controls=controls if part == first else (),
                against=pairs,
                concerns=about,
                families=len(parts),
                **arguments,
            )
        )
    return _joined(analyses) if len(analyses) > 1 else analyses[0]


def _joined(analyses: Sequence[Analysis]) -> Analysis:
    """One analysis of all parts, the baseline's first."""
    warnings = [c for analysis in analyses for c in analysis.warnings]
    if analyses[0].controls:  # the others have none of their own, which needs saying once
        warnings = [c for c in warnings if c.code != "no_control"]
        names = ", ".join(analyses[0].controls)
        message = f"the A/A control ({names}) is of one workload; of the others' noise only the blocks tell"
        warnings.append(Concern("control_elsewhere", message))
    frames = {
        name: pd.concat([getattr(analysis, name) for analysis in analyses], ignore_index=True)
        for name in ("table", "trials", "differences", "errors")
    }
    return replace(
        analyses[0],
        against={name: other for analysis in analyses for name, other in analysis.against.items()},
        blocks=max(analysis.blocks for analysis in analyses),
        warnings=tuple(dict.fromkeys(warnings)),
        tiny=frozenset().union(*(analysis.tiny for analysis in analyses)),
        **frames,
    )
