"""Files of trials as people have them: read to the same numbers, and said; or refused with what to do."""

import math
import re
from contextlib import suppress

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchlib.errors import InputError
from benchlib.stats.trials_file import read_trials_file

PLAIN = "block,level,tps\n1,a,1000.5\n1,b,1100\n2,a,990\n2,b,\n"


def read(text: str | bytes, metric: str = "tps") -> tuple[pd.DataFrame, list[str]]:
    return read_trials_file(text if isinstance(text, bytes) else text.encode(), "t.csv", metric)


def figures(frame: pd.DataFrame, metric: str = "tps") -> list[float]:
    return pd.to_numeric(frame[metric]).tolist()


@given(
    values=st.lists(st.floats(0.001, 1e9) | st.none(), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;\t"),
    comma=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    blanks=st.booleans(),
    capitals=st.booleans(),
)
def test_a_file_is_read_to_its_numbers_however_it_is_written_or_refused(
    values: list[float | None], delimiter: str, comma: bool, encoding: str, blanks: bool, capitals: bool
) -> None:
    cells = ["" if value is None else f"{value:.4f}" for value in values]
    if comma:
        cells = [
            f'"{cell.replace(".", ",")}"' if delimiter == "," else cell.replace(".", ",") for cell in cells
        ]
    gap = " " if blanks and not (comma and delimiter == ",") else ""
    rows = [["Block", "LEVEL", "Tps"] if capitals else ["block", "level", "tps"]]
    rows += [[str(n), f"Ä {n}", cell] for n, cell in enumerate(cells)]
    text = "\r\n".join(f"{gap}{delimiter}{gap}".join(row) for row in rows) + "\r\n\r\n"
    frame, remarks = read(text.encode(encoding))
    assert list(frame.columns) == ["block", "level", "tps"]
    expected = [math.nan if value is None else float(f"{value:.4f}") for value in values]
    assert figures(frame) == pytest.approx(expected, nan_ok=True)
    assert frame["level"].tolist() == [f"Ä {n}" for n in range(len(values))]
    assert frame["block"].tolist() == list(range(len(values)))
    assert any("semicolons" in remark for remark in remarks) is (delimiter == ";")
    assert any("blanks" in remark for remark in remarks) is bool(gap)
    assert any("taken for 'tps'" in remark for remark in remarks) is capitals
    assert any("decimal" in remark for remark in remarks) is (
        comma and any(value is not None for value in values)
    )


def test_what_is_plain_is_read_without_a_word() -> None:
    frame, remarks = read(PLAIN)
    assert remarks == []
    assert figures(frame) == pytest.approx([1000.5, 1100, 990, math.nan], nan_ok=True)
    assert figures(read(PLAIN.replace("990", "n/a"))[0])[2:] == pytest.approx([math.nan] * 2, nan_ok=True)
    assert read("block,level,tps\nMay,a,5\n2,a,6\n")[0]["block"].tolist() == ["May", "2"]


def test_decimal_commas_after_a_zero_are_no_thousands_and_points_in_all_figures_are_decimal() -> None:
    assert figures(read("block;level;tps\n1;a;0,859\n1;b;0,911\n")[0]) == [0.859, 0.911]
    assert figures(read("block;level;tps\n1;a;1.859\n1;b;1.911\n")[0]) == [1.859, 1.911]


def test_labels_of_blocks_stay_apart_and_no_error_is_none() -> None:
    frame, _ = read("block,level,tps,error\n1.1,a,5,none\n1.10,a,6,-\n1.2,a,7,crashed\n1.3,a,8,0.0\n")
    assert frame["block"].tolist() == ["1.1", "1.10", "1.2", "1.3"]
    assert frame["error"].fillna("").tolist() == ["", "", "crashed", ""]


def test_utf_16_is_said() -> None:
    assert read(PLAIN.encode("utf-16"))[1] == ["the file is in UTF-16"]


def test_a_column_is_taken_for_another_only_where_one_alone_is_alike() -> None:
    frame, remarks = read("block,level,p99 (MS),tps\n1,a,5,9\n", "p99 (ms)")
    assert figures(frame, "p99 (ms)") == [5]
    assert remarks == ["the column 'p99 (MS)' is taken for 'p99 (ms)'"]
    assert list(read("block,level,TPS,Tps\n1,a,5,9\n")[0].columns) == ["block", "level", "TPS", "Tps"]
    assert list(read("block,level,TPS,tps\n1,a,5,9\n")[0].columns) == ["block", "level", "TPS", "tps"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv is empty"),
        ("\ufeff \n;;\n", "t.csv is empty"),
        ("block,level,tps\n1,a,1,5\n", "row 1 has 4 cells, its header 3: with decimal commas"),
        ("block,level,tps\n1,a\n", "row 1 has 2 cells"),
        ("block;level;tps\n1;a;1,234\n", "is '1,234' with thousands"),
        ("block;level;tps\n1;a;1.234,5\n", "is '1.234,5' with thousands"),
        ('block,level,tps\n1,a,"1,234,567"\n', "with thousands"),
        ("block;level;tps\n1;a;987\n1;b;1.034\n", "is '1.034' with thousands"),
        ('block,level,tps,note\n1,a,100,"cold\n1,b,110,\n', "t.csv is not a CSV file"),
        (PLAIN.encode("latin-1").replace(b"a,", b"\xe4,"), "neither UTF-8 nor UTF-16: save it as UTF-8"),
        (PLAIN.encode("utf-16-le"), "neither UTF-8 nor UTF-16"),
    ],
)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("'", ".")) as caught:
        read(text)
    assert "t.csv" in str(caught.value)


@given(st.binary(max_size=200) | st.text(alphabet='blockevtps,;\t"\n1.0 -', max_size=80).map(str.encode))
def test_no_file_does_worse_than_being_refused(data: bytes) -> None:
    with suppress(InputError):
        read(data)


ROWS = "block,level,tps\n1,a,100\n1,b,110\n2,a,101\n2,b,111\n"


@pytest.mark.parametrize(
    "word",
    ["average", "Mean", "AVG", "median", "stddev", "среднее", "Итого", "total", "Durchschnitt", "(avg)"],
)
def test_a_row_that_is_a_summary_of_others_is_refused_by_name(word):
    with pytest.raises(InputError, match=re.escape(word)):
        read_trials_file(f"{ROWS}{word},a,100.5\n".encode(), "t.csv", "tps")


def test_a_level_may_be_called_best_and_a_block_that_is_no_number_is_told():
    frame, remarks = read_trials_file(ROWS.replace(",a,", ",best,").encode() + b"x,best,7\n", "t.csv", "tps")
    assert len(frame) == 5
    assert remarks == ["block 'x' is no number, where all others are"]


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("block;level;tps\n1;a;3 976,44\n1;b;999,5\n", ["3976.44", "999.5"]),
        ("block;level;tps\n1;a;3\u202f976.44\n1;b;12\u00a0345\n", ["3976.44", "12345"]),
        ("sep=;\nblock;level;tps\n1;a;3\n1;b;4\n", ["3", "4"]),
        ("block,level,tps\n1,a,3,\n1,b,4,\n", ["3", "4"]),
    ],
)
def test_what_tools_and_continents_write_is_read_and_said(text, figures):
    frame, remarks = read_trials_file(text.encode(), "t.csv", "tps")
    assert frame["tps"].to_list() == figures
    assert remarks


def test_a_column_error_that_holds_margins_is_refused_by_name():
    text = "block,level,tps,error\n1,a,100,±1.5\n1,b,110,2.0\n"
    with pytest.raises(InputError, match="column 'error' marks trials that failed"):
        read_trials_file(text.encode(), "t.csv", "tps")
    frame, _ = read_trials_file(text.replace("±1.5", "timed out").replace("2.0", "").encode(), "t.csv", "tps")
    assert frame["error"].notna().sum() == 1
