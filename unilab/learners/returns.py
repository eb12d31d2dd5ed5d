"""Advantages and returns of a rollout."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over T steps of N envs.

    The value that follows step t is 0 where the episode terminated, the value of the true final
    observation where it was only truncated, and `value[t + 1]` otherwise. Nothing is carried
    backwards across the end of an episode.

    Args:
      reward: (T, N).
      value: (T + 1, N), value[T] is that of the observation after the last step.
      terminated: (T, N) bool; wins over truncated.
      truncated: (T, N) bool.
      final_value: (T, N), read only where truncated and not terminated.
      gamma: discount per step.
      lam: weight of longer estimates, in [0, 1].

    Returns:
      advantage: (T, N).
      returns: (T, N), advantage + value[:T].

    Source: Schulman et al. 2016; truncation after Pardo et al. 2018.
    """
    num_steps = reward.shape[0]
    following = torch.where(truncated, final_value, value[1:]).masked_fill_(terminated, 0.0)
    delta = torch.add(reward, following, alpha=gamma).sub_(value[:num_steps])
    carry = (~(terminated | truncated)).to(reward.dtype).mul_(gamma * lam)
    advantage = delta
    for t in range(num_steps - 2, -1, -1):
        advantage[t].addcmul_(carry[t], advantage[t + 1])
    return advantage, advantage + value[:num_steps]
