"""Small real things that the tests of the off-policy learners share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.learners.support import ACTION_DIM, CPU, CRITIC_OBS_DIM, OBS_DIM, SYMMETRY
from unilab.config.off_policy import SACConfig, TD3Config
from unilab.learners.base import LearnerSpec
from unilab.learners.ensemble import EnsembleLinear, EnsembleNetwork, EnsembleNorm, ResidualBlock
from unilab.learners.off_policy import Batch
from unilab.learners.off_policy_core import OffPolicyCore
from unilab.learners.sac import SAC
from unilab.learners.td3 import TD3

LIMITS = (0.5, 2.0, 1.5)
SPEC = LearnerSpec(OBS_DIM, CRITIC_OBS_DIM, ACTION_DIM, SYMMETRY, LIMITS)
KINDS = ("sac", "td3")
SMALL = {
    "batch_size": 12,
    "updates_per_step": 4,
    "actor_every": 2,
    "actor_hidden": [16, 12],
    "critic_hidden": [12, 16],
    "atoms": 11,
    "v_min": -3.0,
    "v_max": 4.0,
}


def small(
    kind: str, seed: int = 3, dtype: torch.dtype = torch.float32, **changes: Any
) -> OffPolicyCore:
    settings = SMALL | changes
    if kind == "sac":
        return SAC(SACConfig.model_validate(settings), SPEC, CPU, seed, dtype)
    return TD3(TD3Config.model_validate(settings), SPEC, CPU, seed, dtype)


def random_batch(learner: OffPolicyCore, seed: int) -> Batch:
    """Transitions with uneven observations; one in six terminated, one in ten without weight."""
    draw = torch.Generator().manual_seed(seed)
    rows = learner.batch_size * learner.updates_per_step

    def normal(width: int) -> Tensor:
        values = torch.randn(rows, width, generator=draw, dtype=torch.float64)
        values = values * torch.linspace(0.5, 2.0, width) + torch.linspace(-1, 1, width)
        return values.to(learner.dtype)

    steps = torch.randint(1, 4, (rows,), generator=draw)
    goes_on = (torch.rand(rows, generator=draw) > 0.17).to(learner.dtype)
    limit = torch.tensor(LIMITS, dtype=learner.dtype)
    return Batch(
        obs=normal(OBS_DIM),
        critic_obs=normal(CRITIC_OBS_DIM),
        action=torch.tanh(normal(ACTION_DIM)) * limit,
        reward=2 * normal(1)[:, 0],
        discount=0.9**steps * goes_on,
        next_obs=normal(OBS_DIM),
        next_critic_obs=normal(CRITIC_OBS_DIM),
        weight=(torch.rand(rows, generator=draw) > 0.1).to(learner.dtype),
    )


def observe_something(learner: OffPolicyCore, seed: int = 5) -> None:
    """Give the normalisers statistics that matter."""
    batch = random_batch(learner, seed)
    learner.observe(batch.obs * 2 + 0.3, batch.critic_obs * 3 - 0.2)


def member(network: EnsembleNetwork, index: int) -> list[tuple[str, list[Tensor]]]:
    """One member of an ensemble as the references take it, copied, in float64 leaves."""

    def leaves(module: nn.Module) -> list[Tensor]:
        assert isinstance(module, EnsembleLinear | EnsembleNorm)
        weight = module.weight.detach()[index].clone()
        weight = weight if isinstance(module, EnsembleLinear) else weight[0]
        return [weight.requires_grad_(), module.bias.detach()[index, 0].clone().requires_grad_()]

    steps: list[tuple[str, list[Tensor]]] = []
    for module in (network.embed, *network.trunk, network.head):
        if isinstance(module, EnsembleLinear):
            steps.append(("linear", leaves(module)))
        elif isinstance(module, EnsembleNorm):
            steps.append(("norm", leaves(module)))
        elif isinstance(module, ResidualBlock):
            parts = [leaves(m) for m in (module.norm, module.widen, module.narrow)]
            steps.append(("block", [t for part in parts for t in part]))
        elif not isinstance(module, nn.Identity):
            steps.append(("act", []))
    return steps


def mirrored(x: Tensor, mirror: tuple[list[int], list[float]]) -> Tensor:
    permutation, sign = mirror
    return torch.stack([sign[i] * x[..., permutation[i]] for i in range(len(sign))], dim=-1)
