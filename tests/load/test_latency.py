"""Latencies from the transaction log: exact, from any version's and option's log, whatever its end."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trim import thin_log

from benchlib.errors import InputError, ParseError, StudyError
from benchlib.load import parse
from benchlib.load.latency import QUANTILES, SCHEMA, Latency, keep_log, read_latency
from benchlib.load.parse import parse_file, parse_text, transaction_log
from benchlib.load.parse.transaction_log import WORDS

Files = Callable[..., list[Path]]
START = 1795178550
PLAIN = ["pgbench", "-l", "-T", "5", "bench"]
OPTIONS = {
    "plain": PLAIN,
    "rate": [*PLAIN, "-R", "900", "--latency-limit=1"],
    "retries": [*PLAIN, "--max-tries=3"],
    "rate and retries": [*PLAIN, "--rate=900", "--max-tries=3", "--failures-detailed"],
}
few = settings(derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few lines at a time, so that a small log too is read by several threads."""
    monkeypatch.setattr(transaction_log, "_BLOCK", 200)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes the log files of a run."""

    def write(*texts: str) -> list[Path]:
        paths = [tmp_path / f"log.4711{f'.{n}' if n else ''}" for n in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return paths

    return write


def kept(parts: Sequence[Path], argv: list[str]) -> Latency:
    """The figures from what is kept of a log, after a check that what is thinned of it gives the same."""
    target, thin = (parts[0].parent / f"{name}.parquet" for name in ("transactions", "thin"))
    keep_log(parts, target, argv)
    assert thin_log(target, thin)
    assert not thin_log(thin, target)
    whole, thinned = read_latency(target), read_latency(thin)
    assert whole == thinned
    return whole


Rows = list[list[str]]
Logs = tuple[list[str], list[Rows]]
FIGURE = st.integers(0, 10**6)
LATENCY = st.integers(20, 3000) | FIGURE | st.integers(0, 10**10) | st.sampled_from(WORDS)


@st.composite
def logs(draw: st.DrawFn) -> Logs:
    """The command line and the rows of each thread's log."""
    option = draw(st.sampled_from([*OPTIONS]))
    extra = [FIGURE] * {"plain": 0, "rate and retries": 2}.get(option, 1)
    row = st.tuples(LATENCY, st.integers(START, START + 9), st.integers(0, 999_999), *extra)
    threads = [
        [
            [*map(str, (client, n, latency, n % 2, *rest))]
            for n, (latency, *rest) in enumerate(draw(st.lists(row, max_size=40)))
        ]
        for client in range(draw(st.integers(1, 3)))
    ]
    return OPTIONS[option], threads


def text_of(rows: Rows) -> str:
    return "".join(f"{' '.join(row)}\n" for row in rows)


def quantiles(microseconds: Sequence[int]) -> dict[str, float | None]:
    values = [
        np.quantile(microseconds, share) / 1000 if microseconds else None for share in QUANTILES.values()
    ]
    return dict(zip(QUANTILES, map(pytest.approx, values), strict=True))


@few
@example(log=(PLAIN, [[], []]))
@given(log=logs())
def test_figures_are_those_that_numpy_computes_of_all_values(files: Files, log: Logs) -> None:
    argv, threads = log
    rows = [row for thread in threads for row in thread]
    done = [row for row in rows if row[2].isdecimal()]
    truth = quantiles([int(row[2]) for row in done])
    by_script = {n: [int(row[2]) for row in done if row[3] == str(n)] for n in (0, 1)}
    p95 = {n: quantiles(values)["p95"] for n, values in by_script.items() if values}
    assert kept(files(*map(text_of, threads)), argv) == Latency(truth, len(done), p95)
    if not rows:
        return
    report = parse_text(text_of(rows), kind="transaction_log", argv=argv)
    assert truth == {name: report["latency_ms"][name] for name in truth}
    assert report["skipped_transactions"] == sum(row[2] == "skipped" for row in rows)
    assert report["failed_transactions"] == len(rows) - len(done) - report["skipped_transactions"]
    for script in report["scripts"]:
        own = [int(row[2]) for row in done if int(row[3]) == script["script"]]
        assert (script["transactions"], script["latency_ms"]["max"]) == (len(own), max(own) / 1000)
    if "lag" in transaction_log.log_columns(argv):
        assert quantiles([int(row[6]) for row in done])["p99"] == report["lag_ms"]["p99"]
    ended = [int(row[4]) for row in rows]
    assert (report["first_epoch_s"], report["last_epoch_s"]) == (min(ended), max(ended))


@few
@given(log=logs(), data=st.data())
def test_a_file_cut_anywhere_loses_at_most_one_line(files: Files, log: Logs, data: st.DataObject) -> None:
    argv, threads = log
    texts = [text_of(rows) for rows in threads]
    texts[0] = texts[0][: data.draw(st.integers(0, len(texts[0])))]
    keep_log(parts := files(*texts), parts[0].parent / "kept", argv)
    table = pq.read_table(parts[0].parent / "kept")
    assert len(table) == sum(text.count("\n") for text in texts)


def test_a_large_log_is_read_without_reading_it_as_text(files: Files, monkeypatch) -> None:
    monkeypatch.setattr(parse, "_SAMPLE", 500)
    path = files(GOOD)[0]
    assert parse_file(path) == [parse_text(GOOD)]
    path.write_text(GOOD[: len(GOOD) // 2] + "0 5" + GOOD[len(GOOD) // 2 :] + "1 1")
    (damaged,) = parse_file(path)
    assert (damaged["complete"], damaged["torn_lines"]) == (False, 2)
    for text, words in ((GOOD * 2, "twice: several runs"), ("no log\n" * 1000, "no line of a known kind")):
        path.write_text(text)
        with pytest.raises(ParseError, match=words):
            parse_file(path)
    path.write_text("1 2 3\n" * 1000)
    with pytest.raises(ParseError, match='no line "0 1 1523'):
        parse_file(path, kind="transaction_log")


@pytest.mark.parametrize(
    ("option", "line", "row"),
    [
        ("plain", f"0 1 1202 0 {START} 782553\r\n", (START * 10**6 + 782553, 1202, None, 0, 1, 0, None, "ok")),
        ("rate and retries", f"1 7 deadlock 3 {START} 5 43 2\n", (START * 10**6 + 5, None, 43, 1, 7, 3, 2, "deadlock")),
    ],
)  # fmt: skip
def test_every_column_is_kept_and_what_was_not_asked_for_is_null(files, tmp_path, option, line, row) -> None:
    keep_log(files(line), tmp_path / "kept", OPTIONS[option])
    table = pq.read_table(tmp_path / "kept")
    assert table.schema.equals(SCHEMA)
    assert [tuple(row.values()) for row in table.to_pylist()] == [row]


GOOD = "".join(f"0 {n} {1000 + n} 0 {START + n} 475654\n" for n in range(100))


SEVEN = GOOD.replace("\n", " 1\n")
GARBAGE = {
    f"0 50 12x4 0 {START} 475654": "12x4", f"0 50 -12 0 {START} 475654": "-12", "0 50 12": "0 50 12", "": '""',
    f"0 50 1200 0 {START} 475654 17": "475654 17", f'0 "50" 1200 0 {START} 475654': '"50"', "\x00" * 300: "\x00",
    f"0 50 dead 0 {START} 475654": "dead", f"0 50 120 skipped {START} 475654": "skipped",
    f"0 skipped skipped 0 {START} 475654": "skipped", "0 50 1200 0 1795\N{BULLET}": "1795",
}  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "argv", "words"),
    [
        ([], PLAIN, "no transaction log: run pgbench with --log"),
        ([f"{START} 1824 1610977 2490387597 214 6780\n"], PLAIN, "is no line of this log"),
        ([GOOD], OPTIONS["rate"], r"log\.4711, line 1: .* such as .* 475654 0$"),
        ([SEVEN], [], r"log\.4711, line 1: "),
        (["tps = 12\n"], PLAIN, 'line 1: "tps = 12" is no line of this log'),
        ([GOOD, SEVEN], PLAIN, r"log\.4711\.1, line 1: "),
        ([GOOD + "\0" * 9], PLAIN, "does not end as a transaction log does"),
        ([GOOD + f"0 1 {'9' * 25} 0 {START} 1\n"], PLAIN, r"line 101: .*999"),
        *(([GOOD, f"{GOOD}{line}\n{GOOD}"], PLAIN, rf"log\.4711\.1, line 101: .*{named}") for line, named in GARBAGE.items()),
    ],
)  # fmt: skip
def test_no_log_of_one_run_is_refused(files: Files, tmp_path: Path, texts, argv, words: str) -> None:
    with pytest.raises(InputError, match=words):
        keep_log(files(*texts), tmp_path / "kept", argv)
    assert not (tmp_path / "kept").exists()


def test_a_thinned_log_of_many_short_transactions_is_read(files: Files, monkeypatch) -> None:
    monkeypatch.setattr(transaction_log, "_BLOCK", 1 << 20)
    lines = "".join(f"0 {n} {60 + n % 7} 0 {START + n // 60_000} {n % 60_000}\n" for n in range(240_000))
    assert kept(files(lines), PLAIN).quantiles_ms["p50"] == 0.063


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which this system lacks")
def test_a_full_disk_is_one_line_and_leaves_nothing(files: Files, tmp_path: Path) -> None:
    (tmp_path / "kept").symlink_to("/dev/full")
    with pytest.raises(StudyError, match="free some space"):
        keep_log(files(GOOD), tmp_path / "kept", PLAIN)
    assert not (tmp_path / "kept").is_symlink()


def test_a_damaged_file_is_refused_or_read_rightly(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "transactions.parquet"
    truth = kept(files(GOOD), PLAIN)
    whole = path.read_bytes()
    data = pq.ParquetFile(path).metadata.row_group(0).column(1)
    for place in range(data.data_page_offset, data.data_page_offset + data.total_compressed_size, 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with contextlib.suppress(InputError):
            assert read_latency(path).quantiles_ms == truth.quantiles_ms
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cannot read .*/transactions\.parquet: damaged"):
        read_latency(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="not kept by benchlib"):
        read_latency(path)
