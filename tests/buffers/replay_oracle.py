"""A replay buffer of plain Python lists: whole episodes, every observation of them kept.

All numbers are small integers that bfloat16 and float16 hold exactly, and gamma is 1/2, so that
what comes out of a real buffer must be equal to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from unilab.buffers.batch import Batch
from unilab.buffers.replay import Replay
from unilab.buffers.replay_spec import ReplaySpec

CPU = torch.device("cpu")
OBS_DIM, CRITIC_OBS_DIM, ACTION_DIM, GAMMA = 4, 5, 2, 0.5
# Critic columns that repeat obs columns: none; some, out of order; obs first, in order; all.
SHARED = {
    "none": (),
    "some": ((3, 0), (1, 2)),
    "prefix": ((0, 0), (1, 1), (2, 2), (3, 3)),
    "all": ((0, 3), (1, 2), (2, 1), (3, 0), (4, 1)),
}
LIVE, FINAL = 1, 2  # last number of an observation: of a running episode, or its true last


@dataclass
class Step:
    obs: list[int]
    critic_obs: list[int]
    action: list[int]
    reward: int
    terminated: bool
    truncated: bool
    next_obs: list[int]  # the true one
    next_critic_obs: list[int]
    final_number: int = -1  # how many truncations there were before, of all envs


@dataclass
class Oracle:
    """Fills a real buffer and remembers everything.

    Args:
      replay: to be filled, in `groups`.
      shared: as in its spec.
      seed: of what happens.
      ends: probability that a step terminates, and the same that it is truncated.
    """

    replay: Replay
    shared: tuple[tuple[int, int], ...]
    seed: int = 0
    ends: float = 0.12
    groups: tuple[tuple[int, int], ...] = ((0, 2), (2, 5))
    also: list[Replay] = field(default_factory=list)  # filled with the same steps
    time: int = 0
    truncations: int = 0
    committed_truncations: int = 0
    episodes: list[list[list[Step]]] = field(default_factory=list)  # [env][episode][step]
    where: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)
        self.num_envs = self.groups[-1][1]
        self.episodes = [[[]] for _ in range(self.num_envs)]
        for start, stop in self.groups:
            obs, critic = self._observe(0, start, stop, LIVE)
            self.replay.set_first(obs, critic, start, stop)

    def obs_of(self, time: int, env: int, kind: int) -> tuple[list[int], list[int]]:
        obs = [env, time // 100, time % 100, kind]
        critic = [time % 50, 2 * env, kind + 7, (3 * time + env) % 60, 100 - env]
        for column, obs_column in self.shared:
            critic[column] = obs[obs_column]
        return obs, critic

    def _observe(self, time: int, start: int, stop: int, kind: int):
        pairs = [self.obs_of(time, env, kind) for env in range(start, stop)]
        return tuple(np.array(part, np.float32) for part in zip(*pairs, strict=True))

    def append(self, start: int, stop: int) -> None:
        """Append the step at `time` of envs [start, stop)."""
        time, n = self.time, stop - start
        terminated, truncated = self.draw.random((2, n)) < self.ends
        final_obs, final_critic = self._observe(time + 1, start, stop, FINAL)
        next_obs, next_critic = self._observe(time + 1, start, stop, LIVE)
        actions = [[time % 2000, -env] for env in range(start, stop)]
        rewards = [(5 * time + 3 * env) % 15 - 7 for env in range(start, stop)]
        ended = terminated | truncated
        final_obs[~ended] = np.nan  # never to be read
        final_critic[~ended] = np.nan
        for replay in (self.replay, *self.also):
            replay.append(
                start,
                stop,
                action=torch.tensor(actions, dtype=torch.float32),
                reward=np.array(rewards, np.float32),
                terminated=terminated,
                truncated=truncated,
                final_obs=final_obs,
                final_critic_obs=final_critic,
                next_obs=next_obs,
                next_critic_obs=next_critic,
            )
        for i, env in enumerate(range(start, stop)):
            step = Step(
                *self.obs_of(time, env, LIVE),
                actions[i],
                rewards[i],
                bool(terminated[i]),
                bool(truncated[i] and not terminated[i]),
                *self.obs_of(time + 1, env, FINAL if ended[i] else LIVE),
            )
            if step.truncated:
                step.final_number = self.truncations
                self.truncations += 1
            episodes = self.episodes[env]
            episodes[-1].append(step)
            self.where[time, env] = (len(episodes) - 1, len(episodes[-1]) - 1)
            if ended[i]:
                episodes.append([])

    def step(self) -> None:
        """Append a step of all envs and commit it."""
        for start, stop in self.groups:
            self.append(start, stop)
        self.commit()

    def commit(self) -> None:
        for replay in (self.replay, *self.also):
            replay.commit()
        self.time += 1
        self.committed_truncations = self.truncations

    def expect(self, time: int, env: int) -> tuple[list[float], bool]:
        """All numbers of the transition that starts at (time, env), and whether its weight is 1."""
        episode, first = self.where[time, env]
        window = self.episodes[env][episode][first : first + self.replay.spec.n_steps]
        reward = sum(GAMMA**k * step.reward for k, step in enumerate(window))
        last = window[-1]
        discount = 0.0 if last.terminated else GAMMA ** len(window)
        oldest = self.committed_truncations - self.replay.spec.num_finals
        known = not last.truncated or last.final_number >= oldest
        start = window[0]
        numbers = [*start.obs, *start.critic_obs, *start.action, reward, discount]
        return [*numbers, *last.next_obs, *last.next_critic_obs], known

    def count_mismatches(self, batch: Batch) -> int:
        """Count the rows of a batch that are not what they should be."""
        wrong = 0
        newest = self.time - self.replay.spec.n_steps
        oldest = max(0, self.time - self.replay.spec.capacity)
        next_width = OBS_DIM + CRITIC_OBS_DIM
        columns = [part if part.ndim == 2 else part.unsqueeze(1) for part in batch]
        for row in torch.cat(columns, 1).tolist():
            env, time = int(row[0]), int(100 * row[1] + row[2])
            expected, known = self.expect(time, env)
            got, weight = row[:-1], row[-1]
            bootstraps = expected[-next_width - 1] != 0.0
            if not bootstraps or not known:  # what follows is not looked at
                expected, got = expected[:-next_width], got[:-next_width]
            wrong += got != expected or weight != known or not oldest <= time <= newest
        return wrong


def make(shared: str = "none", groups=((0, 2), (2, 5)), seed: int = 0, **changes) -> Oracle:
    """Build a small buffer and its oracle."""
    settings = {"capacity": 11, "batch_size": 25, "updates": 10, "gamma": GAMMA}
    settings |= {"final_capacity": 11 * 5 + 5, **changes}
    pairs = SHARED[shared]
    spec = ReplaySpec(
        groups[-1][1],
        obs_dim=OBS_DIM,
        critic_obs_dim=CRITIC_OBS_DIM,
        action_dim=ACTION_DIM,
        shared=pairs,
        **settings,
    )
    replay = Replay(spec, CPU)
    replay._rows.fill_(float("nan"))  # what was never written must never be read
    return Oracle(replay, pairs, seed, groups=groups)
