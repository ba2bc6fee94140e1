"""What the kernel has in memory of some files."""

import os
from pathlib import Path

import needs

from benchlib.host import page_cache

pytestmark = needs.linux


def test_what_is_read_is_in_memory_and_what_is_dropped_is_not(scratch: Path) -> None:
    (scratch / "below").mkdir()
    (scratch / "empty").touch()
    assert page_cache.resident_share(scratch) == 0
    for number in range(3):
        (scratch / "below" / str(number)).write_bytes(os.urandom((1 << 20) + 1))
    page_cache.fill(scratch)
    filled = page_cache.resident_share(scratch)
    page_cache.evict(scratch)
    assert page_cache.resident_share(scratch) < filled, "what else reads or frees memory is not ours to say"
