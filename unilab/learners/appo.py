"""Asynchronous PPO: learns from rollouts of a policy that is some updates behind.

V-trace corrects the advantages and value targets for the policy having moved since; the clipped
surrogate is taken against the policy that collected, whose log-probabilities the rollout holds.
Source: Espeholt et al. 2018 (IMPALA) for V-trace, here with a lambda and with `vs - V` as the
advantage; Petrenko et al. 2020 (Sample Factory) for the ratio against the collecting policy. On
data of the current policy this is PPO, up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unilab.buffers.rollout import Rollout
from unilab.config.appo import APPOConfig
from unilab.learners.acting import GaussianSampler
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.losses import HALF_LOG_2PI
from unilab.learners.ppo import PPO
from unilab.learners.returns import vtrace
from unilab.learners.state import restore_stream, stream_state

# Exploration and minibatch order have streams of their own: with a collector on its own thread,
# which of them drew first would depend on timing.
ACTING_STREAM = 0x5EED


class APPO(PPO):
    """The APPO learner. Where a method is not described here, it is PPO's.

    `update` learns from a rollout of any past policy and counts as one step of `version`. A thread
    that collects meanwhile acts with copies of the policy: `snapshot` makes one, `publish` brings
    it up to date; it must not call `act` of the learner with `explore`.

    The adaptive learning rate follows the KL from the policy at the start of the update, not from
    the one that collected: it measures what the update did, not how far behind the rollout was.

    Attributes:
      acting_generator: what exploring draws from, here and in all snapshots.
    """

    block = "learners.appo"
    config: APPOConfig

    def __init__(
        self,
        config: APPOConfig,
        spec: LearnerSpec,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, spec, device, seed, dtype)
        self.acting_generator = torch.Generator(device=device).manual_seed(seed ^ ACTING_STREAM)
        self._lag_weight = torch.zeros((), device=device, dtype=dtype)
        self._lag_kl = torch.zeros((), device=device, dtype=dtype)

    @property
    def version(self) -> int:
        """Number of updates made: the version of the present policy."""
        return self.iteration

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose an action for each raw observation, as PPO does."""
        return self._acting.act(obs, explore, self.acting_generator)

    def snapshot(self) -> GaussianSampler:
        """A copy of the policy, to act with while the learner learns."""
        return self._acting.snapshot()

    def publish(self, snapshot: GaussianSampler) -> None:
        """Bring a copy of the policy up to date. Call between updates; never waits."""
        snapshot.copy_from(self._acting)

    def _estimate(
        self, rollout: Rollout, value: Tensor, final_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """V-trace under the present policy, which the KL is measured from, too."""
        samples, std = self._table.samples, self.actor.std
        most = self._actor_work.rows
        for obs, mean in zip(
            torch.split(samples.obs, most), torch.split(samples.mean, most), strict=True
        ):
            mean.copy_(self._actor_work.forward(obs))
        score = (samples.action - samples.mean).div_(std)
        log_prob = score.square_().sum(-1).mul_(-0.5)
        log_prob.sub_(std.log().sum() + HALF_LOG_2PI * std.numel())
        log_ratio = log_prob.sub_(samples.log_prob).view_as(rollout.reward)
        torch.mean(log_ratio, (0, 1), out=self._lag_kl).neg_()
        torch.mean(log_ratio.exp().clamp_max_(self.config.rho_bar), (0, 1), out=self._lag_weight)
        return vtrace(
            rollout.reward,
            value,
            rollout.terminated,
            rollout.truncated,
            final_value,
            log_ratio,
            self.config.gamma,
            self.config.lam,
            self.config.rho_bar,
            self.config.c_bar,
        )

    def _metrics(self, explained: Tensor, *folded: Tensor) -> dict[str, Tensor]:
        metrics = super()._metrics(explained, *folded)
        # How far the collecting policy was from the learner's when the update began.
        metrics["policy/lag_kl"] = self._lag_kl.clone()
        metrics["policy/lag_weight"] = self._lag_weight.clone()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """As PPO's, and the stream that exploring draws from."""
        return super().state_dict() | {"acting_generator": stream_state(self.acting_generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As PPO's. Snapshots are to be published anew."""
        super().load_state_dict(state)
        seed = (self.seed + self.iteration) ^ ACTING_STREAM
        restore_stream(self.acting_generator, state["acting_generator"], seed)
