"""Sizes of networks: their layers, and how many floating-point operations learning takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.ensemble import EXPANSION


def mlp_flops(sizes: Sequence[int]) -> int:
    """Return the operations of one sample's way through linear layers of these widths.

    A weight is one multiplication and one addition: sum of 2 * fan_in * fan_out. Biases and
    activations are left out; they are a hundredth of it at the widths in use.
    """
    return sum(2 * fan_in * fan_out for fan_in, fan_out in pairwise(sizes))


def layer_sizes(network: str, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (fan_in, fan_out) of each linear layer of a network.

    Args:
      network: mlp or residual.
      sizes: width of the input, of each hidden layer or block, and of the output.
    """
    if network == "mlp":
        return list(pairwise(sizes))
    first, *hidden, last = sizes
    blocks = [[(width, EXPANSION * width), (EXPANSION * width, width)] for width in hidden]
    layers = [layer for block in blocks for layer in block]
    return [(first, hidden[0]), *layers, (hidden[-1], last)]


def network_flops(network: str, sizes: Sequence[int]) -> int:
    """Return the operations of one sample's way through the linear layers of a network.

    Counted as in `mlp_flops`; sums and normalisations of residual blocks are left out as well.
    Arguments as in `layer_sizes`.
    """
    return sum(mlp_flops(layer) for layer in layer_sizes(network, sizes))


def ppo_update_flops(config: PPOConfig, spec: LearnerSpec, rows: int) -> int:
    """Return the operations of one update from a rollout of `rows` = T * N samples.

    epochs * 3 * (actor rows * actor + critic rows * critic) + rows * critic, where 3 is one forward
    pass and a backward pass of twice its size, `actor` and `critic` are `network_flops`, and the
    last term is the values that the returns are made of. Mirrored samples count; optimiser, losses
    and normalisers do not. The backward pass of a first layer needs no gradient of its input, so
    the true count is lower by 2 * fan_in * fan_out of that layer a sample.
    Source of the factor 3: Kaplan et al. 2020, "Scaling laws for neural language models", sec. 2.1.
    """
    actor = network_flops(config.network, (spec.obs_dim, *config.actor_hidden, spec.action_dim))
    critic = network_flops(config.network, (spec.critic_obs_dim, *config.critic_hidden, 1))
    used = rows // config.minibatches * config.minibatches
    actor_rows = used if config.symmetry == "none" else 2 * used
    critic_rows = 2 * used if config.symmetry == "augment" else used
    per_epoch = 3 * (actor_rows * actor + critic_rows * critic)
    return config.epochs * per_epoch + rows * critic
