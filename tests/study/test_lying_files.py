"""Raw files that lie: swapped, cut, planted, packed to burst; each is told in a line, and none turns a verdict."""

import gzip
import io
import json
import lzma
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import seal
from kept import place, ran, refused, say
from trim import trim

from benchlib.errors import InputError
from benchlib.load.latency import SCHEMA, keep_log, read_latency
from benchlib.study.archive import ARCHIVE
from benchlib.study.experiment import shown
from benchlib.study.records import Samples
from benchlib.study.store import CHECKSUMS, MEASUREMENT, TRANSACTION_LOG, StudyFolder, walk

Lie = Callable[[Path, Path], object]
"""What is done to the folders of two trials, of “tuned” and of “control”."""


@pytest.fixture
def study(folder_of: Callable[..., StudyFolder], tmp_path: Path) -> StudyFolder:
    """Three blocks, in which “tuned” leads."""
    return ran(folder_of(3), tmp_path, instruments=True)


def swap(one: Path, other: Path) -> None:
    between = one.rename(one.with_name("between"))
    other.rename(one)
    between.rename(other)


def gone(path: Path) -> Path:
    path.unlink()
    return path


def swapped(*names: str) -> Lie:
    return lambda tuned, control: [swap(tuned / name, control / name) for name in names]


def listed(content: bytes) -> Lie:
    return lambda tuned, _: (tuned.parents[1] / CHECKSUMS).write_bytes(content)


LIES: dict[str, Lie] = {
    "swapped output": swapped("stdout"),
    "swapped measurements": swapped(MEASUREMENT),
    "swapped folders": swap,
    "swapped and listed": lambda *places: (swap(*places), seal(StudyFolder("small"))),
    "gone": lambda tuned, _: gone(tuned / "statistics.json"),
    "a link": lambda tuned, control: gone(tuned / "stdout").symlink_to(control / "stdout"),
    "a pipe": lambda tuned, _: os.mkfifo(gone(tuned / "stdout")),
    "a folder": lambda tuned, _: gone(tuned / "stdout").mkdir(),
    "no checksums": listed(b""),
    "checksums of others": listed(b"0" * 64 + b"  trials/x/y\n"),
    "checksums that are none": listed(b"\xff" * 99),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_a_file_that_is_not_the_one_that_was_kept_is_told(study: StudyFolder, lie: Lie) -> None:
    assert len(study.kept()) == 9
    lie(place(study, "tuned"), place(study, "control"))
    told = refused(study.kept)
    assert told.startswith("small: trials/b01-") or "small/trials/b01-" in told


def changed(old: str, new: str) -> Lie:
    return lambda tuned, _: (tuned / "stdout").write_text((tuned / "stdout").read_text().replace(old, new))


def given(option: str) -> Lie:
    return lambda tuned, _: say(tuned / MEASUREMENT, load_argv=["pgbench", option])


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (given("--random-seed=5"), "given --random-seed=5, the plan says"),
        (given("--client=99"), "the command line says --client=99"),
        (given("--time=1"), "the command line says --time=1"),
        (swapped("stderr"), "the report's seed is"),
        (swapped("stdout", "stderr"), "the report's seed is"),
        (changed("scaling factor: 1\n", "scaling factor: 9\n"), "the report's scale is 9, the plan says 1"),
        (changed("query mode: simple", "query mode: prepared"), "query_mode is prepared"),
        (changed("number of threads: 2", "number of threads: 1"), "the report's threads is 1"),
    ],
)
def test_an_output_that_contradicts_the_plan_is_no_figure(study: StudyFolder, lie: Lie, why: str) -> None:
    lie(place(study, "tuned"), place(study, "control"))
    seal(study)
    row = shown(study).trials.query("level == 'tuned' and block == 1").iloc[0]
    assert row["tps"] != row["tps"], "no figure"
    assert why in row["error"]


def test_logs_of_transactions_are_compared_too(study: StudyFolder, tmp_path: Path) -> None:
    for level, done in (("tuned", 6000), ("control", 3030)):
        (tmp_path / "log.1").write_text("".join(f"0 {n} 1000 0 1700000020 5\n" for n in range(done)))
        keep_log([tmp_path / "log.1"], place(study, level) / TRANSACTION_LOG, ["pgbench"])
    seal(study)
    swap(place(study, "tuned") / TRANSACTION_LOG, place(study, "control") / TRANSACTION_LOG)
    for why in ("checksum differs", "is not of this trial"):
        assert shown(study).trials["error"].dropna().str.contains(why).tolist() == [True, True]
        seal(study)
    log = place(study) / TRANSACTION_LOG
    log.symlink_to(log.rename(tmp_path / "elsewhere"))
    assert "it is a link" in refused(study.transaction_log, log.parent.name)


def test_checksums_are_as_sha256sum_writes_them_and_other_files_are_not_read(study: StudyFolder) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", CHECKSUMS], cwd=study.path, check=True)
    (place(study) / "fsync.json").write_text("{}")
    assert study.raw(place(study).name, "fsync.json") is None


HOST, TWICE = "study.json is damaged (provenance.host", "a trial is there twice"


@pytest.mark.parametrize(
    ("changes", "again", "why"),
    [
        ({"format": 3, "moods": []}, [], "study.json was made by a newer benchlib"),
        ({"provenance": {"host": "a text"}}, [], HOST),
        ({"provenance": {"host": {"memory_mib": "much"}}}, [], HOST),
        ({}, [{}], TWICE),
        ({}, [{"position": 9}], TWICE),
        ({}, [{"level": "none"}], "not among the levels"),
    ],
)
def test_a_plan_that_is_none_is_told(folder_of, changes, again, why) -> None:
    """``again`` is what more trials like the first say differently."""
    path = folder_of().path / "study.json"
    trials = json.loads(path.read_text())["trials"]
    say(path, trials=[*trials, *({**trials[0], **one} for one in again)], **changes)
    assert why in refused(StudyFolder("small").kept)


# --- archives and links -------------------------------------------------------------

FILE, NAME = tarfile.REGTYPE, "trials/b01-p1-x/stdout"


def tar_of(*members: tuple[str, bytes, bytes]) -> bytes:
    """A packed archive of names, types and contents."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            archive.addfile(member, io.BytesIO(content))
    return lzma.compress(tar.getvalue(), preset=1)


def archives() -> Iterator[bytes]:
    """Archives that are too large, cut, or hold something else than files of trials."""
    yield lzma.compress(bytes(1 << 25), preset=0)
    yield lzma.compress(b"x" * 5000)
    yield tar_of((NAME, FILE, b"x"))[:-20]
    yield tar_of((NAME, FILE, b"x"), (NAME, FILE, b"y"))
    yield tar_of(*[("x", tarfile.GNUTYPE_LONGNAME, b"y")] * 3000)
    yield tar_of((NAME, FILE, bytes(1 << 25)))
    outside, plan = ("trials/../../x", FILE), ("study.json", FILE)
    for name, kind in (outside, plan, (NAME, tarfile.SYMTYPE), (NAME, tarfile.CHRTYPE)):
        yield tar_of((name, kind, b""))


def test_an_archive_holds_files_of_trials_and_no_more_than_a_study(folder_of) -> None:
    study = folder_of(1)
    for archive in archives():
        (study.path / ARCHIVE).write_bytes(archive)
        assert refused(study.packed).startswith("small/trials.tar.xz is damaged (")


def test_a_compressed_file_is_not_unpacked_beyond_measure() -> None:
    with pytest.raises(ValueError, match="too large when unpacked"):
        Samples.from_bytes(gzip.compress(bytes(1 << 24)))


def test_a_log_of_more_rows_than_its_bytes_can_hold_is_not_read(tmp_path: Path) -> None:
    rows = {name: pa.nulls(1 << 21, SCHEMA.field(name).type) for name in SCHEMA.names}
    table = pa.table(rows, schema=SCHEMA.with_metadata({b"benchlib": b"{}"}))
    with pq.ParquetWriter(tmp_path / TRANSACTION_LOG, table.schema, compression="zstd") as writer:
        for _ in range(6):
            writer.write_table(table)
    with pytest.raises(InputError, match="damaged"):
        read_latency(tmp_path / TRANSACTION_LOG)


def test_nothing_is_written_through_a_link_that_a_study_brings(study: StudyFolder, tmp_path: Path) -> None:
    (victim := tmp_path / "victim").mkdir()
    (victim / "one").write_text("mine")
    for name in (".pending-study.json", f".pending-{ARCHIVE}", f".pending-{CHECKSUMS}"):
        (study.path / name).symlink_to(victim / "one")
    (study.path / "trials" / "evil").symlink_to(victim)
    for name in ("more", f".pending-{TRANSACTION_LOG}"):
        (place(study) / name).symlink_to(victim / "one")
    trim(study)
    assert len(study.kept()) == 9
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"one": "mine"}
    assert not any("more" in name or "evil" in name for name in study.packed())


def test_a_closed_folder_of_studies_is_told(folder_of, monkeypatch: pytest.MonkeyPatch) -> None:
    study, closed = folder_of(), Mock(side_effect=PermissionError(13, "Permission denied"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", closed)
        assert "cannot read the studies in" in refused(lambda: list(walk()))
    monkeypatch.setattr(os, "open", closed)
    assert refused(study.exists) == refused(study.kept) == "cannot read small/study.json (Permission denied)"
