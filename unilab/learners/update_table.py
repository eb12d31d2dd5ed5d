"""The transitions of a cycle as the networks want them: normalised, mirrored, weighted, sliced."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unilab.learners.base import LearnerSpec, Symmetry
from unilab.learners.normalize import RunningNormalizer
from unilab.learners.off_policy import Batch


class UpdateRows(NamedTuple):
    """The M rows of one update. Views, overwritten by the next cycle."""

    obs: Tensor  # (M, O) normalised
    next_obs: Tensor  # (M, O) normalised
    critic_obs: Tensor  # (M, C) normalised, the first columns of critic_input
    critic_input: Tensor  # (M, C + A) with the action as a fraction of its limit
    next_critic_input: Tensor  # (M, C + A) the action is the learner's to fill in
    reward: Tensor  # (M,)
    discount: Tensor  # (M,)
    weight: Tensor  # (M,) sums to 1, or to 0 where no row counts
    check: Tensor  # () 0, or NaN where a reward or a discount is not finite


def replace_unknown(batch: Batch, updates: int) -> Batch:
    """Put the first row that counts in the place of each that does not, update by update.

    For networks that take statistics of a batch: what is in a row of weight 0 is not known. Weights
    stay, so the copies have no part in a loss. An update without one that counts gets its first.

    Args:
      batch: U * B transitions, each B after the other those of an update.
      updates: U.

    Returns:
      The batch; rows are fresh, all but the weights, rewards and discounts.
    """
    counts = batch.weight.view(updates, -1) > 0  # (U, B)
    ids = torch.arange(counts.numel(), device=counts.device).view_as(counts)
    first = ids[:, :1] + counts.to(torch.uint8).argmax(1, keepdim=True)
    ids = torch.where(counts, ids, first).flatten()
    return batch._replace(
        obs=batch.obs.index_select(0, ids),
        critic_obs=batch.critic_obs.index_select(0, ids),
        action=batch.action.index_select(0, ids),
        next_obs=batch.next_obs.index_select(0, ids),
        next_critic_obs=batch.next_critic_obs.index_select(0, ids),
    )


class UpdateTable:
    """Memory for the rows of U updates, filled once a cycle.

    With a mirror, the B rows of an update are followed by their mirror images, M = 2B.

    Args:
      spec: widths, and the symmetry.
      updates: U.
      batch_size: B.
      mirrored: add the mirror images.
      action_limit: (A,) of the policy.
      device, dtype: of the rows.
    """

    def __init__(
        self,
        spec: LearnerSpec,
        updates: int,
        batch_size: int,
        mirrored: bool,
        action_limit: Tensor,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.updates, self.batch_size, self._critic_dim = updates, batch_size, spec.critic_obs_dim
        self._inv_limit = 1.0 / action_limit
        self._symmetry: Symmetry | None = None
        if mirrored:
            assert spec.symmetry is not None
            mirrors = spec.symmetry.obs, spec.symmetry.critic_obs, spec.symmetry.action
            self._symmetry = Symmetry(*(mirror.to(device) for mirror in mirrors))
        self.size = 2 * batch_size if mirrored else batch_size

        def room(*widths: int) -> Tensor:
            return torch.zeros(updates, self.size, *widths, device=device, dtype=dtype)

        self._obs, self._next_obs = room(spec.obs_dim), room(spec.obs_dim)
        width = spec.critic_obs_dim + spec.action_dim
        self._critic_input, self._next_critic_input = room(width), room(width)
        self._reward, self._discount, self._weight = room(), room(), room()
        self._check = torch.zeros(updates, device=device, dtype=dtype)

    @torch.no_grad()
    def fill(
        self, batch: Batch, obs_normalizer: RunningNormalizer, critic_normalizer: RunningNormalizer
    ) -> None:
        """Take over U * B transitions, each B after the other those of an update."""
        assert batch.reward.shape[0] == self.updates * self.batch_size
        mirrors = self._symmetry
        obs, critic = (None, None) if mirrors is None else (mirrors.obs, mirrors.critic_obs)
        width = self._critic_dim
        for rows, out, normalizer, mirror in (
            (batch.obs, self._obs, obs_normalizer, obs),
            (batch.next_obs, self._next_obs, obs_normalizer, obs),
            (batch.critic_obs, self._critic_input[..., :width], critic_normalizer, critic),
            (
                batch.next_critic_obs,
                self._next_critic_input[..., :width],
                critic_normalizer,
                critic,
            ),
        ):
            raw = self._split(rows)
            normalizer(raw, out=out[:, : self.batch_size])
            if mirror is not None:
                normalizer(mirror(raw), out=out[:, self.batch_size :])
        action, actions = self._split(batch.action), self._critic_input[..., width:]
        torch.mul(action, self._inv_limit, out=actions[:, : self.batch_size])
        if mirrors is not None:
            torch.mul(mirrors.action(action), self._inv_limit, out=actions[:, self.batch_size :])
        copies = self.size // self.batch_size
        for rows, out in ((batch.reward, self._reward), (batch.discount, self._discount)):
            out.view(self.updates, copies, -1).copy_(self._split(rows).unsqueeze(1))
        weight = self._split(batch.weight)
        share = weight / (copies * weight.sum(1, keepdim=True)).clamp_min_(1.0)
        self._weight.view(self.updates, copies, -1).copy_(share.unsqueeze(1))
        # The support would clamp an infinite reward to its edge, where it looks like any other.
        torch.sum((self._reward + self._discount).mul_(0.0), 1, out=self._check)

    def rows(self, update: int) -> UpdateRows:
        """The rows of one update."""
        critic_input = self._critic_input[update]
        return UpdateRows(
            self._obs[update],
            self._next_obs[update],
            critic_input[:, : self._critic_dim],
            critic_input,
            self._next_critic_input[update],
            self._reward[update],
            self._discount[update],
            self._weight[update],
            self._check[update],
        )

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(self.updates, self.batch_size, *rows.shape[1:])
