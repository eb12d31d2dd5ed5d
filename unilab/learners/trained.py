"""A network with what training it takes: flat parameters, optimiser, and a gate for bad steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from unilab.learners.optimizer import FlatParameters, GatedAdam
from unilab.learners.precision import LossScale


class Step(NamedTuple):
    """How an optimiser step went. 0-d tensors on the device."""

    applied: Tensor  # () bool, False: loss or gradient was not finite and nothing changed
    refused: Tensor  # () bool, the same without the overflows that a loss scale provokes
    grad_norm: Tensor  # () before the step


class TrainedModule:
    """A module that goes down its loss by AdamW, unless loss or gradient is not finite.

    Args:
      module: its parameters are moved into one vector.
      learning_rate, betas, weight_decay: of AdamW.
      half: scale the loss, for hidden layers in float16.
    """

    def __init__(
        self,
        module: nn.Module,
        learning_rate: float,
        betas: tuple[float, float],
        weight_decay: float,
        *,
        half: bool = False,
    ) -> None:
        self.module = module
        self._parameters = list(module.parameters())
        self.flat = FlatParameters(self._parameters)
        self._grads = [p.grad for p in self._parameters if p.grad is not None]
        device = self.flat.grad.device
        self._loss_scale = LossScale(device) if half else None
        self._optimizer = GatedAdam(
            {"all": self.flat},
            learning_rate,
            None,
            device,
            betas,
            weight_decay,
            None if self._loss_scale is None else self._loss_scale.scale,
        )
        self.learning_rate = self._optimizer.learning_rate  # () f32, to be changed in place

    def descend(self, loss: Tensor) -> Step:
        """Take one step down the gradient of `loss` ()."""
        scale = self._loss_scale
        scaled = loss if scale is None else loss * scale.scale
        grads = torch.autograd.grad(scaled, self._parameters)
        torch._foreach_copy_(self._grads, grads)
        with torch.no_grad():
            norm = self.flat.grad_norm()
            if scale is not None:
                norm = norm / scale.scale
            applied = torch.isfinite(loss + norm)
            self._optimizer.step(norm.view(1), applied)
            if scale is None:
                return Step(applied, ~applied, norm)
            scale.update(applied)
            return Step(applied, ~torch.isfinite(loss), norm)

    def tensors(self) -> dict[str, Tensor]:
        """The live state of optimiser and loss scale; the parameters are the module's."""
        state = {**self._optimizer.moments("all"), "learning_rate": self.learning_rate}
        return state if self._loss_scale is None else state | self._loss_scale.tensors()
