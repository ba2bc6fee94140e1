"""A file of anybody's trials as a frame: what is clear is read, and said where it is unusual; the rest is refused. Pure."""

import codecs
import csv
import re

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.words import decoded

_COLUMNS = ("block", "level", "period", "host", "error")
_NOTHING = ("-", "na", "n/a", "nan", "null", "none")
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}([.,]\d{3})+")
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_trials_file(data: bytes, name: str, metric: str) -> tuple[pd.DataFrame, list[str]]:
    """The trials in a file with a header line, as texts and absent cells; and in words what was unusual to read.

    Raises:
        InputError: it is empty, has lines of other lengths than its header, or figures that can be read in two ways.

    """
    lines = [line for line in decoded(data).splitlines() if line.strip(" ,;\t\0")]
    if not lines:
        raise InputError(f"{name} is empty")
    if any("�" in line or "\0" in line for line in lines):
        raise InputError(f"{name} is neither UTF-8 nor UTF-16: save it as UTF-8")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    remarks = [] if delimiter == "," else [f"columns are between {_DELIMITERS[delimiter]}"]
    try:
        raw = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as reason:
        raise InputError(f"{name} is not a CSV file: {reason}") from None
    header, *rows = ([cell.strip() for cell in row] for row in raw)
    if [header, *rows] != raw:
        remarks.append("blanks around names and values are left out")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            hint = "with decimal commas, columns are to be between semicolons"
            raise InputError(f"{name}, row {number} has {len(row)} cells, its header {len(header)}: {hint}")
    for wanted in (metric, *_COLUMNS):
        alike = [at for at, column in enumerate(header) if column.casefold() == wanted.casefold()]
        if wanted not in header and len(alike) == 1:
            remarks.append(f"the column '{header[alike[0]]}' is taken for '{wanted}'")
            header[alike[0]] = wanted
    frame = pd.DataFrame(rows, columns=header, dtype=object)
    frame = frame.mask(frame == "")
    if header.count("error") == 1:
        frame["error"] = frame["error"].mask(
            frame["error"].str.casefold().isin((*_NOTHING, "0", "0.0", "false", "no"))
        )
    if header.count(metric) == 1:
        cells = frame[metric].mask(frame[metric].str.casefold().isin(_NOTHING))
        commas = [cell for cell in cells.dropna() if "," in cell]
        # 1,234 may be either; and who writes 1.5 has no decimal commas
        points = [cell for cell in cells.dropna() if "." in cell]
        doubtful = commas if points or all(map(_THOUSANDS.fullmatch, commas)) else []
        # who has points for thousands has semicolons between columns, and smaller figures without any
        if delimiter != "," and len(points) < cells.count() and all(map(_THOUSANDS.fullmatch, points)):
            doubtful = [*doubtful, *points]
        if doubtful:
            raise InputError(f"{name}: is '{doubtful[0]}' with thousands? Write 1234.5, without them")
        remarks += ["commas in figures are decimal"] if commas else []
        frame[metric] = cells.str.replace(",", ".")
    for column in ("block", "period"):
        # 1.1 and 1.10 are two labels
        if header.count(column) == 1 and frame[column].str.fullmatch(r"-?\d{1,18}").eq(True).all():
            frame[column] = pd.to_numeric(frame[column])
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        remarks.append("the file is in UTF-16")
    return frame, remarks
