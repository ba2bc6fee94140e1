"""Work on all processors, its results in order, with few of them waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R")
_SPARE = 2  # so that no thread waits for whoever asks
_WORKERS = min(pa.cpu_count(), 8)  # numpy and pyarrow let other threads run; more of them cost memory


def ahead(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Like ``map``, in threads, which are never more than a few results ahead of whoever asks."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(_WORKERS) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > _WORKERS + _SPARE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
