"""Acting, observing, saving, restoring and exporting of the off-policy learners."""

from __future__ import annotations

import pytest
import torch

from tests.learners.off_policy_support import (
    KINDS,
    LIMITS,
    random_batch,
    small,
)
from tests.learners.reach import reachable, same, saved_and_loaded
from tests.learners.support import CPU, tensors_of
from unilab.config.off_policy import SACConfig, TD3Config
from unilab.errors import ConfigError
from unilab.learners.base import LearnerSpec
from unilab.learners.sac import SAC
from unilab.learners.td3 import TD3

# Memory that is written before it is read; all else must survive a save.
SCRATCH = (
    "grad",
    "_grad",
    "_grads",
    "_table",
    "_critic_metrics",
    "_actor_metrics",
    "_non_finite",
    "_found_inf",
    "_next_noise",
    "_noise",
    "_smoothing",
)


def live(learner, seed: int, cycles: int = 2) -> list[torch.Tensor]:
    """Run a learner a little on data that follow from the seed. Returns its actions."""
    actions = []
    for i in range(cycles):
        batch = random_batch(learner, seed + i)
        learner.observe(batch.obs[:20], batch.critic_obs[:20])
        actions += [learner.act(batch.obs[:20]).action, learner.random_actions(4)]
        learner.cycle(batch)
    return actions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes", [{}, {"symmetry": "augment", "updates_per_step": 3}], ids=["plain", "augment"]
)
def test_a_restored_learner_equals_the_saved_one_in_all_it_can_reach(kind, changes) -> None:
    learner, other = small(kind, seed=3, **changes), small(kind, seed=4, **changes)
    live(learner, 1, cycles=1)
    live(other, 9)
    here, there = (reachable(x, kind, SCRATCH) for x in (learner, other))
    assert here.keys() == there.keys()
    moved = [key for key in here if not same(here[key], there[key])]
    words = ["actor", "critic.network", "target", "mean", "count", "exp_avg", "generator"]
    words += ["temperature"] if kind == "sac" else ["noise_levels.std"]
    for word in [*words, "seed", "updates"]:
        assert any(word in key for key in moved), word
    other.load_state_dict(saved_and_loaded(learner.state_dict()))
    there = reachable(other, kind, SCRATCH)
    assert [key for key in here if not same(here[key], there[key])] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"updates_per_step": 3}, {"precision": "bf16"}], ids=str)
def test_a_restored_learner_goes_on_bit_for_bit(kind: str, changes: dict) -> None:
    learner, restored = small(kind, seed=3, **changes), small(kind, seed=77, **changes)
    live(learner, 1)
    learner.observe(torch.full((2, 5), torch.nan), torch.ones(2, 7))  # counted in the next cycle
    live(restored, 50, cycles=1)
    restored.load_state_dict(saved_and_loaded(learner.state_dict()))
    for seed in (2, 3):
        ours, theirs = live(learner, seed), live(restored, seed)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        batch = random_batch(learner, seed)
        left, right = learner.cycle(batch), restored.cycle(batch)
        assert {k: v.item() for k, v in left.items()} == {k: v.item() for k, v in right.items()}
    one, two = tensors_of(learner.state_dict()), tensors_of(restored.state_dict())
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert learner.updates == restored.updates > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_does_not_change_with_the_learner(kind: str) -> None:
    learner = small(kind)
    live(learner, 1)
    state = learner.state_dict()
    before = {key: value.clone() for key, value in tensors_of(state).items()}
    live(learner, 2)
    assert all(torch.equal(before[key], value) for key, value in tensors_of(state).items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_another_size_is_refused_and_changes_nothing(kind: str) -> None:
    learner = small(kind, critic_hidden=[12, 16, 8])
    before = tensors_of(learner.state_dict())
    with pytest.raises(ConfigError, match="learner state: critic"):
        learner.load_state_dict(small(kind, seed=9).state_dict())
    assert all(torch.equal(before[k], v) for k, v in tensors_of(learner.state_dict()).items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_from_another_kind_of_device_starts_a_new_known_stream(kind: str) -> None:
    learner = small(kind, seed=3)
    live(learner, 1, cycles=1)
    state = learner.state_dict()
    state["generator"] = {"device": "cuda", "state": torch.zeros(16, dtype=torch.uint8)}
    other = small(kind, seed=4)
    other.load_state_dict(state)
    expected = torch.Generator().manual_seed(3 + 4)
    assert torch.equal(other.generator.get_state(), expected.get_state())


@pytest.mark.parametrize("kind", KINDS)
def test_exported_policy_gives_the_live_actions_on_raw_observations(kind: str) -> None:
    for network in ({}, {"network": "residual", "actor_hidden": [8, 8], "critic_hidden": [8]}):
        learner = small(kind, **network)
        live(learner, 1)
        policy = learner.policy_module()
        obs = 3 + 2 * torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
        expected = learner.act(obs, explore=False).action
        assert expected.std() > 1e-4
        assert torch.allclose(policy(obs), expected, atol=1e-5)
        live(learner, 2)
        assert torch.allclose(policy(obs), expected, atol=1e-5)
        assert not any(p.requires_grad for p in policy.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_actions_stay_within_the_limits_of_each_joint(kind: str) -> None:
    learner = small(kind, **({} if kind == "sac" else {"noise_std_max": 2.0}))
    limit = torch.tensor(LIMITS)
    for action in (learner.act(torch.randn(2000, 5)).action, learner.random_actions(2000)):
        assert (action.abs() <= limit).all()
    assert (learner.random_actions(2000).abs().amax(0) > 0.98 * limit).all()
    before = learner.generator.get_state()
    out = learner.act(torch.ones(3, 5), explore=False)
    assert torch.equal(out.action, out.mean)
    assert torch.equal(learner.generator.get_state(), before)


def test_action_limit_comes_from_the_config_else_the_task_else_is_one() -> None:
    bare = LearnerSpec(5, 7, 3)
    assert SAC(SACConfig(), bare, CPU, 0).action_limit.tolist() == [1.0, 1.0, 1.0]
    assert small("td3").action_limit.tolist() == list(LIMITS)
    assert small("td3", action_limit=0.7).action_limit.tolist() == pytest.approx([0.7] * 3)
    with pytest.raises(ConfigError, match="each of the 3 actions"):
        LearnerSpec(5, 7, 3, action_limit=(1.0, 0.0, 1.0))


def test_sac_reports_the_density_of_the_action_in_its_own_units() -> None:
    learner = small("sac", dtype=torch.float64)
    live(learner, 1)
    obs = random_batch(learner, 3).obs
    out = learner.act(obs)
    mean, log_std = learner._policy(learner.obs_normalizer(obs))
    limit = learner.action_limit
    u = torch.atanh(out.action / limit)
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)
    slope = limit * (1 - (out.action / limit) ** 2)
    assert torch.allclose(out.log_prob, (density - slope.log()).sum(-1), rtol=1e-6)
    assert torch.allclose(out.mean, torch.tanh(mean) * limit)


def test_td3_rows_keep_their_noise_until_chance_draws_it_anew() -> None:
    learner = small("td3", noise_std_min=0.1, noise_std_max=0.4, noise_redraw_fraction=0.0)
    learner.act(torch.zeros(2000, 5))
    levels = learner.noise_levels.std.clone()
    assert levels.shape == (2000, 1)
    assert levels.min() >= 0.1
    assert levels.max() <= 0.4
    assert levels.mean().item() == pytest.approx(0.25, abs=0.01)
    learner.act(torch.zeros(1000, 5))
    assert torch.equal(learner.noise_levels.std, levels)

    learner = small("td3", noise_redraw_fraction=0.1)
    learner.act(torch.zeros(5000, 5))
    levels = learner.noise_levels.std.clone()
    learner.act(torch.zeros(5000, 5))
    share = (learner.noise_levels.std != levels).float().mean().item()
    assert share == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_only_observe_changes_the_statistics_and_counts_each_row_once(kind: str) -> None:
    learner = small(kind)
    batch = random_batch(learner, 1)
    learner.act(batch.obs)
    learner.cycle(batch)
    assert learner.obs_normalizer.count.item() == learner.critic_obs_normalizer.count.item() == 0
    learner.observe(batch.obs[:20], batch.critic_obs[:20])
    learner.observe(batch.obs[20:], batch.critic_obs[20:])
    assert learner.obs_normalizer.count.item() == 48
    assert torch.allclose(learner.obs_normalizer.mean, batch.obs.double().mean(0), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_weight_count_for_nothing(kind: str) -> None:
    one, two = small(kind), small(kind)
    batch = random_batch(one, 1)
    assert (batch.weight == 0).any()
    one.cycle(batch)
    empty = (batch.weight == 0).unsqueeze(1)
    two.cycle(
        batch._replace(
            next_obs=torch.where(empty, 50.0, batch.next_obs),
            next_critic_obs=torch.where(empty, -50.0, batch.next_critic_obs),
            reward=torch.where(batch.weight == 0, 3.0, batch.reward),
        )
    )
    left, right = tensors_of(one.state_dict()), tensors_of(two.state_dict())
    assert all(torch.allclose(left[key].double(), right[key].double(), atol=1e-6) for key in left)


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_learner_and_another_seed_another(kind: str) -> None:
    states = [tensors_of(small(kind, seed=s).state_dict()) for s in (3, 3, 4)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["critic.head.weight"], states[2]["critic.head.weight"])
    target = {k.replace("_target", ""): v for k, v in states[0].items() if "critic_target" in k}
    assert target
    assert all(torch.equal(states[0][key], value) for key, value in target.items())


@pytest.mark.parametrize(("build", "config"), [(SAC, SACConfig), (TD3, TD3Config)])
def test_symmetry_without_a_mirror_is_refused(build, config) -> None:
    with pytest.raises(ConfigError, match=r"symmetry is 'augment', but the task declares no"):
        build(config(symmetry="augment"), LearnerSpec(5, 7, 3), CPU, 0)
