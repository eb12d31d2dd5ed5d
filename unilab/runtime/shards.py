"""Runs a kernel over a range of env blocks, cut into shards, on a thread pool."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numba

from unilab.errors import ShardError, UnilabError
from unilab.runtime.thread_names import SHARD, name_thread
from unilab.runtime.threading_layer import start_layer
from unilab.runtime.threads import ENVS_PER_BLOCK, MIN_BLOCKS_PER_SHARD

LIGHT = 8  # a light kernel, such as the action map at 3 us a block, needs this many times more


class Shards:
    """W workers that run a kernel side by side. The kernels release the GIL.

    Shards are cut at block borders and a block never depends on another, so the number of shards
    never changes a result. The caller works too: with one shard no thread is started.

    Args:
      count: W.
      threads_per_shard: Numba threads that each worker may use inside a parallel kernel.
      min_blocks: a shard gets at least this many blocks; fewer do not pay for handing over.

    Raises:
      ConfigError: this process cannot run parallel kernels from several threads, or not with so
        many threads each.
    """

    def __init__(
        self, count: int, threads_per_shard: int = 1, *, min_blocks: int = MIN_BLOCKS_PER_SHARD
    ) -> None:
        self.count = count
        self.threads_per_shard = threads_per_shard
        self.min_blocks = min_blocks
        self._process_id = os.getpid()
        self._has_threads = count > 1 or threads_per_shard > 1
        if threads_per_shard > 1:
            start_layer("auto", threads_per_shard)
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:  # named early: the Numba threads of a worker take over its name
            self._pool = ThreadPoolExecutor(count - 1, SHARD, name_thread, (SHARD,))

    def run(
        self,
        kernel: Callable[..., None],
        first: int,
        last: int,
        num_envs: int,
        arrays: tuple[Any, ...],
        *,
        light: bool = False,
    ) -> None:
        """Run ``kernel(first_block, last_block, num_envs, *arrays)`` over blocks [first, last).

        Args:
          kernel: a compiled kernel.
          first, last: range of blocks.
          num_envs: N; the last block may be part of one.
          arrays: passed on.
          light: the kernel does little for each env.

        Raises:
          ShardError: a shard raised; carries its range of envs. All shards are finished by then.
          UnilabError: this process was forked from the one that made the shards: their threads
            are not in it, and waiting for them would never end.
        """
        if self._has_threads and os.getpid() != self._process_id:
            raise UnilabError(
                "this process was forked from the one that owns the kernel threads, which do not "
                "exist here; start it with the 'spawn' method of multiprocessing instead"
            )
        blocks = last - first
        least = self.min_blocks * (LIGHT if light else 1)
        count = max(1, min(self.count, blocks // least)) if self._pool is not None else 1
        cuts = [first + blocks * k // count for k in range(count + 1)]
        futures: list[Future[None]] = []
        try:
            for k in range(1, count):
                assert self._pool is not None
                arguments = (kernel, cuts[k], cuts[k + 1], num_envs, arrays)
                futures.append(self._pool.submit(self._work, *arguments))
            self._work(kernel, cuts[0], cuts[1], num_envs, arrays)
        finally:
            for future in futures:  # never leave a worker writing into arrays that go on
                future.exception()
        for future in futures:
            future.result()

    def _work(
        self,
        kernel: Callable[..., None],
        first: int,
        last: int,
        num_envs: int,
        arrays: tuple[Any, ...],
    ) -> None:
        try:
            if self.threads_per_shard > 1:
                numba.set_num_threads(self.threads_per_shard)  # is per thread, so set it in each
            kernel(first, last, num_envs, *arrays)
        except Exception as error:
            start, stop = first * ENVS_PER_BLOCK, min(last * ENVS_PER_BLOCK, num_envs)
            raise ShardError(start, stop, error) from error

    def close(self) -> None:
        """Stop the workers. May be called twice; a later `run` works in the caller alone."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
