"""Two distributional critics, the slow copies that targets come from, and their training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.nn import functional

from unilab.config.off_policy import OffPolicyConfig
from unilab.learners.distributional import Support, cross_entropy
from unilab.learners.ensemble import EnsembleNetwork
from unilab.learners.optimizer import FlatParameters
from unilab.learners.trained import Step, TrainedModule
from unilab.learners.update_table import UpdateRows

HEADS = 2


class TwinCritic:
    """What `sac` and `td3` do with their critics.

    Args:
      network: (B, C + A) to logits (2, B, K).
      config: support, tau and the optimiser's settings.
      betas: of AdamW.
    """

    def __init__(
        self, network: EnsembleNetwork, config: OffPolicyConfig, betas: tuple[float, float]
    ) -> None:
        self.network = network
        self.trained = TrainedModule(
            network,
            config.learning_rate,
            betas,
            config.weight_decay,
            half=network.precision.name == "fp16",
        )
        self.target = copy.deepcopy(network).requires_grad_(False)
        self._target_flat = FlatParameters(self.target.parameters())
        like = self.trained.flat.grad
        self.support = Support(config.v_min, config.v_max, config.atoms, like.device, like.dtype)
        self._tau = torch.tensor(config.tau, device=like.device, dtype=like.dtype)

    @torch.no_grad()
    def target_probs(self, critic_input: Tensor) -> Tensor:
        """Distributions (2, B, K) of the slow copies at (B, C + A)."""
        return functional.softmax(self.target(critic_input), -1)

    def values(self, critic_input: Tensor) -> Tensor:
        """Expected returns (2, B) at (B, C + A), with their gradient."""
        return self.support.mean(functional.softmax(self.network(critic_input), -1))

    def learn(self, rows: UpdateRows, target: Tensor) -> tuple[Tensor, Step]:
        """Take a step towards target distributions (2, B, K) or (B, K). Returns the loss () too."""
        logits = self.network(rows.critic_input)
        loss = cross_entropy(logits, target, rows.weight) + rows.check
        return loss.detach(), self.trained.descend(loss)

    @torch.no_grad()
    def follow(self, applied: Tensor) -> None:
        """Move the slow copies by tau towards the critics, where their step was `applied` ()."""
        share = torch.where(applied, self._tau, 0.0)
        self._target_flat.vector.lerp_(self.trained.flat.vector, share)

    @torch.no_grad()
    def describe(self, target: Tensor, weight: Tensor) -> list[Tensor]:
        """Mean of target distributions (..., B, K) and their share on both ends, each ()."""
        rows = target if target.ndim == 2 else target.mean(0)  # (B, K)
        mass = torch.mv(rows.t(), weight)  # (K,)
        return [self.support.mean(mass), mass[0] + mass[-1]]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The live state."""
        return {
            "critic": self.network.state_dict(),
            "critic_target": self.target.state_dict(),
            "optimizer_critic": self.trained.tensors(),
        }
