"""Activation functions, each as torch's module and as a pair that writes into given memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_aten = torch.ops.aten


@dataclass(frozen=True)
class Activation:
    """One activation.

    Attributes:
      module: torch's own module, for autograd and for export.
      forward: `forward(x, y)` writes the activation of x to y; x is kept.
      backward: `backward(grad, x, y)` turns the gradient of y into that of x, in place.
    """

    module: Callable[[], nn.Module]
    forward: Callable[[Tensor, Tensor], None]
    backward: Callable[[Tensor, Tensor, Tensor], None]


def _elu(x: Tensor, y: Tensor) -> None:
    # exp(x) - 1 differs from expm1 by one rounding of 1 (6e-8 in f32) and is several times faster
    # on a CPU, where expm1 would cost as much as the matrix product before it.
    torch.clamp_max(x, 0.0, out=y)
    y.exp_().sub_(1.0)
    torch.maximum(x, y, out=y)


def _elu_backward(grad: Tensor, x: Tensor, y: Tensor) -> None:  # noqa: ARG001
    _aten.elu_backward.grad_input(grad, 1.0, 1.0, 1.0, True, y, grad_input=grad)


def _relu(x: Tensor, y: Tensor) -> None:
    torch.clamp_min(x, 0.0, out=y)


def _relu_backward(grad: Tensor, x: Tensor, y: Tensor) -> None:  # noqa: ARG001
    _aten.threshold_backward.grad_input(grad, y, 0.0, grad_input=grad)


def _tanh(x: Tensor, y: Tensor) -> None:
    torch.tanh(x, out=y)


def _tanh_backward(grad: Tensor, x: Tensor, y: Tensor) -> None:  # noqa: ARG001
    _aten.tanh_backward.grad_input(grad, y, grad_input=grad)


def _silu(x: Tensor, y: Tensor) -> None:
    _aten.silu.out(x, out=y)


def _silu_backward(grad: Tensor, x: Tensor, y: Tensor) -> None:  # noqa: ARG001
    _aten.silu_backward.grad_input(grad, x, grad_input=grad)


def _gelu(x: Tensor, y: Tensor) -> None:
    _aten.gelu.out(x, out=y)


def _gelu_backward(grad: Tensor, x: Tensor, y: Tensor) -> None:  # noqa: ARG001
    _aten.gelu_backward.grad_input(grad, x, grad_input=grad)


# By the name used in the config.
ACTIVATIONS: dict[str, Activation] = {
    "elu": Activation(nn.ELU, _elu, _elu_backward),
    "relu": Activation(nn.ReLU, _relu, _relu_backward),
    "tanh": Activation(nn.Tanh, _tanh, _tanh_backward),
    "silu": Activation(nn.SiLU, _silu, _silu_backward),
    "gelu": Activation(nn.GELU, _gelu, _gelu_backward),
}
