"""The files of a study's trials in one archive.

An archive may come from somebody else: none is unpacked beyond a limit, and what is no file of a trial is refused.
"""

import io
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping

ARCHIVE = "trials.tar.xz"
PATH = re.compile(r"trials(?:/[A-Za-z0-9][\w.-]*){2}", re.ASCII)
"""Where a file of a trial is in its study."""
MOST = 256 << 20
"""Bytes of a file, or of all that an archive unpacks to."""
_RATIO, _LITTLE = 400, 16 << 20
"""Bytes that each byte of an archive unpacks to at most, where that is not little: a study's is a fourth of that."""


def pack(files: Mapping[str, bytes]) -> bytes:
    """A ``tar.xz`` of files by their path in it: the same files give the same bytes.

    Raises:
        ValueError: they are more than an archive may hold.

    """
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        # files of one name next to each other, since they resemble each other most
        for path in sorted(files, key=lambda path: (path.rpartition("/")[2], path)):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            archive.addfile(member, io.BytesIO(files[path]))
    packed = lzma.compress(tar.getvalue(), preset=6 | lzma.PRESET_EXTREME)
    if tar.tell() > _most(packed):
        raise ValueError("the study's files are too many for one archive")
    return packed


def unpack(archive: bytes | None) -> dict[str, bytes]:
    """The files of an archive by their path in it; none where there is no archive.

    Raises:
        ValueError: it is damaged, or holds what no study's does.

    """
    if archive is None:
        return {}
    most = _most(archive)
    try:
        unpacking = lzma.LZMADecompressor(memlimit=MOST)
        tar = unpacking.decompress(archive, most)
        if not unpacking.eof:
            raise EOFError(f"it is cut, or unpacks to more than {most >> 20} MiB")
        return dict(_members(tar))
    except (tarfile.TarError, lzma.LZMAError, EOFError) as reason:
        raise ValueError(reason) from None


def _most(packed: bytes) -> int:
    """How many bytes an archive may unpack to: no study's archive comes near."""
    return min(MOST, max(_LITTLE, _RATIO * len(packed)))


def _members(tar: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of a tar archive; by hand, since a stranger's may hold what no study's does."""
    place, seen = 0, set[str]()
    while any(header := tar[place : place + tarfile.BLOCKSIZE]):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        begin = place + tarfile.BLOCKSIZE
        place = begin + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if member.isdir() and not member.size:
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not PATH.fullmatch(member.name):
            raise ValueError(f"{member.name[:99]!r} is no file of a trial")
        if member.size < 0 or begin + member.size > len(tar) or member.name in seen:
            raise ValueError(f"{member.name!r} is cut, or there twice")
        seen.add(member.name)
        yield member.name, tar[begin : begin + member.size]
