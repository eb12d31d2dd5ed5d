"""What a learner is to the rest of the engine: its sizes, its symmetry and its five methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from unilab.buffers.rollout import Rollout
from unilab.errors import ConfigError


class ActOutput(NamedTuple):
    """What the policy answers for B observations. Fresh tensors, valid as long as they are held."""

    action: Tensor  # (B, A) sampled when exploring, else equal to mean
    mean: Tensor  # (B, A)
    log_prob: Tensor  # (B,) log density of `action`, nats


@dataclass(frozen=True)
class Mirror:
    """The left-right mirror of one kind of vector: `mirror(x) = x[..., permutation] * sign`.

    Args:
      permutation: (D,) int64, where each mirrored entry is read from.
      sign: (D,) float, +1 or -1.

    Raises:
      ConfigError: it is not a permutation, a sign is not +-1, or mirroring twice does not give
        the vector back.
    """

    permutation: Tensor
    sign: Tensor

    def __post_init__(self) -> None:
        perm, sign = self.permutation, self.sign
        if perm.ndim != 1 or perm.shape != sign.shape:
            raise ConfigError(
                f"symmetry: permutation has shape {tuple(perm.shape)} and sign "
                f"{tuple(sign.shape)}; both must be (D,)"
            )
        if sorted(perm.tolist()) != list(range(perm.numel())):
            raise ConfigError(
                f"symmetry: {perm.tolist()} is not a permutation; every index from 0 to "
                f"{perm.numel() - 1} must come once"
            )
        if not torch.all(sign.abs() == 1):
            raise ConfigError(f"symmetry: signs must be +1 or -1, got {sign.tolist()}")
        twice = perm[perm] != torch.arange(perm.numel(), device=perm.device)
        bad = torch.nonzero(twice | (sign * sign[perm] != 1)).flatten().tolist()
        if bad:
            raise ConfigError(
                f"symmetry: mirroring twice must give the vector back, and does not at entries "
                f"{bad}; an entry and its partner must name each other and share one sign"
            )

    @classmethod
    def from_lists(cls, permutation: Sequence[int], sign: Sequence[float]) -> Mirror:
        """Build a mirror from plain lists of D numbers each."""
        return cls(
            torch.tensor(list(permutation), dtype=torch.int64),
            torch.tensor(list(sign), dtype=torch.float32),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Mirror `x` (..., D), any float dtype."""
        return x[..., self.permutation] * self.sign.to(x.dtype)

    def to(self, device: torch.device) -> Mirror:
        """Return this mirror with its tensors on `device`."""
        return Mirror(self.permutation.to(device), self.sign.to(device))


@dataclass(frozen=True)
class Symmetry:
    """The mirrors of a task's actor observation (O,), critic observation (C,) and action (A,)."""

    obs: Mirror
    critic_obs: Mirror
    action: Mirror


@dataclass(frozen=True)
class LearnerSpec:
    """The sizes a learner is built for, and the task's symmetry where it declares one.

    Attributes:
      action_limit: (A) largest |action| of each joint, for policies whose actions are bounded;
        None where the task gives none.
      num_envs: N of training, for `precision: auto`; 0 where nothing is trained.

    Raises:
      ConfigError: a size below 1, a mirror of another size, or a limit that is none.
    """

    obs_dim: int
    critic_obs_dim: int
    action_dim: int
    symmetry: Symmetry | None = None
    action_limit: tuple[float, ...] | None = None
    num_envs: int = 0

    def __post_init__(self) -> None:
        limits = self.action_limit
        if limits is not None and (
            len(limits) != self.action_dim or not all(0 < x < math.inf for x in limits)
        ):
            raise ConfigError(
                f"learner: action_limit is {list(limits)}; valid: a finite number above 0 for each "
                f"of the {self.action_dim} actions"
            )
        sizes = {"obs": self.obs_dim, "critic_obs": self.critic_obs_dim, "action": self.action_dim}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"learner: {name} has {size} entries; it needs at least one")
            if self.symmetry is None:
                continue
            mirrored = getattr(self.symmetry, name).permutation.numel()
            if mirrored != size:
                raise ConfigError(
                    f"symmetry: the mirror of {name} has {mirrored} entries, {name} has {size}"
                )

    def limits(self, choice: float | Literal["auto"]) -> tuple[float, ...]:
        """The largest |action| of each joint (A,): `choice`; auto = the task's, or 1 without."""
        if choice != "auto":
            return (choice,) * self.action_dim
        return self.action_limit or (1.0,) * self.action_dim

    def check_symmetry(self, block: str, choice: str) -> None:
        """Raise ConfigError where `choice` of `block` wants a mirror that the task lacks."""
        if choice != "none" and self.symmetry is None:
            raise ConfigError(
                f"{block}.symmetry is '{choice}', but the task declares no symmetry; set it to "
                "'none' or declare one in the task"
            )


class Policy(Protocol):
    """What evaluation, video and export ask of any learner."""

    device: torch.device

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose actions for raw observations (B, O). Never waits for the device."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a learner's state."""
        ...

    def policy_module(self) -> nn.Module:
        """A module of its own: raw observation (B, O) to deterministic action (B, A)."""
        ...


class Learner(Protocol):
    """An on-policy learner, as the runner sees it."""

    device: torch.device

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        """Choose actions for raw observations (B, O). Never waits for the device."""
        ...

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Learn from a full rollout. Returns metrics as 0-d tensors on the learner's device."""
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
