"""Values as distributions over fixed atoms (C51): projection, expectation, loss. Pure functions of
tensors; where the atoms lie is a `Support`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class Support:
    """K atoms at equal distances from v_min to v_max, and what is computed on them.

    Source: Bellemare et al. 2017, "A distributional perspective on reinforcement learning".

    Args:
      v_min, v_max: first and last atom, in units of the return.
      atoms: K.
      device, dtype: of the values.
    """

    def __init__(
        self,
        v_min: float,
        v_max: float,
        atoms: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.v_min, self.v_max, self.last = v_min, v_max, atoms - 1
        self.gap = (v_max - v_min) / self.last
        exact = torch.linspace(v_min, v_max, atoms, dtype=torch.float64)
        self.values = exact.to(device=device, dtype=dtype)  # (K,)

    def shift(self, reward: Tensor, discount: Tensor) -> Tensor:
        """Where the atoms end up a step earlier: `reward + discount * values`, within the support.

        Args:
          reward, discount: (B,).

        Returns:
          (B, K).
        """
        moved = torch.addcmul(reward.unsqueeze(-1), discount.unsqueeze(-1), self.values)
        return moved.clamp_(self.v_min, self.v_max)

    def project(self, probs: Tensor, points: Tensor) -> Tensor:
        """Probabilities of the atoms, given those of points between them.

        Each point's mass is split between its two neighbours so that its mean stays; a point on an
        atom leaves all of it there.

        Args:
          probs: (..., B, K) mass of each point.
          points: (B, K) in [v_min, v_max].

        Returns:
          (..., B, K).
        """
        position = ((points - self.v_min) / self.gap).clamp_(0, self.last)
        floor = position.floor()
        above = probs * (position - floor)
        # Clamped as integers: NaN becomes some index, and reaches the result as mass.
        lower = floor.long().clamp_(0, self.last)
        upper = (lower + 1).clamp_max_(self.last)
        result = torch.zeros_like(probs)
        result.scatter_add_(-1, lower.expand_as(probs), probs - above)
        return result.scatter_add_(-1, upper.expand_as(probs), above)

    def mean(self, probs: Tensor) -> Tensor:
        """Expected value (...) of distributions (..., K).

        A product and a sum: a matrix product would round to TF32 on a GPU.
        """
        return (probs * self.values).sum(-1)


def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of the atoms: a weighted sum over rows, summed over the critics.

    Args:
      logits: (E, B, K).
      target: (E, B, K) or (B, K) probabilities.
      weight: (B,); for a mean they sum to 1.

    Returns:
      () nats.
    """
    rows = (target * functional.log_softmax(logits, -1)).sum(-1)  # (E, B)
    return -(rows * weight).sum()
