"""Soft actor-critic with distributional critics: FastSAC.

Source: Haarnoja et al. 2018; the distributional, layer-normalised form and the defaults are those
of FastSAC (holosoma; Seo et al. 2025, arXiv 2512.01996). Each critic learns from its own slow copy,
without the minimum of both. Differences: the stable log-density of `squashed`, statistics that
count each observation once, critics that see actions as fractions of their limits, no weight decay
on the temperature, and nothing waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unilab.config.off_policy import SACConfig
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.off_policy_core import OffPolicyCore
from unilab.learners.squashed import Squashed, bound_log_std, squash
from unilab.learners.state import Tensors
from unilab.learners.temperature import Temperature
from unilab.learners.trained import TrainedModule
from unilab.learners.update_table import UpdateRows

BETAS = (0.9, 0.95)  # of AdamW. Source: FastSAC.


class SAC(OffPolicyCore):
    """The SAC learner. Args, Raises: as `OffPolicyCore`.

    Args:
      config, spec, device, seed, dtype: as there.
    """

    config: SACConfig
    critic_metric_names = (
        "loss/critic",
        "value/target",
        "value/edge_fraction",
        "learner/grad_norm_critic",
        "loss/temperature",
        "policy/temperature",
        "policy/entropy",
    )
    actor_metric_names = ("loss/actor", "learner/grad_norm_actor")

    def __init__(
        self,
        config: SACConfig,
        spec: LearnerSpec,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            "sac",
            config,
            spec,
            device,
            seed,
            dtype,
            shape=("silu", True),
            outputs=2 * spec.action_dim,
            betas=BETAS,
        )
        self.temperature = Temperature(config.init_temperature, self.action_limit)
        self._trained_temperature = TrainedModule(
            self.temperature, config.learning_rate, BETAS, weight_decay=0.0
        )
        self._target_entropy = -config.target_entropy_ratio * spec.action_dim
        # Densities are per unit of the action, not per fraction of its limit.
        self._log_limit = self.action_limit.log().sum()  # ()
        size = self._table.size, spec.action_dim
        like = self.action_limit
        self._next_noise = like.new_zeros(self.updates_per_step, *size)
        self._noise = like.new_zeros(self.actor_turns, *size)

    def _start_actor(self, draw: torch.Generator) -> None:  # noqa: ARG002
        # All zero: the first policy is the same everywhere. Source: FastSAC.
        nn.init.zeros_(self.actor.head.weight)
        nn.init.zeros_(self.actor.head.bias)

    def _draw_noise(self) -> None:
        self._next_noise.normal_(generator=self.generator)
        self._noise.normal_(generator=self.generator)

    def _policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation (B, A) before the squash, of normalised observations."""
        mean, raw = self.actor(obs)[0].chunk(2, -1)
        return mean, bound_log_std(raw)

    def _sample(self, obs: Tensor, noise: Tensor) -> Squashed:
        """Actions as fractions of their limits, and their densities in units of the action."""
        action, log_prob = squash(*self._policy(obs), noise)
        return Squashed(action, log_prob - self._log_limit)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose an action for each raw observation.

        Args:
          obs: (B, O) on the learner's device.
          explore: draw from the policy; False gives the middle of it.

        Returns:
          action (B, A), mean (B, A), log_prob (B,), freshly allocated.
        """
        mean, log_std = self._policy(self.obs_normalizer(obs))
        noise = torch.zeros_like(mean)
        if explore:
            noise.normal_(generator=self.generator)
        action, log_prob = squash(mean, log_std, noise)
        centre = torch.tanh(mean).mul_(self.action_limit)
        return ActOutput(action.mul_(self.action_limit), centre, log_prob.sub_(self._log_limit))

    @torch.no_grad()
    def _target(self, rows: UpdateRows, update: int) -> tuple[Tensor, Tensor]:
        """Where each critic should be (2, M, K): its slow copy at the next step, with the entropy
        it earns. Returns the log-density (M,) of the next action too.
        """
        action, log_prob = self._sample(rows.next_obs, self._next_noise[update])
        rows.next_critic_input[:, self.spec.critic_obs_dim :].copy_(action)
        probs = self.critic.target_probs(rows.next_critic_input)
        cost = rows.discount * (self.temperature() * log_prob)
        points = self.critic.support.shift(rows.reward - cost, rows.discount)
        return self.critic.support.project(probs, points), log_prob

    def _learn_critic(self, rows: UpdateRows, update: int) -> Tensor:
        """One step of the critics and one of the temperature, on the same samples.

        The temperature falls while the entropy, -log_prob, is above its target.
        """
        target, log_prob = self._target(rows, update)
        loss, step = self.critic.learn(rows, target)
        excess = ((log_prob + self._target_entropy) * rows.weight).sum()
        temperature = self.temperature()
        temperature_loss = -temperature * excess
        temperature_step = self._trained_temperature.descend(temperature_loss)
        self._refused.add_(step.refused).add_(temperature_step.refused)
        values = [loss, *self.critic.describe(target, rows.weight), step.grad_norm]
        entropy = self._target_entropy - excess
        values += [temperature_loss.detach(), temperature.detach(), entropy]
        self._critic_metrics.add(values, step.applied)
        return step.applied

    def _learn_actor(self, rows: UpdateRows, turn: int) -> None:
        """One step towards actions of high value and high entropy."""
        action, log_prob = self._sample(rows.obs, self._noise[turn])
        values = self.critic.values(torch.cat([rows.critic_obs, action], -1))  # (2, M)
        temperature = self.temperature().detach()
        loss = ((temperature * log_prob - values.mean(0)) * rows.weight).sum()
        step = self._trained_actor.descend(loss)
        self._refused.add_(step.refused)
        self._actor_metrics.add([loss.detach(), step.grad_norm], step.applied)

    def _tensors(self) -> Tensors:
        return {
            **super()._tensors(),
            "temperature": self.temperature.state_dict(),
            "optimizer_temperature": self._trained_temperature.tensors(),
        }
