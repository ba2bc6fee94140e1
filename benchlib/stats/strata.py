"""A study in parts that share nothing but their blocks: levels of different workloads have no noise in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from benchlib.stats.analysis import Analysis, analyze
from benchlib.stats.concerns import Concern


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
    ``residual_sd`` and ``df`` are those of the baseline's part; ``arguments`` go on to ``analyze``.

    Raises InputError as ``analyze`` does.
    """
    there = set(trials["level"]) if "level" in trials else set()
    # without its reference a level has nothing to be compared with, least of all the baseline
    strata = {
        name: part for name, part in strata.items() if name not in against or {name, against[name]} <= there
    }
    alone = [name for name in against if name in there and name not in strata]
    words = "has no verdict: what it is to be compared with has no trial"
    concerns = [*concerns, *(Concern("no_reference", f"{name!r} {words}", level=name) for name in alone)]
    against = {name: other for name, other in against.items() if name in strata}
    trials = trials[trials["level"].isin(list(strata))] if there else trials
    first = strata[baseline]
    parts = [first, *(part for part in dict.fromkeys(strata.values()) if part != first)]
    if len(parts) == 1:
        return analyze(trials, baseline=baseline, controls=controls, against=against, concerns=concerns, **arguments)  # fmt: skip
    found: list[Analysis] = []
    for part in parts:
        inside = [name for name, stratum in strata.items() if stratum == part]
        rows = trials[trials["level"].isin(inside)]
        pairs = {name: other for name, other in against.items() if name in inside}
        if rows.empty or (part != first and not pairs):
            continue
        own = baseline if part == first else next(other for other in pairs.values() if other not in pairs)
        about = [c for c in concerns if c.level in (None, *inside) or (part == first and c.level in alone)]
        spread = [replace(c, level=None) for c in found[0].warnings if c.code == "control_differs"] if found else []  # fmt: skip
        found.append(
            analyze(
                rows,
                baseline=own,
                controls=controls if part == first else (),
                against=pairs,
                concerns=[*about, *spread],
                families=len(parts),
                **arguments,
            )
        )
    return _joined(found)


def _joined(parts: Sequence[Analysis]) -> Analysis:
    """One analysis of all parts, the baseline's first."""
    warnings = [c for part in parts for c in part.warnings]
    if parts[0].controls:  # the others have none of their own, which needs saying once
        warnings = [c for c in warnings if c.code != "no_control"]
        names = ", ".join(parts[0].controls)
        words = f"the A/A control ({names}) is of one workload; of the others' noise only the blocks tell"
        warnings.append(Concern("control_elsewhere", words))
    frames = {
        name: pd.concat([getattr(part, name) for part in parts], ignore_index=True)
        for name in ("table", "differences", "equivalence", "residuals")
    }
    return replace(
        parts[0],
        against={name: other for part in parts for name, other in part.against.items()},
        blocks=max(part.blocks for part in parts),
        warnings=tuple(dict.fromkeys(warnings)),
        **frames,
    )
