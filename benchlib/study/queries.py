"""The queries of a study."""

from collections.abc import Callable

import pandas as pd

from benchlib.study.experiment import Experiment
from benchlib.study.plans import outline
from benchlib.study.records import QueryPlans

_OF_TRIALS = ["level", "block", "period", "host", "part", "doubt"]
_COLUMNS = [
    "level", "block", "query", "transactions", "latency_average_ms", "latency_p95_ms", "share_percent", "plan",
    *_OF_TRIALS[2:],
]  # fmt: skip


def queries(experiment: Experiment, trials_of: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Return a row per good trial and script, if scripts are several or use real data.

    - ``query``: the script's title or number
    - ``latency_p95_ms``: null without a transaction log
    - ``share_percent``: of the time of all transactions
    - ``plan``: node names of its statements, from block 1
    - ``period, host, part, doubt``: as in the trials
    """
    plan, scripts = experiment.plan, experiment.measured.scripts
    works = {level: plan.level_workload(level) for level in plan.factor.levels}
    names = {
        (level, number): query
        for level, work in works.items()
        if work.by_query or len(work.scripts) > 1
        for number, query in enumerate(work.queries, 1)
    }
    if not names:
        return pd.DataFrame(columns=_COLUMNS)
    trials, keys = trials_of(), list(zip(scripts["level"], scripts["script"], strict=True))
    rows = scripts.assign(query=pd.Series([names.get(key) for key in keys], dtype=object))
    rows = rows.dropna(subset="query")
    time = (rows["transactions"] * rows["latency_average_ms"]).mask(rows["transactions"].eq(0), 0.0)
    total = time.groupby([rows["level"], rows["block"]]).transform(lambda of: of.sum(skipna=False))
    plans = _plans(experiment, trials)
    found = [plans.get(key) for key in zip(rows["level"], rows["query"], strict=True)]
    rows = rows.assign(share_percent=100 * time / total, plan=pd.Series(found, rows.index, dtype=object))
    merged = rows.merge(trials[_OF_TRIALS], on=["level", "block"])
    return experiment.ordered(merged)[_COLUMNS].reset_index(drop=True)


def _plans(experiment: Experiment, trials: pd.DataFrame) -> dict[tuple[str, str], str]:
    first = trials[trials["block"].eq(1) & trials["error"].isna()]
    found = dict[tuple[str, str], str]()
    for level, name in zip(first["level"], first["trial"], strict=True):
        if record := QueryPlans.read(experiment.folder, name):
            for row in record.queries:
                if row.statements:
                    texts = (outline(one["plan"]["Plan"]) for one in row.statements)
                    found[level, row.query] = "\n".join(texts)
    return found
