"""Nothing in `act` or `update` may ask the device a question, and few operations are launched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.learners.support import CPU, collect, small_learner
from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.ppo import PPO

# Operations whose result, or whose result's shape, must be known to the host.
ASKING = {
    "_local_scalar_dense",
    "nonzero",
    "nonzero_static",
    "masked_select",
    "is_nonzero",
    "equal",
    "unique",
    "_unique2",
    "unique_consecutive",
    "repeat_interleave",
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
BUDGET = 190  # eager operations of one minibatch, views not counted


class NoHostSync(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ASKING:
            raise AssertionError(f"{func} waits for the device")
        if name in INDEXING:
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise AssertionError(f"{func} with a mask waits for the device")
        return func(*args, **(kwargs or {}))


class CountOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "question",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: float(x[0]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: x.__setitem__(x > 0, torch.ones(2)),
    ],
)
def test_the_guard_sees_each_kind_of_question(question) -> None:
    x = torch.tensor([1.0, -1.0, 2.0])
    with NoHostSync(), pytest.raises(AssertionError, match="waits for the device"):
        question(x)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule": "fixed", "value_clip": False, "normalize_obs": False},
        {"symmetry": "augment"},
        {"symmetry": "mirror_loss", "mirror_coef": 0.5},
    ],
)
def test_update_and_act_never_wait_for_the_device(changes) -> None:
    learner = small_learner(**changes)
    rollout = collect(learner, seed=1).rollout
    assert rollout.final_count > 0
    obs = rollout.obs[0].clone()
    with NoHostSync():
        metrics = learner.update(rollout)
        learner.act(obs)
        learner.act(obs, explore=False)
    assert all(value.shape == () and value.device == CPU for value in metrics.values())


@pytest.mark.parametrize(
    "changes",
    [{}, {"symmetry": "augment"}, {"symmetry": "mirror_loss", "mirror_coef": 0.5}],
)
def test_one_minibatch_stays_within_the_budget_of_operations(changes) -> None:
    learner = small_learner(actor_hidden=[32, 24, 16], critic_hidden=[32, 24, 16], **changes)
    rollout = collect(learner, seed=1).rollout
    learner.update(rollout)
    with CountOps() as count:
        learner._table.gather(torch.arange(learner._table.size))
        learner._learn(learner._table.batch, learner._table.size)
    assert "_fused_adam_" in count.names
    assert 100 < len(count.names) <= BUDGET


def test_no_memory_is_allocated_for_activations_during_an_update() -> None:
    config = PPOConfig(actor_hidden=(64, 64), critic_hidden=(64, 64), minibatches=1, epochs=1)
    learner = PPO(config, LearnerSpec(5, 7, 3), CPU, seed=0)
    rollout = collect(learner, seed=1, num_steps=8, num_envs=32).rollout
    learner.update(rollout)
    with torch.profiler.profile(profile_memory=True) as profile:
        learner._learn(learner._table.batch, learner._table.size)
    # An activation of this batch is 256 x 64 floats; what autograd-free losses need is less.
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < largest < 256 * 64 * 4
