"""Running mean and variance of observations, frozen between explicit folds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Keeps entries that hardly vary from being blown up. Source: rsl_rl's empirical normaliser.
EPSILON = 1e-2


class RunningNormalizer(nn.Module):
    """Centre and scale vectors of D entries: `(x - mean) / (std + 1e-2)`.

    Statistics are kept in float64 and pooled by the parallel form of Chan et al. 1979. They change
    only in `fold` and by loading a state; `forward` never writes. Before the first fold mean is 0
    and std is 1.

    Args:
      dim: D.
      enabled: False makes `forward` the identity and `fold` do nothing.
      device, dtype: of the values that `forward` takes and gives.
    """

    mean: Tensor  # (D,) f64
    var: Tensor  # (D,) f64, population variance
    count: Tensor  # () f64, rows folded so far
    shift: Tensor  # (D,) mean in dtype, what forward uses
    inv_scale: Tensor  # (D,) 1 / (std + EPSILON) in dtype

    def __init__(
        self, dim: int, *, enabled: bool, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.enabled = enabled
        self.register_buffer("mean", torch.zeros(dim, device=device, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, device=device, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), device=device, dtype=torch.float64))
        shift = torch.zeros(dim, device=device, dtype=dtype)
        self.register_buffer("shift", shift, persistent=False)
        self.register_buffer("inv_scale", torch.ones_like(shift), persistent=False)
        self.refresh()

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Normalise `x` (..., D) into `out`, or into a new tensor. `x` may be of a shorter type."""
        if x.dtype != self.shift.dtype:
            x = x.to(self.shift.dtype) if out is None else out.copy_(x)
        if not self.enabled:
            return x if out is None or x is out else out.copy_(x)
        return torch.sub(x, self.shift, out=out).mul_(self.inv_scale)

    @torch.no_grad()
    def fold(self, x: Tensor) -> Tensor:
        """Pool the rows of `x` (B, D) into the statistics.

        Rows with infinite or undefined moments leave the statistics as they are.

        Returns:
          () bool, False where the rows were refused.
        """
        if not self.enabled:
            return torch.ones((), dtype=torch.bool, device=x.device)
        rows = x.shape[0]
        # Centring on the present mean in the data's own precision keeps the squares small.
        centred = x - self.mean.to(x.dtype)
        offset = centred.mean(0, dtype=torch.float64)
        square = centred.square_().mean(0, dtype=torch.float64)
        batch_mean = self.mean.to(x.dtype).double() + offset
        batch_var = (square - offset.square()).clamp_min_(0)
        delta = batch_mean - self.mean
        total = self.count + rows
        share = rows / total
        var = torch.lerp(self.var, batch_var, share) + delta.square() * share * (1 - share)
        finite = torch.isfinite(var.sum() + batch_mean.sum())
        self.mean.copy_(torch.where(finite, self.mean + delta * share, self.mean))
        self.var.copy_(torch.where(finite, var, self.var))
        self.count.copy_(torch.where(finite, total, self.count))
        self.refresh()
        return finite

    @torch.no_grad()
    def refresh(self) -> None:
        """Derive what `forward` uses from the statistics. Call after writing them directly."""
        if self.enabled:
            self.shift.copy_(self.mean)
            self.inv_scale.copy_(1.0 / (self.var.sqrt() + EPSILON))
