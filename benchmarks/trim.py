"""Make a finished study small enough for a repository, with the same page.

All files of its trials go into one archive. What no page shows is left out of them: the single samples
of wait events (kept: their sum per second), and which transaction of a second was whose.
"""

import hashlib
import io
import json
import lzma
import sys
import tarfile
from collections.abc import Container, Mapping
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchlib.errors import InputError
from benchlib.host import files
from benchlib.host.telemetry import thinned
from benchlib.load.latency import FORMAT, METADATA, SECOND, readable
from benchlib.study.archive import ARCHIVE, most_unpacked
from benchlib.study.curate import check_idle
from benchlib.study.records import Samples, understood
from benchlib.study.store import TRANSACTION_LOG, StudyFolder, checksum, whole

NOTE = "packed: waits as sums per second, transactions as second and latency"
"""What the provenance of a trimmed study says of its raw files."""


def trim(folder: StudyFolder) -> tuple[int, int]:
    """Trim a study in place; what it weighed before and weighs now, in bytes.

    It is as it was, or trimmed, at any moment; trimming it again changes nothing but what has been added.

    Raises:
        InputError: there is no such study, or a file of it is damaged; what was trimmed until then stays so.
        StudyError: the disk refused.
        HostBusyError: it is being run.

    """
    study = folder.read()
    check_idle(folder.name)
    before, kept, listed = _size(folder), folder.kept(), folder.checksums()
    for trial_id in kept:
        if log := folder.transaction_log(trial_id):
            with folder.disk(), whole(log) as pending:
                path = log.relative_to(folder.path).as_posix()
                # what is read fits before and after it is exchanged
                if thin_log(log, pending) and path in listed:
                    folder.add_checksums({path: checksum(pending)})
    _pack(folder, kept)
    if listed:  # each file with the one checksum that it has now
        sums = {path: either for path, either in folder.checksums().items() if path.split("/")[1] in kept}
        now = {path: {_now(folder, path)} if len(either) > 1 else either for path, either in sums.items()}
        folder.list_checksums(now)
    if study.provenance.get("raw_files") != NOTE:
        folder.write(study.changed(provenance={**study.provenance, "raw_files": NOTE}))
    return before, _size(folder)


def thin_log(path: Path, target: Path) -> bool:
    """Write a transaction log from which the same latencies are read; return False if it is thin already."""
    with readable(path) as note:
        if note.get("thin"):
            return False
        table = pq.read_table(path, columns=["time_us", "latency_us", "script"])
    table = table.filter(pc.is_valid(table["latency_us"]))
    second = pc.multiply(pc.divide(table["time_us"], SECOND), SECOND)
    order = [(name, "ascending") for name in ("time_us", "script", "latency_us")]
    thin = table.set_column(0, "time_us", second).sort_by(order)
    thin = thin.replace_schema_metadata({METADATA: json.dumps({"thin": True})})
    pq.write_table(thin, target, **FORMAT, compression_level=19)
    return True


def _now(folder: StudyFolder, path: str) -> str:
    _, trial_id, name = path.split("/")
    if name == TRANSACTION_LOG:
        return checksum(folder.path / path)
    return hashlib.sha256(folder.raw(trial_id, name) or b"").hexdigest()


def _pack(folder: StudyFolder, trials: Container[str]) -> None:
    """Put the files of trials into one archive; logs of transactions stay where they are, and so do links.

    At any moment each file is in its folder or in the archive, and what is in the folder counts, so this may be
    done again, after an interruption or after more trials.

    Raises:
        InputError: they are more than an archive may hold.

    """
    places = [path for path in folder.path.glob("trials/[!.]*") if path.name in trials]
    folders = [place for place in places if not place.is_symlink()]
    contents = dict[str, bytes]()
    for path in (path for place in folders for path in place.glob("[!.]*") if path.name != TRANSACTION_LOG):
        if path.is_file() and not path.is_symlink():
            with understood(folder, path.parent.name):
                samples = Samples.read(folder, path.parent.name) if path.name == Samples.FILE else None
                # stored, not compressed: the archive around it finds what the trials have in common
                content = path.read_bytes()
                if samples:
                    content = Samples.model_validate(thinned(dict(samples))).to_bytes(0)
                contents[path.relative_to(folder.path).as_posix()] = content
    if not contents:
        return
    try:
        packed = pack({**folder.packed(), **contents})
    except ValueError as reason:
        raise InputError(f"{reason}: the study stays as it is") from None
    if listed := contents.keys() & folder.checksums().keys():
        folder.add_checksums({name: hashlib.sha256(contents[name]).hexdigest() for name in sorted(listed)})
    folder.put(ARCHIVE, packed)
    with folder.disk():
        for name in contents:
            files.remove(folder.path / name)
        for emptied in folders:
            if not any(emptied.iterdir()):
                files.remove(emptied)


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a reproducible ``tar.xz`` of files, by path.

    Raises:
        ValueError: the files exceed the limits of an archive.

    """
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        # files with equal names are similar: adjacent, they compress best
        for path in sorted(files, key=lambda path: (path.rpartition("/")[2], path)):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            archive.addfile(member, io.BytesIO(files[path]))
    packed = lzma.compress(tar.getvalue(), preset=6 | lzma.PRESET_EXTREME)
    if tar.tell() > most_unpacked(packed):
        raise ValueError("the study's files exceed the size limit of an archive")
    return packed


def _size(folder: StudyFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        before, after = trim(StudyFolder(name))
        print(f"{name}: {before / 1000:,.0f} kB before, {after / 1000:,.0f} kB now")
