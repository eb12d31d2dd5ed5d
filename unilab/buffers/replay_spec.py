"""Sizes of a replay buffer: what is stored for a transition, what it takes, what cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from unilab.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TAIL_BYTES = 8  # reward f32 and how the step ended i32
SPARE_SLOTS = 2  # beside those to sample from: the one being filled, and the one after it


@dataclass(frozen=True)
class ReplaySpec:
    """Sizes of a replay buffer.

    Args:
      num_envs: N.
      capacity: transitions kept of each env.
      obs_dim, critic_obs_dim, action_dim: O, C, A.
      batch_size, updates: of the learner; batch_size * updates transitions are drawn at once.
      n_steps: rewards summed in a transition.
      gamma: discount per control step.
      dtype: "fp32" or "bf16", how observations are stored. With bf16 actions are kept in
        float16 (they are bounded, and get 11 bits that way), rewards in float32 as ever.
      max_episode_steps: length of an episode at most, which bounds the truncations; None where
        episodes are never truncated, or hardly.
      final_capacity: truncations kept at least. None takes as many as there can be.
      shared: pairs (critic column, obs column) of numbers that both observations have, always
        equal. The other critic columns are stored beside obs.
      learner: its name, for messages.

    Raises:
      ConfigError: a size that cannot be.
    """

    num_envs: int
    capacity: int
    obs_dim: int
    critic_obs_dim: int
    action_dim: int
    batch_size: int
    updates: int = 1
    n_steps: int = 1
    gamma: float = 0.99
    dtype: str = "fp32"
    max_episode_steps: int | None = None
    final_capacity: int | None = None
    shared: tuple[tuple[int, int], ...] = ()
    learner: str = "sac"

    def __post_init__(self) -> None:
        where = f"learners.{self.learner}"
        for name in ("num_envs", "capacity", "obs_dim", "critic_obs_dim", "action_dim",
                     "batch_size", "updates", "n_steps"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{where}: replay: {name} is {getattr(self, name)}; at least 1")
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"{where}.gamma={self.gamma}: must be between 0 and 1")
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"{where}.replay_dtype={self.dtype}: valid are {' and '.join(DTYPES)}"
            )
        stored = self.capacity * self.num_envs
        if self.batch_size > stored:
            raise ConfigError(
                f"{where}.batch_size={self.batch_size} is more than the replay holds: "
                f"replay_capacity * num_envs = {self.capacity} * {self.num_envs} = {stored} "
                f"transitions; lower it to {stored}, or raise {where}.replay_capacity"
            )
        self._check_n_step(where)
        self._check_shared(where)

    def _check_n_step(self, where: str) -> None:
        if self.n_steps > self.capacity:
            raise ConfigError(
                f"{where}.n_steps={self.n_steps} is more than the replay holds of an env: "
                f"replay_capacity={self.capacity} steps; lower n_steps or raise "
                f"{where}.replay_capacity"
            )
        if self.max_episode_steps is not None and self.n_steps > self.max_episode_steps:
            raise ConfigError(
                f"{where}.n_steps={self.n_steps} is longer than an episode, which has "
                f"{self.max_episode_steps} control steps at most; lower n_steps or raise "
                "episode.length_s"
            )

    def _check_shared(self, where: str) -> None:
        critic = [pair[0] for pair in self.shared]
        for column, obs_column in self.shared:
            if not (0 <= column < self.critic_obs_dim and 0 <= obs_column < self.obs_dim):
                raise ConfigError(
                    f"{where}: replay: shared has the pair ({column}, {obs_column}); valid are "
                    f"(0 to {self.critic_obs_dim - 1}, 0 to {self.obs_dim - 1})"
                )
        if len(set(critic)) < len(critic):
            raise ConfigError(f"{where}: replay: shared names a critic column twice: {critic}")

    # -- columns --------------------------------------------------------------------------------

    @property
    def extra_columns(self) -> tuple[int, ...]:
        """Critic columns that are stored beside obs, in order."""
        shared = {column for column, _ in self.shared}
        return tuple(c for c in range(self.critic_obs_dim) if c not in shared)

    @property
    def critic_columns(self) -> tuple[int, ...]:
        """For each critic column, where it is in a row [obs | extra | action]."""
        of = dict(self.shared)
        of |= {column: self.obs_dim + i for i, column in enumerate(self.extra_columns)}
        return tuple(of[c] for c in range(self.critic_obs_dim))

    @property
    def obs_width(self) -> int:
        """Numbers of a row that are observation: obs and extra."""
        return self.obs_dim + len(self.extra_columns)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.obs_width + self.action_dim

    # -- rows -----------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Slots of the ring, M."""
        return self.capacity + SPARE_SLOTS

    @property
    def num_finals(self) -> int:
        """Final observations that are kept, F.

        By default all that a sample can ask for: two truncations of an env are a whole episode
        apart, but for the first episode, which may begin at any age.
        """
        if self.final_capacity is not None:
            return max(1, self.final_capacity)
        longest = self.max_episode_steps or self.capacity
        return self.num_envs * (1 + (self.capacity - 1) // longest)

    @property
    def final_slots(self) -> int:
        """Rows of the ring of final observations: one step of all envs may be in the making."""
        return self.num_finals + self.num_envs

    # -- memory ---------------------------------------------------------------------------------

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row."""
        return self.width * DTYPES[self.dtype].itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes of the ring with everything that belongs to it."""
        transitions = self.slots * self.num_envs
        return transitions * (self.row_bytes + TAIL_BYTES) + self.final_slots * self.row_bytes

    @property
    def bytes_per_transition(self) -> float:
        """Bytes of the ring for each transition that can be sampled once it is full."""
        return self.stored_bytes / (self.capacity * self.num_envs)

    @property
    def work_bytes(self) -> int:
        """Bytes of what is drawn at once, and on the way to it."""
        item = DTYPES[self.dtype].itemsize
        each = 36 + 56 * self.n_steps  # row numbers and scalars; what is done with each step
        each += self.row_bytes + item * self.obs_width
        if as_slice(self.critic_columns) is None:
            each += 2 * item * self.critic_obs_dim
        return self.batch_size * self.updates * each + self.num_envs * (8 + 4 * self.obs_width)

    def check_memory(self, device: torch.device) -> None:
        """Raise ConfigError where the buffer needs more memory than `device` has free."""
        free = free_bytes(device)
        needed = self.stored_bytes + self.work_bytes
        if needed <= free:
            return
        where = f"learners.{self.learner}"
        most = self._largest_capacity(free)
        fix = f"lower replay_capacity to {most}" if most > 0 else "lower physics.num_envs"
        each = self.row_bytes + TAIL_BYTES
        if self.dtype == "fp32":
            fix += f", or set {where}.replay_dtype=bf16, which takes about half"
        raise ConfigError(
            f"{where}.replay_capacity={self.capacity} needs {needed / 2**30:,.1f} GiB on {device} "
            f"with replay_dtype={self.dtype} and {self.num_envs} envs ({each} bytes a transition), "
            f"{free / 2**30:,.1f} GiB are free; {fix}"
        )

    def _largest_capacity(self, free: int) -> int:
        """Return the most steps of each env that fit into `free` bytes."""
        slot = self.row_bytes + TAIL_BYTES
        finals = (
            0.0
            if self.final_capacity or not self.max_episode_steps
            else (self.row_bytes / self.max_episode_steps)
        )
        fixed = SPARE_SLOTS * slot + self.row_bytes * (2 + (self.final_capacity or 0))
        return int(((free - self.work_bytes) / self.num_envs - fixed) // (slot + finals))


def naive_bytes(obs_dim: int, critic_obs_dim: int, action_dim: int) -> int:
    """Bytes of a transition in the usual layout: every field by itself in float32, the next
    observations stored as well, two flags in int64 (FastTD3)."""
    return 4 * (2 * obs_dim + 2 * critic_obs_dim + action_dim + 1) + 2 * 8


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device, bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def as_slice(columns: Sequence[int]) -> slice | None:
    """Return the slice that selects `columns`, None where they are not in a row."""
    if not columns:
        return slice(0, 0)
    start, stop = columns[0], columns[-1] + 1
    return slice(start, stop) if list(columns) == list(range(start, stop)) else None
