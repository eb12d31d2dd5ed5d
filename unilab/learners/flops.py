"""Sizes of networks: their layers, and how many floating-point operations learning takes.

A weight is one multiplication and one addition a row: 2 * fan_in * fan_out forwards, as many again
for the gradient of its input, and as many for its own. A first layer needs no gradient of its
input. Only products with weights count: biases, activations, normalisations, losses, optimisers
and the projections of distributions are left out, which is a hundredth at the widths in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from unilab.config.appo import APPOConfig
from unilab.config.flashsac import FlashSACConfig
from unilab.config.off_policy import OffPolicyConfig, ReplayConfig, SACConfig
from unilab.config.ppo import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.critic import HEADS
from unilab.learners.ensemble import EXPANSION


class NetworkFlops(NamedTuple):
    """Operations of a network a row.

    Attributes:
      forward: of a forward pass.
      first: of its first layer alone.
    """

    forward: int
    first: int

    @property
    def training(self) -> int:
        """Forwards, and back to its weights."""
        return 3 * self.forward - self.first

    @property
    def steering(self) -> int:
        """Forwards, and back to its input through weights that stay as they are."""
        return 2 * self.forward

    def times(self, members: int) -> NetworkFlops:
        """An ensemble of such networks."""
        return NetworkFlops(members * self.forward, members * self.first)


def layer_sizes(
    network: str, sizes: Sequence[int], expansion: int = EXPANSION
) -> list[tuple[int, int]]:
    """Return (fan_in, fan_out) of each linear layer of a network.

    Args:
      network: mlp or residual.
      sizes: width of the input, of each hidden layer or block, and of the output.
      expansion: how many times wider a residual block is inside.
    """
    if network == "mlp":
        return list(pairwise(sizes))
    first, *hidden, last = sizes
    blocks = [[(width, expansion * width), (expansion * width, width)] for width in hidden]
    layers = [layer for block in blocks for layer in block]
    return [(first, hidden[0]), *layers, (hidden[-1], last)]


def network_flops(network: str, sizes: Sequence[int], expansion: int = EXPANSION) -> NetworkFlops:
    """Count the linear layers of a network. Arguments as in `layer_sizes`."""
    layers = [2 * fan_in * fan_out for fan_in, fan_out in layer_sizes(network, sizes, expansion)]
    return NetworkFlops(sum(layers), layers[0])


def iteration_flops(config: PPOConfig | ReplayConfig, spec: LearnerSpec, num_envs: int) -> int:
    """Return the operations of learning in one iteration.

    Args:
      config: of the learner.
      spec: sizes.
      num_envs: N.

    Returns:
      Those of one update from T * N samples, or of the cycles of an iteration's T control steps,
      on average over the rhythm of actor and critic. Acting is not learning and is left out.
    """
    if isinstance(config, PPOConfig):
        return ppo_update_flops(config, spec, config.num_steps * num_envs)
    if isinstance(config, FlashSACConfig):
        per_update = flashsac_update_flops(config, spec)
    else:
        assert isinstance(config, OffPolicyConfig)
        per_update = off_policy_update_flops(config, spec)
    return round(config.num_steps * config.updates_per_step * per_update)


def ppo_update_flops(config: PPOConfig, spec: LearnerSpec, rows: int) -> int:
    """Return the operations of one update of `ppo` or `appo` from a rollout of T * N = rows.

    epochs * (actor rows * actor training + critic rows * critic training) + rows * critic forward,
    where the last term is the values that returns are made of; `appo` evaluates the policy on all
    rows too. Mirrored samples count. Left out besides: the values of the last and of the final
    observations, which depend on how episodes end.
    """
    actor = network_flops(config.network, (spec.obs_dim, *config.actor_hidden, spec.action_dim))
    critic = network_flops(config.network, (spec.critic_obs_dim, *config.critic_hidden, 1))
    used = rows // config.minibatches * config.minibatches
    actor_rows = used if config.symmetry == "none" else 2 * used
    critic_rows = 2 * used if config.symmetry == "augment" else used
    per_epoch = actor_rows * actor.training + critic_rows * critic.training
    before = critic.forward + (actor.forward if isinstance(config, APPOConfig) else 0)
    return config.epochs * per_epoch + rows * before


def off_policy_update_flops(config: OffPolicyConfig, spec: LearnerSpec) -> float:
    """Return the operations of one update of `sac` or `td3`, its share of the actor's included.

    M * (actor forward + 2 critics forward + 2 critics training), of the next action, the slow
    copies and the critics, and for 1 / actor_every of the updates M * (actor training + 2 critics
    steering). M is the batch, twice with mirrored rows.
    """
    outputs = (2 if isinstance(config, SACConfig) else 1) * spec.action_dim
    actor = network_flops(config.network, (spec.obs_dim, *config.actor_hidden, outputs))
    inputs = spec.critic_obs_dim + spec.action_dim
    critic = network_flops(config.network, (inputs, *config.critic_hidden, config.atoms))
    critics = critic.times(HEADS)
    rows = config.batch_size * (2 if config.symmetry == "augment" else 1)
    of_critics = actor.forward + critics.forward + critics.training
    of_actor = actor.training + critics.steering
    return rows * (of_critics + of_actor / config.actor_every)


def flashsac_update_flops(config: FlashSACConfig, spec: LearnerSpec) -> float:
    """Return the operations of one update of `flashsac`, its share of the actor's included.

    B * (actor forward + 2 critics forward + 2 critics training), where the 2 is a state and its
    successor in one batch, and for 1 / actor_every of the updates B * (2 actor training + critics
    steering). `critics` is all of them. The normalisation before a first layer is learnt, which
    needs the gradient of that layer's input: training is 3 forward.
    """
    actor_sizes = spec.obs_dim, *[config.actor_width] * config.actor_blocks, 2 * spec.action_dim
    actor = network_flops("residual", actor_sizes, config.expansion).forward
    inputs = spec.critic_obs_dim + spec.action_dim
    critic_sizes = inputs, *[config.critic_width] * config.critic_blocks, config.atoms
    critic = network_flops("residual", critic_sizes, config.expansion).forward
    critics = config.num_critics * critic
    of_critics = actor + 2 * critics + 2 * 3 * critics
    of_actor = 2 * 3 * actor + 2 * critics
    return config.batch_size * (of_critics + of_actor / config.actor_every)
