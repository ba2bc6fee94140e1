"""Make a finished study small enough for a repository, with the same page.

All files of its trials go into one archive. What no page shows is left out of them: the single samples
of wait events (kept: their sum per second), and which transaction of a second was whose.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping

from benchlib.host.journal import sync
from benchlib.load.latency import thin_log
from benchlib.study.records import Samples
from benchlib.study.store import ARCHIVE, PENDING, TRANSACTION_LOG, StudyFolder

NOTE = "packed; of waits the sums per second are kept, of transactions the second, latency and status"
"""What the provenance of a trimmed study says of its raw files."""


def trim(folder: StudyFolder) -> tuple[int, int]:
    """Trim a study in place; what it weighed before and weighs now, in bytes.

    It is as it was, or trimmed, at any moment; trimming it again changes nothing but what has been added.

    Raises:
        InputError: there is no such study, or a file of it is damaged; what was trimmed until then stays so.
        StudyError: the disk refused.

    """
    study, before = folder.read(), _size(folder)
    for trial_id in folder.kept():
        Samples.read(folder, trial_id)  # a damaged one is named before anything is packed
        if path := folder.transaction_log(trial_id):
            pending = path.with_name(f"{PENDING}{path.name}")
            with folder.disk():
                if thin_log(path, pending):
                    sync(pending)
                    pending.rename(path)
    _pack(folder)
    if study.provenance.get("raw_files") != NOTE:
        folder.write(study.model_copy(update={"provenance": {**study.provenance, "raw_files": NOTE}}))
    return before, _size(folder)


def _pack(folder: StudyFolder) -> None:
    """Put the files of all trials into one archive; logs of transactions stay where they are.

    At any moment each file is in its folder or in the archive, and what is in the folder counts, so this may be
    done again, after an interruption or after more trials.
    """
    paths = [path for path in folder.path.glob("trials/[!.]*/[!.]*") if path.name != TRANSACTION_LOG]
    if not paths:
        return
    loose = {
        f"trials/{path.parent.name}/{path.name}": _thinned(path.name, path.read_bytes()) for path in paths
    }
    folder.put(ARCHIVE, _archive({**folder.packed(), **loose}))
    with folder.disk():
        for path in paths:
            path.unlink()
        for emptied in {path.parent for path in paths}:
            if not any(emptied.iterdir()):
                emptied.rmdir()


def _thinned(name: str, data: bytes) -> bytes:
    # stored, not compressed: the archive around it finds what the trials have in common
    return Samples.from_bytes(data).thinned().to_bytes(0) if name == Samples.FILE else data


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A ``tar.xz`` of files by their path in it: the same files give the same bytes."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        # files of one name next to each other, since they resemble each other most
        for path in sorted(files, key=lambda path: (path.rpartition("/")[2], path)):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            archive.addfile(member, io.BytesIO(files[path]))
    return lzma.compress(tar.getvalue(), preset=6 | lzma.PRESET_EXTREME)


def _size(folder: StudyFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
