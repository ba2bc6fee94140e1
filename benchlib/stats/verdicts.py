"""Verdicts on a factor, on the log scale."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from benchlib.errors import InputError
from benchlib.plan.design import references
from benchlib.plan.metrics import foreign_metric, signed
from benchlib.stats import validity
from benchlib.stats.analysis import Analysis
from benchlib.stats.block_model import Fit, arm_weights, fit_blocks, in_blocks
from benchlib.stats.compare import SAME, compare
from benchlib.stats.limits import ANSWER, BY_HOST, CONTROL, EXPLORATORY, LEAST_BLOCKS, Concern
from benchlib.stats.multiple import holm
from benchlib.stats.trials import Trials, read_trials

GRAVE = 0.2
"""A control that differs at this share of alpha invalidates all verdicts."""
_DOUBTED = 0.1
"""Hosts are not pooled if a comparison's p of equal effects is below this."""
_COMPARED = {
    "estimate": "percent_change", "low": "ci_low", "high": "ci_high", "p": "p_value", "p_adjusted": "p_adjusted",
    "verdict": "verdict", "detectable": "mde_percent", "blocks_needed": "blocks_needed",
}  # fmt: skip
_PERCENTS = ["percent_change", "ci_low", "ci_high", "mde_percent"]
_ERRORS = ["against", "family", "estimate", "error", "df", "equal_low", "equal_high"]
POOLED_FROM = 0.5
"""Periods or hosts are pooled only if p of their interaction with levels exceeds this."""


def analyze(
    trials: pd.DataFrame,
    *,
    baseline: str,
    controls: Sequence[str] = (),
    metric: str = "tps",
    margin: float = 0.03,
    alpha: float = 0.05,
    lower_is_better: bool = False,
    higher_is_better: bool = False,
    fixed_hosts: bool = False,
    concerns: Sequence[Concern] = (),
    against: Mapping[str, str] = MappingProxyType({}),
    answers: Collection[str] = (),
    exploratory_alpha: float | None = None,
    families: Sequence[int] = (1, 1),
    control_alpha: float = 0.05,
) -> Analysis:
    """Return the verdicts on trials with columns ``block``, ``level`` and the metric.

    - ``controls``: A/A arms of the baseline. One that differs at a fifth of ``control_alpha`` invalidates
      all verdicts.
    - ``margin``: the smallest fraction that matters. ``alpha``: a family's error rate.
    - ``answers``: levels declared before the study ran, a family of their own; other levels are the
      exploratory family, at ``exploratory_alpha`` if given. Without them there is one family.
    - ``concerns``: limits found elsewhere.
    - ``against``: references other than the baseline. A level that is only a reference is not compared.
    - ``families``: the numbers of parts that share the error rate of answers, and of others.
    - ``fixed_hosts``: conclude about these hosts only.

    Optional columns: ``error``, ``period`` (blocks that share clusters), ``host``.

    Raises:
        InputError: invalid trials or arguments.
    """
    arms = _arms(baseline, controls, margin, alpha)
    against = {str(name): str(other) for name, other in against.items()}
    measured = foreign_metric(metric, higher_is_better=higher_is_better, lower_is_better=lower_is_better)
    data = read_trials(trials, arms[0], arms[1:], metric)
    pairs, weights = _contrasts(data.values.columns.tolist(), arms, against)
    fit, blocks, controls = data.fit(), len(data.values), arms[1:]
    warnings = [*data.concerns, *concerns, *_incomplete(data)]
    if fit.residual_sd <= SAME:
        warnings.append(Concern("no_variation"))
    elif fit.df > 0:
        for row, column in validity.outliers(fit.residual, fit.df):
            level, value = str(data.values.columns[column]), data.values.to_numpy()[row, column]
            where = f"block {data.values.index[row]}, {level!r} at {value:.6g}"
            warnings.append(Concern("outlier", where, level=level))
        warnings += validity.drifts(data.logs, pairs, data.hosts)
    units, hosts, period_concerns = by_period(data, fit)
    judged, host_concerns = _by_host(units, hosts, pairs, weights, alpha, fixed=fixed_hosts)
    differing = {c.level for c in host_concerns if c.code == "host_by_level" and not fixed_hosts}
    warnings += period_concerns + host_concerns

    answering = {str(name) for name in answers} or {*pairs}
    kinds = {name: ANSWER if name in answering else EXPLORATORY for name in pairs}
    kinds |= dict.fromkeys(controls, CONTROL)
    rates = {CONTROL: (alpha, 1), ANSWER: (alpha, families[0])}
    rates[EXPLORATORY] = exploratory_alpha or alpha, families[1]
    of_families = []
    for kind, (rate, parts) in rates.items():
        names = [name for name in pairs if kinds[name] == kind]
        one = {pairs[name] for name in names} <= {arms[0]}
        own = weights[[kinds[name] == kind for name in pairs]]
        found = compare(judged, own, rate, margin, one_reference=one, families=max(parts, 1))
        of_families.append(found.set_axis(names).assign(alpha=rate, family=kind))
    rows = pd.concat(of_families).loc[list(pairs)]
    warnings += _control_concerns(rows.loc[list(controls)], blocks, control_alpha)

    table = data.values.agg(["count", "mean", "std"]).T.set_axis(["n", "mean", "sd"], axis=1)
    table = table.astype({"n": int}).assign(cv=100 * table["sd"] / table["mean"])
    few = set(table.index[table["n"] < LEAST_BLOCKS])
    changes = _changes(data.logs, pairs, weights)
    few |= set(changes.columns[changes.notna().sum() < LEAST_BLOCKS])  # blocks that have both sides
    grave = {warning.level for warning in warnings if warning.grave}
    (up, down), tests = measured.directions, rows[["low", "high", "p_tost", "alpha"]].to_numpy()
    verdicts = [
        # a control that differs shows an unknown error, so it invalidates the others too
        "invalid" if grave & {None, name, other, *controls}
        else "inconclusive" if few & {name, other}
        else BY_HOST if name in differing
        else up if low > 0
        else down if high < 0
        else "equivalent" if p_tost <= rate
        else "inconclusive"
        for (name, other), (low, high, p_tost, rate) in zip(pairs.items(), tests, strict=True)
    ]  # fmt: skip
    needed = np.ceil(rows["blocks_needed"] * (blocks / len(judged.residual)))
    rows = rows.assign(against=pd.Series(pairs), verdict=pd.Series(verdicts, rows.index, dtype=object))
    rows["blocks_needed"] = needed.where(rows["verdict"].eq("inconclusive"))
    compared = rows[[*_COMPARED]].set_axis([*_COMPARED.values()], axis=1)
    compared[_PERCENTS] = percent(compared[_PERCENTS])
    return Analysis(
        table=table.join(compared).rename_axis("level").reset_index(),
        baseline=arms[0],
        controls=controls,
        against=pairs,
        metric=measured,
        blocks=blocks,
        margin=margin,
        alpha=alpha,
        warnings=tuple(warnings),
        errors=rows[_ERRORS].rename_axis("level").reset_index(),
        residual_sd=fit.residual_sd,
        exploratory_alpha=exploratory_alpha,
    )


def by_period(data: Trials, fit: Fit) -> tuple[pd.DataFrame, "pd.Series[Any]", list[Concern]]:
    """Return the logs of blocks or of periods, their hosts, and concerns.

    Period means replace blocks if levels differ more between periods than between blocks.
    """
    periods, logs, hosts = data.periods, data.logs, data.hosts
    if periods is None or (count := periods.nunique()) == len(periods):
        return logs, hosts, []
    if count < LEAST_BLOCKS:
        times = "once" if count == 1 else "twice"
        return logs, hosts, [Concern("clusters_stay", f"{times} for {len(periods)} blocks")]
    means, hosts_of_means = _means(logs, fit, periods), hosts.groupby(periods.to_numpy()).first()
    negligible = _negligible(fit, periods, fit_blocks(means, hosts_of_means).df)
    return (logs, hosts, []) if negligible else (means, hosts_of_means, [])


def _by_host(
    logs: pd.DataFrame,
    hosts: "pd.Series[Any]",
    pairs: Mapping[str, str],
    weights: np.ndarray,
    alpha: float,
    *,
    fixed: bool = False,
) -> tuple[Fit, list[Concern]]:
    """Return the fit for several hosts, with concerns.

    Each host's mean is one observation, unless they are pooled.
    """
    count = hosts.nunique()
    if count == 1:
        return fit_blocks(logs), []
    p, single, means = _host_by_level(_changes(logs, pairs, weights), hosts)
    differ = []
    for name in map(str, p.index[p <= alpha]):
        by_host = means[name].dropna().sort_values()
        listed = ", ".join(f"{signed(percent(change))} on {host}" for host, change in by_host.items())
        differ.append(Concern("host_by_level", f"{listed} (p = {p[name]:.2g})", level=name))
    if differ:
        tested = "effects differ between them"
    elif p.notna().any():
        tested = f"no effect is seen to differ between them (p = {p.min():.2g})"
    else:
        tested = "whether effects differ between them cannot be seen"
    whole = fit_blocks(logs)
    alike = _negligible(whole, hosts, (count - 1) * (logs.shape[1] - 1)) and not (single < _DOUBTED).any()
    if fixed and len(logs) > count:
        fit, claim = fit_blocks(logs, hosts), "these hosts only, as requested"
    elif alike:
        fit, claim = whole, "hosts such as these"
    else:
        fit, claim = (fit_blocks(_means(logs, whole, hosts)), "hosts such as these (each is one observation)")
    if count == 2 and not fixed:
        claim += "; two hosts can hardly speak for others"
    message = f"{count} hosts ran the blocks: the verdicts are about {claim}; {tested}"
    return fit, [Concern("hosts", message), *differ]


def _negligible(fit: Fit, groups: "pd.Series[Any]", df: int) -> bool:
    """Return whether groups may be pooled (F on the residual)."""
    spread = pd.DataFrame(fit.residual).groupby(groups.to_numpy())
    between = float((spread.mean() ** 2 * spread.count()).to_numpy().sum())
    inside = float(np.nansum(fit.residual**2)) - between
    left = fit.df - df
    if min(df, left, inside) <= 0:
        return False
    return bool(fdtrc(df, left, (between / df) / (inside / left)) > POOLED_FROM)


def _host_by_level(
    changes: pd.DataFrame, hosts: "pd.Series[Any]"
) -> tuple["pd.Series[float]", "pd.Series[float]", pd.DataFrame]:
    """Return p of equal effects (F), by Holm and single, and means."""
    by_host = changes.groupby(hosts.to_numpy())
    means, counts = by_host.mean(), by_host.count()
    inside = ((changes - by_host.transform("mean")) ** 2).sum()
    between = (counts * (means - changes.mean()) ** 2).sum()
    among = (counts > 0).sum()
    left = counts.sum() - among
    ratio = (between / (among - 1)) / (inside / left)
    single = pd.Series(fdtrc(among - 1, left, ratio), ratio.index).where(inside > left * SAME**2)
    return pd.Series(holm(single.to_list()), single.index), single, means


def _means(logs: pd.DataFrame, fit: Fit, groups: "pd.Series[Any]") -> pd.DataFrame:
    """Return the groups' means without block effects."""
    without_blocks = logs.sub((logs - fit.effects).mean(axis=1), axis=0)
    means: pd.DataFrame = without_blocks.groupby(groups.to_numpy()).mean()
    return means


def percent(log_ratio: Any) -> Any:
    """Return log-ratios as percentage changes."""
    with np.errstate(over="ignore"):  # an interval may end at infinity
        return 100.0 * np.expm1(log_ratio)


def _arms(baseline: str, controls: Sequence[str], margin: float, alpha: float) -> tuple[str, ...]:
    """Check the arguments; return the arms."""
    names = [controls] if isinstance(controls, str) else list(controls)
    arms = tuple(str(name) for name in [baseline, *names])
    if len(set(arms)) < len(arms):
        raise InputError("baseline and controls must be different levels, each named once")
    if not 0 < margin < 1:
        raise InputError(f"margin is a fraction between 0 and 1 (0.03 is 3 %), not {margin!r}")
    if not 1e-6 <= alpha < 0.5:
        raise InputError(f"alpha is an error rate from 0.000001 to 0.5 (0.05 is 5 %), not {alpha!r}")
    return arms


def _contrasts(
    levels: list[str], arms: tuple[str, ...], against: Mapping[str, str]
) -> tuple[dict[str, str], np.ndarray]:
    if unknown := {*against, *against.values()} - set(levels):
        raise InputError(f"unknown level {min(unknown)!r}; the levels are: {', '.join(levels)}")
    for name, other in against.items():
        if name in arms or name == other:
            raise InputError(f"level {name!r} cannot be compared with {other!r}")
    pairs = references(levels, arms, against)
    numbers = {levels.index(name): levels.index(other) for name, other in pairs.items()}
    return pairs, arm_weights(len(levels), len(arms), numbers)


# --- reasons for doubt ----------------------------------------------------------------


def _incomplete(data: Trials) -> list[Concern]:
    blocks, total, counts = len(data.values), data.values.size, data.values.count()
    absent = total - counts.sum()
    concerns = [Concern("incomplete_blocks", f"{absent} of {total}")] if absent else []
    if blocks < LEAST_BLOCKS:
        return [Concern("few_blocks", str(blocks)), *concerns]
    few = counts[counts < LEAST_BLOCKS].items()
    return [*concerns, *(Concern("few_trials", str(count), level=str(name)) for name, count in few)]


def _control_concerns(controls: pd.DataFrame, blocks: int, alpha: float) -> list[Concern]:
    if controls.empty:
        return [Concern("no_control")]
    differing = controls[(controls["p_adjusted"] <= alpha) & (blocks >= LEAST_BLOCKS)]
    return [
        Concern("control_differs", f"{signed(percent(change))} (p = {p:.2g})", p <= GRAVE * alpha, str(name))
        for name, change, p in differing[["estimate", "p_adjusted"]].itertuples()
    ]


def _changes(logs: pd.DataFrame, pairs: Mapping[str, str], weights: np.ndarray) -> pd.DataFrame:
    changes, _ = in_blocks(logs.to_numpy(), weights)
    return pd.DataFrame(changes, logs.index, list(pairs))
