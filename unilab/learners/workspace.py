"""Forward and backward pass of a network: in memory that is allocated once, or by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unilab.learners.activations import ACTIVATIONS
from unilab.learners.compiled import Call, CompiledForward, Trial, accept, example, tolerance
from unilab.learners.networks import MLP, Network
from unilab.learners.precision import LossScale


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
        self.network, self.rows, self._trains = mlp, rows, trains
        self.loss_scale = None
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
        last = len(self.network.linears) - 1
        for i, layer in enumerate(self.network.linears):
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
        for i in range(len(self.network.linears) - 1, -1, -1):
            layer = self.network.linears[i]
            x = self._post[i - 1][:rows] if i else self._input
            torch.mm(grad.t(), x, out=layer.weight.grad)
            torch.sum(grad, 0, out=layer.bias.grad)
            if i:
                below = self._grad[i - 1][:rows]
                torch.mm(grad, layer.weight, out=below)
                self._activation.backward(below, self._pre[i - 1][:rows], x)
                grad = below


class AutogradWorkspace:
    """Runs any network and its gradient by autograd. Methods as `MLPWorkspace` has them.

    Args:
      network: its parameters are read at each call, and its hidden layers run in its precision.
      rows: the largest batch B.
      trains: keep what `backward` needs.
      loss_scale: gradients are multiplied by it on their way through the network.
      forward: runs the network's forward pass; None is its own.
    """

    def __init__(
        self,
        network: Network,
        rows: int,
        *,
        trains: bool,
        loss_scale: LossScale | None = None,
        forward: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.network, self.rows, self.loss_scale = network, rows, loss_scale
        self._trains, self._run = trains, network if forward is None else forward
        self._parameters = list(network.parameters())
        self._result: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, D_in) to (B, D_out)."""
        with torch.set_grad_enabled(self._trains):
            self._result = self._run(x)
        return self._result.detach()

    @torch.no_grad()
    def backward(self, grad: Tensor) -> None:
        """Overwrite every parameter's `.grad`, given the gradient (B, D_out) of the result of the
        last `forward`, whose input must still be as it was."""
        assert self._result is not None
        result, self._result = self._result, None  # what autograd kept goes with this call
        scale = None if self.loss_scale is None else self.loss_scale.scale
        grads = torch.autograd.grad(
            result, self._parameters, grad if scale is None else grad * scale
        )
        own = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_copy_(own, grads)
        if scale is not None:
            torch._foreach_mul_(own, scale.reciprocal())


Workspace = MLPWorkspace | AutogradWorkspace


def make_workspace(
    network: Network, rows: int, *, trains: bool, loss_scale: LossScale | None = None
) -> Workspace:
    """Return what runs a network fastest: by hand an MLP in float32, by autograd all else.

    Args:
      network: the network.
      rows: the largest batch B.
      trains: also make room for `backward`.
      loss_scale: for hidden layers in float16.
    """
    if isinstance(network, MLP) and network.precision.name == "fp32":
        return MLPWorkspace(network, rows, trains=trains)
    return AutogradWorkspace(network, rows, trains=trains, loss_scale=loss_scale)


def compiled_workspaces(*pairs: tuple[Workspace, Tensor]) -> list[Workspace]:
    """Compile the passes of training workspaces, if all are right and not slower.

    Args:
      pairs: workspace, and a tensor of the shape (B, D_in) that it is trained with. The gradients
        of the parameters are overwritten.

    Returns:
      Workspaces in their places; the ones that were given, after a warning, if it cannot be.
    """
    compiled: list[Workspace] = []
    trials = []
    for plain, like in pairs:
        rows = example(like, *like.shape)
        forward = CompiledForward(plain.network, [Call(rows)])
        work = AutogradWorkspace(
            plain.network,
            plain.rows,
            trains=True,
            loss_scale=plain.loss_scale,
            forward=forward,
        )
        compiled.append(work)
        limit = tolerance(plain.network.precision.name, like.device)
        name = f"network with {like.shape[1]} inputs"
        trials.append(Trial(name, _pass_of(plain, rows), _pass_of(work, rows), limit))
    return compiled if accept(trials) else [plain for plain, _ in pairs]


def _pass_of(work: Workspace, rows: Tensor) -> Callable[[], Sequence[Tensor]]:
    def run() -> list[Tensor]:
        result = work.forward(rows)
        work.backward(example(result, *result.shape))
        return [result, *(p.grad for p in work.network.parameters() if p.grad is not None)]

    return run
