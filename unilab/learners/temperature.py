"""The weight of the entropy in soft actor-critic."""

from __future__ import annotations

import math

from torch import Tensor, nn


class Temperature(nn.Module):
    """The weight of the entropy, kept positive as the exponential of its parameter.

    Args:
      start: the first weight.
      like: a tensor of the parameter's device and dtype.
    """

    def __init__(self, start: float, like: Tensor) -> None:
        super().__init__()
        self.log = nn.Parameter(like.new_tensor(math.log(start)))  # ()

    def forward(self) -> Tensor:
        """The weight, ()."""
        return self.log.exp()
