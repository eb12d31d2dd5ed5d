"""SAC and TD3 on tasks of seconds whose best policy is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.learners.support import CPU
from unilab.config.off_policy import SACConfig, TD3Config
from unilab.learners.base import LearnerSpec
from unilab.learners.off_policy import Batch
from unilab.learners.off_policy_core import OffPolicyCore
from unilab.learners.sac import SAC
from unilab.learners.td3 import TD3

GAMMA = 0.9
SETTINGS = {
    "batch_size": 128,
    "updates_per_step": 4,
    "actor_every": 2,
    "actor_hidden": [32, 32],
    "critic_hidden": [32, 32],
    "gamma": GAMMA,
    "learning_rate": 3e-3,
    "atoms": 41,
    "warmup_steps": 20,
}


class Memory:
    """Every transition so far, in lists; uniform samples of one step."""

    def __init__(self, gamma: float, seed: int) -> None:
        self.gamma, self.draw = gamma, torch.Generator().manual_seed(seed)
        self.steps: list[tuple[Tensor, ...]] = []

    def append(self, obs, action, reward, terminated, final) -> None:
        self.steps.append((obs, action, reward, self.gamma * (~terminated).float(), final))

    def sample(self, rows: int) -> Batch:
        obs, action, reward, discount, final = (torch.cat(x) for x in zip(*self.steps, strict=True))
        ids = torch.randint(0, len(obs), (rows,), generator=self.draw)
        obs, final = obs[ids], final[ids]
        return Batch(
            obs, obs, action[ids], reward[ids], discount[ids], final, final, torch.ones(rows)
        )


def make(kind: str, sizes: tuple[int, int], **changes: Any) -> OffPolicyCore:
    spec = LearnerSpec(sizes[0], sizes[0], sizes[1])
    if kind == "sac":
        return SAC(SACConfig.model_validate(SETTINGS | changes), spec, CPU, 1)
    return TD3(TD3Config.model_validate(SETTINGS | changes), spec, CPU, 1)


class CartPole:
    """A pole on a cart, pushed with up to 10 N; 1 a step until it falls, 200 steps at most.

    Source of the equations: Barto, Sutton and Anderson 1983, as in Gym's CartPole.
    """

    limit = 200

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs, self.draw = num_envs, torch.Generator().manual_seed(seed)
        self.obs, self.age = self.start(), torch.zeros(num_envs, dtype=torch.int64)

    def start(self) -> Tensor:
        return 0.1 * torch.rand(self.num_envs, 4, generator=self.draw) - 0.05

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns reward, terminated, truncated (N,) and the observation before a reset (N, 4)."""
        v, angle, rate = self.obs[:, 1:].unbind(-1)
        push = (10 * action[:, 0] + 0.05 * rate**2 * angle.sin()) / 1.1
        turn = 9.8 * angle.sin() - angle.cos() * push
        turn = turn / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        speed_up = push - 0.05 * turn * angle.cos() / 1.1
        rates = torch.stack([v, speed_up, rate, turn], -1)
        final = self.obs + 0.02 * rates
        self.age += 1
        terminated = (final[:, 0].abs() > 2.4) | (final[:, 2].abs() > 0.2095)
        truncated = (self.age >= self.limit) & ~terminated
        ended = terminated | truncated
        self.age = torch.where(ended, 0, self.age)
        self.obs = torch.where(ended.unsqueeze(1), self.start(), final)
        return torch.ones(self.num_envs), terminated, truncated, final


class Drift:
    """x' = 0.8 x + 0.2 a earns x - 0.35 a^2 a step, in episodes that chance cuts, 1 step in 3.

    Moving x now pays over the steps that follow: with a chance c of going on, the best action is
    the same in every state, 0.2 g / (1 - 0.8 g) / 0.7 with g = gamma * c. If the cut is only in
    the data, c = 1 and that is 0.92; if it ends the earning, c = 2/3 and it is 0.33.
    """

    def __init__(self, num_envs: int, seed: int, truncates: bool) -> None:
        self.num_envs, self.truncates = num_envs, truncates
        self.draw = torch.Generator().manual_seed(seed)
        self.obs = self.start()

    def start(self) -> Tensor:
        return 2 * torch.rand(self.num_envs, 1, generator=self.draw) - 1

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        reward = self.obs[:, 0] - 0.35 * action[:, 0] ** 2
        final = 0.8 * self.obs + 0.2 * action
        cut = torch.rand(self.num_envs, generator=self.draw) < 1 / 3
        self.obs = torch.where(cut.unsqueeze(1), self.start(), final)
        never = torch.zeros_like(cut)
        flags = (never, cut) if self.truncates else (cut, never)
        return reward, *flags, final

    def best_action(self) -> float:
        g = GAMMA if self.truncates else GAMMA * 2 / 3
        return 0.2 * g / (1 - 0.8 * g) / 0.7


def train(env: Any, learner: OffPolicyCore, steps: int) -> None:
    memory = Memory(learner.config.gamma, seed=7)
    for step in range(steps):
        obs, warm = env.obs.clone(), step >= learner.config.warmup_steps
        action = learner.act(obs).action if warm else learner.random_actions(env.num_envs)
        reward, terminated, _, final = env.step(action)
        learner.observe(obs, obs)
        memory.append(obs, action, reward, terminated, final)
        if warm:
            metrics = learner.cycle(memory.sample(learner.batch_size * learner.updates_per_step))
            assert metrics["learner/non_finite_updates"].item() == 0


def steps_survived(learner: OffPolicyCore) -> float:
    env = CartPole(64, seed=99)
    alive, survived = torch.ones(64, dtype=torch.bool), torch.zeros(64)
    for _ in range(CartPole.limit):
        _, terminated, _, _ = env.step(learner.act(env.obs, explore=False).action)
        survived += alive
        alive &= ~terminated
    return survived.mean().item()


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_cart_pole_is_balanced_to_the_end(kind: str) -> None:
    learner = make(kind, (4, 1), gamma=0.97, v_min=0.0, v_max=35.0)
    before = steps_survived(learner)
    train(CartPole(32, seed=2), learner, steps=400)
    assert before < 150
    assert steps_survived(learner) >= 0.95 * CartPole.limit


@pytest.mark.parametrize("kind", ["sac", "td3"])
@pytest.mark.parametrize("truncates", [True, False])
def test_a_time_limit_hides_later_gains_unless_targets_bootstrap(
    kind: str, truncates: bool
) -> None:
    learner, env = make(kind, (1, 1), v_min=-5.0, v_max=10.0), Drift(32, 2, truncates)
    train(env, learner, steps=250)
    states = torch.linspace(-0.5, 0.5, 21).unsqueeze(1)
    action = learner.act(states, explore=False).action.mean().item()
    assert action == pytest.approx(env.best_action(), abs=0.15)
