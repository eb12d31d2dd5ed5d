"""Memory bandwidth, measured by copying what no cache holds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import psutil

CACHE_MULTIPLE = 4  # the copied array is this many times the last-level cache
MEMORY_SHARE = 0.4  # of what is free, for source and target together


@dataclass(frozen=True)
class Bandwidth:
    """What memory delivers, bytes read plus bytes written.

    Attributes:
      one_thread_bytes_per_s, all_threads_bytes_per_s: best of the repeats.
      threads: how many "all" are.
      array_bytes: size of the copied array.
      cache_bytes: the last-level cache.
    """

    one_thread_bytes_per_s: float
    all_threads_bytes_per_s: float
    threads: int
    array_bytes: int
    cache_bytes: int

    @property
    def beyond_cache(self) -> bool:
        """The array was as large as it should be; else free memory did not allow it."""
        return self.array_bytes >= CACHE_MULTIPLE * self.cache_bytes


def measure_bandwidth(cache_bytes: int, threads: int, repeats: int = 3) -> Bandwidth:
    """Time copies of an array of at least four times the last-level cache.

    Args:
      cache_bytes: size of that cache.
      threads: copy with one, and with this many.
      repeats: the best one counts: other programs only take bandwidth away.
    """
    free = int(psutil.virtual_memory().available * MEMORY_SHARE / 2)
    size = min(CACHE_MULTIPLE * cache_bytes, free) // 8
    source, target = np.ones(size), np.empty(size)
    cuts = [size * k // threads for k in range(threads + 1)]
    parts = [slice(cuts[k], cuts[k + 1]) for k in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def copy(part: slice) -> None:
            np.copyto(target[part], source[part])

        def copy_all() -> None:
            for done in [pool.submit(copy, part) for part in parts]:
                done.result()

        copy_all()  # first touch
        one = min(_timed(lambda: copy(slice(None))) for _ in range(repeats))
        every = min(_timed(copy_all) for _ in range(repeats)) if threads > 1 else one
    moved = 2 * size * 8
    return Bandwidth(moved / one, moved / min(one, every), threads, size * 8, cache_bytes)


def _timed(action: object) -> float:
    begin = perf_counter()
    assert callable(action)
    action()
    return perf_counter() - begin
