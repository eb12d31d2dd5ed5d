"""What is drawn from a replay buffer at once: row numbers, n-step rewards, unpacked rows."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab.buffers.batch import Batch
from unilab.buffers.replay_spec import DTYPES, ReplaySpec, as_slice

TERMINATED = -1  # how a step ended; 0 goes on, k > 0 truncated, and final observation k - 1 is kept


class Draw:
    """Memory of a batch, allocated once, and the operations that fill it, all of static shape.

    Row numbers are those of the ring, slot * N + env: a step later in an env is N rows further.

    Args:
      spec: sizes; batch_size * updates rows are the most that can be drawn at once.
      device: of the ring.

    Attributes:
      next_rows: (B,) int64, where the next observations are.
    """

    def __init__(self, spec: ReplaySpec, device: torch.device) -> None:
        self._spec, self._ring = spec, spec.slots * spec.num_envs
        most, steps = spec.batch_size * spec.updates, spec.n_steps
        self._most = most

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._draws, self.next_rows = (empty(most, dtype=torch.int64) for _ in range(2))
        self._steps = empty((steps + 1) * most, dtype=torch.int64)
        self._tails = empty(steps * most, dtype=torch.int64)
        kind, obs_width = DTYPES[spec.dtype], spec.obs_width
        self._here = empty(most, spec.width, dtype=kind)
        self._next = empty(most, obs_width, dtype=kind)
        self._scalars = empty(3, most)  # reward, discount, weight
        self._obs, self._action = self._here[:, :obs_width], self._here[:, obs_width:]
        if spec.dtype == "bf16":
            self._action = self._action.view(torch.float16)
        self._critic = as_slice(spec.critic_columns)
        if self._critic is None:
            self._critic_ids = torch.tensor(spec.critic_columns, device=device)
            self._critic_obs = empty(2, most, spec.critic_obs_dim, dtype=kind)
        self._offsets = spec.num_envs * torch.arange(steps + 1, device=device).unsqueeze(1)
        powers = torch.tensor([spec.gamma**k for k in range(steps + 1)], dtype=torch.float64)
        self._powers = powers.to(device, torch.float32)  # (n + 1,)

    def rows(
        self, count: int, generator: torch.Generator, oldest: Tensor, num_starts: Tensor
    ) -> Tensor:
        """Draw where to start, uniform over `num_starts` rows from row `oldest` on.

        The bounds are (,) int64 on the device, so that a recorded graph goes on with new ones.
        63 random bits: what the remainder favours is less than one part in 10^11.

        Returns:
          (n + 1, count) int64: the row of each step, and of the observation after the last.
        """
        assert count <= self._most, f"{count} rows were asked for, {self._most} were planned"
        draws = self._draws[:count].random_(generator=generator)
        draws.remainder_(num_starts).add_(oldest)
        steps = self._steps[: len(self._offsets) * count].view(-1, count)
        return torch.add(draws, self._offsets, out=steps).remainder_(self._ring)

    def sum_rewards(self, steps: Tensor, tails: Tensor) -> Tensor:
        """Sum discounted rewards to the end of the episode or of the n steps.

        The sum and the discount of what follows are kept for `batch`.

        Args:
          steps: (n, count) int64, rows.
          tails: (ring,) int64, of each row: reward f32 and how the step ended i32.

        Returns:
          (count,) int32 or int64, how the last of the steps summed ended.
        """
        n, count = steps.shape
        total, discount, _ = self._scalars[:, :count].unbind()
        found = self._tails[: n * count]
        torch.index_select(tails, 0, steps.reshape(-1), out=found)
        words = found.view(torch.int32).view(n, count, 2)
        reward, end = words[..., 0].view(torch.float32), words[..., 1]
        if n == 1:
            total.copy_(reward[0])
            torch.mul(end[0] != TERMINATED, self._powers[1], out=discount)
            return end[0]
        # Step k counts where no step before it ended the episode.
        alive = torch.ones_like(steps)
        torch.cumprod(end[:-1] == 0, 0, out=alive[1:])
        torch.sum(reward * alive * self._powers[:n].unsqueeze(1), 0, out=total)
        torch.index_select(self._powers, 0, alive.sum(0), out=discount)
        last_end = (alive * end).sum(0)
        discount.mul_(last_end != TERMINATED)
        return last_end

    def gather(self, count: int, rows: Tensor) -> None:
        """Fetch the rows that were drawn, and of `next_rows` the observations, from rows (R, W)."""
        width = self._spec.obs_width
        torch.index_select(rows, 0, self._steps[:count], out=self._here[:count])
        torch.index_select(rows[:, :width], 0, self.next_rows[:count], out=self._next[:count])

    def finish(self, count: int, lost: Tensor) -> None:
        """Write the weight, 0 where `lost` (count,) bool, and put critic columns together."""
        self._scalars[2, :count].copy_(~lost)
        if self._critic is None:
            # Of whole rows: of a part of them a copy would be made.
            for target, rows in zip(self._critic_obs, (self._here, self._next), strict=True):
                torch.index_select(rows[:count], 1, self._critic_ids, out=target[:count])

    def batch(self, count: int) -> Batch:
        """Return views of what is here."""
        obs, action, next_obs = self._obs[:count], self._action[:count], self._next[:count]
        if self._critic is None:
            critic_obs, next_critic_obs = self._critic_obs[:, :count].unbind()
        else:
            critic_obs, next_critic_obs = obs[:, self._critic], next_obs[:, self._critic]
        reward, discount, weight = self._scalars[:, :count].unbind()
        actor = slice(0, self._spec.obs_dim)
        return Batch(
            obs[:, actor], critic_obs, action, reward, discount, next_obs[:, actor],
            next_critic_obs, weight,
        )  # fmt: skip
