"""The end-to-end rows run the same work, whatever they choose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bench.support import NUM_ENVS, busy_g1, recording
from unilab.bench.choices import STEP, Choice
from unilab.bench.collector import Bf16Policy, Collector
from unilab.learners.ppo import PPO
from unilab.runners.build import make_learner


def learner() -> PPO:
    built = busy_g1()
    made = make_learner(built, built.config, torch.device("cpu"), 1)
    assert isinstance(made, PPO)
    return made


def test_shards_and_groups_collect_the_same_rollout():
    rollouts = []
    for choice in (
        Choice("a", "serial"),
        Choice("b", "shards", shards=2),
        Choice("c", "groups", STEP, groups=2),
    ):
        collector = Collector(busy_g1(), choice, learner(), recording(), 2)
        collector.pipeline.shards.min_blocks = 1
        found = collector.run()
        rollouts.append(collector.rollout)
        collector.close()
        assert found.ceiling_env_steps_per_s > found.env_steps_per_s > 0
        assert 0 < found.host_ms < found.stages_ms["step"]
        assert found.env_steps_per_s == pytest.approx(NUM_ENVS / found.stages_ms["step"] * 1e3)
    assert collector.physics.reset_ms > 0
    torch.testing.assert_close(rollouts[1].obs, rollouts[0].obs, rtol=0, atol=0)
    # Another grouping draws the policy's noise in another order.
    torch.testing.assert_close(rollouts[2].critic_obs[0], rollouts[0].critic_obs[0])


def test_each_pass_begins_at_the_recorded_state():
    collector = Collector(busy_g1(), Choice("a", ""), learner(), recording(), 2)
    collector.run()
    collector.pipeline.load_state_dict(recording().start)
    start = recording().start["arrays"]["obs_out"]
    np.testing.assert_array_equal(collector.pipeline.observe(0)[0], start)
    collector.close()


def test_the_bf16_policy_is_the_policy_up_to_bf16():
    whole = learner()
    obs = torch.from_numpy(np.array(recording().start["arrays"]["obs_out"]))
    state = whole.generator.get_state()
    exact = whole.act(obs)
    whole.generator.set_state(state)
    rough = Bf16Policy(whole).act(obs)
    assert rough.action.dtype == torch.float32
    assert not torch.equal(rough.mean, exact.mean)
    torch.testing.assert_close(rough.mean, exact.mean, rtol=0.05, atol=2e-3)
    torch.testing.assert_close(rough.action - rough.mean, exact.action - exact.mean)
    torch.testing.assert_close(rough.log_prob, exact.log_prob, rtol=1e-5, atol=1e-4)
