"""Many small files as one: alike as the trials of a study are, together they take a tenth of the room."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from benchlib.errors import InputError


def packed(files: Mapping[str, bytes]) -> bytes:
    """A ``tar.xz`` of files by their path in it: the same files give the same bytes."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        # files of one name next to each other, since they resemble each other most
        for path in sorted(files, key=lambda path: (path.rpartition("/")[2], path)):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            archive.addfile(member, io.BytesIO(files[path]))
    return lzma.compress(tar.getvalue(), preset=6 | lzma.PRESET_EXTREME)


def unpacked(path: Path) -> Mapping[str, bytes]:
    """The files of a ``tar.xz`` by their path in it.

    Raises:
        InputError: it is damaged.

    """
    return _unpacked(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _unpacked(path: Path, _modified_ns: int) -> Mapping[str, bytes]:
    try:
        with tarfile.open(path, "r:xz") as archive:
            members = [(member.name, archive.extractfile(member)) for member in archive]
            return {name: file.read() for name, file in members if file}
    except (tarfile.TarError, lzma.LZMAError, EOFError) as reason:
        raise InputError(
            f"{path.parent.name}/{path.name} is damaged ({reason}): bring it back from a copy"
        ) from None
