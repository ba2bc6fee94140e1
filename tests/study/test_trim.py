"""A trimmed study: a tenth of its size, the same page."""

import subprocess
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from fakes import seal
from kept import contents, place, ran, refused
from trim import NOTE, trim

from benchlib.host import files
from benchlib.load.latency import keep_log
from benchlib.study.archive import ARCHIVE
from benchlib.study.experiment import shown
from benchlib.study.loop import set_failed_aside
from benchlib.study.records import Samples
from benchlib.study.store import CHECKSUMS, TRANSACTION_LOG, StudyFolder


@pytest.fixture
def study(folder_of, tmp_path: Path) -> StudyFolder:
    """A study of three blocks with everything that trials leave; one of its trials failed."""
    folder = ran(folder_of(3), tmp_path, failing={9: "lost"}, instruments=True)
    rows = (f"{n % 8} {n // 8} {900 + n % 97} 0 17000000{n // 1000:02} 5 {n % 700}\n" for n in range(6000))
    (tmp_path / "log.1").write_text("".join(rows))
    keep_log([tmp_path / "log.1"], place(folder) / TRANSACTION_LOG, ["pgbench", "-l", "--rate=1000"])
    seal(folder)
    return folder


def derived(folder: StudyFolder) -> list[object]:
    """All figures that are derived from what is kept, to the last digit."""
    study = shown(folder)
    found = study.recorded
    frames = [study.trials, study.measured.progress, found.seconds, found.waits, found.checkpoints]
    return [*(frame.to_csv() for frame in frames), folder.kept()]


def test_what_is_derived_is_the_same_to_the_last_digit_and_trimming_again_changes_nothing(study) -> None:
    before, log = derived(study), place(study) / TRANSACTION_LOG
    assert shown(study).trials["latency_p95_ms"].notna().sum() == 1
    was, now = trim(study)
    assert now < was / 2
    assert derived(study) == before
    assert study.read().provenance["raw_files"] == NOTE
    once = contents(study.path)
    assert trim(study) == (now, now) == (sum(map(len, once.values())),) * 2
    assert contents(study.path) == once
    assert once.keys() == {CHECKSUMS, "study.json", ARCHIVE, log.relative_to(study.path).as_posix()}
    assert "tar -xJf trials.tar.xz" in refused(set_failed_aside, study)
    subprocess.run(["tar", "-xf", ARCHIVE], cwd=study.path, check=True)  # as data/README.md says
    (study.path / ARCHIVE).unlink()
    assert len(study.kept()) == 9, "it unpacks to what there was"
    trim(study)
    assert contents(study.path) == once, "the same study gives the same archive"


def test_an_interruption_between_archive_and_folders_loses_nothing(study: StudyFolder, monkeypatch) -> None:
    before = derived(study)
    with monkeypatch.context() as patched:
        removing = Mock(wraps=files.remove, side_effect=[*[DEFAULT] * 6, KeyboardInterrupt])
        patched.setattr(files, "remove", removing)
        with pytest.raises(KeyboardInterrupt):
            trim(study)
    assert (study.path / ARCHIVE).exists()
    assert derived(study) == before
    trim(study)
    assert derived(study) == before
    assert not any(path.name != TRANSACTION_LOG for path in study.path.glob("trials/*/*"))


def test_what_is_damaged_is_named_and_nothing_is_lost(study: StudyFolder) -> None:
    (place(study) / Samples.FILE).write_bytes(b"x")
    assert Samples.FILE in refused(trim, study)
    assert not (study.path / ARCHIVE).exists()
