"""The shared memory that a PostgreSQL server leaves when it is killed with -9.

A server that ends in any other way removes it, and so does its next start; but these
servers have none. There are the System V segment that guards the data directory, whose key
and id stand on line 7 of ``postmaster.pid``, and POSIX segments, ``/dev/shm/PostgreSQL.N``:
the first one names a control segment, which lists the others. Here this is followed as the
server does at its next start. Source: ``src/include/storage/pg_shmem.h`` (``PGShmemHeader``) and
``src/backend/storage/ipc/dsm.c`` (``dsm_cleanup_using_control_segment``).

Linux only; elsewhere such a segment, of 56 bytes, stays until the next restart of the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from benchlib.host.shell import ticks

_SEGMENTS = Path("/proc/sysvipc/shm")
_POSIX = Path("/dev/shm")
_MAGIC = 679834894
_CONTROL_MAGIC = 0x9A503D32
_HEADER = struct.Struct("iiNNI")  # magic, creator, total and free size, control segment
_CONTROL = struct.Struct("III0P")  # magic, items, room for items; an item begins where a pointer may
_SHM_RDONLY, _IPC_RMID = 0o10000, 0
_PATIENCE_S = 1.0

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.shmat.restype = ctypes.c_void_p
_LIBC.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


def remove_left_below(folder: Path) -> None:
    """Remove what killed servers left whose data directories are below the folder.

    Only segments that nobody is attached to any more, that belong to the data directory's
    owner, and that are what PostgreSQL makes.

    Raises:
        OSError: a segment cannot be read or removed.

    """
    if not _SEGMENTS.exists():
        return
    for pid_file in _pid_files(folder):
        try:
            owner = pid_file.stat().st_uid
            segment = _segment(pid_file, owner)
        except FileNotFoundError:  # its server has just ended in order
            continue
        if segment is None:
            continue
        magic, *_, control = _HEADER.unpack(_read(segment, _HEADER.size))
        if magic == _MAGIC:
            for handle in (*_handles(control), control):
                _unlink(handle, owner)
            if _LIBC.shmctl(segment, _IPC_RMID, None) == -1:
                raise _error()


def _pid_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        if "PG_VERSION" in files:
            folders.clear()
        if "postmaster.pid" in files:
            yield Path(parent) / "postmaster.pid"


def _segment(pid_file: Path, owner: int) -> int | None:
    """The id of the data directory's segment if it is still there and nobody uses it.

    A killed process is gone from sight a moment before it has let go of its memory.
    """
    lines = pid_file.read_text(errors="replace").splitlines()
    named = lines[6].split() if len(lines) > 6 else []
    for _ in ticks(_PATIENCE_S):
        columns, *rows = map(str.split, _SEGMENTS.read_text().splitlines())
        segments = [dict(zip(columns, row, strict=False)) for row in rows]
        ours = [
            each for each in segments if [each["key"], each["shmid"], each["uid"]] == [*named, str(owner)]
        ]
        if not ours or ours[0]["nattch"] == "0":
            return int(ours[0]["shmid"]) if ours else None
    return None


def _read(segment: int, size: int) -> bytes:
    address = _LIBC.shmat(segment, None, _SHM_RDONLY)
    if address == ctypes.c_void_p(-1).value:
        raise _error()
    content = ctypes.string_at(address, size)
    _LIBC.shmdt(ctypes.c_void_p(address))
    return content


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _handles(control: int) -> list[int]:
    """The segments that a control segment lists as in use.

    An item begins with the segment's handle and its reference count. How long an item is has
    changed between versions, and follows from the size of the whole.
    """
    with contextlib.suppress(FileNotFoundError):
        content = (_POSIX / f"PostgreSQL.{control}").read_bytes()
        if len(content) > _CONTROL.size:
            magic, items, room = _CONTROL.unpack_from(content)
            if magic == _CONTROL_MAGIC and items <= room and room:
                step = (len(content) - _CONTROL.size) // room
                listed = (struct.unpack_from("II", content, _CONTROL.size + n * step) for n in range(items))
                return [handle for handle, references in listed if references]
    return []


def _unlink(handle: int, owner: int) -> None:
    path = _POSIX / f"PostgreSQL.{handle}"
    with contextlib.suppress(FileNotFoundError):  # some lie in the server's main memory
        if path.stat().st_uid == owner:
            path.unlink()
