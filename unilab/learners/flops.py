"""How many floating-point operations learning takes, counted from layer sizes.

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


def mlp_flops(sizes: Sequence[int]) -> NetworkFlops:
    """Count linear layers of these widths."""
    layers = [2 * fan_in * fan_out for fan_in, fan_out in pairwise(sizes)]
    return NetworkFlops(sum(layers), layers[0])


def residual_flops(
    fan_in: int, width: int, blocks: int, expansion: int, fan_out: int
) -> NetworkFlops:
    """Count an input layer, blocks of two layers that are `expansion` times wider inside, and a
    head."""
    first, block = 2 * fan_in * width, 4 * expansion * width * width
    return NetworkFlops(first + blocks * block + 2 * width * fan_out, first)


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
    actor = mlp_flops((spec.obs_dim, *config.actor_hidden, spec.action_dim))
    critic = mlp_flops((spec.critic_obs_dim, *config.critic_hidden, 1))
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
    actor = _network(config, spec.obs_dim, config.actor_hidden, outputs)
    inputs = spec.critic_obs_dim + spec.action_dim
    critics = _network(config, inputs, config.critic_hidden, config.atoms).times(HEADS)
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
    inner, actions = config.expansion, spec.action_dim
    actor = residual_flops(
        spec.obs_dim, config.actor_width, config.actor_blocks, inner, 2 * actions
    ).forward
    critics = config.num_critics * residual_flops(
        spec.critic_obs_dim + actions, config.critic_width, config.critic_blocks, inner,
        config.atoms,
    ).forward  # fmt: skip
    of_critics = actor + 2 * critics + 2 * 3 * critics
    of_actor = 2 * 3 * actor + 2 * critics
    return config.batch_size * (of_critics + of_actor / config.actor_every)


def _network(
    config: OffPolicyConfig, fan_in: int, hidden: tuple[int, ...], fan_out: int
) -> NetworkFlops:
    if config.network == "residual":
        return residual_flops(fan_in, hidden[0], len(hidden), EXPANSION, fan_out)
    return mlp_flops((fan_in, *hidden, fan_out))
