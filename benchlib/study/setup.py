"""The setup of a study in words."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from benchlib.plan.model import Study
from benchlib.plan.settings import quantity, shown
from benchlib.plan.words import scrubbed, size_words
from benchlib.study.experiment import Experiment
from benchlib.study.limits import disk_limits
from benchlib.study.records import Parameters

_FEW_WORKLOADS = 2
_DEFAULT = "PostgreSQL's default"
PARAMETERS = ["level", "parameter", "value", "default", "chosen"]


def setup(experiment: Experiment) -> pd.DataFrame:
    """Return the summary: ``what, value``."""
    provenance, plan, trials = experiment.study.provenance, experiment.plan, experiment.trials
    good = trials[trials["error"].isna()]
    hosts = [*(provenance.get("hosts") or {"": provenance.get("host", {})}).values()]
    levels = [plan.level(name) for name in plan.factor.levels]
    external = all(level.target for level in levels)
    workloads = {plan.level_workload(name).label: "" for name in plan.factor.levels}
    loads = [plan.level_load(name) for name in plan.factor.levels]
    load = ", ".join(workloads) if len(workloads) <= _FEW_WORKLOADS else f"{len(workloads)} workloads"
    sizes = good.groupby("level")["data_bytes"].median().dropna().astype(int)
    planned = len(trials) if experiment.settled() else len(experiment.study.trials)
    durations = _span([load.duration_s for load in loads])
    versions = sorted({*good["server_version"].dropna()})
    rows = {
        "server": f"PostgreSQL {', '.join(versions)}" if versions else "",
        "load": f"{load}, {_span([load.clients for load in loads])} clients",
        "trials": f"{len(good)} of {planned}, {durations} s each, {good['block'].nunique()} blocks",
        "machine": _joined(map(_machine, hosts)) + " (load tool)" * external,
        "disk": "" if external else _joined(map(_file_system, hosts)),
        "disk limits": _joined(map(disk_limits, levels)),
        "data": _joined(map(size_words, (sizes.min(), sizes.max())), " to ") if len(sizes) else "",
        "measured": str(provenance.get("created", ""))[:10],
    }
    frame = _in_words(rows.items())
    frame.attrs = {"kind": "setup"}
    return frame


def provenance(study: Study) -> pd.DataFrame:
    """Return machine, servers, builds, seeds and versions: ``what, value``."""
    known = {name: value for name, value in study.provenance.items() if name != "builds_differ"}
    servers = [("server", _joined(map(str, server.values()))) for server in known.pop("servers", [])]
    (facts,) = pd.json_normalize(known, sep=", ").to_dict("records") or [{}]
    rows = [(str(name).replace("_", " "), str(value)) for name, value in facts.items()]
    rows += [("seed", str(study.plan.seed)), ("notes", study.notes)]
    return _in_words((what, scrubbed(value)) for what, value in servers + rows)


def parameter_rows(record: Parameters) -> list[dict[str, Any]]:
    """Return a trial's parameters: ``parameter, value, default, chosen``."""
    return [
        {
            "parameter": name, "value": _with_unit(row, "setting"), "default": _with_unit(row, "boot_val"),
            "chosen": row["source"] != "default" and row["setting"] != row["boot_val"],
        }
        for name, row in dict(record).items()
    ]  # fmt: skip


def parameters(known: pd.DataFrame) -> pd.DataFrame:
    """Return parameters that differ between levels (columns) or from the default."""
    levels = known["level"].unique()
    frame = known.pivot(index="parameter", columns="level", values="value")[levels].rename_axis(columns=None)
    by_name = known.groupby("parameter")
    shown = (frame.nunique(axis=1, dropna=False) > 1) | by_name["chosen"].any()
    return frame.assign(**{_DEFAULT: by_name["default"].last()})[shown].reset_index()


def _in_words(rows: Iterable[tuple[str, str]]) -> pd.DataFrame:
    return pd.DataFrame([row for row in rows if row[1]], columns=["what", "value"])


def _joined(texts: Iterable[str], separator: str = "; ") -> str:
    return separator.join(dict.fromkeys(filter(None, texts)))


def _span(values: list[Any]) -> str:
    return _joined((f"{value:,}" for value in (min(values), max(values))), " to ")


def _machine(facts: Mapping[str, Any]) -> str:
    cores, memory = facts.get("processors"), facts.get("memory_mib")
    parts = [f"{cores} cores" if cores else "", f"{memory / 1024:.0f} GiB" if memory else ""]
    return _joined(parts, ", ") or "not known"


def _file_system(facts: Mapping[str, Any]) -> str:
    kind = facts.get("file_system")
    return str(kind.get("type") or "") if isinstance(kind, dict) else ""


def _with_unit(row: Mapping[str, Any], column: str) -> str:
    value, unit = row[column], row["unit"]
    if value is None:
        return "not shown"
    if not unit or value.startswith("-"):
        return value or "empty"
    read = quantity(shown(value, unit))
    return size_words(int(read[0])) if read and read[1] == "B" else f"{value} {unit}"
