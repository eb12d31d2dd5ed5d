"""What an off-policy learner is to the runner, and what a replay buffer hands to it."""

from __future__ import annotations

from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from unilab.buffers.batch import Batch as Batch
from unilab.learners.base import ActOutput


class OffPolicyLearner(Protocol):
    """A learner that learns from a replay buffer.

    Attributes:
      device: where it works.
      batch_size: B of one update.
      updates_per_step: U, optimiser steps of the critic for each control step of all envs.
    """

    device: torch.device
    batch_size: int
    updates_per_step: int

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose actions for raw observations (N, O). Never waits for the device."""
        ...

    def random_actions(self, rows: int) -> Tensor:
        """Draw actions (rows, A) all over the policy's range, for the time before learning."""
        ...

    def snapshot(self, generator: torch.Generator) -> Self:
        """Make a copy to act with, on a thread of its own, while this learner learns.

        For `act` and `random_actions` only. Its policy stands still until it is published to; it
        draws from `generator`. Noise that is held over control steps goes on in all copies, so
        that one thread may act at a time, and this learner itself only without exploring.
        """
        ...

    def publish(self, snapshot: Self) -> None:
        """Bring a copy's policy up to date. Call between cycles. Never waits for the device."""
        ...

    def observe(self, obs: Tensor, critic_obs: Tensor) -> None:
        """Take new raw observations (N, O), (N, C) into the statistics, each of them once."""
        ...

    def observe_rewards(self, reward: Tensor, ended: Tensor) -> None:
        """Take a control step's rewards (N,) of all envs in, and whose episode ended (N,) bool."""
        ...

    def compile_networks(self) -> bool:
        """Make code of the passes that cycles run, if it is right and not slower; say if not."""
        ...

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        """Make all updates of one control step, from U * B transitions sampled at once.

        Never waits for the device.

        Returns:
          metrics as 0-d tensors on the device, views that the next cycle overwrites.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides how learning goes on, as tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state that `state_dict` gave."""
        ...

    def policy_module(self) -> nn.Module:
        """A module of its own: raw observation (B, O) to deterministic action (B, A)."""
        ...
