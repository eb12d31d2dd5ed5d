"""The APPO learner: against the plain reference, saved and restored, and with snapshots."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.learners.dispatch import CountOps, NoHostSync
from tests.learners.reach import reachable, same, saved_and_loaded
from tests.learners.support import CPU, SPEC, collect, tensors_of
from tests.learners.test_ppo_state import SCRATCH
from tests.learners.test_ppo_sync import BUDGET
from tests.reference import appo_reference
from unilab.config.appo import APPOConfig
from unilab.errors import ConfigError
from unilab.learners.appo import APPO
from unilab.learners.base import LearnerSpec
from unilab.learners.networks import MLP
from unilab.learners.ppo import PPO


def small_config(**changes: object) -> APPOConfig:
    settings = {
        "epochs": 3,
        "minibatches": 4,
        "actor_hidden": [16, 12],
        "critic_hidden": [12, 16],
        "num_steps": 6,
    }
    return APPOConfig.model_validate(settings | changes)


def small_learner(seed: int = 3, dtype: torch.dtype = torch.float32, **changes: object) -> APPO:
    return APPO(small_config(**changes), SPEC, CPU, seed, dtype)


def layers_of(mlp: MLP) -> appo_reference.Layers:
    return [
        (x.weight.detach().clone().requires_grad_(), x.bias.detach().clone().requires_grad_())
        for x in mlp.linears
    ]


@pytest.mark.parametrize(
    "changes",
    [{}, {"rho_bar": 1.5, "c_bar": 0.8, "lam": 0.7}, {"clip": 0.05, "max_grad_norm": 0.1}],
    ids=["defaults", "other bounds", "tight clips"],
)
def test_whole_update_from_a_stale_rollout_equals_the_plain_reference(changes) -> None:
    learner = small_learner(dtype=torch.float64, learning_rate=2e-3, **changes)
    stale = collect(learner, seed=11)
    learner.update(collect(learner, seed=12).rollout)  # moves policy and normalisers on
    learner.update(collect(learner, seed=13).rollout)
    c, r, steps = learner.config, stale.rollout, stale.rollout.num_steps
    data = appo_reference.Data(
        learner.obs_normalizer(r.obs),
        learner.critic_obs_normalizer(r.critic_obs),
        r.action.clone(),
        r.log_prob.clone(),
        r.reward.clone(),
        r.terminated.clone(),
        r.truncated.clone(),
        learner.critic_obs_normalizer(stale.final_critic_obs),
    )
    settings = appo_reference.Settings(
        c.minibatches, c.gamma, c.lam, c.rho_bar, c.c_bar, c.clip, c.value_coef, c.entropy_coef,
        c.target_kl, c.max_grad_norm,
    )  # fmt: skip
    state = appo_reference.State(
        layers_of(learner.actor.mlp),
        learner.actor.std.detach().clone().requires_grad_(),
        layers_of(learner.critic),
        float(learner.learning_rate),
    )
    for name in ("actor", "critic"):
        for tensor in learner._optimizer.moments(name).values():
            tensor.zero_()
    draw = torch.Generator()
    draw.set_state(learner.generator.get_state())
    orders = [torch.randperm(8 * steps, generator=draw) for _ in range(c.epochs)]
    kls = appo_reference.update(state, data, settings, orders)

    metrics = learner.update(r)

    assert float(metrics["policy/kl"]) == pytest.approx(sum(kls) / len(kls), rel=1e-6)
    assert float(learner.learning_rate) == pytest.approx(state.learning_rate, rel=1e-6)
    assert metrics["policy/lag_weight"] < 1
    assert metrics["policy/lag_kl"] > 1e-3
    ours = [*layers_of(learner.actor.mlp), *layers_of(learner.critic)]
    for pair, expected in zip(ours, [*state.actor, *state.critic], strict=True):
        for a, b in zip(pair, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)
    assert torch.allclose(learner.actor.std, state.std, rtol=1e-6)


def test_on_policy_an_update_is_that_of_ppo() -> None:
    appo = small_learner(dtype=torch.float64)
    ppo = PPO(appo.config, SPEC, CPU, seed=3, dtype=torch.float64)
    ppo.generator.set_state(appo.acting_generator.get_state())
    left, right = collect(appo, seed=1).rollout, collect(ppo, seed=1).rollout
    assert torch.equal(left.action, right.action)
    ppo.generator.set_state(appo.generator.get_state())
    appo.update(left)
    ppo.update(right)
    for a, b in zip(appo.actor.parameters(), ppo.actor.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-10)
    for a, b in zip(appo.critic.parameters(), ppo.critic.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-10)


def test_a_snapshot_acts_as_the_learner_did_when_it_was_published() -> None:
    learner = small_learner()
    learner.update(collect(learner, seed=1).rollout)
    snapshot = learner.snapshot()
    obs = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    place = learner.acting_generator.get_state()
    expected = learner.act(obs)
    learner.update(collect(learner, seed=2).rollout)
    learner.acting_generator.set_state(place)
    found = snapshot.act(obs, True, learner.acting_generator)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    learner.publish(snapshot)
    expected = learner.act(obs, explore=False)
    found = snapshot.act(obs, False, learner.acting_generator)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert learner.version == 2


def test_neither_update_nor_snapshots_wait_for_the_device() -> None:
    learner = small_learner()
    rollout = collect(learner, seed=1).rollout
    obs = rollout.obs[0].clone()
    snapshot = learner.snapshot()
    with NoHostSync():
        metrics = learner.update(rollout)
        learner.publish(snapshot)
        learner.act(obs)
        snapshot.act(obs, True, learner.acting_generator)
    assert all(value.shape == () and value.device == CPU for value in metrics.values())


def test_a_minibatch_costs_what_it_costs_in_ppo_and_publishing_one_operation() -> None:
    learner = small_learner()
    learner.update(collect(learner, seed=1).rollout)
    snapshot = learner.snapshot()
    with CountOps() as count:
        learner._table.gather(torch.arange(learner._table.size))
        learner._learn(learner._table.batch, learner._table.size)
    assert len(count.names) <= BUDGET
    with CountOps() as count:
        learner.publish(snapshot)
    assert [name for name in count.names if name != "detach"] == ["_foreach_copy_"]


def test_a_restored_learner_equals_the_saved_one_in_all_it_can_reach() -> None:
    learner, other = small_learner(seed=3), small_learner(seed=4)
    learner.update(collect(learner, seed=1).rollout)
    for seed in (9, 10):
        other.update(collect(other, seed=seed).rollout)
    other.load_state_dict(saved_and_loaded(learner.state_dict()))
    here, there = (reachable(x, "appo", SCRATCH) for x in (learner, other))
    differing = [key for key in here if not same(here[key], there[key])]
    assert [key for key in differing if "_lag_" not in key] == []  # those are metrics
    assert here.keys() == there.keys()
    assert "appo.acting_generator" in here


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    learner, restored = small_learner(seed=3), small_learner(seed=77)
    rollout = collect(learner, seed=1).rollout
    learner.update(rollout)
    copy = collect(restored, seed=50).rollout  # memory of the same layout
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


def test_exploring_leaves_the_order_of_minibatches_alone() -> None:
    states: list[Tensor] = []
    for calls in (0, 5):
        learner = small_learner()
        for _ in range(calls):
            learner.act(torch.zeros(4, 5))
        states.append(learner.generator.get_state())
    assert torch.equal(*states)


def test_messages_name_this_learner() -> None:
    with pytest.raises(ConfigError, match=r"learners\.appo\.symmetry is 'augment'"):
        APPO(small_config(symmetry="augment"), LearnerSpec(5, 7, 3), CPU, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"c_bar": 2.0}, "c_bar at most rho_bar"),
        ({"slots": 4}, r"2 to max_lag \+ 1 = 3"),
        ({"slots": 1}, r"2 to max_lag \+ 1 = 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, words) -> None:
    with pytest.raises(ValidationError, match=words):
        small_config(**changes)


def test_slots_follow_the_lag_and_the_schedule() -> None:
    assert small_config().num_slots == 3
    assert small_config(max_lag=5).num_slots == 6
    assert small_config(max_lag=5, slots=2).num_slots == 2
    assert small_config(collection="sync").num_slots == 1
