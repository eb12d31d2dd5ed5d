"""APPO on tasks of seconds whose best policy is known, with rollouts that are always stale."""

from __future__ import annotations

import pytest
import torch

from tests.learners.support import CPU
from tests.learners.test_ppo_learns import (
    GAMMA,
    Env,
    PointMass,
    best_cost_factor,
    discounted_cost,
)
from unilab.buffers.rollout import Rollout
from unilab.config.appo import APPOConfig
from unilab.learners.appo import APPO
from unilab.learners.base import LearnerSpec


def config(**changes: object) -> APPOConfig:
    settings = {
        "num_steps": 16,
        "actor_hidden": [32, 32],
        "critic_hidden": [32, 32],
        "gamma": GAMMA,
        "epochs": 5,
    }
    return APPOConfig.model_validate(settings | changes)


def train(env: Env, learner: APPO, iterations: int, *, lag: int) -> None:
    """Train on rollouts of the policy of `lag` updates before."""
    steps, dim = learner.config.num_steps, env.obs.shape[1]
    policies = [learner.snapshot() for _ in range(lag + 1)]
    rollouts = [
        Rollout(steps, env.num_envs, dim, dim, learner.spec.action_dim, CPU) for _ in range(lag + 1)
    ]
    rollouts[-1].set_first(env.obs, env.obs, 0, env.num_envs)
    rollouts[-1].obs[-1], rollouts[-1].critic_obs[-1] = env.obs, env.obs
    for i in range(iterations + lag):
        rollout = rollouts[i % (lag + 1)]
        rollout.carry_over(rollouts[(i - 1) % (lag + 1)])
        for t in range(steps):
            out = policies[i % (lag + 1)].act(rollout.obs[t], True, learner.acting_generator)
            reward, time_out, final = env.step(out.action)
            never = torch.zeros_like(time_out)
            rollout.append(
                t,
                0,
                env.num_envs,
                action=out.action,
                mean=out.mean,
                log_prob=out.log_prob,
                reward=reward.numpy(),
                terminated=never.numpy(),
                truncated=time_out.numpy(),
                final_critic_obs=final.numpy(),
                next_obs=env.obs.numpy(),
                next_critic_obs=env.obs.numpy(),
            )
        if i >= lag:
            learner.update(rollouts[(i - lag) % (lag + 1)])
        learner.publish(policies[i % (lag + 1)])


@pytest.mark.parametrize("lag", [0, 2])
def test_point_mass_comes_within_a_tenth_of_the_optimum(lag: int) -> None:
    learner = APPO(config(), LearnerSpec(2, 2, 2), CPU, seed=1)
    start = 4 * torch.rand(256, 2, generator=torch.Generator().manual_seed(5)) - 2
    optimum = best_cost_factor() * start.square().sum(-1).mean().item()
    train(PointMass(128, seed=2), learner, 60, lag=lag)
    after = discounted_cost(learner, start).mean().item()
    print(f"optimum {optimum:.3f}, found {after:.3f}")
    assert optimum * (1 - 1e-4) <= after
    assert optimum / after >= 0.9
