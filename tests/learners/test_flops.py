"""Operations of an update: by hand, and as torch counts the matrix products that are run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.learners import flash_support, off_policy_support
from tests.learners.support import CPU, SPEC, collect, small_config, small_learner
from unilab.config.appo import APPOConfig
from unilab.config.base import hidden_layers
from unilab.config.off_policy import SACConfig, TD3Config
from unilab.config.schema import PPOConfig
from unilab.learners.appo import APPO
from unilab.learners.base import LearnerSpec
from unilab.learners.flops import (
    NetworkFlops,
    flashsac_update_flops,
    iteration_flops,
    network_flops,
    off_policy_update_flops,
    ppo_update_flops,
)
from unilab.learners.networks import NETWORKS


def test_a_layer_is_a_multiplication_and_an_addition_a_weight():
    assert network_flops(3, 5, 2) == NetworkFlops(2 * 3 * 5 + 2 * 5 * 2, 2 * 3 * 5)
    residual, blocks = (
        network_flops(3, *hidden_layers("residual", (7, 7)), 5),
        2 * (7 * 28 + 28 * 7),
    )
    assert residual == NetworkFlops(2 * (3 * 7 + blocks + 7 * 5), 2 * 3 * 7)
    assert NetworkFlops(50, 30).training == 50 + (50 - 30) + 50
    assert NetworkFlops(50, 30).steering == 50 + 50
    assert NetworkFlops(50, 30).times(2) == NetworkFlops(100, 60)


@pytest.mark.parametrize("kind", NETWORKS)
def test_layers_are_those_of_the_network(kind):
    net = NETWORKS[kind]((3, 8, 8, 2), "elu", 1.0, torch.Generator(), CPU)
    sizes = (3, *hidden_layers(kind, (8, 8)), 2)
    matrices = [p for p in net.parameters() if min(p.shape[-2:]) > 1 and p.ndim > 1]
    assert sum(a * b for a, b in pairwise(sizes)) == sum(p.numel() for p in matrices)
    with FlopCounterMode(display=False) as counter:
        net(torch.ones(5, 3))
    assert counter.get_total_flops() == 5 * network_flops(*sizes).forward


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
    learning = actor_rows * (3 * actor - 2 * 4 * 8) + critic_rows * (3 * critic - 2 * 6 * 16)
    assert ppo_update_flops(config, LearnerSpec(4, 6, 2), 97) == 2 * learning + 97 * critic


def test_an_iteration_is_all_that_is_learned_in_it():
    config = SACConfig(num_steps=7, updates_per_step=3, batch_size=10, actor_every=2)
    per_update = off_policy_update_flops(config, SPEC)
    assert iteration_flops(config, SPEC, 64) == round(7 * 3 * per_update)
    rollout = PPOConfig(num_steps=7)
    assert iteration_flops(rollout, SPEC, 64) == ppo_update_flops(rollout, SPEC, 7 * 64)


@pytest.mark.parametrize("kind", ["ppo", "appo"])
@pytest.mark.parametrize(
    ("symmetry", "network"), [("none", "mlp"), ("augment", "mlp"), ("none", "residual")]
)
def test_the_count_of_a_rollout_is_that_of_the_products_torch_runs(kind, symmetry, network):
    """But for the values of the last and the final observations, and the gradient of the noise."""
    steps, envs = 12, 32
    changes = {"symmetry": symmetry, "network": network}
    if network == "residual":
        changes |= {"actor_hidden": [16, 16], "critic_hidden": [12, 12]}
    config = small_config(**changes)
    learner = small_learner(**changes)
    if kind == "appo":
        config = APPOConfig.model_validate(config.model_dump(exclude={"overrides"}))
        learner = APPO(config, SPEC, CPU, 3)
    rollout = collect(learner, seed=1, num_steps=steps, num_envs=envs).rollout
    with FlopCounterMode(display=False) as counter:
        learner.update(rollout)
    expected = ppo_update_flops(config, SPEC, steps * envs)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)
    assert counter.get_total_flops() > expected


@pytest.mark.parametrize("kind", off_policy_support.KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"symmetry": "augment", "actor_every": 4},
        {"actor_every": 1, "updates_per_step": 1},
        {"network": "residual", "actor_hidden": [16, 16], "critic_hidden": [24]},
    ],
    ids=["mlp", "mirrored", "actor_always", "residual"],
)
def test_the_count_of_a_cycle_is_that_of_the_products_torch_runs(kind, changes):
    settings = off_policy_support.SMALL | changes
    config = (SACConfig if kind == "sac" else TD3Config).model_validate(settings)
    learner = off_policy_support.small(kind, **changes)
    batch = off_policy_support.random_batch(learner, 1)
    with FlopCounterMode(display=False) as counter:
        learner.cycle(batch)
    expected = config.updates_per_step * off_policy_update_flops(config, off_policy_support.SPEC)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_critics": 3, "actor_blocks": 1, "critic_blocks": 3},
        {"actor_every": 1, "symmetry": "augment"},
    ],
    ids=["twins", "other_sizes", "mirrored"],
)
def test_the_count_of_a_flashsac_cycle_is_that_of_the_products_torch_runs(changes):
    learner = flash_support.small_learner(**changes)
    batch = flash_support.random_batch(learner, 1)
    with FlopCounterMode(display=False) as counter:
        learner.cycle(batch)
    config = learner.config
    expected = config.updates_per_step * flashsac_update_flops(config, flash_support.SPEC)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)
