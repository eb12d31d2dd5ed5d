"""Metrics averaged on the device, in slots that stay where they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class MetricSlots:
    """Sums values over the updates that counted, and gives their averages.

    Args:
      names: of the values, in the order they are added.
      device, dtype: of the values.

    Attributes:
      views: 0-d tensors by name, overwritten by `finish`; NaN where no update counted.
    """

    def __init__(self, names: Sequence[str], device: torch.device, dtype: torch.dtype) -> None:
        self._sums = torch.zeros(len(names) + 1, device=device, dtype=dtype)  # last: how many
        self._averages = torch.full((len(names),), torch.nan, device=device, dtype=dtype)
        self._one = torch.ones((), device=device, dtype=dtype)
        self.views = dict(zip(names, self._averages.unbind(), strict=True))

    @torch.no_grad()
    def add(self, values: Sequence[Tensor], counted: Tensor) -> None:
        """Take in the values () of one update; `counted` () False leaves them out."""
        row = torch.stack([*values, self._one])
        self._sums.add_(torch.where(counted, row, 0.0))

    def finish(self) -> None:
        """Write the averages of what was added since the last call."""
        torch.div(self._sums[:-1], self._sums[-1], out=self._averages)
        self._sums.zero_()
