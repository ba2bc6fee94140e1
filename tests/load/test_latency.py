"""Latencies from the transaction log: exact, from any version's and option's log, whatever its end."""

import contextlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchlib.errors import InputError, ParseError, StudyError
from benchlib.load.latency import SCHEMA, Latency, keep_log, log_files, read_latency, read_log
from benchlib.load.latency.thinned import thin_log
from benchlib.load.parse import parse_text
from benchlib.load.parse.pgbench_logs import WORDS

START = 1795178550
PLAIN = ["pgbench", "-l", "-T", "5", "bench"]
OPTIONS = {
    "plain": PLAIN,
    "rate": [*PLAIN, "-R", "900", "--latency-limit=1"],
    "retries": [*PLAIN, "--max-tries=3"],
    "rate and retries": [*PLAIN, "--rate=900", "--max-tries=3", "--failures-detailed"],
}
few = settings(derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few lines at a time, so that a small log too is read by several threads."""
    monkeypatch.setattr(log_files, "_SPAN", 200)


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[Path]]:
    """Writes the log files of a run."""

    def write(*texts: str | bytes) -> list[Path]:
        paths = [tmp_path / f"log.4711{f'.{n}' if n else ''}" for n in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return paths

    return write


def both(parts: Sequence[Path], argv: list[str], **options: int) -> Latency:
    """The figures from the log, after a check that what is kept of it, and that thinned, gives the same."""
    target, thin = (parts[0].parent / f"{name}.parquet" for name in ("transactions", "thin"))
    keep_log(parts, target, argv)
    assert thin_log(target, thin)
    assert not thin_log(thin, target)
    found = read_log(parts, argv, **options)
    kept, thinned = (read_latency(path, **options) for path in (target, thin))
    for (name, value), log in itertools.product(vars(found).items(), (kept, thinned)):
        other = getattr(log, name)
        if isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(value, other)
        elif name == "lag_quantiles_ms" and found.transactions == 0:
            continue  # nothing says any more that there was a rate
        else:
            np.testing.assert_equal(other, value)
    return found


LATENCIES = st.one_of(
    st.integers(20, 3000), st.integers(0, 10**6), st.integers(0, 10**10), st.sampled_from(WORDS)
)
FIGURE = st.integers(0, 10**6)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[str], list[list[list[str]]]]:
    """The command line and the rows of each thread's log."""
    option = draw(st.sampled_from([*OPTIONS]))
    extra = {"plain": 0, "rate and retries": 2}.get(option, 1)
    threads = []
    for client in range(draw(st.integers(1, 3))):
        latencies = draw(st.lists(LATENCIES, max_size=40))
        times = [START * 10**6 + each for each in draw(st.lists(st.integers(0, 9 * 10**6), min_size=40))]
        threads.append(
            [
                [str(client), str(n), str(latency), str(n % 2), str(time // 10**6), str(time % 10**6)]
                + [str(draw(FIGURE)) for _ in range(extra)]
                for n, (latency, time) in enumerate(zip(latencies, times, strict=False))
            ]
        )
    return OPTIONS[option], threads


def text_of(rows: list[list[str]]) -> str:
    return "".join(f"{' '.join(row)}\n" for row in rows)


def quantiles(microseconds: Sequence[int]) -> dict[str, float | None]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    if not microseconds:
        return dict.fromkeys(shares)
    return {
        name: pytest.approx(float(np.quantile(np.array(microseconds) / 1000, q)))
        for name, q in shares.items()
    }


@few
@given(log=logs(), window_s=st.sampled_from([1, 1, 3]))
def test_figures_are_those_that_numpy_computes_of_all_values(
    files: Callable[..., list[Path]], log: tuple[list[str], list[list[list[str]]]], window_s: int
) -> None:
    argv, threads = log
    found = both(files(*map(text_of, threads)), argv, window_s=window_s)
    rows = [row for thread in threads for row in thread]
    done = [row for row in rows if row[2].isdecimal()]
    assert found.transactions == len(done)
    assert found.skipped == sum(row[2] == "skipped" for row in rows)
    assert found.failed == len(rows) - found.skipped - found.transactions
    assert found.quantiles_ms == quantiles([int(row[2]) for row in done])
    if "-R" in argv or "--rate=900" in argv:
        assert not rows or found.lag_quantiles_ms == quantiles([int(row[6]) for row in done])
    else:
        assert found.lag_quantiles_ms is None
    windows: dict[int, list[int]] = {}
    for row in done:
        windows.setdefault(int(row[4]) // window_s * window_s, []).append(int(row[2]))
    every = range(min(windows), max(windows) + 1, window_s) if windows else range(0)
    assert found.over_time["start_s"].to_list() == list(every)
    for row, counts in zip(found.over_time.itertuples(), found.counts, strict=True):
        own = windows.get(row.start_s, [])
        assert row.n == len(own) == counts.sum()
        assert [row.p50_ms, row.p99_ms] == pytest.approx(
            [quantiles(own)["p50"], quantiles(own)["p99"]] if own else [np.nan] * 2, nan_ok=True
        )
        assert row.max_ms == (pytest.approx(max(own) / 1000) if own else pytest.approx(np.nan, nan_ok=True))
    for bin_ in found.histogram.itertuples():
        assert bin_.n == sum(bin_.low_ms <= int(row[2]) / 1000 < bin_.high_ms for row in done)


@few
@given(log=logs(), data=st.data())
def test_a_file_cut_anywhere_loses_at_most_one_line(
    files: Callable[..., list[Path]], log: tuple[list[str], list[list[list[str]]]], data: st.DataObject
) -> None:
    argv, threads = log
    texts = [text_of(rows) for rows in threads]
    cut = data.draw(st.integers(0, len(texts[0])))
    found = both(files(texts[0][:cut], *texts[1:]), argv)
    torn = bool(texts[0][:cut]) and not texts[0][:cut].endswith("\n")
    whole = texts[0][:cut].count("\n") + sum(map(len, threads[1:]))
    assert (found.torn, found.transactions + found.failed + found.skipped) == (torn, whole)


@few
@given(log=logs())
def test_the_parser_of_small_logs_gives_the_same(
    files: Callable[..., list[Path]], log: tuple[list[str], list[list[list[str]]]]
) -> None:
    argv, threads = log
    text = "".join(map(text_of, threads))
    if not text:
        return
    truth = parse_text(text, kind="transaction_log", argv=argv)
    found = both(files(*map(text_of, threads)), argv)
    assert found.quantiles_ms == pytest.approx(
        {name: truth["latency_ms"][name] for name in found.quantiles_ms}
    )
    assert (found.transactions, found.failed, found.skipped) == tuple(
        truth[f"{name}transactions"] for name in ("", "failed_", "skipped_")
    )


RECORDED = [
    folder
    for folder in sorted((Path(__file__).parent / "parse" / "corpus").glob("*/*log*"))
    if [*folder.glob("tx.*")]
]


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_what_real_versions_logged_reads_as_the_parser_of_small_logs_reads_it(
    folder: Path, files: Callable[..., list[Path]]
) -> None:
    argv = json.loads((folder / "argv.json").read_text())
    texts = [path.read_text() for path in sorted(folder.glob("tx.*"))]
    found = both(files(*texts), argv)
    whole = [text[: text.rfind("\n") + 1] for text in texts]
    truth = parse_text("".join(whole), kind="transaction_log", argv=argv)
    assert found.torn == sum(text != lines for text, lines in zip(texts, whole, strict=True))
    assert found.quantiles_ms == pytest.approx(
        {name: truth["latency_ms"][name] for name in found.quantiles_ms}
    )
    if found.lag_quantiles_ms:
        assert found.lag_quantiles_ms == pytest.approx(
            {name: truth["lag_ms"][name] for name in found.quantiles_ms}
        )
    assert (found.transactions, found.failed, found.skipped, found.sampling_rate) == tuple(
        truth[name]
        for name in ("transactions", "failed_transactions", "skipped_transactions", "sampling_rate")
    )
    assert found.over_time["n"].sum() == found.transactions


def test_every_column_is_kept(files: Callable[..., list[Path]], tmp_path: Path) -> None:
    parts = files(f"0 1 1202 0 {START} 782553 78 0\n", f"1 7 deadlock 3 {START + 1} 5 43 2\n")
    keep_log(parts, tmp_path / "kept", OPTIONS["rate and retries"])
    table = pq.read_table(tmp_path / "kept")
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == [
        dict(zip(SCHEMA.names, row, strict=True))
        for row in (
            (START * 10**6 + 782553, 1202, 78, 0, 1, 0, 0, "ok"),
            ((START + 1) * 10**6 + 5, None, 43, 1, 7, 3, 2, "deadlock"),
        )
    ]


def test_what_was_not_asked_for_is_null_and_a_sample_says_so(
    files: Callable[..., list[Path]], tmp_path: Path
) -> None:
    argv = [*PLAIN, "--sampling-rate=0.1"]
    assert both(files(f"0 1 1202 0 {START} 782553\r\n"), argv).sampling_rate == 0.1
    row = pq.read_table(tmp_path / "transactions.parquet").to_pylist()[0]
    assert (row["schedule_lag_us"], row["retries"], row["latency_us"]) == (None, None, 1202)


def test_threads_that_logged_nothing_have_no_figures(files: Callable[..., list[Path]]) -> None:
    found = both(files("", ""), PLAIN)
    assert (found.transactions, found.quantiles_ms["p50"], len(found.over_time)) == (0, None, 0)
    assert found.histogram["n"].sum() == 0


def test_windows_log_no_time_up_to_version_10(files: Callable[..., list[Path]]) -> None:
    assert both(files("0 1 1202 0 0 0\n0 2 1204 0 0 0\n"), PLAIN).over_time["n"].to_list() == [2]


GOOD = "".join(f"0 {n} {1000 + n} 0 {START + n} 475654\n" for n in range(100))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"0 50 12x4 0 {START} 475654", "12x4"),
        (f"0 50 -12 0 {START} 475654", "-12"),
        (f"0 50 1200 0 {START} 475654 17", "475654 17"),
        ("0 50 12", "0 50 12"),
        ("", '""'),
        (f'0 "50" 1200 0 {START} 475654', '"50"'),
        ("\x00" * 300, "\x00"),
        (f"0 50 dead 0 {START} 475654", "dead"),
        (f"0 50 120 skipped {START} 475654", "skipped"),
        (f"0 skipped skipped 0 {START} 475654", "skipped"),
        ("0 50 1200 0 1795\N{BULLET}", "1795"),
    ],
)
def test_garbage_in_the_middle_names_file_and_line(
    files: Callable[..., list[Path]], tmp_path: Path, line: str, named: str
) -> None:
    parts = files(GOOD, f"{GOOD}{line}\n{GOOD}")
    with pytest.raises(ParseError, match=r"log\.4711\.1, line 101: ") as refused:
        keep_log(parts, tmp_path / "kept", PLAIN)
    assert named in str(refused.value)
    if line[2:6] != '"50"' and " 120 " not in line:  # the figures do without count and script
        with pytest.raises(ParseError, match=r"log\.4711\.1, line 101: "):
            read_log(parts, PLAIN)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("texts", "argv", "words"),
    [
        ([], PLAIN, "no transaction log: pgbench writes one with --log"),
        ([f"{START} 1824 1610977 2490387597 214 6780\n"], PLAIN, "log of intervals"),
        ([GOOD], [*PLAIN, "--aggregate-interval=5"], "log of intervals"),
        ([GOOD], OPTIONS["rate"], "6 columns, but the command line asks for 7"),
        ([GOOD.replace("\n", " 1\n")], [], "only the command line can tell"),
        (["tps = 12\n"], PLAIN, 'line 1: "tps = 12" is no line of this log'),
        ([GOOD, GOOD.replace("\n", " 1\n")], PLAIN, r"log\.4711\.1, line 1: "),
        ([GOOD + "\0" * 9], PLAIN, "does not end as a transaction log does"),
        ([GOOD + f"0 1 {'9' * 25} 0 {START} 1\n"], PLAIN, "64 bits"),
        ([GOOD + "0 1 12 0 100000000 1\n"], PLAIN, "not of one trial"),
    ],
)
def test_what_is_no_log_of_one_run_is_refused(
    files: Callable[..., list[Path]], texts: list[str], argv: list[str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read_log(files(*texts), argv)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which this system lacks")
def test_a_full_disk_is_one_line_and_leaves_nothing(files: Callable[..., list[Path]], tmp_path: Path) -> None:
    (tmp_path / "kept").symlink_to("/dev/full")
    with pytest.raises(StudyError, match="free some space"):
        keep_log(files(GOOD), tmp_path / "kept", PLAIN)
    assert not (tmp_path / "kept").is_symlink()


def test_a_damaged_file_is_refused_or_read_rightly(files: Callable[..., list[Path]], tmp_path: Path) -> None:
    path = tmp_path / "transactions.parquet"
    truth = both(files(GOOD), PLAIN)
    whole = path.read_bytes()
    data = pq.ParquetFile(path).metadata.row_group(0).column(1)
    for place in range(data.data_page_offset, data.data_page_offset + data.total_compressed_size):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with contextlib.suppress(InputError):
            assert read_latency(path).quantiles_ms == truth.quantiles_ms
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cannot read .*/transactions\.parquet: damaged"):
        read_latency(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="not kept by benchlib"):
        read_latency(path)
