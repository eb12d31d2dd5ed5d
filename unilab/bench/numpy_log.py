"""The statistics of a step, as the fused kernels keep them: sums over blocks of 64 envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench.numpy_chunk import F32, I64, Mask
from unilab_kernels.arrays import FusedKernel
from unilab_kernels.spec import BLOCK, FAILURES

F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]


class StepLog:
    """Adds to the columns of ``log_io``.

    Args:
      kernel: the task's kernel, for the names of the columns.
      terminations: names, in the order of the flags.
    """

    def __init__(self, kernel: FusedKernel, terminations: Sequence[str]) -> None:
        self._column = {name: k for k, name in enumerate(kernel.log_names)}
        first = self._column["timeouts"] + 1
        self._rewards = slice(first, first + len(kernel.reward_names))
        self._terminations = [self._column[f"termination/{name}"] for name in terminations]

    def add_steps(self, log: F64, ids: I64, rewards: F32, total: F32) -> None:
        """Count one step of neighbouring envs, the first one at the border of a block.

        Args:
          log: (blocks, L).
          ids: (m,) env ids.
          rewards: (K, m), each term.
          total: (m,), their weighted sum.
        """
        whole = len(ids) // BLOCK
        if len(ids) != ids[-1] - ids[0] + 1 or ids[0] % BLOCK:
            self.add_rows(log, ids, rewards, total)
            return
        if whole:
            rows = log[int(ids[0]) // BLOCK :][:whole]
            parts = rewards[:, : whole * BLOCK].reshape(len(rewards), whole, BLOCK)
            rows[:, self._column["steps"]] += BLOCK
            rows[:, self._rewards] += np.add.reduce(parts, axis=2).T
            sums = np.add.reduce(total[: whole * BLOCK].reshape(whole, BLOCK), axis=1)
            rows[:, self._column["reward_sum"]] += sums
        if len(ids) % BLOCK:
            rest = slice(whole * BLOCK, None)
            self.add_rows(log, ids[rest], rewards[:, rest], total[rest])

    def add_rows(self, log: F64, ids: I64, rewards: F32, total: F32) -> None:
        """Count one step of any envs; see `add_steps`."""
        blocks = ids // BLOCK
        self._add(log, "steps", blocks, 1.0)
        self._add(log, "reward_sum", blocks, total)
        for column, values in enumerate(rewards, self._rewards.start):
            np.add.at(log[:, column], blocks, values)

    def add_episodes(
        self, log: F64, ids: I64, returns: F64, lengths: Any, truncated: Mask, ends: Mask
    ) -> None:
        """Count episodes that ended; each (n,), ends (number of terminations, n)."""
        blocks = ids // BLOCK
        self._add(log, "episodes", blocks, 1.0)
        self._add(log, "return_sum", blocks, returns)
        self._add(log, "length_sum", blocks, lengths)
        self._add(log, "timeouts", blocks, truncated)
        for column, flags in zip(self._terminations, ends, strict=False):
            np.add.at(log[:, column], blocks, flags)

    def add_failures(self, log: F64, ids: I64, reasons: U8) -> None:
        """Count envs that failed, (n,), by their reason (1 and up)."""
        columns = self._column[f"failure/{FAILURES[1]}"] + reasons.astype(np.int64) - 1
        for block, column in zip(ids // BLOCK, columns, strict=True):
            log[block, column] += 1.0

    def _add(self, log: F64, name: str, blocks: I64, values: Any) -> None:
        np.add.at(log[:, self._column[name]], blocks, values)
