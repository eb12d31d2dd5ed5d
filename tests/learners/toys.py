"""Two tasks of seconds that every learner is judged by: a cart-pole, and a chain cut by chance."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from unilab.learners.base import ActOutput

CUT = 1 / 3  # of the chain's steps


class Outcome(NamedTuple):
    """What a control step of N envs gave."""

    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool
    final: Tensor  # (N, O) the observation before any reset


class Toy(Protocol):
    """A batch of envs that start anew by themselves. Actions are (N, 1)."""

    num_envs: int
    obs: Tensor  # (N, O)

    def step(self, action: Tensor) -> Outcome: ...


class Acts(Protocol):
    def act(self, obs: Tensor, explore: bool = True) -> ActOutput: ...


class CartPole:
    """A pole on a cart, pushed with up to 10 N (an action of +-1); 1 a step until it falls,
    200 steps at most.

    Source of the equations: Barto, Sutton and Anderson 1983, as in Gym's CartPole.
    """

    limit = 200

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs, self.draw = num_envs, torch.Generator().manual_seed(seed)
        self.obs, self.age = self.start(), torch.zeros(num_envs, dtype=torch.int64)

    def start(self) -> Tensor:
        return 0.1 * torch.rand(self.num_envs, 4, generator=self.draw) - 0.05

    def step(self, action: Tensor) -> Outcome:
        v, angle, rate = self.obs[:, 1:].unbind(-1)
        force = 10 * action[:, 0].clamp(-1, 1)
        push = (force + 0.05 * rate**2 * angle.sin()) / 1.1
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
        off = (final[:, 0] / 2.4).square() + (final[:, 2] / 0.2095).square()
        return Outcome(1 - 0.5 * off, terminated, truncated, final)


class Chain:
    """x' = 0.8 x + 0.2 a earns x - 0.35 a^2 a step, in episodes that chance cuts, 1 step in 3.

    Moving x now pays over the steps that follow. With a chance c of going on, the best action is
    the same in every state: see `best_action`. So a learner that takes a cut for an end of the
    earning, c = 2/3, settles far from one that bootstraps from where it was cut, c = 1.

    Args:
      truncates: cuts are truncations; otherwise they terminate.
    """

    def __init__(self, num_envs: int, seed: int, truncates: bool) -> None:
        self.num_envs, self.truncates = num_envs, truncates
        self.draw = torch.Generator().manual_seed(seed)
        self.obs = self.start()

    def start(self) -> Tensor:
        return 2 * torch.rand(self.num_envs, 1, generator=self.draw) - 1

    def step(self, action: Tensor) -> Outcome:
        reward = self.obs[:, 0] - 0.35 * action[:, 0] ** 2
        final = 0.8 * self.obs + 0.2 * action
        cut = torch.rand(self.num_envs, generator=self.draw) < CUT
        self.obs = torch.where(cut.unsqueeze(1), self.start(), final)
        never = torch.zeros_like(cut)
        flags = (never, cut) if self.truncates else (cut, never)
        return Outcome(reward, *flags, final)


def best_action(gamma: float, truncates: bool) -> float:
    """The best action in the chain; 0.92 and 0.33 for gamma 0.9.

    An action of a adds 0.2 a 0.8^k to x after 1 + k steps, each of them worth (gamma c)^(1 + k):
    0.2 a g / (1 - 0.8 g) in all, for 0.35 a^2.
    """
    g = gamma * (1 if truncates else 1 - CUT)
    return 0.2 * g / (1 - 0.8 * g) / 0.7


def steps_survived(policy: Acts) -> float:
    """How many of 200 steps the pole stays up, on average over 64 starts, without exploring."""
    env = CartPole(64, seed=99)
    alive, survived = torch.ones(64, dtype=torch.bool), torch.zeros(64)
    for _ in range(CartPole.limit):
        terminated = env.step(policy.act(env.obs, explore=False).action).terminated
        survived += alive
        alive &= ~terminated
    return survived.mean().item()


def chain_action(policy: Acts) -> float:
    """The action in the middle of the chain, averaged, without exploring."""
    states = torch.linspace(-0.5, 0.5, 21).unsqueeze(1)
    return policy.act(states, explore=False).action.mean().item()
