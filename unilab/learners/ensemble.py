"""Networks of the off-policy learners: E equal ones as one, each layer a single batched product.

A critic has E = 2 members, an actor 1. Weights and biases start uniform in +-1 / sqrt(fan_in),
torch's own rule, which FastTD3 and FastSAC keep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unilab.config.base import EXPANSION
from unilab.learners.activations import ACTIVATIONS
from unilab.learners.precision import Precision


@dataclass(frozen=True)
class NetworkShape:
    """What the hidden part of a network is made of.

    Args:
      kind: mlp or residual.
      hidden: width of each hidden layer or block.
      activation: a key of ACTIVATIONS.
      layer_norm: normalise before each activation of an mlp; a residual network always does so
        at the start of each block.
    """

    kind: str
    hidden: tuple[int, ...]
    activation: str
    layer_norm: bool


class EnsembleLinear(nn.Module):
    """E linear layers side by side: (E, B, D_in) to (E, B, D_out)."""

    def __init__(
        self, members: int, fan_in: int, fan_out: int, draw: torch.Generator, like: Tensor
    ) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(fan_in)

        def start(*shape: int) -> nn.Parameter:
            values = torch.empty(shape, dtype=torch.float64)
            return nn.Parameter(values.uniform_(-bound, bound, generator=draw).to(like))

        self.weight = start(members, fan_in, fan_out)
        self.bias = start(members, 1, fan_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map each member's rows."""
        return torch.baddbmm(self.bias, x, self.weight)

    def plain(self, columns: slice = slice(None)) -> nn.Linear:
        """The first member as a layer of torch's own, with some of its outputs. A copy."""
        weight = self.weight.detach()[0].t()[columns].clone()
        layer = nn.Linear(weight.shape[1], weight.shape[0]).to(weight)
        layer.weight.data, layer.bias.data = weight, self.bias.detach()[0, 0, columns].clone()
        return layer


class EnsembleNorm(nn.Module):
    """E layer norms (Ba et al. 2016) side by side, on (E, B, D)."""

    def __init__(self, members: int, width: int, like: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(like.new_ones(members, 1, width))
        self.bias = nn.Parameter(like.new_zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Centre and scale each row, then apply the member's own gain and offset."""
        rows = nn.functional.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias, rows, self.weight)

    def plain(self) -> nn.LayerNorm:
        """The first member as torch's own module. A copy."""
        norm = nn.LayerNorm(self.weight.shape[-1]).to(self.weight)
        norm.weight.data = self.weight.detach()[0, 0].clone()
        norm.bias.data = self.bias.detach()[0, 0].clone()
        return norm


class ResidualBlock(nn.Module):
    """`x + narrow(activation(widen(norm(x))))`, inside EXPANSION times as wide.

    Source: SimBa, Lee et al. 2025.
    """

    def __init__(
        self, members: int, width: int, activation: str, draw: torch.Generator, like: Tensor
    ) -> None:
        super().__init__()
        self.norm = EnsembleNorm(members, width, like)
        self.widen = EnsembleLinear(members, width, EXPANSION * width, draw, like)
        self.act = ACTIVATIONS[activation].module()
        self.narrow = EnsembleLinear(members, EXPANSION * width, width, draw, like)

    def forward(self, x: Tensor) -> Tensor:
        """Map (E, B, H) to (E, B, H); the sum is in the type of `x`."""
        change: Tensor = self.narrow(self.act(self.widen(self.norm(x))))
        return x + change

    def plain(self) -> nn.Module:
        """The first member made of torch's own modules. A copy."""
        act = type(self.act)()
        return PlainResidual(
            nn.Sequential(self.norm.plain(), self.widen.plain(), act, self.narrow.plain())
        )


class PlainResidual(nn.Module):
    """`x + change(x)`, for export."""

    def __init__(self, change: nn.Module) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, H) to (B, H)."""
        change: Tensor = self.change(x)
        return x + change


class EnsembleNetwork(nn.Module):
    """E networks of one shape: hidden layers in a chosen precision, a linear head in full.

    Args:
      members: E.
      fan_in, fan_out: widths of input and output.
      shape: the hidden part.
      precision: of the hidden part.
      draw: gives the weights, on the CPU, so that they do not depend on the device.
      like: a tensor of the parameters' device and dtype.
    """

    def __init__(
        self,
        members: int,
        fan_in: int,
        fan_out: int,
        shape: NetworkShape,
        precision: Precision,
        draw: torch.Generator,
        like: Tensor,
    ) -> None:
        super().__init__()
        self.members, self.precision = members, precision
        layers: list[nn.Module] = []
        if shape.kind == "residual":
            width = shape.hidden[0]
            self.embed: nn.Module = EnsembleLinear(members, fan_in, width, draw, like)
            layers += [
                ResidualBlock(members, width, shape.activation, draw, like) for _ in shape.hidden
            ]
            layers.append(EnsembleNorm(members, width, like))
        else:
            self.embed = nn.Identity()
            width = fan_in
            for wide in shape.hidden:
                layers.append(EnsembleLinear(members, width, wide, draw, like))
                if shape.layer_norm:
                    layers.append(EnsembleNorm(members, wide, like))
                layers.append(ACTIVATIONS[shape.activation].module())
                width = wide
        self.trunk = nn.Sequential(*layers)
        self.head = EnsembleLinear(members, width, fan_out, draw, like)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, D_in) to (E, B, D_out), in the type of `x`."""
        rows = x.unsqueeze(0).expand(self.members, -1, -1)
        with self.precision.autocast():
            # Back to the type of `x`: a sum over residual blocks keeps its small terms that way.
            hidden = self.trunk(self.embed(rows).to(x.dtype)).to(x.dtype)
        result: Tensor = self.head(hidden)
        return result

    def plain(self, columns: slice = slice(None)) -> nn.Sequential:
        """The first member as torch's own modules with some of its outputs, for export. A copy."""
        copies: list[nn.Module] = []
        for module in (self.embed, *self.trunk, self.head):
            if module is self.head:
                copies.append(self.head.plain(columns))
            elif isinstance(module, EnsembleLinear | EnsembleNorm | ResidualBlock):
                copies.append(module.plain())
            elif not isinstance(module, nn.Identity):
                copies.append(type(module)())
        return nn.Sequential(*copies)


class SquashedPolicy(nn.Module):
    """Raw observation (B, O) to deterministic action (B, A): normaliser, network, squash, scale.

    Args:
      net: normalised observation to the action before the squash; modules of torch's own.
      shift, inv_scale: (O,) applied as `(obs - shift) * inv_scale`; copied.
      limit: (A,) the largest action; copied.
    """

    shift: Tensor
    inv_scale: Tensor
    limit: Tensor

    def __init__(self, net: nn.Module, shift: Tensor, inv_scale: Tensor, limit: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift.detach().clone())
        self.register_buffer("inv_scale", inv_scale.detach().clone())
        self.register_buffer("limit", limit.detach().clone())
        self.net = net
        self.requires_grad_(False)
        self.eval()

    def forward(self, obs: Tensor) -> Tensor:
        """The action of each row of `obs`."""
        return torch.tanh(self.net((obs - self.shift) * self.inv_scale)) * self.limit
