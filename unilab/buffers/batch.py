"""What a replay buffer hands to an off-policy learner."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """B transitions over n steps, raw, on the learner's device. Valid until the next sample.

    Observations and actions are as they are stored, f32, or bf16 and f16: who normalises them
    converts them on the way, and nothing is written twice.

    The return of a transition is `reward + discount * V(next_obs)`: `reward` holds the discounted
    sum up to the end of the n steps or of the episode, and `discount` is gamma to the number of
    steps that were summed, 0 where the episode terminated. A row of weight 0 counts for nothing:
    the observation after its truncation is no longer stored.
    """

    obs: Tensor  # (B, O) f32 or bf16
    critic_obs: Tensor  # (B, C) f32 or bf16
    action: Tensor  # (B, A) f32 or f16
    reward: Tensor  # (B,) f32
    discount: Tensor  # (B,) f32
    next_obs: Tensor  # (B, O) f32 or bf16, the true one, also after a truncation
    next_critic_obs: Tensor  # (B, C) f32 or bf16
    weight: Tensor  # (B,) f32, 0 or 1
