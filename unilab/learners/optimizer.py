"""Adam over flat parameter vectors, that steps over a bad gradient without asking about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

# Parameters start at multiples of this many entries of the flat vector (a 64-byte line of f32).
ALIGNMENT = 16


class FlatParameters:
    """Parameters and gradients of some modules, moved into one vector each.

    The modules' own parameters become views, so that norm, clipping, zeroing and the optimiser
    take one operation each instead of one a tensor.

    Attributes:
      vector: (P,) the parameter to give to an optimiser; `vector.grad` is always allocated.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        owners = list(parameters)
        starts, end = [], 0
        for p in owners:
            starts.append(end)
            end += -(-p.numel() // ALIGNMENT) * ALIGNMENT
        self.vector = nn.Parameter(owners[0].detach().new_zeros(end))
        self.grad = torch.zeros_like(self.vector.data)
        self.vector.grad = self.grad
        for p, start in zip(owners, starts, strict=True):
            view = self.vector.data[start : start + p.numel()].view_as(p)
            view.copy_(p.data)
            p.data = view
            p.grad = self.grad[start : start + p.numel()].view_as(p)

    def grad_norm(self) -> Tensor:
        """() Euclidean norm of the gradient."""
        norm: Tensor = torch.linalg.vector_norm(self.grad)
        return norm


class GatedAdam:
    """Fused Adam (Kingma and Ba 2015) on named parts, each clipped to its own gradient norm.

    The learning rate is a tensor on the device, to be changed in place. A step with `finite` False
    changes neither parameters nor moments nor the step count, and the host never learns of it.

    Args:
      parts: flat parameters by name.
      learning_rate: the first one.
      max_grad_norm: gradients of a part are scaled down to this norm at most; None never does.
      device: of the parameters.
      betas: decay of both moments a step.
      weight_decay: above 0 it is AdamW (Loshchilov and Hutter 2019), on all parameters.
      grad_scale: () f32 on the device, what the gradients are to be divided by, where it is given.
    """

    def __init__(
        self,
        parts: Mapping[str, FlatParameters],
        learning_rate: float,
        max_grad_norm: float | None,
        device: torch.device,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        grad_scale: Tensor | None = None,
    ) -> None:
        self.parts, self.max_grad_norm = dict(parts), max_grad_norm
        self.learning_rate = torch.tensor(learning_rate, device=device, dtype=torch.float32)  # ()
        self._found_inf = torch.zeros((), device=device, dtype=torch.float32)
        vectors = [part.vector for part in self.parts.values()]
        self._adam = torch.optim.Adam(
            vectors,
            lr=self.learning_rate,
            betas=betas,
            weight_decay=weight_decay,
            decoupled_weight_decay=weight_decay > 0,
            fused=True,
            capturable=device.type == "cuda",
        )
        self._adam.found_inf = self._found_inf  # type: ignore[attr-defined]
        if grad_scale is not None:
            self._adam.grad_scale = grad_scale  # type: ignore[attr-defined]
        for vector in vectors:  # made here, not in the first step, so that a state is complete
            self._adam.state[vector] = {
                "step": torch.zeros((), device=device, dtype=torch.float32),
                "exp_avg": torch.zeros_like(vector.data),
                "exp_avg_sq": torch.zeros_like(vector.data),
            }

    def grad_norms(self) -> Tensor:
        """(parts,) Euclidean norm of each part's gradient."""
        return torch.stack([part.grad_norm() for part in self.parts.values()])

    @torch.no_grad()
    def step(self, norms: Tensor, finite: Tensor) -> None:
        """Clip and step.

        Args:
          norms: (parts,) what `grad_norms` gave.
          finite: () bool, False makes the step do nothing.
        """
        if self.max_grad_norm is not None:
            scale = (self.max_grad_norm / (norms + 1e-6)).clamp_max_(1.0)
            scale = torch.where(finite, scale, 0.0)  # a NaN would stay between parameters
            for part, factor in zip(self.parts.values(), scale.unbind(), strict=True):
                part.grad.mul_(factor)
        self._found_inf.copy_(~finite)
        self._adam.step()

    def moments(self, name: str) -> dict[str, Tensor]:
        """The live state of one part: step (), exp_avg (P,), exp_avg_sq (P,)."""
        state: dict[str, Tensor] = self._adam.state[self.parts[name].vector]
        return state
