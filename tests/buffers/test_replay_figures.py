"""What a replay buffer says of itself: how old its samples are, and what it brings to a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unilab.buffers.replay import Replay
from unilab.buffers.replay_spec import ReplaySpec

ENVS, CAPACITY, OBS, CRITIC, ACTIONS = 6, 9, 3, 5, 2


def make(device: str, n_steps: int = 1) -> Replay:
    spec = ReplaySpec(
        ENVS, CAPACITY, OBS, CRITIC, ACTIONS, batch_size=50, updates=400, n_steps=n_steps
    )
    replay = Replay(spec, torch.device(device))
    replay.set_first(np.zeros((ENVS, OBS), np.float32), np.zeros((ENVS, CRITIC), np.float32), 0, 6)
    return replay


def step(replay: Replay, number: int, truncated: int = 0) -> None:
    """A step whose next observations are its number plus one; some of its envs are truncated."""
    obs = np.full((ENVS, OBS), number + 1, np.float32)
    critic = np.full((ENVS, CRITIC), number + 1, np.float32)
    nobody = np.zeros(ENVS, bool)
    replay.append(
        0, ENVS, action=np.zeros((ENVS, ACTIONS), np.float32), reward=np.zeros(ENVS, np.float32),
        terminated=nobody, truncated=np.arange(ENVS) < truncated, final_obs=obs,
        final_critic_obs=critic, next_obs=obs, next_critic_obs=critic,
    )  # fmt: skip
    replay.commit()


@pytest.mark.parametrize("n_steps", [1, 4])
@pytest.mark.parametrize("steps", [4, 5, 9, 23])
def test_the_mean_age_is_that_of_what_is_drawn(n_steps: int, steps: int) -> None:
    replay = make("cpu", n_steps)
    for number in range(steps):
        step(replay, number)
    drawn = replay.sample(20_000, torch.Generator().manual_seed(1)).obs[:, 0]
    found = steps - 1 - drawn.double().mean().item()
    assert replay.mean_age == pytest.approx(found, abs=0.1)
    if steps == n_steps == 4:
        assert replay.mean_age == 3.0  # only the first step is followed by all of its four


def test_an_empty_buffer_has_no_age() -> None:
    assert make("cpu").mean_age == 0.0


def test_what_is_brought_to_another_device_is_counted_for_each_step() -> None:
    replay = make("meta")  # any device that is not the host's
    replay.take_traffic()
    words = OBS + CRITIC + ACTIONS + 2  # and reward and end
    for number in range(3):
        step(replay, number)
    assert replay.take_traffic() == 4 * ENVS * words
    step(replay, 3, truncated=2)
    assert replay.take_traffic() == 4 * (ENVS * words + 2 * (OBS + CRITIC))
    assert replay.take_traffic() == 0.0


def test_on_a_cpu_nothing_is_brought_anywhere() -> None:
    replay = make("cpu")
    step(replay, 0, truncated=3)
    assert replay.take_traffic() == 0.0
