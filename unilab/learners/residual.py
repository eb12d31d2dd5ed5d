"""FlashSAC's network: an ensemble of residual MLPs with batch normalisation and unit weights.

Source: FlashSAC, arXiv 2604.04539.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from unilab.learners.precision import Precision

EPSILON = 1e-5  # of both kinds of normalisation
MOMENTUM = 0.01  # share of a batch in the running statistics

# Where batch normalisation takes its statistics from: the batch, which is noted for `commit`; the
# batch, and nothing is noted; or the running statistics.
Statistics = Literal["noted", "batch", "running"]


class ResidualEnsemble(nn.Module):
    """E networks of the same shape, run as one batched product a layer::

        h = W_in BN(x)
        h = h + relu(BN(W2 relu(BN(W1 h))))      for each block
        y = W_out RMS(h) + b

    Each row of a weight has norm 1 and each pair (scale, bias) of a normalisation over D channels
    has norm sqrt(D): `project` brings them back there after an optimiser step. So only directions
    are learnt, and the effective step size does not shrink as weights would grow.

    Args:
      members: E.
      fan_in, width, fan_out: D_in, D and D_out.
      blocks: number of residual blocks.
      precision: of the layers but the head. Statistics, the sum over blocks and what follows it
        stay in the type of the parameters.
      expansion: a block is this many times wider inside.
      generator: draws the weights, on the CPU, so that they do not depend on the device.
      device, dtype: of the parameters.
      tracks: keep running statistics; without, "noted" and "running" are not possible.
    """

    running: Tensor  # (2, S) mean and unbiased variance of all S normalised channels

    def __init__(
        self,
        members: int,
        fan_in: int,
        width: int,
        fan_out: int,
        *,
        blocks: int,
        expansion: int,
        precision: Precision,
        generator: torch.Generator,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        tracks: bool = True,
    ) -> None:
        super().__init__()
        self.members, self.precision = members, precision
        inner = expansion * width
        shapes = [(width, fan_in), *[(inner, width), (width, inner)] * blocks, (fan_out, width)]
        channels = [fan_in, *[inner, width] * blocks, width]

        def weight(rows: int, columns: int) -> nn.Parameter:
            drawn = torch.empty(members, rows, columns, dtype=torch.float64)
            for member in drawn:
                nn.init.orthogonal_(member, generator=generator)
            return nn.Parameter(drawn.to(device, dtype))

        def norm(size: int) -> nn.Parameter:
            pair = torch.zeros(2, members, size, device=device, dtype=dtype)
            pair[0] = 1.0
            return nn.Parameter(pair)

        # Of the input, each layer of the blocks, and the head.
        self.weights = nn.ParameterList([weight(*shape) for shape in shapes])  # (E, rows, columns)
        # Of the input, each layer of the blocks, and RMS: (2, E, D) scale and bias.
        self.norms = nn.ParameterList([norm(size) for size in channels])
        self.bias = nn.Parameter(torch.zeros(members, 1, fan_out, device=device, dtype=dtype))
        sizes = [members * size for size in channels[:-1]]
        self._ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
        count = self._ends[-1] if tracks else 0
        self.register_buffer("running", torch.zeros(2, count, device=device, dtype=dtype))
        self.running[1] = 1.0
        self._noted = torch.zeros_like(self.running)
        self.project()

    def forward(self, x: Tensor, statistics: Statistics) -> Tensor:
        """Map (B, D_in) to (E, B, D_out)."""
        h = x.repeat(1, self.members) if self.members > 1 else x  # (B, E * D_in)
        with self.precision.autocast():
            h = self._linear(self._batch_norm(h, 0, statistics), 0).to(x.dtype)
            for i in range(1, len(self.weights) - 1, 2):
                inner = self._batch_norm(self._linear(h, i), i, statistics).relu_()
                h = h + self._batch_norm(self._linear(inner, i + 1), i + 1, statistics).relu_()
        h = functional.rms_norm(self._split(h), self.norms[-1].shape[-1:], eps=EPSILON)
        scale, bias = self.norms[-1].unsqueeze(2).unbind()  # (E, 1, D)
        h = torch.addcmul(bias, h, scale)
        return torch.baddbmm(self.bias, h, self.weights[-1].transpose(1, 2))

    def _split(self, h: Tensor) -> Tensor:
        """View (B, E * D) as (E, B, D)."""
        return h.view(h.shape[0], self.members, -1).transpose(0, 1)

    def _linear(self, h: Tensor, i: int) -> Tensor:
        """Apply weight i, (B, E * columns) to (B, E * rows)."""
        out = torch.bmm(self._split(h), self.weights[i].transpose(1, 2))
        return out.transpose(0, 1).reshape(h.shape[0], -1)

    def _batch_norm(self, h: Tensor, i: int, statistics: Statistics) -> Tensor:
        """Normalise (B, E * D) with pair i."""
        scale, bias = self.norms[i].view(2, -1).unbind()
        mean = var = None
        if statistics != "batch":
            source = self._noted if statistics == "noted" else self.running
            mean, var = source[:, self._ends[i] : self._ends[i + 1]].unbind()
        # Momentum 1 overwrites what was noted.
        return functional.batch_norm(
            h, mean, var, scale, bias, statistics != "running", 1.0, EPSILON
        )

    @torch.no_grad()
    def commit(self, finite: Tensor) -> None:
        """Take the noted statistics of the last batch into the running ones, if `finite` ()."""
        self.running.lerp_(torch.where(finite, self._noted, self.running), MOMENTUM)
        self._noted.zero_()  # "overwritten" means added to 0 times what was there: no NaN may stay

    @torch.no_grad()
    def project(self) -> None:
        """Bring weights and pairs back to their norms."""
        for weight in self.weights:
            weight.div_(torch.linalg.vector_norm(weight, dim=-1, keepdim=True))
        for pair in self.norms:
            norm = torch.linalg.vector_norm(pair, dim=(0, 2), keepdim=True)
            pair.div_(norm.mul_(1.0 / math.sqrt(pair.shape[-1])))

    @torch.no_grad()
    def folded(self, num_out: int) -> FoldedNetwork:
        """The first member's first `num_out` outputs, with running statistics. A copy."""
        weights = [w[0].clone() for w in self.weights]
        biases = [torch.zeros_like(w[:, 0]) for w in weights]
        biases[-1] = self.bias[0, 0].clone()
        maps = []  # of each normalisation, as x * gain + offset
        for i, pair in enumerate(self.norms):
            scale, bias = pair[:, 0].unbind()
            if i + 1 < len(self.norms):
                start = self._ends[i]
                mean, var = self.running[:, start : start + scale.numel()].unbind()
                scale = scale * torch.rsqrt(var + EPSILON)
                bias = bias - mean * scale
            maps.append((scale, bias))
        for i, (gain, offset) in ((0, maps[0]), (-1, maps[-1])):  # before their layer
            biases[i] += weights[i] @ offset
            weights[i] *= gain
        for i, (gain, offset) in enumerate(maps[1:-1], 1):  # after it
            weights[i] *= gain.unsqueeze(1)
            biases[i] = biases[i] * gain + offset
        weights[-1], biases[-1] = weights[-1][:num_out], biases[-1][:num_out]
        return FoldedNetwork(weights, biases)


class FoldedNetwork(nn.Module):
    """A member of the ensemble as plain linear layers: its normalisations are inside them.

    Args:
      weights, biases: (rows, columns) and (rows,) of each layer, copied.
    """

    def __init__(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        super().__init__()
        layers = []
        for weight, bias in zip(weights, biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[0]).to(weight)
            layer.load_state_dict({"weight": weight, "bias": bias})
            layers.append(layer)
        self.layers = nn.ModuleList(layers)
        width = layers[-1].in_features
        self.rms = nn.RMSNorm(width, eps=EPSILON, elementwise_affine=False)
        self.requires_grad_(False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, D_in) to (B, D_out)."""
        first, *inner, last = self.layers
        h: Tensor = first(x)
        for i in range(0, len(inner), 2):
            h = h + torch.relu(inner[i + 1](torch.relu(inner[i](h))))
        out: Tensor = last(self.rms(h))
        return out
