"""How many floating-point operations learning takes, counted from layer sizes.

A weight is one multiplication and one addition a row: 2 * fan_in * fan_out forwards, as many again
for the gradient of its input, and as many for its own. A first layer needs no gradient of its
input. Only products with weights count: biases, activations, normalisations, losses, optimisers
and the projections of distributions are left out, which is a hundredth at the widths in use.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from unilab.config.appo import APPOConfig
from unilab.config.flashsac import FlashSACConfig
from unilab.config.off_policy import OffPolicyConfig, ReplayConfig, SACConfig
from unilab.config.ppo import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.critic import HEADS


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


def network_flops(*sizes: int) -> NetworkFlops:
    """Count linear layers: the width of the input, then the outputs of each layer."""
    layers = [2 * fan_in * fan_out for fan_in, fan_out in pairwise(sizes)]
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
    actor_layers, critic_layers = config.layers.values()
    actor = network_flops(spec.obs_dim, *actor_layers, spec.action_dim)
    critic = network_flops(spec.critic_obs_dim, *critic_layers, 1)
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
    actor_layers, critic_layers = config.layers.values()
    actor = network_flops(spec.obs_dim, *actor_layers, outputs)
    inputs = spec.critic_obs_dim + spec.action_dim
    critics = network_flops(inputs, *critic_layers, config.atoms).times(HEADS)
    rows = config.batch_size * (2 if config.symmetry == "augment" else 1)
    of_critics = actor.forward + critics.forward + critics.training
    of_actor = actor.training + critics.steering
    return rows * (of_critics + of_actor / config.actor_every)


def flashsac_update_flops(config: FlashSACConfig, spec: LearnerSpec) -> float:
    """Return the operations of one update of `flashsac`, its share of the actor's included.

    M * (actor forward + 2 critics forward + 2 critics training), where the 2 is a state and its
    successor in one batch, and for 1 / actor_every of the updates M * (2 actor training + critics
    steering). M is the batch, twice with mirrored rows; `critics` is all of them. The normalisation
    before a first layer is learnt, which needs the gradient of that layer's input: training is 3
    forward.
    """
    actor_layers, critic_layers = config.layers.values()
    actor = network_flops(spec.obs_dim, *actor_layers, 2 * spec.action_dim).forward
    inputs = spec.critic_obs_dim + spec.action_dim
    critic = network_flops(inputs, *critic_layers, config.atoms).forward
    critics = config.num_critics * critic
    of_critics = actor + 2 * critics + 2 * 3 * critics
    of_actor = 2 * 3 * actor + 2 * critics
    rows = config.batch_size * (2 if config.symmetry == "augment" else 1)
    return rows * (of_critics + of_actor / config.actor_every)
