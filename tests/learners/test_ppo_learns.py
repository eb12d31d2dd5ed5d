"""PPO on tasks of seconds whose best policy is known."""

from __future__ import annotations

import math
from typing import Protocol

import pytest
import torch
from torch import Tensor

from tests.learners.support import CPU
from unilab.buffers.rollout import Rollout
from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.ppo import PPO

GAMMA = 0.9


class Env(Protocol):
    """A batch of environments with automatic reset. Episodes end only by their time limit."""

    num_envs: int
    obs: Tensor  # (N, O)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns reward (N,), time_out (N,) bool and the observation before any reset (N, O)."""
        ...


class PointMass:
    """x' = x + u with cost x^2 + u^2 an axis: a linear quadratic regulator with a known optimum."""

    limit = 20

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs, self.draw = num_envs, torch.Generator().manual_seed(seed)
        self.obs = self.start()
        self.age = torch.randint(0, self.limit, (num_envs,), generator=self.draw)

    def start(self) -> Tensor:
        return 4 * torch.rand(self.num_envs, 2, generator=self.draw) - 2

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reward = -(self.obs.square() + action.square()).sum(-1)
        final = self.obs + action
        self.age += 1
        time_out = self.age == self.limit
        self.age[time_out] = 0
        self.obs = torch.where(time_out.unsqueeze(1), self.start(), final)
        return reward, time_out, final


class Machine:
    """Switching the machine on costs 1 once; running, it earns 0.3 a step, for ever.

    Episodes are cut after 3 steps and half of them start with the machine running. By the
    discounted return, -1 + 0.9 * 0.3 / (1 - 0.9) > 0: switch it on. Within 3 steps, never.
    """

    limit = 3

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs, self.draw = num_envs, torch.Generator().manual_seed(seed)
        self.obs = self.start()
        self.age = torch.randint(0, self.limit, (num_envs,), generator=self.draw)

    def start(self) -> Tensor:
        return torch.randint(0, 2, (self.num_envs, 1), generator=self.draw).float()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        running, switch = self.obs[:, 0] > 0, action[:, 0] > 0
        reward = torch.where(running, 0.3, torch.where(switch, -1.0, 0.0))
        final = (running | switch).float().unsqueeze(1)
        self.age += 1
        time_out = self.age == self.limit
        self.age[time_out] = 0
        self.obs = torch.where(time_out.unsqueeze(1), self.start(), final)
        return reward, time_out, final


def train(env: Env, learner: PPO, iterations: int, *, time_out_is_truncation: bool = True) -> None:
    steps, dim = learner.config.num_steps, env.obs.shape[1]
    rollout = Rollout(steps, env.num_envs, dim, dim, learner.spec.action_dim, CPU)
    rollout.set_first(env.obs, env.obs, 0, env.num_envs)
    for _ in range(iterations):
        for t in range(steps):
            out = learner.act(rollout.obs[t])
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
                terminated=(never if time_out_is_truncation else time_out).numpy(),
                truncated=(time_out if time_out_is_truncation else never).numpy(),
                final_critic_obs=final.numpy(),
                next_obs=env.obs.numpy(),
                next_critic_obs=env.obs.numpy(),
            )
        learner.update(rollout)
        rollout.carry_over()


def config(**changes: object) -> PPOConfig:
    settings = {
        "num_steps": 16,
        "actor_hidden": [32, 32],
        "critic_hidden": [32, 32],
        "gamma": GAMMA,
        "activation": "elu",
    }
    return PPOConfig.model_validate(settings | changes)


def best_cost_factor() -> float:
    """P of the discounted Riccati equation of the point mass: least cost from x is P |x|^2."""
    p = 1.0
    for _ in range(1000):
        p = 1 + GAMMA * p - (GAMMA * p) ** 2 / (1 + GAMMA * p)
    return p


def discounted_cost(learner: PPO, start: Tensor) -> Tensor:
    x, cost = start, torch.zeros(start.shape[0])
    for t in range(150):
        u = learner.act(x, explore=False).action
        cost += GAMMA**t * (x.square() + u.square()).sum(-1)
        x = x + u
    return cost


def test_point_mass_comes_within_a_tenth_of_the_optimum() -> None:
    learner = PPO(config(), LearnerSpec(2, 2, 2), CPU, seed=1)
    start = 4 * torch.rand(256, 2, generator=torch.Generator().manual_seed(5)) - 2
    optimum = best_cost_factor() * start.square().sum(-1).mean().item()
    before = discounted_cost(learner, start).mean().item()
    train(PointMass(128, seed=2), learner, iterations=60)
    after = discounted_cost(learner, start).mean().item()
    assert before > 3 * optimum
    assert optimum * (1 - 1e-4) <= after
    assert optimum / after >= 0.9


@pytest.mark.parametrize("truncation", [True, False])
def test_a_time_limit_hides_a_slow_profit_unless_returns_bootstrap(truncation: bool) -> None:
    learner = PPO(config(entropy_coef=0.0), LearnerSpec(1, 1, 1), CPU, seed=1)
    train(Machine(128, seed=2), learner, iterations=25, time_out_is_truncation=truncation)
    mean = learner.act(torch.zeros(1, 1), explore=False).mean.item()
    std = learner.actor.std.item()
    share = 0.5 * (1 + math.erf(mean / (std * math.sqrt(2))))  # how often it switches on
    assert share > 0.9 if truncation else share < 0.1
