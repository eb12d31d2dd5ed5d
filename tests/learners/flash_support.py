"""Small real things that the tests of FlashSAC share."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.learners.off_policy_support import LIMITS, SPEC
from tests.learners.support import ACTION_DIM, CPU, CRITIC_OBS_DIM, OBS_DIM
from unilab.config.flashsac import FlashSACConfig
from unilab.learners.flashsac import FlashSAC
from unilab.learners.off_policy import Batch


def small_config(**changes: object) -> FlashSACConfig:
    settings = {
        "batch_size": 16,
        "actor_width": 12,
        "critic_width": 8,
        "atoms": 11,
        "expansion": 2,
        "learning_rate": 3e-3,
        "final_learning_rate": 1e-3,
        "decay_updates": 10,
    }
    return FlashSACConfig.model_validate(settings | changes)


def small_learner(seed: int = 3, dtype: torch.dtype = torch.float32, **changes: object) -> FlashSAC:
    return FlashSAC(small_config(**changes), SPEC, CPU, seed, dtype)


def random_batch(learner: FlashSAC, seed: int) -> Batch:
    """A cycle's batch: observations of uneven scale, some ends, some rows of weight 0."""
    draw = torch.Generator().manual_seed(seed)
    rows = learner.batch_size * learner.updates_per_step

    def normal(width: int) -> Tensor:
        values = torch.randn(rows, width, generator=draw, dtype=torch.float64)
        scale = torch.linspace(0.5, 5.0, width, dtype=torch.float64)
        return (values * scale + torch.linspace(-3, 3, width)).to(learner.dtype)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64).to(learner.dtype)

    return Batch(
        obs=normal(OBS_DIM),
        critic_obs=normal(CRITIC_OBS_DIM),
        action=(2 * uniform(rows, ACTION_DIM) - 1) * torch.tensor(LIMITS, dtype=learner.dtype),
        reward=normal(1)[:, 0],
        discount=0.97 * (uniform(rows) > 0.2).to(learner.dtype),
        next_obs=normal(OBS_DIM),
        next_critic_obs=normal(CRITIC_OBS_DIM),
        weight=(uniform(rows) > 0.1).to(learner.dtype),
    )
