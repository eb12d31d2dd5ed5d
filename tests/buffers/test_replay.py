"""The replay buffer against plain lists of episodes, number by number."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from tests.buffers.replay_oracle import ACTION_DIM, CPU, CRITIC_OBS_DIM, OBS_DIM, make
from unilab.buffers.replay import Replay
from unilab.buffers.replay_spec import ReplaySpec


@pytest.mark.parametrize("n_steps", [1, 3, 8])
@pytest.mark.parametrize(
    ("dtype", "shared", "capacity"),
    [("fp32", "none", 11), ("bf16", "some", 8), ("fp32", "all", 9)],
)
def test_every_sample_equals_the_oracle_at_every_fullness_and_seam(
    n_steps, dtype, shared, capacity
) -> None:
    oracle = make(shared, n_steps=n_steps, dtype=dtype, capacity=capacity)
    generator = torch.Generator().manual_seed(1)
    samples = wrong = 0
    while samples < 35_000:  # 105,000 for each n
        for start, stop in oracle.groups:
            oracle.append(start, stop)
            if oracle.replay.num_starts:  # what is not committed yet must not show
                wrong += oracle.count_mismatches(oracle.replay.sample(25, generator))
                samples += 25
        oracle.commit()
        if oracle.replay.num_starts:
            wrong += oracle.count_mismatches(oracle.replay.sample(200, generator))
            samples += 200
    assert oracle.time > 10 * oracle.replay.spec.slots
    assert wrong == 0
    assert oracle.replay.dropped == 0


def test_observations_shared_in_order_are_views_of_the_same_memory() -> None:
    oracle = make("prefix", n_steps=3)
    for _ in range(30):
        oracle.step()
    batch = oracle.replay.sample(250, torch.Generator().manual_seed(2))
    assert oracle.count_mismatches(batch) == 0
    assert batch.obs.data_ptr() == batch.critic_obs.data_ptr()
    assert oracle.replay.spec.width == OBS_DIM + 1 + ACTION_DIM


@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_lost_final_observation_gives_weight_zero_and_is_counted(n_steps) -> None:
    oracle = make(n_steps=n_steps, final_capacity=3)
    oracle.ends = 0.3
    generator = torch.Generator().manual_seed(3)
    lost = 0
    for _ in range(60):
        for start, stop in oracle.groups:
            oracle.append(start, stop)
            if oracle.replay.num_starts:
                batch = oracle.replay.sample(100, generator)
                assert oracle.count_mismatches(batch) == 0
                lost += int((batch.weight == 0).sum())
        oracle.commit()
    assert lost > 100
    assert oracle.replay.dropped == lost


def test_every_start_is_drawn_with_the_same_chance() -> None:
    oracle = make(n_steps=3)
    for _ in range(29):
        oracle.step()
    generator, counts = torch.Generator().manual_seed(4), np.zeros((5, 29))
    for _ in range(400):
        obs = oracle.replay.sample(250, generator).obs.long()
        np.add.at(counts, (obs[:, 0].numpy(), (100 * obs[:, 1] + obs[:, 2]).numpy()), 1)
    starts = counts[:, 29 - 11 : 29 - 2]
    assert counts.sum() == starts.sum() == 100_000
    expected = 100_000 / starts.size
    chi_square = ((starts - expected) ** 2 / expected).sum()
    assert chi_square < 80  # 44 degrees of freedom: one run in 1,400


def test_nothing_can_be_sampled_before_n_steps_are_committed() -> None:
    oracle = make(n_steps=3)
    for expected in (0, 0, 5, 10):
        before = oracle.replay.num_starts
        oracle.append(0, 2)
        oracle.append(2, 5)
        assert oracle.replay.num_starts == before
        oracle.commit()
        assert oracle.replay.num_starts == expected


def test_a_step_that_lacks_a_group_cannot_be_committed() -> None:
    oracle = make()
    oracle.append(0, 2)
    with pytest.raises(AssertionError, match="every env once"):
        oracle.replay.commit()


def test_bfloat16_rounds_observations_to_8_bits_actions_to_11_and_no_reward() -> None:
    spec = ReplaySpec(64, 4, 3, 2, 5, batch_size=128, dtype="bf16")
    replay, draw = Replay(spec, CPU), np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal((64, *shape), dtype=np.float32)

    obs, critic_obs, action, reward = normal(3), normal(2), normal(5), normal()
    action[0, 0], action[1, 0] = 1e6, -1e6
    nobody = np.zeros(64, bool)
    replay.set_first(obs, critic_obs, 0, 64)
    replay.append(
        0, 64, action=torch.from_numpy(action), reward=reward, terminated=nobody, truncated=nobody,
        final_obs=obs, final_critic_obs=critic_obs, next_obs=obs, next_critic_obs=critic_obs,
    )  # fmt: skip
    replay.commit()
    batch = replay.sample(128, torch.Generator().manual_seed(0))
    env = (batch.reward.unsqueeze(1) == torch.from_numpy(reward)).long().argmax(1).numpy()
    assert np.array_equal(batch.reward.numpy(), reward[env])
    assert (batch.obs.dtype, batch.action.dtype) == (torch.bfloat16, torch.float16)
    np.testing.assert_allclose(batch.obs.float().numpy(), obs[env], rtol=2**-8)
    found = batch.next_critic_obs.float().numpy()
    np.testing.assert_allclose(found, critic_obs[env], rtol=2**-8)
    kept = np.clip(action, -65504, 65504)
    np.testing.assert_allclose(batch.action.float().numpy(), kept[env], rtol=2**-11, atol=1e-7)


def test_all_truncations_of_episodes_of_bounded_length_are_kept() -> None:
    envs, capacity, longest = 6, 25, 4
    spec = ReplaySpec(
        envs, capacity, OBS_DIM, CRITIC_OBS_DIM, ACTION_DIM, batch_size=100,
        n_steps=3, max_episode_steps=longest,
    )  # fmt: skip
    replay, generator = Replay(spec, CPU), torch.Generator().manual_seed(0)
    obs, critic = np.zeros((envs, OBS_DIM), np.float32), np.zeros((envs, 5), np.float32)
    replay.set_first(obs, critic, 0, envs)
    age = np.arange(envs) % longest  # the first episode begins at any age
    for _ in range(4 * capacity):
        age += 1
        truncated = age == longest
        replay.append(
            0, envs, action=torch.zeros(envs, 2), reward=np.zeros(envs, np.float32),
            terminated=np.zeros(envs, bool), truncated=truncated, final_obs=obs + 1,
            final_critic_obs=critic, next_obs=obs, next_critic_obs=critic,
        )  # fmt: skip
        replay.commit()
        age[truncated] = 0
        if replay.num_starts:
            assert (replay.sample(100, generator).weight == 1).all()
    assert spec.num_finals == envs * 7
    assert replay.dropped == 0


def test_a_reader_beside_a_writer_never_sees_a_torn_or_uncommitted_row() -> None:
    envs, capacity, width = 32, 6, 64
    spec = ReplaySpec(envs, capacity, width, width, 2, batch_size=64, max_episode_steps=5)
    replay, stop = Replay(spec, CPU), threading.Event()
    steps = 4000

    def rows(value: float) -> np.ndarray:
        return np.full((envs, width), value, np.float32)

    def write() -> None:
        try:
            for t in range(steps):
                fill(t)
        finally:
            stop.set()

    def fill(t: int) -> None:
        truncated = np.arange(envs) % 5 == t % 5
        replay.append(
            0, envs, action=torch.full((envs, 2), float(t)), reward=rows(t)[:, 0],
            terminated=np.zeros(envs, bool), truncated=truncated,
            final_obs=rows(t + 1), final_critic_obs=rows(t + 1),
            next_obs=rows(t + 1), next_critic_obs=rows(t + 1),
        )  # fmt: skip
        replay.commit()

    replay.set_first(rows(0), rows(0), 0, envs)
    writer = threading.Thread(target=write)
    writer.start()
    generator, batches = torch.Generator().manual_seed(0), 0
    while not stop.is_set():
        if replay.num_starts == 0:
            continue
        lowest = replay.committed - replay.filled
        batch = replay.sample(64, generator)
        newest = replay.committed - 1
        first = batch.obs[:, :1]
        assert torch.equal(batch.obs, first.expand(64, width))
        assert torch.equal(batch.critic_obs, first.expand(64, width))
        assert torch.equal(batch.next_obs, (first + 1).expand(64, width))
        assert torch.equal(batch.action, first.expand(64, 2))
        assert torch.equal(batch.reward, first.squeeze(1))
        assert lowest <= first.min()
        assert first.max() <= newest
        batches += 1
    writer.join()
    assert replay.committed == steps
    assert batches > 100
