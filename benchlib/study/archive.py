"""The packed files of a study's trials; an archive may be hostile."""

import lzma
import re
import tarfile
from collections.abc import Iterator

ARCHIVE = "trials.tar.xz"
PATH = re.compile(r"trials(?:/[A-Za-z0-9][\w.-]*){2}", re.ASCII)
"""Path of a trial's file in its study."""
MOST = 256 << 20
"""Maximum size of a file, and of an unpacked archive (bytes)."""
_RATIO, _LITTLE = 400, 16 << 20
"""Maximum compression ratio (studies: a fourth), not checked up to a size in bytes."""


def unpack(archive: bytes | None) -> dict[str, bytes]:
    """Return the files of an archive by path.

    Raises:
        ValueError: it is damaged, too large, or has other files.

    """
    if archive is None:
        return {}
    most = most_unpacked(archive)
    try:
        unpacking = lzma.LZMADecompressor(memlimit=MOST)
        tar = unpacking.decompress(archive, most)
        if not unpacking.eof:
            raise EOFError(f"it is truncated, or larger than {most >> 20} MiB unpacked")
        return dict(_members(tar))
    except (tarfile.TarError, lzma.LZMAError, EOFError) as reason:
        raise ValueError(reason) from None


def most_unpacked(packed: bytes) -> int:
    """Return the maximum unpacked size in bytes."""
    return min(MOST, max(_LITTLE, _RATIO * len(packed)))


def _members(tar: bytes) -> Iterator[tuple[str, bytes]]:
    place, seen = 0, set[str]()
    while any(header := tar[place : place + tarfile.BLOCKSIZE]):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        begin = place + tarfile.BLOCKSIZE
        place = begin + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if member.isdir() and not member.size:
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not PATH.fullmatch(member.name):
            raise ValueError(f"{member.name[:99]!r} is not a file of a trial")
        if member.size < 0 or begin + member.size > len(tar) or member.name in seen:
            raise ValueError(f"{member.name!r} is truncated or listed twice")
        seen.add(member.name)
        yield member.name, tar[begin : begin + member.size]
