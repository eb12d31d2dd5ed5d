"""One bad number must not ruin a run: the step it would reach is refused and counted."""

from __future__ import annotations

import math

import pytest
import torch

from tests.learners.support import collect, small_learner, tensors_of

UPDATES = 12  # 3 epochs x 4 minibatches


def learning_state(learner) -> dict[str, torch.Tensor]:
    state = learner.state_dict()
    kept = ("actor", "critic", "optimizer_actor", "optimizer_critic")
    return tensors_of({key: state[key] for key in kept}) | {"rate": state["learning_rate"]}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_reward_changes_no_parameter_moment_or_rate(bad: float) -> None:
    learner = small_learner()
    collected = collect(learner, seed=1)
    learner.update(collected.rollout)
    before = learning_state(learner)
    collected = collect(learner, seed=2, rollout=collected.rollout)
    collected.rollout.reward[5, 3] = bad
    metrics = learner.update(collected.rollout)
    assert metrics["learner/non_finite_updates"].item() == UPDATES
    assert math.isnan(metrics["loss/policy"].item())
    after = learning_state(learner)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)

    collected = collect(learner, seed=3, rollout=collected.rollout)
    metrics = learner.update(collected.rollout)
    assert metrics["learner/non_finite_updates"].item() == 0
    assert all(math.isfinite(value.item()) for value in metrics.values())
    after = learning_state(learner)
    assert all(torch.isfinite(value).all() for value in after.values())
    assert not torch.equal(before["actor.std"], after["actor.std"])


@pytest.mark.parametrize("field", ["log_prob", "action"])
def test_only_the_minibatches_with_the_bad_sample_are_refused(field: str) -> None:
    learner = small_learner()
    rollout = collect(learner, seed=1).rollout
    getattr(rollout, field)[2, 3] = math.nan
    metrics = learner.update(rollout)
    assert metrics["learner/non_finite_updates"].item() == 3  # once an epoch
    steps = learner.state_dict()["optimizer_actor"]["step"].item()
    assert steps == UPDATES - 3
    for name, value in metrics.items():
        assert math.isfinite(value.item()), name
    assert all(torch.isfinite(value).all() for value in learning_state(learner).values())


def test_a_bad_observation_stays_out_of_the_statistics_and_is_counted() -> None:
    learner = small_learner()
    rollout = collect(learner, seed=1).rollout
    rollout.obs[6, 0] = math.nan  # row T: seen next, learnt from in the next rollout
    assert learner.update(rollout)["learner/non_finite_updates"].item() == 0
    mean = learner.obs_normalizer.mean.clone()
    rollout = collect(learner, seed=2, rollout=rollout).rollout
    assert learner.update(rollout)["learner/non_finite_updates"].item() >= 1
    assert torch.equal(learner.obs_normalizer.mean, mean)
    assert torch.isfinite(learner.obs_normalizer.inv_scale).all()
