"""Users' trial files as frames."""

import codecs
import csv
import re

import pandas as pd

from benchlib.errors import InputError
from benchlib.plan.words import decoded

_COLUMNS = ("block", "level", "period", "host", "error")
_NOTHING = ("-", "na", "n/a", "nan", "null", "none")
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}([.,]\d{3})+")
_SPACED = re.compile(r"-?[1-9]\d{0,2}([ \u00a0\u202f]\d{3})+([.,]\d+)?")
_SEPARATOR = re.compile(r"(?i)sep=[,;\t|]?")
_AVERAGE = (
    r"average|averages|avg|ø|⌀|med|x̄|gesamtmittel|overall|summary|média|gemiddelde|średnia|ortalama|медиана|평균|중앙값|mean|means|median|stddev|stdev|std|std ?dev|geomean|gmean|mittelwert|mittel|durchschnitt|moyenne|"
    r"médiane|media|mediana|promedio|среднее|в среднем|среднее значение|медиана|平均|平均値|平均值"
)
_TOTAL = (
    r"total|totals|sum|summe|σ|sd|std\. ?dev|cv|cv ?%|range|variance|var|min|minimum|max|maximum|best|worst|count|percentile|p\d\d+|gesamt|итого|всего|сумма|"
    r"合計|合计"
)
_AVERAGES, _SUMMARIES = (
    re.compile(
        rf"(the )?(overall |grand |arithmetic |geometric |geo ?)?({words})( (tps|value|latency|all|of .*|results?|runs?))?"
    )
    for words in (_AVERAGE, f"{_AVERAGE}|{_TOTAL}")
)
"""Names of rows with averages, and of rows with spreads or totals."""
_ROUNDED = 1e-4
"""Tolerance for rounded averages."""
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def _refuse_summaries(frame: pd.DataFrame, name: str) -> None:
    rows = []
    # levels may be called "best" or "max"
    for column, known in (("block", _SUMMARIES), ("level", _AVERAGES)):
        if column in frame and isinstance(frame[column], pd.Series):
            # 'Average (5 runs):' becomes 'average'
            cells = frame[column].dropna().str.casefold().str.replace(r"(?<=\S)\s*\(.*\)", "", regex=True)
            cells = cells.str.strip(" .:()*_")
            rows += [*frame[column].dropna()[cells.str.fullmatch(known)]]
    if rows:
        listed = ", ".join(f"'{row}'" for row in dict.fromkeys(rows))
        raise InputError(
            f"{name}: {len(rows)} row{'s' * (len(rows) > 1)} {listed}: a summary is not a trial; remove such rows"
        )


def _sum_up(odd: pd.DataFrame, others: pd.DataFrame, metric: str) -> bool:
    """Return whether rows average the others."""
    if not all(isinstance(odd.get(column), pd.Series) for column in ("level", metric)):
        return False
    figures = pd.to_numeric(others[metric], errors="coerce").groupby(others["level"])
    value = pd.to_numeric(odd[metric], errors="coerce")
    near = [
        (value - odd["level"].map(centre)).abs() <= _ROUNDED * value.abs()
        for centre in (figures.mean(), figures.median())
    ]
    return bool((near[0] | near[1]).all()) and bool(figures.size().min() > 1)


def read_trials_file(data: bytes, name: str, metric: str) -> tuple[pd.DataFrame, list[str]]:
    """Return a CSV file's trials as text, and remarks about unusual forms.

    Raises:
        InputError: the file is empty or malformed, or a number is ambiguous.
    """
    lines = [line for line in decoded(data).splitlines() if line.strip(" ,;\t\0")]
    remarks = list[str]()
    if lines and (separator := _SEPARATOR.fullmatch(lines[0].strip())):  # written by Excel
        remarks.append(f"the first line, '{separator[0]}', names the separator")
        lines = lines[1:]
    if not lines:
        raise InputError(f"{name} is empty")
    if any("�" in line or "\0" in line for line in lines):
        raise InputError(f"{name} is neither UTF-8 nor UTF-16: save it as UTF-8")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    remarks += [] if delimiter == "," else [f"columns are between {_DELIMITERS[delimiter]}"]
    try:
        raw = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as reason:
        raise InputError(f"{name} is not a CSV file: {reason}") from None
    header, *rows = ([cell.strip() for cell in row] for row in raw)
    if [header, *rows] != raw:
        remarks.append("blanks around names and values are removed")
    if any(len(row) == len(header) + 1 and not row[-1] for row in rows):
        rows = [row[:-1] if len(row) == len(header) + 1 and not row[-1] else row for row in rows]
        remarks.append("an empty cell at the rows' ends is removed")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            hint = "with decimal commas, separate columns by semicolons"
            raise InputError(f"{name}, row {number} has {len(row)} cells, its header {len(header)}: {hint}")
    for wanted in (metric, *_COLUMNS):
        similar = [place for place, column in enumerate(header) if column.casefold() == wanted.casefold()]
        if wanted not in header and len(similar) == 1:
            remarks.append(f"the column '{header[similar[0]]}' is read as '{wanted}'")
            header[similar[0]] = wanted
    frame = pd.DataFrame(rows, columns=header, dtype=object)
    frame = frame.mask(frame == "")
    _refuse_summaries(frame, name)
    if header.count("error") == 1:
        frame["error"] = frame["error"].mask(
            frame["error"].str.casefold().isin((*_NOTHING, "0", "0.0", "false", "no"))
        )
        marks = frame["error"].dropna()
        if len(marks) and marks.str.fullmatch(r"[±+-]?\d+([.,]\d+)? ?%?").all():
            raise InputError(
                f"{name}: the column 'error' must mark failed trials, but holds numbers ('{marks.iloc[0]}'); "
                "rename a column of margins, for example to 'plus_minus'"
            )
    if header.count(metric) == 1:
        cells = frame[metric].mask(frame[metric].str.casefold().isin(_NOTHING))
        spaced = cells.str.fullmatch(_SPACED).eq(True)
        if spaced.any():
            remarks.append(f"blanks in numbers separate thousands ('{cells[spaced].iloc[0]}')")
            cells = cells.mask(spaced, cells.str.replace(r"[\s\u00a0\u202f]", "", regex=True))
        commas = [cell for cell in cells.dropna() if "," in cell]
        # 1,234 is ambiguous; with 1.5 elsewhere, commas are not decimal
        points = [cell for cell in cells.dropna() if "." in cell]
        doubtful = commas if points or all(map(_THOUSANDS.fullmatch, commas)) else []
        # points may separate thousands where semicolons separate columns
        if delimiter != "," and len(points) < cells.count() and all(map(_THOUSANDS.fullmatch, points)):
            doubtful = [*doubtful, *points]
        if doubtful:
            raise InputError(
                f"{name}: '{doubtful[0]}' is ambiguous; write 1234.5, without thousands separators"
            )
        remarks += ["commas in numbers are decimal"] if commas else []
        frame[metric] = cells.str.replace(",", ".")
    if header.count("block") == 1:
        numbers = frame["block"].dropna().str.fullmatch(r"-?\d{1,18}")
        if 0 < (~numbers).sum() < numbers.sum():
            odd = frame.loc[numbers.index[~numbers]]
            listed = ", ".join(map(repr, odd["block"].unique()[:3]))
            if _sum_up(odd, frame.loc[numbers.index[numbers]], metric):
                raise InputError(f"{name}: block {listed} is the average of the others; remove such rows")
            remarks.append(f"block {listed} is not a number, but all others are")
    for column in ("block", "period"):
        # 1.1 and 1.10 are different labels
        if header.count(column) == 1 and frame[column].str.fullmatch(r"-?\d{1,18}").eq(True).all():
            frame[column] = pd.to_numeric(frame[column])
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        remarks.append("the file is in UTF-16")
    return frame, remarks
