"""The samples of one update, packed so that a minibatch is a single gather."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unilab.learners.base import LearnerSpec, Symmetry
from unilab.learners.normalize import RunningNormalizer

NUM_SCALARS = 4  # log_prob, value, returns, advantage


class Samples(NamedTuple):
    """Column views of a packed (B, P) table."""

    obs: Tensor  # (B, O) normalised
    critic_obs: Tensor  # (B, C) normalised
    action: Tensor  # (B, A)
    mean: Tensor  # (B, A) of the policy that acted
    log_prob: Tensor  # (B,) likewise
    value: Tensor  # (B,) before the update
    returns: Tensor  # (B,)
    advantage: Tensor  # (B,) normalised over the rollout

    @classmethod
    def views(cls, table: Tensor, spec: LearnerSpec) -> Samples:
        """Split the columns of `table` (B, P)."""
        vectors = [spec.obs_dim, spec.critic_obs_dim, spec.action_dim, spec.action_dim]
        parts = torch.split(table, vectors + [1] * NUM_SCALARS, dim=1)
        return cls(*parts[:4], *(part.squeeze(1) for part in parts[4:]))


class TableMirror:
    """The task's mirror, applied to whole rows of normalised samples.

    Mirroring is defined on raw observations while the table holds normalised ones, and their
    statistics need not be symmetric. Undoing the normaliser, mirroring and normalising again is
    one affine map of permuted columns: `row[columns] * gain + offset`.

    Args:
      symmetry: of raw observations and actions.
      device, dtype: of the samples.
    """

    def __init__(self, symmetry: Symmetry, device: torch.device, dtype: torch.dtype) -> None:
        obs, critic_obs = symmetry.obs.to(device), symmetry.critic_obs.to(device)
        self.action = symmetry.action.to(device)
        self._parts = (obs, critic_obs)
        columns, start = [], 0
        for part in (obs, critic_obs, self.action, self.action):
            columns.append(part.permutation + start)
            start += part.permutation.numel()
        columns.append(torch.arange(start, start + NUM_SCALARS, device=device))
        self.columns = torch.cat(columns)  # (P,) int64
        signs = [obs.sign, critic_obs.sign, self.action.sign, self.action.sign]
        self.gain = torch.cat([*signs, obs.sign.new_ones(NUM_SCALARS)]).to(dtype)  # (P,)
        self.offset = torch.zeros_like(self.gain)  # (P,)

    def refresh(self, *normalizers: RunningNormalizer) -> None:
        """Take up the statistics of the actor's and the critic's normaliser, in this order."""
        start = 0
        for part, normalizer in zip(self._parts, normalizers, strict=True):
            perm, sign = part.permutation, part.sign.to(self.gain.dtype)
            shift, inv_scale = normalizer.shift, normalizer.inv_scale
            columns = slice(start, start + perm.numel())
            self.gain[columns] = sign * inv_scale / inv_scale[perm]
            self.offset[columns] = (sign * shift[perm] - shift) * inv_scale
            start += perm.numel()

    def rows(self, rows: Tensor, out: Tensor) -> None:
        """Write the mirror images of packed `rows` (B, P) to `out` (B, P)."""
        torch.index_select(rows, 1, self.columns, out=out)
        out.mul_(self.gain).add_(self.offset)


class SampleTable:
    """A rollout's samples in one (rows, P) matrix, and the minibatch fetched from it.

    Fetching one packed matrix is several times faster than gathering each field. The minibatch
    is overwritten by each `gather`.

    Args:
      spec: widths of the columns.
      rows: T * N.
      size: B, rows of a minibatch.
      mirror: where given, a minibatch holds its B rows and below them their mirror images.
      device, dtype: of the tables.
    """

    def __init__(
        self,
        spec: LearnerSpec,
        rows: int,
        size: int,
        mirror: TableMirror | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.rows, self.size, self._mirror = rows, size, mirror
        width = spec.obs_dim + spec.critic_obs_dim + 2 * spec.action_dim + NUM_SCALARS
        held = size if mirror is None else 2 * size
        self._table = torch.zeros(rows, width, device=device, dtype=dtype)
        self._batch = torch.zeros(held, width, device=device, dtype=dtype)
        self.samples = Samples.views(self._table, spec)
        self.batch = Samples.views(self._batch, spec)

    @torch.no_grad()
    def gather(self, ids: Tensor) -> None:
        """Fetch the rows `ids` (B,) int64 as the minibatch."""
        original = self._batch[: self.size]
        torch.index_select(self._table, 0, ids, out=original)
        if self._mirror is not None:
            self._mirror.rows(original, out=self._batch[self.size :])
