"""Twin delayed deterministic policy gradient with distributional critics: FastTD3.

Source: Fujimoto et al. 2018; the distributional form and the defaults are those of FastTD3 (Seo et
al. 2025, arXiv 2505.22642). Differences: statistics that count each observation once, levels of
exploration noise redrawn by chance instead of at the end of an episode, and nothing waits for the
device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unilab.config.off_policy import TD3Config
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.noise_levels import NoiseLevels
from unilab.learners.off_policy_core import OffPolicyCore
from unilab.learners.update_table import UpdateRows

BETAS = (0.9, 0.999)  # of AdamW. Source: FastTD3.
HEAD_STD = 0.01  # of the actor's last weights at the start. Source: FastTD3.


class TD3(OffPolicyCore):
    """The TD3 learner. Args, Raises: as `OffPolicyCore`.

    Exploration adds Gaussian noise to the policy's action. Its standard deviation differs from row
    to row of what `act` is given, uniform between two bounds, and stays with the row until chance
    draws it anew: a batch of envs then always has calm and wild ones, each for a while. Groups of
    envs that take turns share the levels.

    Args:
      config, spec, device, seed, dtype: as there.
    """

    config: TD3Config
    critic_metric_names = (
        "loss/critic",
        "value/target",
        "value/edge_fraction",
        "learner/grad_norm_critic",
    )
    actor_metric_names = ("loss/actor", "learner/grad_norm_actor")

    def __init__(
        self,
        config: TD3Config,
        spec: LearnerSpec,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            "td3",
            config,
            spec,
            device,
            seed,
            dtype,
            shape=("relu", False),
            outputs=spec.action_dim,
            betas=BETAS,
        )
        like = self.action_limit
        self._smoothing = like.new_zeros(self.updates_per_step, self._table.size, spec.action_dim)
        # Of each row of `act`, as fractions of the limit.
        self.noise_levels = NoiseLevels(
            config.noise_std_min, config.noise_std_max, config.noise_redraw_fraction, like
        )

    def _start_actor(self, draw: torch.Generator) -> None:
        head = self.actor.head
        weight = torch.empty(head.weight.shape, dtype=torch.float64)
        with torch.no_grad():
            head.weight.copy_(weight.normal_(std=HEAD_STD, generator=draw))
        nn.init.zeros_(head.bias)

    def _draw_noise(self) -> None:
        config = self.config
        self._smoothing.normal_(generator=self.generator).mul_(config.smoothing_std)
        self._smoothing.clamp_(-config.smoothing_clip, config.smoothing_clip)

    def _policy(self, obs: Tensor) -> Tensor:
        """Actions (B, A) as fractions of their limits, of normalised observations."""
        return torch.tanh(self.actor(obs)[0])

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose an action for each raw observation.

        Args:
          obs: (B, O) on the learner's device.
          explore: add noise; False gives the policy's own action.

        Returns:
          action (B, A), mean (B, A), freshly allocated. log_prob (B,) is 0: there is no density.
        """
        action = self._policy(self.obs_normalizer(obs))
        mean, log_prob = action * self.action_limit, action.new_zeros(action.shape[0])
        if not explore:
            return ActOutput(mean, mean, log_prob)
        noise = torch.empty_like(action).normal_(generator=self.generator)
        levels = self.noise_levels.next(action.shape[0], self.generator)
        action = torch.addcmul(action, noise, levels)
        return ActOutput(action.clamp_(-1.0, 1.0).mul_(self.action_limit), mean, log_prob)

    @torch.no_grad()
    def _target(self, rows: UpdateRows, update: int) -> Tensor:
        """Where the critics should be: the slow copies at the next step and a slightly noisy
        action. (M, K), of the copy with the lower mean, or (2, M, K).
        """
        action = (self._policy(rows.next_obs) + self._smoothing[update]).clamp_(-1.0, 1.0)
        rows.next_critic_input[:, self.spec.critic_obs_dim :].copy_(action)
        probs = self.critic.target_probs(rows.next_critic_input)
        points = self.critic.support.shift(rows.reward, rows.discount)
        if self.config.double_q:
            means = (probs * points).sum(-1)  # (2, M), the same after the projection
            first = (means[0] < means[1]).unsqueeze(-1)
            probs = torch.where(first, probs[0], probs[1])
        return self.critic.support.project(probs, points)

    def _learn_critic(self, rows: UpdateRows, update: int) -> Tensor:
        """One step of the critics."""
        target = self._target(rows, update)
        loss, step = self.critic.learn(rows, target)
        self._refused.add_(step.refused)
        values = [loss, *self.critic.describe(target, rows.weight), step.grad_norm]
        self._critic_metrics.add(values, step.applied)
        return step.applied

    def _learn_actor(self, rows: UpdateRows, turn: int) -> None:  # noqa: ARG002
        """One step towards actions of high value."""
        action = self._policy(rows.obs)
        values = self.critic.values(torch.cat([rows.critic_obs, action], -1))  # (2, M)
        value = torch.minimum(values[0], values[1]) if self.config.double_q else values.mean(0)
        loss = -(value * rows.weight).sum()
        step = self._trained_actor.descend(loss)
        self._refused.add_(step.refused)
        self._actor_metrics.add([loss.detach(), step.grad_norm], step.applied)

    def state_dict(self) -> dict[str, Any]:
        """A snapshot, with the levels of exploration noise."""
        return {**super().state_dict(), "noise_std": self.noise_levels.std.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state given by `state_dict`. Raises: as `OffPolicyCore`."""
        super().load_state_dict(state)
        std = self.noise_levels.std
        self.noise_levels.std = state["noise_std"].to(std, copy=True)
