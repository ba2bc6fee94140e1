"""The queries of a study."""

from collections.abc import Callable

import pandas as pd

from benchlib.study.experiment import Experiment
from benchlib.study.plans import outline
from benchlib.study.records import QueryPlans, Rows, rows_of

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
    works = {level: experiment.plan.level_workload(level) for level in experiment.plan.factor.levels}
    names = [
        (level, number, query)
        for level, work in works.items()
        if work.by_query or len(work.scripts) > 1
        for number, query in enumerate(work.queries, 1)
    ]
    if not names:
        return pd.DataFrame(columns=_COLUMNS)
    trials = trials_of()
    rows = experiment.measured.scripts.merge(pd.DataFrame(names, columns=["level", "script", "query"]))
    time = (rows["transactions"] * rows["latency_average_ms"]).mask(rows["transactions"].eq(0), 0.0)
    total = time.groupby([rows["level"], rows["block"]]).transform(lambda of: of.sum(skipna=False))
    first = trials[trials["block"].eq(1) & trials["error"].isna()]
    plans = rows_of(experiment.folder, first, QueryPlans, _plans, ["level", "query", "plan"])
    merged = rows.assign(share_percent=100 * time / total).merge(plans, how="left")
    merged = merged.merge(trials[_OF_TRIALS], on=["level", "block"])
    return experiment.ordered(merged)[_COLUMNS].reset_index(drop=True)


def _plans(record: QueryPlans) -> Rows:
    known = {of.query: of.statements for of in record.queries if of.statements}
    outlines = {query: [outline(one["plan"]["Plan"]) for one in rows] for query, rows in known.items()}
    return [{"query": query, "plan": "\n".join(texts)} for query, texts in outlines.items()]
