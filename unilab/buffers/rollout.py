"""The rollout of an on-policy learner: T steps of N envs, time-major, allocated once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]

# Final observations are evaluated in multiples of this many rows, so that shapes hardly vary.
FINAL_BUCKET = 64


class Rollout:
    """T control steps of N environments, filled group by group and read by the learner.

    Row t of `obs` is what the policy saw when it chose `action[t]`; row T is what it sees next.
    Where an episode ended at step t, row t + 1 already belongs to the next episode. The true last
    critic observation of a truncated step is kept aside (`final_rows`), because the return
    bootstraps from it. `terminated` wins over `truncated`: a step that is both is not kept.

    Args:
      num_steps: T.
      num_envs: N.
      obs_dim, critic_obs_dim, action_dim: O, C, A.
      device: where the tensors live.
      dtype: of all float tensors.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_dim: int,
        critic_obs_dim: int,
        action_dim: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_steps, self.num_envs = num_steps, num_envs
        self.device, self.dtype = device, dtype
        steps, envs = num_steps, num_envs
        self.obs = torch.zeros(steps + 1, envs, obs_dim, device=device, dtype=dtype)
        self.critic_obs = torch.zeros(steps + 1, envs, critic_obs_dim, device=device, dtype=dtype)
        self.action = torch.zeros(steps, envs, action_dim, device=device, dtype=dtype)
        self.mean = torch.zeros(steps, envs, action_dim, device=device, dtype=dtype)
        self.log_prob = torch.zeros(steps, envs, device=device, dtype=dtype)
        self.reward = torch.zeros(steps, envs, device=device, dtype=dtype)
        self.terminated = torch.zeros(steps, envs, device=device, dtype=torch.bool)
        self.truncated = torch.zeros(steps, envs, device=device, dtype=torch.bool)
        # Views of the tensors for `append`, where they are in host memory.
        fields = ("action", "mean", "log_prob", "reward", "terminated", "truncated", "obs",
                  "critic_obs")  # fmt: skip
        on_host = device.type == "cpu"
        self._host = {name: getattr(self, name).numpy() for name in fields} if on_host else None
        self.final_count = 0
        capacity = -(-envs // FINAL_BUCKET) * FINAL_BUCKET
        self.final_critic_obs, self.final_index = self._empty_final(capacity)

    def set_first(self, obs: Tensor, critic_obs: Tensor, start: int, stop: int) -> None:
        """Write the first observations of envs [start, stop): obs (n, O), critic_obs (n, C)."""
        self.obs[0, start:stop].copy_(obs, non_blocking=True)
        self.critic_obs[0, start:stop].copy_(critic_obs, non_blocking=True)

    def append(
        self,
        t: int,
        start: int,
        stop: int,
        *,
        action: Tensor,
        mean: Tensor,
        log_prob: Tensor,
        reward: Floats,
        terminated: Flags,
        truncated: Flags,
        final_critic_obs: Floats,
        next_obs: Floats,
        next_critic_obs: Floats,
    ) -> None:
        """Write step t of the n = stop - start envs [start, stop). Everything is copied.

        What the policy gave are tensors on its device, what the envs gave are arrays in host
        memory.

        Args:
          t: step, 0 <= t < T.
          start, stop: range of envs (a group).
          action, mean: (n, A).
          log_prob, reward: (n,).
          terminated, truncated: (n,) bool.
          final_critic_obs: (n, C), read only where truncated and not terminated.
          next_obs: (n, O) what the policy sees next, after any reset.
          next_critic_obs: (n, C), likewise.
        """
        self._put("action", t, start, stop, action)
        self._put("mean", t, start, stop, mean)
        self._put("log_prob", t, start, stop, log_prob)
        self._put("reward", t, start, stop, reward)
        self._put("terminated", t, start, stop, terminated)
        self._put("truncated", t, start, stop, truncated)
        self._put("obs", t + 1, start, stop, next_obs)
        self._put("critic_obs", t + 1, start, stop, next_critic_obs)
        self._keep_final(t, start, terminated, truncated, final_critic_obs)

    def final_rows(self) -> tuple[Tensor, Tensor]:
        """The observations to bootstrap from, in one batch padded to a multiple of the bucket.

        Returns:
          critic_obs: (R, C) raw final critic observations.
          index: (R,) int64, t * N + env of each; padding rows hold T * N, one past the end.
          Both are views, valid until the next `append` or `carry_over`.
        """
        padded = -(-self.final_count // FINAL_BUCKET) * FINAL_BUCKET
        return self.final_critic_obs[:padded], self.final_index[:padded]

    def carry_over(self, previous: Rollout | None = None) -> None:
        """Begin the next rollout: row T becomes row 0 and the final observations are dropped.

        Args:
          previous: whose row T it is, where rollouts take turns; None is this one.
        """
        previous = self if previous is None else previous
        self.obs[0].copy_(previous.obs[-1], non_blocking=True)
        self.critic_obs[0].copy_(previous.critic_obs[-1], non_blocking=True)
        self.final_index.fill_(self.num_steps * self.num_envs)
        self.final_count = 0

    def _put(self, name: str, t: int, start: int, stop: int, value: Tensor | NDArray[Any]) -> None:
        """Copy a group's rows of one field. In host memory NumPy does it in a third of the time."""
        if self._host is not None:
            array = value.detach().numpy() if isinstance(value, Tensor) else value
            self._host[name][t, start:stop] = array
        else:
            source = value if isinstance(value, Tensor) else torch.from_numpy(value)
            getattr(self, name)[t, start:stop].copy_(source, non_blocking=True)

    def _keep_final(
        self, t: int, start: int, terminated: Flags, truncated: Flags, final_critic_obs: Floats
    ) -> None:
        """Keep what the return bootstraps from; the rows are found and gathered on the host."""
        found = (truncated > terminated).nonzero()[0]
        if len(found) == 0:
            return
        first, last = self.final_count, self.final_count + len(found)
        while last > self.final_index.numel():
            self._grow_final(2 * self.final_index.numel())
        for kept, values in (
            (self.final_critic_obs, final_critic_obs[found]),
            (self.final_index, found + (t * self.num_envs + start)),
        ):
            kept[first:last].copy_(torch.from_numpy(values), non_blocking=True)
        self.final_count = last

    def _grow_final(self, capacity: int) -> None:
        """Make room for `capacity` final rows, for good. Needed, and done once, only where
        episodes are shorter than a rollout: one row an env is there from the start."""
        kept_obs, kept_index = self.final_critic_obs, self.final_index
        self.final_critic_obs, self.final_index = self._empty_final(capacity)
        self.final_critic_obs[: kept_obs.shape[0]] = kept_obs
        self.final_index[: kept_index.shape[0]] = kept_index

    def _empty_final(self, capacity: int) -> tuple[Tensor, Tensor]:
        critic_obs = self.critic_obs.new_zeros(capacity, self.critic_obs.shape[-1])
        past_the_end = self.num_steps * self.num_envs
        return critic_obs, torch.full((capacity,), past_the_end, device=self.device)
