from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unilab.buffers.rollout import FINAL_BUCKET, Rollout

CPU = torch.device("cpu")


def step(rollout: Rollout, t: int, start: int, stop: int, truncated, terminated=None) -> Tensor:
    """Append step t for envs [start, stop); every entry is 100 t + env. Returns (n,) marks."""
    n = stop - start
    mark = 100.0 * t + torch.arange(start, stop)
    wide = mark.unsqueeze(1)
    truncated = torch.tensor(truncated, dtype=torch.bool)
    rollout.append(
        t,
        start,
        stop,
        action=wide.expand(n, 2),
        mean=wide.expand(n, 2) + 0.1,
        log_prob=mark + 0.2,
        reward=(mark + 0.3).numpy(),
        terminated=(
            truncated & False if terminated is None else torch.tensor(terminated).bool()
        ).numpy(),
        truncated=truncated.numpy(),
        final_critic_obs=(wide.expand(n, 4) + 0.4).numpy(),
        next_obs=(wide.expand(n, 3) + 0.5).numpy(),
        next_critic_obs=(wide.expand(n, 4) + 0.6).numpy(),
    )
    return mark


def poisoned(num_steps: int = 3, num_envs: int = 4) -> Rollout:
    rollout = Rollout(num_steps, num_envs, 3, 4, 2, CPU)
    for name in ("obs", "critic_obs", "action", "mean", "log_prob", "reward"):
        getattr(rollout, name).fill_(float("nan"))
    return rollout


def test_groups_fill_every_entry_once() -> None:
    rollout = poisoned()
    rollout.set_first(torch.zeros(4, 3), torch.ones(4, 4), 0, 4)
    for t in range(3):
        for start, stop in ((2, 4), (0, 2)):
            step(rollout, t, start, stop, [False] * 2)
    mark = 100.0 * torch.arange(3).unsqueeze(1) + torch.arange(4)
    assert torch.equal(rollout.action, mark.unsqueeze(2).expand(3, 4, 2))
    assert torch.equal(rollout.mean, (mark + 0.1).unsqueeze(2).expand(3, 4, 2))
    assert torch.equal(rollout.log_prob, mark + 0.2)
    assert torch.equal(rollout.reward, mark + 0.3)
    assert torch.equal(rollout.obs[1:], (mark + 0.5).unsqueeze(2).expand(3, 4, 3))
    assert torch.equal(rollout.critic_obs[1:], (mark + 0.6).unsqueeze(2).expand(3, 4, 4))
    assert torch.equal(rollout.obs[0], torch.zeros(4, 3))
    assert torch.equal(rollout.critic_obs[0], torch.ones(4, 4))


def test_final_observations_are_kept_only_where_truncated_and_not_terminated() -> None:
    rollout = poisoned()
    step(rollout, 0, 0, 4, [0, 0, 0, 0], [1, 0, 0, 0])
    step(rollout, 1, 0, 2, [1, 1], [0, 1])
    step(rollout, 1, 2, 4, [0, 1])
    critic_obs, index = rollout.final_rows()
    assert rollout.final_count == 2
    assert index.shape == (FINAL_BUCKET,)
    assert critic_obs.shape == (FINAL_BUCKET, 4)
    assert index[:2].tolist() == [1 * 4 + 0, 1 * 4 + 3]
    assert (index[2:] == 3 * 4).all()
    assert critic_obs[:2, 0].tolist() == pytest.approx([100.4, 103.4])
    assert rollout.truncated[1].tolist() == [True, True, False, True]


def test_no_truncation_means_no_rows() -> None:
    rollout = poisoned()
    step(rollout, 0, 0, 4, [0] * 4)
    critic_obs, index = rollout.final_rows()
    assert (critic_obs.shape[0], index.shape[0]) == (0, 0)


def test_flags_of_one_step_do_not_linger_in_the_next_rollout() -> None:
    rollout = poisoned()
    for t in range(3):
        step(rollout, t, 0, 4, [1, 0, 1, 0])
    rollout.carry_over()
    for t in range(3):
        step(rollout, t, 0, 4, [0, t == 2, 0, 0])
    assert rollout.truncated.sum() == 1
    _, index = rollout.final_rows()
    assert index[0] == 2 * 4 + 1
    assert (index[1:] == 12).all()


def test_last_row_becomes_the_first() -> None:
    rollout = poisoned()
    step(rollout, 2, 0, 4, [0] * 4)
    rollout.carry_over()
    assert rollout.obs[0, :, 0].tolist() == [200.5, 201.5, 202.5, 203.5]
    assert rollout.critic_obs[0, :, 0].tolist() == pytest.approx([200.6, 201.6, 202.6, 203.6])


def test_episodes_shorter_than_the_rollout_make_room_and_lose_nothing() -> None:
    rollout = Rollout(5, 100, 3, 4, 2, CPU)
    for t in range(5):
        step(rollout, t, 0, 100, [1] * 100)
    critic_obs, index = rollout.final_rows()
    assert index[:500].tolist() == list(range(500))
    assert (index[500:] == 500).all()
    expected = 100.0 * torch.arange(5).repeat_interleave(100) + torch.arange(100).repeat(5) + 0.4
    assert torch.allclose(critic_obs[:500, 0], expected)
