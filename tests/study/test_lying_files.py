"""Raw files that lie: swapped, doubled, cut, planted, packed to burst; each is told in a line, and none turns a verdict."""

import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import FakeBench, seal

from benchlib.errors import InputError
from benchlib.load.latency import SCHEMA, keep_log, read_latency
from benchlib.study.archive import ARCHIVE
from benchlib.study.experiment import shown
from benchlib.study.loop import run_study
from benchlib.study.records import Samples
from benchlib.study.store import CHECKSUMS, MEASUREMENT, TRANSACTION_LOG, StudyFolder, walk
from benchlib.study.trim import trim

TPS = {"defaults": 1000.0, "control": 1010.0, "tuned": 2000.0}


@pytest.fixture
def study(folder_of: Callable[..., StudyFolder], tmp_path: Path) -> StudyFolder:
    """Three blocks, in which “tuned” leads."""
    folder = folder_of(3)
    run_study(folder, FakeBench(folder.read().plan, tmp_path, TPS, instruments=True).open)
    return folder


@pytest.fixture
def older(study: StudyFolder) -> StudyFolder:
    """The same as an earlier version kept it: without checksums."""
    (study.path / CHECKSUMS).unlink()
    path = study.path / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 1}))
    return study


def place(folder: StudyFolder, level: str, block: int = 1) -> Path:
    (trial,) = [t for t in folder.read().trials if (t.level, t.block) == (level, block)]
    return folder.path / "trials" / trial.id


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def note(folder: StudyFolder, **facts: Any) -> None:
    path = place(folder, "tuned") / MEASUREMENT
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def told(folder: StudyFolder) -> str:
    """Why the study is refused, in one line that names it."""
    with pytest.raises(InputError) as caught:
        folder.kept()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("small") or "small/" in str(caught.value)
    return str(caught.value)


LIES: dict[str, Callable[[StudyFolder], object]] = {
    "swapped output": lambda s: swap(place(s, "tuned") / "stdout", place(s, "control") / "stdout"),
    "swapped errors": lambda s: swap(place(s, "tuned") / "stderr", place(s, "control") / "stderr"),
    "swapped measurements": lambda s: swap(place(s, "tuned") / MEASUREMENT, place(s, "control") / MEASUREMENT),
    "swapped folders": lambda s: swap(place(s, "tuned"), place(s, "control")),
    "swapped blocks": lambda s: swap(place(s, "tuned") / "stderr", place(s, "tuned", 2) / "stderr"),
    "doubled": lambda s: shutil.copy(place(s, "tuned") / "stdout", place(s, "control") / "stdout"),
    "cut": lambda s: (place(s, "tuned") / "stdout").write_bytes((place(s, "tuned") / "stdout").read_bytes()[:-9]),
    "gone": lambda s: (place(s, "tuned") / "statistics.json").unlink(),
    "another level": lambda s: note(s, trial={**json.loads((place(s, "tuned") / MEASUREMENT).read_text())["trial"], "level": "control"}),
    "samples": lambda s: (place(s, "tuned") / Samples.FILE).write_bytes(b""),
    "a link": lambda s: ((place(s, "tuned") / "stdout").unlink(), (place(s, "tuned") / "stdout").symlink_to(place(s, "control") / "stdout")),
    "a pipe": lambda s: ((place(s, "tuned") / "stdout").unlink(), os.mkfifo(place(s, "tuned") / "stdout")),
    "a folder": lambda s: ((place(s, "tuned") / "stdout").unlink(), (place(s, "tuned") / "stdout").mkdir()),
    "no checksums": lambda s: (s.path / CHECKSUMS).unlink(),
    "checksums of others": lambda s: (s.path / CHECKSUMS).write_text("0" * 64 + "  trials/x/y\n"),
    "checksums that are none": lambda s: (s.path / CHECKSUMS).write_bytes(b"\xff" * 99),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_a_file_that_is_not_the_one_that_was_kept_is_told(study: StudyFolder, lie: Any) -> None:
    assert len(study.kept()) == 9
    lie(study)
    assert "tuned" in (line := told(study)) or "control" in line


def test_what_a_trial_did_not_leave_is_not_read(study: StudyFolder) -> None:
    (place(study, "tuned") / "fsync.json").write_text("{}")
    assert study.raw(place(study, "tuned").name, "fsync.json") is None


OLDER_LIES: dict[str, tuple[Callable[[StudyFolder], object], str]] = {
    "measurements": (LIES["swapped measurements"], "it is of trial"),
    "status": (lambda s: note(s, load_returncode=3), "ended with status 3"),
    "seed": (lambda s: note(s, load_argv=["pgbench", "--random-seed=5"]), "given --random-seed=5, the plan says"),
    "clients": (lambda s: note(s, load_argv=["pgbench", "--client=99"]), "given --client=99, the plan says 4"),
    "duration": (lambda s: note(s, load_argv=["pgbench", "--time=1"]), "given --time=1, the plan says 3"),
}  # fmt: skip


@pytest.mark.parametrize(("lie", "why"), OLDER_LIES.values(), ids=list(OLDER_LIES))
def test_without_checksums_facts_are_compared_with_the_plan(older: StudyFolder, lie: Any, why: str) -> None:
    lie(older)
    assert why in told(older)


def swap_all(folder: StudyFolder) -> None:
    for name in ("stdout", "stderr"):
        swap(place(folder, "tuned") / name, place(folder, "control") / name)


def change(old: str, new: str, name: str = "stdout") -> Callable[[StudyFolder], object]:
    def write(folder: StudyFolder) -> None:
        path = place(folder, "tuned") / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return write


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (LIES["swapped errors"], "the report's seed is"),
        (swap_all, "the report's seed is"),
        (change("scaling factor: 1\n", "scaling factor: 9\n"), "the report's scale is 9, the plan says 1"),
        (change("query mode: simple", "query mode: prepared"), "query_mode is prepared"),
        (change("number of threads: 2", "number of threads: 1"), "the report's threads is 1"),
    ],
    ids=["stderr", "both", "scale", "protocol", "threads"],
)
def test_without_checksums_an_output_of_another_trial_is_no_figure(
    older: StudyFolder, lie: Any, why: str
) -> None:
    lie(older)
    row = shown(older).trials.query("level == 'tuned' and block == 1").iloc[0]
    assert row["tps"] != row["tps"], "no figure"
    assert why in row["error"]
    assert "small: trials/b01-" in row["error"]


def test_logs_of_transactions_are_compared_too(study: StudyFolder, tmp_path: Path) -> None:
    for level, done in (("tuned", 6000), ("control", 3030)):
        rows = (f"0 {n} 1000 0 1700000020 5\n" for n in range(done))
        (tmp_path / "log.1").write_text("".join(rows))
        keep_log([tmp_path / "log.1"], place(study, level) / TRANSACTION_LOG, ["pgbench"])
    seal(study)
    swap(place(study, "tuned") / TRANSACTION_LOG, place(study, "control") / TRANSACTION_LOG)
    assert shown(study).trials["error"].dropna().str.contains("checksum differs").tolist() == [True, True]
    seal(study)
    assert shown(study).trials["error"].dropna().str.contains("is not of this trial").tolist() == [True, True]


@pytest.mark.parametrize("packed", [False, True])
def test_checksums_are_as_sha256sum_writes_them_packed_or_not(study: StudyFolder, packed: bool) -> None:
    if packed:
        trim(study)
        subprocess.run(["tar", "-xf", ARCHIVE], cwd=study.path, check=True)
    assert len(study.kept()) == 9
    assert os.system(f"cd '{study.path}' && sha256sum --check --strict --quiet {CHECKSUMS}") == 0


def test_an_older_study_goes_on_with_checksums_for_what_is_new(older: StudyFolder, tmp_path: Path) -> None:
    again = place(older, "tuned")
    older.set_aside(again.name)
    run_study(older, FakeBench(older.read().plan, tmp_path, TPS).open)
    assert {path.split("/")[1] for path in older.checksums()} == {again.name}
    assert len(older.kept()) == 9
    (again / "stdout").write_text("tps = 5")
    assert "checksum differs" in told(older)


def test_a_newer_study_is_no_damaged_one(study: StudyFolder) -> None:
    path = study.path / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3, "moods": []}))
    assert told(study) == "small/study.json was made by a newer benchlib: bring this one up to date"


def test_a_trial_that_is_in_the_plan_twice_is_told(study: StudyFolder) -> None:
    path = study.path / "study.json"
    kept = json.loads(path.read_text())
    for doubled, why in (
        ([*kept["trials"], kept["trials"][0]], "a trial is there twice"),
        ([*kept["trials"], {**kept["trials"][0], "position": 9}], "a trial is there twice"),
        ([*kept["trials"], {**kept["trials"][0], "level": "none"}], "not among the levels"),
    ):
        path.write_text(json.dumps({**kept, "trials": doubled}))
        assert why in told(study)


@pytest.mark.parametrize("host", ["a text", [1], 5, {"memory_mib": "much"}, {"processors": []}])
def test_a_provenance_of_another_type_is_told(study: StudyFolder, host: object) -> None:
    path = study.path / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "provenance": {"host": host}}))
    assert "study.json is damaged (provenance.host" in told(study)


# --- archives and links -------------------------------------------------------------


def tar_of(*members: tuple[str, bytes, bytes]) -> bytes:
    """A packed archive of names, types and contents."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            archive.addfile(member, io.BytesIO(content))
    return lzma.compress(tar.getvalue(), preset=1)


FILE, NAME = tarfile.REGTYPE, "trials/b01-p1-x/stdout"
ARCHIVES: dict[str, Callable[[], bytes]] = {
    "bomb": lambda: lzma.compress(bytes(1 << 25), preset=0),
    "large": lambda: tar_of((NAME, FILE, bytes(1 << 25))),
    "link": lambda: tar_of((NAME, tarfile.SYMTYPE, b"")),
    "hard link": lambda: tar_of((NAME, tarfile.LNKTYPE, b"")),
    "device": lambda: tar_of((NAME, tarfile.CHRTYPE, b"")),
    "outside": lambda: tar_of(("trials/../../x", FILE, b"x")),
    "absolute": lambda: tar_of(("/etc/x", FILE, b"x")),
    "elsewhere": lambda: tar_of(("study.json", FILE, b"x")),
    "twice": lambda: tar_of((NAME, FILE, b"x"), (NAME, FILE, b"y")),
    "sparse": lambda: tar_of((NAME, tarfile.GNUTYPE_SPARSE, b"x" * 512)),
    "long names": lambda: tar_of(*[("x", tarfile.GNUTYPE_LONGNAME, b"y")] * 3000),
    "no archive": lambda: b"trials",
    "no tar": lambda: lzma.compress(b"x" * 5000),
    "two": lambda: tar_of((NAME, FILE, b"x"))[:-20],
}


@pytest.mark.parametrize("archive", ARCHIVES.values(), ids=list(ARCHIVES))
def test_an_archive_holds_files_of_trials_and_no_more_than_a_study(
    folder_of: Callable[..., StudyFolder], archive: Callable[[], bytes]
) -> None:
    study = folder_of(1)
    (study.path / ARCHIVE).write_bytes(archive())
    with pytest.raises(InputError, match=r"^small/trials\.tar\.xz is damaged \(") as caught:
        study.packed()
    assert "\n" not in str(caught.value)


def test_a_compressed_file_is_not_unpacked_beyond_measure(study: StudyFolder) -> None:
    with pytest.raises(ValueError, match="unpacks to more"):
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
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("one", "two"):
        (victim / name).write_text("mine")
    for pending in (".pending-study.json", f".pending-{ARCHIVE}", f".pending-{CHECKSUMS}"):
        (study.path / pending).symlink_to(victim / "one")
    (study.path / "trials" / "evil").symlink_to(victim)
    (place(study, "tuned") / "more").symlink_to(victim / "two")
    (place(study, "control") / f".pending-{TRANSACTION_LOG}").symlink_to(victim / "one")
    trim(study)
    assert len(study.kept()) == 9
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"one": "mine", "two": "mine"}
    assert not any("more" in name or "evil" in name for name in study.packed())


def test_a_closed_folder_of_studies_is_told(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", closed)
        with pytest.raises(InputError, match=r"cannot read the studies in .* \(Permission denied\)$"):
            list(walk())
    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(InputError, match=r"^cannot read small/study\.json \(Permission denied\)$"):
        study.exists()
    assert told(study) == "cannot read small/study.json (Permission denied)"
