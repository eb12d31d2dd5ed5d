"""Operations of an update: by hand, and as torch counts the matrix products that are run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.learners.support import SPEC, collect, small_config, small_learner
from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.flops import layer_sizes, mlp_flops, network_flops, ppo_update_flops
from unilab.learners.networks import NETWORKS


def test_a_layer_is_a_multiplication_and_an_addition_a_weight():
    assert mlp_flops((3, 5, 2)) == 2 * 3 * 5 + 2 * 5 * 2
    assert mlp_flops((3,)) == 0


@pytest.mark.parametrize("kind", NETWORKS)
def test_layers_are_those_of_the_network(kind):
    sizes = (3, 8, 8, 2)
    net = NETWORKS[kind](sizes, "elu", 1.0, torch.Generator(), torch.device("cpu"))
    matrices = [p for p in net.parameters() if min(p.shape[-2:]) > 1 and p.ndim > 1]
    assert sum(a * b for a, b in layer_sizes(kind, sizes)) == sum(p.numel() for p in matrices)
    with FlopCounterMode(display=False) as counter:
        net(torch.ones(5, 3))
    assert counter.get_total_flops() == 5 * network_flops(kind, sizes)


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


@pytest.mark.parametrize(
    ("symmetry", "network"), [("none", "mlp"), ("augment", "mlp"), ("none", "residual")]
)
def test_the_count_is_that_of_the_products_torch_runs(symmetry, network):
    """But for what the formula says it leaves out: a first layer needs no gradient of its input,
    the last observations and the final ones are valued too, and the gradient of the noise."""
    steps, envs = 12, 32
    changes = {"symmetry": symmetry, "network": network}
    if network == "residual":
        changes |= {"actor_hidden": [16, 16], "critic_hidden": [12, 12]}
    learner = small_learner(**changes)
    rollout = collect(learner, seed=1, num_steps=steps, num_envs=envs).rollout
    config, rows = small_config(**changes), steps * envs
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
