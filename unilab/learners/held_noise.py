"""Exploration noise that is held for a random number of control steps."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

# P(hold for k steps) is proportional to k to this power. Source: FlashSAC, arXiv 2604.04539.
EXPONENT = -2.0


class HeldNoise:
    """Standard normal vectors, one an env, that last k steps; k follows a zeta law cut at `most`.

    Noise that stays moves a robot further than noise that is drawn anew in each step.

    Args:
      action_dim: A.
      most: largest k.
      hold: one k for all envs, or one for each.
      device, dtype: of the noise.
    """

    def __init__(
        self,
        action_dim: int,
        most: int,
        hold: Literal["shared", "per_env"],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._shared = hold == "shared"
        share = torch.arange(1, most + 1, dtype=torch.float64) ** EXPONENT
        cumulative = (share / share.sum()).cumsum(0)
        cumulative[-1] = 1.0
        self.cumulative = cumulative.to(device, torch.float32)  # (most,) P(k <= index + 1)
        self.noise = torch.zeros(0, action_dim, device=device, dtype=dtype)  # (N, A)
        self.left = torch.zeros(0, device=device, dtype=torch.int64)  # (1,) or (N,) steps to go

    def resize(self, rows: int) -> None:
        """Make room for N envs, all of which draw anew."""
        self.noise = self.noise.new_zeros(rows, self.noise.shape[1])
        self.left = self.left.new_zeros(1 if self._shared else rows)

    def next(self, rows: int, generator: torch.Generator) -> Tensor:
        """The noise (N, A) of the next control step of N envs. A view, valid until the next call.

        Draws as many numbers whether they are needed or not, so that nothing waits for the device.
        """
        if self.noise.shape[0] != rows:
            self.resize(rows)
        fresh = self.left <= 0
        uniform = torch.rand(
            self.left.shape, generator=generator, device=self.left.device, dtype=torch.float32
        )
        hold = torch.searchsorted(self.cumulative, uniform, right=True).add_(1)
        drawn = torch.empty_like(self.noise).normal_(generator=generator)
        self.noise.copy_(torch.where(fresh.unsqueeze(1), drawn, self.noise))
        self.left.copy_(torch.where(fresh, hold, self.left)).sub_(1)
        return self.noise
