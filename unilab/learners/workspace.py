"""Forward and backward pass of an MLP in memory that is allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab.learners.activations import ACTIVATIONS
from unilab.learners.networks import MLP


class MLPWorkspace:
    """Runs an MLP and its gradient without allocating and without an autograd graph.

    On a CPU, fresh memory for every activation costs more than the activation itself: each
    minibatch would touch tens of megabytes for the first time. Here every intermediate result has
    its place. Values are those of `mlp.forward`, up to rounding.

    Args:
      mlp: the network; its parameters are read at each call.
      rows: the largest batch B.
      trains: also make room for `backward`.
    """

    def __init__(self, mlp: MLP, rows: int, *, trains: bool) -> None:
        self.mlp, self.rows, self._trains = mlp, rows, trains
        self._activation = ACTIVATIONS[mlp.activation]
        like = mlp.linears[0].weight.data
        widths = [layer.out_features for layer in mlp.linears]
        self._pre = [like.new_empty(rows, width) for width in widths]
        self._post = [like.new_empty(rows, width) for width in widths[:-1]]
        self._grad = [like.new_empty(rows, width) for width in widths[:-1]] if trains else []
        self._input = like.new_empty(0)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map (B, D_in) to (B, D_out). The result is a view, valid until the next `forward`."""
        self._input, rows = x, x.shape[0]
        last = len(self.mlp.linears) - 1
        for i, layer in enumerate(self.mlp.linears):
            pre = self._pre[i][:rows]
            torch.addmm(layer.bias, x, layer.weight.t(), out=pre)
            if i < last:
                x = self._post[i][:rows]
                self._activation.forward(pre, x)
        return pre

    @torch.no_grad()
    def backward(self, grad: Tensor) -> None:
        """Overwrite every parameter's `.grad`, given the gradient (B, D_out) of the result of the
        last `forward`, whose input must still be as it was."""
        assert self._trains
        rows = grad.shape[0]
        for i in range(len(self.mlp.linears) - 1, -1, -1):
            layer = self.mlp.linears[i]
            x = self._post[i - 1][:rows] if i else self._input
            torch.mm(grad.t(), x, out=layer.weight.grad)
            torch.sum(grad, 0, out=layer.bias.grad)
            if i:
                below = self._grad[i - 1][:rows]
                torch.mm(grad, layer.weight, out=below)
                self._activation.backward(below, self._pre[i - 1][:rows], x)
                grad = below
