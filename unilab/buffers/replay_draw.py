"""What is drawn from a replay buffer at once: row numbers, n-step rewards, unpacked rows."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab.buffers.batch import Batch
from unilab.buffers.replay_spec import DTYPES, ReplaySpec, as_slice


class Draw:
    """Memory of a batch, allocated once, and the operations that fill it, all of static shape.

    Row numbers are those of the ring, slot * N + env: a step later in an env is N rows further.

    Args:
      spec: sizes; batch_size * updates rows are the most that can be drawn at once.
      device: of the ring.

    Attributes:
      index: (2 B,) int64, the rows of the batch, then those of the next observations.
    """

    def __init__(self, spec: ReplaySpec, device: torch.device) -> None:
        self._spec, self._ring = spec, spec.slots * spec.num_envs
        most, steps = spec.batch_size * spec.updates, spec.n_step
        self._most = most

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.index = empty(2 * most, dtype=torch.int64)
        self._tails = empty(steps * most, dtype=torch.int64)
        self._packed = empty(2 * most, spec.width, dtype=DTYPES[spec.dtype])
        self._unpacks = spec.dtype == "bfloat16"
        self._obs = empty(2 * most, spec.obs_width) if self._unpacks else self._packed
        self._action = empty(most, spec.action_dim) if self._unpacks else self._packed
        self._scalars = empty(3, most)  # reward, discount, weight
        self._critic = as_slice(spec.critic_columns)
        if self._critic is None:
            self._critic_ids = torch.tensor(spec.critic_columns, device=device)
            self._critic_obs = empty(2 * most, spec.critic_obs_dim)
        self._offsets = spec.num_envs * torch.arange(steps, device=device).unsqueeze(1)
        powers = torch.tensor([spec.gamma**k for k in range(steps + 1)], dtype=torch.float64)
        self._powers = powers.to(device, torch.float32)  # (n + 1,)

    def rows(
        self, count: int, generator: torch.Generator, oldest: Tensor, num_starts: Tensor
    ) -> Tensor:
        """Draw row numbers (count,) int64, uniform over `num_starts` rows from row `oldest` on.

        The bounds are (,) int64 on the device, so that a recorded graph goes on with new ones.
        63 random bits: what the remainder favours is less than one part in 10^11.
        """
        assert count <= self._most, f"{count} rows were asked for, {self._most} were planned"
        rows = self.index[:count]
        rows.random_(generator=generator)
        return rows.remainder_(num_starts).add_(oldest).remainder_(self._ring)

    def sum_rewards(self, rows: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
        """Sum discounted rewards from `rows` (count,) on, to the end of the episode or n steps.

        The sum is kept for `batch`.

        Args:
          rows: (count,) int64.
          tails: (ring,) int64, of each step: reward f32 and how it ended i32.

        Returns:
          steps: (count,) int64, how many were summed.
          end: (count,) int64, how the last of them ended.
        """
        n, count = self._spec.n_step, len(rows)
        steps = rows if n == 1 else ((rows + self._offsets) % self._ring).view(-1)
        found = self._tails[: n * count]
        torch.index_select(tails, 0, steps, out=found)
        words = found.view(torch.int32).view(n, count, 2)
        reward, end = words[..., 0].view(torch.float32), words[..., 1]
        total = self._scalars[0, :count]
        if n == 1:
            total.copy_(reward[0])
            return torch.ones_like(rows), end[0].long()
        # Step k counts where no step before it ended the episode.
        alive = torch.ones_like(steps).view(n, count)
        torch.cumprod(end[:-1] == 0, 0, out=alive[1:])
        torch.sum(reward * alive * self._powers[:n].unsqueeze(1), 0, out=total)
        return alive.sum(0), (alive * end).sum(0)

    def gather(self, count: int, rows: Tensor) -> None:
        """Fetch the rows of `index` from `rows` (R, W)."""
        packed = self._packed[: 2 * count]
        torch.index_select(rows, 0, self.index[: 2 * count], out=packed)

    def finish(self, count: int, steps: Tensor, terminated: Tensor, lost: Tensor) -> None:
        """Unpack what was fetched, and write the discount and the weight.

        Args:
          count: rows.
          steps: (count,) int64, rewards summed.
          terminated, lost: (count,) bool: nothing to bootstrap from; not to be learnt from.
        """
        _, discount, weight = self._scalars[:, :count].unbind()
        torch.index_select(self._powers, 0, steps, out=discount)
        discount.mul_(~terminated)
        weight.copy_(~lost)
        if self._unpacks:
            packed, width = self._packed[: 2 * count], self._spec.obs_width
            self._obs[: 2 * count].copy_(packed[:, :width])
            self._action[:count].copy_(packed[:count, width:].view(torch.float16))
        if self._critic is None:
            obs = self._obs[: 2 * count]
            torch.index_select(obs, 1, self._critic_ids, out=self._critic_obs[: 2 * count])

    def batch(self, count: int) -> Batch:
        """Return views of what is here."""
        obs = self._obs[: 2 * count, : self._spec.obs_dim]
        critic = (
            self._critic_obs[: 2 * count]
            if self._critic is None
            else self._obs[: 2 * count, self._critic]
        )
        action = self._action[:count, -self._spec.action_dim :]
        reward, discount, weight = self._scalars[:, :count].unbind()
        return Batch(
            obs[:count], critic[:count], action, reward, discount, obs[count:], critic[count:],
            weight,
        )  # fmt: skip


def last_step(rows: Tensor, steps: Tensor, num_envs: int, ring: int) -> Tensor:
    """Return the rows (count,) int64 that are `steps` later in the same env."""
    return (rows + steps * num_envs) % ring
