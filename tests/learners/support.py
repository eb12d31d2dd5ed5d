"""Small real things that several learner tests share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.buffers.rollout import Rollout
from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec, Mirror, Symmetry
from unilab.learners.ppo import PPO

CPU = torch.device("cpu")
OBS_DIM, CRITIC_OBS_DIM, ACTION_DIM = 5, 7, 3
OBS_MIRROR = ([1, 0, 2, 3, 4], [1.0, 1.0, -1.0, 1.0, -1.0])
CRITIC_OBS_MIRROR = ([1, 0, 2, 3, 4, 6, 5], [1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0])
ACTION_MIRROR = ([1, 0, 2], [-1.0, -1.0, 1.0])
MIRRORS = (OBS_MIRROR, CRITIC_OBS_MIRROR, ACTION_MIRROR)
SYMMETRY = Symmetry(*(Mirror.from_lists(*m) for m in MIRRORS))
SPEC = LearnerSpec(OBS_DIM, CRITIC_OBS_DIM, ACTION_DIM, SYMMETRY)


def small_config(**changes: object) -> PPOConfig:
    settings = {
        "epochs": 3,
        "minibatches": 4,
        "actor_hidden": [16, 12],
        "critic_hidden": [12, 16],
        "num_steps": 6,
    }
    return PPOConfig.model_validate(settings | changes)


def small_learner(seed: int = 3, dtype: torch.dtype = torch.float32, **changes: object) -> PPO:
    return PPO(small_config(**changes), SPEC, CPU, seed, dtype)


@dataclass
class Collected:
    rollout: Rollout
    final_critic_obs: Tensor  # (T, N, C) dense


def collect(
    learner: PPO, seed: int, num_steps: int = 6, num_envs: int = 8, rollout: Rollout | None = None
) -> Collected:
    """Fill a rollout with random data and the learner's own actions, in two groups.

    About one step in six is truncated, one in six terminated, some both. Observations have an
    uneven mean and scale, so that a normaliser matters.
    """
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=draw, dtype=torch.float64).to(learner.dtype)
        return values * torch.linspace(0.5, 2.0, shape[-1]) + torch.linspace(-1, 1, shape[-1])

    if rollout is None:
        dims = (OBS_DIM, CRITIC_OBS_DIM, ACTION_DIM)
        rollout = Rollout(num_steps, num_envs, *dims, CPU, learner.dtype)
        rollout.set_first(normal(num_envs, OBS_DIM), normal(num_envs, CRITIC_OBS_DIM), 0, num_envs)
    else:
        rollout.carry_over()
    finals = torch.full((num_steps, num_envs, CRITIC_OBS_DIM), 7.0, dtype=learner.dtype)
    half = num_envs // 2
    for t in range(num_steps):
        for start, stop in ((0, half), (half, num_envs)):
            n = stop - start
            out = learner.act(rollout.obs[t, start:stop])
            finals[t, start:stop] = normal(n, CRITIC_OBS_DIM)
            rollout.append(
                t,
                start,
                stop,
                action=out.action,
                mean=out.mean,
                log_prob=out.log_prob,
                reward=normal(n).numpy(),
                terminated=(torch.rand(n, generator=draw) < 0.17).numpy(),
                truncated=(torch.rand(n, generator=draw) < 0.17).numpy(),
                final_critic_obs=finals[t, start:stop].numpy(),
                next_obs=normal(n, OBS_DIM).numpy(),
                next_critic_obs=normal(n, CRITIC_OBS_DIM).numpy(),
            )
    return Collected(rollout, finals)


def tensors_of(state: dict[str, object], prefix: str = "") -> dict[str, Tensor]:
    """Every tensor in a nested state, by its path."""
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            found[prefix + key] = value
        elif isinstance(value, dict):
            found |= tensors_of(value, f"{prefix}{key}.")
    return found
