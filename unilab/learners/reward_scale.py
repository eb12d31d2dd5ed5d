"""A scale for rewards, from the discounted returns that they add up to."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab.learners.normalize import RunningNormalizer

LEAST_SCALE = 1e-8  # rewards that are always 0 stay 0


class RewardScale:
    """Divides rewards so that discounted returns have a spread of 1 and stay within a range.

    G is each env's discounted sum of the rewards of its episode so far. The scale is the larger of
    the standard deviation of G and of max |G| / v_max. Source: FlashSAC, arXiv 2604.04539.

    Args:
      gamma: discount per control step.
      v_max: returns are scaled to within [-v_max, v_max].
      device, dtype: of the rewards.
    """

    def __init__(
        self, gamma: float, v_max: float, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._gamma, self._v_max = gamma, v_max
        self.moments = RunningNormalizer(1, enabled=True, device=device, dtype=dtype)
        self.peak = torch.zeros((), device=device, dtype=dtype)  # max |G|
        self.returns = torch.zeros(0, device=device, dtype=dtype)  # (N,) G
        self.inverse = torch.ones((), device=device, dtype=dtype)  # 1 / scale

    @torch.no_grad()
    def observe(self, reward: Tensor, ended: Tensor) -> None:
        """Take in the rewards of one control step of all N envs.

        A reward that is not finite is left out, and its env's return starts anew.

        Args:
          reward: (N,).
          ended: (N,) bool, the episode ended with this step.
        """
        if self.returns.shape[0] != reward.shape[0]:
            self.returns = self.returns.new_zeros(reward.shape[0])
        discounted = torch.add(reward, self.returns, alpha=self._gamma)
        finite = torch.isfinite(discounted)
        discounted = torch.where(finite, discounted, 0.0)
        self.moments.fold(discounted.unsqueeze(1))
        self.peak.copy_(torch.maximum(self.peak, discounted.abs().amax()))
        self.returns.copy_(discounted.masked_fill_(ended, 0.0))
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Derive `inverse` from the statistics. Call after writing them directly."""
        spread = self.moments.var[0].sqrt().to(self.peak.dtype)
        scale = torch.maximum(spread, self.peak / self._v_max).clamp_min_(LEAST_SCALE)
        self.inverse.copy_(torch.where(self.moments.count > 0, scale.reciprocal_(), 1.0))
