"""A trimmed study: a tenth of its size, the same page."""

import shutil
import subprocess
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeBench, seal

from benchlib.errors import InputError
from benchlib.host import files
from benchlib.load.latency import keep_log
from benchlib.report.view import View
from benchlib.study.archive import ARCHIVE
from benchlib.study.experiment import shown
from benchlib.study.loop import run_study, set_failed_aside
from benchlib.study.records import Samples
from benchlib.study.store import CHECKSUMS, TRANSACTION_LOG, StudyFolder
from benchlib.study.trim import NOTE, trim

START = 1_700_000_000


def log_of(folder: Path, seed: int, done: int) -> None:
    """Have a trial keep a log of all its transactions, under a rate, of which some failed and some were skipped."""
    random = np.random.default_rng(seed)
    took = [str(int(t)) for t in random.gamma(2, 900, done + 4)]
    took[5:9] = ["failed", "skipped", "failed", "skipped"]
    rows = (
        f"{i % 8} {i // 8} {t} 0 {START + i // 1000} {i % 1000 * 1000} {i % 700}\n"
        for i, t in enumerate(took)
    )
    (folder / "log.1").write_text("".join(rows))
    keep_log([folder / "log.1"], folder / TRANSACTION_LOG, ["pgbench", "-l", "--rate=1000"])
    (folder / "log.1").unlink()


@pytest.fixture
def study(folder_of, tmp_path: Path) -> StudyFolder:
    """A study of three blocks with everything that trials leave; one of its trials failed."""
    folder: StudyFolder = folder_of(3)
    plan = folder.read().plan
    tps = dict.fromkeys(plan.factor.levels, 1000.0) | {"tuned": 2000.0}
    run_study(folder, FakeBench(plan, tmp_path, tps, failing={9: "lost"}, instruments=True).open)
    for number, trial in enumerate(sorted((folder.path / "trials").iterdir())[:4]):
        log_of(trial, number, 6000 if "tuned" in trial.name else 3000)
    seal(folder)
    return folder


def page(folder: StudyFolder) -> dict[str, str]:
    """All that a notebook shows of a study, but where it comes from."""
    view = View(shown(folder))
    names = [name for name, member in vars(View).items() if callable(member) and not name.startswith("_")]
    parts = {name: getattr(view, name)() for name in names if name not in ("provenance", "rerun")}
    return {name: thing._repr_html_() for name, thing in parts.items() if thing is not None}


def derived(folder: StudyFolder) -> list[object]:
    """All figures that are derived from what is kept, to the last digit."""
    study = shown(folder)
    trials, found = study.trials, study.recorded
    assert found.checkpoints is not None
    frames = [trials, study.progress, found.seconds, found.waits, found.checkpoints]
    return [*(frame.to_csv() for frame in frames), folder.kept()]


def size(folder: StudyFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())


def everything(folder: StudyFolder) -> dict[str, bytes]:
    paths = [path for path in folder.path.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in paths}


@pytest.mark.long
def test_the_page_of_a_trimmed_study_is_the_same_but_for_a_line(study: StudyFolder) -> None:
    before, weighed = page(study), size(study)
    assert {"forest", "waits", "devices", "latency_ladder"} <= before.keys()
    was, now = trim(study)
    assert (was, now) == (weighed, size(study))
    assert now < was / 2
    assert page(study) == before
    assert NOTE in View(shown(study)).provenance().html


def test_what_is_derived_is_the_same_to_the_last_digit_and_trimming_again_changes_nothing(
    study: StudyFolder,
) -> None:
    before = derived(study)
    trim(study)
    assert derived(study) == before
    once = everything(study)
    assert trim(study)[0] == trim(study)[1]
    assert everything(study) == once
    assert sorted(path for path in once if not path.endswith(TRANSACTION_LOG)) == [
        CHECKSUMS,
        "study.json",
        ARCHIVE,
    ]


def test_the_same_study_gives_the_same_archive_whenever_it_is_trimmed(study: StudyFolder) -> None:
    if shutil.which("xz") is None:
        pytest.skip("tar needs the program xz to unpack it")
    trim(study)
    archive = (study.path / ARCHIVE).read_bytes()
    subprocess.run(["tar", "-xJf", ARCHIVE], cwd=study.path, check=True)  # as data/README.md says
    (study.path / ARCHIVE).unlink()
    assert len(study.kept()) == 9  # the archive unpacks to what there was
    trim(study)
    assert (study.path / ARCHIVE).read_bytes() == archive


def test_an_interruption_between_archive_and_folders_loses_nothing(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, remove, calls = derived(study), files.remove, count()

    def interrupted(path: Path) -> None:
        if path.parent.parent.name == "trials" and next(calls) == 3:
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trim(study)
    assert derived(study) == before
    trim(study)
    assert derived(study) == before
    assert not any(path.name != TRANSACTION_LOG for path in study.path.glob("trials/*/*"))


def test_a_damaged_archive_is_named(study: StudyFolder) -> None:
    trim(study)
    path = study.path / ARCHIVE
    path.write_bytes(path.read_bytes()[:-99])
    with pytest.raises(InputError, match=r"small/trials\.tar\.xz is damaged"):
        study.kept()


def test_damaged_telemetry_is_named_and_nothing_is_lost(study: StudyFolder) -> None:
    (path := next(study.path.glob(f"trials/*/{Samples.FILE}"))).write_bytes(b"x")
    with pytest.raises(InputError, match=Samples.FILE):
        trim(study)
    assert not (study.path / ARCHIVE).exists()
    path.unlink()
    seal(study)
    trim(study)


def test_a_packed_trial_is_not_set_aside_but_by_hand(study: StudyFolder) -> None:
    trim(study)
    with pytest.raises(InputError, match=r"tar -xJf trials\.tar\.xz"):
        set_failed_aside(study)
