"""Make a finished study small enough for a repository, with the same page.

All files of its trials go into one archive. What no page shows is left out of them: the single samples
of wait events (kept: their sum per second), and which transaction of a second was whose.
"""

from __future__ import annotations

from benchlib.load.latency.thinned import thin_log
from benchlib.study.records import Samples
from benchlib.study.store import StudyFolder

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
        folder.replace_log(trial_id, thin_log)
    folder.pack(_thinned)
    if study.provenance.get("raw_files") != NOTE:
        provenance = {**study.provenance, "raw_files": NOTE}
        folder.write(study.model_copy(update={"provenance": provenance}))
    return before, _size(folder)


def _thinned(name: str, data: bytes) -> bytes:
    # stored, not compressed: the archive around it finds what the trials have in common
    return Samples.from_bytes(data).thinned().to_bytes(0) if name == Samples.FILE else data


def _size(folder: StudyFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
