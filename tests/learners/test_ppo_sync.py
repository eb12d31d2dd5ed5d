"""Nothing in `act` or `update` may ask the device a question, and few operations are launched."""

from __future__ import annotations

import pytest
import torch

from tests.learners.dispatch import CountOps, NoHostSync
from tests.learners.support import CPU, collect, small_learner
from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.ppo import PPO

BUDGET = 190  # eager operations of one minibatch, views not counted


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
