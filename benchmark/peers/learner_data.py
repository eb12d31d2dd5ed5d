"""The rollout that both learners are given: same shapes, same numbers, random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

OBS_DIM, CRITIC_OBS_DIM, NUM_ACTIONS = 98, 101, 29
NUM_STEPS, EPOCHS, MINIBATCHES = 24, 3, 4
LEARNING_RATE, MAX_GRAD_NORM, INIT_STD = 1e-4, 1.0, 0.8
CLIP, GAMMA, LAM, VALUE_COEF, ENTROPY_COEF = 0.2, 0.98, 0.95, 1.0, 0.005
END_SHARE = 0.02  # of the steps end an episode

NETS: dict[str, list[int]] = {"128-128": [128, 128], "512-256-128": [512, 256, 128]}


@dataclass(frozen=True)
class Data:
    """What the envs gave in T steps of N envs.

    Attributes:
      obs: (T + 1, N, 98).
      critic_obs: (T + 1, N, 101).
      reward: (T, N).
      terminated: (T, N) bool.
    """

    obs: Tensor
    critic_obs: Tensor
    reward: Tensor
    terminated: Tensor

    @classmethod
    def draw(cls, num_envs: int) -> Data:
        """Draw a rollout, always the same one."""
        generator = torch.Generator().manual_seed(0)

        def normal(steps: int, *rest: int) -> Tensor:
            return torch.randn(steps, num_envs, *rest, generator=generator)

        ends = torch.rand(NUM_STEPS, num_envs, generator=generator) < END_SHARE
        return cls(
            normal(NUM_STEPS + 1, OBS_DIM),
            normal(NUM_STEPS + 1, CRITIC_OBS_DIM),
            0.1 * normal(NUM_STEPS),
            ends,
        )


def summarise(collect_s: list[float], update_s: list[float], parameters: int) -> dict[str, float]:
    """Return the medians in ms: acting and storing a rollout, learning from it, both."""
    total = [a + b for a, b in zip(collect_s, update_s, strict=True)]
    median = {
        name: 1e3 * float(torch.tensor(values).median())
        for name, values in (("act_ms", collect_s), ("update_ms", update_s), ("total_ms", total))
    }
    return {**median, "parameters": parameters}
