"""What the studies that the notebooks come from published: ``data/published/<notebook>.csv``, a row a figure.

A row that names a level ``against`` another is a comparison: its numbers are percentage changes
where the ``unit`` is %, and differences of the two otherwise. Any other row is a figure by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

import pandas as pd
from pydantic import BeforeValidator, TypeAdapter, ValidationError, model_validator

from benchlib.errors import InputError
from benchlib.plan.level import Model, NotEmpty
from benchlib.study.store import project_root

Number = Annotated[float | None, BeforeValidator(lambda text: None if text == "" else text)]


class Published(Model):
    """One published figure: a ``value``, a range from ``low`` to ``high``, or ``words`` where there is no number.

    ``metric`` is a column of a study's trials, or empty where trials have nothing like it; ``words`` are what
    is shown in place of the bare number; ``conditions`` are what it was measured under; ``note`` is ours.
    """

    figure: NotEmpty
    level: str
    against: str
    metric: str
    value: Number
    low: Number
    high: Number
    unit: str
    words: str
    source: NotEmpty
    conditions: NotEmpty
    note: str

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.words and self.value is None and self.low is None and self.high is None:
            raise ValueError("it has neither a number nor words")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("its range ends before it begins")
        if self.against and self.level in ("", self.against):
            raise ValueError("it compares no level, or one with itself")
        return self


def published_for(notebook: str, folder: Path | None = None) -> pd.DataFrame:
    """The published figures of a notebook's factor, with the columns of :class:`Published`; no row where there are none.

    Raises:
        InputError: the file is damaged; with the line.

    """
    paths = {path.stem: path for path in (folder or project_root() / "data" / "published").glob("*.csv")}
    columns = list(Published.model_fields)
    rows = _rows(paths[notebook]) if notebook in paths else []
    frame = pd.DataFrame([row.model_dump() for row in rows], columns=columns)
    return frame.astype(dict.fromkeys(("value", "low", "high"), float))


def matching(name: str, levels: Iterable[str]) -> list[str]:
    """The level of that name; if there is none, those whose parts between commas hold all of its parts.

    ``"run"`` stands for ``"run, server A"`` and ``"run, server B"``.
    """
    known, parts = list(levels), _parts(name)
    return [name] if name in known else [level for level in known if name and parts <= _parts(level)]


def _parts(name: str) -> set[str]:
    return {part.strip() for part in name.split(",")}


def _rows(path: Path) -> list[Published]:
    name = f"{path.parent.name}/{path.name}"
    try:
        cells = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
        return TypeAdapter(list[Published]).validate_python(cells)
    except ValidationError as reason:
        first = reason.errors()[0]
        row, *columns = first["loc"]
        column = f"column '{columns[0]}': " if columns else ""
        raise InputError(f"{name}, line {int(row) + 2} is damaged: {column}{first['msg']}") from None
    except (OSError, ValueError) as reason:
        raise InputError(f"{name} cannot be read: {reason}") from None
