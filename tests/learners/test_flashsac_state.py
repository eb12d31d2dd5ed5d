"""Acting, saving, restoring, exporting and the cost of the FlashSAC learner."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.learners.dispatch import CountOps, NoHostSync
from tests.learners.flash_support import random_batch, small_config, small_learner
from tests.learners.off_policy_support import LIMITS, SPEC
from tests.learners.reach import reachable, same, saved_and_loaded
from tests.learners.support import CPU, tensors_of
from unilab.errors import ConfigError
from unilab.learners import precision
from unilab.learners.flashsac import FlashSAC

CRITIC_BUDGET = 420  # eager operations of one update of the critic, views not counted
ACTOR_BUDGET = 367  # what the published implementation takes
# Written before it is read, or derived: no part of the state.
SCRATCH = ("_noted", "grad", "_sums", "_averages", "views", "_found_inf", "[lr]", "_table")
SCRATCH += ("_non_finite", "_scale_metric")
OPTIONS = [{}, {"symmetry": "augment"}, {"precision": "bf16"}]


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


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_nothing_waits_for_the_device(changes) -> None:
    learner = used_learner(**changes)
    batch, obs = random_batch(learner, seed=2), torch.randn(6, 5)
    ended = obs[:, 1] > 1
    with NoHostSync():
        metrics = learner.cycle(batch)
        learner.random_actions(8)
        learner.act(obs)
        learner.act(obs, explore=False)
        learner.observe_rewards(obs[:, 0], ended)
    assert all(value.shape == () and value.device == CPU for value in metrics.values())


@pytest.mark.parametrize("changes", OPTIONS[:2], ids=str)
def test_updates_stay_within_the_budget_of_operations(changes) -> None:
    learner = used_learner(**changes)
    rows = learner._table.rows(0)
    with CountOps() as critic:
        learner._update_critic(rows)
    with CountOps() as actor:
        learner._update_actor(rows)
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
    for word in ("weights", "norms", "running", "exp_avg", "temperature", "target",
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
    # Each step of the critics, of the policy, and of the temperature where the policy is bad.
    expected = {"reward": 2, "critic_obs": 3, "next_obs": 4}[field]
    assert metrics["learner/non_finite_updates"].item() == expected
    assert math.isfinite(metrics["policy/temperature"].item()) == (field == "reward")
    after = tensors_of(learner.state_dict())
    assert all(torch.isfinite(value).all() for value in after.values() if value.is_floating_point())
    kept = ["critic", "target", "optimizer_critic"]
    kept += ["actor", "optimizer_actor"] if field != "reward" else []
    kept += ["temperature", "optimizer_temperature"] if field == "next_obs" else []
    for key, value in after.items():
        if key.startswith(tuple(f"{name}." for name in kept)) and "learning_rate" not in key:
            assert torch.allclose(value, before[key], rtol=0, atol=1e-6), key
    assert step(learner, 11)["learner/non_finite_updates"] == 0


def test_exploring_draws_from_the_policy_it_reports() -> None:
    learner = used_learner()
    obs = torch.randn(4000, 5, generator=torch.Generator().manual_seed(0))
    out = learner.act(obs)
    assert (out.action.abs() <= torch.tensor(LIMITS)).all()
    calm = learner.act(obs, explore=False)
    assert torch.equal(calm.action, calm.mean)
    assert torch.allclose(calm.action, out.mean)
    assert not torch.allclose(out.action, out.mean)
    assert out.log_prob.shape == (4000,)


def test_random_actions_fill_the_limits() -> None:
    actions, limit = small_learner().random_actions(20_000), torch.tensor(LIMITS)
    assert torch.allclose(actions.amax(0), limit, rtol=1e-2)
    assert torch.allclose(actions.amin(0), -limit, rtol=1e-2)
    assert torch.allclose(actions.std(0), limit / math.sqrt(3), rtol=2e-2)


@pytest.mark.parametrize(
    ("limit", "expected"), [("auto", LIMITS), (0.7, (0.7, 0.7, 0.7))], ids=["auto", "number"]
)
def test_density_is_that_of_the_action_itself(limit, expected) -> None:
    learner = small_learner(dtype=torch.float64, action_limit=limit)
    obs = torch.zeros(1, 5, dtype=torch.float64)
    out, mean = learner.act(obs), learner.act(obs, explore=False).mean
    # The squash by hand, at the action that was drawn.
    bound = torch.tensor(expected, dtype=torch.float64)
    raw = learner.actor(obs, "running")[0, 0]
    std = torch.exp(-4 + 6 * torch.tanh(raw[3:]))
    u = torch.atanh(out.action[0] / bound)
    normal = torch.distributions.Normal(torch.atanh(mean[0] / bound), std)
    slope = bound * (1 - (out.action[0] / bound).square())
    assert out.log_prob.item() == pytest.approx((normal.log_prob(u) - slope.log()).sum().item())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_half_precision_keeps_parameters_statistics_and_results_in_float32_and_learns_alike(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "FP16_DEVICES", ("cpu", "cuda"))
    full, half = small_learner(), small_learner(precision=name)
    used: set[torch.dtype] = set()
    whole = half.critic._linear

    def watched(h: torch.Tensor, i: int) -> torch.Tensor:
        out = whole(h, i)
        used.add(out.dtype)
        return out

    half.critic._linear = watched
    for seed in (1, 2):
        batch = random_batch(full, seed)
        left, right = full.cycle(batch), half.cycle(batch)
    assert used == {precision.DTYPES[name]}
    assert right["learner/non_finite_updates"].item() == 0
    for key in ("loss/critic", "loss/actor", "value/target", "policy/entropy"):
        assert right[key].dtype == torch.float32
        assert right[key].item() == pytest.approx(left[key].item(), rel=0.05, abs=0.05), key
    for key, value in tensors_of(half.state_dict()).items():
        if value.is_floating_point():
            assert value.dtype in (torch.float32, torch.float64), key
    for a, b in zip(full.critic.parameters(), half.critic.parameters(), strict=True):
        assert (a - b).abs().mean() < 2e-3
    assert half.act(batch.obs).action.dtype == torch.float32


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_large_observations_overflow_nowhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "FP16_DEVICES", ("cpu", "cuda"))
    learner = small_learner(precision=name)
    batch = random_batch(learner, 1)
    batch = batch._replace(obs=batch.obs * 1e5, next_obs=batch.next_obs * 1e5)
    metrics = learner.cycle(batch)
    assert metrics["learner/non_finite_updates"].item() == 0
    assert all(torch.isfinite(value) for value in metrics.values())


def test_what_device_or_task_lack_is_refused_by_key() -> None:
    with pytest.raises(ConfigError, match=r"learners\.flashsac\.precision=fp16: device cpu.*bf16"):
        small_learner(precision="fp16")
    plain = replace(SPEC, symmetry=None)
    with pytest.raises(ConfigError, match=r"learners\.flashsac\.symmetry.*no symmetry"):
        FlashSAC(small_config(symmetry="augment"), plain, CPU, 0)


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
