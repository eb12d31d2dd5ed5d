"""Acting, saving, restoring and exporting of the PPO learner."""

from __future__ import annotations

import pytest
import torch

from tests.learners.reach import reachable, same, saved_and_loaded
from tests.learners.support import CPU, SPEC, collect, small_config, small_learner, tensors_of
from unilab.errors import ConfigError
from unilab.learners.base import LearnerSpec
from unilab.learners.ppo import PPO

# Memory that is written before it is read; all else must survive a save.
SCRATCH = (
    "grad",
    "_table",
    "_acting",
    "_actor_work",
    "_critic_work",
    "_sums",
    "_found_inf",
    "_old_std",
)


@pytest.mark.parametrize("changes", [{}, {"symmetry": "augment"}])
def test_a_restored_learner_equals_the_saved_one_in_all_it_can_reach(changes) -> None:
    learner, other = small_learner(seed=3, **changes), small_learner(seed=4, **changes)
    rollout = collect(learner, seed=1).rollout
    learner.update(rollout)
    for seed in (9, 10):
        other.update(collect(other, seed=seed).rollout)
    here, there = (reachable(x, "ppo", SCRATCH) for x in (learner, other))
    assert here.keys() == there.keys()
    moved = [key for key in here if not same(here[key], there[key])]
    for word in ("std", "linears", "mean", "count", "exp_avg", "generator", "rate", "seed"):
        assert any(word in key for key in moved), word
    other.load_state_dict(saved_and_loaded(learner.state_dict()))
    there = reachable(other, "ppo", SCRATCH)
    assert [key for key in here if not same(here[key], there[key])] == []


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    learner = small_learner(seed=3)
    rollout = collect(learner, seed=1).rollout
    learner.update(rollout)
    restored = small_learner(seed=77)
    restored.load_state_dict(saved_and_loaded(learner.state_dict()))
    copy = collect(restored, seed=50).rollout  # same memory layout; overwritten below
    restored.load_state_dict(saved_and_loaded(learner.state_dict()))
    copy.obs.copy_(rollout.obs)
    copy.critic_obs.copy_(rollout.critic_obs)
    for seed in (2, 3):
        a, b = collect(learner, seed, rollout=rollout), collect(restored, seed, rollout=copy)
        assert torch.equal(a.rollout.action, b.rollout.action)
        left, right = learner.update(a.rollout), restored.update(b.rollout)
        assert {k: v.item() for k, v in left.items()} == {k: v.item() for k, v in right.items()}
    one, two = tensors_of(learner.state_dict()), tensors_of(restored.state_dict())
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert learner.state_dict()["iteration"] == restored.state_dict()["iteration"] == 3


def test_a_snapshot_does_not_change_with_the_learner() -> None:
    learner = small_learner()
    state = learner.state_dict()
    before = {key: value.clone() for key, value in tensors_of(state).items()}
    learner.update(collect(learner, seed=1).rollout)
    assert all(torch.equal(before[key], value) for key, value in tensors_of(state).items())


def test_a_state_from_another_kind_of_device_starts_a_new_known_stream() -> None:
    learner, other = small_learner(seed=3), small_learner(seed=4)
    state = learner.state_dict()
    state["generator"] = {"device": "cuda", "state": torch.zeros(16, dtype=torch.uint8)}
    other.load_state_dict(state)
    expected = torch.Generator().manual_seed(3 + 0)
    assert torch.equal(other.generator.get_state(), expected.get_state())


def test_a_state_of_another_size_is_refused_and_changes_nothing() -> None:
    learner = small_learner(actor_hidden=[16, 12, 8])
    before = tensors_of(learner.state_dict())
    with pytest.raises(ConfigError, match="learner state: actor"):
        learner.load_state_dict(small_learner(seed=9).state_dict())
    assert all(torch.equal(before[k], v) for k, v in tensors_of(learner.state_dict()).items())


def test_exploring_draws_from_the_policy_it_reports() -> None:
    learner = small_learner(init_std=0.5)
    obs = torch.randn(4000, 5, generator=torch.Generator().manual_seed(0))
    out = learner.act(obs)
    normal = torch.distributions.Normal(out.mean, learner.actor.std.detach())
    assert torch.allclose(out.log_prob, normal.log_prob(out.action).sum(-1), atol=1e-4)
    score = (out.action - out.mean) / 0.5
    assert score.mean().abs() < 0.03
    assert (score.std() - 1).abs() < 0.03


def test_not_exploring_gives_the_mean_and_leaves_the_random_stream() -> None:
    learner = small_learner()
    before = learner.generator.get_state()
    out = learner.act(torch.ones(3, 5), explore=False)
    assert torch.equal(out.action, out.mean)
    normal = torch.distributions.Normal(out.mean, learner.actor.std.detach())
    assert torch.allclose(out.log_prob, normal.log_prob(out.action).sum(-1))
    assert torch.equal(learner.generator.get_state(), before)


def test_results_of_act_stay_as_they_were_after_the_next_call() -> None:
    learner = small_learner()
    first = learner.act(torch.ones(3, 5))
    kept = [x.clone() for x in first]
    learner.act(-torch.ones(8, 5))
    learner.act(torch.zeros(2, 5))
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_first_ratio_of_an_iteration_is_one() -> None:
    learner = small_learner(epochs=1, minibatches=1)
    rollout = collect(learner, seed=1).rollout
    learner.update(rollout)
    metrics = learner.update(collect(learner, seed=2, rollout=rollout).rollout)
    assert metrics["policy/kl"].item() < 1e-9
    assert metrics["policy/clip_fraction"].item() == 0
    assert metrics["loss/policy"].item() == pytest.approx(0.0, abs=1e-6)


def test_exported_policy_gives_the_live_actions_on_raw_observations() -> None:
    learner = small_learner()
    learner.update(collect(learner, seed=1).rollout)
    policy = learner.policy_module()
    obs = 100 + 10 * torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    expected = learner.act(obs, explore=False).action
    assert torch.allclose(policy(obs), expected, atol=1e-5)
    learner.update(collect(learner, seed=2).rollout)
    assert torch.allclose(policy(obs), expected, atol=1e-5)


def test_normalisers_fold_each_stored_observation_once_and_acting_never_does() -> None:
    learner = small_learner()
    rollout = collect(learner, seed=1).rollout
    assert learner.obs_normalizer.count.item() == 0
    learner.update(rollout)
    stored = rollout.obs[:6].flatten(0, 1).double()
    assert learner.obs_normalizer.count.item() == 48
    assert torch.allclose(learner.obs_normalizer.mean, stored.mean(0), atol=1e-6)
    stored = rollout.critic_obs[:6].flatten(0, 1).double()
    assert torch.allclose(learner.critic_obs_normalizer.mean, stored.mean(0), atol=1e-6)


def test_same_seed_same_learner_and_another_seed_another() -> None:
    states = [tensors_of(small_learner(seed=s).state_dict()) for s in (3, 3, 4)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    key = "actor.mlp.layers.0.weight"
    assert not torch.equal(states[0][key], states[2][key])


def test_symmetry_without_a_mirror_is_refused() -> None:
    with pytest.raises(ConfigError, match="the task declares no symmetry"):
        PPO(small_config(symmetry="augment"), LearnerSpec(5, 7, 3), CPU, 0)


def test_more_minibatches_than_samples_are_refused() -> None:
    learner = PPO(small_config(minibatches=49), SPEC, CPU, 0)
    with pytest.raises(ConfigError, match="6 steps x 8 envs = 48 samples"):
        learner.update(collect(learner, seed=1).rollout)


def test_a_rollout_without_any_truncation_is_learnt_from() -> None:
    learner = small_learner()
    rollout = collect(learner, seed=1).rollout
    rollout.truncated.zero_()
    rollout.carry_over()  # drops the final observations
    metrics = learner.update(rollout)
    assert metrics["learner/non_finite_updates"].item() == 0
    assert learner.state_dict()["optimizer_critic"]["step"].item() == 12
