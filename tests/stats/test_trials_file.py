"""Files of trials as people have them: read to the same numbers, and said; or refused with what to do."""

import re
from contextlib import suppress

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.stats.trials_file import read_trials_file

PLAIN = "block,level,tps\n1,a,1000.5\n1,b,1100\n2,a,990\n2,b,\n"


def read(text, metric="tps"):
    return read_trials_file(text if isinstance(text, bytes) else text.encode(), "t.csv", metric)


@given(
    st.lists(st.floats(0.001, 1e9) | st.none(), min_size=1, max_size=8),
    st.sampled_from([(",", "."), (";", "."), ("\t", "."), (";", ","), ("\t", ",")]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from(["", " "]),
    st.sampled_from(["block level tps", "Block LEVEL Tps"]),
)
def test_a_file_is_read_to_its_numbers_however_it_is_written(values, signs, encoding, gap, header):
    delimiter, point = signs
    cells = ["" if value is None else f"{value:.4f}" for value in values]
    rows = [header.split(), *([str(n), f"Ä {n}", cell.replace(".", point)] for n, cell in enumerate(cells))]
    text = "\r\n".join(f"{gap}{delimiter}{gap}".join(row) for row in rows) + "\r\n\r\n"
    frame, remarks = read(text.encode(encoding))
    assert list(frame.columns) == ["block", "level", "tps"]
    expected = [float(cell or "nan") for cell in cells]
    assert pd.to_numeric(frame["tps"]).tolist() == pytest.approx(expected, nan_ok=True)
    assert frame["level"].tolist() == [f"Ä {n}" for n in range(len(values))]
    assert frame["block"].tolist() == list(range(len(values)))
    said = {
        "semicolons": delimiter == ";",
        "blanks": bool(gap),
        "read as 'tps'": "Tps" in header,
        "decimal": point == "," and any(cells),
        "UTF-16": encoding == "utf-16",
    }
    assert {word: any(word in remark for remark in remarks) for word in said} == said


HEAD, FAILED = "block,level,tps\n", "block,level,tps,error\n"


@pytest.mark.parametrize(
    ("text", "column", "values", "remarks"),
    [
        (PLAIN, "tps", [1000.5, 1100.0, 990.0, None], 0),
        (PLAIN.replace("990", "n/a"), "tps", [1000.5, 1100.0, None, None], 0),
        (HEAD + "May,a,5\n2,a,6\n", "block", ["May", "2"], 0),
        (HEAD + "1,a,5\n1,best,5\n2,a,5\nx,best,6\n", "level", ["a", "best", "a", "best"], 1),
        # decimal commas after a zero are no thousands, and points in all figures are decimal
        ("block;level;tps\n1;a;0,859\n1;b;0,911\n", "tps", [0.859, 0.911], 2),
        ("block;level;tps\n1;a;1.859\n1;b;1.911\n", "tps", [1.859, 1.911], 1),
        # what tools and continents write
        ("block;level;tps\n1;a;3 976,44\n1;b;999,5\n", "tps", [3976.44, 999.5], 3),
        ("block;level;tps\n1;a;3\u202f976.44\n1;b;12\u00a0345\n", "tps", [3976.44, 12345], 2),
        ("sep=;\nblock;level;tps\n1;a;3\n1;b;4\n", "tps", [3, 4], 2),
        (HEAD + "1,a,3,\n1,b,4,\n", "tps", [3, 4], 1),
        # labels of blocks stay apart, and no error is none
        (FAILED + "1.1,a,5,none\n1.10,a,6,-\n1.2,a,7,x\n", "block", ["1.1", "1.10", "1.2"], 0),
        (FAILED + "1,a,5,none\n2,a,6,-\n3,a,7,x\n4,a,8,0.0\n", "error", [None, None, "x", None], 0),
        # a column is taken for another only where one alone is alike
        ("block,level,p99 (MS),tps\n1,a,5,9\n", "p99 (ms)", [5], 1),
        ("block,level,TPS,Tps\n1,a,5,9\n", "TPS", [5], 0),
        ("block,level,TPS,tps\n1,a,5,9\n", "tps", [9], 0),
    ],
)
def test_what_is_read_and_what_is_said_of_it(text, column, values, remarks):
    frame, said = read(text, column if "p99" in column else "tps")
    found = frame[column] if column in ("block", "level", "error") else pd.to_numeric(frame[column])
    assert [None if pd.isna(value) else value for value in found] == values
    assert len(said) == remarks


SUMMARIES = (
    "average|Mean|AVG|median|stddev|среднее|Итого|total|Durchschnitt|(avg)|Ø|Average (3 runs)|std. dev.|평균"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((f"{HEAD}1,a,100\n2,b,110\n{word},a,100.5\n", word) for word in SUMMARIES.split("|")),
        (
            HEAD + "1,a,100\n2,a,102\n1,b,90\n2,b,91\nx̃,a,101\nx̃,b,90.5\n",
            "block 'x̃' is the average of the others",
        ),
        ("", "t.csv is empty"),
        ("\ufeff \n;;\n", "t.csv is empty"),
        (HEAD + "1,a,1,5\n", "row 1 has 4 cells, its header 3: with decimal commas"),
        (HEAD + "1,a\n", "row 1 has 2 cells"),
        ("block;level;tps\n1;a;1,234\n", "'1,234' is ambiguous"),
        ("block;level;tps\n1;a;1.234,5\n", "'1.234,5' is ambiguous"),
        (HEAD + '1,a,"1,234,567"\n', "is ambiguous"),
        ("block;level;tps\n1;a;987\n1;b;1.034\n", "'1.034' is ambiguous"),
        ('block,level,tps,note\n1,a,100,"cold\n1,b,110,\n', "t.csv is not a CSV file"),
        (PLAIN.encode("latin-1").replace(b"a,", b"\xe4,"), "neither UTF-8 nor UTF-16: save it as UTF-8"),
        (PLAIN.encode("utf-16-le"), "neither UTF-8 nor UTF-16"),
        ("block,level,tps,error\n1,a,100,±1.5\n1,b,110,2.0\n", "column 'error' must mark failed trials"),
    ],
)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused(text, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(text)
    assert "t.csv" in str(caught.value)


@given(st.binary(max_size=200) | st.text(alphabet='blockevtps,;\t"\n1.0 -', max_size=80).map(str.encode))
def test_no_file_does_worse_than_being_refused(data):
    with suppress(InputError):
        read(data)
