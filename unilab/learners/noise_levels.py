"""Levels of exploration noise that differ from env to env."""

from __future__ import annotations

import torch
from torch import Tensor


class NoiseLevels:
    """A standard deviation for each env, uniform between two bounds, that stays for a while.

    A batch of envs then always has calm and wild ones. Source: FastTD3, arXiv 2505.22642, which
    draws a level anew at the end of an episode; here chance decides.

    Args:
      low, high: bounds.
      redraw: share of the envs that draw anew in a step.
      like: a tensor of the levels' device and dtype.

    Attributes:
      std: (N, 1) the levels; N is the most rows asked for so far.
    """

    def __init__(self, low: float, high: float, redraw: float, like: Tensor) -> None:
        self._low, self._spread, self._redraw = low, high - low, redraw
        self.std = like.new_zeros(0, 1)

    def next(self, rows: int, generator: torch.Generator) -> Tensor:
        """The levels (rows, 1) of the next control step, after some were drawn anew. A view."""

        def uniform(count: int) -> Tensor:
            return self.std.new_empty(count, 1).uniform_(generator=generator)

        more = rows - self.std.shape[0]
        if more > 0:
            self.std = torch.cat([self.std, uniform(more) * self._spread + self._low])
        levels = self.std[:rows]
        redrawn = uniform(rows) < self._redraw
        levels.copy_(torch.where(redrawn, uniform(rows) * self._spread + self._low, levels))
        return levels
