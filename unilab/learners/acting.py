"""Actions from a Gaussian policy, drawn without an autograd graph."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from unilab.learners.base import ActOutput
from unilab.learners.losses import HALF_LOG_2PI
from unilab.learners.networks import GaussianActor
from unilab.learners.normalize import RunningNormalizer
from unilab.learners.workspace import make_workspace


class GaussianSampler:
    """Answers raw observations with actions.

    Args:
      actor: the policy; its parameters are read at each call.
      normalizer: of its observations; its statistics are read at each call.
    """

    def __init__(self, actor: GaussianActor, normalizer: RunningNormalizer) -> None:
        self.actor, self.normalizer = actor, normalizer
        self._work = make_workspace(actor.mlp, 0, trains=False)
        self._peak_log_prob = actor.std.detach().new_zeros(())
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Derive what is read from the noise level. Call after writing parameters."""
        std = self.actor.std
        self._peak_log_prob.copy_(-(std.log().sum() + HALF_LOG_2PI * std.numel()))

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool, generator: torch.Generator) -> ActOutput:
        """Choose an action for each raw observation.

        Args:
          obs: (B, O) on the policy's device.
          explore: draw from the policy; False gives its mean.
          generator: what exploring draws from.

        Returns:
          action (B, A), mean (B, A), log_prob (B,), freshly allocated.
        """
        if self._work.rows < obs.shape[0]:
            self._work = make_workspace(self.actor.mlp, obs.shape[0], trains=False)
        mean = self._work.forward(self.normalizer(obs)).clone()
        if not explore:
            return ActOutput(mean, mean, self._peak_log_prob.expand(mean.shape[0]))
        noise = torch.empty_like(mean).normal_(generator=generator)
        action = torch.addcmul(mean, noise, self.actor.std)
        log_prob = torch.add(self._peak_log_prob, noise.square_().sum(-1), alpha=-0.5)
        return ActOutput(action, mean, log_prob)

    def snapshot(self) -> GaussianSampler:
        """A copy that shares no memory with this one."""
        return GaussianSampler(copy.deepcopy(self.actor), copy.deepcopy(self.normalizer))

    @torch.no_grad()
    def copy_from(self, other: GaussianSampler) -> None:
        """Take up the parameters and statistics of another, in one operation and no allocation."""
        torch._foreach_copy_(self._tensors(), other._tensors())

    def _tensors(self) -> list[Tensor]:
        """All that `act` reads."""
        normalizer = (self.normalizer.shift, self.normalizer.inv_scale)
        parameters = [p.data for p in self.actor.parameters()]
        return [*parameters, *normalizer, self._peak_log_prob]
