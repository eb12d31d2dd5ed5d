"""FlashSAC on tasks of seconds whose best policy is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.learners.support import CPU
from tests.learners.test_ppo_learns import GAMMA, Env, PointMass, best_cost_factor
from unilab.config.flashsac import FlashSACConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.flashsac import FlashSAC
from unilab.learners.off_policy import Batch

REACH = 1.25  # what an action of 1 is to the point mass


def config(**changes: object) -> FlashSACConfig:
    settings = {
        "gamma": GAMMA,
        "batch_size": 128,
        "actor_width": 64,
        "critic_width": 64,
        "actor_blocks": 1,
        "critic_blocks": 1,
        "learning_rate": 3e-3,
        "final_learning_rate": 3e-4,
        "decay_updates": 1200,
        "tau": 0.05,
    }
    return FlashSACConfig.model_validate(settings | changes)


class BoundedPointMass(PointMass):
    """A point mass between walls, that the best policy never comes near. Without them, random
    actions would lead to costs whose range leaves no resolution to the categorical critic."""

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reward, time_out, final = super().step(action)
        self.obs.clamp_(-2, 2)
        return reward, time_out, final.clamp(-2, 2)


class PlainReplay:
    """Every transition ever seen, up to `most` steps of all envs, sampled evenly."""

    def __init__(self, env: Env, action_dim: int, most: int, seed: int) -> None:
        dim = env.obs.shape[1]
        self.draw, self.rows = torch.Generator().manual_seed(seed), 0
        self.widths = [dim, action_dim, 1, 1, dim]  # obs, action, reward, discount, next obs
        self.table = torch.zeros(most * env.num_envs, sum(self.widths))

    def add(self, *parts: Tensor) -> None:
        rows = torch.cat([part.view(len(part), -1) for part in parts], 1)
        self.table[self.rows : self.rows + len(rows)] = rows
        self.rows += len(rows)

    def sample(self, rows: int) -> Batch:
        ids = torch.randint(self.rows, (rows,), generator=self.draw)
        obs, action, reward, discount, after = self.table[ids].split(self.widths, 1)
        ones = torch.ones(rows)
        return Batch(obs, obs, action, reward[:, 0], discount[:, 0], after, after, ones)


def train(env: Env, learner: FlashSAC, steps: int) -> None:
    replay = PlainReplay(env, learner.spec.action_dim, steps, seed=3)
    random = torch.Generator().manual_seed(4)
    for t in range(steps):
        obs, action = env.obs.clone(), learner.act(env.obs).action
        if t < 20:
            action = 2 * torch.rand(action.shape, generator=random) - 1
        reward, time_out, final = env.step(REACH * action)
        replay.add(obs, action, reward, torch.full_like(reward, learner.config.gamma), final)
        learner.observe_rewards(reward, time_out)
        if t >= 20:
            learner.cycle(replay.sample(learner.batch_size * learner.updates_per_step))


def discounted_cost(learner: FlashSAC, start: Tensor) -> Tensor:
    x, cost = start, torch.zeros(start.shape[0])
    for t in range(150):
        u = REACH * learner.act(x, explore=False).action
        cost += GAMMA**t * (x.square() + u.square()).sum(-1)
        x = x + u
    return cost


@pytest.mark.slow  # a minute
def test_point_mass_comes_within_a_tenth_of_the_optimum() -> None:
    learner = FlashSAC(config(), LearnerSpec(2, 2, 2), CPU, seed=1)
    start = 4 * torch.rand(256, 2, generator=torch.Generator().manual_seed(5)) - 2
    optimum = best_cost_factor() * start.square().sum(-1).mean().item()
    train(BoundedPointMass(32, seed=2), learner, steps=600)
    after = discounted_cost(learner, start).mean().item()
    print(f"optimum {optimum:.3f}, found {after:.3f}")
    assert optimum * (1 - 1e-4) <= after
    assert optimum / after >= 0.9
