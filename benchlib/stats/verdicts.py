"""Verdicts for a factor: the block model, Dunnett's intervals, equivalence, and five words.

``analyze`` is the whole protocol of one factor. Everything is computed on logarithms and given back in percent.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from benchlib.errors import InputError
from benchlib.plan.metrics import foreign_metric
from benchlib.stats import validity
from benchlib.stats.analysis import Analysis
from benchlib.stats.block_model import Fit, arm_weights, fit_blocks, in_blocks
from benchlib.stats.compare import SAME, by_itself, compare
from benchlib.stats.limits import BY_HOST, LEAST_BLOCKS, Concern
from benchlib.stats.multiple import holm
from benchlib.stats.trials import Trials, read_trials

GRAVE = 0.2
"""A control that differs at alpha is told; at this share of it, it invalidates."""
_DOUBTED = 0.1
"""A comparison whose effect is the same on all hosts with less than this p is not pooled over them."""
HOST_BY_LEVEL = "host_by_level"
"""So many hosts stand for others like them; fewer are all that a verdict is about."""
POOLED_FROM = 0.5
"""Clusters that stay for several blocks are forgotten only where their luck says nothing at this p."""


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
    families: int = 1,
) -> Analysis:
    """Return the verdicts on trials with columns ``block``, ``level`` and the metric.

    ``controls`` are further arms of the baseline (the A/A arm), declared before the run. ``margin``
    is the smallest fraction that matters, ``alpha`` the family's error rate. ``higher_is_better`` or
    ``lower_is_better`` says so of a metric whose name does not tell (see ``foreign_metric``). ``concerns`` from
    elsewhere (telemetry, failed transactions) join the warnings and invalidate where grave.
    ``against`` names for a level another one than the baseline to be compared with; a level that is only
    named as such is not compared itself. The intervals then hold together by Sidak's inequality.
    ``families`` is in how many parts a study is analysed, which share ``alpha`` (see ``analyze_strata``).
    A control that differs from the baseline at ``alpha`` (over all controls) is told; at a fifth of it, it makes every
    verdict invalid. A column ``period`` tells which blocks share their clusters: each comparison is then judged by
    how it differs between the periods (see ``by_period``). A column ``host`` tells which host ran a block: several
    decide what the verdicts are about (see ``_by_host``); with ``fixed_hosts`` they are about these alone. Where an effect
    differs from host to host beyond chance, its verdict is :data:`BY_HOST`. Fewer than three blocks, of the study or of a level, give no verdict but
    inconclusive; so do values that repeat exactly, for which no p can be computed. A difference that
    is both real and within the margin is called faster or slower, and is among ``Analysis.tiny``.

    Raises InputError for whatever in the frame or the parameters cannot be used (see ``read_trials``).
    """
    arms = _arms(baseline, controls, margin, alpha)
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
    differing = {
        concern.level for concern in host_concerns if concern.code == HOST_BY_LEVEL and not fixed_hosts
    }
    warnings += period_concerns + host_concerns

    twins, others = np.split(weights, [len(controls)])
    one = set(pairs.values()) <= {arms[0]}
    of_twins = compare(judged, twins, alpha, margin, one_reference=True, families=1)
    of_others = compare(judged, others, alpha, margin, one_reference=one, families=families)
    rows = pd.concat([of_twins, of_others]).set_axis(list(pairs))
    warnings += _control_concerns(rows.loc[list(controls)], blocks, alpha)

    table = _levels(data.values)
    few = set(table.index[table["n"] < LEAST_BLOCKS])
    changes = _changes(data.logs, pairs, weights)
    few |= set(changes.columns[changes.notna().sum() < LEAST_BLOCKS])  # in which it is beside the other
    grave = {warning.level for warning in warnings if warning.grave}
    (up, down), tests = measured.directions, rows[["low", "high", "p_tost"]].to_numpy()
    verdicts = [
        # twins that differ are noise that nobody has understood, so they invalidate the others too
        "invalid" if grave & {None, name, other, *controls}
        else "inconclusive" if few & {name, other}
        else BY_HOST if name in differing
        else up if low > 0
        else down if high < 0
        else "equivalent" if p_tost <= alpha
        else "inconclusive"
        for (name, other), (low, high, p_tost) in zip(pairs.items(), tests, strict=True)
    ]  # fmt: skip
    rows["against"] = pd.Series(pairs)
    needed = np.ceil(rows["blocks_needed"] * (blocks / len(judged.residual)))
    compared = {
        "percent_change": percent(rows["estimate"]),
        "ci_low": percent(rows["low"]),
        "ci_high": percent(rows["high"]),
        "p_value": rows["p"],
        "p_adjusted": rows["p_adjusted"],
        "verdict": pd.Series(verdicts, rows.index, dtype=object),
        "mde_percent": percent(rows["detectable"]),
        "blocks_needed": needed.where(np.array(verdicts) == "inconclusive"),
    }
    differences = percent(changes).stack(future_stack=True).dropna()
    return Analysis(
        table=table.join(pd.DataFrame(compared)).rename_axis("level").reset_index(),
        baseline=arms[0],
        controls=controls,
        against=pairs,
        metric=measured,
        blocks=blocks,
        margin=margin,
        alpha=alpha,
        warnings=tuple(warnings),
        differences=differences.rename_axis(["block", "level"]).reset_index(name="percent"),
        errors=rows[["against", "estimate", "error", "df", "equal_low", "equal_high"]]
        .rename_axis("level")
        .reset_index(),
        tiny=frozenset(rows.index[(rows["p_tost"] <= alpha) & ((rows["low"] > 0) | (rows["high"] < 0))]),
        residual_sd=fit.residual_sd,
        of_periods=len(units) < blocks,
    )


def by_period(data: Trials, fit: Fit) -> tuple[pd.DataFrame, "pd.Series[Any]", list[Concern]]:
    """Return the logs that comparisons are judged by, of blocks or of periods, their hosts, and what is to be told of it.

    A cluster keeps its luck (where its pages lie) as long as it stays, so its blocks are no replicates: the mean over
    a period stands for them. Only where level by period differs no more than level by block (F, p over .5; a
    smaller gate lets too much luck pass) are the blocks judged as if each had clusters of its own. Two periods or one
    tell too little of luck: the blocks are judged, and the verdicts hold for these clusters only.
    """
    periods, logs, hosts = data.periods, data.logs, data.hosts
    if periods is None or (count := periods.nunique()) == len(periods):
        return logs, hosts, []
    if count < LEAST_BLOCKS:
        times = "once" if count == 1 else "twice"
        return logs, hosts, [Concern("clusters_stay", f"{times} for {len(periods)} blocks")]
    means, hosts_of_means = _means(logs, fit, periods), hosts.groupby(periods.to_numpy()).first()
    apart = fit_blocks(means, hosts_of_means)
    spread = pd.DataFrame(fit.residual).groupby(periods.to_numpy())
    between = float((spread.mean() ** 2 * spread.count()).to_numpy().sum())
    inside = float(np.nansum(fit.residual**2)) - between
    left = fit.df - apart.df
    if left > 0 and inside > 0 and apart.df > 0:
        ratio = (between / apart.df) / (inside / left)
        if fdtrc(apart.df, left, ratio) > POOLED_FROM:
            return logs, hosts, []
    return means, hosts_of_means, []


def leads(
    trials: pd.DataFrame, *, baseline: str, controls: Sequence[str], metric: str, against: Mapping[str, str]
) -> pd.DataFrame:
    """Return ``level, percent_change, p_value`` of the levels that :func:`analyze` compares, the controls aside: the same, and no verdicts."""
    data = read_trials(trials, baseline, controls, metric)
    pairs, weights = _contrasts(data.values.columns.tolist(), (baseline, *controls), against)
    units, hosts, _ = by_period(data, data.fit())
    fit, _ = _by_host(units, hosts, pairs, weights, alpha=0.0)
    rows, *_ = by_itself(fit, weights[len(controls) :])
    asked = list(pairs)[len(controls) :]
    return pd.DataFrame({"level": asked, "percent_change": percent(rows["estimate"]), "p_value": rows["p"]})


def _by_host(
    logs: pd.DataFrame,
    hosts: "pd.Series[Any]",
    pairs: Mapping[str, str],
    weights: np.ndarray,
    alpha: float,
    *,
    fixed: bool = False,
) -> tuple[Fit, list[Concern]]:
    """Return the fit by which comparisons are judged where several hosts ran the blocks, and what it tells of.

    Blocks nest in hosts, and the claim is about hosts such as these: each host's mean is one observation, so the error is
    how levels differ from host to host, with hosts - 1 degrees of freedom. Only where that is no more than how they
    differ from block to block (F over all, p over .5, and no single comparison below ``_DOUBTED``) are the blocks judged
    as if of one host. ``fixed``: the claim is about these hosts alone, and the noise is that inside them.
    """
    count = hosts.nunique()
    if count == 1:
        return fit_blocks(logs), []
    p, single, means = _host_by_level(_changes(logs, pairs, weights), hosts)
    differ = []
    for name in map(str, p.index[p <= alpha]):
        each = means[name].dropna().sort_values()
        listed = ", ".join(f"{percent(change):+.1f} % on {host}" for host, change in each.items())
        differ.append(Concern(HOST_BY_LEVEL, f"{listed} (p = {p[name]:.2g})", level=name))
    if differ:
        tested = "effects differ between them"
    elif p.notna().any():
        tested = f"no effect is seen to differ between them (p = {p.min():.2g})"
    else:
        tested = "whether effects differ between them cannot be seen"
    whole = fit_blocks(logs)
    if fixed and len(logs) - count >= 1:
        fit, claim = fit_blocks(logs, hosts), "these hosts only, as asked"
    elif _negligible(whole, hosts) and not (single < _DOUBTED).any():
        fit, claim = whole, "hosts such as these"
    else:
        fit, claim = (
            fit_blocks(_means(logs, whole, hosts)),
            "hosts such as these, of which each is one observation",
        )
    if count == 2 and not fixed:
        claim += "; two hosts can hardly speak for others"
    message = f"{count} hosts ran the blocks: the verdicts are about {claim}; {tested}"
    return fit, [Concern("hosts", message), *differ]


def _negligible(fit: Fit, groups: "pd.Series[Any]") -> bool:
    """Whether levels differ between groups of blocks no more than between blocks (F on the residual, p over :data:`POOLED_FROM`)."""
    spread = pd.DataFrame(fit.residual).groupby(groups.to_numpy())
    between = float((spread.mean() ** 2 * spread.count()).to_numpy().sum())
    inside = float(np.nansum(fit.residual**2)) - between
    df = (groups.nunique() - 1) * (fit.residual.shape[1] - 1)
    left = fit.df - df
    return left > 0 and inside > 0 and fdtrc(df, left, (between / df) / (inside / left)) > POOLED_FROM


def _host_by_level(
    changes: pd.DataFrame, hosts: "pd.Series[Any]"
) -> tuple["pd.Series[float]", "pd.Series[float]", pd.DataFrame]:
    """Return of each comparison the p (F) that it is the same on all hosts, adjusted by Holm and as it is, and its mean on each (hosts, c)."""
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
    """Return each group's means of what blocks' logs are beside the blocks themselves: a row for each group, sorted."""
    without_blocks = logs.sub((logs - fit.effects).mean(axis=1), axis=0)
    means: pd.DataFrame = without_blocks.groupby(groups.to_numpy()).mean()
    return means


def percent(log_ratio: Any) -> Any:
    """Return log-ratios (an array, a series or a frame) as percentage changes."""
    with np.errstate(over="ignore"):  # an interval may well end at infinity
        return 100.0 * np.expm1(log_ratio)


def _arms(baseline: str, controls: Sequence[str], margin: float, alpha: float) -> tuple[str, ...]:
    """Return the baseline and its controls as text, or raise InputError for what makes no sense."""
    twins = [controls] if isinstance(controls, str) else list(controls)
    arms = tuple(str(name) for name in [baseline, *twins])
    if len(set(arms)) < len(arms):
        raise InputError("the baseline and each control must be levels of their own, each named once")
    if not 0 < margin < 1:
        raise InputError(f"margin is a fraction between 0 and 1 (0.03 is 3 %), not {margin!r}")
    if not 1e-6 <= alpha < 0.5:
        raise InputError(f"alpha is an error rate from 0.000001 to 0.5 (0.05 is 5 %), not {alpha!r}")
    return arms


def _contrasts(
    levels: Sequence[str], arms: tuple[str, ...], against: Mapping[str, str]
) -> tuple[dict[str, str], np.ndarray]:
    """Return what each level is compared with, in their order, and the contrasts (c, levels); a level that is only compared with has none."""
    if unknown := {*against, *against.values()} - set(levels):
        raise InputError(f"unknown level {min(unknown)!r}; the levels are: {', '.join(levels)}")
    for name, other in against.items():
        if name in arms or name == other:
            raise InputError(f"level {name!r} cannot be compared with {other!r}")
    only_references = set(against.values()) - set(against)
    pairs = dict.fromkeys(arms[1:], arms[0]) | {
        name: against.get(name, arms[0])
        for name in levels
        if name not in arms and name not in only_references
    }
    places = {levels.index(name): levels.index(other) for name, other in pairs.items()}
    return pairs, arm_weights(len(levels), len(arms), places)


# --- reasons for doubt ----------------------------------------------------------------


def _incomplete(data: Trials) -> list[Concern]:
    blocks, total, counts = len(data.values), data.values.size, data.values.count()
    concerns = []
    if blocks < LEAST_BLOCKS:
        concerns.append(Concern("few_blocks", str(blocks)))
    if absent := total - counts.sum():
        concerns.append(Concern("incomplete_blocks", f"{absent} of {total}"))
    for name, count in counts.items() if blocks >= LEAST_BLOCKS else ():
        if count < LEAST_BLOCKS:
            concerns.append(Concern("few_trials", str(count), level=str(name)))
    return concerns


def _control_concerns(twins: pd.DataFrame, blocks: int, alpha: float) -> list[Concern]:
    if twins.empty:
        return [Concern("no_control")]
    concerns = []
    for name, row in twins[twins["p_adjusted"] <= alpha].iterrows() if blocks >= LEAST_BLOCKS else ():
        change = f"{percent(row['estimate']):+.1f} % (p = {row['p_adjusted']:.2g})"
        grave = bool(row["p_adjusted"] <= GRAVE * alpha)
        concerns.append(Concern("control_differs", change, grave=grave, level=str(name)))
    return concerns


# --- frames -------------------------------------------------------------------------


def _levels(values: pd.DataFrame) -> pd.DataFrame:
    """Return ``n, mean, sd, cv`` by level, in the metric's unit and in percent."""
    n, mean, sd = values.count(), values.mean(), values.std()
    return pd.DataFrame({"n": n, "mean": mean, "sd": sd, "cv": 100 * sd / mean})


def _changes(logs: pd.DataFrame, pairs: Mapping[str, str], weights: np.ndarray) -> pd.DataFrame:
    """Return each level's log-ratio to its reference inside its block (see ``Analysis.differences``).

    The baseline's arms that the block holds stand together for the baseline, except for a control.
    """
    changes, _ = in_blocks(logs.to_numpy(), weights)
    return pd.DataFrame(changes, logs.index, list(pairs))
