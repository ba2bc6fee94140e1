"""What differs between the levels of a study, as a table."""

import json
from collections.abc import Mapping

import pandas as pd

from benchlib.plan.model import Study
from benchlib.plan.words import unpublished
from benchlib.report.figures.tables import Quiet, Table, of_levels


def levels_table(study: Study) -> Table:
    """What differs between a study's levels, a column each, or a row where they are many; what they have in common is the note.

    What is as at the baseline is muted.
    """
    factor = study.plan.factor
    names, words = list(factor.levels), study.levels_in_words or _plain(study)
    rows: list[list[str]] = []
    alike = []
    for heading in words[factor.baseline]:
        cells = [words[name][heading] for name in names]
        if len(set(cells)) > 1:
            rows.append([heading, *cells])
        else:
            alike.append(f"{heading} = {cells[0]}")
    rows.append(["a crash may cost", *(_crash_cost(study, name) for name in names)])
    baseline = 1 + names.index(factor.baseline)
    rows = [[Quiet(cell) if cell == row[baseline] else cell for cell in row] for row in rows]
    note = f"The same at every level: {'; '.join(alike)}." if alike else ""
    # of objects, since a column of texts would make plain ones of the muted
    frame = pd.DataFrame(rows, columns=["what", *names], dtype=object)
    return of_levels(frame, "What differs between the levels", numbers=False, note=note)


def _crash_cost(study: Study, name: str) -> str:
    """What a crash may cost at a level; of a server that is not ours nobody here knows."""
    if name not in study.crash_costs:
        return "not kept"
    level = study.plan.level(name)
    nothing = "nothing on the primary" if level.replication else "nothing"
    return "; ".join(study.crash_costs[name]) or (
        nothing if level.target is None else "not known of that server"
    )


def _plain(study: Study) -> dict[str, dict[str, str]]:
    """The levels of a study that has no words for them: what each names, key by key as it is kept, without a path or a host."""
    plan = study.plan
    kept = {name: plan.level(name).model_dump(mode="json", exclude_none=True) for name in plan.factor.levels}
    keys = dict.fromkeys(key for level in kept.values() for key, value in level.items() if value)
    return {
        name: {key: _json(level.get(key), unpublished(plan)) for key in keys} for name, level in kept.items()
    }


def _json(value: object, aliases: Mapping[str, str]) -> str:
    text = json.dumps(value, ensure_ascii=False)
    for hidden, alias in aliases.items():
        text = text.replace(json.dumps(hidden, ensure_ascii=False), json.dumps(alias))
    return text if value else ""
