"""Acting, saving, restoring, exporting and the cost of the FlashSAC learner."""

from __future__ import annotations

import math

import pytest
import torch

from tests.learners.dispatch import CountOps, NoHostSync
from tests.learners.flash_support import random_batch, small_config, small_learner
from tests.learners.reach import reachable, same, saved_and_loaded
from tests.learners.support import CPU, SPEC, tensors_of
from unilab.errors import ConfigError
from unilab.learners.flashsac import FlashSAC

CRITIC_BUDGET = 420  # eager operations of one update of the critic, views not counted
ACTOR_BUDGET = 367  # what the published implementation takes
# Written before it is read, or derived: no part of the state.
SCRATCH = ("_noted", "grad", "_sums", "_found_inf", "learning_rate", "[lr]")


def used_learner(seed: int = 3, **changes: object) -> FlashSAC:
    """A learner that has acted, seen rewards and learnt."""
    learner = small_learner(seed, **changes)
    step(learner, seed)
    return learner


def step(learner: FlashSAC, seed: int) -> dict[str, float]:
    draw = torch.Generator().manual_seed(seed)
    obs = torch.randn(6, 5, generator=draw)
    learner.act(obs)
    learner.observe(obs, obs)
    learner.observe_rewards(obs[:, 0], obs[:, 1] > 1)
    return {k: v.item() for k, v in learner.cycle(random_batch(learner, seed)).items()}


def test_nothing_waits_for_the_device() -> None:
    learner = used_learner()
    batch, obs = random_batch(learner, seed=2), torch.randn(6, 5)
    ended = obs[:, 1] > 1
    with NoHostSync():
        metrics = learner.cycle(batch)
        learner.act(obs)
        learner.act(obs, explore=False)
        learner.observe_rewards(obs[:, 0], ended)
    assert all(value.shape == () and value.device == CPU for value in metrics.values())


def test_updates_stay_within_the_budget_of_operations() -> None:
    learner = used_learner()
    batch = random_batch(learner, seed=2)
    part = type(batch)(*(x[:16] for x in batch))
    share = part.weight / part.weight.sum()
    with CountOps() as critic:
        learner._update_critic(part, share)
    with CountOps() as actor:
        learner._update_actor(part, share)
    print(f"operations: critic {len(critic.names)}, actor {len(actor.names)}")
    assert "_fused_adam_" in critic.names
    assert 100 < len(critic.names) <= CRITIC_BUDGET
    assert 100 < len(actor.names) <= ACTOR_BUDGET


def test_every_cycle_is_the_same_operations_so_that_a_graph_can_hold_it() -> None:
    learner, runs = used_learner(), []
    for seed in (2, 3):
        batch = random_batch(learner, seed)
        with CountOps() as count:
            learner.cycle(batch)
        runs.append(count.names)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("changes", [{}, {"noise_hold": "per_env"}])
def test_a_restored_learner_equals_the_saved_one_in_all_it_can_reach(changes) -> None:
    learner, other = used_learner(3, **changes), used_learner(4, **changes)
    step(other, 8)
    here, there = (reachable(x, "flash", ()) for x in (learner, other))
    assert here.keys() == there.keys()
    moved = [key for key in here if not same(here[key], there[key])]
    for word in ("weights", "norms", "running", "exp_avg", "log_temperature", "target",
                 "generator", "noise.noise", "peak", "returns", "updates", "_done"):  # fmt: skip
        assert any(word in key for key in moved), word
    other.load_state_dict(saved_and_loaded(learner.state_dict()))
    there = reachable(other, "flash", ())
    differing = [key for key in here if not same(here[key], there[key])]
    assert [key for key in differing if not any(word in key for word in SCRATCH)] == []


@pytest.mark.parametrize("changes", [{}, {"updates_per_step": 1}])
def test_a_restored_learner_goes_on_bit_for_bit(changes) -> None:
    learner, restored = used_learner(3, **changes), small_learner(77, **changes)
    restored.load_state_dict(saved_and_loaded(learner.state_dict()))
    obs = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    for seed in (5, 6, 7):
        for a, b in zip(learner.act(obs), restored.act(obs), strict=True):
            assert torch.equal(a, b)
        left, right = step(learner, seed), step(restored, seed)
        shared = [key for key in left if not math.isnan(left[key])]
        assert len(shared) > 6
        if seed > 5 or not changes:  # a policy's metrics are those of its last update
            assert left == right
    one, two = tensors_of(learner.state_dict()), tensors_of(restored.state_dict())
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_snapshot_does_not_change_with_the_learner() -> None:
    learner = used_learner()
    state = learner.state_dict()
    before = {key: value.clone() for key, value in tensors_of(state).items()}
    step(learner, 9)
    assert all(torch.equal(before[key], value) for key, value in tensors_of(state).items())


def test_a_state_of_another_size_is_refused_and_changes_nothing() -> None:
    learner = used_learner()
    before = tensors_of(learner.state_dict())
    with pytest.raises(ConfigError, match="learner state: critic"):
        learner.load_state_dict(used_learner(critic_width=9).state_dict())
    assert all(torch.equal(before[k], v) for k, v in tensors_of(learner.state_dict()).items())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["reward", "critic_obs", "next_obs"])
def test_a_bad_number_changes_no_moment_or_statistic_and_is_counted(bad: float, field: str) -> None:
    learner = used_learner()
    before = {k: v.clone() for k, v in tensors_of(learner.state_dict()).items()}
    batch = random_batch(learner, seed=2)
    batch.weight.fill_(1)
    getattr(batch, field)[[3, 20]] = bad
    metrics = learner.cycle(batch)
    expected = {"reward": 2, "critic_obs": 3, "next_obs": 3}[field]
    if field == "reward" and math.isinf(bad):
        expected = 0  # it is beyond the range of the distribution, and counts as its end
    assert metrics["learner/non_finite_updates"].item() == expected
    after = tensors_of(learner.state_dict())
    assert all(torch.isfinite(value).all() for value in after.values() if value.is_floating_point())
    if field != "reward":
        for key, value in after.items():
            if key.startswith(("actor", "critic", "optimizer", "temperature")):
                assert torch.allclose(value, before[key], rtol=0, atol=1e-6), key
    assert step(learner, 11)["learner/non_finite_updates"] == 0


def test_exploring_draws_from_the_policy_it_reports() -> None:
    learner = used_learner()
    obs = torch.randn(4000, 5, generator=torch.Generator().manual_seed(0))
    out = learner.act(obs)
    assert out.action.abs().max() <= 1
    calm = learner.act(obs, explore=False)
    assert torch.equal(calm.action, calm.mean)
    assert torch.allclose(calm.action, out.mean)
    assert not torch.allclose(out.action, out.mean)
    assert out.log_prob.shape == (4000,)


def test_not_exploring_leaves_the_random_stream_and_the_held_noise() -> None:
    learner = used_learner()
    before, noise = learner.generator.get_state(), learner.noise.noise.clone()
    learner.act(torch.ones(3, 5), explore=False)
    assert torch.equal(learner.generator.get_state(), before)
    assert torch.equal(learner.noise.noise, noise)


def test_exported_policy_gives_the_live_actions_on_raw_observations() -> None:
    learner = used_learner()
    for seed in range(5):
        step(learner, seed)
    policy = learner.policy_module()
    obs = 3 * torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    expected = learner.act(obs, explore=False).action
    assert expected.abs().mean() > 0.05
    assert torch.allclose(policy(obs), expected, atol=1e-5)
    step(learner, 9)
    assert torch.allclose(policy(obs), expected, atol=1e-5)


def test_same_seed_same_learner_and_another_seed_another() -> None:
    states = [tensors_of(small_learner(seed=s).state_dict()) for s in (3, 3, 4)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["actor.weights.0"], states[2]["actor.weights.0"])


def test_the_slow_copy_starts_as_the_critic() -> None:
    learner = FlashSAC(small_config(), SPEC, CPU, seed=0)
    for a, b in zip(learner.critic.parameters(), learner.target.parameters(), strict=True):
        assert torch.equal(a, b)
