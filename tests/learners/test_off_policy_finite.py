"""One bad number must not ruin a run: the update it would reach is refused and counted."""

from __future__ import annotations

import math

import pytest
import torch

from tests.learners.off_policy_support import KINDS, observe_something, random_batch, small
from tests.learners.support import tensors_of

UPDATES = 4  # of the critics in a cycle; 2 of the actor
NON_FINITE = "learner/non_finite_updates"


def learnt(learner) -> dict[str, torch.Tensor]:
    state = learner.state_dict()
    kept = ("actor", "critic", "critic_target", "optimizer_actor", "optimizer_critic")
    kept += ("temperature", "optimizer_temperature")
    return tensors_of({key: state[key] for key in kept if key in state})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_rewards_change_neither_critics_nor_slow_copies(kind: str, bad: float) -> None:
    learner = small(kind)
    observe_something(learner)
    learner.cycle(random_batch(learner, 1))
    before = learnt(learner)
    batch = random_batch(learner, 2)
    batch.reward[3::12] = bad  # one a minibatch
    batch.weight[3::12] = 1.0
    metrics = learner.cycle(batch)
    assert metrics[NON_FINITE].item() == UPDATES
    assert math.isnan(metrics["loss/critic"].item())
    after = learnt(learner)
    critics = [key for key in before if "critic" in key]
    assert all(torch.equal(before[key], after[key]) for key in critics)

    metrics = learner.cycle(random_batch(learner, 3))
    assert metrics[NON_FINITE].item() == 0
    assert all(math.isfinite(value.item()) for value in metrics.values())
    after = learnt(learner)
    assert all(torch.isfinite(value).all() for value in after.values())
    assert not any(torch.equal(before[key], after[key]) for key in critics if "head" in key)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["obs", "critic_obs", "action", "next_obs", "next_critic_obs"])
def test_only_the_update_with_the_bad_row_is_refused(kind: str, field: str) -> None:
    learner = small(kind)
    batch = random_batch(learner, 1)
    getattr(batch, field)[13] = math.nan  # in the second minibatch, where the actor learns too
    batch.weight[13] = batch.discount[13] = 1.0
    metrics = learner.cycle(batch)
    assert metrics[NON_FINITE].item() >= 1
    steps = learner.state_dict()["optimizer_critic"]["step"].item()
    assert steps == UPDATES - (field != "obs")  # critics do not see obs
    steps = learner.state_dict()["optimizer_actor"]["step"].item()
    assert steps == 2 - (field in ("obs", "critic_obs"))
    for name, value in metrics.items():
        assert math.isfinite(value.item()), name
    assert all(torch.isfinite(value).all() for value in learnt(learner).values())


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_a_bad_update_is_refused_at_once(kind: str) -> None:
    learner = small(kind, updates_per_step=1, actor_every=1)
    before = learnt(learner)
    batch = random_batch(learner, 1)
    for rows in batch[:7]:
        rows[:] = math.nan
    metrics = learner.cycle(batch)
    assert metrics[NON_FINITE].item() == (3 if kind == "sac" else 2)  # every network's step
    after = learnt(learner)
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_observation_stays_out_of_the_statistics_and_is_counted_once(kind: str) -> None:
    learner = small(kind)
    observe_something(learner)
    mean = learner.obs_normalizer.mean.clone()
    batch = random_batch(learner, 1)
    bad = batch.obs.clone()
    bad[0, 0] = math.inf
    learner.observe(bad, batch.critic_obs)
    assert torch.equal(learner.obs_normalizer.mean, mean)
    assert learner.cycle(batch)[NON_FINITE].item() == 1
    assert learner.cycle(batch)[NON_FINITE].item() == 0
