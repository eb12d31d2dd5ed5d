"""Replay: saved and restored, refused sizes, memory, and that the host never waits."""

from __future__ import annotations

import io

import pytest
import torch

from tests.buffers.replay_oracle import CPU, make
from tests.learners.support import tensors_of
from tests.learners.test_ppo_sync import NoHostSync
from unilab.buffers import replay_spec
from unilab.buffers.replay import Replay
from unilab.buffers.replay_spec import ReplaySpec, naive_bytes
from unilab.errors import ConfigError


def spec(**changes) -> ReplaySpec:
    settings = {"num_envs": 10, "capacity": 20, "obs_dim": 4, "critic_obs_dim": 5, "action_dim": 2}
    return ReplaySpec(**(settings | {"batch_size": 30} | changes))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("steps", [0, 1, 5, 12, 13, 40])
def test_a_restored_buffer_goes_on_as_the_one_that_was_saved(steps, dtype) -> None:
    settings = {"n_steps": 3, "dtype": dtype, "final_capacity": 9}
    oracle, other = make("some", seed=5, **settings), make("some", seed=6, **settings)
    for _ in range(steps):
        oracle.step()
    for _ in range(17):  # what is restored into has a past of its own
        other.step()
    file = io.BytesIO()
    torch.save(oracle.replay.state_dict(), file)
    file.seek(0)
    restored = other.replay
    restored.load_state_dict(torch.load(file, weights_only=True))
    oracle.also.append(restored)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    for _ in range(25):
        oracle.step()
        if oracle.replay.num_starts:
            batches = [
                replay.sample(250, generator)
                for replay, generator in zip((oracle.replay, restored), generators, strict=True)
            ]
            assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))
            assert oracle.count_mismatches(batches[1]) == 0
    assert restored.committed == steps + 25
    assert torch.equal(restored.dropped, oracle.replay.dropped)


def test_dropped_rows_and_every_tensor_are_in_the_state() -> None:
    oracle = make(final_capacity=2)
    for _ in range(30):
        oracle.step()
        oracle.replay.sample(50, torch.Generator().manual_seed(0))
    state = oracle.replay.state_dict()
    assert set(tensors_of(state)) == {"rows", "finals", "tails", "dropped"}
    assert state["dropped"] == oracle.replay.dropped > 0
    oracle.step()  # a state is a copy
    assert state["committed"] == 30
    oracle.append(0, 2)
    with pytest.raises(AssertionError, match="commit the step first"):
        oracle.replay.state_dict()


def test_a_state_that_is_not_full_takes_no_more_than_it_holds() -> None:
    oracle = make(capacity=1000, final_capacity=5)
    oracle.step()
    state = oracle.replay.state_dict()
    assert state["rows"].shape[0] == 2 * 5
    assert state["rows"].untyped_storage().nbytes() == 2 * 5 * oracle.replay.spec.row_bytes


def test_a_state_of_other_sizes_is_refused_with_both_sizes() -> None:
    state = make().replay.state_dict()
    other = make(capacity=12, dtype="bf16").replay
    with pytest.raises(ConfigError, match="replay_capacity=11 there and 12 here") as error:
        other.load_state_dict(state)
    assert "replay_dtype=fp32 there and bf16 here" in str(error.value)
    assert "checkpoint.replay=false" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 201}, r"learners\.sac\.batch_size=201 .* 20 \* 10 = 200 transitions"),
        ({"n_steps": 21}, r"learners\.sac\.n_steps=21 .* replay_capacity=20"),
        (
            {"n_steps": 8, "max_episode_steps": 7},
            r"n_steps=8 is longer than an episode.* 7 control",
        ),
        ({"dtype": "float16"}, r"replay_dtype=float16: valid are fp32 and bf16"),
        ({"capacity": 0}, r"capacity is 0; at least 1"),
        ({"gamma": 1.5}, r"learners\.sac\.gamma=1\.5: must be between 0 and 1"),
        ({"shared": ((5, 0),)}, r"pair \(5, 0\); valid are \(0 to 4, 0 to 3\)"),
        ({"shared": ((1, 0), (1, 2))}, r"names a critic column twice: \[1, 1\]"),
        ({"learner": "td3", "n_steps": 30}, r"learners\.td3\.n_steps=30"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_their_key(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(**changes)


def test_sizes_at_the_limit_work() -> None:
    spec(batch_size=200, n_steps=20, max_episode_steps=20)


def test_a_buffer_larger_than_memory_is_refused_before_anything_is_allocated() -> None:
    big = spec(num_envs=4096, capacity=10**9, learner="td3")
    with pytest.raises(ConfigError, match=r"learners\.td3\.replay_capacity=1000000000 ") as error:
        Replay(big, CPU)
    assert "4096 envs (52 bytes a transition)" in str(error.value)
    assert "lower replay_capacity to" in str(error.value)
    assert "learners.td3.replay_dtype=bf16" in str(error.value)


def test_the_capacity_that_the_message_names_fits(monkeypatch) -> None:
    monkeypatch.setattr(replay_spec, "free_bytes", lambda device: 10**6)
    with pytest.raises(ConfigError, match="lower replay_capacity to") as error:
        spec(capacity=10**5, dtype="bf16").check_memory(CPU)
    most = int(str(error.value).rsplit(" ", 1)[1])
    spec(capacity=most, dtype="bf16").check_memory(CPU)
    assert most > 1000


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_estimate_is_what_is_allocated(dtype) -> None:
    sizes = spec(num_envs=64, capacity=50, obs_dim=30, critic_obs_dim=40, action_dim=8,
                 batch_size=1000, dtype=dtype, n_steps=3)  # fmt: skip
    replay = Replay(sizes, CPU)
    assert replay._rows.nbytes + replay._tails.nbytes == sizes.stored_bytes
    held: dict[int, int] = {}
    for value in vars(replay._draw).values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, torch.Tensor):
                storage = part.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
    assert 0.5 * sizes.work_bytes < sum(held.values()) <= sizes.work_bytes


def test_a_transition_takes_little_over_half_and_a_quarter_of_the_usual_layout() -> None:
    g1 = {"num_envs": 4096, "capacity": 1024, "obs_dim": 96, "critic_obs_dim": 99,
          "action_dim": 29, "max_episode_steps": 1000}  # fmt: skip
    naive = naive_bytes(96, 99, 29)
    assert naive == 4 * (96 + 99 + 29 + 1 + 96 + 99) + 16
    assert spec(**g1).bytes_per_transition <= 0.55 * naive
    assert spec(**g1, dtype="bf16").bytes_per_transition <= 0.30 * naive


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("shared", ["none", "all"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_host_never_waits_and_a_batch_is_always_in_the_same_memory(
    n_steps, shared, dtype
) -> None:
    oracle = make(shared, n_steps=n_steps, dtype=dtype)
    for _ in range(20):
        oracle.step()
    generator = torch.Generator().manual_seed(0)
    with NoHostSync():
        first = oracle.replay.sample(250, generator)
        oracle.step()
        second = oracle.replay.sample(250, generator)
    assert [part.data_ptr() for part in first] == [part.data_ptr() for part in second]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_no_rows_are_allocated_while_sampling(dtype) -> None:
    oracle = make("all", n_steps=1, dtype=dtype)
    for _ in range(20):
        oracle.step()
    generator = torch.Generator().manual_seed(0)
    oracle.replay.sample(250, generator)
    with torch.profiler.profile(profile_memory=True) as profile:
        oracle.replay.sample(250, generator)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest <= 8 * 250  # row numbers
