"""Operations of an update: by hand, and as torch counts the matrix products that are run."""

from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.learners.support import SPEC, collect, small_config, small_learner
from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.flops import mlp_flops, ppo_update_flops


def test_a_layer_is_a_multiplication_and_an_addition_a_weight():
    assert mlp_flops((3, 5, 2)) == 2 * 3 * 5 + 2 * 5 * 2
    assert mlp_flops((3,)) == 0


@pytest.mark.parametrize(
    ("symmetry", "actor_rows", "critic_rows"),
    [("none", 96, 96), ("augment", 192, 192), ("mirror_loss", 192, 96)],
)
def test_an_update_is_what_the_hand_counts(symmetry, actor_rows, critic_rows):
    coef = 0.1 if symmetry == "mirror_loss" else 0.0
    config = PPOConfig(
        epochs=2, minibatches=3, actor_hidden=(8,), critic_hidden=(16, 8), symmetry=symmetry,
        mirror_coef=coef,
    )  # fmt: skip
    actor, critic = 2 * (4 * 8 + 8 * 2), 2 * (6 * 16 + 16 * 8 + 8 * 1)
    expected = 2 * 3 * (actor_rows * actor + critic_rows * critic) + 97 * critic
    assert ppo_update_flops(config, LearnerSpec(4, 6, 2), 97) == expected


@pytest.mark.parametrize("symmetry", ["none", "augment"])
def test_the_count_is_that_of_the_products_torch_runs(symmetry):
    """But for what the formula says it leaves out: a first layer needs no gradient of its input,
    the last observations and the final ones are valued too, and the gradient of the noise."""
    steps, envs = 12, 32
    learner = small_learner(symmetry=symmetry)
    rollout = collect(learner, seed=1, num_steps=steps, num_envs=envs).rollout
    config, rows = small_config(symmetry=symmetry), steps * envs
    with FlopCounterMode(display=False) as counter:
        learner.update(rollout)
    factor = 1 if symmetry == "none" else 2
    first_layers = sum(
        2 * inputs * hidden[0] * factor * rows * config.epochs
        for inputs, hidden in (
            (SPEC.obs_dim, config.actor_hidden),
            (SPEC.critic_obs_dim, config.critic_hidden),
        )
    )
    expected = ppo_update_flops(config, SPEC, rows) - first_layers
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)
    assert counter.get_total_flops() > expected
